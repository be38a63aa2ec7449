// OffloadPool: checksums on threads of their own, as pure functions of bytes, and memory that the
// store will need. The results of a job come back on the store thread.
//
// THREADING: Submit, Populate and Stop on the store thread, which waits for no worker before Stop.
// OWNERSHIP: the bytes of a job stay until its results are back. Stop before the arena goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/block/seams.h"
#include "src/spmc_queue.h"

namespace terrace {

class OffloadPool : public Offload {
 public:
  // Runs its argument on the store thread, later. Called on any thread.
  using Post = std::function<void(std::function<void()>)>;
  using DoneCallback = std::function<void(OffloadId id, std::span<const Checksum> roots)>;
  struct Options {
    uint32_t threads = 2;
    uint32_t jobs_max = 4096;
  };
  // Throws std::system_error as std::thread does.
  OffloadPool(const Options& options, Post post, DoneCallback done);
  ~OffloadPool() override;

  Status Submit(ChecksumJob job) override;
  // With a kernel before 5.14, or a full queue, nothing: the store thread waits for it when it
  // comes to it.
  void Populate(std::span<std::byte> memory) override;
  uint32_t jobs_in_flight() const { return jobs_in_flight_; }  // waiting, or being worked off
  uint64_t jobs_taken() const { return jobs_taken_; }
  uint64_t jobs_refused() const { return jobs_refused_; }  // the queue was full
  // Ends the threads; results not yet handed over are dropped.
  void Stop();

 private:
  using Work = std::function<void()>;
  // Each sleeps on a word of its own: of a condition that several wait for, who signals it may have
  // to wait until one of them has woken up.
  struct Worker {
    std::atomic<uint32_t> is_asleep{0};
    std::thread thread;
  };

  void Run(Worker* worker);
  static void Wake(Worker* worker);
  // False: the queue is full.
  bool Give(Work work);
  // One that sleeps, if any does.
  void CallOne();

  const Options options_;
  const Post post_;
  const DoneCallback done_;
  // Store thread.
  uint32_t jobs_in_flight_ = 0;
  uint64_t jobs_taken_ = 0;
  uint64_t jobs_refused_ = 0;
  SpmcQueue<Work> queue_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<uint32_t> populates_waiting_{0};
  std::atomic<bool> is_stopping_{false};
};

}  // namespace terrace
