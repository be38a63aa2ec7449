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
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/core/commit.h"
#include "client/core/pending_requests.h"
#include "client/core/reader.h"
#include "client/lease/leases.h"
#include "client/session/group.h"
#include "daemon/session/frame_codec.h"
#include "fuzz/fuzz.h"
#include "small_space.h"
#include "terrace/protocol_device.h"

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
    switch (operation % 7) {
      case 0:
        return Ask(choices);
      case 1:
      case 2:
        return Tell(Message(choices), choices.Byte());
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
    }
  }

 private:
  struct Asked {
    Request* request = nullptr;
    uint64_t id = 0;
    Verb verb = Verb::kHello;
    bool is_blocking = true;  // and not given up
  };

  // [verb; flags; blocking or not]
  void Ask(Choices& choices) {
    // Nothing can be sent after the end: whoever asks then withdraws it at once.
    if (asked_.size() == kRequestsMax || !connection_.is_connected()) return;
    const Verb verb = kVerbs[choices.Below(std::size(kVerbs))];
    const uint32_t flags = choices.Byte() * 2 & ~protocol::kReserveHasEvents;
    const bool is_async = choices.Below(2) == 1 && verb != Verb::kCommit;
    if (verb == Verb::kCommit && writes_.empty()) return;
    Request& request = *requests_.table().Take();
    request.connection = kConnection;
    request.deadline_us = client::kNever;
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
      BuildCommit(request, &message);
      commit_entries_ = request.asked.entry_count;
    }
    requests_.table().MakePending(request);
    asked_.push_back({&request, request.id, verb, !is_async});
  }

  // [which request or news; status; patches; length; page; the body's]
  Bytes Message(Choices& choices) {
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
    if (page == 0) return Replied(verb, id, status, body);
    return Frames(verb, id, status, body, page);
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
        return choices.Below(2) == 0 ? AcquireBody(choices) : ReserveBody(choices);
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
      if (lease->has_more) continue;
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
  uint64_t lease_request_id_ = 0;
  uint32_t commit_entries_ = 0;
};

void PutRecord(uint8_t operation, const std::vector<uint8_t>& choices, ChoiceWriter* writer) {
  writer->Byte(operation).Byte(static_cast<uint8_t>(choices.size()));
  for (const uint8_t choice : choices) writer->Byte(choice);
}

Bytes Conversation(uint8_t page, uint8_t cut) {
  ChoiceWriter writer;
  const auto tell = [&](uint8_t whom, std::vector<uint8_t> of_body) {
    std::vector<uint8_t> choices = {whom, 0, page, 0};
    choices.insert(choices.end(), of_body.begin(), of_body.end());
    choices.insert(choices.end(), {0, cut});
    PutRecord(1, choices, &writer);
  };
  PutRecord(0, {0, protocol::kAcquireByParts / 2}, &writer);
  tell(0, {2, 0});                // an Acquire, two ready
  tell(130, {2, 0, 0, 1, 0, 0});  // a part
  tell(130, {2, 1, 0, 0, 0, 1});  // the rest
  PutRecord(4, {3}, &writer);
  PutRecord(4, {0, 1}, &writer);
  PutRecord(0, {1}, &writer);
  tell(1, {0});  // a Reserve
  PutRecord(4, {1}, &writer);
  PutRecord(0, {3}, &writer);
  tell(2, {});     // its Commit
  tell(131, {});   // revoked
  tell(132, {0});  // a segment
  tell(128, {1});  // an order
  PutRecord(6, {}, &writer);
  return writer.Take();
}

std::vector<Seed> Seeds() {
  ChoiceWriter every, raw;
  for (uint8_t verb = 0; verb < 8; ++verb) PutRecord(0, {verb, 0, verb}, &every);
  for (uint8_t verb = 0; verb < 8; ++verb) PutRecord(1, {verb}, &every);
  PutRecord(5, {0}, &every);
  PutRecord(0, {6}, &raw);
  PutRecord(3, {32, 0, 0, 0, 1, 1, 0, 0, 15, 0, 1, 0, 0, 0, 0, 0, 77, 0, 0, 0}, &raw);
  return {{"conversation", Conversation(0, 0)},
          {"conversation_in_pages", Conversation(40, 3)},
          {"every_verb", every.Take()},
          {"raw", raw.Take()}};
}

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
