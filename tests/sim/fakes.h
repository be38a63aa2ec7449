// The store's seams under virtual time and a seed: nothing happens until a test says so, and the
// same seed does the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/block/seams.h"
#include "daemon/store/store.h"
#include "terrace/checksum.h"

namespace terrace::sim {

class VirtualClock final : public Clock {
 public:
  uint64_t NowUs() const override { return now_us_; }
  uint64_t UnixSeconds() const override { return 1'700'000'000 + now_us_ / 1'000'000; }
  void Advance(uint64_t by_us) { now_us_ += by_us; }
  void AdvanceTo(uint64_t now_us) { now_us_ = now_us > now_us_ ? now_us : now_us_; }

 private:
  uint64_t now_us_ = 1'000'000;
};

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : engine_(seed) {}
  uint64_t Next() override { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// Segments in plain memory. What the store asks of it waits for TakeWork().
class PlainArena final : public ArenaMemory {
 public:
  struct Work {
    bool is_punch = false;
    uint32_t segment = 0;
  };

  PlainArena(uint64_t segment_bytes, uint32_t segments_max)
      : segment_bytes_(segment_bytes), segments_(segments_max) {}

  std::byte* SegmentBase(uint32_t segment) override { return segments_[segment].get(); }
  void BeginPopulate(uint32_t segment) override {
    segments_[segment] = std::make_unique<std::byte[]>(segment_bytes_);
    work_.push_back({false, segment});
  }
  void BeginPunch(uint32_t segment) override { work_.push_back({true, segment}); }
  std::string Shortage() const override { return "there is none left"; }
  uint64_t PageBytes() const override { return page_bytes; }
  bool HasLost(std::span<const std::byte> bytes) const override {
    return lost >= bytes.data() && lost < bytes.data() + bytes.size();
  }

  // What was begun and is done now; a punched segment's memory is gone.
  bool TakeWork(Work* work) {
    if (work_.empty()) return false;
    *work = work_.front();
    work_.pop_front();
    if (work->is_punch) segments_[work->segment].reset();
    return true;
  }
  bool has_work() const { return !work_.empty(); }
  bool IsPopulated(uint32_t segment) const { return segments_[segment] != nullptr; }

  uint64_t page_bytes = 0;
  const std::byte* lost = nullptr;  // a byte that clients do not have

 private:
  uint64_t segment_bytes_;
  std::vector<std::unique_ptr<std::byte[]>> segments_;
  std::deque<Work> work_;
};

// Checksums, computed when a test says so.
class PlainOffload final : public Offload {
 public:
  Status Submit(ChecksumJob job) override {
    if (jobs_.size() >= jobs_max) return Status(StatusCode::kBusy, "jobs_max reached");
    jobs_.push_back(std::move(job));
    return Status::Ok();
  }
  // Runs the oldest job. False if there is none.
  bool RunOne(Store* store) {
    if (jobs_.empty()) return false;
    const ChecksumJob job = std::move(jobs_.front());
    jobs_.pop_front();
    std::vector<Checksum> roots;
    for (const ChecksumJob::Part& part : job.parts) {
      roots.push_back(ChecksumPart(part.bytes, part.seed));
    }
    store->events().OnChecksumsDone(job.id, roots);
    return true;
  }
  size_t job_count() const { return jobs_.size(); }
  // The oldest job becomes the youngest. REQUIRES: there is one.
  void Rotate() {
    jobs_.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
  }

  size_t jobs_max = 64;

 private:
  std::deque<ChecksumJob> jobs_;
};

// Everything the store said, in order.
class RecordingListener final : public StoreListener {
 public:
  struct Told {
    SessionId session = 0;
    uint64_t request_id = 0;
    StatusCode status = StatusCode::kOk;
    protocol::Completion completion;

    bool is_last() const { return completion.flags & protocol::kCompletionLast; }
  };
  struct WaitDone {
    SessionId session = 0;
    uint64_t request_id = 0;
    StatusCode status = StatusCode::kOk;
  };

  void OnCompletion(SessionId session, uint64_t request_id, Status status,
                    const protocol::Completion& completion) override {
    completions.push_back({session, request_id, status.code(), completion});
  }
  void OnWaitDone(SessionId session, uint64_t request_id, Status status) override {
    waits.push_back({session, request_id, status.code()});
  }
  void OnSeekDone(SessionId session, uint64_t request_id) override {
    seeks.emplace_back(session, request_id);
  }
  void OnLeaseRevoked(SessionId session, const LeaseToken& token) override {
    revoked.emplace_back(session, token);
  }
  void OnSegmentRevoke(SessionId session, uint32_t segment) override {
    segment_revokes.emplace_back(session, segment);
  }

  void OnWorkOrder(SessionId session, const protocol::WorkOrder& order,
                   std::span<const uint64_t> part_bytes) override {
    work_orders.push_back({session, order, {part_bytes.begin(), part_bytes.end()}});
  }

  struct Ordered {
    SessionId session = 0;
    protocol::WorkOrder order;
    std::vector<uint64_t> part_bytes;
  };
  std::vector<Ordered> work_orders;
  std::vector<Told> completions;
  std::vector<WaitDone> waits;
  std::vector<std::pair<SessionId, uint64_t>> seeks;
  std::vector<std::pair<SessionId, LeaseToken>> revoked;
  std::vector<std::pair<SessionId, uint32_t>> segment_revokes;
};

}  // namespace terrace::sim
