// Whole conversations with the daemon's sessions over a real store: an input is a script of
// records, each with an operation, a length and that many choices. Requests are of every verb,
// right or broken, cut into frames and reads anywhere; clients say nothing, too much, go and die;
// time passes. A bystander of the same domain, who has a lease, must not feel any of it; no turn,
// answer or allocation is larger than what was said allows; and the store's invariants hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/session_bodies.h"
#include "fuzz/session_hooks.h"
#include "fuzz/session_seeds.h"
#include "sim/memory_tier.h"
#include "terrace/protocol_device.h"
#include "tiers/hbm/hbm_tier.h"

namespace terrace::fuzz::session {

using protocol::Verb;
using test::BytesOf;
using test::FakeMessage;
using test::SessionHarness;

constexpr size_t kClients = 3;  // the last one is root
constexpr uint32_t kRecordsMax = 200;
constexpr uint32_t kBystandersKeys = 3;
constexpr uint32_t kLeaseTtlMs = 60'000;
constexpr uint64_t kTimeUnitUs = 100'000;  // of a choice: 25 s at most, within a lease's life
// What one operation may cost. A message has 16 bytes at least; the longest answers to the
// shortest questions are a List's and an OperatorLog's.
constexpr uint64_t kTurnsMax = 96;
constexpr uint64_t kBytesOfTurn = 16;
constexpr uint64_t kWorkOfTurnMax = 8 * protocol::kBlocksPerTurnMax;
constexpr uint64_t kAnswerBytesMax = 256 * kKiB;
constexpr uint64_t kAnswerFactor = 4'096;
constexpr uint64_t kHeapBytesMax = 16 * kMiB;
constexpr size_t kStrangersMax = 12;  // more than may be there at once
constexpr size_t kStrangersBytesMax = 4 * kKiB;
constexpr uint32_t kSpokenMax = 12;  // requests of one record
constexpr uint64_t kStuckUnitBytes = 128 * kKiB;
constexpr size_t kSummariesMax = 64;

class Conversation {
 public:
  // [which tiers there are; what else of a daemon; whether few requests may be pending]
  explicit Conversation(uint8_t kind) {
    if ((kind & 1) != 0) {
      tier_ =
          std::make_unique<sim::MemoryTier>(sim::MemoryTier::Options{.capacity_bytes = 4 * kMiB});
    }
    if ((kind & 2) != 0) {
      device_ = std::make_unique<HbmTier>(HbmTier::Options{
          .slab_bytes = kSegmentBytesMin,
          .slab_count = 1,
          .locate = [](const std::byte*) { return SlotAddress{.segment = 0, .page = 0}; },
          .now_us = [this] { return world_ == nullptr ? 0 : world_->clock.NowUs(); }});
    }
    world_ =
        std::make_unique<SessionHarness>(SessionHarness::Options{.domains = 2,
                                                                 .segments = 3,
                                                                 .sessions_max = 32,
                                                                 .lease_ttl_ms = kLeaseTtlMs,
                                                                 .blocks_max = 4096,
                                                                 .output_bytes_max = 8 * kMiB,
                                                                 .buffers_bytes_max = 16 * kMiB,
                                                                 .tier = tier_.get(),
                                                                 .device = device_.get()});
    hooks_ = std::make_unique<SessionHooks>(
        *world_,
        SessionHooks::Options{.has_records = (kind & 4) != 0, .has_names = (kind & 8) != 0});
    if ((kind & 16) != 0) {
      world_->sessions->SetLimits({.domains = {},
                                   .pending_per_session_max = 2,
                                   .output_bytes_max = 8 * kMiB,
                                   .buffers_bytes_max = 16 * kMiB,
                                   .slow_request_ms = 1});
    }
    MeetBystander();
    for (size_t i = 0; i < kClients; ++i) Connect(i);
  }

  void Step(uint8_t operation, Choices& choices) {
    const size_t client = choices.Below(kClients);
    switch (operation % 12) {
      case 0:
      case 1:
        Say(client, Request(choices), choices.Byte());
        break;
      case 2: {
        const std::span<const std::byte> raw = choices.Rest();
        Say(client, {raw.begin(), raw.end()}, 0);
        break;
      }
      case 3:
        world_->AdvanceTime(choices.Byte() * kTimeUnitUs);
        Renew();
        break;
      case 4:
        Leave(client, choices);
        break;
      case 5:
        if (!is_dying_[client] || dying_.size() == kClients) break;
        dying_.push_back(clients_[client]);
        Connect(client);
        break;
      case 6:
        MeetStranger(choices);
        break;
      case 7:
        Say(client, Together(choices), choices.Byte());
        break;
      case 8:
        SayAtOnce(client, choices);
        break;
      case 9:
        SayWithoutEnd(client, choices);
        break;
      case 10:
        StopReading(client, choices);
        break;
      case 11:
        hooks_->Answer(choices);
        JudgeSummaries();
        break;
    }
    Listen();
    world_->store->CheckInvariants(CheckScope::kIncremental);
  }

  // Everybody but the bystander goes.
  void End() {
    for (const SessionId session : strangers_) dying_.push_back(session);
    for (size_t i = 0; i < kClients; ++i) {
      if (!is_dying_[i]) HangUp(i);
      dying_.push_back(clients_[i]);
    }
    for (const SessionId session : dying_) world_->sessions->OnProofOfDeath(session);
    hooks_->End();
    Renew();
    world_->AdvanceTime(kTimeUnitUs);
    Listen();
    JudgeBystander();
    world_->sessions->OnHangUp(bystander_);
    world_->sessions->OnProofOfDeath(bystander_);
    for (int i = 0; i < 4; ++i) world_->AdvanceTime(kLeaseTtlMs * uint64_t{1'000});
    world_->store->CheckInvariants(CheckScope::kFull);
    for (uint32_t domain = 0; domain < 2; ++domain) {
      const DomainStats stats = world_->Stats(domain);
      Require(stats.session_count == 0 && stats.lease_count == 0 && stats.reserved_count == 0 &&
                  stats.fenced_slot_count == 0,
              "everybody has gone, and something is left of them");
    }
  }

 private:
  // Opens a group of its own, stores blocks in it, and holds them.
  void MeetBystander() {
    bystander_ = world_->Attach();
    its_group_ = world_->Open(bystander_, "bystander", 2);
    its_keys_ = test::MakeKeys(kBystandersKeys, 99);
    Require(world_->StoreBlocks(bystander_, its_group_, its_keys_) == kBystandersKeys,
            "the bystander's blocks cannot be stored");
    its_lease_ = Acquire();
    for (const SlotAddress& slot : its_lease_.slots) {
      std::byte* const memory = world_->SlotMemory(slot);
      for (size_t i = 0; i < kArenaPageBytes; ++i) memory[i] = Pattern(slot, i);
    }
  }
  static std::byte Pattern(const SlotAddress& slot, size_t index) {
    return static_cast<std::byte>(slot.page * 31 + index * 7 + index / 256);
  }

  struct Lease {
    LeaseToken token;
    std::vector<SlotAddress> slots;
  };
  Lease Acquire() {
    const FakeMessage answer = world_->CallKeys(bystander_, Verb::kAcquire, its_group_, its_keys_);
    const auto head = answer.At<protocol::AcquireReply>();
    Require(head.block_count == kBystandersKeys && head.slot_count == 2 * kBystandersKeys,
            "the bystander misses a block that it holds");
    Lease lease{.token = head.token, .slots = {}};
    const size_t slots_at = sizeof(head) + head.span_count * sizeof(protocol::BlockSpan);
    for (uint32_t i = 0; i < head.slot_count; ++i) {
      lease.slots.push_back(answer.At<SlotAddress>(slots_at + i * sizeof(SlotAddress)));
    }
    return lease;
  }
  void Renew() {
    const FakeMessage answer = world_->Call(
        bystander_, Verb::kTouch, BytesOf(protocol::TouchRequest{.token = its_lease_.token}));
    Require(answer.status() == StatusCode::kOk, "the bystander's lease is gone");
  }
  void JudgeBystander() {
    const auto& line = world_->transport.lines[bystander_];
    Require(!line.closed.has_value(), "the bystander's connection was closed");
    Require(Acquire().slots == its_lease_.slots, "the bystander's blocks are somewhere else");
    for (const SlotAddress& slot : its_lease_.slots) {
      const std::byte* const memory = world_->SlotMemory(slot);
      for (size_t i = 0; i < kArenaPageBytes; ++i) {
        Require(memory[i] == Pattern(slot, i), "the bystander's bytes are others");
      }
    }
  }

  static uint32_t UidOf(size_t client) {
    return client + 1 == kClients ? 0
                                  : SessionHooks::kNamedWriterUid + static_cast<uint32_t>(client);
  }
  bool IsReader(size_t client) const { return hooks_->IsReader(UidOf(client)); }
  void Connect(size_t client) {
    clients_[client] = world_->ConnectAs(UidOf(client), 0);
    protocol::HelloRequest hello;
    if (IsReader(client)) hello.flags = protocol::kHelloReader;
    Require(
        world_->Call(clients_[client], Verb::kHello, BytesOf(hello)).status() == StatusCode::kOk,
        "a client is not welcome");
    Require(!IsReader(client) || world_->transport.lines[clients_[client]].attached ==
                                     Transport::Attach::kReadersArenaAndLife,
            "a reader is given memory to write");
    is_dying_[client] = false;
    for (uint32_t group = 0; group < kFuzzGroups; ++group) {
      const uint64_t self_mask = group == 1 ? 3 : 1;
      const FakeMessage opened =
          world_->Call(clients_[client], Verb::kOpen, OpenBody(FuzzGroup(group), self_mask));
      // Their name or number may be another's by now.
      (void)opened;
    }
    if (device_ == nullptr) return;
    protocol::DeviceAttachRequest request;
    std::memcpy(request.device, "test", 4);
    bodies_.Learn(world_->Call(clients_[client], protocol::kVerbDeviceAttach, BytesOf(request)));
  }
  void HangUp(size_t client) {
    auto& line = world_->transport.lines[clients_[client]];
    line.stuck_bytes = 0;  // nobody is left to read it
    if (!line.closed.has_value()) world_->sessions->OnHangUp(clients_[client]);
    is_dying_[client] = true;
  }
  void Leave(size_t client, Choices& choices) {
    if (!is_dying_[client]) HangUp(client);
    if (choices.Below(2) == 1) return;  // dies later
    world_->sessions->OnProofOfDeath(clients_[client]);
    world_->Settle();
    world_->transport.lines.erase(clients_[client]);
    Connect(client);
  }

  // Somebody who has not said Hello, and stays. [Says it or anything; the request's]
  void MeetStranger(Choices& choices) {
    if (strangers_.size() == kStrangersMax) return;
    const SessionId session = world_->Connect();
    strangers_.push_back(session);
    const Bytes said = choices.Below(2) == 0
                           ? Frames(Verb::kHello, SessionBodies::Hello(choices), 0, 1)
                           : Request(choices);
    protocol::FrameHeader header;
    std::memcpy(&header, said.data(), std::min(said.size(), sizeof(header)));
    (void)world_->TakeTurns();
    HeapMeter meter;
    world_->Deliver(session, said);
    meter.RequireAtMost(kHeapBytesMax, kAnswerFactor, said.size());
    Require(world_->TakeTurns().turns <= kTurnsMax + said.size() / kBytesOfTurn,
            "more turns than a stranger said");
    const auto& line = world_->transport.lines[session];
    Require(line.sent.size() <= kStrangersBytesMax, "a stranger is told more than a welcome");
    Require(header.verb == Verb::kHello || line.attached == Transport::Attach::kNothing,
            "memory is given to somebody who has not said Hello");
  }

  // [verb; how it is bent, and where; page; request id; the body's]
  Bytes Request(Choices& choices) {
    const auto table = VerbTable();
    const VerbRow& row = table[choices.Byte() % table.size()];
    const uint8_t bend = choices.Byte();
    const uint16_t place = choices.Number<uint16_t>();
    const uint16_t page_bytes = choices.Number<uint16_t>();
    const uint8_t request_id = choices.Byte();
    const Bytes body = bodies_.Make(row, choices);
    Bytes frames = Frames(row.verb, body, page_bytes, request_id == 0 ? ++next_id_ : request_id);
    const size_t at = place % frames.size();
    switch (bend % 8) {
      case 1:
        frames[at] ^= static_cast<std::byte>(bend);
        break;
      case 2:
        frames[at % sizeof(protocol::FrameHeader)] = static_cast<std::byte>(bend);
        break;
      case 3:
        frames.resize(at + 1);
        break;
      case 4:
        frames.insert(frames.end(), at % 64, static_cast<std::byte>(bend));
        break;
      default:
        break;
    }
    return frames;
  }
  // Cut into frames of `page_bytes`; 0: as few as there can be.
  static Bytes Frames(Verb verb, std::span<const std::byte> body, uint16_t page_bytes,
                      uint64_t request_id) {
    const size_t page_bytes_max = page_bytes == 0 ? protocol::kFrameBytesMax / 2 : 16 + page_bytes;
    Bytes frames;
    do {
      const std::span<const std::byte> page = body.first(std::min(body.size(), page_bytes_max));
      body = body.subspan(page.size());
      const protocol::FrameHeader header{
          .frame_bytes = static_cast<uint32_t>(sizeof(header) + page.size()),
          .verb = verb,
          .flags = body.empty() ? uint16_t{0} : protocol::kFrameMore,
          .request_id = request_id};
      const auto header_bytes = BytesOf(header);
      frames.insert(frames.end(), header_bytes.begin(), header_bytes.end());
      frames.insert(frames.end(), page.begin(), page.end());
    } while (!body.empty());
    return frames;
  }

  bool IsThere(size_t client) {
    const bool is_closed = world_->transport.lines[clients_[client]].closed.has_value();
    is_dying_[client] = is_dying_[client] || is_closed;
    return !is_dying_[client];
  }
  // Several requests, one behind the other. [each: its length; the request]
  Bytes Together(Choices& choices) {
    Bytes all;
    for (uint32_t i = 0; i < kSpokenMax && !choices.is_empty(); ++i) {
      Choices of_request(choices.Take(choices.Byte()));
      const Bytes request = Request(of_request);
      all.insert(all.end(), request.begin(), request.end());
    }
    return all;
  }
  // Several say something before any of it is worked off, and one may go in the midst of it.
  // [whether `leaver` goes; each: client; length; the request]
  void SayAtOnce(size_t leaver, Choices& choices) {
    const bool is_left = choices.Below(2) == 1;
    std::vector<std::pair<SessionId, Bytes>> said;
    uint64_t said_bytes = 0;
    for (uint32_t i = 0; i < kSpokenMax && !choices.is_empty(); ++i) {
      const size_t client = choices.Below(kClients);
      Choices of_request(choices.Take(choices.Byte()));
      if (!IsThere(client)) continue;
      said.emplace_back(clients_[client], Request(of_request));
      said_bytes += said.back().second.size();
    }
    (void)world_->TakeTurns();
    HeapMeter meter;
    for (const auto& [session, bytes] : said) (void)world_->sessions->OnBytes(session, bytes);
    if (is_left && IsThere(leaver)) {
      HangUp(leaver);
      world_->transport.lines[clients_[leaver]].sent.clear();  // it may be cut anywhere
    }
    world_->Settle();
    meter.RequireAtMost(kHeapBytesMax, kAnswerFactor, said_bytes);
    Require(world_->TakeTurns().turns <= kTurnsMax + said_bytes / kBytesOfTurn,
            "more turns than were said");
  }
  // A message that is longer than any may be, behind a request or none. [kWithoutEnd; the request]
  void SayWithoutEnd(size_t client, Choices& choices) {
    if (choices.Byte() != kWithoutEnd) return;
    if (!IsThere(client) || std::exchange(has_said_without_end_, true)) return;
    const SessionId session = clients_[client];
    if (!choices.is_empty()) (void)world_->sessions->OnBytes(session, Request(choices));
    Bytes page(protocol::kFrameBytesMax);
    const protocol::FrameHeader header{.frame_bytes = protocol::kFrameBytesMax,
                                       .verb = Verb::kStats,
                                       .flags = protocol::kFrameMore,
                                       .request_id = 1};
    std::memcpy(page.data(), &header, sizeof(header));
    const auto& line = world_->transport.lines[session];
    for (uint64_t said_bytes = 0; said_bytes <= protocol::kMessageBytesMax + page.size();
         said_bytes += page.size()) {
      if (!line.closed.has_value()) (void)world_->sessions->OnBytes(session, page);
    }
    world_->Settle();
    Require(line.closed.has_value(), "a message without an end is heard to its end");
  }
  // What it is sent from now on does not leave. [0: it reads again; how much there is]
  void StopReading(size_t client, Choices& choices) {
    if (!IsThere(client)) return;
    uint64_t& stuck_bytes = world_->transport.lines[clients_[client]].stuck_bytes;
    stuck_bytes = choices.Byte() * kStuckUnitBytes;
    if (stuck_bytes == 0) world_->sessions->OnSent(clients_[client]);
  }

  // `cut`: the size of a read; 0: all at once.
  void Say(size_t client, const Bytes& bytes, uint8_t cut) {
    const SessionId session = clients_[client];
    if (!IsThere(client)) return;
    (void)world_->TakeTurns();
    HeapMeter meter;
    const size_t piece_bytes = cut == 0 ? bytes.size() + 1 : 1 + bytes.size() / (1 + cut % 8);
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const auto piece = rest.first(std::min(rest.size(), piece_bytes));
      rest = rest.subspan(piece.size());
      world_->Deliver(session, piece);
      if (world_->transport.lines[session].closed.has_value()) break;
    }
    const auto count = world_->TakeTurns();
    meter.RequireAtMost(kHeapBytesMax, kAnswerFactor, bytes.size());
    Require(count.turns <= kTurnsMax + bytes.size() / kBytesOfTurn, "more turns than were said");
    Require(count.work_max <= kWorkOfTurnMax, "a turn of more work than any may be");
    Require(world_->transport.lines[session].sent.size() <=
                kAnswerBytesMax + kAnswerFactor * bytes.size(),
            "an answer that is longer than what was asked");
  }
  // What the daemon said. Take() looks at its frames.
  void Listen() {
    for (size_t client = 0; client < kClients; ++client) {
      auto& line = world_->transport.lines[clients_[client]];
      // Who is not waited for is cut off anywhere.
      const bool is_cut_off =
          line.closed == CloseReason::kSlowReader || line.closed == CloseReason::kNoBuffers;
      if (is_cut_off) line.sent.clear();
      for (const FakeMessage& message : world_->transport.Take(clients_[client])) {
        Require(!IsReader(client) || message.header.verb != Verb::kReserve ||
                    message.status() != StatusCode::kOk,
                "a reader is given slots to write");
        bodies_.Learn(message);
      }
    }
    (void)world_->transport.Take(bystander_);
  }
  // What `terrace status` and the log say of sessions.
  void JudgeSummaries() {
    const auto rows = world_->sessions->Summaries(0, kSummariesMax);
    const auto there = std::ranges::count(rows, false, &SessionSummary::is_hung_up);
    Require(there == static_cast<ptrdiff_t>(world_->Stats().session_count),
            "another number of sessions than there are");
    Require(world_->sessions->Summaries(0, 1).size() == 1, "more sessions than were asked for");
    for (const SessionSummary& row : rows) {
      PeerIdentity peer;
      std::string name;
      Require(world_->sessions->Describe(row.id, &peer, &name) && peer.uid == row.peer.uid &&
                  name == row.client_name && row.is_reader == hooks_->IsReader(peer.uid),
              "a session is told of in two ways");
    }
    PeerIdentity peer;
    std::string name;
    Require(!world_->sessions->Describe(0, &peer, &name), "a session that is none is told of");
  }

  std::unique_ptr<sim::MemoryTier> tier_;
  std::unique_ptr<HbmTier> device_;
  std::unique_ptr<SessionHarness> world_;
  std::unique_ptr<SessionHooks> hooks_;
  SessionBodies bodies_;
  std::array<SessionId, kClients> clients_{};
  std::array<bool, kClients> is_dying_{};
  std::vector<SessionId> dying_;  // others have taken their places
  std::vector<SessionId> strangers_;
  SessionId bystander_ = 0;
  uint32_t its_group_ = 0;
  std::vector<BlockKey> its_keys_;
  Lease its_lease_;
  uint64_t next_id_ = 1'000;
  bool has_said_without_end_ = false;
};

// What the harness expects is meant.
class FailureEnds final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    Require(!result.failed(), result.summary());
  }
};

bool Run(std::span<const std::byte> input) {
  static const bool is_heard = [] {
    testing::UnitTest::GetInstance()->listeners().Append(new FailureEnds);
    return true;
  }();
  Require(is_heard, "what the harness expects is meant");
  Choices choices(input);
  Conversation conversation(choices.Byte());
  for (uint32_t i = 0; i < kRecordsMax && !choices.is_empty(); ++i) {
    const uint8_t operation = choices.Byte();
    Choices of_record(choices.Take(choices.Byte()));
    conversation.Step(operation, of_record);
  }
  conversation.End();
  return true;
}

// PROMISE: T29 whole conversations with sessions, of all verbs
const Registration registration({"session", Run, Seeds});

}  // namespace terrace::fuzz::session
