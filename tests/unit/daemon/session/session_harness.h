// Sessions over a real Store, with the world around them in the test's hand: virtual time, seeded
// randomness, heap memory for arenas, and a transport that keeps what was sent.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/session.h"
#include "daemon/store/store.h"
#include "sim/memory_tier.h"
#include "terrace/protocol.h"
#include "tiers/arena/slot_table.h"

namespace terrace::test {

inline constexpr uint64_t kBootId = 0xb007;

class VirtualClock : public Clock {
 public:
  uint64_t NowUs() const override { return now_us_; }
  uint64_t UnixSeconds() const override { return 1'700'000'000 + now_us_ / kUsPerSecond; }
  void Advance(uint64_t us) { now_us_ += us; }

 private:
  uint64_t now_us_ = 1'000'000;
};

class SeededRandom : public Random {
 public:
  uint64_t Next() override { return random_(); }

 private:
  std::mt19937_64 random_{42};
};

struct FakeMessage {
  protocol::FrameHeader header;
  protocol::ReplyPrefix prefix;
  std::vector<std::byte> body;

  StatusCode status() const { return static_cast<StatusCode>(prefix.status); }
  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  template <typename T>
  T At(size_t offset_bytes = 0) const {
    T value{};
    if (offset_bytes + sizeof(T) <= body.size()) {
      std::memcpy(&value, body.data() + offset_bytes, sizeof(T));
    }
    return value;
  }
};

class FakeTransport : public Transport {
 public:
  struct Line {
    std::vector<std::byte> sent;
    Attach attached = Attach::kNothing;
    uint32_t sends = 0;
    uint32_t resumes = 0;
    std::optional<CloseReason> closed;
    bool is_forgotten = false;
    uint64_t stuck_bytes = 0;  // as below, of this client alone
  };

  uint64_t Send(SessionId session, std::span<const std::byte> bytes, Attach attach) override;
  uint64_t unsent_bytes() const override;
  uint64_t unsent_bytes_of(SessionId session) const override;
  void ResumeInput(SessionId session) override { ++lines[session].resumes; }
  void Close(SessionId session, CloseReason reason) override { lines[session].closed = reason; }
  void Forget(SessionId session) override { lines[session].is_forgotten = true; }

  // The whole messages sent to `session` since the last call. Fails the test at a cut message.
  std::vector<FakeMessage> Take(SessionId session);

  std::map<SessionId, Line> lines;
  uint64_t stuck_bytes = 0;  // what every Send answers: a client that does not read
};

class SessionHarness {
 public:
  struct Options {
    uint32_t domains = 1;
    uint32_t segments = 16;  // of 2 MiB, per domain
    uint32_t segments_spare = 1;
    uint32_t sessions_max = 64;
    uint32_t strangers_max = 8;
    uint32_t lease_ttl_ms = 30'000;
    uint32_t blocks_max = 1 << 19;
    uint64_t output_bytes_max = 32 * kMiB;
    uint64_t buffers_bytes_max = 512 * kMiB;
    sim::MemoryTier* tier = nullptr;  // below the first domain
    HbmTier* device = nullptr;        // of the first domain, named "test"
    AbsentPlaces* absent_places = nullptr;
  };
  SessionHarness() : SessionHarness(Options()) {}
  explicit SessionHarness(const Options& options);
  ~SessionHarness();

  // A new connection; `Attach` has said Hello too and taken its reply.
  SessionId Connect(uint32_t domain_index = 0);
  SessionId ConnectAs(uint32_t uid, uint32_t domain_index);
  SessionId Attach(uint32_t domain_index = 0);
  SessionId AttachAs(uint32_t uid);
  // Opens the group `name` of `members` members of a slot of `parts` times 4 KiB; 0 if refused.
  // Its own members are those of self_mask.
  uint32_t Open(SessionId session, const std::string& name, uint32_t members = 1,
                uint64_t self_mask = ~uint64_t{0}, uint32_t parts = 1);

  // Frames for one message.
  std::vector<std::byte> Frames(protocol::Verb verb, std::span<const std::byte> body,
                                uint64_t request_id);
  std::vector<std::byte> KeysBody(uint32_t group_handle, std::span<const BlockKey> keys,
                                  uint32_t flags = 0, const protocol::Hints& hints = {});
  // Delivers bytes as one read, works off what is left, and settles the world's side jobs.
  void Deliver(SessionId session, std::span<const std::byte> bytes);
  // One request and its reply.
  FakeMessage Call(SessionId session, protocol::Verb verb, std::span<const std::byte> body);
  FakeMessage CallKeys(SessionId session, protocol::Verb verb, uint32_t group_handle,
                       std::span<const BlockKey> keys, uint32_t flags = 0);
  // Reserve and commit; the number of blocks sealed.
  struct StoreHints {
    protocol::Hints reserve, commit;
  };
  uint32_t StoreBlocks(SessionId session, uint32_t group_handle, std::span<const BlockKey> keys,
                       const StoreHints& hints);
  uint32_t StoreBlocks(SessionId session, uint32_t group_handle, std::span<const BlockKey> keys) {
    return StoreBlocks(session, group_handle, keys, {});
  }

  // Runs populated segments, checksums and due timers until nothing is left.
  void Settle();
  void AdvanceTime(uint64_t us);
  DomainStats Stats(uint32_t domain_index = 0) const { return store->Stats()[domain_index]; }
  // What a client of the domain finds there. REQUIRES: the address is of its arena.
  std::byte* SlotMemory(const SlotAddress& address, uint32_t domain_index = 0);
  // Turns since the last call, and the most that one of them did, in blocks: who bounds work asks.
  struct TurnCount {
    uint64_t turns = 0;
    uint64_t work_max = 0;
  };
  TurnCount TakeTurns() { return std::exchange(turn_count_, {}); }

  VirtualClock clock;
  SeededRandom random;
  FakeTransport transport;
  std::unique_ptr<SessionTable> sessions;
  std::unique_ptr<Store> store;

 private:
  void SayHello(SessionId session);
  class HeapArena;
  class QueuedOffload;

  uint32_t StoreOnce(SessionId session, uint32_t group_handle, std::span<const BlockKey> keys,
                     const StoreHints& hints);

  std::vector<std::unique_ptr<HeapArena>> arenas_;
  std::vector<std::unique_ptr<std::byte[]>> slot_tables_;
  std::unique_ptr<QueuedOffload> offload_;
  sim::MemoryTier* tier_ = nullptr;
  SessionId next_session_ = 1000;
  uint64_t next_request_ = 1;
  TurnCount turn_count_;
};

std::vector<BlockKey> MakeKeys(size_t count, uint64_t seed);

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

}  // namespace terrace::test
