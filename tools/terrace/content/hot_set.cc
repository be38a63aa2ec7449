#include "tools/terrace/content/hot_set.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace terrace::tools {
namespace {

constexpr uint32_t kNone = HotChoice::kNoParent;

// Of each block its parent's index; kNone of a root, its own of one that has lost its parent.
std::vector<uint32_t> ParentsOf(const std::vector<HotBlock>& blocks) {
  std::unordered_map<BlockKey, uint32_t> places;
  places.reserve(blocks.size());
  std::vector<uint32_t> parents(blocks.size(), kNone);
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    places[blocks[i].key] = i;
    if (blocks[i].parent.is_zero() && blocks[i].position == 0) continue;
    const auto found = places.find(blocks[i].parent);
    parents[i] = found == places.end() ? i : found->second;
  }
  return parents;
}

}  // namespace

HotBlock HotBlock::Of(const protocol::ListEntry& entry) {
  return {.key = entry.key,
          .parent = entry.parent,
          .group = entry.group,
          .idle_ms = entry.idle_ms,
          .age_ms = entry.age_ms,
          .position = entry.position,
          .hit_count = entry.hit_count,
          .expires_in_s = entry.expires_in_s,
          .priority = entry.priority,
          .flags = entry.flags};
}

double HotnessOf(const HotBlock& block) {
  constexpr double kMinuteMs = 60'000;
  return (1.0 + block.hit_count) / (static_cast<double>(block.idle_ms) + kMinuteMs);
}

HotChoice ChooseHot(std::vector<HotBlock> listed, uint64_t bytes_max,
                    const std::function<uint64_t(const GroupId&)>& block_bytes) {
  HotChoice choice{.blocks = std::move(listed), .parents = {}, .tips = {}};
  const std::vector<HotBlock>& blocks = choice.blocks;
  choice.parents = ParentsOf(blocks);
  const std::vector<uint32_t>& parents = choice.parents;
  std::vector<double> hotness(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) hotness[i] = HotnessOf(blocks[i]);
  for (size_t i = blocks.size(); i-- > 0;) {
    const uint32_t parent = parents[i];
    if (parent != kNone && parent != i) hotness[parent] = std::max(hotness[parent], hotness[i]);
  }
  std::vector<uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return hotness[a] > hotness[b]; });
  std::vector<bool> is_chosen(blocks.size()), has_child(blocks.size());
  for (const uint32_t i : order) {
    const bool is_of_use = parents[i] == kNone || (parents[i] != i && is_chosen[parents[i]]);
    const uint64_t byte_count = block_bytes(blocks[i].group);
    if (!is_of_use || byte_count == 0 || byte_count > bytes_max - choice.byte_count) continue;
    is_chosen[i] = true;
    choice.byte_count += byte_count;
    ++choice.block_count;
    if (parents[i] != kNone) has_child[parents[i]] = true;
  }
  for (const uint32_t i : order) {
    if (is_chosen[i] && !has_child[i]) choice.tips.push_back(i);
  }
  std::ranges::reverse(choice.tips);
  return choice;
}

std::vector<uint32_t> HotChoice::PathTo(uint32_t tip) const {
  std::vector<uint32_t> path;
  for (uint32_t at = tip; at != kNoParent; at = parents[at]) path.push_back(at);
  std::ranges::reverse(path);
  return path;
}

}  // namespace terrace::tools
