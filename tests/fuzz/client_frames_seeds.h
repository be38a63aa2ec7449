// What conversations with a client begin from: scripts of its target, made by hand.
#pragma once

#include <cstdint>
#include <vector>

#include "fuzz/fuzz.h"

namespace terrace::fuzz::client_frames {

inline constexpr uint8_t kWithoutEnd = 77;  // a choice

std::vector<Seed> Seeds();

}  // namespace terrace::fuzz::client_frames
