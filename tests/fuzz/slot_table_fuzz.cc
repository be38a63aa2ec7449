// What a predecessor left of an arena: the rows of its slot table as a kill, a bit flip or another
// release may leave them, some with the check made anew, and the page that says how the arena was
// made. A successor finds slots that do not overlap, whatever it reads, and what it believes is
// what was written.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "fuzz/fuzz.h"
#include "terrace/units.h"
#include "tiers/arena/arena.h"
#include "tiers/arena/slot_allocator.h"

namespace terrace::fuzz::slot_table {

constexpr uint64_t kSegmentBytes = 6 * kMiB;  // three chunks
constexpr uint32_t kSegments = 2;
constexpr uint64_t kSeed = 0x5EED;
constexpr uint32_t kRowsMax = 64;
constexpr uint32_t kRowsPerSegment = kSegmentBytes / kArenaPageBytes;
constexpr uint32_t kChunksPerSegment = kSegmentBytes / kExtentUnitBytes;
constexpr std::array<uint64_t, 4> kSlotBytes = {4 * kKiB, 96 * kKiB, 3 * kMiB, kSegmentBytes};

struct Successor {
  std::unique_ptr<SlotAllocator> slots;
  std::vector<SlotAllocator::AdoptedSlot> adopted;
};

Successor Succeed(std::span<std::byte> table) {
  Successor successor{.slots = std::make_unique<SlotAllocator>(
                          SlotAllocator::Options{.segment_bytes = kSegmentBytes,
                                                 .segments_max = kSegments,
                                                 .slot_table = table,
                                                 .table_seed = kSeed}),
                      .adopted = {}};
  for (uint32_t segment = 0; segment < kSegments; ++segment) {
    successor.slots->SegmentPopulated(segment);
  }
  successor.slots->Adopt(&successor.adopted);
  successor.slots->CheckInvariants();
  return successor;
}

// [where: a chunk, and which row of it; which fields say what; whether the check is right]
void PutRow(std::span<std::byte> table, Choices& choices) {
  const uint32_t place = choices.Byte();
  const uint32_t chunk = place % (kSegments * kChunksPerSegment);
  uint32_t row = choices.Byte();
  if (row == 255) row = choices.Number<uint16_t>() % kRowsPerChunk;
  const uint64_t row_index = uint64_t{chunk} * kRowsPerChunk + row;
  const std::span<std::byte> bytes = table.subspan(row_index * kSlotRowBytes, kSlotRowBytes);
  SlotRow made;
  std::memcpy(&made, bytes.data(), sizeof(made));
  const uint8_t kind = choices.Byte();
  made.slot_pages = static_cast<uint32_t>(kSlotBytes[kind % 4] / kArenaPageBytes);
  made.extent_chunks = static_cast<uint16_t>(1 + kind / 4 % kChunksPerSegment);
  made.block.commit_id = 1 + choices.Byte();
  made.block.member = choices.Byte();
  std::memcpy(bytes.data(), &made, sizeof(made));
  // The state, as any byte: no value of the enumeration may be made of it here.
  const uint8_t state = choices.Byte();
  bytes[0] = static_cast<std::byte>(state < 200 ? state % kSlotStateCount : state);
  for (uint32_t left = choices.Below(4); left > 0; --left) {
    const size_t at = choices.Byte() % kSlotRowBytes;
    bytes[at] = static_cast<std::byte>(choices.Byte());
  }
  if (place < 224) {
    std::memcpy(&made, bytes.data(), sizeof(made));
    made.check = RowCheck(made, kSeed, row_index);
    std::memcpy(bytes.data() + offsetof(SlotRow, check), &made.check, sizeof(made.check));
  }
}

struct Run64 {
  uint64_t first = 0, end = 0;
};

void JudgeAdopted(const Successor& successor) {
  std::vector<Run64> taken;
  for (const SlotAllocator::AdoptedSlot& adopted : successor.adopted) {
    const SlotRef& slot = adopted.slot;
    Require(slot.address.segment < kSegments && successor.slots->IsCurrent(slot),
            "a slot was adopted that is none");
    const SlotRow& row = successor.slots->row(slot);
    Require(static_cast<uint8_t>(row.state) < kSlotStateCount && row.state != SlotState::kFree,
            "a slot was adopted that nobody uses");
    Require(!adopted.is_torn || row.state == SlotState::kFenced, "a torn row is believed");
    const uint64_t first =
        slot.address.segment * kSegmentBytes + slot.address.page * kArenaPageBytes;
    taken.push_back({first, first + row.slot_pages * kArenaPageBytes});
    Require(taken.back().end <= (slot.address.segment + 1) * kSegmentBytes,
            "a slot reaches beyond its segment");
  }
  std::ranges::sort(taken, {}, &Run64::first);
  for (size_t i = 1; i < taken.size(); ++i) {
    Require(taken[i - 1].end <= taken[i].first, "two slots that were adopted overlap");
  }
}

// Those that are current before are current for a second successor, and say the same.
void JudgeAgain(const Successor& first, std::span<std::byte> table) {
  Bytes copy(table.begin(), table.end());
  const Successor second = Succeed(copy);
  Require(second.adopted.size() == first.adopted.size(), "a second successor finds others");
  for (const SlotAllocator::AdoptedSlot& adopted : first.adopted) {
    Require(second.slots->IsCurrent(adopted.slot), "a second successor does not know a slot");
    Require(std::memcmp(&second.slots->row(adopted.slot), &first.slots->row(adopted.slot),
                        sizeof(SlotRow)) == 0,
            "a second successor reads another row");
  }
}

// Classes claim what is theirs, new slots are taken, all are given back: nothing is left.
void UseAll(Successor& successor, Choices& choices) {
  SlotAllocator& slots = *successor.slots;
  std::vector<SlotRef> used;
  for (const SlotAllocator::AdoptedSlot& adopted : successor.adopted) used.push_back(adopted.slot);
  std::array<uint32_t, kSlotBytes.size()> classes;
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = slots.AddClass(kSlotBytes[i], i).value();
  for (uint32_t steps = choices.Below(64); steps > 0; --steps) {
    const uint8_t chosen = choices.Byte();
    if (chosen % 3 == 0) {
      const Result<SlotRef> slot = slots.Allocate(classes[chosen / 3 % classes.size()]);
      if (slot.ok()) used.push_back(*slot);
    } else if (!used.empty()) {
      const size_t at = chosen / 3 % used.size();
      if (chosen % 3 == 1) {
        (void)slots.Claim(used[at], classes[chosen / 3 % classes.size()]);
      } else {
        slots.Free(used[at]);
        Require(!slots.IsCurrent(used[at]), "a slot that was freed is current");
        used.erase(used.begin() + static_cast<ptrdiff_t>(at));
      }
    }
    if (steps % 8 == 0) slots.CheckInvariants();
  }
  for (const SlotRef& slot : used) slots.Free(slot);
  slots.CheckInvariants();
  Require(slots.usage().slots_used == 0 && slots.usage().used_bytes == 0, "slots are left");
}

// [how many; each row; then what is done with what is found]
void TryRows(Choices& choices) {
  static Bytes table(SlotTableBytes(kSegmentBytes, kSegments));
  std::ranges::fill(table, std::byte{0});
  for (uint32_t left = choices.Below(kRowsMax); left > 0; --left) PutRow(table, choices);
  Successor successor = Succeed(table);
  JudgeAdopted(successor);
  JudgeAgain(successor, table);
  UseAll(successor, choices);
}

// ---- the arena's memfds ----

constexpr uint32_t kArenaSegments = 3;

Arena::Options ArenaOptions() {
  return {.name = "fuzz",
          .segment_bytes = kSegmentBytesMin,
          .segments_max = kArenaSegments,
          .backing = ArenaBackingChoice::kShmem,
          .segments_free_min = 1,
          .nodes = {0},
          .identity = 0x1DE,
          .on_populated = [](uint32_t, Status) {},
          .on_punched = [](uint32_t, Status) {}};
}

// A copy of what an arena's slot table is, with some bytes of its last pages others.
int PatchedTable(const Bytes& table, Choices& choices) {
  Bytes patched = table;
  const size_t tail_bytes = 4 * kArenaPageBytes;
  for (uint32_t left = choices.Below(6); left > 0; --left) {
    const size_t back = choices.Number<uint16_t>() % tail_bytes + 1;
    patched[patched.size() - std::min(back, patched.size())] =
        static_cast<std::byte>(choices.Byte());
  }
  const uint32_t cut = choices.Below(8);
  if (cut == 7) patched.resize(choices.Number<uint16_t>());
  if (cut == 6) patched.erase(patched.begin(), patched.begin() + kArenaPageBytes);
  const int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  Require(fd >= 0 && ftruncate(fd, static_cast<off_t>(patched.size())) == 0 &&
              pwrite(fd, patched.data(), patched.size(), 0) == static_cast<ssize_t>(patched.size()),
          "no table");
  if (choices.Below(16) != 15) {
    Require(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "no seals");
  }
  return fd;
}

const Bytes& ExampleTable(int* node_fd) {
  static Bytes table;
  static int kept_fd = -1;
  if (table.empty()) {
    std::string why;
    const auto arena = Arena::Create(ArenaOptions(), &why);
    Require(arena.ok(), "the target's own arena");
    (*arena)->NoteSession(7);
    (*arena)->NoteSession(9);
    const int fd = (*arena)->fds().slot_table;
    table.resize(static_cast<size_t>(lseek(fd, 0, SEEK_END)));
    Require(pread(fd, table.data(), table.size(), 0) == static_cast<ssize_t>(table.size()),
            "the table cannot be read");
    kept_fd = dup((*arena)->fds().nodes[0]);
  }
  *node_fd = kept_fd;
  return table;
}

// [patches of the last pages; where of a page the trailer lies is where it is read]
void TryArena(Choices& choices) {
  int node_fd = -1;
  const Bytes& table = ExampleTable(&node_fd);
  ArenaFds fds{.nodes = {}, .slot_table = PatchedTable(table, choices)};
  for (uint32_t left = choices.Below(8) == 7 ? choices.Below(3) : 1; left > 0; --left) {
    fds.nodes.push_back(dup(node_fd));
  }
  std::string why;
  const auto arena = Arena::AdoptFds(ArenaOptions(), fds, &why);
  if (!arena.ok()) return Require(!why.empty(), "refused, and nobody says why");
  uint64_t last = 0;
  for (const uint64_t session : (*arena)->NotedSessions()) last = session;
  (*arena)->ForgetSession(last);
  (void)(*arena)->has_unnoted_sessions();
  for (uint32_t segment = 0; segment < kArenaSegments; ++segment) {
    if (!(*arena)->IsPopulated(segment)) continue;
    std::byte* const base = (*arena)->SegmentBase(segment);
    Require((*arena)->AddressOf(base) == SlotAddress{segment, 0}, "a byte lies somewhere else");
  }
}

constexpr void (*kTries[])(Choices&) = {TryRows, TryRows, TryRows, TryArena};

// ---- seeds ----

// A table as our own allocator leaves it, written row by row.
Bytes FilledSeed(const std::vector<size_t>& classes) {
  ChoiceWriter writer;
  writer.Byte(0).Byte(static_cast<uint8_t>(classes.size()));
  for (size_t i = 0; i < classes.size(); ++i) {
    const auto chunk = static_cast<uint8_t>(classes[i] == 0 ? 0 : classes[i] == 1 ? 1 : 4);
    const auto chunks = static_cast<uint8_t>(classes[i] <= 1 ? 0 : classes[i] == 2 ? 1 : 3);
    writer.Byte(chunk).Byte(static_cast<uint8_t>(classes[i] <= 1 ? i : 0));
    writer.Byte(static_cast<uint8_t>(classes[i] + 4 * chunks)).Byte(static_cast<uint8_t>(i));
    writer.Byte(0).Byte(2).Byte(0);
  }
  writer.Byte(40);
  for (uint8_t step = 0; step < 40; ++step) writer.Byte(static_cast<uint8_t>(step * 7));
  return writer.Take();
}

// The trailer is the beginning of the last page, the marks of segments that of the one before:
// tiers/arena/arena.h.
constexpr uint16_t kTrailerBack = kArenaPageBytes - 1, kMarksBack = 2 * kArenaPageBytes - 1;
Bytes Patched(uint16_t back, uint8_t value) {
  return ChoiceWriter().Byte(3).Byte(1).Put<uint16_t>(back).Byte(value).Take();
}

std::vector<Seed> Seeds() {
  return {{"rows", FilledSeed({0, 0, 0, 1, 1, 2})},
          {"rows_of_one_slot", FilledSeed({3})},
          {"rows_at_odds", FilledSeed({2, 3, 0})},
          {"arena", ChoiceWriter().Byte(3).Take()},
          {"arena_patched", ChoiceWriter().Byte(3).Byte(1).Put<uint16_t>(4095 - 41).Byte(1).Take()},
          {"arena_of_more_segments", Patched(kTrailerBack - 32, 4)},
          {"arena_of_more_nodes", Patched(kTrailerBack - 36, 2)},
          {"arena_of_huge_pages", Patched(kTrailerBack - 40, 1)},
          {"arena_half_populated", Patched(kMarksBack - 1, 1)},
          {"arena_of_less_rows", ChoiceWriter().Byte(3).Byte(0).Byte(6).Take()},
          {"arena_cut", ChoiceWriter().Byte(3).Byte(0).Byte(7).Put<uint16_t>(4096).Take()}};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 slot tables of a predecessor
const Registration registration({"slot_table", Run, Seeds});

}  // namespace terrace::fuzz::slot_table
