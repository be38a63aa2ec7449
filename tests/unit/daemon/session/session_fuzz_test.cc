// Valid requests, bent: whatever a client sends, the daemon neither falls nor lets a bystander feel
// it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/stride.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::test {
namespace {

using protocol::Verb;

constexpr size_t kFrames = 100'000;  // unless TERRACE_FUZZ_FRAMES says another number
constexpr uint32_t kBystanderBlocks = 10'000;
constexpr uint32_t kBlocksPerCall = 50;
constexpr size_t kSlotBytes = 4096;

class FrameBender {
 public:
  FrameBender(SessionHarness& world, uint64_t seed) : world_(world), random_(seed) {}

  uint64_t Below(uint64_t limit) { return random_() % limit; }

  // A request that was right before it was bent (one in four stays right).
  std::vector<std::byte> Next(uint32_t group) {
    const Verb verb = VerbTable()[Below(VerbTable().size())].verb;
    std::vector<std::byte> frames = world_.Frames(verb, Body(verb, group), 1 + Below(1000));
    switch (Below(8)) {
      case 0:  // anywhere
        for (uint64_t i = 1 + Below(4); i > 0; --i) {
          frames[Below(frames.size())] = static_cast<std::byte>(random_());
        }
        break;
      case 1:  // in the header
        frames[Below(16)] ^= static_cast<std::byte>(1 << Below(8));
        break;
      case 2:  // in the fixed part of the body, a count or a handle most likely
        if (frames.size() > 20) {
          const uint32_t value = static_cast<uint32_t>(Below(2) == 0 ? Below(70) : random_());
          const size_t at = 16 + Below(std::min<size_t>(frames.size() - 20, 80));
          std::memcpy(frames.data() + at, &value, sizeof(value));
        }
        break;
      case 3:  // shorter than it says
        frames.resize(1 + Below(frames.size()));
        break;
      case 4:  // followed by garbage
        for (uint64_t i = Below(40); i > 0; --i) {
          frames.push_back(static_cast<std::byte>(random_()));
        }
        break;
      case 5:  // the size of the frame, but not of what it holds
        if (uint32_t size = 16 + static_cast<uint32_t>(Below(2 * frames.size())); true) {
          std::memcpy(frames.data(), &size, sizeof(size));
          frames.resize(size);
        }
        break;
      default:
        break;
    }
    return frames;
  }

  // Tokens seen in replies come back in later requests.
  void Learn(std::span<const FakeMessage> messages) {
    for (const FakeMessage& message : messages) {
      if (message.header.verb != Verb::kAcquire && message.header.verb != Verb::kReserve) continue;
      if (message.status() != StatusCode::kOk) continue;
      tokens_[Below(tokens_.size())] = message.At<LeaseToken>();
    }
  }

 private:
  std::vector<std::byte> Body(Verb verb, uint32_t group) {
    std::vector<std::byte> body;
    const auto append = [&body](std::span<const std::byte> bytes) {
      body.insert(body.end(), bytes.begin(), bytes.end());
    };
    const LeaseToken token = tokens_[Below(tokens_.size())];
    if (verb > Verb::kUnmapped) return IntrospectionBody(verb);
    switch (verb) {
      case Verb::kHello:
        append(BytesOf(protocol::HelloRequest{}));
        break;
      case Verb::kOpen:
        append(BytesOf(protocol::OpenRequest{.name_bytes = 1, .member_count = 1}));
        append(std::as_bytes(std::span("g", 1)));
        append(BytesOf(protocol::OpenMember{.text_bytes = 6}));
        append(std::as_bytes(std::span("model=", 6)));
        break;
      case Verb::kJoin:
        append(BytesOf(protocol::JoinRequest{.token = token, .group_handle = group}));
        break;
      case Verb::kRelease:
        append(BytesOf(protocol::ReleaseRequest{.token = token}));
        break;
      case Verb::kCancel:
        append(BytesOf(protocol::CancelRequest{.request_id = 1 + Below(1000)}));
        break;
      case Verb::kTouch:
        append(BytesOf(protocol::TouchRequest{.token = Below(2) == 0 ? token : LeaseToken{}}));
        if (Below(2) == 0) append(KeysBody(verb, group));
        break;
      case Verb::kCommit: {
        const uint32_t entries = static_cast<uint32_t>(Below(20));
        append(BytesOf(protocol::CommitRequest{.token = token, .entry_count = entries}));
        for (uint32_t i = 0; i < entries; ++i) {
          append(BytesOf(protocol::CommitEntry{.key_index = static_cast<uint32_t>(Below(40)),
                                               .part_count = 1,
                                               .row = static_cast<uint32_t>(Below(600)),
                                               .segment = static_cast<uint32_t>(Below(5)),
                                               .generation = static_cast<uint32_t>(Below(3))}));
        }
        break;
      }
      case Verb::kAbort:
        append(BytesOf(protocol::AbortRequest{.token = token, .key_count = 1}));
        append(BytesOf(static_cast<uint32_t>(Below(40))));
        break;
      case Verb::kReset:
        append(BytesOf(protocol::ResetRequest{.group_handle = group}));
        break;
      case Verb::kStats:
        append(BytesOf(protocol::StatsRequest{}));
        break;
      case Verb::kList:
        append(BytesOf(protocol::ListRequest{
            .group_handle = group, .entry_count_max = 50, .cursor = Below(3)}));
        break;
      case Verb::kUnmapped:
        append(BytesOf(protocol::UnmappedRequest{.segment = static_cast<uint32_t>(Below(20))}));
        break;
      default:
        return KeysBody(verb, group);
    }
    return body;
  }

  std::vector<std::byte> IntrospectionBody(Verb verb) {
    std::vector<std::byte> body;
    const auto append = [&body](std::span<const std::byte> bytes) {
      for (const std::byte each : bytes) body.push_back(each);
    };
    if (verb == protocol::kVerbHitRate) {
      append(BytesOf(protocol::HitRateRequest{.first_row = static_cast<uint32_t>(Below(9))}));
    } else if (verb == protocol::kVerbExplain) {
      const auto keys = MakeKeys(Below(40), 1 + Below(4));
      append(BytesOf(protocol::ExplainRequest{.key_count = static_cast<uint32_t>(keys.size())}));
      append(std::as_bytes(std::span(keys)));
    } else if (verb == protocol::kVerbFsck) {
      append(BytesOf(protocol::FsckRequest{.flags = static_cast<uint32_t>(Below(5))}));
    } else {
      append(BytesOf(
          protocol::TraceRecordRequest{.action = static_cast<protocol::TraceAction>(Below(5))}));
    }
    return body;
  }

  std::vector<std::byte> KeysBody(Verb verb, uint32_t group) {
    const auto keys = MakeKeys(Below(40), 1 + Below(4));
    const uint32_t flags = static_cast<uint32_t>(Below(3) == 0 ? 1u << Below(7) : 0);
    auto body = world_.KeysBody(group, keys, flags);
    if (verb == Verb::kReserve && (flags & protocol::kReserveHasEvents) != 0) {
      body.resize(body.size() + keys.size() * sizeof(uint64_t));
    }
    return body;
  }

  SessionHarness& world_;
  std::mt19937_64 random_;
  std::array<LeaseToken, 16> tokens_;
};

// Where an Acquire's reply says that blocks lie.
std::vector<SlotAddress> SlotsOf(const FakeMessage& reply) {
  const auto head = reply.At<protocol::AcquireReply>();
  const size_t slots_at = sizeof(head) + head.span_count * sizeof(protocol::BlockSpan);
  std::vector<SlotAddress> slots((reply.body.size() - slots_at) / sizeof(SlotAddress));
  std::memcpy(slots.data(), reply.body.data() + slots_at, slots.size() * sizeof(SlotAddress));
  return slots;
}

// Shares the domain but not the Spaces. Leased all the time, its blocks stay where they are, and
// what they hold stays as it is.
class Bystander {
 public:
  explicit Bystander(SessionHarness& world)
      : world_(world), session_(world.Attach()), group_(world.Open(session_, "bystander", 2)) {}

  void Store() {
    for (uint32_t call = 0; call < kBystanderBlocks / kBlocksPerCall; ++call) {
      ASSERT_EQ(world_.StoreBlocks(session_, group_, KeysOf(call)), kBlocksPerCall);
      slots_.push_back(Acquire(call));
      ASSERT_EQ(slots_.back().size(), 2 * kBlocksPerCall);
      for (size_t i = 0; i < slots_.back().size(); ++i) {
        std::memset(world_.SlotMemory(slots_.back()[i]), ByteOf(call, i), kSlotBytes);
      }
    }
  }
  bool IsServed() {
    return world_.Call(session_, Verb::kStats, BytesOf(protocol::StatsRequest{})).status() ==
           StatusCode::kOk;
  }
  void Check() {
    for (uint32_t call = 0; call < slots_.size(); ++call) {
      const std::vector<SlotAddress> slots = Acquire(call);
      ASSERT_EQ(slots.size(), slots_[call].size());
      ASSERT_EQ(std::memcmp(slots.data(), slots_[call].data(), slots.size() * sizeof(SlotAddress)),
                0);
      for (size_t i = 0; i < slots.size(); ++i) {
        const std::string written(kSlotBytes, static_cast<char>(ByteOf(call, i)));
        ASSERT_EQ(std::memcmp(world_.SlotMemory(slots[i]), written.data(), kSlotBytes), 0)
            << "slot " << i << " of call " << call;
      }
    }
  }

 private:
  static int ByteOf(uint32_t call, size_t slot) { return static_cast<int>((call + slot) % 251); }
  std::span<const BlockKey> KeysOf(uint32_t call) const {
    return std::span(keys_).subspan(call * kBlocksPerCall, kBlocksPerCall);
  }
  std::vector<SlotAddress> Acquire(uint32_t call) {
    const FakeMessage reply = world_.CallKeys(session_, Verb::kAcquire, group_, KeysOf(call));
    EXPECT_EQ(reply.At<protocol::AcquireReply>().block_count, kBlocksPerCall);
    return SlotsOf(reply);
  }

  SessionHarness& world_;
  const SessionId session_;
  const uint32_t group_;
  const std::vector<BlockKey> keys_ = MakeKeys(kBystanderBlocks, 99);
  std::vector<std::vector<SlotAddress>> slots_;
};

// PROMISE: T29 bent frames
// PROMISE: T30 bent frames
TEST(SessionFuzz, BentFramesHurtNobodyElse) {
  const char* chosen = std::getenv("TERRACE_FUZZ_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 20'240'229;
  SCOPED_TRACE("TERRACE_FUZZ_SEED=" + std::to_string(seed));
  const char* asked = std::getenv("TERRACE_FUZZ_FRAMES");
  const size_t frame_count =
      asked != nullptr ? std::strtoull(asked, nullptr, 10) : kFrames / Stride();
  SessionHarness world({.domains = 2, .segments = 48, .lease_ttl_ms = 60'000});
  FrameBender bender(world, seed);
  Bystander bystander(world);
  bystander.Store();

  SessionId session = 0;
  uint32_t group = 0;
  size_t connections = 0, served = 0;
  for (size_t i = 0; i < frame_count; ++i) {
    if (session == 0) {
      session = world.Attach();
      group = world.Open(session, "g");
      ++connections;
    }
    const auto bytes = bender.Next(group);
    const size_t cut = bender.Below(4) == 0 ? bender.Below(bytes.size()) : 0;
    world.sessions->OnBytes(session, std::span(bytes).first(cut));
    world.Deliver(session, std::span(bytes).subspan(cut));
    const auto replies = world.transport.Take(session);
    bender.Learn(replies);
    for (const FakeMessage& reply : replies) served += reply.status() == StatusCode::kOk ? 1 : 0;
    const bool is_closed = world.transport.lines[session].closed.has_value();
    if (is_closed || bender.Below(200) == 0) {
      if (!is_closed) world.sessions->OnHangUp(session);
      world.sessions->OnProofOfDeath(session);
      world.transport.lines.erase(session);
      session = 0;
    }
    if (i % 1000 == 0) {
      world.AdvanceTime(1'000'000);
      world.store->CheckInvariants(CheckScope::kIncremental);
      ASSERT_TRUE(bystander.IsServed());
    }
  }
  EXPECT_GT(connections, frame_count / 100) << "bent frames were meant to be refused";
  EXPECT_GT(served, frame_count / 15) << "what was not bent, or harmlessly, was meant to be served";
  world.store->CheckInvariants(CheckScope::kFull);
  bystander.Check();
}

}  // namespace
}  // namespace terrace::test
