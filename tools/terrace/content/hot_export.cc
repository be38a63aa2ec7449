#include "tools/terrace/content/hot_export.h"

#include <algorithm>
#include <utility>

#include "terrace/protocol_listing.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kWaitUs = 30'000'000;  // for one batch to come up
constexpr uint64_t kBatchBytes = uint64_t{64} << 20;
constexpr size_t kBatchBlocksMax = 256;

}  // namespace

HotExport::HotExport(GroupOpener& opener, HotFileWriter& writer, const HotChoice& choice,
                     std::function<void()> tell)
    : opener_(opener),
      writer_(writer),
      choice_(choice),
      tell_(std::move(tell)),
      is_written_(choice.blocks.size()) {}

HotExport::Outcome HotExport::Run(const std::atomic<bool>& is_cancelled) {
  for (const uint32_t tip : choice_.tips) {
    if (is_cancelled) return Outcome::kCancelled;
    const Outcome outcome = WritePath(choice_.PathTo(tip));
    if (outcome != Outcome::kDone) return outcome;
    tell_();
  }
  const auto written = static_cast<uint64_t>(std::ranges::count(is_written_, true));
  lost_count_ = choice_.block_count - std::min(choice_.block_count, written);
  return Outcome::kDone;
}

HotExport::Outcome HotExport::WritePath(std::span<const uint32_t> path) {
  const OpenedGroup* const group = opener_.Open(choice_.blocks[path.front()].group);
  if (group == nullptr) return Outcome::kRefused;
  const bool is_windowed = group->spec.windowed_member_mask() != 0;
  // Behind what is written already. Where members have windows a prefix is only as long as its last
  // window is whole, so it is held from its root.
  size_t first = 0;
  while (first < path.size() && is_written_[path[first]] && !is_windowed) ++first;
  const uint64_t block_bytes =
      std::max<uint64_t>(PayloadBytes(group->spec, group->spec.local_member_mask()), 1);
  const size_t batch_max = is_windowed
                               ? protocol::kKeysPerRequestMax
                               : std::clamp<size_t>(kBatchBytes / block_bytes, 1, kBatchBlocksMax);
  bool is_whole = true;
  while (first < path.size() && is_whole) {
    const size_t count = std::min(path.size() - first, batch_max);
    const Outcome outcome = WriteBatch(*group, path.subspan(first, count), &is_whole);
    if (outcome != Outcome::kDone) return outcome;
    first += count;
  }
  return Outcome::kDone;
}

HotExport::Outcome HotExport::WriteBatch(const OpenedGroup& group, std::span<const uint32_t> batch,
                                         bool* is_whole) {
  std::vector<BlockKey> keys;
  for (const uint32_t block : batch) keys.push_back(choice_.blocks[block].key);
  const HotBlock& head = choice_.blocks[batch.front()];
  const RequestOptions options{.deadline_us = opener_.deadline_us(),
                               .load_deadline_us = kWaitUs,
                               .parent = head.parent,
                               .first_position = head.position};
  const Result<ReadLease> lease = opener_.client().Acquire(group.ref, keys, options);
  if (!lease.ok()) {
    FailRequest(opener_.client(), "the daemon did not answer Acquire", lease.status());
    return Outcome::kRefused;
  }
  // What does not come in time has left the lease; what is ready is a shorter prefix.
  if (lease->ready_count() < lease->block_count()) {
    (void)opener_.client().WaitReady(*lease, lease->block_count(), kWaitUs);
  }
  const uint32_t ready_count = lease->ready_count();
  *is_whole = ready_count == batch.size();
  for (uint32_t i = 0; i < ready_count; ++i) {
    if (is_written_[batch[i]]) continue;
    const Outcome outcome = WriteBlock(group, batch[i], *lease, i);
    if (outcome != Outcome::kDone) return outcome;
    if (!is_written_[batch[i]]) {
      *is_whole = false;
      break;
    }
  }
  return Outcome::kDone;
}

HotExport::Outcome HotExport::WriteBlock(const OpenedGroup& group, uint32_t block,
                                         const ReadLease& lease, uint32_t block_index) {
  const HotBlock& chosen = choice_.blocks[block];
  HotBlockHead head{.key = chosen.key,
                    .parent = chosen.parent,
                    .age_ms = chosen.age_ms,
                    .idle_ms = chosen.idle_ms,
                    .position = chosen.position,
                    .hit_count = chosen.hit_count,
                    .expires_in_s = chosen.expires_in_s,
                    .priority = chosen.priority};
  if ((chosen.flags & protocol::kQueriedNoStore) != 0) head.flags |= kHotNoStore;
  payload_.clear();
  for (uint32_t member = 0; member < group.spec.members.size(); ++member) {
    if (group.spec.members[member].is_remote) continue;
    const std::span<const std::byte> slot = lease.slot(block_index, member);
    if (slot.empty()) continue;  // outside of its window
    head.member_mask |= uint64_t{1} << member;
    const SpaceSpec& spec = group.spec.members[member].spec;
    for (uint32_t part = 0; part < spec.part_bytes.size(); ++part) {
      const auto bytes = slot.subspan(spec.part_offset_bytes(part), spec.part_bytes[part]);
      payload_.insert(payload_.end(), bytes.begin(), bytes.end());
    }
  }
  // Only what was under the lease throughout is the block's.
  if (!lease.is_valid()) return Outcome::kDone;
  if (!NumberOf(group, &head.group) || !writer_.AddBlock(head, payload_)) {
    return Outcome::kNotWritten;
  }
  is_written_[block] = true;
  return Outcome::kDone;
}

bool HotExport::NumberOf(const OpenedGroup& group, uint32_t* number) {
  const auto [place, is_new] = numbers_.emplace(group.id, static_cast<uint32_t>(numbers_.size()));
  *number = place->second;
  return !is_new || writer_.AddGroup(group.spec);
}

}  // namespace terrace::tools
