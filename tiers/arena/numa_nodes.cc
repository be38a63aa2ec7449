#include "tiers/arena/numa_nodes.h"

#include <charconv>
#include <fstream>

namespace terrace {
namespace {

constexpr uint32_t kNodesMax = 1024;  // of the kernel: CONFIG_NODES_SHIFT ≤ 10

// One number off the front of `text`.
bool TakeNumber(std::string_view* text, uint32_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number >= kNodesMax) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

}  // namespace

std::vector<uint32_t> ParseNodeList(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<uint32_t> nodes;
  while (!text.empty()) {
    uint32_t first = 0;
    if (!TakeNumber(&text, &first)) return {};
    uint32_t last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!TakeNumber(&text, &last) || last < first) return {};
    }
    for (uint32_t node = first; node <= last; ++node) nodes.push_back(node);
    if (text.empty()) break;
    if (!text.starts_with(',')) return {};
    text.remove_prefix(1);
    if (text.empty()) return {};
  }
  return nodes;
}

std::vector<uint32_t> NodesWithMemory(const std::string& directory) {
  std::ifstream file(directory + "/has_memory");
  std::string line;
  std::getline(file, line);
  std::vector<uint32_t> nodes = ParseNodeList(line);
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

}  // namespace terrace
