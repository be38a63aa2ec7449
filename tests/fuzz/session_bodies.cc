#include "fuzz/session_bodies.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "small_space.h"
#include "terrace/codec.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_join.h"
#include "terrace/protocol_operator.h"

namespace terrace::fuzz {
namespace {

using protocol::Verb;

constexpr size_t kOrdersMax = 16;
constexpr uint32_t kChains = 4;
constexpr uint32_t kManyKeys = 100;  // a choice above kFewKeysMax stands for so many each
constexpr uint32_t kFewKeysMax = 240;
constexpr uint32_t kAllKeys = 254;        // as many as a request may have; behind it one more
constexpr uint32_t kNoMembers = 254;      // a choice of a self mask
constexpr uint32_t kPageBehindAll = 255;  // a choice of a Join's page

template <typename T>
void Append(const T& value, Bytes* to) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to->insert(to->end(), bytes.begin(), bytes.end());
}
template <typename T>
void AppendAll(std::span<const T> values, Bytes* to) {
  const auto bytes = std::as_bytes(values);
  to->insert(to->end(), bytes.begin(), bytes.end());
}

// 0: says nothing; else each bit of the choice is a field.
protocol::Hints TakeHints(Choices& choices) {
  protocol::Hints hints;
  const uint8_t fields = choices.Byte();
  if ((fields & 1) != 0) hints.deadline_us = choices.Number<uint16_t>() * 16;
  if ((fields & 2) != 0) hints.recompute_ns_per_token = choices.Number<uint16_t>();
  if ((fields & 4) != 0) hints.session_hash = choices.Byte();
  if ((fields & 8) != 0) hints.ttl_s = choices.Byte();
  if ((fields & 16) != 0) hints.end_reason = static_cast<protocol::EndReason>(choices.Byte());
  if ((fields & 32) != 0) hints.priority = choices.Byte();
  if ((fields & 64) != 0) hints.flags = choices.Byte();
  if ((fields & 128) != 0) {
    hints.min_tokens = choices.Byte();
    hints.expected_reuse_ms = choices.Byte();
    hints.by_verb = choices.Byte();
  }
  return hints;
}

// The bits of `known` that the choice says; from 128 on any bits at all.
uint32_t TakeFlags(uint32_t known, Choices& choices) {
  const uint8_t chosen = choices.Byte();
  if (chosen >= 128) return choices.Number<uint32_t>();
  uint32_t flags = 0;
  for (uint8_t rest = chosen; known != 0; rest >>= 1, known &= known - 1) {
    if ((rest & 1) != 0) flags |= known & -known;
  }
  return flags;
}

uint32_t TakeHandle(Choices& choices) {
  const uint32_t chosen = choices.Below(4);
  return chosen == 3 ? choices.Number<uint32_t>() : (chosen + 1) % 3;
}

SpaceSpec Space(uint32_t member, bool is_windowed) {
  SpaceSpec spec = test::SmallSpace({4096, 2048});
  spec.attention_group = member;
  if (is_windowed) {
    spec.attention = AttentionKind::kSliding;
    spec.window_tokens = 32;
  }
  return spec;
}

// [how often; each: where, and four bytes]
void Patch(Choices& choices, Bytes* body) {
  for (uint32_t left = choices.Below(4); left > 0 && !body->empty(); --left) {
    const size_t at = choices.Byte() % body->size();
    const std::span<const std::byte> patch = choices.Take(4);
    std::copy_n(patch.begin(), std::min(patch.size(), body->size() - at), body->begin() + at);
  }
}

}  // namespace

SpaceGroupSpec FuzzGroup(uint32_t number) {
  if (number == 0) return {.name = "one", .members = {{.spec = Space(0, false)}}};
  if (number == 1) {
    return {.name = "two", .members = {{.spec = Space(1, false)}, {.spec = Space(2, true)}}};
  }
  SpaceSpec spec = Space(0, false);
  std::string why;
  Require(ApplyCodec(Codec::kInt8, 1, &spec, &why).ok(), why);
  return {.name = "lossy", .members = {{.spec = spec}}};
}

Bytes OpenBody(const SpaceGroupSpec& group, uint64_t self_mask) {
  Bytes body;
  Append(protocol::OpenRequest{.name_bytes = static_cast<uint32_t>(group.name.size()),
                               .member_count = static_cast<uint32_t>(group.members.size()),
                               .self_mask = self_mask},
         &body);
  AppendAll(std::span(std::as_const(group.name)), &body);
  for (const SpaceGroupMember& member : group.members) {
    const std::string text = member.spec.CanonicalText();
    Append(protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size()),
                                .is_remote = member.is_remote},
           &body);
    AppendAll(std::span(text), &body);
  }
  return body;
}

Bytes SessionBodies::Hello(Choices& choices) {
  Bytes body;
  Append(protocol::HelloRequest{}, &body);
  Patch(choices, &body);
  return body;
}

// [0: a few; more of them; many]
uint32_t SessionBodies::KeyCount(Choices& choices) {
  const uint32_t chosen = choices.Byte();
  if (chosen == 0) return 4;
  if (chosen >= kAllKeys && !std::exchange(has_asked_all_, true)) {
    return protocol::kKeysPerRequestMax + (chosen - kAllKeys);
  }
  return chosen <= kFewKeysMax ? chosen % 32 : (chosen - kFewKeysMax) * kManyKeys;
}

std::vector<BlockKey> SessionBodies::TakeKeys(Choices& choices, uint32_t* first_position,
                                              BlockKey* parent) {
  const uint64_t chain = choices.Below(kChains) + 1;
  const uint32_t count = KeyCount(choices);
  *first_position = choices.Below(8);
  std::vector<BlockKey> keys = test::MakeKeys(*first_position + count, chain);
  *parent = *first_position == 0 ? BlockKey{} : keys[*first_position - 1];
  keys.erase(keys.begin(), keys.begin() + *first_position);
  return keys;
}

LeaseToken SessionBodies::Token(Choices& choices) const {
  const uint32_t chosen = choices.Byte();
  if (chosen == 255) return choices.Number<LeaseToken>();
  return tokens_[chosen % tokens_.size()];
}

// [group; whose members; 0, or a field of its text that is another; patches]
Bytes SessionBodies::Open(Choices& choices) const {
  SpaceGroupSpec group = FuzzGroup(choices.Below(kFuzzGroups));
  const uint64_t self_mask = choices.Byte();
  switch (choices.Below(7)) {
    case 1:
      group.name += std::string(TextOf(choices.Take(choices.Byte())));
      break;
    case 2:
      group.members[0].spec.model = std::string(TextOf(choices.Take(choices.Byte())));
      break;
    case 3:
      group.members[0].spec.part_bytes.resize(choices.Byte(), choices.Number<uint32_t>());
      break;
    case 6:
      group.name += "_many";
      [[fallthrough]];
    case 4:
      group.members.resize(1 + choices.Below(70), group.members[0]);
      for (uint32_t i = 0; i < group.members.size(); ++i) group.members[i].spec.tp_rank = i;
      for (auto& member : group.members) member.spec.tp_size = 80;
      break;
    case 5:
      group.members[0].spec.block_tokens = choices.Number<uint32_t>();
      group.members[0].spec.quantisation = std::string(TextOf(choices.Take(choices.Byte())));
      break;
    default:
      break;
  }
  uint64_t mask = self_mask == kNoMembers ? 0 : self_mask;
  if (self_mask == 0) mask = (uint64_t{1} << group.members.size()) - 1;
  Bytes body = OpenBody(group, mask);
  Patch(choices, &body);
  return body;
}

// [handle; keys; flags; members; hints]
Bytes SessionBodies::Keys(const VerbRow& row, Choices& choices) {
  Bytes body;
  protocol::KeysRequest request;
  request.group_handle = TakeHandle(choices);
  const std::vector<BlockKey> keys = TakeKeys(choices, &request.first_position, &request.parent);
  request.key_count = static_cast<uint32_t>(keys.size());
  request.flags = TakeFlags(row.key_flags, choices);
  request.member_mask = choices.Below(4);
  request.hints = TakeHints(choices);
  if (row.verb == Verb::kTouch) Append(protocol::TouchRequest{}, &body);
  Append(request, &body);
  AppendAll(std::span(keys), &body);
  if ((request.flags & protocol::kReserveHasEvents) != 0) {
    body.resize(body.size() + keys.size() * sizeof(uint64_t), std::byte{5});
  }
  return body;
}

// [lease; entries left out, of eight; flags; checksums, and of what; hints; a patched entry]
Bytes SessionBodies::Commit(Choices& choices) const {
  const WriteLease& lease = writes_[choices.Byte() % writes_.size()];
  const uint8_t left_out = choices.Byte();
  const uint32_t way = choices.Below(4);
  uint32_t flags = way == 0 ? protocol::kCommitRelease : choices.Byte();
  if (way != 3) flags %= 2;
  const uint8_t kind = choices.Byte();
  std::vector<protocol::CommitEntry> entries;
  for (size_t i = 0; i < lease.entries.size(); ++i) {
    if ((left_out >> (i % 8) & 1) != 0) continue;
    entries.push_back(lease.entries[i]);
    if (kind % 4 == 1) entries.back().flags = protocol::kCommitHasChecksums;
    if (kind % 4 == 2 && entries.back().member > 0) entries.back().flags = protocol::kCommitAbsent;
    if (kind % 4 == 3) entries.back().part_count = 1;
  }
  Bytes body;
  Append(protocol::CommitRequest{.token = lease.token,
                                 .entry_count = static_cast<uint32_t>(entries.size()),
                                 .flags = flags,
                                 .hints = TakeHints(choices)},
         &body);
  if (const uint32_t at = choices.Byte(); at > 0 && !entries.empty()) {
    protocol::CommitEntry& patched = entries[at % entries.size()];
    auto bytes = std::as_writable_bytes(std::span(&patched, 1));
    const size_t offset = choices.Byte() % bytes.size();
    bytes[offset] = static_cast<std::byte>(choices.Byte());
  }
  AppendAll(std::span(std::as_const(entries)), &body);
  size_t checksum_count = 0;
  for (const protocol::CommitEntry& entry : entries) {
    if ((entry.flags & protocol::kCommitHasChecksums) != 0) checksum_count += entry.part_count;
  }
  // Of anything: what is claimed is found out when somebody wants to read it.
  const std::vector<Checksum> checksums(std::min<size_t>(checksum_count, 4096), Checksum{1, kind});
  AppendAll(std::span(checksums), &body);
  return body;
}

// [order; 0: well; else a status; how many checksums]
Bytes SessionBodies::OrderDone(Choices& choices) const {
  protocol::OrderDoneRequest done;
  std::vector<Checksum> roots;
  const size_t chosen = choices.Byte();
  const uint8_t status = choices.Byte();
  if (!orders_.empty()) {
    const Order& order = orders_[orders_.size() - 1 - chosen % orders_.size()];
    done.order_id = order.told.order_id;
    done.generation = order.told.generation;
    DomainSecret secret{};
    secret[0] = std::byte{1};  // the harness's first domain
    // What is stored here is zeros, so that is what a device read back.
    for (uint32_t part = 0; part < order.part_bytes.size(); ++part) {
      const Bytes zeros(std::min<uint64_t>(order.part_bytes[part], 64 * kKiB));
      roots.push_back(ChecksumPart(zeros, ChecksumSeed(secret, {.space = order.told.space,
                                                                .key = order.told.key,
                                                                .commit_id = order.told.commit_id,
                                                                .part_index = part})));
    }
    if (order.told.kind == protocol::OrderKind::kDemote) roots.clear();
  }
  done.status = status;
  if (status != 0) roots.resize(choices.Byte());
  done.checksum_count = static_cast<uint32_t>(roots.size());
  Bytes body;
  Append(done, &body);
  AppendAll(std::span(std::as_const(roots)), &body);
  return body;
}

Bytes SessionBodies::OfLease(const VerbRow& row, Choices& choices) {
  Bytes body;
  switch (row.verb) {
    case Verb::kJoin: {
      protocol::JoinRequest join{.token = Token(choices)};
      join.group_handle = TakeHandle(choices);
      join.member_mask = choices.Below(4);
      join.flags = TakeFlags(
          protocol::kAcquireByParts | protocol::kAcquireDevice | protocol::kJoinPaged, choices);
      Append(join, &body);
      if (const uint8_t page = choices.Byte(); page > 0) {
        const uint32_t behind = protocol::kKeysPerRequestMax + 1;
        Append(protocol::JoinPage{.first_block = page == kPageBehindAll ? behind : page}, &body);
      }
      Patch(choices, &body);
      break;
    }
    case Verb::kRelease:
      Append(protocol::ReleaseRequest{.token = Token(choices), .hints = TakeHints(choices)}, &body);
      break;
    case Verb::kCancel:
      Append(protocol::CancelRequest{.request_id = choices.Byte()}, &body);
      break;
    case Verb::kTouch:
      if (choices.Below(2) == 1) return Keys(row, choices);
      Append(protocol::TouchRequest{.token = Token(choices)}, &body);
      break;
    default: {
      const LeaseToken token = Token(choices);
      const std::span<const std::byte> indexes = choices.Take(choices.Below(16));
      Append(protocol::AbortRequest{.token = token,
                                    .key_count = static_cast<uint32_t>(indexes.size())},
             &body);
      for (const std::byte index : indexes) Append(static_cast<uint32_t>(index), &body);
      Patch(choices, &body);
    }
  }
  return body;
}

// Heads of a fixed size are zeros with what the choices put anywhere in them; some have keys.
Bytes SessionBodies::OfOperator(const VerbRow& row, Choices& choices) {
  Bytes body(row.head_bytes);
  std::vector<BlockKey> keys;
  uint32_t first_position = 0;
  BlockKey parent;
  const bool has_keys = row.verb == protocol::kVerbExplain || row.verb == protocol::kVerbNamedPin;
  if (has_keys) keys = TakeKeys(choices, &first_position, &parent);
  const auto key_count = static_cast<uint32_t>(keys.size());
  if (row.verb == protocol::kVerbExplain) {
    const protocol::ExplainRequest request{.group = FuzzGroup(0).Id(), .key_count = key_count};
    std::memcpy(body.data(), &request, sizeof(request));
  } else if (row.verb == protocol::kVerbNamedPin) {
    protocol::NamedPinRequest request{.cap_bytes = 1 << 20, .ttl_s = 60, .key_count = key_count};
    request.name[0] = 'p';
    request.action = protocol::PinAction::kSet;
    std::memcpy(body.data(), &request, sizeof(request));
  } else if (row.verb == Verb::kList) {
    const protocol::ListRequest request{.entry_count_max = 64};
    std::memcpy(body.data(), &request, sizeof(request));
  } else if (row.verb == protocol::kVerbEvictWhere) {
    const protocol::EvictWhereRequest request{.tier = protocol::kEvictWhereAllTiers};
    std::memcpy(body.data(), &request, sizeof(request));
  } else if (row.verb == protocol::kVerbDeviceAttach) {
    std::memcpy(body.data(), "test", 4);
  } else if (row.verb == Verb::kUnmapped) {
    const protocol::UnmappedRequest request{.segment = revoked_segment_};
    std::memcpy(body.data(), &request, sizeof(request));
  }
  Patch(choices, &body);
  AppendAll(std::span(std::as_const(keys)), &body);
  if (row.verb == protocol::kVerbConfig || row.verb == Verb::kStats) {
    AppendAll(choices.Rest(), &body);
  }
  return body;
}

Bytes SessionBodies::Make(const VerbRow& row, Choices& choices) {
  if (row.worker == VerbWorker::kKeys) return Keys(row, choices);
  if (row.verb == protocol::kVerbOrderDone) return OrderDone(choices);
  switch (row.verb) {
    case Verb::kHello:
      return Hello(choices);
    case Verb::kOpen:
      return Open(choices);
    case Verb::kCommit:
      return Commit(choices);
    case Verb::kJoin:
    case Verb::kRelease:
    case Verb::kCancel:
    case Verb::kTouch:
    case Verb::kAbort:
      return OfLease(row, choices);
    default:
      return OfOperator(row, choices);
  }
}

void SessionBodies::Learn(const test::FakeMessage& message) {
  if (message.status() != StatusCode::kOk) return;
  const Verb verb = message.header.verb;
  if (verb == protocol::kVerbWorkOrder) {
    Order order{.told = message.At<protocol::WorkOrder>(), .part_bytes = {}};
    for (uint32_t i = 0; i < order.told.part_count; ++i) {
      order.part_bytes.push_back(message.At<uint64_t>(sizeof(order.told) + i * sizeof(uint64_t)));
    }
    if (orders_.size() == kOrdersMax) orders_.erase(orders_.begin());
    orders_.push_back(std::move(order));
  } else if (verb == Verb::kSegmentRevoke) {
    revoked_segment_ = message.At<protocol::SegmentRevoke>().segment;
  } else if (verb == Verb::kAcquire || verb == Verb::kReserve) {
    const auto token = message.At<LeaseToken>();
    if (token.is_zero()) return;
    tokens_[token_count_++ % tokens_.size()] = token;
    if (verb == Verb::kReserve) LearnReserve(message);
  }
}

void SessionBodies::LearnReserve(const test::FakeMessage& message) {
  const auto head = message.At<protocol::ReserveReply>();
  WriteLease lease{.token = head.token, .entries = {}};
  size_t slots_at = sizeof(head) + head.key_count * sizeof(protocol::ReservedKey);
  for (uint32_t i = 0; i < head.key_count; ++i) {
    const auto key =
        message.At<protocol::ReservedKey>(sizeof(head) + i * sizeof(protocol::ReservedKey));
    if (key.status != static_cast<uint8_t>(StatusCode::kOk)) continue;
    for (uint64_t rest = head.member_mask; rest != 0; rest &= rest - 1) {
      const auto slot = message.At<SlotRef>(slots_at);
      slots_at += sizeof(slot);
      lease.entries.push_back({.key_index = i,
                               .member = static_cast<uint16_t>(std::countr_zero(rest)),
                               .part_count = 2,
                               .row = slot.row,
                               .segment = slot.address.segment,
                               .generation = slot.generation});
    }
  }
  writes_[write_count_++ % writes_.size()] = std::move(lease);
}

}  // namespace terrace::fuzz
