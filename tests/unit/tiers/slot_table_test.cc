// What a successor makes of a slot table: rows as a kill may leave them.
#include "tiers/arena/slot_table.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tiers/arena/slot_allocator.h"

namespace terrace {
namespace {

constexpr uint64_t kSegmentBytes = 16 * kMiB;
constexpr uint64_t kSlotBytes = 96 * kKiB;
constexpr uint64_t kSeed = 0x5EED;

SlotIdentity Numbered(uint64_t n) {
  SlotIdentity block{.key = {.low = n, .high = ~n},
                     .parent = {.low = n * 3, .high = n * 5},
                     .commit_id = n * 7 + 1,
                     .group_tag = n * 11,
                     .event_hash = n * 13,
                     .expires_at_s = n * 17,
                     .position = static_cast<uint32_t>(n * 19),
                     .writer_uid = static_cast<uint32_t>(n * 23),
                     .recompute_ns_per_token = static_cast<uint32_t>(n * 29)};
  block.member = static_cast<uint8_t>(n);
  block.priority = static_cast<uint8_t>(n * 3);
  block.flags = static_cast<uint8_t>(n * 5);
  return block;
}

using Allocator = std::unique_ptr<SlotAllocator>;

Allocator Over(std::span<std::byte> table, uint32_t segments) {
  auto slots =
      std::make_unique<SlotAllocator>(SlotAllocator::Options{.segment_bytes = kSegmentBytes,
                                                             .segments_max = segments,
                                                             .slot_table = table,
                                                             .table_seed = kSeed});
  for (uint32_t segment = 0; segment < segments; ++segment) slots->SegmentPopulated(segment);
  return slots;
}

std::vector<SlotAllocator::AdoptedSlot> Adopt(std::span<std::byte> table, uint32_t segments,
                                              Allocator* successor) {
  *successor = Over(table, segments);
  std::vector<SlotAllocator::AdoptedSlot> adopted;
  (*successor)->Adopt(&adopted);
  (*successor)->CheckInvariants();
  return adopted;
}

class SlotTable : public testing::Test {
 protected:
  SlotTable() : table_(SlotTableBytes(kSegmentBytes, 1)), slots_(Over(table_, 1)) {
    class_index_ = slots_->AddClass(kSlotBytes, 1).value();
  }
  SlotRef Seal(uint64_t n) {
    const SlotRef slot = slots_->Allocate(class_index_, Numbered(n)).value();
    slots_->row(slot).state = SlotState::kSealed;
    return slot;
  }
  std::byte* BytesOf(const SlotRef& slot) { return table_.data() + slot.row * kSlotRowBytes; }

  std::vector<std::byte> table_;
  Allocator slots_;
  Allocator successor_ = Over(table_, 1);
  uint32_t class_index_ = 0;
};

// As another release may have carved it: its class has no lists for so many free slots.
TEST_F(SlotTable, AnExtentLargerThanTheClassMakesIsNotClaimed) {
  const SlotRef slot = Seal(1);
  SlotRow& row = slots_->row(slot);
  ASSERT_EQ(row.extent_chunks, 1);
  row.extent_chunks = 2;
  row.check = RowCheck(row, kSeed, slot.row);
  const auto adopted = Adopt(table_, 1, &successor_);
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_FALSE(adopted[0].is_torn);
  EXPECT_FALSE(successor_->Claim(adopted[0].slot, successor_->AddClass(kSlotBytes, 1).value()));
  successor_->CheckInvariants();
  successor_->Free(adopted[0].slot);
  successor_->CheckInvariants();
}

TEST_F(SlotTable, SuccessorFindsTheSlotsInUseAndKeepsGenerations) {
  const SlotRef first = Seal(1);
  const SlotRef second = Seal(2);
  const SlotRef third = Seal(3);
  slots_->Free(second);
  const auto adopted = Adopt(table_, 1, &successor_);
  ASSERT_EQ(adopted.size(), 2u);
  EXPECT_EQ(adopted[0].slot, first);
  EXPECT_EQ(adopted[1].slot, third);
  EXPECT_EQ(successor_->row(first).block, Numbered(1));
  EXPECT_FALSE(adopted[0].is_torn);
  const uint32_t claimed = successor_->AddClass(kSlotBytes, 1).value();
  EXPECT_TRUE(successor_->Claim(first, claimed));
  EXPECT_TRUE(successor_->Claim(third, claimed));
  const SlotRef again = successor_->Allocate(claimed).value();
  EXPECT_EQ(again.address, second.address);
  EXPECT_EQ(again.generation, second.generation + 1);
  successor_->CheckInvariants();
}

TEST_F(SlotTable, ExtentOfNoClassIsNotHandedOut) {
  const SlotRef kept = Seal(1);
  Adopt(table_, 1, &successor_);
  const uint32_t other = successor_->AddClass(kSlotBytes, 2).value();
  const SlotRef slot = successor_->Allocate(other).value();
  EXPECT_NE(slot.row / kRowsPerChunk, 0u);
  const uint32_t smaller = successor_->AddClass(kSlotBytes / 2, 1).value();
  EXPECT_FALSE(successor_->Claim(kept, smaller));
}

TEST_F(SlotTable, TornIdentityIsNeverBelieved) {
  const SlotRef slot = Seal(1);
  Seal(2);  // a sound neighbour, so that the carving is known
  for (size_t byte = kSlotRowUncheckedBytes; byte < kSlotRowBytes; ++byte) {
    std::vector<std::byte> torn = table_;
    torn[slot.row * kSlotRowBytes + byte] ^= std::byte{0x10};
    const auto adopted = Adopt(torn, 1, &successor_);
    ASSERT_EQ(adopted.size(), 2u) << "byte " << byte;
    // The sound row comes first.
    EXPECT_FALSE(adopted[0].is_torn);
    EXPECT_TRUE(adopted[1].is_torn) << "byte " << byte;
    EXPECT_EQ(successor_->row(adopted[1].slot).state, SlotState::kFenced);
    EXPECT_EQ(successor_->row(adopted[1].slot).block, SlotIdentity{});
  }
}

// As the bytes of one row lie while the next block's are written over them, up to every byte.
TEST_F(SlotTable, HalfWrittenBlockIsEitherFreeOrTorn) {
  const SlotRef slot = Seal(1);
  Seal(9);
  std::vector<std::byte> before(BytesOf(slot), BytesOf(slot) + kSlotRowBytes);
  slots_->Free(slot);
  const std::vector<std::byte> freed(BytesOf(slot), BytesOf(slot) + kSlotRowBytes);
  ASSERT_EQ(Seal(2).row, slot.row);
  const std::vector<std::byte> after(BytesOf(slot), BytesOf(slot) + kSlotRowBytes);
  for (size_t cut = 1; cut < kSlotRowBytes; ++cut) {
    std::vector<std::byte> torn = table_;
    // All but the state, which is written last.
    std::memcpy(torn.data() + slot.row * kSlotRowBytes, freed.data(), kSlotRowBytes);
    std::memcpy(torn.data() + slot.row * kSlotRowBytes + 1, after.data() + 1, cut);
    EXPECT_EQ(Adopt(torn, 1, &successor_).size(), 1u) << "cut " << cut;
  }
  // The last byte is the same in all rows.
  for (size_t cut = kSlotRowUncheckedBytes + 1; cut < kSlotRowBytes - 1; ++cut) {
    std::vector<std::byte> torn = table_;
    std::memcpy(torn.data() + slot.row * kSlotRowBytes, before.data(), cut);
    const auto adopted = Adopt(torn, 1, &successor_);
    ASSERT_EQ(adopted.size(), 2u);
    EXPECT_TRUE(adopted[1].is_torn) << "cut " << cut;
  }
}

TEST_F(SlotTable, RowCopiedElsewhereIsTorn) {
  const SlotRef slot = Seal(1);
  const SlotRef other = Seal(2);
  std::memcpy(BytesOf(other), BytesOf(slot), kSlotRowBytes);
  const auto adopted = Adopt(table_, 1, &successor_);
  ASSERT_EQ(adopted.size(), 2u);
  EXPECT_TRUE(adopted[1].is_torn);
}

TEST_F(SlotTable, ContradictingRowsFenceTheirSegmentOnly) {
  std::vector<std::byte> table(SlotTableBytes(kSegmentBytes, 2));
  Allocator slots = Over(table, 2);
  const uint32_t small = slots->AddClass(kSlotBytes, 1).value();
  const uint32_t large = slots->AddClass(kSegmentBytes, 2).value();
  const SlotRef kept = slots->Allocate(large, Numbered(5)).value();
  const SlotRef slot = slots->Allocate(small, Numbered(6)).value();
  ASSERT_NE(kept.address.segment, slot.address.segment);
  // Another slot size at the next row of the same extent, with a check that matches.
  SlotRow row = slots->row(slot);
  row.slot_pages += 1;
  const uint64_t index = slot.address.segment * (kSegmentBytes / kArenaPageBytes) + slot.row + 1;
  row.check = RowCheck(row, kSeed, index);
  std::memcpy(table.data() + index * kSlotRowBytes, &row, kSlotRowBytes);

  Allocator successor = Over(table, 2);
  const auto adopted = Adopt(table, 2, &successor);
  ASSERT_EQ(adopted.size(), 2u);
  const bool is_first = adopted[0].slot.address.segment == kept.address.segment;
  const auto& sound = adopted[is_first ? 0 : 1];
  const auto& fenced = adopted[is_first ? 1 : 0];
  EXPECT_EQ(sound.slot, kept);
  EXPECT_TRUE(fenced.is_torn);
  EXPECT_EQ(successor->usage().used_bytes, 2 * kSegmentBytes);
  // The next successor finds the same fence, and with it the segment comes back whole.
  Allocator third = Over(table, 2);
  ASSERT_EQ(Adopt(table, 2, &third).size(), 2u);
  third->Free(fenced.slot);
  third->CheckInvariants();
  EXPECT_EQ(third->segment_state(fenced.slot.address.segment), SegmentState::kFree);
}

// The real thing: a process that takes, amends and frees slots is killed between any two stores.
TEST(SlotTableKill, RowInUseIsWholeOrTorn) {
  constexpr int kKills = 40;
  const size_t table_bytes = SlotTableBytes(kSegmentBytes, 1);
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::byte> table(memory, table_bytes);
  std::mt19937 random(7);
  int in_use = 0;
  for (int kill_index = 0; kill_index < kKills; ++kill_index) {
    std::memset(memory, 0, table_bytes);
    const pid_t child = fork();
    if (child == 0) {
      Allocator slots = Over(table, 1);
      const uint32_t class_index = slots->AddClass(kSlotBytes, 1).value();
      std::vector<SlotRef> held;
      for (uint64_t n = 1;; ++n) {
        if (held.size() > 20) {
          slots->Free(held[n % held.size()]);
          held[n % held.size()] = held.back();
          held.pop_back();
        }
        held.push_back(slots->Allocate(class_index, Numbered(n)).value());
        slots->Amend(held[n % held.size()], Numbered(n * 1000 + 1));
      }
    }
    usleep(1000 + random() % 3000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    Allocator successor = Over(table, 1);
    int torn_count = 0;
    for (const auto& [slot, is_torn] : Adopt(table, 1, &successor)) {
      ++in_use;
      torn_count += is_torn ? 1 : 0;
      if (is_torn) continue;
      const SlotIdentity& block = successor->row(slot).block;
      EXPECT_EQ(block, Numbered(block.key.low));
    }
    EXPECT_LE(torn_count, 1) << "a kill interrupts one update";
  }
  EXPECT_GT(in_use, kKills) << "the processes did nothing";
  munmap(memory, table_bytes);
}

}  // namespace
}  // namespace terrace
