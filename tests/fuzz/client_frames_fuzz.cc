// A daemon that says anything, as a client hears it: FrameReader, the decoders of answers and what
// comes unasked, and what all of it does to requests, leases and segments, without the client's
// threads. An input is a script: requests that are asked, answers right or broken in any pieces,
// and what the user of the leases does meanwhile. What the client says must be frames that the
// daemon takes; every request ends; no slot lies outside its segment.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/core/commit.h"
#include "client/core/pending_requests.h"
#include "client/core/reader.h"
#include "client/lease/leases.h"
#include "client/session/group.h"
#include "daemon/session/frame_codec.h"
#include "fuzz/client_frames_seeds.h"
#include "fuzz/fuzz.h"
#include "small_space.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_join.h"

namespace terrace::fuzz::client_frames {

using client::Request;
using protocol::Verb;

constexpr uint32_t kSegments = 2;
constexpr uint64_t kBootId = 77;
constexpr uint32_t kConnection = 1;
constexpr uint32_t kKeys = 4;  // of every request
constexpr uint32_t kRequestsMax = 8;
constexpr uint32_t kRecordsMax = 100;
// A frame may claim a MiB before its bytes are there, and a WorkOrder its checksums.
constexpr uint64_t kHeapBytesMax = 2 * kMiB;
constexpr uint64_t kHeapFactor = 64;

constexpr Verb kVerbs[] = {Verb::kAcquire, Verb::kReserve,  Verb::kJoin,  Verb::kCommit,
                           Verb::kMatch,   Verb::kPrefetch, Verb::kQuery, Verb::kEvict,
                           Verb::kPin,     Verb::kList,     Verb::kStats, Verb::kRelease};
constexpr Verb kUnawaited[] = {Verb::kOpen, Verb::kRelease, protocol::kVerbPinTurn,
                               protocol::kVerbDeviceReport};
constexpr Verb kUnasked[] = {Verb::kCompletion, Verb::kLeaseRevoked, Verb::kSegmentRevoke,
                             protocol::kVerbWorkOrder, protocol::kVerbPinTurnBegins};

SpaceGroupSpec TwoMembers() {
  const SpaceSpec spec = test::SmallSpace({4096, 100});
  SpaceSpec windowed = spec;
  windowed.attention = AttentionKind::kSliding;
  windowed.window_tokens = 32;
  windowed.attention_group = 1;
  return {.name = "g", .members = {{.spec = spec}, {.spec = windowed}}};
}

int ArenaFd() {
  static const int fd = [] {
    const int made = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    Require(made >= 0 && ftruncate(made, kSegments * kSegmentBytesMin) == 0 &&
                fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0,
            "no arena");
    return made;
  }();
  return fd;
}

template <typename T>
void Append(const T& value, Bytes* to) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to->insert(to->end(), bytes.begin(), bytes.end());
}

class World {
 public:
  World() {
    std::string why;
    Require(connection_.Open().ok() && requests_.completions().Open().ok(), "no descriptors");
    group_ = groups_.At(*groups_.Add(client::Group::Create(TwoMembers(), 3, &why).value()));
    int life[2], sockets[2];
    Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, life) == 0 &&
                socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0,
            "no sockets");
    daemon_fd_ = sockets[1];
    life_fd_ = life[1];
    client::Attachment::Granted granted{.boot_id = kBootId, .reply = {}, .fds = {}};
    granted.reply.segment_bytes = kSegmentBytesMin;
    granted.reply.segments_max = granted.reply.segments_per_node = kSegments;
    granted.reply.node_count = 1;
    client::GuardedFd socket;
    {
      const client::FdCreation creation;
      granted.fds.emplace_back(dup(ArenaFd()));
      granted.fds.emplace_back(life[0]);
      socket = client::GuardedFd(sockets[0]);
    }
    attachment_ = client::Attachment::Create(std::move(granted), &why).value();
    reader_.Begin({.attachment = attachment_,
                   .socket = std::move(socket),
                   .frames = client::FrameReader(protocol::kFrameBytesMax),
                   .connection = kConnection});
    role_.Take();
  }
  ~World() {
    role_.Leave();
    reader_.End();
    for (Asked& asked : asked_) {
      if (asked.is_blocking) Require(asked.request->is_done.load(), "a request never ended");
      if (asked.is_blocking) requests_.table().Free(*asked.request);
    }
    Listen();
    reads_.clear();
    writes_.clear();
    pages_.clear();
    requests_.completions().Clear();
    orders_.Close();
    connection_.Stop();
    attachment_.reset();
    connection_.DropUnused();
    close(daemon_fd_);
    close(life_fd_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Step(uint8_t operation, Choices& choices) {
    switch (operation % 11) {
      case 0:
        return Ask(choices);
      case 1:
      case 2: {
        const Bytes told = Message(choices);
        return Tell(told, choices.Byte());
      }
      case 3: {
        const std::span<const std::byte> raw = choices.Rest();
        return Tell({raw.begin(), raw.end()}, 0);
      }
      case 4:
        return Use(choices);
      case 5:
        return GiveUp(choices);
      case 6:
        (void)orders_.Step();
        (void)requests_.Expire();
        return Listen();
      case 7: {
        const Verb other = kVerbs[choices.Below(std::size(kVerbs))];
        return Tell(Message(choices, other), 0);
      }
      case 8:
        return Tell(Unawaited(choices), 0);
      case 9:
        return TellWithoutEnd(choices);
      case 10:
        return AskPage(choices);
    }
  }

 private:
  struct Asked {
    Request* request = nullptr;
    uint64_t id = 0;
    Verb verb = Verb::kHello;
    bool is_blocking = true;  // and not given up
  };

  // The next page of a Join that has more. [whether the request is given up]
  void AskPage(Choices& choices) {
    if (pages_.empty() || asked_.size() == kRequestsMax || !connection_.is_connected()) return;
    Request& request = *requests_.table().Take();
    request.connection = kConnection;
    request.deadline_us = client::kNever;
    request.lease = std::move(pages_.back());
    pages_.pop_back();
    request.asked = {.verb = Verb::kJoin,
                     .key_count = protocol::kKeysPerRequestMax,
                     .entry_count = kKeys,
                     .flags = protocol::kJoinPaged,
                     .first_block = request.lease->block_count};
    requests_.table().MakePending(request);
    asked_.push_back({&request, request.id, Verb::kJoin, true});
    Asked& asked = asked_.back();
    if (choices.Below(2) == 1 && requests_.table().Abandon(request)) asked.is_blocking = false;
  }

  // [verb; flags; blocking or not; whether its time is over; whether a Join comes in pages]
  void Ask(Choices& choices) {
    // Nothing can be sent after the end: whoever asks then withdraws it at once.
    if (asked_.size() == kRequestsMax || !connection_.is_connected()) return;
    const Verb verb = kVerbs[choices.Below(std::size(kVerbs))];
    uint32_t flags = choices.Byte() * 2 & ~protocol::kReserveHasEvents;
    const bool is_async = choices.Below(2) == 1 && verb != Verb::kCommit;
    if (verb == Verb::kCommit && writes_.empty()) return;
    const bool is_over = choices.Below(2) == 1 && is_async;
    if (verb == Verb::kJoin && choices.Below(2) == 1) flags |= protocol::kJoinPaged;
    Request& request = *requests_.table().Take();
    request.connection = kConnection;
    request.deadline_us = is_over ? 1 : client::kNever;
    request.asked = {.verb = verb, .key_count = kKeys, .entry_count = kKeys, .flags = flags};
    request.is_async = is_async;
    if (is_async) Require(requests_.completions().Reserve(), "no room for a completion");
    if (verb == Verb::kJoin) request.asked.key_count = protocol::kKeysPerRequestMax;
    if (client::Answers::GivesLease(verb)) {
      request.lease = leases_.New(std::shared_ptr<client::Leases>(&leases_, [](auto*) {}));
      request.lease->group = group_;
      const bool is_write = verb == Verb::kReserve || (verb == Verb::kJoin && (flags & 4) != 0);
      request.lease->kind = is_write ? LeaseState::Kind::kWrite : LeaseState::Kind::kRead;
      request.lease->is_by_parts = (flags & protocol::kAcquireByParts) != 0;
    }
    client::Outgoing message;
    if (verb == Verb::kCommit) {
      request.lease = writes_.back();
      BuildCommit(request, protocol::kMessageBytesMax, &message);
      commit_entries_ = request.asked.entry_count;
    }
    requests_.table().MakePending(request);
    asked_.push_back({&request, request.id, verb, !is_async});
  }

  // [which request or news; status; patches; length; page; the body's] Under `other`, if that is
  // said, though it is right otherwise.
  Bytes Message(Choices& choices, std::optional<Verb> other = std::nullopt) {
    const uint8_t chosen = choices.Byte();
    const bool is_answer = chosen < 128 && !asked_.empty();
    const Asked* asked = is_answer ? &asked_[chosen % asked_.size()] : nullptr;
    const Verb verb = is_answer ? asked->verb : kUnasked[chosen % std::size(kUnasked)];
    const uint8_t status = choices.Byte();
    const uint8_t page = choices.Byte();
    const int8_t longer = choices.Number<int8_t>();
    Bytes body = Body(verb, choices);
    for (uint32_t left = choices.Below(4); left > 0 && !body.empty(); --left) {
      const size_t at = choices.Byte() % body.size();
      const std::span<const std::byte> patch = choices.Take(4);
      std::copy_n(patch.begin(), std::min(patch.size(), body.size() - at),
                  body.begin() + static_cast<ptrdiff_t>(at));
    }
    body.resize(
        static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(body.size()) + longer)));
    const uint64_t id = is_answer ? asked->id : lease_request_id_;
    const Verb told = other.value_or(verb);
    if (page == 0) return Replied(told, id, status, body);
    return Frames(told, id, status, body, page);
  }
  // An answer that nobody awaits. [verb; status; of an Open its group, a patch and its length]
  Bytes Unawaited(Choices& choices) {
    const Verb verb = kUnawaited[choices.Below(std::size(kUnawaited))];
    const uint8_t status = choices.Byte();
    Bytes body;
    if (verb == Verb::kOpen) {
      const SpaceGroupSpec spec = TwoMembers();
      GroupId id = spec.Id();
      if (choices.Below(2) == 1) ++id.low;
      Append(protocol::OpenReply{.group = id, .group_handle = 3, .member_count = 2}, &body);
      for (const SpaceGroupMember& member : spec.members) {
        Append(protocol::OpenedMember{.space = member.spec.Id(), .slot_bytes = 8192}, &body);
      }
      if (const uint8_t at = choices.Byte(); at > 0) {
        body[at % body.size()] ^= std::byte{choices.Byte()};
      }
      body.resize(body.size() - std::min<size_t>(body.size(), choices.Byte()));
    }
    return Replied(verb, uint64_t{1} << 16 | client::kUnawaitedSlot, status, body);
  }
  // A message that is longer than any may be, page by page. [kWithoutEnd, since it takes long]
  void TellWithoutEnd(Choices& choices) {
    if (choices.Byte() != kWithoutEnd || std::exchange(has_told_without_end_, true)) return;
    constexpr size_t kPageBytes = protocol::kFrameBytesMax / 2;
    Bytes frames = Frames(Verb::kStats, 1 << 16, 0, Bytes(protocol::kMessageBytesMax + kPageBytes),
                          kPageBytes);
    frames.pop_back();  // of the last page
    Tell(frames, 0);
    Require(!connection_.is_connected(), "a message without an end is heard to its end");
  }

  // As the daemon makes frames.
  static Bytes Replied(Verb verb, uint64_t id, uint8_t status, const Bytes& body) {
    Reply reply;
    reply.Begin(verb, id, kBootId, Status(static_cast<StatusCode>(status)));
    reply.AddArray(std::span(body));
    Bytes frames;
    while (!reply.is_done()) reply.AppendPage(&frames);
    return frames;
  }
  static Bytes Frames(Verb verb, uint64_t id, uint8_t status, const Bytes& body, size_t page) {
    Bytes whole;
    Append(protocol::ReplyPrefix{.boot_id = kBootId, .status = status}, &whole);
    whole.insert(whole.end(), body.begin(), body.end());
    Bytes frames;
    for (size_t at = 0; at < whole.size(); at += page) {
      const size_t page_bytes = std::min(page, whole.size() - at);
      Append(
          protocol::FrameHeader{
              .frame_bytes = static_cast<uint32_t>(sizeof(protocol::FrameHeader) + page_bytes),
              .verb = verb,
              .flags = at + page_bytes < whole.size() ? protocol::kFrameMore : uint16_t{0},
              .request_id = id},
          &frames);
      const auto first = whole.begin() + static_cast<ptrdiff_t>(at);
      frames.insert(frames.end(), first, first + static_cast<ptrdiff_t>(page_bytes));
    }
    return frames;
  }

  Bytes Body(Verb verb, Choices& choices) {
    Bytes body;
    switch (verb) {
      case Verb::kAcquire:
        return AcquireBody(choices);
      case Verb::kReserve:
        return ReserveBody(choices);
      case Verb::kJoin:
        return JoinBody(choices);
      case Verb::kMatch:
      case Verb::kPrefetch:
        Append(protocol::MatchReply{.block_count = kKeys, .token_count = 64, .span_count = 1},
               &body);
        Append(protocol::BlockSpan{.block_count = kKeys}, &body);
        break;
      case Verb::kQuery:
        body.resize(kKeys * sizeof(protocol::QueriedBlock));
        break;
      case Verb::kEvict:
        body.resize(sizeof(protocol::EvictReply));
        break;
      case Verb::kPin:
        body.resize(sizeof(protocol::PinReply));
        break;
      case Verb::kList:
        Append(protocol::ListReply{.entry_count = 2}, &body);
        body.resize(body.size() + 2 * sizeof(protocol::ListEntry));
        break;
      case Verb::kCommit: {
        const uint32_t count = commit_entries_;
        Append(protocol::CommitReply{.entry_count = count, .sealed_count = 1}, &body);
        body.resize(body.size() + count);
        break;
      }
      case Verb::kCompletion:
        Append(protocol::Completion{.token = Token(),
                                    .first_block = choices.Below(kKeys),
                                    .block_count = 1 + choices.Below(2),
                                    .part_first = choices.Below(3),
                                    .part_count = choices.Below(3),
                                    .member = choices.Below(3),
                                    .flags = choices.Below(4)},
               &body);
        break;
      case Verb::kLeaseRevoked:
        Append(protocol::LeaseRevoked{.token = Token()}, &body);
        break;
      case Verb::kSegmentRevoke:
        Append(protocol::SegmentRevoke{.segment = choices.Below(kSegments + 1)}, &body);
        break;
      default:
        if (verb == protocol::kVerbWorkOrder) return OrderBody(choices);
        break;
    }
    return body;
  }
  static LeaseToken Token() { return {5, 6}; }

  // [which kind; that one's; 0: the last page, else one of blocks or of none, with spans or not; of
  // how many bodies there were pages before]
  Bytes JoinBody(Choices& choices) {
    const bool is_read = choices.Below(2) == 0;
    Bytes body = is_read ? AcquireBody(choices) : ReserveBody(choices);
    const uint32_t page = choices.Below(4);
    const uint32_t blocks_before = choices.Below(3) * kKeys;
    return is_read ? PageOfRead(body, page, blocks_before) : PageOfWrite(body, page);
  }
  static Bytes PageOfRead(Bytes body, uint32_t page, uint32_t blocks_before) {
    protocol::AcquireReply reply;
    std::array<protocol::BlockSpan, 2> spans;
    const size_t slots_at = sizeof(reply) + sizeof(spans);
    std::memcpy(&reply, body.data(), sizeof(reply));
    std::memcpy(spans.data(), body.data() + sizeof(reply), sizeof(spans));
    reply.block_count += blocks_before;
    spans[0].block_count += blocks_before;
    spans[1].first_block += blocks_before;
    Bytes slots(body.begin() + slots_at, body.end());
    if (page != 0) reply.flags = protocol::kJoinHasMore;
    if (page == 2) {
      reply.block_count = reply.slot_count = 0;
      slots.clear();
    }
    const bool has_spans = page == 0 || page == 3;
    if (!has_spans) reply.span_count = 0;
    body.clear();
    Append(reply, &body);
    if (has_spans) Append(spans, &body);
    body.insert(body.end(), slots.begin(), slots.end());
    return body;
  }
  static Bytes PageOfWrite(Bytes body, uint32_t page) {
    if (page == 0) return body;
    protocol::ReserveReply reply;
    std::memcpy(&reply, body.data(), sizeof(reply));
    reply.reserved = protocol::kJoinHasMore;
    if (page > 1) {
      reply.key_count = reply.slot_count = 0;
      body.resize(sizeof(reply));
    }
    std::memcpy(body.data(), &reply, sizeof(reply));
    return body;
  }
  Bytes AcquireBody(Choices& choices) {
    const uint32_t ready = choices.Below(kKeys + 1);
    Bytes body;
    Append(protocol::AcquireReply{.token = Token(),
                                  .member_mask = 3,
                                  .block_count = kKeys,
                                  .token_count = kKeys * 16,
                                  .span_count = 2,
                                  .slot_count = 2 * kKeys},
           &body);
    Append(protocol::BlockSpan{.block_count = ready}, &body);
    Append(protocol::BlockSpan{.first_block = ready,
                               .block_count = kKeys - ready,
                               .state = static_cast<protocol::SpanState>(1 + choices.Below(2))},
           &body);
    for (uint32_t i = 0; i < 2 * kKeys; ++i) Append(SlotAddress{i % kSegments, 2 * i}, &body);
    return body;
  }
  static Bytes ReserveBody(Choices& choices) {
    const uint32_t exists = choices.Below(kKeys + 1);
    const uint32_t slot_count = 2 * (kKeys - exists);
    Bytes body;
    Append(
        protocol::ReserveReply{
            .token = Token(), .member_mask = 3, .key_count = kKeys, .slot_count = slot_count},
        &body);
    for (uint32_t i = 0; i < kKeys; ++i) {
      Append(protocol::ReservedKey{.status = static_cast<uint8_t>(i < exists ? StatusCode::kExists
                                                                             : StatusCode::kOk),
                                   .commit_id = i},
             &body);
    }
    for (uint32_t i = 0; i < slot_count; ++i) {
      Append(SlotRef{.address = {i % kSegments, 2 * i}, .row = i}, &body);
    }
    return body;
  }
  static Bytes OrderBody(Choices& choices) {
    Bytes body;
    const uint32_t part_count = choices.Below(4);
    Append(protocol::WorkOrder{.order_id = 1,
                               .deadline_us = 1'000'000,
                               .device = {protocol::kDeviceSegmentFirst, 0},
                               .arena = {0, 1},
                               .length_bytes = 8192,
                               .part_count = part_count},
           &body);
    for (uint32_t i = 0; i < part_count; ++i) Append(uint64_t{100}, &body);
    return body;
  }

  // The stream, `cut` pieces of it at a time.
  void Tell(const Bytes& bytes, uint8_t cut) {
    HeapMeter meter;
    const size_t piece_bytes = cut == 0 ? 16 * kKiB : 1 + bytes.size() / (1 + cut % 8);
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const auto piece = rest.first(std::min(rest.size(), piece_bytes));
      rest = rest.subspan(piece.size());
      if (send(daemon_fd_, piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
      while (reader_.ReadOnce()) {
      }
    }
    meter.RequireAtMost(kHeapBytesMax, kHeapFactor, bytes.size());
    TakeLeases();
    Listen();
  }

  // Of requests that are done.
  void TakeLeases() {
    for (const Asked& asked : asked_) {
      if (!asked.is_blocking || !asked.request->is_done.load()) continue;
      if (asked.request->lease == nullptr || !asked.request->status.ok()) continue;
      if (asked.verb == Verb::kCommit) continue;
      const std::shared_ptr<LeaseState> lease = std::move(asked.request->lease);
      asked.request->lease = nullptr;
      if (lease->has_more) {
        pages_.push_back(lease);
        continue;
      }
      lease_request_id_ = asked.id;
      (lease->kind == LeaseState::Kind::kRead ? reads_ : writes_).push_back(lease);
    }
  }

  // [read, write or end; key; member; part]
  void Use(Choices& choices) {
    const uint8_t chosen = choices.Byte();
    const uint32_t block = choices.Below(kKeys);
    const uint32_t member = choices.Below(2);
    const uint32_t part = choices.Below(2);
    if (chosen % 4 == 0 && !reads_.empty()) {
      const ReadLease lease(reads_.back());
      Require(lease.ready_count() <= lease.block_count(), "more ready than there is");
      if (block < lease.ready_count()) JudgeSlot(lease.slot(block, member));
      (void)lease.is_part_ready(block, member, part);
      reads_.pop_back();  // and this ends it
    } else if (chosen % 4 == 1 && !writes_.empty()) {
      Write(*writes_.back(), block, member, part);
    } else if (chosen % 4 == 2 && !writes_.empty() && writes_.back().use_count() == 1) {
      WriteLease(writes_.back()).Abort();
      writes_.pop_back();
    } else if (chosen % 4 == 3) {
      for (const std::shared_ptr<LeaseState>& lease : reads_) JudgeLease(*lease);
    }
    Listen();
  }
  void Write(LeaseState& lease, uint32_t key, uint32_t member, uint32_t part) {
    if (!lease.is_reserved(key) || lease.MemberOrdinal(member) < 0) return;
    if (std::byte* const slot = lease.WriteSlot(key, member); slot != nullptr) *slot = std::byte{1};
    (void)lease.Remember({.key_index = key,
                          .member = static_cast<uint16_t>(member),
                          .part_index = static_cast<uint16_t>(part)});
  }
  // Read from its first byte to its last.
  static void JudgeSlot(std::span<const std::byte> slot) {
    if (slot.empty()) return;
    const volatile std::byte* const bytes = slot.data();
    (void)bytes[0];
    (void)bytes[slot.size() - 1];
  }
  void JudgeLease(const LeaseState& lease) {
    Require(lease.ready_count.load() <= lease.block_count &&
                lease.staying_count.load() <= lease.block_count,
            "more ready or staying than there is");
    for (const SlotAddress& slot : lease.slots) {
      if (!slot.has_bytes()) continue;
      Require(slot.page * kArenaPageBytes < attachment_->segment_bytes(slot.segment),
              "a slot outside its segment");
    }
  }

  void GiveUp(Choices& choices) {
    if (asked_.empty()) return;
    Asked& asked = asked_[choices.Byte() % asked_.size()];
    if (asked.is_blocking && requests_.table().Abandon(*asked.request)) asked.is_blocking = false;
  }

  // What the client said: the daemon takes every frame of it.
  void Listen() {
    std::array<std::byte, 4096> space;
    ssize_t count = 0;
    while ((count = recv(daemon_fd_, space.data(), space.size(), MSG_DONTWAIT)) > 0) {
      std::span<const std::byte> input(space.data(), static_cast<size_t>(count));
      while (!input.empty()) {
        terrace::Message message;
        const auto outcome = heard_.Next(&input, &message);
        Require(outcome != FrameAssembler::Outcome::kMalformed, "the client says no frames");
        if (outcome == FrameAssembler::Outcome::kNeedsMore) break;
      }
    }
  }

  const ClientOptions options_{.pending_requests_max = 16, .reply_spin_us = 0};
  client::Connection connection_{options_};
  client::ReaderRole role_;
  client::Leases leases_{connection_};
  client::PendingRequests requests_{options_, connection_.link(), role_};
  client::ArenaPins pins_{options_, connection_, role_};
  client::WorkOrders orders_{connection_, pins_};
  client::GroupTable groups_;
  client::Group* group_ = nullptr;
  client::Reader reader_{
      options_, connection_, role_, {requests_, leases_, pins_, orders_, groups_}};
  std::shared_ptr<client::Attachment> attachment_;
  int daemon_fd_ = -1, life_fd_ = -1;
  FrameAssembler heard_;
  std::vector<Asked> asked_;
  std::vector<std::shared_ptr<LeaseState>> reads_, writes_;
  std::vector<std::shared_ptr<LeaseState>> pages_;  // of Joins that are not whole
  uint64_t lease_request_id_ = 0;
  uint32_t commit_entries_ = 0;
  bool has_told_without_end_ = false;
};

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  World world;
  for (uint32_t i = 0; i < kRecordsMax && !choices.is_empty(); ++i) {
    const uint8_t operation = choices.Byte();
    Choices of_record(choices.Take(choices.Byte()));
    world.Step(operation, of_record);
  }
  return true;
}

// PROMISE: T29 frames as a client hears them
const Registration registration({"client_frames", Run, Seeds});

}  // namespace terrace::fuzz::client_frames
