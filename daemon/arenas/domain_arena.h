// DomainArena: one domain's arena as the store sees it. What the arena's thread has done comes back
// as events on the store thread.
//
// THREADING: store thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/block/seams.h"
#include "daemon/config/config.h"
#include "terrace/checksum.h"
#include "tiers/arena/arena.h"
#include "tiers/arena/bus_guard.h"
#include "tiers/disk/disk.h"

namespace terrace {

// Says in the log which pages were lost: see tiers/arena/bus_guard.h.
class LostPagesLog {
 public:
  void Tell();

 private:
  uint64_t told_ = 0;
};

class DomainArena : public ArenaMemory {
 public:
  struct Options {
    std::string domain_name;
    uint64_t segment_bytes = kSegmentBytesDefault;
    uint32_t segments_max = 0;
    uint32_t segments_expected = 0;  // of huge pages, if there are enough for all domains'
    HugePages hugepages = HugePages::kAuto;
    DomainSecret secret{};  // whose bytes they are
  };
  struct Events {
    std::function<void(uint32_t segment, Status status)> on_populated;
    std::function<void(uint32_t segment, Status status)> on_punched;
  };
  // Runs its argument on the store thread, later. Called on the arena's thread.
  using Post = std::function<void(std::function<void()>)>;
  DomainArena(const Options& options, Post post, Events events);

  // Makes the memory; nothing is populated yet. Huge pages for `segments_free_min` must be free,
  // for this domain and others; the first segment's are claimed then. Blocks. Not kOk: `*why` says
  // what and the remedy.
  Status Create(uint32_t segments_free_min, std::string* why);
  // Takes over the memory that a predecessor made with equal options, and closes `fds` in any case.
  // Not kOk: `*why` says what differs; Create may follow. Blocks.
  Status Adopt(const ArenaFds& fds, std::string* why);

  // What was adopted is not used after all: as before.
  void Abandon() { arena_.reset(); }

  // Whether readers can be handed the memory, if the domain has readers: writer_uids. Not kOk:
  // `*why` says what keeps it. REQUIRES: Create or Adopt was kOk.
  Status CheckReaders(const DomainConfig& domain, std::string* why) const;

  std::byte* SegmentBase(uint32_t segment) override { return arena_->SegmentBase(segment); }
  void BeginPopulate(uint32_t segment) override { arena_->BeginPopulate(segment); }
  // Disks let go of the segment's pages first: pinned pages would not return.
  void BeginPunch(uint32_t segment) override;

  // Of those it expects, what it has no huge pages of yet; below 0, what it is to give back. 0,
  // too: it is of small pages.
  int64_t SegmentsOwed() const;
  std::string Shortage() const override { return shortage_; }
  bool HasLost(std::span<const std::byte> bytes) const override {
    return HasLostPageIn(bytes.data(), bytes.size());
  }
  uint64_t PageBytes() const override;

  // Segments are registered with these disks while they are populated. Once, before the first
  // transfer; the disks outlive the arena's last event.
  void RegisterWith(std::vector<Disk*> disks);

  const std::string& domain_name() const { return options_.domain_name; }
  uint64_t segment_bytes() const { return options_.segment_bytes; }
  uint32_t segments_max() const { return options_.segments_max; }
  std::vector<uint32_t> PopulatedSegments() const;
  // REQUIRES: Create or Adopt was kOk.
  Arena& arena() const { return *arena_; }

 private:
  std::function<void(uint32_t, Status)> Posted(
      const std::function<void(uint32_t, Status)>& event) const;

  Arena::Options MakeOptions();
  void OnPopulated(uint32_t segment, Status status);
  std::string ShortageOf(Status status) const;
  Status Own(Result<std::unique_ptr<Arena>> arena, std::string_view origin);
  void Register(uint32_t segment);

  const Options options_;
  const Post post_;
  const Events events_;
  std::vector<Disk*> disks_;
  std::string shortage_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace terrace
