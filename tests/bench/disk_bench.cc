// How fast a disk moves blocks as the NVMe tier would: a queue kept full from a store loop like the
// daemon's, writes one after the other (demotion), reads at random (promotion), memory like the
// arena's. The file is made, written once and kept, so that fio can be run on the same one.
//
//   disk_bench --directory DIR --op write|read [--engine auto|uring|threads] [--block-kib 1024]
//              [--depth 32] [--file-mib 1024] [--total-mib 2048] [--plain-buffers] [--tables]
//
// Prints one JSON object: MiB/s, and CPU microseconds per MiB of the whole process, kernel
// included.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "terrace/check.h"
#include "terrace/units.h"
#include "tiers/file_disk.h"

namespace terrace {
namespace {

constexpr char kFileName[] = "bench";
constexpr uint64_t kTableBytes = 64 * kKiB;  // at the start of the file, as in a slab
constexpr uint64_t kEntryBytes = 288;
constexpr uint64_t kBatchTag = uint64_t{1} << 32;

struct Arguments {
  std::string directory;
  std::string op = "read";
  std::string engine = "auto";
  uint64_t block_kib = 1024;
  uint32_t depth = 32;
  uint64_t file_mib = 1024;
  uint64_t total_mib = 2048;
  bool has_plain_buffers = false;
  bool has_tables = false;
};

uint64_t CpuUs() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return static_cast<uint64_t>(time.tv_sec) * kUsPerSecond + static_cast<uint64_t>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

class Bench : public DiskListener {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments), block_bytes_(arguments.block_kib * kKiB) {}

  void Open();
  void Run(DiskOp op, uint64_t total_bytes);
  void Print();

  void OnDiskDone(uint64_t tag, Status status) override;

 private:
  void Prepare();
  void BeginNext(uint32_t lane);
  void Await();

  const Arguments arguments_;
  const uint64_t block_bytes_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> never_idle_ =
      asio::make_work_guard(loop_);
  std::unique_ptr<Disk> disk_;
  DiskFile file_ = kDiskFileNone;
  std::span<std::byte> memory_;
  std::mt19937_64 random_{1};

  DiskOp op_ = DiskOp::kRead;
  uint64_t blocks_left_ = 0;
  uint64_t next_block_ = 0;
  uint64_t in_flight_ = 0;
  double seconds_ = 0;
  uint64_t cpu_us_ = 0;
};

void Bench::Open() {
  const uint64_t length_bytes = arguments_.depth * block_bytes_;
  const int fd = ::memfd_create("disk-bench", MFD_CLOEXEC);
  TERRACE_CHECK(::ftruncate(fd, static_cast<off_t>(length_bytes)) == 0, "memory for the blocks");
  void* const mapped =
      ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  TERRACE_CHECK(mapped != MAP_FAILED, "memory for the blocks");
  memory_ = {static_cast<std::byte*>(mapped), length_bytes};
  std::memset(memory_.data(), 0x5A, memory_.size());

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
  disk_->SetListener(this);
  if (!arguments_.has_plain_buffers) disk_->RegisterBuffer(0, memory_);
  Prepare();
}

// Every block is written once: the first write to reserved space costs the file system more.
void Bench::Prepare() {
  const uint64_t file_bytes = kTableBytes + arguments_.file_mib * kMiB;
  uint64_t length_bytes = 0;
  if (disk_->OpenNow(kFileName, &file_, &length_bytes).ok()) {
    TERRACE_CHECK(length_bytes == file_bytes, "the file there is of another length: remove it");
    return;
  }
  file_ = disk_->NewFile();
  in_flight_ = 1;
  const Status begun = disk_->Submit({.tag = kBatchTag,
                                      .op = DiskOp::kCreate,
                                      .file = file_,
                                      .length_bytes = file_bytes,
                                      .name = kFileName});
  TERRACE_CHECK(begun.ok(), "a file can be made");
  Await();
  Run(DiskOp::kWrite, arguments_.file_mib * kMiB);
  in_flight_ = 1;
  TERRACE_CHECK(disk_->Submit({.tag = kBatchTag, .op = DiskOp::kSync, .file = file_}).ok(),
                "a sync");
  Await();
}

void Bench::Run(DiskOp op, uint64_t total_bytes) {
  op_ = op;
  blocks_left_ = total_bytes / block_bytes_;
  next_block_ = 0;
  const uint64_t cpu_us = CpuUs();
  const auto begin = std::chrono::steady_clock::now();
  for (uint32_t lane = 0; lane < arguments_.depth; ++lane) BeginNext(lane);
  Await();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  cpu_us_ = CpuUs() - cpu_us;
}

void Bench::Await() {
  disk_->Flush();
  while (in_flight_ > 0) loop_.run_one();
}

void Bench::BeginNext(uint32_t lane) {
  if (blocks_left_ == 0) return;
  --blocks_left_;
  const uint64_t blocks = arguments_.file_mib * kMiB / block_bytes_;
  const uint64_t block = op_ == DiskOp::kWrite ? next_block_++ % blocks : random_() % blocks;
  const std::span<std::byte> bytes = memory_.subspan(lane * block_bytes_, block_bytes_);
  DiskRequest request{
      .tag = lane, .op = op_, .file = file_, .offset_bytes = kTableBytes + block * block_bytes_};
  op_ == DiskOp::kWrite ? request.from = bytes : request.into = bytes;
  TERRACE_CHECK(disk_->Submit(request).ok(), "the queue is longer than the depth");
  ++in_flight_;
}

void Bench::OnDiskDone(uint64_t tag, Status status) {
  TERRACE_CHECK(status.ok(), "a bench needs a sound disk");
  --in_flight_;
  if (tag >= kBatchTag) return;
  if (arguments_.has_tables && op_ == DiskOp::kWrite) {
    const std::span<const std::byte> entry = memory_.first(kEntryBytes);
    const uint64_t offset_bytes = (tag / 14 + 1) * 4096 + tag % 14 * kEntryBytes;
    const Status begun = disk_->Submit({.tag = kBatchTag,
                                        .op = DiskOp::kWriteTable,
                                        .file = file_,
                                        .offset_bytes = offset_bytes,
                                        .from = entry});
    TERRACE_CHECK(begun.ok(), "the queue is longer than the depth");
    ++in_flight_;
  }
  BeginNext(static_cast<uint32_t>(tag));
}

void Bench::Print() {
  const auto total_mib = static_cast<double>(arguments_.total_mib);
  std::printf(
      "{\"mib_per_second\": %.1f, \"cpu_us_per_mib\": %.2f, \"seconds\": %.3f, "
      "\"retries\": %llu, \"disk\": \"%s\"}\n",
      total_mib / seconds_, static_cast<double>(cpu_us_) / total_mib, seconds_,
      static_cast<unsigned long long>(disk_->stats().retries), disk_->description().c_str());
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("disk_bench");
  app.add_option("--directory", arguments.directory)->required();
  app.add_option("--op", arguments.op)->check(CLI::IsMember({"read", "write"}));
  app.add_option("--engine", arguments.engine)->check(CLI::IsMember({"auto", "uring", "threads"}));
  app.add_option("--block-kib", arguments.block_kib)->check(CLI::Range(4, 65536));
  app.add_option("--depth", arguments.depth)->check(CLI::Range(1, 128));
  app.add_option("--file-mib", arguments.file_mib)->check(CLI::Range(64, 65536));
  app.add_option("--total-mib", arguments.total_mib)->check(CLI::Range(1, 1 << 20));
  app.add_flag("--plain-buffers", arguments.has_plain_buffers);
  app.add_flag("--tables", arguments.has_tables);
  CLI11_PARSE(app, argc, argv);
  Bench bench(arguments);
  bench.Open();
  bench.Run(arguments.op == "write" ? DiskOp::kWrite : DiskOp::kRead, arguments.total_mib * kMiB);
  bench.Print();
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
