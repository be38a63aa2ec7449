// SimDisk: a drive in memory under seeded virtual time, and the medium that outlives it. Requests
// finish after a seeded latency and overtake each other; faults strike at given rates; the power
// can fail and the process can die at any point.
//
// A SimMedium is what lies on the drive and in the kernel's page cache. A SimDisk is one process's
// view of it: after PowerLoss or KillProcess, open another SimDisk on the same medium.
//
// What a completed kSync covers is durable, and so is a completed kRemove, as the directory's sync
// before its answer has it. Of everything else, at a loss of power each 512-byte
// sector of each write has arrived or has not, independently: writes tear, and overtake each other.
// After a failed kSync what it covered is still read back, and will never become durable unless it
// is written again: so do Linux file systems.
//
// THREADING: one thread. OWNERSHIP: the medium outlives its disks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiers/disk/disk.h"

namespace terrace::sim {

// Bytes of files, sparse and copy-on-write: a copy of a medium is cheap, and independent.
class SimMedium {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t kSectorBytes = 512;

  // Files together never take more than `capacity_bytes`.
  explicit SimMedium(uint64_t capacity_bytes = uint64_t{1} << 40)
      : capacity_bytes_(capacity_bytes) {}

  // ---- for tests, beside the disk's interface: what a reader of the file sees ----
  std::vector<std::string> Names() const;
  bool Has(const std::string& name) const { return files_.contains(name); }
  uint64_t LengthBytes(const std::string& name) const { return files_.at(name).length_bytes; }
  void Peek(const std::string& name, uint64_t offset_bytes, std::span<std::byte> into) const;
  // Durable at once, as if the drive itself had changed its mind.
  void Poke(const std::string& name, uint64_t offset_bytes, std::span<const std::byte> from);
  void FlipBit(const std::string& name, uint64_t offset_bytes, uint32_t bit);
  // The pages can be neither read nor written in part until they are written whole, or healed.
  void Spoil(const std::string& name, uint64_t offset_bytes, uint64_t length_bytes);
  void Heal(const std::string& name) { files_.at(name).spoiled.clear(); }
  void Remove(const std::string& name);
  void SetCapacityBytes(uint64_t capacity_bytes) { capacity_bytes_ = capacity_bytes; }
  uint64_t used_bytes() const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  // Writes not covered by a sync.
  uint64_t unsynced_writes() const;

 private:
  friend class SimDisk;
  using Page = std::array<std::byte, kPageBytes>;
  using Pages = std::map<uint64_t, std::shared_ptr<const Page>>;
  struct Write {
    uint64_t sequence = 0;
    uint64_t offset_bytes = 0;
    std::vector<std::byte> bytes;
  };
  struct File {
    uint64_t length_bytes = 0;
    Pages current;               // as read now
    Pages previous;              // pages as they were before their last change: stale reads
    Pages durable;               // survives the power
    std::vector<Write> writes;   // completed, in order, not yet durable
    std::set<uint64_t> spoiled;  // pages
    bool is_durable = false;     // its name and length survive the power
  };

  static void Store(Pages& pages, uint64_t offset_bytes, std::span<const std::byte> from);
  static void Load(const Pages& pages, uint64_t offset_bytes, std::span<std::byte> into);
  static bool IsSpoiled(const File& file, uint64_t offset_bytes, uint64_t length_bytes);
  static void RememberBefore(File& file, uint64_t offset_bytes, uint64_t length_bytes);
  void Apply(File& file, uint64_t offset_bytes, std::span<const std::byte> from);

  std::map<std::string, File> files_;
  uint64_t capacity_bytes_;
  uint64_t next_sequence_ = 1;
};

enum class DiskFault : uint8_t {
  kReadFails,       // kIo (EIO)
  kWriteFails,      // kIo (EIO), payload or table; some sectors may have arrived
  kShort,           // given up in the middle: kIo without an errno, half of the bytes moved
  kCreateNoSpace,   // kIo (ENOSPC)
  kCreateFails,     // kIo (EIO)
  kCreateVanishes,  // kNotFound: somebody removed the file while it was being made
  kSyncFails,       // kIo (EIO); what it covered never becomes durable
  kMisdirected,     // kOk, but a payload write went to another sector of the file
  kStaleRead,       // kOk, with the bytes of before the last change
  kStuck,           // no completion until ReleaseStuck()
  kBusy,            // Submit answers kBusy
};
inline constexpr size_t kDiskFaultCount = 11;

class SimDisk final : public Disk {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t queue_max = 64;
    uint64_t latency_us_min = 20;
    uint64_t latency_us_max = 300;
    uint64_t bytes_per_us = 4000;
    uint64_t start_us = 0;
    uint64_t files_max = UINT64_MAX;    // open or being made
    bool has_stream_per_fault = false;  // how often one strikes shifts no other's draws
  };
  SimDisk(SimMedium& medium, const Options& options);

  // Finishes all requests due by `now_us`, in the order of their due times, those submitted by the
  // listener meanwhile included.
  void RunUntil(uint64_t now_us);
  // UINT64_MAX: none.
  uint64_t NextCompletionUs() const;

  // Strikes `rate_ppm` of a million requests it can strike; a request suffers one fault at most.
  void SetRate(DiskFault fault, uint32_t rate_ppm) {
    rates_ppm_[static_cast<size_t>(fault)] = rate_ppm;
  }
  void HealAll() { rates_ppm_ = {}; }
  uint64_t struck(DiskFault fault) const { return struck_[static_cast<size_t>(fault)]; }
  // What hangs completes at the next RunUntil.
  void ReleaseStuck();

  // The machine stops here. The disk answers nothing any more; the medium holds what arrived.
  void PowerLoss();
  // The process stops here: what was completed is in the medium (not durable), what was in flight
  // arrived wholly, in part, or not at all.
  void KillProcess();

  // ---- Disk ----
  void SetListener(DiskListener* listener) override { listener_ = listener; }
  Status Submit(const DiskRequest& request) override;
  void Flush() override {}
  DiskFile NewFile() override;
  FileRoom file_room() const override;
  Status ListNow(std::vector<std::string>* names) override;
  Status OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) override;
  Status ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) override;
  uint32_t queue_max() const override { return options_.queue_max; }
  DiskStats stats() const override;
  std::string description() const override { return "simulated"; }

 private:
  struct Pending {
    DiskRequest request;
    std::vector<std::byte> copied;  // of kWriteTable and kCreate
    uint64_t sequence_at_submit = 0;
    DiskFault fault = DiskFault::kBusy;  // kBusy: none
  };

  void CheckNoOverlap(const DiskRequest& request) const;
  DiskFault DrawFault(DiskOp op);
  bool Strikes(DiskFault fault);
  SimMedium::File* Find(DiskFile file);
  std::span<const std::byte> BytesOf(const Pending& pending) const;
  Status Finish(Pending& pending);
  Status FinishRead(const Pending& pending);
  Status FinishWrite(const Pending& pending);
  Status FinishSync(const Pending& pending);
  Status FinishCreate(const Pending& pending);
  void ArriveInPart(SimMedium::Pages& pages, uint64_t offset_bytes,
                    std::span<const std::byte> bytes);

  SimMedium& medium_;
  const Options options_;
  DiskListener* listener_ = nullptr;
  std::mt19937_64 random_;
  std::vector<std::string> names_;                          // by DiskFile; empty: no file
  std::map<std::pair<uint64_t, uint64_t>, Pending> queue_;  // by (due time, order of arrival)
  std::vector<Pending> stuck_;
  std::array<uint32_t, kDiskFaultCount> rates_ppm_ = {};
  std::array<uint64_t, kDiskFaultCount> struck_ = {};
  std::array<uint64_t, kDiskFaultCount> draws_ = {};
  uint64_t now_us_ = 0;
  uint64_t link_free_at_us_ = 0;
  uint64_t submitted_ = 0;
  bool is_dead_ = false;
  DiskStats stats_;
};

}  // namespace terrace::sim
