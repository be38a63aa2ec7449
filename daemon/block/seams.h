// The seams between the store (plain functions on metadata) and the world: time, randomness, arena
// memory, and work done by other threads. The daemon's shell implements them with the operating
// system; simulation with a seed. Through these alone does anything outside enter the store.
//
// THREADING: called on the store thread; none blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/block/group_files_trouble.h"
#include "terrace/block_key.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t NowUs() const = 0;  // monotonic
  virtual uint64_t UnixSeconds() const = 0;
};

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Next() = 0;  // 64 unpredictable bits (seeded ones in simulation)
};

// The memory of one domain's arena, by segment. Segments begin unpopulated; only populated ones
// hold slots.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  // The segment's first byte. REQUIRES: populated.
  virtual std::byte* SegmentBase(uint32_t segment) = 0;
  // Populates on another thread; Store::OnSegmentPopulated follows.
  virtual void BeginPopulate(uint32_t segment) = 0;
  // Gives the pages back on another thread; Store::OnSegmentPunched follows.
  virtual void BeginPunch(uint32_t segment) = 0;
  // Why the segment that was to be populated last was not, and the remedy; empty: it was.
  virtual std::string Shortage() const { return {}; }
  // Some of it is for the moment memory of this process alone: clients have other bytes there.
  virtual bool HasLost(std::span<const std::byte> /*bytes*/) const { return false; }
  // Of the system's pages that it is of; 0: of no files.
  virtual uint64_t PageBytes() const { return 0; }
};

// From this bit on, TransferIds and OffloadIds say which domain asked. What is below, its rooms
// say.
inline constexpr uint32_t kDomainShift = 48;

// What a pool of threads does for the store: checksums of slot bytes, and memory.
using OffloadId = uint64_t;
struct ChecksumJob {
  OffloadId id = 0;
  struct Part {
    std::span<const std::byte> bytes;
    uint64_t seed = 0;
  };
  std::vector<Part> parts;
};
class Offload {
 public:
  virtual ~Offload() = default;
  // kBusy when the queue is full. After kOk, Store::OnChecksumsDone(id, roots) follows with one
  // root a part, never from inside this call.
  virtual Status Submit(ChecksumJob job) = 0;
  // The system finds the memory now, so that whoever uses it later need not wait; what it holds
  // stays. Nobody has to, and nothing follows.
  virtual void Populate(std::span<std::byte> /*memory*/) {}
};

// Keeps the specs of groups for a successor, who cannot read blocks without them.
class GroupFiles {
 public:
  enum class State : uint8_t { kComing, kKept, kFailed };

  virtual ~GroupFiles() = default;
  // The group was opened; asked again for the same group it does nothing, unless it has failed.
  // Written by another thread.
  virtual void Keep(uint32_t domain_index, const SpaceGroupSpec& spec) = 0;
  // A predecessor has kept it, and its blocks are here.
  virtual void Inherit(uint32_t /*domain_index*/, const SpaceGroupSpec& /*spec*/) {}
  // The domain has forgotten the group, and no successor will find a block of it: its spec goes,
  // unless it is kept again meanwhile.
  virtual void Drop(uint32_t domain_index, const GroupId& id) = 0;
  // kKept: a successor would find it. kFailed: it would not, or nobody asked to keep it. After
  // kComing, Store::OnGroupFilesChanged follows.
  virtual State StateOf(uint32_t domain_index, const GroupId& id) const = 0;
  // What was kept, or inherited, somebody has removed, and it is not there again yet. After it has
  // become so, Store::OnGroupFilesChanged follows.
  virtual bool IsLost(uint32_t /*domain_index*/, const GroupId& /*id*/) const { return false; }
  // What it takes grows with what could not be written.
  virtual GroupFilesTrouble TroubleOf(uint32_t /*domain_index*/) const { return {}; }
};

}  // namespace terrace
