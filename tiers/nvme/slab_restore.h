// SlabRestore: what a predecessor left, at start. Payloads are not read: who reads a block verifies
// it. In this order: OpenSlabs; Scan or RestoreEntry of each; Finish.
//
// THREADING: the store thread, before the first Allocate; blocks. OWNERSHIP: its neighbours outlive
// it.
// INVARIANT: a slot that an entry names, readable or not, is nobody else's before that entry is
// erased.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "terrace/checksum.h"
#include "tiers/crypto/group_key.h"
#include "tiers/nvme/table_reader.h"
#include "tiers/tier.h"

namespace terrace {

class EntryWriter;
class ErasureLog;
class LeftEntries;
class NvmeDisks;
class ShapeClasses;

// A Sink's answer: nobody knows yet whose it is. The entry stays, the slot is out of use.
inline constexpr uint32_t kOwnerUnknown = 0xFFFFFFFE;

class SlabRestore {
 public:
  struct Options {
    uint32_t domain_index = 0;
    DomainSecret secret{};
    uint64_t capacity_bytes = 0;
    std::set<std::string> outdated_files;  // as NvmeTier::Options says
    PayloadEncryption encryption;
  };
  struct Neighbours {
    NvmeDisks& disks;
    SlabSet& slabs;
    ShapeClasses& classes;
    EntryWriter& entries;
    ErasureLog& erasures;
    LeftEntries& left;
  };
  // Who owns a restored extent from now on. kOwnerNone: nobody wants it; its slot is freed.
  using Sink = std::function<uint32_t(const BlockRecord& record, const Extent& extent)>;
  // Told of keys that the sink will probably be asked about soon, to have memory at hand.
  using Ahead = TableReader::Ahead;
  struct Counts {
    uint64_t slabs_unopened = 0;  // of slabs_left: more than there may be files
    uint64_t slabs = 0, slabs_left = 0, entries_used = 0, entries_kept = 0, entries_corrupt = 0;
    uint64_t entries_left = 0;    // whose owners nobody knows
    uint64_t entries_locked = 0;  // whose keys nobody has: kept, their slots out of use
    uint64_t entries_plain = 0;   // given up, since they are not encrypted
    uint64_t entries_dead = 0;    // given up, since their keys have been destroyed
    uint64_t entries_unread = 0;  // of the corrupt: their sectors could not be read
  };

  SlabRestore(const Options& options, const Neighbours& neighbours);

  // Opens the slabs there are. A slab that is not this domain's or not whole is left alone and
  // noted.
  Status OpenSlabs(std::vector<std::string>* notes);
  // Reads every table. Entries that are not whole are quarantined slots, counted.
  Status Scan(const Sink& sink, const Ahead& ahead = {});
  // Instead of Scan: one entry as the catalog has it (EncodeEntry's bytes). Of two for one block
  // the sink takes one. kNotFound: no such slot. kCorrupt: that is no entry of the slot, nor what
  // its table holds; nothing has changed.
  Status RestoreEntry(uint32_t slab, uint32_t slot, std::span<const std::byte> entry,
                      const Sink& sink);
  // Slots nobody restored are free from now on.
  void Finish();
  const Counts& counts() const { return counts_; }
  // Slab files that were left alone, with their directory, and disks that could not be listed.
  const std::vector<std::string>& left_files() const { return left_files_; }
  const std::vector<uint32_t>& unlisted_disks() const { return unlisted_disks_; }

 private:
  struct Found;
  struct UsedEntry;
  Status OpenSlabsOf(uint32_t disk, std::vector<std::string>* notes);
  // Reads the start of the file. The answer: why it is left alone; empty: it is ours.
  std::string Open(uint32_t disk, const std::string& name, uint32_t index, Found* found);
  void AddSlab(uint32_t disk, uint32_t index, const Found& found);
  void RetireAboveCapacity(std::vector<std::string>* notes);

  TableReader ReaderOf(const NvmeSlab& slab) const;
  std::unordered_set<uint64_t> NoteAll();
  void NoteEntry(NvmeSlab& slab, uint32_t slot, Status status, const SlabEntry& entry);
  void RestoreUsed(NvmeSlab& slab, const SlabEntry& entry, bool is_wanted, const Sink& sink);
  void Discard(NvmeSlab& slab, uint32_t slot);
  void Leave(NvmeSlab& slab, const SlabEntry& entry, bool is_locked);
  // What the entry's payload is read with. kNotFound: nobody has the key. kGone: its key has been
  // destroyed.
  Status FindCipher(NvmeSlab& slab, const SlabEntry& entry);

  const Options options_;
  NvmeDisks& disks_;
  SlabSet& slabs_;
  ShapeClasses& classes_;
  EntryWriter& entries_;
  ErasureLog& erasures_;
  LeftEntries& left_;
  Counts counts_;
  std::vector<std::string> left_files_;
  std::vector<uint32_t> unlisted_disks_;
};

}  // namespace terrace
