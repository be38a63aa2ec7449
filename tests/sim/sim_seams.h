// The daemon's seams under simulation: virtual time, seeded randomness, heap memory for arenas, and
// checksums that finish later. Everything pending is kept in plain queues that the world drains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "daemon/block/seams.h"
#include "terrace/checksum.h"

namespace terrace::sim {

class SimClock final : public Clock {
 public:
  uint64_t NowUs() const override { return now_us_; }
  uint64_t UnixSeconds() const override { return wall_s_ + now_us_ / 1'000'000; }
  void Advance(uint64_t us) { now_us_ += us; }
  // Somebody sets the wall clock.
  void SetWall(uint64_t unix_s) { wall_s_ = unix_s - now_us_ / 1'000'000; }

 private:
  uint64_t now_us_ = 1'000'000;
  uint64_t wall_s_ = 1'800'000'000;
};

// SplitMix64: the same sequence from the same seed on every compiler and machine.
class SimRandom final : public Random {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t word = state_;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    return word ^ (word >> 31);
  }
  uint64_t Pick(uint64_t count) { return Next() % count; }

 private:
  uint64_t state_;
};

// One domain's arena on the heap. A segment that is not populated has no memory at all, so touching
// one is a fault the sanitizers see. Pages are as aligned as drives want them.
class SimArenaMemory final : public ArenaMemory {
 public:
  SimArenaMemory(uint64_t segment_bytes, uint32_t segments_max)
      : segment_bytes_(segment_bytes), segments_(segments_max) {}

  std::byte* SegmentBase(uint32_t segment) override { return segments_[segment].get(); }
  void BeginPopulate(uint32_t segment) override { pending_.push_back({segment, true}); }
  void BeginPunch(uint32_t segment) override { pending_.push_back({segment, false}); }

  struct Done {
    uint32_t segment = 0;
    bool is_populate = false;
  };
  bool has_pending() const { return !pending_.empty(); }
  // Populated, or about to be.
  uint32_t held_count() const {
    uint32_t count = populated_count();
    for (const Done& each : pending_) count += each.is_populate;
    return count;
  }
  Done Finish() {
    const Done done = pending_.front();
    pending_.pop_front();
    Segment& memory = segments_[done.segment];
    memory.reset();
    if (done.is_populate) {
      memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, segment_bytes_)));
      std::memset(memory.get(), 0, segment_bytes_);
    }
    return done;
  }
  void Abandon() { pending_.clear(); }  // whoever began it is no more
  bool is_populated(uint32_t segment) const { return segments_[segment] != nullptr; }
  uint32_t populated_count() const {
    uint32_t count = 0;
    for (const Segment& segment : segments_) count += segment != nullptr;
    return count;
  }

 private:
  struct FreeMemory {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Segment = std::unique_ptr<std::byte, FreeMemory>;
  uint64_t segment_bytes_;
  std::vector<Segment> segments_;
  std::deque<Done> pending_;
};

// Hashes when the world says so, over the bytes as they are then.
class SimOffload final : public Offload {
 public:
  explicit SimOffload(size_t jobs_max) : jobs_max_(jobs_max) {}
  Status Submit(ChecksumJob job) override {
    if (jobs_.size() >= jobs_max_) return Status(StatusCode::kBusy, "offload queue full");
    jobs_.push_back(std::move(job));
    return Status::Ok();
  }
  bool has_pending() const { return !jobs_.empty(); }
  void Forget() { jobs_.clear(); }  // who asked is no more
  std::vector<Checksum> Finish(OffloadId* id) {
    const ChecksumJob job = std::move(jobs_.front());
    jobs_.pop_front();
    std::vector<Checksum> roots;
    for (const ChecksumJob::Part& part : job.parts) {
      roots.push_back(ChecksumPart(part.bytes, part.seed));
    }
    *id = job.id;
    return roots;
  }

 private:
  size_t jobs_max_;
  std::deque<ChecksumJob> jobs_;
};

}  // namespace terrace::sim
