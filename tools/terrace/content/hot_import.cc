#include "tools/terrace/content/hot_import.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

namespace terrace::tools {
namespace {

constexpr uint64_t kTellBlocks = 64;

}  // namespace

HotImport::HotImport(GroupOpener& opener, HotFileReader& reader, uint64_t now_unix_s,
                     std::function<void()> tell)
    : opener_(opener), reader_(reader), now_unix_s_(now_unix_s), tell_(std::move(tell)) {}

HotImport::Outcome HotImport::Run(const HotFileHeader& header,
                                  const std::atomic<bool>& is_cancelled) {
  const uint64_t passed_s =
      now_unix_s_ > header.created_unix_s ? now_unix_s_ - header.created_unix_s : 0;
  HotBlockHead head;
  std::span<const std::byte> payload;
  for (uint64_t count = 1; !is_cancelled; ++count) {
    const Status status = reader_.Next(&head, &payload);
    if (status.code() == StatusCode::kNotFound) return Outcome::kDone;
    if (!status.ok()) return Outcome::kNotBelieved;
    if (head.expires_in_s != 0 && head.expires_in_s <= passed_s) {
      ++counts_.expired;
      continue;
    }
    const auto left_s =
        static_cast<uint32_t>(head.expires_in_s - (head.expires_in_s == 0 ? 0 : passed_s));
    if (!Store(head, payload, left_s)) return Outcome::kRefused;
    if (count % kTellBlocks == 0) tell_();
  }
  return Outcome::kCancelled;
}

bool HotImport::Store(const HotBlockHead& head, std::span<const std::byte> payload,
                      uint32_t ttl_s) {
  const OpenedGroup* const group = opener_.Open(reader_.groups()[head.group]);
  if (group == nullptr) return false;
  RequestOptions options{
      .deadline_us = opener_.deadline_us(), .parent = head.parent, .first_position = head.position};
  options.hints.ttl_s = ttl_s;
  if (head.priority <= protocol::kPriorityMax) options.hints.priority = head.priority;
  if ((head.flags & kHotNoStore) != 0) options.hints.flags |= protocol::kHintNoStore;
  Result<WriteLease> lease = opener_.client().Reserve(group->ref, std::span(&head.key, 1), options);
  if (!lease.ok()) {
    FailRequest(opener_.client(), "the daemon did not answer Reserve", lease.status());
    return false;
  }
  if (!lease->is_reserved(0)) {
    const auto code = lease->keys().empty() ? StatusCode::kNoSpace
                                            : static_cast<StatusCode>(lease->keys()[0].status);
    ++(code == StatusCode::kExists ? counts_.existed
       : code == StatusCode::kBusy ? counts_.busy
                                   : counts_.no_room);
    return true;
  }
  if (!Write(group->spec, head, payload, &*lease)) return false;
  const Result<uint32_t> sealed = opener_.client().Commit(
      *lease, {.deadline_us = opener_.deadline_us(), .flags = protocol::kCommitRelease});
  if (!sealed.ok()) {
    FailRequest(opener_.client(), "the daemon did not take a block", sealed.status());
    return false;
  }
  counts_.stored += *sealed;
  counts_.stored_bytes += payload.size();
  return true;
}

bool HotImport::Write(const SpaceGroupSpec& spec, const HotBlockHead& head,
                      std::span<const std::byte> payload, WriteLease* lease) {
  Status status;
  for (uint32_t member = 0; member < spec.members.size() && status.ok(); ++member) {
    if (spec.members[member].is_remote) continue;
    if ((head.member_mask >> member & 1) == 0) {
      status = lease->MarkAbsent(0, member);
      continue;
    }
    const SpaceSpec& space = spec.members[member].spec;
    const std::span<std::byte> slot = lease->slot(0, member);
    if (slot.size() < space.slot_bytes()) {
      status = Status(StatusCode::kGone, "the slot has gone");
      break;
    }
    for (uint32_t part = 0; part < space.part_bytes.size() && status.ok(); ++part) {
      const uint64_t part_bytes = space.part_bytes[part];
      std::memcpy(slot.data() + space.part_offset_bytes(part), payload.data(), part_bytes);
      payload = payload.subspan(part_bytes);
      status = lease->ChecksumWrittenPart(0, member, part);
    }
  }
  if (!status.ok()) FailRequest(opener_.client(), "cannot write a block", status);
  return status.ok();
}

}  // namespace terrace::tools
