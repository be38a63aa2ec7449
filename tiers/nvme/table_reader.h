// TableReader: what the header table of one slab says, entry by entry. What cannot be read costs
// the entries in it alone.
//
// THREADING: any thread; blocks. OWNERSHIP: the disk and the secret outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tiers/disk/disk.h"
#include "tiers/nvme/slab_set.h"

namespace terrace {

inline constexpr size_t kUnreadSectorsMax =
    64;  // of a table; with more the drive is taken for gone

class TableReader {
 public:
  // `status`: as DecodeEntry says, or kIo; only after kOk does `entry` say something.
  using Visitor = std::function<void(uint32_t slot, Status status, const SlabEntry& entry)>;
  // Told of the key of an entry that will soon be visited, to have memory at hand.
  using Ahead = std::function<void(const BlockKey& key)>;

  TableReader(Disk& disk, const SlabPlace& place, const DomainSecret& secret)
      : disk_(disk), place_(place), secret_(secret) {}

  // In the order of slots.
  void VisitAll(const Visitor& visit, const Ahead& ahead = {}) const;
  // The bytes of one entry, as they are. kNotFound: the slab has no such slot, or its entry was
  // never written. kCorrupt, kIo: as DecodeEntry and the disk say.
  Status ReadEntry(uint32_t slot, std::vector<std::byte>* bytes) const;
  // Whether the table has these very bytes there, whatever they say.
  bool Has(uint32_t slot, std::span<const std::byte> bytes) const;

 private:
  void VisitChunk(uint32_t first, uint32_t end, std::vector<std::byte>* chunk, const Visitor& visit,
                  const Ahead& ahead) const;
  std::vector<Status> ReadBySector(uint64_t begin_bytes, std::span<std::byte> into) const;

  Disk& disk_;
  const SlabPlace place_;
  const DomainSecret& secret_;
};

}  // namespace terrace
