// One picture of `terrace top`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/terrace/top/sample.h"

namespace terrace::tools {

struct Frame {
  std::optional<Sample> sample;  // the last there was
  std::optional<Rates> rates;    // up to it; absent before the second
  std::string away;              // why no daemon answers now; empty: one does
  double interval_s = 0;
};

struct FrameLimits {
  size_t columns = 80;
  size_t rows = 24;
};
constexpr FrameLimits kNoFrameLimits{.columns = SIZE_MAX, .rows = SIZE_MAX};

// Lines that fit, the busiest groups first. Names that clients chose are shown without control
// characters: they reach a terminal.
std::vector<std::string> RenderFrame(const Frame& frame, const FrameLimits& limits);
// What cannot be said is null.
nlohmann::json ToJson(const Frame& frame);

}  // namespace terrace::tools
