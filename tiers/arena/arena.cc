#include "tiers/arena/arena.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "tiers/arena/bus_guard.h"
#include "tiers/arena/memory_headroom.h"
#include "tiers/arena/numa_nodes.h"
#include "tiers/arena/slot_table.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace terrace {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::chrono::seconds kRestoreInterval{1};        // of pages that were lost to a SIGBUS
constexpr uint64_t kTrailerMagic = 0x3241'6172'6E65'7241;  // "ArenaA2" and its version
constexpr uint64_t kNotedBytes = kNotedSessionsMax * sizeof(uint64_t);
constexpr uint32_t kSegmentsMax = 1 << 16;  // 16 TiB in segments of 256 MiB
// Left to the rest of the machine or cgroup when a segment is populated.
constexpr uint64_t kHeadroomSparedBytes = 64 * kMiB;

std::string ErrnoText(int error) { return std::string(std::strerror(error)); }

std::string MiBText(uint64_t bytes) { return std::to_string(bytes / kMiB) + " MiB"; }

Status Refuse(std::string* why, std::string sentence, Status status) {
  *why = std::move(sentence);
  return status;
}

Status IoError(const char* what) { return Status(StatusCode::kIo, what, errno); }

void CloseAll(const ArenaFds& fds) {
  for (const int fd : fds.nodes) {
    if (fd >= 0) ::close(fd);
  }
  if (fds.slot_table >= 0) ::close(fds.slot_table);
}

int CreateMemfd(const std::string& name, unsigned extra_flags) {
  return ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | extra_flags);
}

// Gives the memfd its final size for ever, for this user only.
Status SizeAndSeal(int fd, uint64_t length_bytes) {
  if (::fchmod(fd, 0600) != 0) return IoError("fchmod");
  if (::ftruncate(fd, static_cast<off_t>(length_bytes)) != 0) return IoError("ftruncate");
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return IoError("F_ADD_SEALS");
  return Status::Ok();
}

constexpr uint64_t kPopulateBytesAtOnce = 2 << 20;  // a huge page

// Every page of the range is there afterwards, or the errno says why not. Never raises SIGBUS:
// pages are touched by the kernel, or after fallocate has made them.
Status PopulateRange(int fd, std::byte* base, uint64_t offset_bytes, uint64_t length_bytes) {
  int result = 0;
  // A call holds the lock of the process's address space throughout, for which every other thread's
  // page faults and maps wait: piece by piece.
  for (uint64_t at = 0; at < length_bytes && result == 0; at += kPopulateBytesAtOnce) {
    const uint64_t piece_bytes = std::min(kPopulateBytesAtOnce, length_bytes - at);
    do {
      result = ::madvise(base + at, piece_bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
  }
  if (result == 0) return Status::Ok();
  if (errno != EINVAL) return IoError("MADV_POPULATE_WRITE");
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(offset_bytes), static_cast<off_t>(length_bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) return IoError("fallocate");
  for (uint64_t at = 0; at < length_bytes; at += kArenaPageBytes) {
    std::atomic_ref<unsigned char>(reinterpret_cast<unsigned char&>(base[at]))
        .fetch_or(0, std::memory_order_relaxed);
  }
  return Status::Ok();
}

// Lays claim to a range of a file of huge pages, which then cannot lack them: page faults through
// whatever mapping take what was claimed, until the range is punched or the file goes. A shared
// mapping without MAP_NORESERVE asks the kernel for just that, other processes' claims considered.
Status ClaimHugePages(int fd, uint64_t offset_bytes, uint64_t length_bytes) {
  void* const mapped = ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                              static_cast<off_t>(offset_bytes));
  if (mapped == MAP_FAILED) return IoError("no huge pages are free");
  ::munmap(mapped, length_bytes);
  return Status::Ok();
}

Status PunchRange(int fd, uint64_t offset_bytes, uint64_t length_bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         static_cast<off_t>(offset_bytes), static_cast<off_t>(length_bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? Status::Ok() : IoError("fallocate(PUNCH_HOLE)");
}

}  // namespace

// The thread that populates and punches, one segment after the other.
class Arena::Worker {
 public:
  enum class Operation : uint8_t { kPopulate, kPunch };

  explicit Worker(Arena* arena)
      : arena_(arena),
        is_begun_(arena->options_.segments_max),
        thread_(StartThread("terrace-arena", [this] { Run(); })) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Begin(uint32_t segment, Operation operation) {
    {
      const std::lock_guard lock(mutex_);
      TERRACE_CHECK(!is_begun_[segment], "one operation on a segment at a time");
      is_begun_[segment] = true;  // so the queue is never longer than segments_max
      queue_.emplace_back(segment, operation);
    }
    wake_.notify_one();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait_for(lock, kRestoreInterval, [this] { return is_stopping_ || !queue_.empty(); });
      if (is_stopping_) return;
      if (queue_.empty()) {
        lock.unlock();
        if (HasLostPages()) arena_->RestorePages();
        lock.lock();
        continue;
      }
      const auto [segment, operation] = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const Status status =
          operation == Operation::kPopulate ? arena_->Populate(segment) : arena_->Punch(segment);
      lock.lock();
      is_begun_[segment] = false;
      lock.unlock();
      const Options& options = arena_->options_;
      const auto& report =
          operation == Operation::kPopulate ? options.on_populated : options.on_punched;
      report(segment, status);
      lock.lock();
    }
  }

  Arena* const arena_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<uint32_t, Operation>> queue_;
  std::vector<bool> is_begun_;
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

// ---- creation ----

Status Arena::CheckOptions(Options* options, std::string* why) {
  const auto invalid = [&](const std::string& sentence) {
    return Refuse(why, "arena of domain " + options->name + ": " + sentence,
                  Status(StatusCode::kInvalid, "arena options"));
  };
  if (options->segment_bytes < kSegmentBytesMin || options->segment_bytes > kSegmentBytesMax ||
      options->segment_bytes % kExtentUnitBytes != 0) {
    return invalid("segment_bytes is " + std::to_string(options->segment_bytes) +
                   "; it must be a multiple of 2 MiB, at most 256 MiB");
  }
  if (options->segments_max == 0 || options->segments_max > kSegmentsMax) {
    return invalid("segments_max is " + std::to_string(options->segments_max) +
                   "; it must be 1 to " + std::to_string(kSegmentsMax) +
                   ": set the domain's DRAM size accordingly");
  }
  TERRACE_CHECK(options->on_populated && options->on_punched, "somebody waits for the arena");
  if (options->nodes.empty()) {
    options->nodes = NodesWithMemory(options->system_root + "/sys/devices/system/node");
  }
  // Nodes beyond the segments would have empty files.
  const uint32_t node_count =
      std::min(static_cast<uint32_t>(options->nodes.size()), options->segments_max);
  const uint32_t segments_per_node = (options->segments_max + node_count - 1) / node_count;
  options->nodes.resize((options->segments_max + segments_per_node - 1) / segments_per_node);
  return Status::Ok();
}

Arena::Arena(Options options)
    : options_(std::move(options)),
      segments_per_node_(
          (options_.segments_max + static_cast<uint32_t>(options_.nodes.size()) - 1) /
          static_cast<uint32_t>(options_.nodes.size())) {}

Arena::~Arena() {
  worker_.reset();
  for (const Mapping& mapping : node_mappings_) {
    EndGuard(mapping.base);
    ::munmap(mapping.base, mapping.length_bytes);
  }
  if (table_mapping_.base != nullptr) ::munmap(table_mapping_.base, table_mapping_.length_bytes);
  CloseAll(fds_);
}

Result<std::unique_ptr<Arena>> Arena::Create(Options options, std::string* why) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(&options, why));
  std::unique_ptr<Arena> arena(new Arena(std::move(options)));
  TERRACE_RETURN_IF_ERROR(arena->CreateFds(why));
  TERRACE_RETURN_IF_ERROR(arena->MapAll(why));
  TERRACE_RETURN_IF_ERROR(arena->WriteTrailer(why));
  arena->StartWorker();
  return arena;
}

Result<std::unique_ptr<Arena>> Arena::AdoptFds(Options options, const ArenaFds& fds,
                                               std::string* why) {
  if (const Status status = CheckOptions(&options, why); !status.ok()) {
    CloseAll(fds);
    return status;
  }
  std::unique_ptr<Arena> arena(new Arena(std::move(options)));
  arena->fds_ = fds;
  TERRACE_RETURN_IF_ERROR(arena->CheckTrailer(why));
  TERRACE_RETURN_IF_ERROR(arena->CheckFds(why));
  TERRACE_RETURN_IF_ERROR(arena->MapAll(why));
  arena->PunchHalfDone();
  arena->StartWorker();
  return arena;
}

uint64_t Arena::NodeBytes(uint32_t node_index) const {
  const uint32_t first = node_index * segments_per_node_;
  return std::min(segments_per_node_, options_.segments_max - first) * options_.segment_bytes;
}

// Rows, then the sessions noted and a mark a segment, then the trailer's page.
uint64_t Arena::TableBytes() const {
  return SlotTableBytes(options_.segment_bytes, options_.segments_max) +
         RoundUp(kNotedBytes + options_.segments_max, kArenaPageBytes) + kArenaPageBytes;
}

Status Arena::CreateFds(std::string* why) {
  const std::string arena_text = "arena of domain " + options_.name;
  const uint64_t longest_bytes = std::max(NodeBytes(0), TableBytes());
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < longest_bytes) {
    return Refuse(why,
                  arena_text + ": a memfd of " + MiBText(longest_bytes) +
                      " exceeds this process's file size limit (RLIMIT_FSIZE) of " +
                      MiBText(limit.rlim_cur) + ": raise it (LimitFSIZE=infinity, ulimit -f)",
                  Status(StatusCode::kIo, "RLIMIT_FSIZE", EFBIG));
  }
  backing_ = ArenaBacking::kShmem;
  if (options_.backing != ArenaBackingChoice::kShmem) {
    std::string why_not;
    const Status status = CreateHugeFds(&why_not);
    if (!status.ok() && options_.backing == ArenaBackingChoice::kHugetlb) {
      return Refuse(why, arena_text + ": " + why_not, status);
    }
    if (!status.ok()) notes_.push_back(why_not + "; using 4 KiB pages");
  }
  if (backing_ == ArenaBacking::kShmem) {
    for (uint32_t i = 0; i < options_.nodes.size(); ++i) {
      TERRACE_RETURN_IF_ERROR(CreateNodeFd(i, why));
    }
  }
  fds_.slot_table = CreateMemfd("terrace-slots-" + options_.name, 0);
  const Status status =
      fds_.slot_table < 0 ? IoError("memfd_create") : SizeAndSeal(fds_.slot_table, TableBytes());
  if (status.ok()) return status;
  return Refuse(why,
                arena_text + ": slot table of " + MiBText(TableBytes()) + ": " + status.what() +
                    ": " + ErrnoText(status.detail()),
                status);
}

// The nodes' files of huge pages, if those are free that are expected to be used; or no file. The
// first segment's are claimed: whoever takes the others until they are grown into leaves us that.
Status Arena::CreateHugeFds(std::string* why) {
  backing_ = ArenaBacking::kHugetlb;
  Status status;
  std::string ignored;  // that there is no such file means the same as that there are no such pages
  for (uint32_t i = 0; i < options_.nodes.size() && status.ok(); ++i) {
    status = CreateNodeFd(i, &ignored);
  }
  const uint64_t wanted_bytes = options_.segments_free_min * options_.segment_bytes;
  if (status.ok() && wanted_bytes > 0) {
    status = ClaimHugePages(fds_.nodes[0], 0, options_.segment_bytes);
    if (status.ok()) status = CheckHugePages(wanted_bytes - options_.segment_bytes);
  }
  if (status.ok()) return status;
  CloseAll({.nodes = std::exchange(fds_.nodes, {})});
  backing_ = ArenaBacking::kShmem;
  return Refuse(why,
                "no " + std::to_string(wanted_bytes / kArenaHugePageBytes) +
                    " free huge pages of 2 MiB (" + ErrnoText(status.detail()) +
                    "): raise vm.nr_hugepages, or set hugepages to off",
                status);
}

// So much must be free now.
Status Arena::CheckHugePages(uint64_t wanted_bytes) {
  if (wanted_bytes == 0) return Status::Ok();
  const int fd = CreateMemfd("terrace-probe", MFD_HUGETLB | MFD_HUGE_2MB);
  const bool is_long = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(wanted_bytes)) == 0;
  const Status status =
      is_long ? ClaimHugePages(fd, 0, wanted_bytes) : IoError("memfd_create(MFD_HUGETLB)");
  if (fd >= 0) ::close(fd);  // and what it claimed goes
  return status;
}

Status Arena::CreateNodeFd(uint32_t node_index, std::string* why) {
  const uint32_t node = options_.nodes[node_index];
  const unsigned flags = backing_ == ArenaBacking::kHugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0;
  const int fd = CreateMemfd("terrace-arena-" + options_.name + "-" + std::to_string(node), flags);
  fds_.nodes.push_back(fd);
  const Status status = fd < 0 ? IoError("memfd_create") : SizeAndSeal(fd, NodeBytes(node_index));
  if (status.ok()) return status;
  return Refuse(why,
                "arena of domain " + options_.name + ": memfd of " +
                    MiBText(NodeBytes(node_index)) + " for node " + std::to_string(node) + ": " +
                    status.what() + ": " + ErrnoText(status.detail()),
                status);
}

// ---- adoption ----

Status Arena::CheckFds(std::string* why) const {
  const auto refuse = [&](const std::string& sentence) {
    return Refuse(
        why,
        "arena of domain " + options_.name + ": " + sentence + ": stop who holds it and start cold",
        Status(StatusCode::kInvalid, "arena handed over"));
  };
  if (fds_.nodes.size() != options_.nodes.size()) {
    return refuse(std::to_string(fds_.nodes.size()) + " memfds were handed over, " +
                  std::to_string(options_.nodes.size()) + " nodes are wanted");
  }
  for (size_t i = 0; i <= fds_.nodes.size(); ++i) {
    const bool is_table = i == fds_.nodes.size();
    const int fd = is_table ? fds_.slot_table : fds_.nodes[i];
    const std::string what = is_table ? "slot table" : "memfd " + std::to_string(i);
    const uint64_t wanted_bytes = is_table ? TableBytes() : NodeBytes(static_cast<uint32_t>(i));
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0) return refuse(what + " is no memfd (" + ErrnoText(errno) + ")");
    if ((seals & kSeals) != kSeals) return refuse(what + " can still be resized");
    struct stat stat {};
    if (::fstat(fd, &stat) != 0) return refuse(what + ": " + ErrnoText(errno));
    if (static_cast<uint64_t>(stat.st_size) != wanted_bytes) {
      return refuse(what + " has " + std::to_string(stat.st_size) + " bytes, " +
                    std::to_string(wanted_bytes) + " are wanted");
    }
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return Status::Ok();
}

Status Arena::MapAll(std::string* why) {
  const auto map = [&](int fd, uint64_t length_bytes, Mapping* mapping) -> Status {
    void* base =
        ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
      const Status status = IoError("mmap");
      return Refuse(why,
                    "arena of domain " + options_.name + ": mmap of " + MiBText(length_bytes) +
                        ": " + ErrnoText(status.detail()) +
                        ": raise the address space limit (RLIMIT_AS, ulimit -v)",
                    status);
    }
    *mapping = {static_cast<std::byte*>(base), length_bytes};
    // A fork must not see it, and a core dump would write it all.
    ::madvise(base, length_bytes, MADV_DONTFORK);
    ::madvise(base, length_bytes, MADV_DONTDUMP);
    return Status::Ok();
  };
  for (uint32_t i = 0; i < fds_.nodes.size(); ++i) {
    Mapping mapping;
    TERRACE_RETURN_IF_ERROR(map(fds_.nodes[i], NodeBytes(i), &mapping));
    node_mappings_.push_back(mapping);
    const bool is_guarded =
        GuardFromBus(mapping.base, mapping.length_bytes,
                     backing_ == ArenaBacking::kHugetlb ? kArenaHugePageBytes : kArenaPageBytes);
    TERRACE_CHECK(is_guarded, "a daemon has fewer arenas than can be guarded");
    // Effective where shmem_enabled is "advise" only.
    ::madvise(mapping.base, mapping.length_bytes, MADV_HUGEPAGE);
    if (fds_.nodes.size() > 1) BindToNode(i);
  }
  TERRACE_RETURN_IF_ERROR(map(fds_.slot_table, TableBytes(), &table_mapping_));
  slot_table_ = {table_mapping_.base,
                 SlotTableBytes(options_.segment_bytes, options_.segments_max)};
  // The trailer is written and read from here on.
  const Status status = PopulateRange(fds_.slot_table, table_mapping_.base + slot_table_.size(),
                                      slot_table_.size(), TableBytes() - slot_table_.size());
  if (status.ok()) return status;
  return Refuse(why,
                "arena of domain " + options_.name +
                    ": no memory for the slot table: " + ErrnoText(status.detail()),
                status);
}

// Preferred, not bound: when the node is full, memory of another one is slower, but a strict policy
// would end in the OOM killer.
void Arena::BindToNode(uint32_t node_index) {
  const uint32_t node = options_.nodes[node_index];
  constexpr uint32_t kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(node / kWordBits + 1);
  mask[node / kWordBits] = 1UL << (node % kWordBits);
  const Mapping& mapping = node_mappings_[node_index];
  // The kernel reads one bit less than it is told.
  if (::syscall(SYS_mbind, mapping.base, mapping.length_bytes, MPOL_PREFERRED, mask.data(),
                mask.size() * kWordBits + 1, 0) == 0) {
    return;
  }
  notes_.push_back("mbind to node " + std::to_string(node) + ": " + ErrnoText(errno) +
                   "; the kernel places this memory as it likes");
}

Status Arena::WriteTrailer(std::string* why) {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
    const Status status = IoError("getrandom");
    return Refuse(why,
                  "arena of domain " + options_.name +
                      ": no random bytes for the slot table: " + ErrnoText(status.detail()),
                  status);
  }
  trailer() = {.magic = kTrailerMagic,
               .segment_bytes = options_.segment_bytes,
               .identity = options_.identity,
               .table_seed = seed,
               .segments_max = options_.segments_max,
               .node_count = static_cast<uint32_t>(options_.nodes.size()),
               .backing = backing_};
  return Status::Ok();
}

Arena::Trailer& Arena::trailer() const {
  return *reinterpret_cast<Trailer*>(table_mapping_.base + table_mapping_.length_bytes -
                                     kArenaPageBytes);
}

// Which option differs is more help than which file is too long.
Status Arena::CheckTrailer(std::string* why) {
  const auto differs = [&](const std::string& sentence) {
    return Refuse(why, "arena of domain " + options_.name + ": " + sentence + ": it starts cold",
                  Status(StatusCode::kInvalid, "arena handed over"));
  };
  Trailer kept;
  struct stat stat {};
  if (::fstat(fds_.slot_table, &stat) != 0 || stat.st_size < static_cast<off_t>(kArenaPageBytes) ||
      ::pread(fds_.slot_table, &kept, sizeof(kept),
              stat.st_size - static_cast<off_t>(kArenaPageBytes)) != sizeof(kept) ||
      kept.magic != kTrailerMagic) {
    return differs("what was handed over is no slot table, or one of another version");
  }
  const auto text = [](uint64_t was, uint64_t is) {
    return " was " + std::to_string(was) + " and is " + std::to_string(is);
  };
  if (kept.segment_bytes != options_.segment_bytes) {
    return differs("segment_bytes" + text(kept.segment_bytes, options_.segment_bytes));
  }
  if (kept.segments_max != options_.segments_max) {
    return differs("dram_max_bytes" + text(kept.segments_max * kept.segment_bytes,
                                           options_.segments_max * options_.segment_bytes));
  }
  if (kept.node_count != options_.nodes.size()) {
    return differs("the number of NUMA nodes" + text(kept.node_count, options_.nodes.size()));
  }
  if (kept.identity != options_.identity) return differs("the domain's secret is another one");
  const bool is_huge = kept.backing == ArenaBacking::kHugetlb;
  if ((options_.backing == ArenaBackingChoice::kHugetlb && !is_huge) ||
      (options_.backing == ArenaBackingChoice::kShmem && is_huge)) {
    return differs(is_huge ? "its pages are of 2 MiB and hugepages is off"
                           : "its pages are of 4 KiB and hugepages is on");
  }
  backing_ = kept.backing;
  return Status::Ok();
}

// ---- sessions ----

std::span<uint64_t> Arena::noted_sessions() const {
  return {reinterpret_cast<uint64_t*>(slot_table_.data() + slot_table_.size()), kNotedSessionsMax};
}

void Arena::NoteSession(uint64_t session) {
  for (uint64_t& noted : noted_sessions()) {
    if (noted != 0) continue;
    std::atomic_ref<uint64_t>(noted).store(session);
    return;
  }
  trailer().has_unnoted_sessions = true;
}

void Arena::ForgetSession(uint64_t session) {
  for (uint64_t& noted : noted_sessions()) {
    if (noted == session) std::atomic_ref<uint64_t>(noted).store(0);
  }
}

std::vector<uint64_t> Arena::NotedSessions() const {
  std::vector<uint64_t> sessions;
  for (const uint64_t noted : noted_sessions()) {
    if (noted != 0) sessions.push_back(noted);
  }
  return sessions;
}

void Arena::PunchHalfDone() {
  for (uint32_t segment = 0; segment < options_.segments_max; ++segment) {
    if (Mark(segment) != static_cast<uint8_t>(SegmentMark::kChanging)) continue;
    const SegmentPlace place = PlaceOf(segment);
    const Status status = PunchRange(place.fd, place.offset_bytes, options_.segment_bytes);
    if (status.ok()) {
      SetMark(segment, SegmentMark::kAbsent);
    } else {
      notes_.push_back("segment " + std::to_string(segment) + ", half populated: " + status.what() +
                       ": " + ErrnoText(status.detail()));
    }
  }
}

void Arena::StartWorker() { worker_ = std::make_unique<Worker>(this); }

// ---- segments ----

uint8_t& Arena::Mark(uint32_t segment) const {
  return reinterpret_cast<uint8_t&>(slot_table_.data()[slot_table_.size() + kNotedBytes + segment]);
}

void Arena::SetMark(uint32_t segment, SegmentMark mark) {
  std::atomic_ref<uint8_t>(Mark(segment)).store(static_cast<uint8_t>(mark));
}

bool Arena::IsPopulated(uint32_t segment) const {
  TERRACE_CHECK(segment < options_.segments_max, "the segment is part of the arena");
  return std::atomic_ref<uint8_t>(Mark(segment)).load() ==
         static_cast<uint8_t>(SegmentMark::kPopulated);
}

Arena::SegmentPlace Arena::PlaceOf(uint32_t segment) const {
  const uint32_t node_index = segment / segments_per_node_;
  const uint64_t offset_bytes = (segment % segments_per_node_) * options_.segment_bytes;
  return {fds_.nodes[node_index], offset_bytes, node_mappings_[node_index].base + offset_bytes};
}

std::byte* Arena::SegmentBase(uint32_t segment) {
  TERRACE_CHECK(IsPopulated(segment), "only a populated segment has memory");
  return PlaceOf(segment).base;
}

SlotAddress Arena::AddressOf(const std::byte* byte) const {
  for (uint32_t node = 0; node < node_mappings_.size(); ++node) {
    const std::byte* const base = node_mappings_[node].base;
    const std::byte* const end = base + node_mappings_[node].length_bytes;
    if (std::less<>{}(byte, base) || !std::less<>{}(byte, end)) continue;
    const auto offset_bytes = static_cast<uint64_t>(byte - base);
    return {
        static_cast<uint32_t>(node * segments_per_node_ + offset_bytes / options_.segment_bytes),
        static_cast<uint32_t>(offset_bytes % options_.segment_bytes / kArenaPageBytes)};
  }
  return {};
}

void Arena::BeginPopulate(uint32_t segment) {
  TERRACE_CHECK(!IsPopulated(segment), "a segment is populated once");
  worker_->Begin(segment, Worker::Operation::kPopulate);
}

void Arena::BeginPunch(uint32_t segment) {
  TERRACE_CHECK(IsPopulated(segment), "only a populated segment is punched");
  worker_->Begin(segment, Worker::Operation::kPunch);
}

void Arena::RestorePages() {
  for (uint32_t i = 0; i < node_mappings_.size(); ++i) {
    RestoreLostPages(node_mappings_[i].base, node_mappings_[i].length_bytes, fds_.nodes[i], 0);
  }
}

Status Arena::Populate(uint32_t segment) {
  if (backing_ == ArenaBacking::kShmem) {
    const MemoryHeadroom headroom = ReadMemoryHeadroom(options_.system_root);
    if (headroom.available_bytes < options_.segment_bytes + kHeadroomSparedBytes) {
      return Status(StatusCode::kIo, "less memory available than a segment needs", ENOMEM);
    }
  }
  SetMark(segment, SegmentMark::kChanging);
  const SegmentPlace place = PlaceOf(segment);
  const uint64_t rows_bytes = SlotTableBytes(options_.segment_bytes, 1);
  Status status = PopulateRange(fds_.slot_table, slot_table_.data() + segment * rows_bytes,
                                segment * rows_bytes, rows_bytes);
  if (status.ok() && backing_ == ArenaBacking::kHugetlb) {
    // All of them before the first.
    status = ClaimHugePages(place.fd, place.offset_bytes, options_.segment_bytes);
  }
  if (status.ok()) {
    RemapLostPages(place.base, options_.segment_bytes, place.fd, place.offset_bytes);
    status = PopulateRange(place.fd, place.base, place.offset_bytes, options_.segment_bytes);
  }
  if (status.ok()) {
    SetMark(segment, SegmentMark::kPopulated);
  } else if (PunchRange(place.fd, place.offset_bytes, options_.segment_bytes).ok()) {
    // What was got in part went back. The rows stay: they hold generations.
    SetMark(segment, SegmentMark::kAbsent);
  }
  return status;
}

Status Arena::Punch(uint32_t segment) {
  SetMark(segment, SegmentMark::kChanging);
  const SegmentPlace place = PlaceOf(segment);
  const Status status = PunchRange(place.fd, place.offset_bytes, options_.segment_bytes);
  SetMark(segment, status.ok() ? SegmentMark::kAbsent : SegmentMark::kPopulated);
  return status;
}

}  // namespace terrace
