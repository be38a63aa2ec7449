#include "client/core/commit.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

namespace terrace::client {
namespace {

using protocol::CommitEntry;

uint16_t FlagsOf(WrittenPart::Kind kind) {
  switch (kind) {
    case WrittenPart::Kind::kChecksummed:
      return protocol::kCommitHasChecksums;
    case WrittenPart::Kind::kAbsent:
      return protocol::kCommitAbsent;
    case WrittenPart::Kind::kUnchecked:
      break;
  }
  return 0;
}

// An absent member is one record that stands for all its parts.
uint16_t PartCount(const LeaseState& lease, const WrittenPart& part) {
  if (part.kind != WrittenPart::Kind::kAbsent) return 1;
  return static_cast<uint16_t>(lease.member(part.member).part_count());
}

// Parts in a row with equal flags share an entry.
bool SharesEntry(const WrittenPart& before, const WrittenPart& part) {
  return part.kind != WrittenPart::Kind::kAbsent && part.kind == before.kind &&
         part.key_index == before.key_index && part.member == before.member &&
         part.part_index == before.part_index + 1;
}

// That many are said within so many bytes, whatever they are.
bool AreSurelyWithin(size_t part_count, uint64_t bytes_max) {
  constexpr uint64_t kPartBytesMax = sizeof(CommitEntry) + sizeof(Checksum);
  return sizeof(protocol::CommitRequest) + part_count * kPartBytesMax <= bytes_max;
}

// How many of these, in their order, are said within so many bytes. One at least.
size_t PartsWithin(std::span<const WrittenPart> parts, uint64_t bytes_max) {
  if (AreSurelyWithin(parts.size(), bytes_max)) return parts.size();
  uint64_t said_bytes = sizeof(protocol::CommitRequest);
  for (size_t i = 0; i < parts.size(); ++i) {
    said_bytes += i > 0 && SharesEntry(parts[i - 1], parts[i]) ? 0 : sizeof(CommitEntry);
    said_bytes += parts[i].kind == WrittenPart::Kind::kChecksummed ? sizeof(Checksum) : 0;
    if (said_bytes > bytes_max) return std::max<size_t>(i, 1);
  }
  return parts.size();
}

void AppendEntries(Request& request) {
  const LeaseState& lease = *request.lease;
  const WrittenPart* before = nullptr;
  for (const WrittenPart& part : request.written) {
    if (part.kind == WrittenPart::Kind::kChecksummed) request.checksums.push_back(part.checksum);
    const bool is_shared = before != nullptr && SharesEntry(*before, part);
    before = &part;
    if (is_shared) {
      ++request.entries.back().part_count;
      continue;
    }
    const SlotRef& slot = lease.slot_refs[lease.SlotIndex(part.key_index, part.member)];
    CommitEntry& entry = request.entries.emplace_back();
    entry.key_index = part.key_index;
    entry.member = part.member;
    entry.flags = FlagsOf(part.kind);
    entry.part_first = part.part_index;
    entry.part_count = PartCount(lease, part);
    entry.row = slot.row;
    entry.segment = slot.address.segment;
    entry.generation = slot.generation;
  }
}

// How many parts the codec refused. The daemon counts what it is told, so each is said once.
void TellRefused(Request& request) {
  LeaseState& lease = *request.lease;
  const uint32_t refused = lease.parts_refused.exchange(0);
  const uint32_t told = std::min<uint32_t>(refused, UINT8_MAX);
  request.commit.hints.by_verb = static_cast<uint8_t>(told);
  lease.parts_refused.fetch_add(refused - told);  // for the next one, or the end of the lease
}

}  // namespace

bool IsOneCommit(LeaseState& lease, uint64_t bytes_max) {
  LockGuard guard(lease.write_lock);
  if (AreSurelyWithin(lease.written.size(), bytes_max)) return true;
  lease.SortWritten();
  return PartsWithin(lease.written, bytes_max) == lease.written.size();
}

void BuildCommit(Request& request, uint64_t bytes_max, Outgoing* message) {
  LeaseState& lease = *request.lease;
  {
    LockGuard guard(lease.write_lock);
    lease.SortWritten();
    const bool is_release = (request.commit.flags & protocol::kCommitRelease) != 0;
    const size_t count = is_release ? lease.written.size() : PartsWithin(lease.written, bytes_max);
    request.has_more = count < lease.written.size();
    if (request.has_more) {
      const auto end = lease.written.begin() + static_cast<ptrdiff_t>(count);
      request.written.assign(lease.written.begin(), end);
      lease.written.erase(lease.written.begin(), end);
    } else {
      std::swap(lease.written, request.written);
    }
    // Who is writing a part again remembers it anew.
    std::erase_if(request.written, [&lease](const auto& part) { return !lease.SendPart(part); });
  }
  TellRefused(request);
  try {
    AppendEntries(request);
  } catch (const std::bad_alloc&) {
    ReturnWritten(request);
    throw;
  }
  request.commit.token = lease.token;
  request.commit.entry_count = static_cast<uint32_t>(request.entries.size());
  request.asked.entry_count = request.commit.entry_count;
  message->parts = {BytesOf(request.commit), std::as_bytes(std::span(request.entries)),
                    std::as_bytes(std::span(request.checksums))};
}

void ReturnWritten(Request& request) {
  if (request.asked.verb != protocol::Verb::kCommit) return;
  LeaseState& lease = *request.lease;
  request.was_returned = true;
  // Before the lease goes on: one whose user is gone ends there, and tells it.
  lease.parts_refused.fetch_add(std::exchange(request.commit.hints.by_verb, uint8_t{0}));
  if ((request.commit.flags & protocol::kCommitRelease) != 0) lease.owner->StayOpen(lease);
  if (request.written.empty()) return;
  LockGuard guard(lease.write_lock);
  for (const WrittenPart& part : request.written) lease.ReturnPart(part);
  // What was written since is newer, and stays behind.
  if (lease.written.empty()) {
    std::swap(lease.written, request.written);
  } else {
    try {
      lease.written.insert(lease.written.begin(), request.written.begin(), request.written.end());
    } catch (const std::bad_alloc&) {
      // Parts that are forgotten are never sealed: their blocks are lost, which is a miss.
    }
    request.written.clear();
  }
}

StatusCode AccountCommit(Request& request, const protocol::CommitReply& reply,
                         std::span<const std::byte> entry_statuses) {
  LeaseState& lease = *request.lease;
  StatusCode refusal = StatusCode::kOk;
  {
    LockGuard guard(lease.write_lock);
    for (size_t i = 0; i < request.entries.size(); ++i) {
      const CommitEntry& entry = request.entries[i];
      const auto status = static_cast<StatusCode>(entry_statuses[i]);
      if (status == StatusCode::kOk) {
        lease.committed_parts[lease.SlotIndex(entry.key_index, entry.member)] += entry.part_count;
      } else if (refusal == StatusCode::kOk) {
        refusal = status;
      }
    }
  }
  request.block_count = reply.sealed_count;
  return reply.sealed_count > 0 ? StatusCode::kOk : refusal;
}

}  // namespace terrace::client
