// How fast blocks move to a drive and back: a queue kept full from a store loop like the daemon's,
// writes one after the other (demotion), reads at random (promotion), memory like the arena's.
//
//   disk_bench --directory DIR --op write|read [--tier] [--engine auto|uring|threads]
//              [--block-kib 1024] [--depth 32] [--file-mib 1024] [--total-mib 2048]
//              [--memory-file PATH] [--unregistered] [--encrypted]
//
// Without --tier a Disk and one file; with it an NvmeTier and one slab: every write takes a slot
// that was freed, so that its entry is written twice, and ends when the block is persisted. With
// --encrypted too, which wants a directory of its own, its payloads are encrypted.
// The file is made, written once and kept, so that fio can be run on the same one. So is the memory
// with --memory-file: how far its pages lie apart decides what a transfer costs.
//
// Prints one JSON object: MiB/s, CPU microseconds per MiB of the whole process, kernel included,
// and where in which file the blocks lie.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sim/group_keys.h"
#include "terrace/check.h"
#include "terrace/units.h"
#include "tiers/crypto/cipher_disk.h"
#include "tiers/disk/file_disk.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {
namespace {

constexpr char kFileName[] = "bench";
constexpr uint64_t kTableBytes = 64 * kKiB;  // at the start of the file, as in a slab
constexpr uint64_t kTickUs = 500'000;        // of the daemon

struct Arguments {
  std::string directory;
  std::string op = "read";
  std::string engine = "auto";
  std::string memory_file;
  uint64_t block_kib = 1024;
  uint32_t depth = 32;
  uint64_t file_mib = 1024;
  uint64_t total_mib = 2048;
  bool is_tier = false;
  bool is_unregistered = false;
  bool is_encrypted = false;
};

uint64_t NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

uint64_t CpuUs() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return static_cast<uint64_t>(time.tv_sec) * kUsPerSecond + static_cast<uint64_t>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

std::span<std::byte> MapMemory(const Arguments& arguments) {
  const uint64_t length_bytes = arguments.depth * arguments.block_kib * kKiB;
  const bool is_named = !arguments.memory_file.empty();
  const int fd = is_named ? ::open(arguments.memory_file.c_str(), O_RDWR | O_CLOEXEC)
                          : ::memfd_create("disk-bench", MFD_CLOEXEC);
  TERRACE_CHECK(fd >= 0, "memory for the blocks");
  if (!is_named) {
    TERRACE_CHECK(::ftruncate(fd, static_cast<off_t>(length_bytes)) == 0, "memory for the blocks");
  }
  void* const mapped =
      ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  TERRACE_CHECK(mapped != MAP_FAILED, "memory for the blocks");
  const std::span<std::byte> memory{static_cast<std::byte*>(mapped), length_bytes};
  std::memset(memory.data(), 0x5A, memory.size());
  return memory;
}

// Keeps `depth` transfers under way until so many blocks have been moved.
class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments), block_bytes_(arguments.block_kib * kKiB) {}
  virtual ~Bench() = default;

  void OpenMemoryAndDisk();
  // Makes what is not there, and writes every block once: the first write to reserved space costs
  // the file system more.
  virtual void Prepare() = 0;
  void Run(DiskOp op, uint64_t block_count);
  void Print();
  uint64_t blocks_of(uint64_t mib) const { return mib * kMiB / block_bytes_; }

 protected:
  struct Place {
    std::string file;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
  };
  // kBusy: not now; LanesMayGoOn follows.
  virtual Status Begin(uint32_t lane, DiskOp op) = 0;
  virtual void OnTurn() {}
  virtual Place place() const = 0;

  void OnDone(uint32_t lane);
  void LanesMayGoOn();
  std::span<std::byte> MemoryOf(uint32_t lane) {
    return memory_.subspan(lane * block_bytes_, block_bytes_);
  }
  // Serves completions until nothing is under way.
  void Await();

  const Arguments arguments_;
  const uint64_t block_bytes_;
  asio::io_context loop_{1};
  std::unique_ptr<Disk> disk_;
  std::mt19937_64 random_{1};
  uint64_t under_way_ = 0;  // whatever must end before the time is taken

 private:
  void BeginNext(uint32_t lane);

  asio::executor_work_guard<asio::io_context::executor_type> never_idle_ =
      asio::make_work_guard(loop_);
  std::span<std::byte> memory_;
  DiskOp op_ = DiskOp::kRead;
  uint64_t blocks_left_ = 0;
  std::vector<uint32_t> waiting_lanes_;
  uint64_t moved_bytes_ = 0;
  uint64_t took_us_ = 0;
  uint64_t cpu_us_ = 0;
};

void Bench::OpenMemoryAndDisk() {
  memory_ = MapMemory(arguments_);
  std::string why;
  auto disk = OpenDisk({.directory = arguments_.directory,
                        .post = [this](auto call) { asio::post(loop_, std::move(call)); },
                        .engine = arguments_.engine == "uring"     ? DiskEngineChoice::kUring
                                  : arguments_.engine == "threads" ? DiskEngineChoice::kThreads
                                                                   : DiskEngineChoice::kAuto},
                       &why);
  if (!disk.ok()) {
    std::fprintf(stderr, "disk_bench: %s\n", why.c_str());
    std::exit(1);
  }
  disk_ = std::move(*disk);
  if (!arguments_.is_unregistered) disk_->RegisterBuffer(0, memory_);
}

void Bench::Run(DiskOp op, uint64_t block_count) {
  op_ = op;
  blocks_left_ = block_count;
  const uint64_t cpu_us = CpuUs();
  const uint64_t begin_us = NowUs();
  for (uint32_t lane = 0; lane < arguments_.depth; ++lane) BeginNext(lane);
  Await();
  took_us_ = NowUs() - begin_us;
  cpu_us_ = CpuUs() - cpu_us;
  moved_bytes_ = block_count * block_bytes_;
}

void Bench::Await() {
  disk_->Flush();
  while (under_way_ > 0 || !waiting_lanes_.empty()) {
    loop_.run_one();
    OnTurn();
  }
}

void Bench::BeginNext(uint32_t lane) {
  if (blocks_left_ == 0) return;
  const Status begun = Begin(lane, op_);
  if (begun.ok()) {
    --blocks_left_;
    ++under_way_;
    return;
  }
  TERRACE_CHECK(begun.code() == StatusCode::kBusy || begun.code() == StatusCode::kNoSpace,
                "a transfer begins or waits");
  waiting_lanes_.push_back(lane);
}

void Bench::OnDone(uint32_t lane) {
  --under_way_;
  BeginNext(lane);
}

void Bench::LanesMayGoOn() {
  const std::vector<uint32_t> lanes = std::exchange(waiting_lanes_, {});
  for (const uint32_t lane : lanes) BeginNext(lane);
}

void Bench::Print() {
  const double moved_mib = static_cast<double>(moved_bytes_) / static_cast<double>(kMiB);
  const double took_s = static_cast<double>(took_us_) / static_cast<double>(kUsPerSecond);
  const Place where = place();
  std::printf(
      "{\"mib_per_second\": %.1f, \"cpu_us_per_mib\": %.2f, \"seconds\": %.3f, \"mib\": %.1f, "
      "\"retries\": %llu, \"disk\": \"%s\", \"file\": \"%s\", \"offset_bytes\": %llu, "
      "\"length_bytes\": %llu}\n",
      moved_mib / took_s, static_cast<double>(cpu_us_) / moved_mib, took_s, moved_mib,
      static_cast<unsigned long long>(disk_->stats().retries), disk_->description().c_str(),
      where.file.c_str(), static_cast<unsigned long long>(where.offset_bytes),
      static_cast<unsigned long long>(where.length_bytes));
}

// ---- one file of a Disk ---------------------------------------------------------------------

class FileBench final : public Bench, public DiskListener {
 public:
  using Bench::Bench;
  void Prepare() override;
  void OnDiskDone(uint64_t tag, Status status) override;

 private:
  static constexpr uint64_t kAlone = UINT64_MAX;  // the tag of a request that is no transfer

  Status Begin(uint32_t lane, DiskOp op) override;
  Place place() const override {
    return {kFileName, kTableBytes, blocks_of(arguments_.file_mib) * block_bytes_};
  }
  void DoAlone(DiskRequest request);

  DiskFile file_ = kDiskFileNone;
  uint64_t next_block_ = 0;
};

void FileBench::Prepare() {
  disk_->SetListener(this);
  const uint64_t file_bytes = kTableBytes + arguments_.file_mib * kMiB;
  uint64_t length_bytes = 0;
  if (disk_->OpenNow(kFileName, &file_, &length_bytes).ok()) {
    TERRACE_CHECK(length_bytes == file_bytes, "the file there is of another length: remove it");
    return;
  }
  file_ = disk_->NewFile();
  DoAlone({.op = DiskOp::kCreate, .length_bytes = file_bytes, .name = kFileName});
  Run(DiskOp::kWrite, blocks_of(arguments_.file_mib));
  DoAlone({.op = DiskOp::kSync});
}

void FileBench::DoAlone(DiskRequest request) {
  request.tag = kAlone;
  request.file = file_;
  TERRACE_CHECK(disk_->Submit(request).ok(), "an empty queue takes a request");
  under_way_ = 1;
  Await();
}

Status FileBench::Begin(uint32_t lane, DiskOp op) {
  const uint64_t block_count = blocks_of(arguments_.file_mib);
  const uint64_t block = (op == DiskOp::kWrite ? next_block_++ : random_()) % block_count;
  DiskRequest request{
      .tag = lane, .op = op, .file = file_, .offset_bytes = kTableBytes + block * block_bytes_};
  if (op == DiskOp::kWrite) {
    request.from = MemoryOf(lane);
  } else {
    request.into = MemoryOf(lane);
  }
  return disk_->Submit(request);
}

void FileBench::OnDiskDone(uint64_t tag, Status status) {
  TERRACE_CHECK(status.ok(), "a bench needs a sound disk");
  if (tag == kAlone) {
    --under_way_;
  } else {
    OnDone(static_cast<uint32_t>(tag));
  }
}

// ---- one slab of an NvmeTier ----------------------------------------------------------------

class TierBench final : public Bench, public TierListener {
 public:
  using Bench::Bench;
  ~TierBench() override {
    tier_.reset();
    cipher_.reset();
    disk_.reset();
  }
  void Prepare() override;

 private:
  Status Begin(uint32_t lane, DiskOp op) override;
  Status BeginWrite(uint32_t lane);
  uint64_t SlotsAhead() const { return uint64_t{4} * arguments_.depth; }
  void OnTurn() override;
  Place place() const override {
    return {"slab-0.terrace", geometry_.payload_offset_bytes, geometry_.slot_count * block_bytes_};
  }

  void OnTransferDone(TransferId transfer_id, Status status) override;
  void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                   uint32_t member) override;
  void OnRoom(uint32_t /*domain_index*/) override { LanesMayGoOn(); }

  sim::SimGroupKeys keys_;
  std::unique_ptr<CipherPool> pool_;
  std::unique_ptr<CipherDisk> cipher_;
  std::unique_ptr<NvmeTier> tier_;
  SlabGeometry geometry_;
  std::deque<Extent> blocks_;    // oldest first
  std::vector<Extent> writing_;  // by lane
  std::array<Checksum, 1> checksum_ = {Checksum{1, 2}};
  uint64_t next_key_ = 1;
  uint64_t ticked_us_ = 0;
};

void TierBench::Prepare() {
  writing_.resize(arguments_.depth);
  PayloadEncryption encryption;
  if (arguments_.is_encrypted) {
    pool_ = std::make_unique<CipherPool>(
        CipherPool::Options{.post = [this](auto call) { asio::post(loop_, std::move(call)); }});
    cipher_ = std::make_unique<CipherDisk>(*disk_, CipherDisk::Options{.pool = pool_.get()});
    encryption = keys_.encryption();
    encryption.random = KernelRandom;
  }
  DomainSecret secret{};
  tier_ = std::make_unique<NvmeTier>(
      NvmeTier::Options{.domain_name = "bench",
                        .secret = secret,
                        .disks = {cipher_ ? static_cast<Disk*>(cipher_.get()) : disk_.get()},
                        .capacity_bytes = arguments_.file_mib * kMiB,
                        .slab_bytes = arguments_.file_mib * kMiB,
                        .encryption = encryption,
                        .now_us = NowUs,
                        .random = [this] { return random_() ^ NowUs(); }});
  tier_->SetListener(this);
  std::vector<std::string> notes;
  TERRACE_CHECK(tier_->restore().OpenSlabs(&notes).ok() && notes.empty(),
                "the slab is this bench's");
  TERRACE_CHECK(tier_->restore()
                    .Scan([this](const BlockRecord&, const Extent& extent) {
                      TERRACE_CHECK(extent.length_bytes == block_bytes_, "of this block size");
                      blocks_.push_back(extent);
                      return uint32_t{0};
                    })
                    .ok(),
                "the slab can be read");
  tier_->restore().Finish();
  geometry_ = SlabGeometry::Of({block_bytes_, 1}, arguments_.file_mib * kMiB).value();
  if (blocks_.size() + 2 * SlotsAhead() < geometry_.slot_count) {
    Run(DiskOp::kWrite, geometry_.slot_count);
  }
}

Status TierBench::Begin(uint32_t lane, DiskOp op) {
  if (op == DiskOp::kWrite) return BeginWrite(lane);
  return tier_->Read(lane, blocks_[random_() % blocks_.size()], MemoryOf(lane));
}

// Like a tier that is full: the oldest goes, and some slots are free ahead of those who come.
Status TierBench::BeginWrite(uint32_t lane) {
  if (blocks_.size() + SlotsAhead() > geometry_.slot_count) {
    tier_->Free(blocks_.front());
    blocks_.pop_front();
  }
  const Result<Extent> extent = tier_->Allocate(0, block_bytes_, 1);
  TERRACE_RETURN_IF_ERROR(extent.status());
  BlockRecord record;
  record.commit_id = next_key_;
  record.owner = lane;
  record.part_checksums = checksum_;
  record.key = {next_key_, ~next_key_};
  ++next_key_;
  const Status begun = tier_->Write(lane, *extent, record, MemoryOf(lane));
  if (!begun.ok()) {
    tier_->Free(*extent);
    return begun;
  }
  writing_[lane] = *extent;
  ++under_way_;  // until it is persisted
  return begun;
}

void TierBench::OnTransferDone(TransferId transfer_id, Status status) {
  TERRACE_CHECK(status.ok(), "a bench needs a sound disk");
  const auto lane = static_cast<uint32_t>(transfer_id);
  if (const Extent written = std::exchange(writing_[lane], Extent{}); written.length_bytes > 0) {
    blocks_.push_back(written);
  }
  OnDone(lane);
}

void TierBench::OnPersisted(uint32_t /*domain_index*/, uint32_t /*owner*/, CommitId /*commit_id*/,
                            uint32_t /*member*/) {
  --under_way_;
}

void TierBench::OnTurn() {
  if (NowUs() - ticked_us_ < kTickUs) return;
  ticked_us_ = NowUs();
  tier_->Tick();
}

// ---------------------------------------------------------------------------------------------

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("disk_bench");
  app.add_option("--directory", arguments.directory)->required();
  app.add_option("--op", arguments.op)->check(CLI::IsMember({"read", "write"}));
  app.add_option("--engine", arguments.engine)->check(CLI::IsMember({"auto", "uring", "threads"}));
  app.add_option("--memory-file", arguments.memory_file, "on a tmpfs or a hugetlbfs, long enough");
  app.add_option("--block-kib", arguments.block_kib)->check(CLI::Range(4, 65536));
  app.add_option("--depth", arguments.depth)->check(CLI::Range(1, 128));
  app.add_option("--file-mib", arguments.file_mib)->check(CLI::Range(64, 65536));
  app.add_option("--total-mib", arguments.total_mib)->check(CLI::Range(1, 1 << 20));
  app.add_flag("--tier", arguments.is_tier);
  app.add_flag("--unregistered", arguments.is_unregistered);
  app.add_flag("--encrypted", arguments.is_encrypted, "with --tier");
  CLI11_PARSE(app, argc, argv);
  std::unique_ptr<Bench> bench;
  if (arguments.is_tier) {
    bench = std::make_unique<TierBench>(arguments);
  } else {
    bench = std::make_unique<FileBench>(arguments);
  }
  bench->OpenMemoryAndDisk();
  bench->Prepare();
  bench->Run(arguments.op == "write" ? DiskOp::kWrite : DiskOp::kRead,
             bench->blocks_of(arguments.total_mib));
  bench->Print();
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
