// Seams of a Store that a benchmark drives alone: time stands still or is set, nothing is hashed,
// mapped or told; and the group of one small Space that it holds.
#pragma once

#include <vector>

#include "daemon/block/seams.h"
#include "daemon/store/store.h"

namespace terrace {

class NoClock final : public Clock {
 public:
  uint64_t NowUs() const override { return 1'000'000; }
  uint64_t UnixSeconds() const override { return 1'700'000'000; }
};
class StepClock final : public Clock {
 public:
  uint64_t NowUs() const override { return now_us; }
  uint64_t UnixSeconds() const override { return 1'700'000'000 + now_us / kUsPerSecond; }
  uint64_t now_us = 1'000'000;
};
class NoRandom final : public Random {
 public:
  uint64_t Next() override { return state_ = state_ * 6364136223846793005 + 1442695040888963407; }

 private:
  uint64_t state_ = 1;
};
class NoOffload final : public Offload {
 public:
  Status Submit(ChecksumJob) override { return Status(StatusCode::kBusy); }
};
class NoArena final : public ArenaMemory {
 public:
  std::byte* SegmentBase(uint32_t) override { return nullptr; }
  void BeginPopulate(uint32_t) override {}
  void BeginPunch(uint32_t) override {}
};
// Segments that are wanted, until the benchmark has them.
class QueuedArena final : public ArenaMemory {
 public:
  std::byte* SegmentBase(uint32_t) override { return nullptr; }
  void BeginPopulate(uint32_t segment) override { wanted.push_back(segment); }
  void BeginPunch(uint32_t) override {}
  std::vector<uint32_t> wanted;
};
class NoListener final : public StoreListener {
 public:
  void OnCompletion(SessionId, uint64_t, Status, const protocol::Completion&) override {}
  void OnWaitDone(SessionId, uint64_t, Status) override {}
  void OnLeaseRevoked(SessionId, const LeaseToken&) override {}
  void OnSegmentRevoke(SessionId, uint32_t) override {}
};

inline SpaceGroupSpec OneMember(uint64_t slot_bytes) {
  const SpaceSpec space{.model = "bench",
                        .revision = "1",
                        .dtype = "bf16",
                        .layers = 1,
                        .kv_heads = 1,
                        .head_size = 64,
                        .layout = "nhd",
                        .block_tokens = 16,
                        .part_bytes = {slot_bytes}};
  return {.name = "bench", .members = {{.spec = space}}};
}

}  // namespace terrace
