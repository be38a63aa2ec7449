// CommitMarks: of one Reserve, which of its keys became entries of the write lease, and what its
// writers have committed of each entry: a part once, or a member absent once.
//
// THREADING: one thread. OWNERSHIP: of a Lease; changed through LeaseTable::marks only.
// LIMITS: 12 bytes an entry and 8 for each 64 parts of its block; a key that was not reserved
// leaves nothing here, so that a lease costs no more than what its blocks pay for with slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

inline constexpr uint32_t kEntryNone = 0xFFFFFFFF;

// A range within a row of part bits.
struct PartBits {
  uint32_t first = 0;
  uint32_t count = 0;
};

class CommitMarks {
 public:
  CommitMarks() = default;  // of a lease that writes nothing
  // `part_words`: Group::part_words().
  explicit CommitMarks(uint32_t part_words) : part_words_(part_words) {}

  // Room at once for so many entries.
  void MakeRoom(size_t entry_count);
  // No further key comes: memory that was kept for more is given back.
  void EndKeys();
  // One more key has been answered; the lease has so many entries now: one more than before if the
  // key was reserved. REQUIRES: of a write lease.
  void AddKey(size_t entry_count);

  uint32_t key_count() const { return key_count_; }
  // kEntryNone if the key was not reserved.
  uint32_t EntryOf(uint32_t key_index) const;

  // REQUIRES for these: an entry that AddKey was told of.
  // A bit a part, as Group::locals() lays them out; set: committed.
  std::span<const uint64_t> PartBitsOf(uint32_t entry) const {
    return std::span(part_bits_).subspan(size_t{entry} * part_words_, part_words_);
  }
  // A bit a member; set: committed absent.
  uint64_t absent_mask(uint32_t entry) const { return absent_masks_[entry]; }
  // False, and nothing is marked, if any of it was.
  bool MarkParts(uint32_t entry, PartBits bits);
  bool MarkAbsent(uint32_t entry, uint32_t member);

 private:
  uint32_t part_words_ = 0;  // of a row
  uint32_t key_count_ = 0;
  std::vector<uint32_t> key_indexes_;   // per entry its key's place in the Reserve, ascending
  std::vector<uint64_t> part_bits_;     // per entry a row
  std::vector<uint64_t> absent_masks_;  // per entry
};

}  // namespace terrace
