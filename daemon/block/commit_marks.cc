#include "daemon/block/commit_marks.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

void CommitMarks::MakeRoom(size_t entry_count) {
  key_indexes_.reserve(entry_count);
  part_bits_.reserve(entry_count * part_words_);
  absent_masks_.reserve(entry_count);
}

void CommitMarks::EndKeys() {
  key_indexes_.shrink_to_fit();
  part_bits_.shrink_to_fit();
  absent_masks_.shrink_to_fit();
}

void CommitMarks::AddKey(size_t entry_count) {
  TERRACE_CHECK(part_words_ > 0, "keys are a Reserve's");
  const uint32_t key_index = key_count_++;
  if (entry_count == key_indexes_.size()) return;
  key_indexes_.push_back(key_index);
  TERRACE_CHECK(entry_count == key_indexes_.size(), "an entry a reserved key");
  part_bits_.resize(entry_count * part_words_);
  absent_masks_.resize(entry_count);
}

uint32_t CommitMarks::EntryOf(uint32_t key_index) const {
  // Mostly every key was reserved, and an entry is where its key is.
  if (key_index < key_indexes_.size() && key_indexes_[key_index] == key_index) return key_index;
  const auto found = std::lower_bound(key_indexes_.begin(), key_indexes_.end(), key_index);
  if (found == key_indexes_.end() || *found != key_index) return kEntryNone;
  return static_cast<uint32_t>(found - key_indexes_.begin());
}

bool CommitMarks::MarkParts(uint32_t entry, PartBits bits) {
  const uint32_t end = bits.first + bits.count;
  TERRACE_CHECK(entry < absent_masks_.size() && end <= part_words_ * 64, "parts are of an entry");
  uint64_t* const row = &part_bits_[size_t{entry} * part_words_];
  for (uint32_t bit = bits.first; bit < end; ++bit) {
    if ((row[bit / 64] >> (bit % 64)) & 1) return false;
  }
  for (uint32_t bit = bits.first; bit < end; ++bit) row[bit / 64] |= uint64_t{1} << (bit % 64);
  return true;
}

bool CommitMarks::MarkAbsent(uint32_t entry, uint32_t member) {
  TERRACE_CHECK(entry < absent_masks_.size() && member < 64,
                "a member is a bit of an entry's mask");
  uint64_t& absent = absent_masks_[entry];
  if ((absent >> member) & 1) return false;
  absent |= uint64_t{1} << member;
  return true;
}

}  // namespace terrace
