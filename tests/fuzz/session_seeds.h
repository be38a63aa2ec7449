// What conversations with sessions begin from: scripts of the session target, made by hand.
#pragma once

#include <vector>

#include "fuzz/fuzz.h"

namespace terrace::fuzz::session {

std::vector<Seed> Seeds();

}  // namespace terrace::fuzz::session
