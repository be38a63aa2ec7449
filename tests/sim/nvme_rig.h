// NvmeRig: an NvmeTier over simulated disks under virtual time, with somebody to listen. Media
// outlive it: build another rig on the same media and restore.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/sim_disk.h"
#include "tiers/crypto/cipher_disk.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace::sim {

inline DomainSecret SecretFrom(uint8_t first) {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(first + i * 7);
  return secret;
}

class NvmeRig {
 public:
  struct Options {
    NvmeTier::Options tier;  // disks, now_us and random are the rig's
    SimDisk::Options disk;
    uint64_t seed = 1;
  };
  NvmeRig(std::vector<SimMedium*> media, Options options, TierListener* listener)
      : random_(options.seed) {
    options.tier.domain_name = "rig";
    for (SimMedium* medium : media) {
      options.disk.seed = random_();
      disks_.push_back(std::make_unique<SimDisk>(*medium, options.disk));
      options.tier.disks.push_back(disks_.back().get());
      if (!options.tier.encryption.is_on()) continue;
      ciphers_.push_back(std::make_unique<CipherDisk>(*disks_.back(), CipherDisk::Options{}));
      options.tier.disks.back() = ciphers_.back().get();
    }
    options.tier.now_us = [this] { return now_us_; };
    options.tier.random = [this] { return random_(); };
    tier_ = std::make_unique<NvmeTier>(std::move(options.tier));
    tier_->SetListener(listener);
  }

  NvmeTier& tier() { return *tier_; }
  SimDisk& disk(size_t index = 0) { return *disks_[index]; }
  size_t disk_count() const { return disks_.size(); }
  uint64_t now_us() const { return now_us_; }
  std::vector<std::string>& notes() { return notes_; }

  // Opens and scans what the media hold.
  Status Restore(const SlabRestore::Sink& sink) {
    TERRACE_RETURN_IF_ERROR(tier_->restore().OpenSlabs(&notes_));
    TERRACE_RETURN_IF_ERROR(tier_->restore().Scan(sink));
    tier_->restore().Finish();
    return Status::Ok();
  }

  // The next completion of any disk, at its time. False: there is none.
  bool Step() {
    SimDisk* next = nullptr;
    for (const auto& disk : disks_) {
      if (next == nullptr || disk->NextCompletionUs() < next->NextCompletionUs()) next = disk.get();
    }
    if (next->NextCompletionUs() == UINT64_MAX) return false;
    now_us_ = std::max(now_us_, next->NextCompletionUs());
    next->RunUntil(next->NextCompletionUs());
    return true;
  }
  void Drain() {
    while (Step()) {
    }
  }
  void Advance(uint64_t us) {
    const uint64_t until_us = now_us_ + us;
    for (const auto& disk : disks_) {
      while (disk->NextCompletionUs() <= until_us) Step();
    }
    now_us_ = until_us;
    for (const auto& disk : disks_) disk->RunUntil(now_us_);
  }
  // Some seconds of ticks: background work comes to an end.
  void Settle() {
    for (int tick = 0; tick < 8; ++tick) {
      Drain();
      Advance(1'100'000);
      tier_->Tick();
    }
    Drain();
  }
  void PowerLoss() {
    for (const auto& disk : disks_) disk->PowerLoss();
  }
  void KillProcess() {
    for (const auto& disk : disks_) disk->KillProcess();
  }

 private:
  std::mt19937_64 random_;
  uint64_t now_us_ = 1'000'000;
  std::vector<std::unique_ptr<SimDisk>> disks_;
  std::vector<std::unique_ptr<CipherDisk>> ciphers_;
  std::vector<std::string> notes_;
  std::unique_ptr<NvmeTier> tier_;
};

}  // namespace terrace::sim
