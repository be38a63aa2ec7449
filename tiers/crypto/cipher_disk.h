// CipherDisk: a Disk before another, which encrypts payload on its way down and decrypts it on its
// way up, where a request says with what (DiskRequest::cipher). All else passes through.
//
// A write is encrypted into memory of its own and written from there: readers may be reading the
// caller's. A read is decrypted where it was read to, which nobody may see yet.
//
// THREADING: as Disk. Payload is worked on by a CipherPool's threads; without a pool, at once (a
// simulation).
// OWNERSHIP: the other disk and the pool outlive it. A request's memory and cipher are the disk's
// until its OnDiskDone; what the other disk may still be writing from at the end is left behind.
// LIMITS: bounce_bytes_max of memory to encrypt into, or one payload where that is longer; writes
// beyond it wait. The other disk's queue_max requests, those that wait among them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/slot_pool.h"
#include "tiers/crypto/group_key.h"
#include "tiers/disk/disk.h"
#include "tiers/disk/disk_mailbox.h"
#include "tiers/disk/disk_workers.h"

namespace terrace {

// Threads that encrypt and decrypt, for all disks of a domain; who waits for a read goes first.
// THREADING: the store thread.
class CipherPool {
 public:
  enum class Urgency : uint8_t { kRead, kWrite };
  struct Options {
    uint32_t threads = 2;
    DiskMailbox::Post post;  // as DiskOptions::post
  };
  explicit CipherPool(Options options);
  ~CipherPool();  // after the last disk

  void Run(Urgency urgency, DiskWorkers::Job job);
  const DiskMailbox::Post& post() const { return options_.post; }

 private:
  struct Queue;
  const Options options_;
  std::shared_ptr<Queue> queue_;
  DiskWorkers workers_;
};

// Memory to encrypt into, kept for the next payload of its length.
// THREADING: one thread; the memory itself, any. LIMITS: bytes_max, or one buffer.
class BounceMemory {
 public:
  explicit BounceMemory(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ~BounceMemory();  // what is taken is left behind
  BounceMemory(const BounceMemory&) = delete;
  BounceMemory& operator=(const BounceMemory&) = delete;

  // Aligned as payload is. Empty: as much is taken as may be.
  std::span<std::byte> Take(uint64_t length_bytes);
  void Give(std::span<std::byte> buffer);
  uint64_t held_bytes() const { return held_bytes_; }

 private:
  void Drop(size_t index);

  const uint64_t bytes_max_;
  uint64_t held_bytes_ = 0;  // taken and free
  uint64_t taken_bytes_ = 0;
  std::vector<std::span<std::byte>> free_;
};

inline constexpr uint64_t kBounceBytesMax = 64 * kMiB;  // of a disk

class CipherDisk final : public Disk, public DiskListener {
 public:
  struct Options {
    CipherPool* pool = nullptr;
    uint64_t bounce_bytes_max = kBounceBytesMax;
  };
  CipherDisk(Disk& disk, const Options& options);
  ~CipherDisk() override;

  // ---- Disk ----
  void SetListener(DiskListener* listener) override;
  Status Submit(const DiskRequest& request) override;
  void Flush() override { disk_.Flush(); }
  DiskFile NewFile() override { return disk_.NewFile(); }
  FileRoom file_room() const override { return disk_.file_room(); }
  void RegisterBuffer(uint32_t index, std::span<std::byte> memory) override;
  void UnregisterBuffer(uint32_t index, const std::function<void()>& done) override;
  Status ListNow(std::vector<std::string>* names) override { return disk_.ListNow(names); }
  Status OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) override {
    return disk_.OpenNow(name, file, length_bytes);
  }
  Status ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) override {
    return disk_.ReadNow(file, offset_bytes, into);
  }
  uint32_t queue_max() const override { return disk_.queue_max(); }
  DiskStats stats() const override;
  std::string description() const override { return disk_.description() + ", AES-256-GCM"; }
  std::string directory() const override { return disk_.directory(); }

  // ---- DiskListener, of the other disk ----
  void OnDiskDone(uint64_t tag, Status status) override;

 private:
  struct Request {
    DiskRequest asked;
    std::span<std::byte> bounce;  // a write's, once it has some
  };
  struct Unregistering {
    uint32_t index = 0;
    std::function<void()> done;
  };
  struct Jobs;

  Status SubmitAtOnce(const DiskRequest& request);  // a write, without a pool
  void BeginWrite(uint32_t number);
  void Work(uint32_t number);  // encrypts or decrypts
  void OnWorked(uint32_t number, Status status);
  void End(uint32_t number, Status status);
  bool IsUsed(uint32_t buffer) const;
  void UnregisterUnused();

  Disk& disk_;
  const Options options_;
  DiskListener* listener_ = nullptr;
  std::shared_ptr<DiskMailbox> mailbox_;  // none: without a pool
  std::shared_ptr<Jobs> jobs_;
  BounceMemory bounce_;
  SlotPool<Request> requests_;    // with a cipher, by number
  uint32_t requests_count_ = 0;   // accepted, with a cipher or without
  uint32_t held_back_count_ = 0;  // of them not with the other disk
  std::deque<uint32_t> waiting_;  // for bounce memory
  std::vector<std::span<std::byte>> buffers_;
  std::vector<Unregistering> unregistering_;
};

}  // namespace terrace
