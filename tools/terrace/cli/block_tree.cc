#include "tools/terrace/cli/block_tree.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

using protocol::ListEntry;

struct RunTotals {
  uint64_t byte_count = 0;
  uint64_t idle_ms_min = UINT64_MAX;
  uint32_t hit_count_max = 0;
  uint32_t lease_count_max = 0;
  uint8_t tier_mask = 0;  // tiers that hold any of it
};

RunTotals Sum(const BlockRun& run) {
  RunTotals totals;
  for (const ListEntry* block : run.blocks) {
    totals.byte_count += block->byte_count;
    totals.idle_ms_min = std::min(totals.idle_ms_min, block->idle_ms);
    totals.hit_count_max = std::max(totals.hit_count_max, block->hit_count);
    totals.lease_count_max = std::max(totals.lease_count_max, block->lease_count);
    totals.tier_mask |= block->tier_mask;
  }
  return totals;
}

std::string Describe(const BlockRun& run) {
  const RunTotals totals = Sum(run);
  const uint32_t first = run.blocks.front()->position;
  const uint32_t last = run.blocks.back()->position;
  std::string text =
      fmt::format("{}  {}  {}, {}, {}, idle {}, {}", ToHex(run.blocks.front()->key),
                  first == last ? std::to_string(first) : fmt::format("{}-{}", first, last),
                  FormatCount(run.blocks.size(), "block"), FormatBytes(totals.byte_count),
                  FormatTiers(totals.tier_mask), FormatMilliseconds(totals.idle_ms_min),
                  FormatCount(totals.hit_count_max, "hit"));
  if (totals.lease_count_max > 0) text += ", " + FormatCount(totals.lease_count_max, "lease");
  if (std::string flags = FormatFlags(*run.blocks.front()); !flags.empty()) text += ", " + flags;
  return text;
}

}  // namespace

BlockTree::BlockTree(std::span<const ListEntry> entries) {
  std::unordered_map<BlockKey, uint32_t> index_of;
  for (uint32_t i = 0; i < entries.size(); ++i) index_of.emplace(entries[i].key, i);
  std::vector<std::vector<uint32_t>> children(entries.size());
  std::vector<uint32_t> root_entries;
  for (uint32_t i = 0; i < entries.size(); ++i) {
    auto parent = index_of.find(entries[i].parent);
    const bool has_parent = parent != index_of.end() && parent->second != i;
    (has_parent ? children[parent->second] : root_entries).push_back(i);
  }
  // Entry whose run is to be built, and the run above it (or none).
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<std::pair<uint32_t, uint32_t>> pending;
  for (auto i = root_entries.rbegin(); i != root_entries.rend(); ++i)
    pending.emplace_back(*i, kNone);
  while (!pending.empty()) {
    auto [entry, above] = pending.back();
    pending.pop_back();
    BlockRun run;
    run.depth = above == kNone ? 0 : runs_[above].depth + 1;
    run.blocks.push_back(&entries[entry]);
    while (children[entry].size() == 1) {
      entry = children[entry][0];
      run.blocks.push_back(&entries[entry]);
    }
    const uint32_t index = static_cast<uint32_t>(runs_.size());
    runs_.push_back(std::move(run));
    (above == kNone ? roots_ : runs_[above].children).push_back(index);
    for (auto i = children[entry].rbegin(); i != children[entry].rend(); ++i) {
      pending.emplace_back(*i, index);
    }
  }
}

BlockTree::Below BlockTree::CountBelow(uint32_t run) const {
  Below below;
  // Runs are in depth-first order: the descendants follow, as long as they are deeper.
  for (uint32_t i = run + 1; i < runs_.size() && runs_[i].depth > runs_[run].depth; ++i) {
    below.block_count += runs_[i].blocks.size();
    below.byte_count += Sum(runs_[i]).byte_count;
  }
  return below;
}

std::string BlockTree::Render(uint32_t depth_max, const GroupNames& names) const {
  std::string text;
  std::vector<bool> is_last_child(runs_.size(), true);
  for (const BlockRun& run : runs_) {
    for (size_t i = 0; i + 1 < run.children.size(); ++i) is_last_child[run.children[i]] = false;
  }
  std::vector<bool> is_last;  // of each run on the path to the current one
  GroupId group;
  for (uint32_t i = 0; i < runs_.size(); ++i) {
    const BlockRun& run = runs_[i];
    if (run.depth >= depth_max) continue;
    if (run.depth == 0 && (i == 0 || run.blocks.front()->group != group)) {
      group = run.blocks.front()->group;
      text += fmt::format("{}{}\n", i == 0 ? "" : "\n", GroupLabel(group, names));
    }
    is_last.resize(run.depth);
    std::string indent;
    for (uint32_t level = 1; level < run.depth; ++level) indent += is_last[level] ? "   " : "│  ";
    if (run.depth > 0) indent += is_last_child[i] ? "└─ " : "├─ ";
    is_last.push_back(is_last_child[i]);
    text += indent + Describe(run);
    if (run.depth + 1 == depth_max && !run.children.empty()) {
      const Below below = CountBelow(i);
      text += fmt::format("; below it {}, {}", FormatCount(below.block_count, "block"),
                          FormatBytes(below.byte_count));
    }
    text += "\n";
  }
  return text;
}

nlohmann::json BlockTree::ToJson(uint32_t depth_max, const GroupNames& names) const {
  nlohmann::json document = nlohmann::json::array();
  for (uint32_t i = 0; i < runs_.size(); ++i) {
    const BlockRun& run = runs_[i];
    if (run.depth >= depth_max) continue;
    const RunTotals totals = Sum(run);
    const Below below = CountBelow(i);
    nlohmann::json parent;
    if (!run.blocks.front()->parent.is_zero()) parent = ToHex(run.blocks.front()->parent);
    document.push_back({{"group", GroupLabel(run.blocks.front()->group, names)},
                        {"depth", run.depth},
                        {"parent", parent},
                        {"first_key", ToHex(run.blocks.front()->key)},
                        {"last_key", ToHex(run.blocks.back()->key)},
                        {"first_position", run.blocks.front()->position},
                        {"block_count", run.blocks.size()},
                        {"byte_count", totals.byte_count},
                        {"idle_ms", totals.idle_ms_min},
                        {"hit_count", totals.hit_count_max},
                        {"lease_count", totals.lease_count_max},
                        {"branch_count", run.children.size()},
                        {"below_block_count", below.block_count},
                        {"below_byte_count", below.byte_count}});
  }
  return document;
}

}  // namespace terrace::tools
