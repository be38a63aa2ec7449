#include "sim/sim_process.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>

#include "daemon/session/hint_table.h"
#include "sim/router.h"

namespace terrace::sim {

using protocol::Verb;

uint64_t SimProcess::SelfMask(uint32_t group_number) const {
  const size_t member_count = options_.host->GroupSpec(group_number).members.size();
  const uint64_t all = (uint64_t{1} << member_count) - 1;
  const uint64_t own = options_.self_mask & all;
  return own == 0 ? all : own;
}

std::span<std::byte> SimProcess::PartMemory(uint32_t group_number, uint32_t member, uint32_t part,
                                            const SlotAddress& address) {
  const SpaceSpec& space = options_.host->GroupSpec(group_number).members[member].spec;
  std::byte* slot = options_.host->SlotMemory(options_.domain_index, address);
  return {slot + space.part_offset_bytes(part), space.part_bytes[part]};
}

uint64_t SimProcess::Send(FrameWriter& frame, uint64_t request_id, Pending pending) {
  if (!pending.is_join) pending.asked_us = options_.host->now_us();
  pending_[request_id] = std::move(pending);
  options_.host->SendToDaemon(options_.number, frame.Take());
  return request_id;
}

void SimProcess::Begin() {
  protocol::HelloRequest hello;
  hello.pid = 100 + options_.number;
  const uint64_t hello_id = next_request_id_++;
  FrameWriter frame(Verb::kHello, hello_id);
  frame.Put(hello);
  Send(frame, hello_id, {.verb = Verb::kHello});
  for (uint32_t group = 0; group < kSimGroups; ++group) {
    const SpaceGroupSpec& spec = options_.host->GroupSpec(group);
    protocol::OpenRequest open;
    open.name_bytes = static_cast<uint32_t>(spec.name.size());
    open.member_count = static_cast<uint32_t>(spec.members.size());
    open.self_mask = SelfMask(group);
    const uint64_t request_id = next_request_id_++;
    FrameWriter body(Verb::kOpen, request_id);
    body.Put(open).PutBytes(std::as_bytes(std::span(spec.name)));
    for (const SpaceGroupMember& member : spec.members) {
      const std::string text = member.spec.CanonicalText();
      body.Put(protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())});
      body.PutBytes(std::as_bytes(std::span(text)));
    }
    Send(body, request_id, {.verb = Verb::kOpen, .group_number = group});
  }
}

protocol::KeysRequest SimProcess::KeysOf(Verb verb, uint32_t group_number,
                                         std::vector<BlockKey>* keys) {
  const std::vector<BlockKey>& chain = options_.host->Chain(Pick(swarm().value(Kind::kChains)));
  keys->assign(chain.begin(), chain.begin() + 1 + Pick(chain.size()));
  protocol::KeysRequest request;
  request.group_handle = group_handles_[group_number];
  request.key_count = static_cast<uint32_t>(keys->size());
  request.hints.deadline_us = static_cast<uint32_t>(1 + Pick(swarm().value(Kind::kDeadlineUs)));
  if (Happens(Kind::kByVerb, 300'000)) request.hints.by_verb = static_cast<uint8_t>(1 + Pick(8));
  if (Happens(Kind::kMinTokens, 100'000)) {
    request.hints.min_tokens = static_cast<uint32_t>(Pick(64));
  }
  if (Happens(Kind::kTtl, 50'000)) request.hints.ttl_s = static_cast<uint32_t>(1 + Pick(3));
  if (Happens(Kind::kPriority, 200'000)) request.hints.priority = static_cast<uint8_t>(Pick(101));
  if (options_.never_expires) request.hints.ttl_s = 0;
  if (options_.keeps_worth) request.hints.priority = protocol::kPriorityUnset;
  // What the verb has no use for would be refused.
  if (!TakesHint(verb, Hint::kMinTokens)) request.hints.min_tokens = 0;
  if (!TakesHint(verb, Hint::kByVerb)) request.hints.by_verb = 0;
  if (!TakesHint(verb, Hint::kTtl)) request.hints.ttl_s = 0;
  if (!TakesHint(verb, Hint::kPriority)) request.hints.priority = protocol::kPriorityUnset;
  return request;
}

void SimProcess::SendKeys(Verb verb, uint32_t flags) {
  const uint32_t group = Pick(kSimGroups);
  Pending pending{.verb = verb, .group_number = group, .member_mask = SelfMask(group)};
  protocol::KeysRequest request = KeysOf(verb, group, &pending.keys);
  request.flags = flags;
  if (verb == Verb::kReserve) request.flags |= protocol::kReserveHasEvents;
  pending.is_by_parts = (flags & protocol::kAcquireByParts) != 0;
  pending.wants_device = (flags & protocol::kAcquireDevice) != 0;
  const uint64_t request_id = next_request_id_++;
  FrameWriter frame(verb, request_id);
  frame.Put(request).PutAll(pending.keys);
  if (verb == Verb::kReserve) {
    for (const BlockKey& key : pending.keys) frame.Put(EventHashOf(key));
  }
  Send(frame, request_id, std::move(pending));
}

void SimProcess::SendReserve() {
  if (writes_.size() >= 4) return;
  SendKeys(Verb::kReserve, Happens(Kind::kFlatKeys, 100'000) ? protocol::kKeysFlat : 0);
}

void SimProcess::SendJoin() {
  auto& board = options_.host->token_board();
  if (board.empty()) return;
  // Mostly of a lease that may still be there.
  const size_t recent_count = Chance(80) ? std::min<size_t>(board.size(), 8) : board.size();
  const SimHost::Token& told = board[board.size() - 1 - Pick(recent_count)];
  protocol::JoinRequest join;
  join.token = told.token;
  join.group_handle = group_handles_[told.group_number];
  if (is_attached_ && Chance(50)) join.flags = protocol::kAcquireDevice;
  if (!told.is_write && Happens(Kind::kByParts, 500'000)) join.flags |= protocol::kAcquireByParts;
  const uint64_t request_id = next_request_id_++;
  FrameWriter frame(Verb::kJoin, request_id);
  frame.Put(join);
  Send(frame, request_id,
       {.verb = told.is_write ? Verb::kReserve : Verb::kAcquire,
        .group_number = told.group_number,
        .member_mask = SelfMask(told.group_number),
        .keys = told.keys,
        .token = told.token,
        .is_foreign = told.domain_index != options_.domain_index,
        .is_join = true,
        .is_by_parts = (join.flags & protocol::kAcquireByParts) != 0,
        .asked_us = told.asked_us,
        .wants_device = (join.flags & protocol::kAcquireDevice) != 0});
}

// Fills one part that is not committed yet, or goes on filling it, as a copy that takes long does.
// A stray write happens without looking at the inbox: the process was stopped, or its DMA outlives
// it.
void SimProcess::WriteSomePart(WriteLease& lease, bool is_stray) {
  if (lease.is_revoked && !is_stray) return;
  const SpaceGroupSpec& spec = options_.host->GroupSpec(lease.group_number);
  auto& writers = options_.host->shared_writes()[lease.token].writer_of_part;
  const uint32_t members_in_mask = std::popcount(lease.member_mask);
  size_t slot = 0;
  std::vector<std::array<uint32_t, 4>> open, written;  // key, member, part, slot
  for (uint32_t k = 0; k < lease.reserved.size(); ++k) {
    if (lease.reserved[k].status != 0) continue;
    uint32_t column = 0;
    for (uint32_t m = 0; m < spec.members.size(); ++m) {
      if ((lease.member_mask >> m & 1) == 0) continue;
      for (uint32_t p = 0; p < spec.members[m].spec.part_bytes.size(); ++p) {
        const auto writer = writers.find(PartIndex(k, m, p));
        const bool is_mine = writer == writers.end() || writer->second == options_.number;
        const auto state = lease.part_state.find(PartIndex(k, m, p));
        const bool is_open = state == lease.part_state.end();
        if (!is_mine || (!is_open && state->second != 1)) continue;
        (is_open ? open : written).push_back({k, m, p, static_cast<uint32_t>(slot + column)});
      }
      ++column;
    }
    slot += members_in_mask;
  }
  const bool goes_on = !is_stray && !written.empty() && (open.empty() || Chance(20));
  const auto& choices = goes_on ? written : open;
  if (choices.empty()) return;
  const auto [key, member, part, slot_index] =
      choices[is_stray || goes_on ? Pick(choices.size()) : 0];
  const PartName name{options_.host->TrustOf(options_.domain_index),
                      lease.group_number,
                      lease.keys[key],
                      lease.reserved[key].commit_id,
                      member,
                      part};
  writers[PartIndex(key, member, part)] = options_.number;
  if (!is_stray && !options_.host->IsInThatUse(options_.domain_index, lease.slots[slot_index])) {
    options_.host->Fail("a slot became another's while a joiner of its lease writes it");
  }
  FillPart(name, PartMemory(lease.group_number, member, part, lease.slots[slot_index].address));
  if (!is_stray) lease.part_state[PartIndex(key, member, part)] = 1;
}

protocol::CommitEntry SimProcess::CommitPart(WriteLease& lease, const PartName& name,
                                             const SlotAddress& address,
                                             std::vector<Checksum>* checksums) {
  lease.part_state[PartIndex(KeyIndexOf(lease, name.key), name.member, name.part)] = 2;
  options_.host->oracle().PartCommitted(name);
  protocol::CommitEntry entry{.part_first = static_cast<uint16_t>(name.part), .part_count = 1};
  if (Happens(Kind::kChecksums, 700'000)) {
    entry.flags = protocol::kCommitHasChecksums;
    const SpaceId space = options_.host->MemberSpace(lease.group_number, name.member);
    const uint64_t seed = ChecksumSeed(options_.host->Secret(options_.domain_index),
                                       {space, name.key, name.commit_id, name.part});
    checksums->push_back(
        ChecksumPart(PartMemory(lease.group_number, name.member, name.part, address), seed));
    if (Happens(Kind::kWrongChecksums, 20'000)) {  // other bytes', it says
      checksums->back().high ^= 1;
      options_.host->oracle().PartClaimedWrongly(name,
                                                 options_.host->shared_writes()[lease.token].uid);
    }
  }
  return entry;
}

uint32_t SimProcess::KeyIndexOf(const WriteLease& lease, const BlockKey& key) {
  return static_cast<uint32_t>(std::find(lease.keys.begin(), lease.keys.end(), key) -
                               lease.keys.begin());
}

// A windowed member that nobody writes may be declared absent, but not at the prompt's end. Or it
// is somebody else's to write, who knows nothing of it and writes on.
bool SimProcess::DeclareAbsent(WriteLease& lease, uint32_t key_index, uint32_t member) {
  const SpaceSpec& space = options_.host->GroupSpec(lease.group_number).members[member].spec;
  SimHost::SharedWrite& shared = options_.host->shared_writes()[lease.token];
  auto& writers = shared.writer_of_part;
  if (!space.is_windowed() || key_index + 1 >= lease.keys.size()) return false;
  const auto writer = writers.find(PartIndex(key_index, member, 0));
  const bool is_mine = writer != writers.end() && writer->second == options_.number;
  const bool lies = shared.is_joined && !is_mine && Happens(Kind::kWrongAbsences, 500'000);
  if (!lies && (writer != writers.end() || !Happens(Kind::kAbsences, 500'000))) return false;
  for (uint32_t part = 0; part < space.part_bytes.size(); ++part) {
    if (!lies) writers[PartIndex(key_index, member, part)] = options_.number;
    lease.part_state[PartIndex(key_index, member, part)] = 2;
  }
  return true;
}

// Entries for one member of one block: what was written, an absence, or rarely a lie about the
// generation, which must not be believed.
void SimProcess::CommitMember(WriteLease& lease, const PartName& member, const SlotRef& slot,
                              CommitDraft* draft) {
  const uint32_t key_index = KeyIndexOf(lease, member.key);
  const auto add = [&](protocol::CommitEntry entry, bool lies) {
    entry.key_index = key_index;
    entry.member = static_cast<uint16_t>(member.member);
    entry.row = slot.row;
    entry.segment = slot.address.segment;
    entry.generation = slot.generation - (lies ? 1 : 0);
    draft->entries.push_back(entry);
    draft->must_fail.push_back(lies);
  };
  const SpaceSpec& space = options_.host->GroupSpec(lease.group_number).members[member.member].spec;
  const auto part_count = static_cast<uint16_t>(space.part_bytes.size());
  if (DeclareAbsent(lease, key_index, member.member)) {
    return add({.flags = protocol::kCommitAbsent, .part_count = part_count}, false);
  }
  // Who has joined a lease twice commits a part once: of two claims one may be believed.
  std::set<uint64_t>& committed = options_.host->shared_writes()[lease.token].committed;
  PartName name = member;
  for (name.part = 0; name.part < part_count; ++name.part) {
    const auto state = lease.part_state.find(PartIndex(key_index, name.member, name.part));
    const uint64_t part_index = PartIndex(key_index, name.member, name.part);
    const bool is_written = state != lease.part_state.end() && state->second == 1;
    if (is_written && committed.insert(part_index).second) {
      add(CommitPart(lease, name, slot.address, &draft->checksums), false);
    } else if (state == lease.part_state.end() && Happens(Kind::kStaleCommits, 30'000)) {
      add({.part_first = static_cast<uint16_t>(name.part), .part_count = 1}, true);
    }
  }
}

void SimProcess::SendCommit(WriteLease& lease) {
  CommitDraft draft;
  size_t slot = 0;
  for (uint32_t k = 0; k < lease.reserved.size(); ++k) {
    if (lease.reserved[k].status != 0) continue;
    for (uint32_t m = 0; m < kGroupMembersMax; ++m) {
      if ((lease.member_mask >> m & 1) == 0) continue;
      const PartName member{.domain_index = options_.host->TrustOf(options_.domain_index),
                            .group_number = lease.group_number,
                            .key = lease.keys[k],
                            .commit_id = lease.reserved[k].commit_id,
                            .member = m};
      CommitMember(lease, member, lease.slots[slot++], &draft);
    }
  }
  if (draft.entries.empty()) return;
  protocol::CommitRequest request;
  request.token = lease.token;
  request.entry_count = static_cast<uint32_t>(draft.entries.size());
  const uint64_t request_id = next_request_id_++;
  FrameWriter frame(Verb::kCommit, request_id);
  frame.Put(request).PutAll(draft.entries).PutAll(draft.checksums);
  Send(frame, request_id,
       {.verb = Verb::kCommit, .token = lease.token, .must_fail = draft.must_fail});
}

void SimProcess::EndWrite(size_t index) {
  const LeaseToken token = writes_[index].token;
  const uint64_t request_id = next_request_id_++;
  if (Happens(Kind::kAborts, 500'000)) {
    FrameWriter frame(Verb::kAbort, request_id);
    frame.Put(protocol::AbortRequest{.token = token});
    Send(frame, request_id, {.verb = Verb::kAbort});
  } else {
    FrameWriter frame(Verb::kRelease, request_id);
    frame.Put(protocol::ReleaseRequest{.token = token});
    Send(frame, request_id, {.verb = Verb::kRelease});
  }
  writes_.erase(writes_.begin() + static_cast<long>(index));
}

void SimProcess::EndRead(size_t index) {
  JudgeRead(reads_[index]);
  const uint64_t request_id = next_request_id_++;
  FrameWriter frame(Verb::kRelease, request_id);
  frame.Put(protocol::ReleaseRequest{.token = reads_[index].token});
  Send(frame, request_id, {.verb = Verb::kRelease});
  reads_.erase(reads_.begin() + static_cast<long>(index));
}

// Every byte under an unreleased lease must be right, revoked or not: its slots may not be reused
// before this process lets go. Parts that were told stay right even if their block has left.
void SimProcess::JudgeRead(const ReadLease& lease) {
  const SpaceGroupSpec& spec = options_.host->GroupSpec(lease.group_number);
  const uint32_t trust = options_.host->TrustOf(options_.domain_index);
  size_t slot = 0;
  bool is_prefix_ready = true;  // a Ready block may leave with a coming one before it
  for (uint32_t b = 0; b < lease.is_ready.size(); ++b) {
    CommitId commit_id = 0;
    is_prefix_ready &= lease.is_ready[b];
    for (uint32_t m = 0; m < spec.members.size(); ++m) {
      if ((lease.member_mask >> m & 1) == 0) continue;
      const SlotAddress address = lease.slots[slot++];
      if (!address.has_bytes()) continue;
      for (uint32_t p = 0; p < spec.members[m].spec.part_bytes.size(); ++p) {
        const bool is_readable =
            (!lease.is_lost[b] && is_prefix_ready) || lease.part_ready.contains(PartIndex(b, m, p));
        if (!is_readable) continue;
        const auto bytes = PartMemory(lease.group_number, m, p, address);
        const PartName name{trust, lease.group_number, lease.keys[b], 0, m, p};
        const std::string verdict = options_.host->oracle().Judge(name, bytes, options_.uid);
        if (!verdict.empty()) options_.host->Fail(verdict);
        if (commit_id != 0 && ClaimedCommit(bytes) != commit_id) {
          options_.host->Fail("one block mixes two commits: key " + ToHex(lease.keys[b]));
        }
        commit_id = ClaimedCommit(bytes);
        if (options_.host->WasForgotten(options_.domain_index, commit_id, lease.asked_us)) {
          options_.host->Fail("a block from before a Reset is served: key " + ToHex(lease.keys[b]));
        }
      }
    }
  }
}

void SimProcess::ActOnLease() {
  if (!writes_.empty() && Chance(70)) {
    const size_t index = Pick(writes_.size());
    WriteLease& lease = writes_[index];
    if (lease.is_revoked || Chance(8)) return EndWrite(index);
    if (Chance(60)) {
      for (uint64_t n = 1 + Pick(12); n > 0; --n) WriteSomePart(lease, /*is_stray=*/false);
      return;
    }
    return SendCommit(lease);
  }
  if (reads_.empty()) return;
  const size_t index = Pick(reads_.size());
  if (reads_[index].is_revoked || Chance(40) || reads_.size() > 6) return EndRead(index);
  JudgeRead(reads_[index]);
}

void SimProcess::SendSmall(Kind verb) {
  switch (verb) {
    case Kind::kMatch:
      return SendKeys(Verb::kMatch, 0);
    case Kind::kPrefetch:
      return SendKeys(Verb::kPrefetch, 0);
    case Kind::kTouch: {
      if (reads_.empty()) return;
      const uint64_t request_id = next_request_id_++;
      FrameWriter frame(Verb::kTouch, request_id);
      frame.Put(protocol::TouchRequest{.token = reads_[Pick(reads_.size())].token});
      Send(frame, request_id, {.verb = Verb::kTouch});
      return;
    }
    case Kind::kQuery:
      return SendKeys(Verb::kQuery, 0);
    case Kind::kEvict:
      return SendKeys(Verb::kEvict, Chance(50) ? protocol::kEvictSubtree : 0);
    case Kind::kPin:
      if (options_.keeps_worth) return;
      return SendKeys(Verb::kPin, Chance(80) ? protocol::kPinClear : 0);
    case Kind::kCancel: {
      if (pending_.empty()) return;
      const uint64_t request_id = next_request_id_++;
      FrameWriter frame(Verb::kCancel, request_id);
      uint64_t cancelled = pending_.begin()->first;
      const size_t recent_count = std::min<size_t>(lease_of_request_.size(), 4);
      if (recent_count > 0 && Chance(80)) {  // it was answered, and may still wait
        cancelled = std::prev(lease_of_request_.end(), 1 + Pick(recent_count))->first;
      }
      frame.Put(protocol::CancelRequest{.request_id = cancelled});
      Send(frame, request_id, {.verb = Verb::kCancel});
      return;
    }
    case Kind::kList: {
      const uint64_t request_id = next_request_id_++;
      FrameWriter frame(Verb::kList, request_id);
      frame.Put(protocol::ListRequest{.entry_count_max = 16});
      Send(frame, request_id, {.verb = Verb::kList});
      return;
    }
    default: {
      const uint64_t request_id = next_request_id_++;
      FrameWriter frame(Verb::kReset, request_id);
      const auto group = static_cast<uint32_t>(Pick(kSimGroups));
      frame.Put(protocol::ResetRequest{.group_handle = group_handles_[group]});
      Send(frame, request_id, {.verb = Verb::kReset, .known = options_.host->KnownCommits(group)});
      return;
    }
  }
}

void SimProcess::Act() {
  DrainInbox();
  if (group_handles_[kSimGroups - 1] == 0) return;  // still opening
  if (!orders_.empty() && Chance(60)) return ActOnOrder();
  const Kind verb = options_.host->dice().PickVerb(options_.host->random().Next());
  if (!swarm().is_on(verb)) return;
  switch (verb) {
    case Kind::kAcquire:
      return SendAcquire();
    case Kind::kReserve:
      return SendReserve();
    case Kind::kLeaseWork:
      return ActOnLease();
    case Kind::kJoin:
      return SendJoin();
    default:
      return SendSmall(verb);
  }
}

void SimProcess::SendAcquire() {
  uint32_t flags = is_attached_ && Chance(70) ? protocol::kAcquireDevice : 0;
  if (Happens(Kind::kFollow, 250'000)) flags |= protocol::kAcquireFollow;
  if (Happens(Kind::kByParts, 700'000)) flags |= protocol::kAcquireByParts;
  SendKeys(Verb::kAcquire, flags);
}

void SimProcess::StrayWrite() {
  if (!Happens(Kind::kStrayWrites, 1'000'000)) return;
  if (!writes_.empty()) WriteSomePart(writes_[Pick(writes_.size())], /*is_stray=*/true);
  if (!orders_.empty() && Chance(50)) CopyOrder(orders_[Pick(orders_.size())]);
}

void SimProcess::JudgeReads() {
  for (const ReadLease& lease : reads_) JudgeRead(lease);
}

void SimProcess::ReleaseAll() {
  DrainInbox();
  while (!reads_.empty()) EndRead(0);
  while (!writes_.empty()) EndWrite(0);
}

void SimProcess::OnMessage(std::vector<std::byte> message) { inbox_.push_back(std::move(message)); }

void SimProcess::DrainInbox() {
  while (!inbox_.empty()) {
    const std::vector<std::byte> message = std::move(inbox_.front());
    inbox_.pop_front();
    Handle(message);
  }
}

void SimProcess::Handle(std::span<const std::byte> message) {
  BodyReader body(message);
  const auto header = body.Get<protocol::FrameHeader>();
  if (header.verb == Verb::kSegmentRevoke) {
    body.Get<protocol::ReplyPrefix>();
    const auto revoke = body.Get<protocol::SegmentRevoke>();
    const uint64_t request_id = next_request_id_++;
    FrameWriter frame(Verb::kUnmapped, request_id);
    frame.Put(protocol::UnmappedRequest{.segment = revoke.segment});
    Send(frame, request_id, {.verb = Verb::kUnmapped});
    return;
  }
  const auto prefix = body.Get<protocol::ReplyPrefix>();
  if (header.verb == Verb::kLeaseRevoked) {
    return HandleRevoked(body.Get<protocol::LeaseRevoked>().token);
  }
  if (header.verb == Verb::kCompletion) return HandleCompletion(header.request_id, prefix, body);
  if (header.verb == protocol::kVerbWorkOrder) return HandleOrder(body);
  HandleReply(header, prefix, body);
}

void SimProcess::HandleReply(const protocol::FrameHeader& header,
                             const protocol::ReplyPrefix& prefix, BodyReader& body) {
  const auto found = pending_.find(header.request_id);
  if (found == pending_.end()) {
    return options_.host->Fail("a reply to no request: verb " +
                               std::to_string(static_cast<int>(header.verb)));
  }
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  const bool is_ok = prefix.status == 0;
  if (pending.is_foreign && is_ok) options_.host->Fail("joined a lease of another domain");
  if (pending.verb == protocol::kVerbOrderDone && is_ok && !pending.must_fail.empty()) {
    options_.host->Fail("an answer to an order that had ended, or of another use, was believed");
  }
  if (!is_ok) return;
  if (pending.verb == protocol::kVerbDeviceAttach) is_attached_ = true;
  switch (pending.verb) {
    case Verb::kOpen:
      body.Get<GroupId>();
      group_handles_[pending.group_number] = body.Get<uint32_t>();
      if (options_.has_device && pending.group_number + 1 == kSimGroups) AttachDevice();
      return;
    case Verb::kAcquire:
      return HandleAcquired(pending, header.request_id, body);
    case Verb::kReserve:
      return HandleReserved(pending, body);
    case Verb::kCommit:
      return HandleCommitted(pending, body);
    case Verb::kReset:
      return options_.host->Forgotten(options_.domain_index, pending.known);
    default:
      return;
  }
}

void SimProcess::HandleAcquired(const Pending& pending, uint64_t request_id, BodyReader& body) {
  const auto reply = body.Get<protocol::AcquireReply>();
  if (reply.token.is_zero()) return;
  ReadLease lease{.token = reply.token,
                  .group_number = pending.group_number,
                  .member_mask = reply.member_mask,
                  .keys = pending.keys,
                  .asked_us = pending.asked_us};
  const auto spans = body.GetAll<protocol::BlockSpan>(reply.span_count);
  lease.slots = body.GetAll<SlotAddress>(reply.slot_count);
  if (!body.ok() ||
      lease.slots.size() !=
          size_t{reply.block_count} * static_cast<size_t>(std::popcount(reply.member_mask))) {
    return options_.host->Fail("an Acquire reply whose counts do not fit its body");
  }
  for (const SlotAddress& slot : lease.slots) {
    const bool is_there = slot.has_bytes() && slot.segment >= protocol::kDeviceSegmentFirst;
    if (is_there && !pending.wants_device) options_.host->Fail("an unasked slot on the device");
    if (is_there) options_.host->oracle().SlotOnDevice();
  }
  lease.is_ready.resize(reply.block_count);
  lease.is_lost.resize(lease.is_ready.size());
  lease.is_followed.resize(lease.is_ready.size());
  for (const protocol::BlockSpan& span : spans) {
    for (uint32_t b = span.first_block; b < span.first_block + span.block_count; ++b) {
      if (b < lease.is_ready.size()) {
        lease.is_ready[b] = span.state == protocol::SpanState::kReady;
        lease.is_followed[b] = span.state == protocol::SpanState::kFollowing;
      }
    }
  }
  for (uint32_t b = 0; b < lease.is_ready.size() && pending.is_by_parts; ++b) {
    if (lease.is_ready[b]) AllPartsReady(lease, b);
  }
  if (!pending.is_join) {
    options_.host->token_board().push_back({reply.token, options_.domain_index,
                                            pending.group_number, false, pending.keys,
                                            pending.asked_us});
  }
  lease_of_request_[request_id] = reply.token;
  JudgeRead(lease);
  reads_.push_back(std::move(lease));
}

void SimProcess::HandleReserved(const Pending& pending, BodyReader& body) {
  const auto reply = body.Get<protocol::ReserveReply>();
  if (reply.token.is_zero()) return;
  WriteLease lease{.token = reply.token,
                   .group_number = pending.group_number,
                   .member_mask = reply.member_mask,
                   .keys = pending.keys};
  lease.reserved = body.GetAll<protocol::ReservedKey>(reply.key_count);
  lease.slots = body.GetAll<SlotRef>(reply.slot_count);
  if (pending.keys.empty()) {
    // A joiner of a write lease learns the keys from who reserved them, as ranks of one engine do.
    SimHost::SharedWrite& shared = options_.host->shared_writes()[reply.token];
    lease.keys = shared.keys;
    shared.is_joined = true;
    // Joined again: what it wrote before may be committed, and is no longer its own to write.
    for (const auto& [part, writer] : shared.writer_of_part) {
      if (writer == options_.number) lease.part_state[part] = 2;
    }
  } else {
    options_.host->shared_writes()[reply.token].keys = pending.keys;
    options_.host->shared_writes()[reply.token].uid = options_.uid;
    options_.host->token_board().push_back(
        {reply.token, options_.domain_index, pending.group_number, true});
  }
  size_t slot_count = 0;
  for (const auto& key : lease.reserved) {
    slot_count += key.status == 0 ? static_cast<size_t>(std::popcount(lease.member_mask)) : 0;
  }
  if (!body.ok() || slot_count != lease.slots.size() ||
      lease.reserved.size() != lease.keys.size()) {
    return options_.host->Fail("a Reserve reply whose counts do not fit its body");
  }
  writes_.push_back(std::move(lease));
}

void SimProcess::HandleCommitted(const Pending& pending, BodyReader& body) {
  const auto reply = body.Get<protocol::CommitReply>();
  const auto statuses = body.GetAll<uint8_t>(reply.entry_count);
  if (!body.ok() || statuses.size() != pending.must_fail.size()) {
    return options_.host->Fail("a Commit reply whose counts do not fit its request");
  }
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (pending.must_fail[i] && statuses[i] == 0) {
      options_.host->Fail("a commit with a stale generation was accepted");
    }
  }
}

void SimProcess::HandleCompletion(uint64_t request_id, const protocol::ReplyPrefix& prefix,
                                  BodyReader& body) {
  const auto completion = body.Get<protocol::Completion>();
  const auto token = lease_of_request_.find(request_id);
  if (token == lease_of_request_.end()) return;  // a Prefetch, or released already
  for (ReadLease& lease : reads_) {
    if (lease.token != token->second) continue;
    if (prefix.status != 0) BlocksLost(lease, completion.first_block);
    const uint32_t end = prefix.status == 0 ? completion.first_block + completion.block_count : 0;
    for (uint32_t b = completion.first_block; b < end && b < lease.is_ready.size(); ++b) {
      if (completion.part_count == 0) {
        lease.is_ready[b] = true;
      } else {
        if (completion.flags & protocol::kCompletionAbsent) {
          const uint64_t before = (uint64_t{1} << completion.member) - 1;
          const size_t column = std::popcount(lease.member_mask & before);
          lease.slots[b * std::popcount(lease.member_mask) + column] = SlotAddress{};
          continue;
        }
        PartsTold(lease, b, completion);
      }
    }
    JudgeRead(lease);
  }
}

// What is readable by then stays so, whatever another joiner waited for in vain.
void SimProcess::BlocksLost(ReadLease& lease, uint32_t first_block) {
  uint32_t b = 0;
  while (b < lease.is_ready.size() && lease.is_ready[b] && !lease.is_lost[b]) ++b;
  for (b = std::max(b, first_block); b < lease.is_ready.size(); ++b) lease.is_lost[b] = true;
}

// Of a block that was Ready when it was asked for by parts: it stays so, whatever leaves the lease.
void SimProcess::AllPartsReady(ReadLease& lease, uint32_t block) {
  const SpaceGroupSpec& spec = options_.host->GroupSpec(lease.group_number);
  for (uint32_t m = 0; m < spec.members.size(); ++m) {
    for (uint32_t p = 0; p < spec.members[m].spec.part_bytes.size(); ++p) {
      lease.part_ready[PartIndex(block, m, p)] = true;
    }
  }
}

void SimProcess::PartsTold(ReadLease& lease, uint32_t block,
                           const protocol::Completion& completion) {
  for (uint32_t p = 0; p < completion.part_count; ++p) {
    lease.part_ready[PartIndex(block, completion.member, completion.part_first + p)] = true;
  }
  if (lease.is_followed[block]) return;
  options_.host->oracle().PartTold();
  uint32_t& next_part = lease.next_part[completion.member];
  if (completion.part_first < next_part) options_.host->Fail("parts out of the order of layers");
  next_part = completion.part_first;
}

void SimProcess::HandleRevoked(const LeaseToken& token) {
  for (ReadLease& lease : reads_) lease.is_revoked |= lease.token == token;
  for (WriteLease& lease : writes_) lease.is_revoked |= lease.token == token;
}

}  // namespace terrace::sim
