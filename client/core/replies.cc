#include "client/core/replies.h"

#include <algorithm>
#include <bit>

#include "client/link/frames.h"
#include "terrace/protocol_join.h"
#include "terrace/status.h"

namespace terrace::client {
namespace {

using protocol::BlockSpan;
using protocol::Verb;

constexpr const char* kShort = "it is shorter than its fixed part";
constexpr const char* kCounts = "its counts do not fit its bytes";

// Spans ascend without overlap and cover block_count blocks among key_count keys; those of a chain
// leave no gap.
const char* CheckSpans(std::span<const BlockSpan> spans, const Asked& asked, uint32_t block_count) {
  uint64_t covered = 0;
  uint64_t next_block = 0;
  for (const BlockSpan& span : spans) {
    const bool has_gap = span.first_block != next_block;
    if (span.first_block < next_block || (has_gap && (asked.flags & protocol::kKeysFlat) == 0)) {
      return "its spans are out of order";
    }
    if (span.state > protocol::SpanState::kFollowing || span.tier > protocol::TierKind::kRedis) {
      return "a span has an unknown state or tier";
    }
    next_block = uint64_t{span.first_block} + span.block_count;
    covered += span.block_count;
  }
  if (next_block > asked.key_count) return "its spans pass the last key";
  return covered == block_count ? nullptr : "its spans do not cover its blocks";
}

}  // namespace

bool HasMore(uint32_t reply_flags, const Asked& asked) {
  return (asked.flags & protocol::kJoinPaged) != 0 && (reply_flags & protocol::kJoinHasMore) != 0;
}

const char* DecodeAcquire(std::span<const std::byte> body, const Asked& asked,
                          AcquireAnswer* answer) {
  BodyReader reader(body);
  protocol::AcquireReply& reply = answer->reply;
  if (!reader.Read(&reply)) return kShort;
  if (reply.block_count > asked.key_count) return "it has more blocks than were asked for";
  const uint32_t known_blocks = std::min(asked.first_block, reply.block_count);
  const auto members = static_cast<uint32_t>(std::popcount(reply.member_mask));
  const uint64_t slot_count = uint64_t{reply.block_count - known_blocks} * members;
  if (reply.slot_count != slot_count) return "slot_count is not blocks times members";
  if (reader.rest().size() !=
      reply.span_count * sizeof(BlockSpan) + uint64_t{reply.slot_count} * sizeof(SlotAddress)) {
    return kCounts;
  }
  const uint64_t known_count = uint64_t{known_blocks} * members;
  if (answer->slots->size() < known_count) return "its members are not those of the page before";
  answer->spans->resize(reply.span_count);
  answer->slots->resize(known_count + reply.slot_count);
  if (!reader.ReadArray(std::span(*answer->spans)) ||
      !reader.ReadArray(std::span(*answer->slots).subspan(known_count))) {
    return kCounts;
  }
  if (reply.block_count > 0 && reply.token.is_zero()) return "it has blocks but no lease";
  if (HasMore(reply.flags, asked)) {
    if (reply.block_count <= asked.first_block)
      return "it has no blocks, and says that more follow";
    return reply.span_count == 0 ? nullptr : "it has spans before its last page";
  }
  return CheckSpans(*answer->spans, asked, reply.block_count);
}

const char* DecodeReserve(std::span<const std::byte> body, const Asked& asked,
                          ReserveAnswer* answer) {
  BodyReader reader(body);
  protocol::ReserveReply& reply = answer->reply;
  if (!reader.Read(&reply)) return kShort;
  const bool is_join = asked.verb == Verb::kJoin;
  if (is_join ? reply.key_count > asked.key_count - std::min(asked.first_block, asked.key_count)
              : reply.key_count != asked.key_count) {
    return "it does not have one entry a key";
  }
  if (reader.rest().size() != reply.key_count * sizeof(protocol::ReservedKey) +
                                  uint64_t{reply.slot_count} * sizeof(SlotRef)) {
    return kCounts;
  }
  const size_t keys_before = answer->keys->size();
  const size_t slots_before = answer->slots->size();
  answer->keys->resize(keys_before + reply.key_count);
  answer->slots->resize(slots_before + reply.slot_count);
  const auto keys = std::span(*answer->keys).subspan(keys_before);
  if (!reader.ReadArray(keys) ||
      !reader.ReadArray(std::span(*answer->slots).subspan(slots_before))) {
    return kCounts;
  }
  if (HasMore(reply.reserved, asked) && keys.empty()) {
    return "it has no keys, and says that more follow";
  }
  uint64_t reserved_count = 0;
  for (const protocol::ReservedKey& key : keys) {
    if (key.status >= kStatusCodeCount) return "a key has an unknown status";
    if (key.status == static_cast<uint8_t>(StatusCode::kOk)) ++reserved_count;
  }
  if (reply.slot_count !=
      reserved_count * static_cast<uint32_t>(std::popcount(reply.member_mask))) {
    return "slot_count is not reserved keys times members";
  }
  return reserved_count > 0 && reply.token.is_zero() ? "it has slots but no lease" : nullptr;
}

const char* DecodeMatch(std::span<const std::byte> body, const Asked& asked,
                        protocol::MatchReply* reply) {
  BodyReader reader(body);
  if (!reader.Read(reply)) return kShort;
  if (reply->block_count > asked.key_count) return "it has more blocks than were asked for";
  return reader.rest().size() == reply->span_count * sizeof(BlockSpan) ? nullptr : kCounts;
}

const char* DecodeCommit(std::span<const std::byte> body, const Asked& asked,
                         protocol::CommitReply* reply, std::span<const std::byte>* entries) {
  BodyReader reader(body);
  if (!reader.Read(reply)) return kShort;
  if (reply->entry_count != asked.entry_count) return "it does not have one status an entry";
  if (reader.rest().size() != reply->entry_count) return kCounts;
  *entries = reader.rest();
  for (const std::byte status : *entries) {
    if (static_cast<uint8_t>(status) >= kStatusCodeCount) return "an entry has an unknown status";
  }
  return nullptr;
}

const char* DecodeList(std::span<const std::byte> body, const Asked& asked,
                       protocol::ListReply* reply, std::span<const std::byte>* entries) {
  BodyReader reader(body);
  if (!reader.Read(reply)) return kShort;
  if (reply->entry_count > asked.entry_count) return "it has more entries than were asked for";
  if (reader.rest().size() != uint64_t{reply->entry_count} * sizeof(protocol::ListEntry)) {
    return kCounts;
  }
  *entries = reader.rest();
  return nullptr;
}

const char* CheckAnswer(std::span<const std::byte> body, const Asked& asked) {
  switch (asked.verb) {
    case Verb::kMatch:
    case Verb::kPrefetch: {
      protocol::MatchReply reply;
      return DecodeMatch(body, asked, &reply);
    }
    case Verb::kQuery:
      return body.size() == uint64_t{asked.key_count} * sizeof(protocol::QueriedBlock) ? nullptr
                                                                                       : kCounts;
    case Verb::kEvict:
      return body.size() == sizeof(protocol::EvictReply) ? nullptr : kCounts;
    case Verb::kPin:
      return body.size() == sizeof(protocol::PinReply) ? nullptr : kCounts;
    case Verb::kList: {
      protocol::ListReply reply;
      std::span<const std::byte> entries;
      return DecodeList(body, asked, &reply, &entries);
    }
    case Verb::kOpen:  // Group::DecodeOpenReply
    case Verb::kStats:
      return nullptr;
    default:
      return body.empty() ? nullptr : "it has a body, and none is known for it";
  }
}

}  // namespace terrace::client
