#include "tools/terrace/cli/nearest_word.h"

#include <algorithm>

namespace terrace::tools {
namespace {

// Row by row: distances of prefixes of `from` to all prefixes of `to`.
size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<std::vector<size_t>> rows(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i) {
    for (size_t j = 0; j <= to.size(); ++j) {
      size_t& best = rows[i][j];
      best = i + j;
      if (i == 0 || j == 0) continue;
      const size_t change = from[i - 1] == to[j - 1] ? 0 : 1;
      best = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + change});
      const bool is_swapped =
          i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (is_swapped) best = std::min(best, rows[i - 2][j - 2] + 1);
    }
  }
  return rows[from.size()][to.size()];
}

}  // namespace

std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace terrace::tools
