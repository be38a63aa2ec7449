// What unit tests of the parts of NvmeTier share: the parts below the one that is tested, on two
// disks that answer when the test says so, and a listener that notes what it is told.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "tiers/nvme/slab_lifecycle.h"
#include "unit/tiers/nvme/fake_disk.h"

namespace terrace {

class SlabPartsTest : public testing::Test,
                      public DiskListener,
                      public EntryListener,
                      public TierListener {
 protected:
  static constexpr uint64_t kSlabBytes = 8 * kMiB;
  static constexpr SlabShape kLarge{512 * kKiB, 1};  // 15 slots, each of two chunks of a trial
  static constexpr SlabShape kSmall{4 * kKiB, 1};    // its table is cleared in two chunks
  static constexpr uint64_t kProbeIntervalUs = 100;

  SlabPartsTest() {
    reports_.SetListener(this);
    slabs_.CountIn(shares_, 0);
  }

  // As NvmeTier passes them on; what is the tested part's comes here.
  virtual void OnRequestDone(const NvmeRequest&, Status) {}
  virtual void OnSuspectSettled(NvmeSlab&, uint32_t) {}

  void OnDiskDone(uint64_t tag, Status status) override {
    const NvmeRequest request = disks_.Finish(tag, status);
    if (request.kind == NvmeRequestKind::kEntry) {
      entries_.OnWritten(request, status);
    } else if (request.kind == NvmeRequestKind::kSlabStep) {
      lifecycle_.OnStepDone(request, status);
    } else {
      OnRequestDone(request, status);
    }
    entries_.Write();
  }
  void OnEntrySettled(NvmeSlab& slab, uint32_t slot) override {
    const SlabSlotState state = slab.slots[slot].state;
    if (state == SlabSlotState::kErasing) lifecycle_.FreeSlot(slab, slot);
    if (state == SlabSlotState::kSuspect) OnSuspectSettled(slab, slot);
  }
  void OnEntryCataloged(NvmeSlab& slab, uint32_t slot,
                        const std::optional<WrittenBlock>&) override {
    erasures_.EndIfDurable(slab, slot);
  }
  void OnTransferDone(TransferId, Status) override {}
  void OnPersisted(uint32_t, uint32_t, CommitId, uint32_t) override {}
  void OnRecordInDoubt(uint32_t, uint32_t owner) override { doubted_.push_back(owner); }
  void OnRoom(uint32_t) override { ++rooms_; }

  ShapeClass& Class(const SlabShape& shape) { return *classes_.FindOrMake(shape).value(); }
  // A slab that takes blocks, as if it had been found at start.
  NvmeSlab& AddOpen(const SlabShape& shape, uint32_t disk = 0) {
    const uint32_t index = slabs_.FreeIndex();
    NvmeSlab& slab =
        slabs_.Add(index, disk, disks_.disk(disk).NewFile(), Class(shape).geometry().slab_bytes);
    slab.TakeShape(Class(shape).geometry(), {index, 1});
    classes_.Open(slab);
    slabs_.Publish(slab);
    return slab;
  }
  Extent ExtentOf(const NvmeSlab& slab, uint32_t slot) const {
    return {.position = slot,
            .length_bytes = slab.slot_bytes(),
            .shard = slab.index,
            .generation = slab.slots[slot].generation};
  }
  // A block whose bytes are on the disk and whose entry is on its way there.
  uint32_t StoreBlock(NvmeSlab& slab, uint32_t owner) {
    const uint32_t slot = classes_.Take(slab);
    slab.slots.SetOwner(slot, owner);
    BlockRecord record;
    record.key = {owner, 1};
    record.part_checksums = checksum_;
    entries_.HoldNew(slab, slot, ExtentOf(slab, slot), record);
    slab.slots.SetState(slot, SlabSlotState::kUsed);
    entries_.MarkDirty(slab, slot);
    entries_.Write();
    return slot;
  }
  // Its owner lets go of it: the entry is on its way to say so.
  void FreeBlock(NvmeSlab& slab, uint32_t slot) {
    slab.slots.EndGeneration(slot);
    entries_.Drop(slab, slot);
    erasures_.Begin(slab, slot);
    classes_.Erase(slab, slot);
    entries_.MarkDirty(slab, slot);
    entries_.Write();
  }
  // A sync of the slab has covered all that was written.
  void EndErasure(NvmeSlab& slab, uint32_t slot) {
    slab.unsynced.Begin(slab.slots, now_us_, true);
    slab.unsynced.End(slab.slots);
    erasures_.EndIfDurable(slab, slot);
    slab.unsynced.ForgetCovered();
  }
  SlabEntry EntryOf(const NvmeSlab& slab, uint32_t slot, std::span<const std::byte> bytes) const {
    SlabEntry entry;
    EXPECT_TRUE(DecodeEntry(slab.geometry, slab.uuid, slot, bytes, secret_, &entry).ok());
    return entry;
  }
  // Two failures in a row.
  void SwitchOff(uint32_t disk) {
    FakeDisk& fake = disk == 0 ? near_ : far_;
    const size_t before = fake.asked.size();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(disks_.Submit({.kind = NvmeRequestKind::kRead, .disk = disk}, {}).ok());
      fake.AnswerAt(before, kDriveFails);
    }
    ASSERT_FALSE(disks_.is_on(disk));
  }
  uint64_t open_erasures() const { return erasures_.progress().begun - erasures_.progress().ended; }

  static inline const Status kDriveFails{StatusCode::kIo, "the drive", EIO};
  static inline const Status kFileIsGone{StatusCode::kNotFound, "somebody removed it"};

  DomainSecret secret_{};
  std::array<Checksum, 1> checksum_ = {Checksum{11, 12}};
  uint64_t now_us_ = 1'000'000;
  uint64_t random_ = 0;
  std::vector<uint32_t> doubted_;  // owners
  int rooms_ = 0;
  FakeDisk near_{64};
  FakeDisk far_{64};
  NvmeDisks disks_{{.disks = {&near_, &far_},
                    .now_us = [this] { return now_us_; },
                    .health = {.failures_max = 2, .probe_interval_us = kProbeIntervalUs},
                    .stuck_us = 1'000'000'000},
                   this};
  TierReports reports_{0};
  // Of two domains; the slabs are the first's, which the other lends all it has.
  TierShares shares_{TierShares::Lending::kAll,
                     2 * kSlabBytes,
                     {{kSlabBytes, 2 * kSlabBytes}, {kSlabBytes, 2 * kSlabBytes}}};
  SlabSet slabs_{2};
  ShapeClasses classes_{disks_, slabs_, kSlabBytes};
  EntryWriter entries_{{.secret = secret_, .catalog = nullptr}, disks_, slabs_, *this};
  ErasureLog erasures_;
  SlabLifecycle lifecycle_{
      {.secret = secret_, .slab_bytes = kSlabBytes, .random = [this] { return ++random_; }},
      {disks_, slabs_, classes_, entries_, erasures_, reports_, shares_}};
};

}  // namespace terrace
