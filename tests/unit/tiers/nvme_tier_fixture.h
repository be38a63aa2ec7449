// What unit tests of NvmeTier share: a tier on simulated disks, stored and loaded step by step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/nvme_rig.h"

namespace terrace {

using sim::DiskFault;
using sim::NvmeRig;
using sim::SimMedium;

inline constexpr uint64_t kSlabBytes = kMiB;
inline constexpr uint64_t kLength = 64 * kKiB;
inline constexpr uint32_t kSlotsPerSlab = 15;  // of kLength
inline constexpr uint32_t kAlways = 1'000'000;

struct Found {
  BlockRecord record;
  Extent extent;
};

class Catalog : public ExtentCatalog {
 public:
  void OnEntryWritten(uint32_t slab, uint32_t slot) override { told.push_back({slab, slot}); }
  std::vector<std::pair<uint32_t, uint32_t>> told;
};

class NvmeTierTest : public testing::Test, public TierListener {
 protected:
  void OnTransferDone(TransferId transfer_id, Status status) override {
    done_[transfer_id] = status;
  }
  void OnPersisted(uint32_t, uint32_t owner, CommitId commit_id, uint32_t member) override {
    persisted_.push_back({owner, commit_id, member});
  }
  void OnRecordInDoubt(uint32_t, uint32_t owner) override { doubted_.push_back(owner); }
  void OnRoom(uint32_t) override { ++rooms_; }

  void SetUp() override {
    media_.resize(1);
    Start();
  }
  // A daemon starts on the media as they are; its options are `options_`.
  void Start() {
    rig_.reset();
    std::vector<SimMedium*> media;
    for (SimMedium& medium : media_) media.push_back(&medium);
    rig_ = std::make_unique<NvmeRig>(media, options_, this);
    found_.clear();
    ASSERT_TRUE(rig_->Restore([this](const BlockRecord& record, const Extent& extent) {
                      found_[record.key.low] = {record, extent};
                      return static_cast<uint32_t>(record.key.low);
                    })
                    .ok());
  }
  void Restart() {
    rig_->KillProcess();
    Start();
  }
  NvmeTier& tier() { return rig_->tier(); }

  Result<Extent> TryAllocate(uint64_t length_bytes = kLength) {
    for (int round = 0; round < 8; ++round) {
      const Result<Extent> extent = tier().Allocate(0, length_bytes, 1);
      if (extent.ok() || extent.code() != StatusCode::kBusy) return extent;
      rig_->Settle();
    }
    return Status(StatusCode::kBusy);
  }
  Extent Allocate(uint64_t length_bytes = kLength) { return TryAllocate(length_bytes).value(); }
  std::span<std::byte> Bytes(uint64_t length_bytes, int value) {
    buffers_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, length_bytes)));
    std::fill_n(buffers_.back().get(), length_bytes, static_cast<std::byte>(value));
    return {buffers_.back().get(), length_bytes};
  }
  BlockRecord RecordOf(uint64_t key) {
    BlockRecord record;
    record.group = {1, 1};
    record.space = {2, 2};
    record.key = {key, 7};
    record.parent = {key - 1, 7};
    record.commit_id = key * 100;
    record.event_hash = key * 3;
    record.expires_at_s = 1000 + key;
    record.position = 5;
    record.recompute_ns_per_token = 9;
    record.member = 3;
    record.priority = 50;
    record.owner = static_cast<uint32_t>(key);
    record.part_checksums = checksum_;
    return record;
  }
  Status BeginWrite(const Extent& extent, uint64_t key) {
    return tier().Write(++transfer_, extent, RecordOf(key),
                        Bytes(extent.length_bytes, static_cast<int>(key)));
  }
  Extent Store(uint64_t key, uint64_t length_bytes = kLength) {
    const Extent extent = Allocate(length_bytes);
    EXPECT_TRUE(BeginWrite(extent, key).ok());
    rig_->Settle();
    EXPECT_TRUE(done_[transfer_].ok()) << done_[transfer_].what();
    return extent;
  }
  Status Load(const Extent& extent, std::span<std::byte> into) {
    TERRACE_RETURN_IF_ERROR(tier().Read(++transfer_, extent, into));
    rig_->Settle();
    return done_.contains(transfer_) ? done_[transfer_] : Status(StatusCode::kGone, "no answer");
  }
  void ExpectLoads(const Extent& extent, int value) {
    const std::span<std::byte> into = Bytes(extent.length_bytes, 255);
    const Status status = Load(extent, into);
    EXPECT_TRUE(status.ok()) << status.what();
    EXPECT_EQ(std::ranges::count(into, static_cast<std::byte>(value)),
              static_cast<ptrdiff_t>(into.size()));
  }

  struct FreeBytes {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::vector<SimMedium> media_;
  NvmeRig::Options options_{.tier = {.secret = sim::SecretFrom(1),
                                     .capacity_bytes = 4 * kSlabBytes,
                                     .slab_bytes = kSlabBytes}};
  std::unique_ptr<NvmeRig> rig_;
  std::map<TransferId, Status> done_;
  std::vector<std::tuple<uint32_t, CommitId, uint32_t>> persisted_;
  std::vector<uint32_t> doubted_;  // owners
  std::map<uint64_t, Found> found_;
  std::vector<std::unique_ptr<std::byte, FreeBytes>> buffers_;
  std::array<Checksum, 1> checksum_ = {Checksum{11, 12}};
  TransferId transfer_ = 0;
  int rooms_ = 0;
};

}  // namespace terrace
