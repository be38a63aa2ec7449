#include "daemon/arenas/domain_arena.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "daemon/config/config_text.h"
#include "daemon/log/log.h"
#include "daemon/socket/memory_to_read.h"
#include "terrace/check.h"
#include "tiers/arena/bus_guard.h"

namespace terrace {
namespace {

ArenaBackingChoice ChoiceOf(HugePages hugepages) {
  switch (hugepages) {
    case HugePages::kAuto:
      return ArenaBackingChoice::kAuto;
    case HugePages::kOn:
      return ArenaBackingChoice::kHugetlb;
    case HugePages::kOff:
      return ArenaBackingChoice::kShmem;
  }
  return ArenaBackingChoice::kAuto;
}

}  // namespace

void LostPagesLog::Tell() {
  const uint64_t lost = LostPageCount() - told_;
  if (lost == 0) return;
  told_ += lost;
  Log(LogLevel::kWarn, "arena pages lost",
      {{"pages", lost},
       {"why",
        "they could not be read: a client has punched holes in an arena of huge pages, or the "
        "machine's memory is broken; their blocks are misses"}});
}

DomainArena::DomainArena(const Options& options, Post post, Events events)
    : options_(options), post_(std::move(post)), events_(std::move(events)) {}

std::function<void(uint32_t, Status)> DomainArena::Posted(
    const std::function<void(uint32_t, Status)>& event) const {
  return [this, &event](uint32_t segment, Status status) {
    post_([&event, segment, status] { event(segment, status); });
  };
}

void DomainArena::Register(uint32_t segment) {
  for (Disk* disk : disks_) {
    disk->RegisterBuffer(segment, {arena_->SegmentBase(segment), options_.segment_bytes});
  }
}

void DomainArena::RegisterWith(std::vector<Disk*> disks) {
  TERRACE_CHECK(disks_.empty(), "a segment is given up when each disk it was told to has let go");
  disks_ = std::move(disks);
  for (const uint32_t segment : PopulatedSegments()) Register(segment);
}

void DomainArena::BeginPunch(uint32_t segment) {
  auto left = std::make_shared<size_t>(disks_.size() + 1);
  const auto let_go = [this, segment, left] {
    TERRACE_CHECK(*left > 0, "a disk lets go once: another may still be writing to the pages");
    if (--*left == 0) arena_->BeginPunch(segment);
  };
  for (Disk* disk : disks_) disk->UnregisterBuffer(segment, let_go);
  let_go();
}

Arena::Options DomainArena::MakeOptions() {
  Arena::Options options;
  options.name = options_.domain_name;
  options.segment_bytes = options_.segment_bytes;
  options.segments_max = options_.segments_max;
  options.backing = ChoiceOf(options_.hugepages);
  options.identity = KeyedHash64(options_.secret, std::as_bytes(std::span(options_.domain_name)));
  options.on_populated = [this](uint32_t segment, Status status) {
    post_([this, segment, status] { OnPopulated(segment, status); });
  };
  options.on_punched = Posted(events_.on_punched);
  return options;
}

void DomainArena::OnPopulated(uint32_t segment, Status status) {
  if (status.ok()) Register(segment);
  shortage_ = status.ok() ? "" : ShortageOf(status);
  events_.on_populated(segment, status);
}

std::string DomainArena::ShortageOf(Status status) const {
  const bool is_huge = arena_->backing() == ArenaBacking::kHugetlb;
  const size_t populated = PopulatedSegments().size();
  const std::string what =
      populated == 0 ? "none of it can be had"
                     : FormatBytes(populated * options_.segment_bytes) + " are all it has got";
  return what + ": " + status.what() + ": " + std::strerror(status.detail()) + ". " +
         (is_huge ? "Others have huge pages that were free at the start, or there were too few for "
                    "dram_bytes: raise vm.nr_hugepages"
                  : "Leave memory free on the machine, or in the container, or lower dram_bytes");
}

int64_t DomainArena::SegmentsOwed() const {
  const bool is_small = arena_ != nullptr ? arena_->backing() != ArenaBacking::kHugetlb
                                          : options_.hugepages == HugePages::kOff;
  if (is_small) return 0;
  if (arena_ == nullptr) return options_.segments_expected;
  // One that has none populated has claimed its first.
  const size_t held = std::max<size_t>(PopulatedSegments().size(), 1);
  return int64_t{options_.segments_expected} - static_cast<int64_t>(held);
}

Status DomainArena::Create(uint32_t segments_free_min, std::string* why) {
  Arena::Options options = MakeOptions();
  options.segments_free_min = segments_free_min;
  return Own(Arena::Create(std::move(options), why), "new");
}

Status DomainArena::Adopt(const ArenaFds& fds, std::string* why) {
  return Own(Arena::AdoptFds(MakeOptions(), fds, why), "a predecessor's");
}

Status DomainArena::Own(Result<std::unique_ptr<Arena>> arena, std::string_view origin) {
  if (!arena.ok()) return arena.status();
  arena_ = std::move(*arena);
  Log(LogLevel::kInfo, "arena",
      {{"domain", options_.domain_name},
       {"origin", std::string(origin)},
       {"segment_bytes", options_.segment_bytes},
       {"segments_max", options_.segments_max},
       {"segments_populated", PopulatedSegments().size()},
       {"nodes", arena_->fds().nodes.size()},
       {"backing", arena_->backing() == ArenaBacking::kHugetlb ? "huge pages" : "pages"}});
  for (const std::string& note : arena_->notes()) {
    Log(LogLevel::kInfo, "arena note", {{"domain", options_.domain_name}, {"note", note}});
  }
  return Status::Ok();
}

Status DomainArena::CheckReaders(const DomainConfig& domain, std::string* why) const {
  if (!domain.writer_uids || CanBeOpenedToRead(arena_->fds().nodes, why)) return Status::Ok();
  *why = "domain " + domain.name + ": " + *why;
  return Status(StatusCode::kIo, "memory that readers cannot be handed");
}

uint64_t DomainArena::PageBytes() const {
  return arena_->backing() == ArenaBacking::kHugetlb ? kArenaHugePageBytes : kArenaPageBytes;
}

std::vector<uint32_t> DomainArena::PopulatedSegments() const {
  std::vector<uint32_t> segments;
  for (uint32_t segment = 0; segment < options_.segments_max; ++segment) {
    if (arena_->IsPopulated(segment)) segments.push_back(segment);
  }
  return segments;
}

}  // namespace terrace
