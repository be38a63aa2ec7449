// One domain's drive in a simulated host, and the NVMe tier over it. The medium outlives daemons,
// and so does what state_dir has of the domain; disk and tier are one daemon's.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/block/seams.h"
#include "daemon/store/store.h"
#include "sim/group_keys.h"
#include "sim/sim_disk.h"
#include "tiers/crypto/cipher_disk.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace::sim {

enum class Ending : uint8_t { kKill, kPowerLoss };

class Drive {
 public:
  struct Options {
    uint32_t domain_index = 0;
    DomainSecret secret{};
    uint64_t seed = 1;
    std::array<uint32_t, kDiskFaultCount> fault_rates_ppm = {};
    const Clock* clock = nullptr;
    bool is_encrypted = false;
  };
  static constexpr uint64_t kSlabBytes = 512 * kKiB;

  // `shares` are of all domains' drives together, and outlive the daemon.
  Drive(const Options& options, TierShares& shares)
      : options_(options), random_(options.seed), keys_(options.seed) {
    Begin(shares);
  }

  NvmeTier& tier() { return *tier_; }
  SimDisk& disk() { return *disk_; }
  uint64_t used_bytes() const { return medium_.used_bytes(); }

  // Tells the store what lies there. An empty string, else what went wrong.
  std::string Restore(Store& store) {
    std::vector<std::string> notes;
    if (!tier_->restore().OpenSlabs(&notes).ok()) return "the slabs cannot be opened";
    const Status scanned =
        tier_->restore().Scan([&](const BlockRecord& record, const Extent& extent) {
          return store.restoration().RestoreCopy(options_.domain_index, 0, record, extent);
        });
    if (!scanned.ok()) return "the tables cannot be scanned";
    tier_->restore().Finish();
    return "";
  }
  // Something of the domain is being erased. What lies in slab files that the start left alone is
  // not reached, though a block may lie there too: the place that it was moved from. So they are
  // remembered, as by MissedErasures (docs/DISK_FORMAT.md, Files).
  void NoteErasure() {
    for (const std::string& file : tier_->restore().left_files()) {
      missed_slabs_.insert(file.substr(file.rfind('/') + 1));
    }
  }
  // The daemon ends here; its memory may go after this.
  void End(Ending ending) {
    if (ending == Ending::kKill) {
      disk_->KillProcess();
    } else {
      disk_->PowerLoss();
    }
  }
  // Another daemon. REQUIRES: nobody uses the last one's tier any more.
  void Begin(TierShares& shares) {
    tier_.reset();
    cipher_.reset();
    disk_ = std::make_unique<SimDisk>(medium_, SimDisk::Options{.seed = random_(),
                                                                .queue_max = 16,
                                                                .start_us = options_.clock->NowUs(),
                                                                .has_stream_per_fault = true});
    for (size_t fault = 0; fault < kDiskFaultCount; ++fault) {
      disk_->SetRate(static_cast<DiskFault>(fault), options_.fault_rates_ppm[fault]);
    }
    RemoveOutdated();
    if (options_.is_encrypted) {
      cipher_ = std::make_unique<CipherDisk>(*disk_, CipherDisk::Options{});
    }
    tier_ = std::make_unique<NvmeTier>(NvmeTier::Options{
        .domain_index = options_.domain_index,
        .domain_name = "domain" + std::to_string(options_.domain_index),
        .secret = options_.secret,
        .disks = {cipher_ ? static_cast<Disk*>(cipher_.get()) : disk_.get()},
        .outdated_files = Outdated(),
        .shares = &shares,
        .slab_bytes = kSlabBytes,
        .encryption = options_.is_encrypted ? keys_.encryption() : PayloadEncryption{},
        .now_us = [this] { return options_.clock->NowUs(); },
        .random = [this] { return random_(); },
        .stuck_us = 3'000'000,
        .probe_interval_us = 500'000});
  }
  void Heal() {
    disk_->HealAll();
    disk_->ReleaseStuck();
  }

 private:
  // As a start does, before the tier looks: slab files that missed an erasure go once they can be
  // read, or hold nothing.
  void RemoveOutdated() {
    std::erase_if(missed_slabs_, [this](const std::string& name) {
      if (!medium_.Has(name)) return true;
      if (!CanBeRead(name)) return false;
      medium_.Remove(name);
      return true;
    });
  }
  std::set<std::string> Outdated() const {
    std::set<std::string> files;
    for (const std::string& name : missed_slabs_) files.insert(disk_->directory() + "/" + name);
    return files;
  }
  bool CanBeRead(const std::string& name) {
    DiskFile file = kDiskFileNone;
    uint64_t length_bytes = 0;
    std::vector<std::byte> sector(kSlabSectorBytes);
    return disk_->OpenNow(name, &file, &length_bytes).ok() &&
           disk_->ReadNow(file, 0, sector).ok() &&
           (DecodeSuperblock(sector, options_.secret).ok() ||
            std::ranges::all_of(sector, [](std::byte b) { return b == std::byte{0}; }));
  }

  const Options options_;
  std::mt19937_64 random_;
  SimMedium medium_;
  SimGroupKeys keys_;                   // outlive daemons, as their files do
  std::set<std::string> missed_slabs_;  // files that missed an erasure; outlive daemons
  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<CipherDisk> cipher_;
  std::unique_ptr<NvmeTier> tier_;
};

}  // namespace terrace::sim
