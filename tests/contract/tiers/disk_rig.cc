#include "contract/tiers/disk_rig.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

namespace terrace {

DiskMailbox::Post StoreLoop::post() {
  return [queue = queue_](std::function<void()> call) {
    std::lock_guard lock(queue->mutex);
    queue->calls.push_back(std::move(call));
    queue->has_calls.notify_one();
  };
}

bool StoreLoop::RunUntil(const std::function<bool()>& is_over) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!is_over()) {
    std::function<void()> call;
    {
      std::unique_lock lock(queue_->mutex);
      if (!queue_->has_calls.wait_until(lock, until, [this] { return !queue_->calls.empty(); })) {
        return false;
      }
      call = std::move(queue_->calls.front());
      queue_->calls.pop_front();
    }
    call();
  }
  return true;
}

ScratchDirectory::ScratchDirectory(const std::string& parent)
    : path_(parent + "/terrace-disk-XXXXXX") {
  EXPECT_NE(::mkdtemp(path_.data()), nullptr) << path_;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

SharedMemory::SharedMemory(uint64_t length_bytes)
    : fd_(::memfd_create("terrace-test", MFD_CLOEXEC)) {
  EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(length_bytes)), 0);
  void* const mapped =
      ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  bytes_ = {static_cast<std::byte*>(mapped), length_bytes};
}

SharedMemory::~SharedMemory() {
  ::munmap(bytes_.data(), bytes_.size());
  ::close(fd_);
}

void SharedMemory::Punch() {
  EXPECT_EQ(::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(bytes_.size())),
            0);
}

uint64_t SharedMemory::resident_bytes() const {
  struct stat about {};
  EXPECT_EQ(::fstat(fd_, &about), 0);
  return static_cast<uint64_t>(about.st_blocks) * 512;
}

DiskRig::DiskRig(const std::string& parent) : scratch_(parent) {}

void DiskRig::Open(DiskOptions options) {
  disk_.reset();
  options.directory = directory();
  options.post = loop_.post();
  std::string why;
  auto disk = OpenDisk(std::move(options), &why);
  ASSERT_TRUE(disk.ok()) << why;
  disk_ = std::move(*disk);
  disk_->SetListener(this);
}

void DiskRig::OnDiskDone(uint64_t tag, Status status) {
  EXPECT_TRUE(done_.emplace(tag, status).second) << "completed twice: " << tag;
}

Result<uint64_t> DiskRig::Begin(DiskRequest request) {
  request.tag = next_tag_++;
  TERRACE_RETURN_IF_ERROR(disk_->Submit(request));
  disk_->Flush();
  return request.tag;
}

Status DiskRig::Await(uint64_t tag) {
  EXPECT_TRUE(loop_.RunUntil([&] { return done_.contains(tag); })) << "no completion of " << tag;
  return done_.contains(tag) ? done_.at(tag) : Status(StatusCode::kGone, "never completed");
}

Status DiskRig::Do(DiskRequest request) {
  const Result<uint64_t> tag = Begin(std::move(request));
  return tag.ok() ? Await(*tag) : tag.status();
}

DiskFile DiskRig::MakeFile(const std::string& name, uint64_t length_bytes) {
  const DiskFile file = disk_->NewFile();
  const Status status =
      Do({.op = DiskOp::kCreate, .file = file, .length_bytes = length_bytes, .name = name});
  EXPECT_TRUE(status.ok()) << name << ": " << status.what() << " " << status.detail();
  return file;
}

namespace {
uint64_t Word(uint64_t seed, uint64_t index) { return (seed + 1) * 0x9E3779B97F4A7C15u ^ index; }
}  // namespace

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = Word(seed, at);
    std::memcpy(&bytes[at], &word, std::min(sizeof word, bytes.size() - at));
  }
}

std::vector<std::byte> Pattern(uint64_t length_bytes, uint64_t seed) {
  std::vector<std::byte> bytes(length_bytes);
  FillPattern(bytes, seed);
  return bytes;
}

bool HasPattern(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = Word(seed, at);
    if (std::memcmp(&bytes[at], &word, std::min(sizeof word, bytes.size() - at)) != 0) return false;
  }
  return true;
}

}  // namespace terrace
