// PROMISE: T08 time to READY over a million blocks
// How long a domain takes from the daemon's start until it may serve what its predecessor left:
// RestoreDomain over real slab files, from their tables and from the catalog. Payloads are holes.
//
//   ready_bench DIRECTORY [BLOCKS [ROUNDS [tables|catalog]]]      defaults: 1000000 5, both
//
// Two figures a start: how long it took, and the processor time it took, which is what is left of
// it on a machine that does other things as well.
//
// DIRECTORY is made, needs about 600 bytes a block, and is left as it is for another run.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/no_seams.h"
#include "daemon/domain/recovery.h"
#include "daemon/persist/fsck.h"
#include "daemon/persist/group_files.h"
#include "daemon/store/store.h"
#include "tiers/arena/slot_table.h"
#include "tiers/disk/file_disk.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlotBytes = 16 * kKiB;
constexpr uint64_t kSlabBytes = kGiB;
constexpr uint32_t kChainBlocks = 64;

void Check(Status status, const std::string& what) {
  if (status.ok()) return;
  std::fprintf(stderr, "ready_bench: %s: %s\n", what.c_str(), status.what());
  std::exit(1);
}

DomainSecret MakeSecret() {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(1 + i * 7);
  return secret;
}

// A domain of one drive that holds `block_count` blocks, in chains, mostly in order.
class Predecessor {
 public:
  Predecessor(std::string directory, uint64_t block_count)
      : directory_(std::move(directory)), block_count_(block_count) {
    const std::string done = directory_ + "/blocks-" + std::to_string(block_count);
    if (fs::exists(done)) return;
    fs::remove_all(directory_);
    fs::create_directories(domain());
    const SpaceGroupSpec group = OneMember(kSlotBytes);
    Check(WriteGroupFile(domain() + "/groups", group, secret_), "group file");
    for (uint32_t index = 0; written_ < block_count; ++index) WriteSlab(index, group);
    FsckReport report;
    std::string why;
    Check(RunFsck({.secret = secret_, .directories = {domain()}, .mode = FsckMode::kRepair},
                  &report, &why),
          why);
    fs::copy(catalog(), kept(), fs::copy_options::recursive);
    close(open(done.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }

  std::string domain() const { return directory_ + "/domain"; }
  std::string catalog() const { return domain() + "/catalog"; }
  std::string kept() const { return directory_ + "/catalog-kept"; }
  const DomainSecret& secret() const { return secret_; }
  uint64_t block_count() const { return block_count_; }
  void LayOut() const {
    fs::remove_all(catalog());
    fs::copy(kept(), catalog(), fs::copy_options::recursive);
  }

 private:
  void WriteSlab(uint32_t index, const SpaceGroupSpec& group) {
    const SlabGeometry geometry = SlabGeometry::Of({kSlotBytes, 1}, kSlabBytes).value();
    const SlabUuid uuid{random_.Next(), random_.Next()};
    std::vector<std::byte> table(geometry.payload_offset_bytes);
    EncodeSuperblock({uuid, index, geometry.shape, kSlabBytes}, secret_,
                     std::span(table).first(kSlabSectorBytes));
    SlabEntry entry;
    entry.state = SlabEntryState::kUsed;
    entry.priority = 50;
    entry.length_bytes = kSlotBytes;
    entry.group = group.Id();
    entry.space = group.members[0].spec.Id();
    for (uint32_t slot = 0; slot < geometry.slot_count && written_ < block_count_; ++slot) {
      entry.slot = slot;
      entry.generation = 1;
      entry.position = static_cast<uint32_t>(written_ % kChainBlocks);
      entry.parent = entry.position == 0 ? BlockKey{} : last_key_;
      entry.key = last_key_ = {random_.Next(), random_.Next()};
      entry.commit_id = random_.Next() | 1;
      entry.epoch = ++written_;
      entry.part_checksums = {Checksum{random_.Next(), random_.Next()}};
      EncodeEntry(geometry, uuid, entry, secret_,
                  std::span(table).subspan(geometry.EntryOffsetBytes(slot), geometry.entry_bytes));
    }
    const std::string path = domain() + "/slab-" + std::to_string(index) + ".terrace";
    const int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    const bool is_written =
        fd >= 0 && ftruncate(fd, static_cast<off_t>(kSlabBytes)) == 0 &&
        write(fd, table.data(), table.size()) == static_cast<ssize_t>(table.size());
    close(fd);
    Check(is_written ? Status::Ok() : Status(StatusCode::kIo, "cannot write"), path);
  }

  const std::string directory_;
  const uint64_t block_count_;
  const DomainSecret secret_ = MakeSecret();
  NoRandom random_;
  BlockKey last_key_;
  uint64_t written_ = 0;
};

// Of all threads.
double ProcessorMs() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

struct Cost {
  double wall_ms = 0;
  double processor_ms = 0;
};

// One start: what RestoreDomain took.
Cost Start(const Predecessor& left, RecoverySource expected) {
  NoClock clock;
  NoRandom random;
  NoOffload offload;
  NoArena arena;
  NoListener listener;
  std::string why;
  left.LayOut();
  if (expected == RecoverySource::kTables) fs::remove(left.catalog() + "/clean");
  Result<std::unique_ptr<Disk>> disk =
      OpenDisk({.directory = left.domain(), .post = [](std::function<void()>) {}}, &why);
  Check(disk.ok() ? Status::Ok() : disk.status(), why);
  Catalog catalog({.db = {.directory = left.catalog()}});
  NvmeTier tier({.secret = left.secret(),
                 .disks = {disk->get()},
                 .capacity_bytes = 1024 * kSlabBytes,
                 .slab_bytes = kSlabBytes,
                 .catalog = &catalog,
                 .now_us = [&] { return clock.NowUs(); },
                 .random = [&] { return random.Next(); }});
  std::vector<std::byte> slot_table(SlotTableBytes(kSegmentBytesMin, 1));
  StoreOptions options;
  options.segments_total = 1;
  options.fenced_bytes_max = kGiB;
  options.domains.push_back({.name = "bench",
                             .secret = left.secret(),
                             .segment_bytes = kSegmentBytesMin,
                             .segments_max = 1,
                             .arena = &arena,
                             .slot_table = slot_table,
                             .lower_tiers = {&tier}});
  Store store(std::move(options), clock, random, offload, listener);
  RecoverySummary summary;
  const double processor_ms = ProcessorMs();
  Check(RestoreDomain({.secret = left.secret(),
                       .groups_directory = left.domain() + "/groups",
                       .slab_directories = {left.domain()},
                       .restoration = &store.restoration(),
                       .tier = &tier,
                       .catalog = &catalog},
                      &summary),
        "restore");
  const double used_ms = ProcessorMs() - processor_ms;
  if (summary.source != expected || summary.restored.blocks != left.block_count()) {
    std::fprintf(stderr, "ready_bench: %llu blocks from the %s (%s)\n",
                 static_cast<unsigned long long>(summary.restored.blocks),
                 RecoverySourceName(summary.source), summary.why.c_str());
    std::exit(1);
  }
  return {static_cast<double>(summary.duration_us) / 1000, used_ms};
}

void Report(const Predecessor& left, RecoverySource source, long rounds) {
  std::vector<double> wall_ms, processor_ms;
  for (long round = 0; round < rounds; ++round) {
    const Cost cost = Start(left, source);
    wall_ms.push_back(cost.wall_ms);
    processor_ms.push_back(cost.processor_ms);
  }
  std::ranges::sort(wall_ms);
  std::ranges::sort(processor_ms);
  const auto middle = static_cast<size_t>(rounds / 2);
  std::printf(
      "%llu blocks from the %s, median of %ld: %.0f ms (%.0f to %.0f), "
      "processor %.0f ms (%.0f to %.0f)\n",
      static_cast<unsigned long long>(left.block_count()), RecoverySourceName(source), rounds,
      wall_ms[middle], wall_ms.front(), wall_ms.back(), processor_ms[middle], processor_ms.front(),
      processor_ms.back());
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const long block_count = argc > 2 ? std::atol(argv[2]) : 1'000'000;
  const long rounds = argc > 3 ? std::atol(argv[3]) : 5;
  if (argc < 2 || block_count <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: ready_bench DIRECTORY [BLOCKS [ROUNDS [tables|catalog]]]\n");
    return 2;
  }
  const std::string only = argc > 4 ? argv[4] : "";
  const terrace::Predecessor left(argv[1], static_cast<uint64_t>(block_count));
  if (only != "catalog") terrace::Report(left, terrace::RecoverySource::kTables, rounds);
  if (only != "tables") terrace::Report(left, terrace::RecoverySource::kCatalog, rounds);
  return 0;
}
