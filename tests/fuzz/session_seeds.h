// What conversations with sessions begin from: scripts of the session target, made by hand.
#pragma once

#include <cstdint>
#include <vector>

#include "fuzz/fuzz.h"

namespace terrace::fuzz::session {

inline constexpr uint8_t kWithoutEnd = 77;  // a choice, for what takes long

std::vector<Seed> Seeds();

}  // namespace terrace::fuzz::session
