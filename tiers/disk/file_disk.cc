#include "tiers/disk/file_disk.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "src/slot_pool.h"
#include "terrace/check.h"
#include "terrace/units.h"
#include "tiers/disk/disk_engine.h"
#include "tiers/disk/disk_workers.h"
#include "tiers/disk/left_behind.h"
#include "tiers/disk/table_writer.h"
#include "tiers/disk/thread_engine.h"
#include "tiers/disk/uring_engine.h"

namespace terrace {
namespace {

constexpr uint32_t kQueueLimit = 4096;
constexpr uint32_t kFilesLimit = 32768;    // of io_uring's file table
constexpr uint32_t kBuffersLimit = 16384;  // of io_uring's buffer table
constexpr uint32_t kThreadsLimit = 64;

struct FreeAligned {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeAligned>;

bool IsAligned(uint64_t value) { return value % kDiskAlignmentBytes == 0; }

// What the threads of the disk use: it stays as long as any of them runs.
struct Shared {
  Shared(std::unique_ptr<DiskFiles> the_files, std::shared_ptr<DiskMailbox> the_mailbox,
         const DiskOptions& options)
      : files(std::move(the_files)),
        mailbox(std::move(the_mailbox)),
        table({.result_filter = options.result_filter, .mailbox = mailbox}),
        copies(static_cast<std::byte*>(
            std::aligned_alloc(kDiskAlignmentBytes, options.queue_max * kDiskAlignmentBytes))) {
    TERRACE_CHECK(copies != nullptr, "a disk without memory for its queue cannot be");
  }

  std::unique_ptr<DiskFiles> files;
  std::shared_ptr<DiskMailbox> mailbox;
  TableWriter table;
  AlignedBytes copies;  // kDiskAlignmentBytes a token: what table writes and creations copied

  // Of what may have changed how much room there is.
  void AnswerSlow(uint32_t token, Status status) const {
    files->RefreshSpace();
    mailbox->Put({.token = token, .status = status});
  }
  std::byte* CopyOf(uint32_t token) const { return copies.get() + token * kDiskAlignmentBytes; }
};

class FileDisk final : public Disk {
 public:
  FileDisk(DiskOptions options, std::unique_ptr<DiskFiles> files);
  ~FileDisk() override;
  Status StartEngine(std::string* why);

  void SetListener(DiskListener* listener) override { listener_ = listener; }
  Status Submit(const DiskRequest& request) override;
  void Flush() override;
  DiskFile NewFile() override { return shared_->files->Reserve(); }
  FileRoom file_room() const override { return shared_->files->room(); }
  void RegisterBuffer(uint32_t index, std::span<std::byte> memory) override;
  void UnregisterBuffer(uint32_t index, const std::function<void()>& done) override;
  Status ListNow(std::vector<std::string>* names) override { return shared_->files->List(names); }
  Status OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) override;
  Status ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) override;
  uint32_t queue_max() const override { return options_.queue_max; }
  DiskStats stats() const override;
  std::string description() const override;
  std::string directory() const override { return options_.directory; }

 private:
  struct Slot {
    uint64_t tag = 0;
    uint64_t length_bytes = 0;
    DiskFile file = kDiskFileNone;
    uint32_t buffer = kDiskBufferNone;
    DiskOp op = DiskOp::kRead;
  };
  struct OpenFile {
    DiskFiles::Descriptors descriptors;
    uint32_t users = 0;  // requests in flight
  };
  struct Buffer {
    enum class State : uint8_t { kNone, kRegistering, kPinned, kPlain, kUnpinning };
    State state = State::kNone;
    std::span<std::byte> memory;
    uint32_t users = 0;  // requests in flight
    std::function<void()> on_unregistered;
  };

  Status SubmitPayload(const DiskRequest& request, uint32_t token);
  Status SubmitTable(const DiskRequest& request, uint32_t token);
  Status SubmitSlow(const DiskRequest& request, uint32_t token);
  void Deliver(std::span<const DiskCompletion> completions);
  void OnRequest(const DiskCompletion& completion);
  void OnBuffer(const DiskCompletion& completion);
  void NoteOpened(DiskFile file);
  uint32_t BufferOf(const std::byte* memory, uint64_t length_bytes) const;
  void ReleaseBuffer(uint32_t index);
  bool IsOpen(DiskFile file) const {
    return file < open_.size() && open_[file].descriptors.table >= 0;
  }

  const DiskOptions options_;
  std::string description_;
  std::unique_ptr<Shared> shared_;
  std::unique_ptr<DiskEngine> engine_;
  DiskWorkers table_worker_;
  DiskWorkers slow_worker_;

  DiskListener* listener_ = nullptr;
  SlotPool<Slot> slots_;        // by token; queue_max at most
  std::vector<OpenFile> open_;  // by file
  std::vector<Buffer> buffers_;
  std::vector<uint32_t> buffers_by_address_;
  std::vector<DiskTransfer> transfers_;        // accepted, not flushed
  std::vector<DiskTransfer> table_transfers_;  // likewise
  std::vector<DiskWorkers::Job> table_jobs_;
  std::vector<DiskWorkers::Job> slow_jobs_;
  DiskStats stats_;
};

FileDisk::FileDisk(DiskOptions options, std::unique_ptr<DiskFiles> files)
    : options_(std::move(options)),
      shared_(std::make_unique<Shared>(
          std::move(files),
          std::make_shared<DiskMailbox>(
              options_.post,
              [this](std::span<const DiskCompletion> completions) { Deliver(completions); }),
          options_)),
      table_worker_({.name = "terrace-table"}),
      slow_worker_({.name = "terrace-disk-io", .on_idle = [files = shared_->files.get()] {
                      files->RefreshSpace();
                      files->LookForRemoved();
                    }}) {}

// What did not end in time may still write to the files, through their descriptors, into memory of
// the caller. The descriptors are left open (their numbers must not become another file's) and the
// directory locked (nobody else may trust its slots), on purpose.
FileDisk::~FileDisk() {
  shared_->mailbox->Close();
  using Clock = std::chrono::steady_clock;
  const auto stop_by = Clock::now() + std::chrono::microseconds(options_.stop_us);
  const auto left_us = [stop_by] {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(stop_by - Clock::now());
    return static_cast<uint64_t>(std::max<int64_t>(left.count(), 0));
  };
  const bool is_engine_over = engine_ == nullptr || engine_->Stop(left_us());
  const bool are_workers_over = table_worker_.Stop(left_us()) & slow_worker_.Stop(left_us());
  if (is_engine_over && are_workers_over) return;
  if (!is_engine_over) LeaveBehind(std::move(engine_));
  LeaveBehind(std::move(shared_));
}

Status FileDisk::StartEngine(std::string* why) {
  std::string blocked;
  if (options_.engine != DiskEngineChoice::kThreads) {
    engine_ = UringEngine::Start({.queue_max = options_.queue_max,
                                  .files_max = options_.files_max,
                                  .buffers_max = options_.buffers_max,
                                  .held_fd = shared_->files->lock_fd(),
                                  .result_filter = options_.result_filter,
                                  .mailbox = shared_->mailbox},
                                 &blocked);
  }
  if (engine_ == nullptr && options_.engine == DiskEngineChoice::kUring) {
    *why = options_.directory + ": " + blocked + ". Allow io_uring, or choose threads";
    return Status(StatusCode::kUnsupported, "io_uring is blocked");
  }
  if (engine_ == nullptr) {
    engine_ = std::make_unique<ThreadEngine>(
        ThreadEngine::Options{.threads = options_.threads,
                              .result_filter = options_.result_filter,
                              .mailbox = shared_->mailbox});
  }
  description_ = engine_->description() + ", " + shared_->files->payload_description();
  if (options_.engine == DiskEngineChoice::kThreads) description_ += "; threads as configured";
  if (!blocked.empty()) description_ += "; " + blocked;
  return Status::Ok();
}

std::string FileDisk::description() const { return description_; }

// ---- requests -------------------------------------------------------------------------------

Status FileDisk::Submit(const DiskRequest& request) {
  TERRACE_CHECK(listener_ != nullptr, "completions need a listener");
  if (slots_.count() == options_.queue_max) {
    return Status(StatusCode::kBusy, "the disk's queue is full");
  }
  const uint32_t token = slots_.Take({.tag = request.tag, .file = request.file, .op = request.op});
  Status status;
  switch (request.op) {
    case DiskOp::kRead:
    case DiskOp::kWrite:
      status = SubmitPayload(request, token);
      break;
    case DiskOp::kWriteTable:
      status = SubmitTable(request, token);
      break;
    case DiskOp::kSync:
    case DiskOp::kCreate:
    case DiskOp::kRemove:
      status = SubmitSlow(request, token);
      break;
  }
  if (!status.ok()) {
    (void)slots_.Give(token);
    return status;
  }
  ++stats_.requests_in_flight;
  if (request.file < open_.size()) ++open_[request.file].users;
  return status;
}

Status FileDisk::SubmitPayload(const DiskRequest& request, uint32_t token) {
  const bool is_read = request.op == DiskOp::kRead;
  // A write only reads its memory.
  std::byte* const memory =
      is_read ? request.into.data() : const_cast<std::byte*>(request.from.data());
  const uint64_t length_bytes = is_read ? request.into.size() : request.from.size();
  if (!IsOpen(request.file) || length_bytes == 0 || !IsAligned(length_bytes) ||
      !IsAligned(request.offset_bytes) || !IsAligned(reinterpret_cast<uintptr_t>(memory))) {
    return Status(StatusCode::kInvalid, "payload is of an open file and aligned to 4 KiB");
  }
  const uint32_t buffer = BufferOf(memory, length_bytes);
  const bool is_pinned =
      buffer != kDiskBufferNone && buffers_[buffer].state == Buffer::State::kPinned;
  if (buffer != kDiskBufferNone) ++buffers_[buffer].users;
  slots_[token].buffer = buffer;
  slots_[token].length_bytes = length_bytes;
  transfers_.push_back({.token = token,
                        .op = request.op,
                        .file = request.file,
                        .fd = open_[request.file].descriptors.payload,
                        .buffer_index = is_pinned ? buffer : kDiskBufferNone,
                        .offset_bytes = request.offset_bytes,
                        .memory = memory,
                        .length_bytes = length_bytes});
  return Status::Ok();
}

Status FileDisk::SubmitTable(const DiskRequest& request, uint32_t token) {
  const uint64_t length_bytes = request.from.size();
  if (!IsOpen(request.file) || length_bytes == 0 ||
      request.offset_bytes % kDiskAlignmentBytes + length_bytes > kDiskAlignmentBytes) {
    return Status(StatusCode::kInvalid, "a table write is of an open file, within one sector");
  }
  std::byte* const copy = shared_->CopyOf(token);
  std::memcpy(copy, request.from.data(), length_bytes);
  slots_[token].length_bytes = length_bytes;
  table_transfers_.push_back({.token = token,
                              .op = request.op,
                              .file = request.file,
                              .fd = open_[request.file].descriptors.table,
                              .offset_bytes = request.offset_bytes,
                              .memory = copy,
                              .length_bytes = length_bytes});
  return Status::Ok();
}

Status FileDisk::SubmitSlow(const DiskRequest& request, uint32_t token) {
  const DiskFile file = request.file;
  Shared* const shared = shared_.get();
  if (request.op == DiskOp::kCreate) {
    if (file >= options_.files_max || IsOpen(file) || request.from.size() > kDiskAlignmentBytes) {
      return Status(StatusCode::kInvalid, "a file is made under a new number, with one sector");
    }
    if (file >= open_.size()) open_.resize(file + 1);
    std::byte* const copy = shared_->CopyOf(token);
    if (!request.from.empty()) std::memcpy(copy, request.from.data(), request.from.size());
    const std::span<const std::byte> first(copy, request.from.size());
    slow_jobs_.push_back(
        [shared, token, file, first, name = request.name, length_bytes = request.length_bytes] {
          shared->AnswerSlow(token, shared->files->Create(file, name, length_bytes, first));
        });
    return Status::Ok();
  }
  if (!IsOpen(file)) return Status(StatusCode::kInvalid, "no such open file");
  if (request.op == DiskOp::kSync) {
    slow_jobs_.push_back(
        [shared, token, file] { shared->AnswerSlow(token, shared->files->Sync(file)); });
    return Status::Ok();
  }
  if (open_[file].users > 0) return Status(StatusCode::kBusy, "requests of the file are in flight");
  open_[file].descriptors = {};
  engine_->FileClosed(file);
  slow_jobs_.push_back(
      [shared, token, file] { shared->AnswerSlow(token, shared->files->Remove(file)); });
  return Status::Ok();
}

void FileDisk::Flush() {
  if (!transfers_.empty()) engine_->Begin(transfers_);
  transfers_.clear();
  if (!table_transfers_.empty() && shared_->table.Add(&table_transfers_)) {
    table_jobs_.push_back([shared = shared_.get(), &is_stopping = table_worker_.is_stopping()] {
      shared->table.WriteAll(is_stopping);
    });
    table_worker_.Submit(&table_jobs_);
  }
  if (!slow_jobs_.empty()) slow_worker_.Submit(&slow_jobs_);
}

void FileDisk::Deliver(std::span<const DiskCompletion> completions) {
  for (const DiskCompletion& completion : completions) {
    completion.kind == DiskCompletion::Kind::kRequest ? OnRequest(completion)
                                                      : OnBuffer(completion);
  }
  Flush();  // what the listener asked for meanwhile
}

void FileDisk::OnRequest(const DiskCompletion& completion) {
  const Slot slot = slots_.Give(completion.token);
  --stats_.requests_in_flight;
  stats_.retries += completion.retries;
  if (slot.file < open_.size()) {
    TERRACE_CHECK(open_[slot.file].users > 0, "a file is let go by whoever uses it");
    --open_[slot.file].users;
  }
  if (!completion.status.ok()) {
    ++stats_.failures;
    if (slot.op == DiskOp::kRemove && shared_->files->descriptors(slot.file).table >= 0) {
      NoteOpened(slot.file);
    }
  } else if (slot.op == DiskOp::kCreate) {
    NoteOpened(slot.file);
  } else {
    (slot.op == DiskOp::kRead ? stats_.read_bytes : stats_.written_bytes) += slot.length_bytes;
  }
  listener_->OnDiskDone(slot.tag, completion.status);
  if (slot.buffer != kDiskBufferNone) {
    --buffers_[slot.buffer].users;
    ReleaseBuffer(slot.buffer);
  }
}

DiskStats FileDisk::stats() const {
  DiskStats stats = stats_;
  stats.filesystem_bytes = shared_->files->filesystem_bytes();
  stats.filesystem_free_bytes = shared_->files->filesystem_free_bytes();
  stats.files_removed = shared_->files->removed_count();
  return stats;
}

// ---- files ----------------------------------------------------------------------------------

void FileDisk::NoteOpened(DiskFile file) {
  if (file >= open_.size()) open_.resize(file + 1);
  open_[file].descriptors = shared_->files->descriptors(file);
  engine_->FileOpened(file, open_[file].descriptors.payload);
}

Status FileDisk::OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) {
  TERRACE_RETURN_IF_ERROR(shared_->files->OpenExisting(name, file, length_bytes));
  NoteOpened(*file);
  return Status::Ok();
}

Status FileDisk::ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) {
  if (into.empty()) return Status::Ok();
  const DiskTransfer transfer{.fd = shared_->files->descriptors(file).table,
                              .offset_bytes = offset_bytes,
                              .memory = into.data(),
                              .length_bytes = into.size()};
  if (transfer.fd < 0) return Status(StatusCode::kInvalid, "no such open file");
  TransferProgress progress(TransferProgress::Kind::kTable, DiskOp::kRead, into.size());
  const std::atomic<bool> is_stopping = false;
  return TransferNow(transfer, &progress, options_.result_filter, is_stopping);
}

// ---- registered memory ----------------------------------------------------------------------

void FileDisk::RegisterBuffer(uint32_t index, std::span<std::byte> memory) {
  if (index >= buffers_.size()) buffers_.resize(index + 1);
  Buffer& buffer = buffers_[index];
  TERRACE_CHECK(buffer.state == Buffer::State::kNone, "a buffer's number is used once at a time");
  buffer = {.state = Buffer::State::kRegistering, .memory = memory};
  const auto behind =
      std::ranges::upper_bound(buffers_by_address_, memory.data(), {},
                               [this](uint32_t other) { return buffers_[other].memory.data(); });
  buffers_by_address_.insert(behind, index);
  engine_->RegisterBuffer(index, memory);
}

void FileDisk::UnregisterBuffer(uint32_t index, const std::function<void()>& done) {
  TERRACE_CHECK(index < buffers_.size() && buffers_[index].state != Buffer::State::kNone &&
                    buffers_[index].on_unregistered == nullptr,
                "only a registered buffer is unregistered, once");
  buffers_[index].on_unregistered = done;
  ReleaseBuffer(index);
}

// The buffer that holds all of the memory.
uint32_t FileDisk::BufferOf(const std::byte* memory, uint64_t length_bytes) const {
  const auto behind = std::ranges::upper_bound(
      buffers_by_address_, memory, {},
      [this](uint32_t index) -> const std::byte* { return buffers_[index].memory.data(); });
  if (behind == buffers_by_address_.begin()) return kDiskBufferNone;
  const uint32_t index = *(behind - 1);
  const std::span<std::byte> held = buffers_[index].memory;
  const uint64_t offset_bytes = static_cast<uint64_t>(memory - held.data());
  return offset_bytes <= held.size() && length_bytes <= held.size() - offset_bytes
             ? index
             : kDiskBufferNone;
}

// Goes on with an UnregisterBuffer as soon as nothing stands in its way.
void FileDisk::ReleaseBuffer(uint32_t index) {
  Buffer& buffer = buffers_[index];
  if (buffer.on_unregistered == nullptr || buffer.users > 0) return;
  if (buffer.state == Buffer::State::kPinned) {
    buffer.state = Buffer::State::kUnpinning;
    engine_->UnregisterBuffer(index);
  } else if (buffer.state == Buffer::State::kPlain) {
    std::erase(buffers_by_address_, index);
    const std::function<void()> done = std::move(buffer.on_unregistered);
    buffer = {};
    done();
  }
}

void FileDisk::OnBuffer(const DiskCompletion& completion) {
  Buffer& buffer = buffers_[completion.token];
  const bool is_pinned =
      completion.kind == DiskCompletion::Kind::kBufferRegistered && completion.status.ok();
  buffer.state = is_pinned ? Buffer::State::kPinned : Buffer::State::kPlain;
  ReleaseBuffer(completion.token);
}

// ---------------------------------------------------------------------------------------------

Status CheckOptions(const DiskOptions& options, std::string* why) {
  const auto within = [why](const char* name, uint32_t value, uint32_t limit) {
    if (value >= 1 && value <= limit) return true;
    *why = std::string(name) + " is " + std::to_string(value) + ", must be 1 to " +
           std::to_string(limit);
    return false;
  };
  const bool is_good = within("queue_max", options.queue_max, kQueueLimit) &&
                       within("files_max", options.files_max, kFilesLimit) &&
                       within("buffers_max", options.buffers_max, kBuffersLimit) &&
                       within("threads", options.threads, kThreadsLimit);
  return is_good ? Status::Ok()
                 : Status(StatusCode::kInvalid, "a limit of the disk is out of range");
}

}  // namespace

Result<std::unique_ptr<Disk>> OpenDisk(DiskOptions options, std::string* why) {
  TERRACE_CHECK(options.post != nullptr, "completions need a way to the store thread");
  TERRACE_RETURN_IF_ERROR(CheckOptions(options, why));
  auto files = DiskFiles::Open({.directory = options.directory,
                                .direct = options.direct,
                                .files_max = options.files_max,
                                .budget = options.budget,
                                .result_filter = options.result_filter},
                               why);
  TERRACE_RETURN_IF_ERROR(files.status());
  auto disk = std::make_unique<FileDisk>(std::move(options), std::move(*files));
  TERRACE_RETURN_IF_ERROR(disk->StartEngine(why));
  return std::unique_ptr<Disk>(std::move(disk));
}

}  // namespace terrace
