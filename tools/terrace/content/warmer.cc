#include "tools/terrace/content/warmer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace terrace::tools {
namespace {

using protocol::QueriedBlock;
using protocol::TierKind;

constexpr std::chrono::milliseconds kLook(5);
constexpr uint32_t kDramBit = 1u << static_cast<uint32_t>(TierKind::kDram);
constexpr uint32_t kRedisBit = 1u << static_cast<uint32_t>(TierKind::kRedis);

uint64_t NowUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

bool IsHere(const QueriedBlock& block) {
  return block.state == protocol::BlockState::kSealed && (block.tier_mask & ~kRedisBit) != 0;
}
bool IsInDram(const QueriedBlock& block) { return IsHere(block) && (block.tier_mask & kDramBit); }

// DRAM if it is there, else the first of the others.
TierKind TierOf(const QueriedBlock& block) {
  if (IsInDram(block)) return TierKind::kDram;
  uint32_t tier = 0;
  while ((block.tier_mask >> tier & 1) == 0) ++tier;
  return static_cast<TierKind>(tier);
}

uint64_t BlockBytes(const SpaceGroupSpec& spec) {
  uint64_t byte_count = 0;
  for (const SpaceGroupMember& member : spec.members) {
    if (!member.is_remote) byte_count += member.spec.slot_bytes();
  }
  return byte_count;
}

}  // namespace

void Warmer::AddMissing(uint64_t count) {
  counts_.asked += count;
  counts_.missing += count;
}

bool Warmer::Warm(const OpenedGroup& group, std::span<const BlockKey> keys, bool is_chain) {
  const uint64_t block_bytes = std::max<uint64_t>(BlockBytes(group.spec), 1);
  const size_t batch_max =
      std::clamp<uint64_t>(limits_.batch_bytes / block_bytes, 1, limits_.batch_blocks);
  Batch batch{.group = &group, .is_chain = is_chain};
  while (!keys.empty() && !is_cancelled_) {
    batch.keys = keys.first(std::min(keys.size(), batch_max));
    bool is_end = false;
    if (!WarmBatch(batch, &is_end)) return false;
    keys = keys.subspan(batch.keys.size());
    batch.parent = batch.keys.back();
    batch.first_position += static_cast<uint32_t>(batch.keys.size());
    if (is_end && !keys.empty()) {
      // What lies behind the end of a prefix is of no use to a prompt.
      std::vector<QueriedBlock> rest;
      batch.keys = keys;
      if (!Query(batch, &rest)) return false;
      counts_.asked += rest.size();
      for (const QueriedBlock& block : rest) {
        if (!IsHere(block)) ++counts_.missing;
        if (!IsHere(block)) continue;
        ++counts_.found[static_cast<size_t>(TierOf(block))];
        if (!IsInDram(block)) ++counts_.left;
      }
      return true;
    }
  }
  return true;
}

bool Warmer::Query(const Batch& batch, std::vector<QueriedBlock>* blocks) {
  const Status status = opener_.client().Query(batch.group->ref, batch.keys, blocks,
                                               {.deadline_us = opener_.deadline_us()});
  if (status.ok() && blocks->size() == batch.keys.size()) return true;
  FailRequest(opener_.client(), "the daemon did not answer Query", status);
  return false;
}

bool Warmer::WarmBatch(const Batch& batch, bool* is_end) {
  std::vector<QueriedBlock> before, now;
  if (!Query(batch, &before)) return false;
  // A flat request ends at the first key that nobody has: those are left out.
  std::vector<BlockKey> flat;
  for (size_t i = 0; i < before.size() && !batch.is_chain; ++i) {
    if (IsHere(before[i])) flat.push_back(batch.keys[i]);
  }
  RequestOptions options{.deadline_us = opener_.deadline_us(),
                         .load_deadline_us = limits_.wait_us,
                         .parent = batch.parent,
                         .first_position = batch.first_position};
  if (!batch.is_chain)
    options = {.deadline_us = options.deadline_us,
               .load_deadline_us = limits_.wait_us,
               .flags = protocol::kKeysFlat};
  const std::span<const BlockKey> asked =
      batch.is_chain ? batch.keys : std::span<const BlockKey>(flat);
  const Result<uint32_t> coming = asked.empty()
                                      ? Result<uint32_t>(0u)
                                      : opener_.client().Prefetch(batch.group->ref, asked, options);
  if (!coming.ok()) {
    FailRequest(opener_.client(), "the daemon did not answer Prefetch", coming.status());
    return false;
  }
  const uint64_t until_us = NowUs() + limits_.wait_us;
  now = before;
  const auto is_there = [&] {
    size_t in_dram = 0;
    for (const QueriedBlock& block : now) in_dram += IsInDram(block) ? 1 : 0;
    return in_dram >= *coming;
  };
  while (!is_there() && !is_cancelled_ && NowUs() < until_us) {
    std::this_thread::sleep_for(kLook);
    if (!Query(batch, &now)) return false;
  }
  uint64_t promoted = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const bool was_here = IsHere(before[i]);
    ++counts_.asked;
    if (was_here) ++counts_.found[static_cast<size_t>(TierOf(before[i]))];
    if (!was_here && IsHere(now[i])) ++counts_.found[static_cast<size_t>(TierKind::kRedis)];
    if (!was_here && !IsHere(now[i])) ++counts_.missing;
    if (IsInDram(now[i]) && !IsInDram(before[i])) ++promoted;
    if (!IsInDram(now[i]) && (was_here || IsHere(now[i]))) ++counts_.left;
  }
  counts_.promoted += promoted;
  const uint64_t promoted_bytes = promoted * BlockBytes(batch.group->spec);
  counts_.promoted_bytes += promoted_bytes;
  *is_end = batch.is_chain && *coming < batch.keys.size();
  Pace(promoted_bytes);
  return true;
}

// A second's worth takes a second.
void Warmer::Pace(uint64_t byte_count) {
  if (limits_.bytes_per_second == 0) return;
  may_go_on_us_ = std::max(may_go_on_us_, NowUs()) +
                  static_cast<uint64_t>(1e6 * static_cast<double>(byte_count) /
                                        static_cast<double>(limits_.bytes_per_second));
  while (NowUs() < may_go_on_us_ && !is_cancelled_) std::this_thread::sleep_for(kLook);
}

std::string_view TierName(TierKind tier) {
  constexpr std::array<std::string_view, protocol::kTierKindCount> kNames = {"hbm", "dram", "nvme",
                                                                             "redis"};
  return kNames[static_cast<size_t>(tier)];
}

}  // namespace terrace::tools
