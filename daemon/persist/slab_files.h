// Slab files as somebody sees them who is not the tier: which there are, and what their tables say.
// For looking, at start and offline; nothing here writes unless it is told to.
//
// THREADING: one thread at a time. Every call blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/nvme/header_table.h"

namespace terrace {

// A file named as slabs are.
struct SlabFile {
  std::string path;
  uint32_t index = 0;  // as its name says
  uint64_t file_bytes = 0;
  Status status;  // of what follows; kNotFound: all zero, never finished
  SlabSuperblock superblock;
  SlabGeometry geometry;
};

// The number in slab-<number>.terrace; kInvalid for any other name.
Result<uint32_t> SlabIndexOf(const std::string& file_name);
// The slab files of a directory, in order of their numbers. None where there is no directory.
// `*status`: kIo where it cannot be listed to its end.
std::vector<SlabFile> ListSlabFiles(const std::string& directory, const DomainSecret& secret,
                                    Status* status = nullptr);

class SlabReader {
 public:
  enum class Access : uint8_t { kRead, kReadWrite };
  // REQUIRES: file.status is kOk.
  SlabReader(const SlabFile& file, const DomainSecret& secret, Access access);
  ~SlabReader();
  SlabReader(const SlabReader&) = delete;
  SlabReader& operator=(const SlabReader&) = delete;

  // Every slot in order; `status` is DecodeEntry's, or kIo where the table could not be read.
  // `bytes` are valid during the call, and empty after kIo.
  using EntryVisitor = std::function<void(uint32_t slot, Status status, const SlabEntry& entry,
                                          std::span<const std::byte> bytes)>;
  Status VisitTable(const EntryVisitor& visit) const;
  // From the drive: what the page cache had of it is dropped first.
  Status ReadPayload(uint32_t slot, std::span<std::byte> into) const;
  // REQUIRES: kReadWrite. `entry.slot` says where.
  Status WriteEntry(const SlabEntry& entry) const;
  Status Sync() const;

 private:
  Status ReadAt(uint64_t offset_bytes, std::span<std::byte> into) const;
  const SlabFile file_;
  const DomainSecret secret_;
  int fd_ = -1;
};

}  // namespace terrace
