#include "tiers/disk/uring_engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/units.h"
#include "tiers/disk/left_behind.h"
#include "tiers/disk/uring_ring.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// What a completion is about: the upper half of its user_data says the kind, the lower half which.
constexpr uint64_t kTransferData = 0;
constexpr uint64_t kWakeData = uint64_t{1} << 32;
constexpr uint64_t kBufferData = uint64_t{2} << 32;
constexpr uint64_t kCancelData = uint64_t{3} << 32;
constexpr uint64_t kKindMask = ~uint64_t{0xFFFFFFFF};

constexpr uint32_t kEntriesBesideTransfers = 8;  // wake, cancel
constexpr uint64_t kAttemptBytesMax = 1 * kGiB;  // of one submission; the rest follows as after a
                                                 // short transfer
// While transfers complete one after the other some are awaited together: to wake this thread, and
// the store thread after it, once for each small block costs more than moving the block. Never more
// than a share of what is under way, so that the drive has something to do meanwhile.
constexpr uint32_t kGatherShare = 4;
constexpr uint32_t kGatherMax = 16;
constexpr uint64_t kGatherUs = 200;
constexpr uint64_t kGatherUsMax = 1000;     // if they do not come after all
constexpr uint64_t kExitSlackUs = 200'000;  // for the thread to notice that its time is up

struct Command {
  enum class Kind : uint8_t { kTransfer, kFileOpened, kFileClosed, kRegister, kUnregister };
  Kind kind = Kind::kTransfer;
  uint32_t index = 0;  // file or buffer
  int fd = -1;
  std::span<std::byte> memory;
  DiskTransfer transfer;
};

struct Operation {
  DiskTransfer transfer;
  TransferProgress progress;
};

struct LaterAttempt {
  uint32_t token = 0;
  Clock::time_point due;
};

// How fast transfers have lately been completed.
class CompletionPace {
 public:
  void OnReaped(size_t count) {
    if (count == 0) return;
    const Clock::time_point now = Clock::now();
    const double gap_us = std::chrono::duration<double, std::micro>(now - last_).count();
    last_ = now;
    gap_us_ += (std::min(gap_us, kGapUsMax) / static_cast<double>(count) - gap_us_) / 8;
  }
  uint32_t ExpectedWithin(uint64_t us) const {
    return static_cast<uint32_t>(static_cast<double>(us) / std::max(gap_us_, 1.0));
  }

 private:
  static constexpr double kGapUsMax = 1000;  // an idle hour is soon forgotten
  double gap_us_ = kGapUsMax;
  Clock::time_point last_;
};

__kernel_timespec ToTimespec(Clock::duration duration) {
  const auto left_ns =
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  return {.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
}

}  // namespace

struct UringEngine::Loop {
  explicit Loop(Options engine_options)
      : options(std::move(engine_options)), operations(options.queue_max) {}
  ~Loop() {
    if (wake_fd >= 0) ::close(wake_fd);
  }

  // ---- store thread ----
  void Ask(std::span<Command> asked);

  // ---- the ring's thread ----
  void Run();
  bool Open();
  void ServeUntilStop();
  bool Drain();
  bool TakeCommands();
  void Obey(const Command& command);
  void Prepare(uint32_t token);
  void PrepareDue();
  void ArmWake();
  void SubmitAndWait(Clock::time_point until);
  int SubmitAndSleep(Clock::time_point until);
  void Reap();
  void OnCompletion(uint64_t user_data, int32_t result);
  void OnAttempt(uint32_t token, int32_t result);
  io_uring_sqe* NextEntry();

  const Options options;
  int wake_fd = -1;
  std::string why;          // until is_started
  std::string description;  // since is_started
  std::thread thread;

  // The ring's thread's.
  std::unique_ptr<UringRing> ring = std::make_unique<UringRing>();
  std::vector<Operation> operations;  // by token
  std::vector<uint8_t> is_file_registered;
  std::vector<LaterAttempt> later;
  std::vector<Command> taken;
  std::vector<DiskCompletion> completions;
  uint64_t wake_count = 0;
  CompletionPace pace;
  uint32_t under_way = 0;
  bool is_wake_armed = false;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Command> asked_for;
  bool is_sleeping = false;
  bool is_started = false, has_failed = false, is_stopping = false;
  bool has_ended = false, is_abandoned = false;
  Clock::time_point stop_by;
};

// ---- store thread ---------------------------------------------------------------------------

std::unique_ptr<UringEngine> UringEngine::Start(Options options, std::string* why) {
  auto loop = std::make_unique<Loop>(std::move(options));
  Loop* const running = loop.get();
  loop->thread = StartThread("terrace-uring", [running] { running->Run(); });
  bool has_failed = false;
  {
    std::unique_lock lock(loop->mutex);
    loop->changed.wait(lock, [&] { return loop->is_started || loop->has_failed; });
    has_failed = loop->has_failed;
  }
  if (has_failed) {
    loop->thread.join();
    *why = loop->why;
    return nullptr;
  }
  return std::unique_ptr<UringEngine>(new UringEngine(std::move(loop)));
}

UringEngine::UringEngine(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

UringEngine::~UringEngine() {
  TERRACE_CHECK(!loop_ || !loop_->thread.joinable(), "Stop comes before the end");
}

void UringEngine::Loop::Ask(std::span<Command> asked) {
  bool must_wake = false;
  {
    std::lock_guard lock(mutex);
    std::move(asked.begin(), asked.end(), std::back_inserter(asked_for));
    must_wake = std::exchange(is_sleeping, false);
  }
  const uint64_t one = 1;
  if (must_wake) [[maybe_unused]]
    const ssize_t woken = ::write(wake_fd, &one, sizeof one);
}

void UringEngine::Begin(std::span<const DiskTransfer> transfers) {
  std::array<Command, 64> commands;
  while (!transfers.empty()) {
    const size_t count = std::min(transfers.size(), commands.size());
    for (size_t i = 0; i < count; ++i) commands[i] = {.transfer = transfers[i]};
    loop_->Ask(std::span(commands).first(count));
    transfers = transfers.subspan(count);
  }
}

void UringEngine::FileOpened(DiskFile file, int fd) {
  Command command{.kind = Command::Kind::kFileOpened, .index = file, .fd = fd};
  loop_->Ask(std::span(&command, 1));
}

void UringEngine::FileClosed(DiskFile file) {
  Command command{.kind = Command::Kind::kFileClosed, .index = file};
  loop_->Ask(std::span(&command, 1));
}

void UringEngine::RegisterBuffer(uint32_t index, std::span<std::byte> memory) {
  Command command{.kind = Command::Kind::kRegister, .index = index, .memory = memory};
  loop_->Ask(std::span(&command, 1));
}

void UringEngine::UnregisterBuffer(uint32_t index) {
  Command command{.kind = Command::Kind::kUnregister, .index = index};
  loop_->Ask(std::span(&command, 1));
}

// What the kernel has not finished it still owns: the memory of the request, the ring, the table
// of operations. Destroying those would hand memory that is being written to whoever allocates
// next, so they are left behind, on purpose, with the thread if that is stuck itself.
bool UringEngine::Stop(uint64_t within_us) {
  bool is_over = false;
  {
    std::unique_lock lock(loop_->mutex);
    loop_->is_stopping = true;
    loop_->stop_by = Clock::now() + std::chrono::microseconds(within_us);
    loop_->is_sleeping = false;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t woken = ::write(loop_->wake_fd, &one, sizeof one);
    const bool has_ended =
        loop_->changed.wait_for(lock, std::chrono::microseconds(within_us + kExitSlackUs),
                                [this] { return loop_->has_ended; });
    is_over = has_ended && !loop_->is_abandoned;
  }
  // The kernel lets no thread go whose requests are under way: to join it could take forever.
  is_over ? loop_->thread.join() : loop_->thread.detach();
  if (!is_over) LeaveBehind(std::move(loop_));
  return is_over;
}

std::string UringEngine::description() const { return "io_uring (" + loop_->description + ")"; }

// ---- the ring's thread ----------------------------------------------------------------------

void UringEngine::Loop::Run() {
  const bool is_open = Open();
  {
    std::lock_guard lock(mutex);
    (is_open ? is_started : has_failed) = true;
    changed.notify_all();
  }
  if (!is_open) {
    ring.reset();  // by the thread that made it
    return;
  }
  ServeUntilStop();
  const bool is_drained = Drain();
  if (is_drained) ring.reset();
  std::lock_guard lock(mutex);
  is_abandoned = !is_drained;
  has_ended = true;
  changed.notify_all();
}

bool UringEngine::Loop::Open() {
  const UringRing::Options ring_options{
      .entries = std::bit_ceil(options.queue_max + kEntriesBesideTransfers),
      .files_max = options.files_max,
      .buffers_max = options.buffers_max,
      .held_fd = options.held_fd};
  if (!ring->Open(ring_options, &why).ok()) return false;
  wake_fd = ::eventfd(0, EFD_CLOEXEC);
  if (wake_fd < 0) {
    why = std::string("eventfd: ") + std::strerror(errno);
    return false;
  }
  is_file_registered.resize(options.files_max);
  description = ring->description();
  return true;
}

void UringEngine::Loop::ServeUntilStop() {
  while (TakeCommands()) {
    PrepareDue();
    ArmWake();
    SubmitAndWait(Clock::time_point::max());
    Reap();
  }
}

// Waits for what is under way, asking the kernel to give up what it has not begun. False: some of
// it is still the kernel's when the time is up.
bool UringEngine::Loop::Drain() {
  io_uring_sqe* const entry = NextEntry();
  ::io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY);
  ::io_uring_sqe_set_data64(entry, kCancelData);
  for (;;) {
    under_way -= static_cast<uint32_t>(later.size());
    later.clear();
    if ((under_way == 0 && !is_wake_armed) || Clock::now() >= stop_by) break;
    SubmitAndWait(stop_by);
    Reap();
  }
  return under_way == 0 && !is_wake_armed;
}

// False: it is time to stop.
bool UringEngine::Loop::TakeCommands() {
  {
    std::lock_guard lock(mutex);
    is_sleeping = false;
    if (is_stopping) return false;
    std::swap(taken, asked_for);
  }
  for (const Command& command : taken) Obey(command);
  taken.clear();
  if (!completions.empty()) {
    options.mailbox->Put(completions);
    completions.clear();
  }
  return true;
}

void UringEngine::Loop::Obey(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kTransfer: {
      const DiskTransfer& transfer = command.transfer;
      TERRACE_CHECK(transfer.token < operations.size(), "a transfer has a place of its own");
      operations[transfer.token] = {transfer, TransferProgress(TransferProgress::Kind::kPayload,
                                                               transfer.op, transfer.length_bytes)};
      ++under_way;
      Prepare(transfer.token);
      break;
    }
    case Command::Kind::kFileOpened:
      TERRACE_CHECK(command.index < is_file_registered.size(), "files are numbered up to a limit");
      is_file_registered[command.index] = ring->SetFile(command.index, command.fd);
      break;
    case Command::Kind::kFileClosed:
      if (std::exchange(is_file_registered[command.index], 0)) ring->ClearFile(command.index);
      break;
    case Command::Kind::kRegister:
      completions.push_back(
          {.kind = DiskCompletion::Kind::kBufferRegistered,
           .token = command.index,
           .status = ring->SetBuffer(command.index, command.memory, kBufferData | command.index)});
      break;
    case Command::Kind::kUnregister:  // its tag completes
      TERRACE_CHECK(ring->ClearBuffer(command.index).ok(), "a registered buffer can be cleared");
      break;
  }
}

io_uring_sqe* UringEngine::Loop::NextEntry() {
  io_uring_sqe* entry = ::io_uring_get_sqe(ring->get());
  if (entry == nullptr) {
    ::io_uring_submit(ring->get());
    entry = ::io_uring_get_sqe(ring->get());
  }
  TERRACE_CHECK(entry != nullptr, "the ring has an entry for every transfer there may be");
  return entry;
}

void UringEngine::Loop::Prepare(uint32_t token) {
  const Operation& operation = operations[token];
  const DiskTransfer& transfer = operation.transfer;
  const uint64_t done_bytes = operation.progress.done_bytes();
  const auto length =
      static_cast<unsigned>(std::min(operation.progress.left_bytes(), kAttemptBytesMax));
  const bool is_fixed_file = is_file_registered[transfer.file];
  const int fd = is_fixed_file ? static_cast<int>(transfer.file) : transfer.fd;
  std::byte* const at = transfer.memory + done_bytes;
  const uint64_t offset = transfer.offset_bytes + done_bytes;
  const bool is_fixed_buffer = transfer.buffer_index != kDiskBufferNone;
  const auto buffer = static_cast<int>(transfer.buffer_index);

  io_uring_sqe* const entry = NextEntry();
  if (transfer.op == DiskOp::kRead) {
    is_fixed_buffer ? ::io_uring_prep_read_fixed(entry, fd, at, length, offset, buffer)
                    : ::io_uring_prep_read(entry, fd, at, length, offset);
  } else {
    is_fixed_buffer ? ::io_uring_prep_write_fixed(entry, fd, at, length, offset, buffer)
                    : ::io_uring_prep_write(entry, fd, at, length, offset);
  }
  if (is_fixed_file) entry->flags |= IOSQE_FIXED_FILE;
  ::io_uring_sqe_set_data64(entry, kTransferData | token);
}

void UringEngine::Loop::PrepareDue() {
  if (later.empty()) return;
  const Clock::time_point now = Clock::now();
  std::erase_if(later, [&](const LaterAttempt& attempt) {
    if (attempt.due > now) return false;
    Prepare(attempt.token);
    return true;
  });
}

void UringEngine::Loop::ArmWake() {
  if (is_wake_armed) return;
  io_uring_sqe* const entry = NextEntry();
  ::io_uring_prep_read(entry, wake_fd, &wake_count, sizeof wake_count, 0);
  ::io_uring_sqe_set_data64(entry, kWakeData);
  is_wake_armed = true;
}

void UringEngine::Loop::SubmitAndWait(Clock::time_point until) {
  const bool is_draining = until != Clock::time_point::max();
  bool may_sleep = false;
  {
    std::lock_guard lock(mutex);
    is_sleeping = may_sleep = is_draining || (asked_for.empty() && !is_stopping);
  }
  for (const LaterAttempt& attempt : later) until = std::min(until, attempt.due);
  int result = 0;
  if (!may_sleep) {
    result = ::io_uring_submit_and_get_events(ring->get());
  } else {
    result = SubmitAndSleep(until);
  }
  // EINTR, ETIME, and EBUSY (reap first) are the next turn's. Anything else, no memory for one, is
  // tried again too: what was not submitted is still in the ring.
  if (result < 0 && result != -EINTR && result != -ETIME && result != -EBUSY) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int UringEngine::Loop::SubmitAndSleep(Clock::time_point until) {
  const uint32_t wanted =
      std::min({under_way / kGatherShare, kGatherMax, pace.ExpectedWithin(kGatherUs)});
  if (wanted > 1) until = std::min(until, Clock::now() + std::chrono::microseconds(kGatherUsMax));
  if (until == Clock::time_point::max()) return ::io_uring_submit_and_wait(ring->get(), 1);
  __kernel_timespec left = ToTimespec(until - Clock::now());
  io_uring_cqe* first = nullptr;
  return ::io_uring_submit_and_wait_timeout(ring->get(), &first, std::max(wanted, 1U), &left,
                                            nullptr);
}

void UringEngine::Loop::Reap() {
  struct Arrived {
    uint64_t user_data;
    int32_t result;
  };
  std::array<Arrived, 128> arrived;
  for (;;) {
    unsigned head = 0;
    io_uring_cqe* entry = nullptr;
    size_t count = 0;
    io_uring_for_each_cqe(ring->get(), head, entry) {
      arrived[count++] = {entry->user_data, entry->res};
      if (count == arrived.size()) break;
    }
    if (count == 0) break;
    ::io_uring_cq_advance(ring->get(), static_cast<unsigned>(count));
    for (size_t i = 0; i < count; ++i) OnCompletion(arrived[i].user_data, arrived[i].result);
  }
  pace.OnReaped(completions.size());
  options.mailbox->Put(completions);
  completions.clear();
}

void UringEngine::Loop::OnCompletion(uint64_t user_data, int32_t result) {
  const auto index = static_cast<uint32_t>(user_data);
  switch (user_data & kKindMask) {
    case kTransferData:
      OnAttempt(index, result);
      break;
    case kWakeData:
      is_wake_armed = false;
      break;
    case kBufferData:
      completions.push_back({.kind = DiskCompletion::Kind::kBufferUnregistered, .token = index});
      break;
    default:  // of the cancellation
      break;
  }
}

void UringEngine::Loop::OnAttempt(uint32_t token, int32_t result) {
  Operation& operation = operations[token];
  int64_t filtered = result;
  if (options.result_filter) filtered = options.result_filter(operation.transfer.op, result);
  switch (operation.progress.Apply(filtered)) {
    case TransferProgress::Next::kAgain:
      Prepare(token);
      return;
    case TransferProgress::Next::kAgainLater:
      later.push_back(
          {token, Clock::now() + std::chrono::microseconds(operation.progress.backoff_us())});
      return;
    case TransferProgress::Next::kDone:
    case TransferProgress::Next::kFailed:
      break;
  }
  TERRACE_CHECK(under_way > 0, "a transfer ends once");
  --under_way;
  completions.push_back({.token = token,
                         .retries = operation.progress.retries(),
                         .status = operation.progress.status()});
}

}  // namespace terrace
