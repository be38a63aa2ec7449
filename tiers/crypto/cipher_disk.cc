#include "tiers/crypto/cipher_disk.h"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <utility>

#include "terrace/check.h"
#include "terrace/units.h"
#include "tiers/disk/disk_transfer.h"
#include "tiers/disk/left_behind.h"

namespace terrace {
namespace {

constexpr uint64_t kOwnTag = uint64_t{1} << 63;  // requests with a cipher, at the other disk
constexpr uint64_t kEndUs = 10'000'000;          // a payload takes milliseconds
constexpr uint64_t kHugePageBytes = 2 * kMiB;

bool Overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

// ---- threads --------------------------------------------------------------------------------

struct CipherPool::Queue {
  std::mutex mutex;
  std::deque<DiskWorkers::Job> reads, writes;

  void RunOne() {
    DiskWorkers::Job job;
    {
      const std::lock_guard lock(mutex);
      std::deque<DiskWorkers::Job>& from = reads.empty() ? writes : reads;
      job = std::move(from.front());
      from.pop_front();
    }
    job();
  }
};

CipherPool::CipherPool(Options options)
    : options_(std::move(options)),
      queue_(std::make_shared<Queue>()),
      workers_({.name = "terrace-cipher", .threads = options_.threads}) {}

CipherPool::~CipherPool() { workers_.Stop(kEndUs); }

void CipherPool::Run(Urgency urgency, DiskWorkers::Job job) {
  {
    const std::lock_guard lock(queue_->mutex);
    (urgency == Urgency::kRead ? queue_->reads : queue_->writes).push_back(std::move(job));
  }
  std::vector<DiskWorkers::Job> turns;
  turns.emplace_back([queue = queue_] { queue->RunOne(); });
  workers_.Submit(&turns);
}

// A disk's jobs under way: its end waits for them, and none begins after it.
struct CipherDisk::Jobs {
  std::mutex mutex;
  std::condition_variable ended;
  uint32_t running = 0;
  bool is_over = false;

  void Run(const std::function<void()>& work) {
    {
      const std::lock_guard lock(mutex);
      if (is_over) return;
      ++running;
    }
    work();
    const std::lock_guard lock(mutex);
    --running;
    ended.notify_all();
  }
  void End() {
    std::unique_lock lock(mutex);
    is_over = true;
    ended.wait(lock, [this] { return running == 0; });
  }
};

// ---- memory ---------------------------------------------------------------------------------

BounceMemory::~BounceMemory() {
  while (!free_.empty()) Drop(free_.size() - 1);
}

void BounceMemory::Drop(size_t index) {
  const std::span<std::byte> buffer = free_[index];
  free_.erase(free_.begin() + static_cast<ptrdiff_t>(index));
  held_bytes_ -= buffer.size();
  std::free(buffer.data());
}

std::span<std::byte> BounceMemory::Take(uint64_t length_bytes) {
  // The one given back last: a processor's cache may still hold it.
  const auto fits = std::find_if(free_.rbegin(), free_.rend(), [length_bytes](const auto& buffer) {
    return buffer.size() == length_bytes;
  });
  if (fits != free_.rend()) {
    const std::span<std::byte> buffer = *fits;
    free_.erase(std::next(fits).base());
    taken_bytes_ += length_bytes;
    return buffer;
  }
  if (taken_bytes_ > 0 && taken_bytes_ + length_bytes > bytes_max_) return {};
  while (!free_.empty() && held_bytes_ + length_bytes > bytes_max_) Drop(0);
  const uint64_t alignment = length_bytes >= kHugePageBytes ? kHugePageBytes : kDiskAlignmentBytes;
  auto* const memory =
      static_cast<std::byte*>(std::aligned_alloc(alignment, RoundUp(length_bytes, alignment)));
  if (memory == nullptr) return {};
  if (alignment == kHugePageBytes) madvise(memory, length_bytes, MADV_HUGEPAGE);
  held_bytes_ += length_bytes;
  taken_bytes_ += length_bytes;
  return {memory, length_bytes};
}

void BounceMemory::Give(std::span<std::byte> buffer) {
  taken_bytes_ -= buffer.size();
  free_.push_back(buffer);
  if (held_bytes_ > bytes_max_) Drop(free_.size() - 1);
}

// ---- requests -------------------------------------------------------------------------------

CipherDisk::CipherDisk(Disk& disk, const Options& options)
    : disk_(disk), options_(options), bounce_(options.bounce_bytes_max) {
  if (options_.pool == nullptr) return;
  jobs_ = std::make_shared<Jobs>();
  mailbox_ = std::make_shared<DiskMailbox>(options_.pool->post(),
                                           [this](std::span<const DiskCompletion> completions) {
                                             for (const DiskCompletion& done : completions)
                                               OnWorked(done.token, done.status);
                                             disk_.Flush();
                                           });
}

// What the other disk was given and has not answered it may still write: its memory stays.
CipherDisk::~CipherDisk() {
  if (options_.pool != nullptr) {
    mailbox_->Close();
    jobs_->End();
  }
  requests_.ForEach([&](uint32_t, Request& request) {
    if (request.bounce.empty()) return;
    const std::shared_ptr<std::byte> memory(request.bounce.data(), std::free);
    if (options_.pool != nullptr) LeaveBehind(memory);
  });
}

void CipherDisk::SetListener(DiskListener* listener) {
  listener_ = listener;
  disk_.SetListener(listener == nullptr ? nullptr : this);
}

Status CipherDisk::Submit(const DiskRequest& request) {
  TERRACE_CHECK((request.tag & kOwnTag) == 0, "the highest bit of a tag is this disk's");
  if (requests_count_ >= disk_.queue_max()) {
    return Status(StatusCode::kBusy, "the disk's queue is full");
  }
  if (request.cipher == nullptr) {
    TERRACE_RETURN_IF_ERROR(disk_.Submit(request));
    ++requests_count_;
    return Status::Ok();
  }
  if (request.op == DiskOp::kWrite && options_.pool == nullptr) return SubmitAtOnce(request);
  const uint32_t number = requests_.Take({.asked = request});
  if (request.op == DiskOp::kRead) {
    DiskRequest read = request;
    read.tag = kOwnTag | number;
    if (const Status status = disk_.Submit(read); !status.ok()) {
      (void)requests_.Give(number);
      return status;
    }
  } else {
    TERRACE_CHECK(request.op == DiskOp::kWrite, "payload alone is encrypted");
    ++held_back_count_;
    waiting_.push_back(number);
    if (waiting_.size() == 1) BeginWrite(number);
  }
  ++requests_count_;
  return Status::Ok();
}

Status CipherDisk::SubmitAtOnce(const DiskRequest& request) {
  const std::span<std::byte> bounce = bounce_.Take(request.from.size());
  if (bounce.empty()) return Status(StatusCode::kBusy, "no memory to encrypt into");
  const uint32_t number = requests_.Take({.asked = request, .bounce = bounce});
  DiskRequest write = request;
  write.tag = kOwnTag | number;
  write.from = bounce;
  Status status = request.cipher->EncryptInto(request.from, bounce);
  if (status.ok()) status = disk_.Submit(write);
  if (status.ok()) {
    ++requests_count_;
  } else {
    (void)requests_.Give(number);
    bounce_.Give(bounce);
  }
  return status;
}

// The first that waits, if there is memory for it.
void CipherDisk::BeginWrite(uint32_t number) {
  TERRACE_CHECK(!waiting_.empty() && waiting_.front() == number, "writes wait in order");
  Request& request = requests_[number];
  request.bounce = bounce_.Take(request.asked.from.size());
  if (request.bounce.empty()) return;
  waiting_.pop_front();
  Work(number);
}

void CipherDisk::Work(uint32_t number) {
  const Request& request = requests_[number];
  const bool is_read = request.asked.op == DiskOp::kRead;
  const auto work = [cipher = request.asked.cipher, is_read, from = request.asked.from,
                     into = is_read ? request.asked.into : request.bounce] {
    return is_read ? cipher->DecryptInPlace(into) : cipher->EncryptInto(from, into);
  };
  if (options_.pool == nullptr) return OnWorked(number, work());
  options_.pool->Run(is_read ? CipherPool::Urgency::kRead : CipherPool::Urgency::kWrite,
                     [jobs = jobs_, mailbox = mailbox_, number, work] {
                       jobs->Run([&] { mailbox->Put({.token = number, .status = work()}); });
                     });
}

void CipherDisk::OnWorked(uint32_t number, Status status) {
  --held_back_count_;
  if (!status.ok() || requests_[number].asked.op == DiskOp::kRead) return End(number, status);
  DiskRequest write = requests_[number].asked;
  write.tag = kOwnTag | number;
  write.from = requests_[number].bounce;
  // Its place in the queue was kept, so a disk that is busy is one that fails.
  if (const Status begun = disk_.Submit(write); !begun.ok()) End(number, begun);
}

void CipherDisk::OnDiskDone(uint64_t tag, Status status) {
  if ((tag & kOwnTag) == 0) {
    --requests_count_;
    listener_->OnDiskDone(tag, status);
    return;
  }
  const auto number = static_cast<uint32_t>(tag & ~kOwnTag);
  if (!status.ok() || requests_[number].asked.op == DiskOp::kWrite) return End(number, status);
  ++held_back_count_;
  Work(number);  // without a pool, ends it
}

void CipherDisk::End(uint32_t number, Status status) {
  const Request request = requests_.Give(number);
  --requests_count_;
  if (!request.bounce.empty()) bounce_.Give(request.bounce);
  listener_->OnDiskDone(request.asked.tag, status);
  while (!waiting_.empty()) {
    const size_t before = waiting_.size();
    BeginWrite(waiting_.front());
    if (waiting_.size() == before) break;
  }
  UnregisterUnused();
}

DiskStats CipherDisk::stats() const {
  DiskStats stats = disk_.stats();
  stats.requests_in_flight += held_back_count_;
  return stats;
}

// ---- registered memory ----------------------------------------------------------------------

void CipherDisk::RegisterBuffer(uint32_t index, std::span<std::byte> memory) {
  if (index >= buffers_.size()) buffers_.resize(index + 1);
  buffers_[index] = memory;
  disk_.RegisterBuffer(index, memory);
}

// What is encrypted or decrypted just now is used, though no request of the other disk's says so.
bool CipherDisk::IsUsed(uint32_t buffer) const {
  bool is_used = false;
  requests_.ForEach([&](uint32_t, const Request& request) {
    is_used |= Overlap(buffers_[buffer], request.asked.into) ||
               Overlap(buffers_[buffer], request.asked.from);
  });
  return is_used;
}

void CipherDisk::UnregisterBuffer(uint32_t index, const std::function<void()>& done) {
  TERRACE_CHECK(index < buffers_.size(), "only a registered buffer is unregistered");
  unregistering_.push_back({index, done});
  UnregisterUnused();
}

void CipherDisk::UnregisterUnused() {
  for (size_t i = 0; i < unregistering_.size();) {
    if (IsUsed(unregistering_[i].index)) {
      ++i;
      continue;
    }
    const Unregistering ready = std::move(unregistering_[i]);
    unregistering_.erase(unregistering_.begin() + static_cast<ptrdiff_t>(i));
    disk_.UnregisterBuffer(ready.index, ready.done);
  }
}

}  // namespace terrace
