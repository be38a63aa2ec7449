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
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/session_bodies.h"
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

class Conversation {
 public:
  // [which tiers there are]
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
    MeetBystander();
    for (size_t i = 0; i < kClients; ++i) Connect(i);
  }

  void Step(uint8_t operation, Choices& choices) {
    const size_t client = choices.Below(kClients);
    switch (operation % 7) {
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

  void Connect(size_t client) {
    const bool is_root = client + 1 == kClients;
    clients_[client] = world_->AttachAs(is_root ? 0 : 1000 + static_cast<uint32_t>(client));
    is_dying_[client] = false;
    for (uint32_t group = 0; group < kFuzzGroups; ++group) {
      const uint64_t self_mask = group == 0 ? 1 : 3;
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
    const auto line = world_->transport.lines.find(clients_[client]);
    const bool is_closed = line != world_->transport.lines.end() && line->second.closed.has_value();
    if (!is_closed) world_->sessions->OnHangUp(clients_[client]);
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

  // `cut`: the size of a read; 0: all at once.
  void Say(size_t client, const Bytes& bytes, uint8_t cut) {
    const SessionId session = clients_[client];
    if (is_dying_[client] || world_->transport.lines[session].closed.has_value()) {
      is_dying_[client] = true;
      return;
    }
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
    for (const SessionId session : clients_) {
      for (const FakeMessage& message : world_->transport.Take(session)) bodies_.Learn(message);
    }
    (void)world_->transport.Take(bystander_);
  }

  std::unique_ptr<sim::MemoryTier> tier_;
  std::unique_ptr<HbmTier> device_;
  std::unique_ptr<SessionHarness> world_;
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
};

// What the harness expects is meant.
class FailureEnds final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    Require(!result.failed(), result.summary());
  }
};

// A record: its operation, and the choices of it.
void PutRecord(uint8_t operation, const std::vector<uint8_t>& choices, ChoiceWriter* writer) {
  writer->Byte(operation).Byte(static_cast<uint8_t>(choices.size()));
  for (const uint8_t choice : choices) writer->Byte(choice);
}
// A request of client 0 that is right.
void PutRequest(Verb verb, std::vector<uint8_t> of_body, ChoiceWriter* writer, uint8_t client = 0) {
  std::vector<uint8_t> choices = {client, static_cast<uint8_t>(static_cast<uint8_t>(verb) - 1)};
  choices.resize(choices.size() + 6);
  choices.insert(choices.end(), of_body.begin(), of_body.end());
  PutRecord(0, choices, writer);
}
// Stored, read by another, released, and looked for by an operator.
Bytes Story(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (int i = 0; i < 3; ++i) {
    PutRequest(Verb::kAcquire, {0, 0, 0, 0, 15}, &writer, 1);
    PutRequest(Verb::kJoin, {1}, &writer);
    PutRequest(Verb::kRelease, {static_cast<uint8_t>(i)}, &writer, 1);
    PutRequest(protocol::kVerbOrderDone, {}, &writer, 1);
    PutRecord(3, {0, 10}, &writer);
  }
  PutRequest(Verb::kQuery, {}, &writer);
  PutRequest(protocol::kVerbExplain, {}, &writer);
  PutRequest(protocol::kVerbNamedPin, {0, 0, 0}, &writer, 2);
  PutRequest(protocol::kVerbEvictWhere, {}, &writer, 2);
  return writer.Take();
}
Bytes EveryVerb(uint8_t kind, uint8_t client) {
  ChoiceWriter writer;
  writer.Byte(kind);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (const VerbRow& row : VerbTable()) {
    if (row.verb != Verb::kHello) PutRequest(row.verb, {}, &writer, client);
  }
  return writer.Take();
}

// A verb of keys with each of its flags, each hint, of either group and of none.
Bytes EveryFlag(Verb verb) {
  ChoiceWriter writer;
  writer.Byte(1);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (const uint8_t group : {0, 1, 2}) {
    for (uint8_t flag = 0; flag < 7; ++flag) {
      const auto flags = static_cast<uint8_t>(1 << flag);
      PutRequest(verb, {group, 0, 0, 0, flags}, &writer, flag % 2);
      PutRequest(verb, {group, 0, 3, 2, flags, 1}, &writer, 2);
    }
    PutRequest(verb, {group, 0, 32}, &writer, 2);  // no keys
  }
  for (uint8_t hint = 0; hint < 8; ++hint) {
    for (const uint8_t value : {1, 101, 255}) {
      const auto hints = static_cast<uint8_t>(1 << hint);
      PutRequest(verb, {0, 0, 0, 0, 0, 0, hints, value, value, value, value}, &writer);
    }
  }
  return writer.Take();
}
// An operator's verb with each word of its head at several values.
Bytes EveryField(const VerbRow& row) {
  const bool has_keys = row.verb == protocol::kVerbExplain || row.verb == protocol::kVerbNamedPin;
  ChoiceWriter writer;
  writer.Byte(3);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (size_t at = 0; at < row.head_bytes && at < 200; at += 4) {
    for (const uint8_t value : {1, 2, 3, 255}) {
      std::vector<uint8_t> body(has_keys ? 3 : 0);
      for (const uint8_t choice : {uint8_t{1}, static_cast<uint8_t>(at), value}) {
        body.push_back(choice);
      }
      body.insert(body.end(), 3, value == 255 ? 255 : 0);
      PutRequest(row.verb, body, &writer, 2);
    }
  }
  return writer.Take();
}
// Leases that are joined, cancelled, aborted and committed in every way.
Bytes Leases(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  for (uint8_t way = 0; way < 8; ++way) {
    PutRequest(Verb::kReserve, {static_cast<uint8_t>(way % 2), way}, &writer);
    PutRequest(Verb::kAcquire, {static_cast<uint8_t>(way % 2), way, 0, 0, 4}, &writer, 1);
    PutRequest(Verb::kWait, {static_cast<uint8_t>(way % 2), way}, &writer, 1);
    PutRequest(Verb::kCancel, {static_cast<uint8_t>(way * 30)}, &writer, 1);
    const std::vector<uint8_t> commit = {way, way, way, way, 0, way, way, way};
    PutRequest(Verb::kCommit, commit, &writer);
    PutRequest(Verb::kAbort, {way, 3, 0, 1, way}, &writer);
    for (const uint8_t flags : {0, 1, 2, 4, 128}) {
      PutRequest(Verb::kJoin, {way, 0, way, flags, static_cast<uint8_t>(way % 3)}, &writer, 1);
    }
    PutRequest(Verb::kTouch, {way % 2 == 0 ? uint8_t{0} : uint8_t{1}, way}, &writer, 1);
    PutRequest(Verb::kRelease, {way, 16, way}, &writer, 1);
    PutRequest(protocol::kVerbOrderDone, {0, way}, &writer, 1);
    PutRecord(3, {0, 20}, &writer);
  }
  return writer.Take();
}
Bytes Groups() {
  ChoiceWriter writer;
  writer.Byte(0);
  for (uint8_t bend = 0; bend < 6; ++bend) {
    for (const uint8_t mask : {0, 1, 4, 255}) {
      PutRequest(Verb::kOpen, {1, mask, bend, 200, 200, 200, 200, 200}, &writer);
    }
  }
  return writer.Take();
}
// Frames as they are: an unknown verb, an empty page that is not the last, a page of another.
Bytes RawFrames() {
  ChoiceWriter writer;
  writer.Byte(0);
  const std::vector<std::vector<uint8_t>> frames = {
      {0, 16, 0, 0, 0, 1, 200, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 17, 0, 0, 0, 1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0,
       9, 16, 0, 0, 0, 1, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 9, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}};
  for (const std::vector<uint8_t>& frame : frames) {
    PutRecord(2, frame, &writer);
    PutRecord(4, {0, 0}, &writer);
  }
  return writer.Take();
}

Bytes Strangers() {
  ChoiceWriter writer;
  writer.Byte(0);
  for (uint8_t i = 0; i < 12; ++i) PutRecord(6, {0, 0, 0}, &writer);
  return writer.Take();
}
// [offset of Hello; what stands there]
Bytes Hellos() {
  ChoiceWriter writer;
  writer.Byte(0);
  PutRecord(6, {0, 0, 0}, &writer);
  for (const uint8_t at : {0, 4, 5, 6, 8, 12, 16}) {
    PutRecord(6, {0, 0, 1, at, 255, 255, 255, 255}, &writer);
  }
  PutRecord(6, {0, 1, 3}, &writer);
  PutRecord(6, {0, 1, 1}, &writer);
  return writer.Take();
}

std::vector<Seed> Seeds() {
  ChoiceWriter many, broken, deaths;
  many.Byte(1);
  for (const uint8_t chain : {0, 1, 2, 3}) {
    PutRequest(Verb::kReserve, {0, chain, 252}, &many);
    PutRequest(Verb::kCommit, {0, 0, 0, 1}, &many);
    PutRequest(Verb::kAcquire, {0, chain, 252, 0, 4, 0, 1, 255}, &many, 1);
  }
  broken.Byte(0);
  for (uint8_t bend = 1; bend < 5; ++bend) {
    PutRecord(0, {0, 3, bend, 20, 0, 7, 0, 0}, &broken);
    PutRecord(4, {0, 0}, &broken);
  }
  PutRecord(2, {0, 16, 0, 0, 0, 1, 18, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, &broken);
  deaths.Byte(3);
  for (const uint8_t client : {0, 1, 2}) {
    PutRequest(Verb::kReserve, {1}, &deaths, client);
    PutRecord(4, {client, client}, &deaths);
    PutRecord(3, {0, 200}, &deaths);
    PutRecord(5, {client}, &deaths);
  }
  std::vector<Seed> seeds = {{"story", Story(0)},
                             {"story_with_a_drive", Story(1)},
                             {"story_with_a_device", Story(3)},
                             {"every_verb", EveryVerb(0, 0)},
                             {"every_verb_of_root", EveryVerb(3, 2)},
                             {"many_keys", many.Take()},
                             {"broken", broken.Take()},
                             {"deaths", deaths.Take()},
                             {"leases", Leases(0)},
                             {"leases_with_a_device", Leases(3)},
                             {"groups", Groups()},
                             {"hellos", Hellos()},
                             {"strangers", Strangers()},
                             {"raw_frames", RawFrames()}};
  for (const VerbRow& row : VerbTable()) {
    const std::string number = std::to_string(static_cast<int>(row.verb));
    if (row.worker == VerbWorker::kKeys) seeds.push_back({"flags_" + number, EveryFlag(row.verb)});
    if (row.role != VerbRole::kEngine && row.worker != VerbWorker::kKeys) {
      seeds.push_back({"fields_" + number, EveryField(row)});
    }
  }
  return seeds;
}

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
