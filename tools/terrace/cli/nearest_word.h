// The word that was meant by one that was mistyped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tools {

// Of `candidates` the one with the fewest letters added, dropped, changed or swapped with a
// neighbour; empty if that is more than a third of the word's, and more than two.
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace terrace::tools
