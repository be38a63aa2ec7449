#include "tiers/disk/uring_ring.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace terrace {
namespace {

constexpr uint64_t kRegisteredBufferBytesMax = uint64_t{1} << 30;  // the kernel's
constexpr std::array kOperations = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                                    IORING_OP_WRITE_FIXED, IORING_OP_ASYNC_CANCEL};
constexpr std::array kRegistrations = {IORING_REGISTER_FILES_UPDATE, IORING_REGISTER_FILES_UPDATE2,
                                       IORING_REGISTER_BUFFERS_UPDATE, IORING_UNREGISTER_RING_FDS};

// Best first. Each is tried until the kernel takes one.
constexpr uint32_t kOneThread = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
constexpr std::array kFlagChoices = {
    kOneThread | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,
    kOneThread | IORING_SETUP_SUBMIT_ALL,
    uint32_t{IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED},
    uint32_t{IORING_SETUP_R_DISABLED},
    uint32_t{0},
};

// The library declares functions for these but does not export them everywhere.
int Register(io_uring* ring, unsigned opcode, const void* argument, size_t count) {
  return ::io_uring_register(static_cast<unsigned>(ring->ring_fd), opcode, argument,
                             static_cast<unsigned>(count));
}

const char* ReasonOf(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return ": a seccomp profile or the sysctl kernel.io_uring_disabled forbids it";
    case ENOSYS:
      return ": this kernel or its seccomp profile has none";
    case ENOMEM:
      return ": no memory, or RLIMIT_MEMLOCK is too low";
    default:
      return "";
  }
}

}  // namespace

UringRing::~UringRing() {
  if (!is_open_) return;
  // The kernel takes its time to end a ring; nothing is under way in this one.
  int none = -1;
  if (is_holding_) ::io_uring_register_files_update(&ring_, files_max_, &none, 1);
  ::io_uring_queue_exit(&ring_);
}

Status UringRing::Open(const Options& options, std::string* why) {
  TERRACE_RETURN_IF_ERROR(SetUp(options.entries, why));
  is_open_ = true;
  if (!HasOperations()) {
    *why = "io_uring lacks operations this needs: the kernel is older than 5.6";
    return Status(StatusCode::kUnsupported, "io_uring is too old");
  }
  MakeTables(options);
  const bool is_disabled = flags_ & IORING_SETUP_R_DISABLED;
  const bool is_restricted = is_disabled && Restrict();
  if (is_disabled) {
    const int result = Register(&ring_, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    if (result < 0) {
      *why = std::string("io_uring cannot be enabled: ") + std::strerror(-result);
      return Status(StatusCode::kUnsupported, "io_uring cannot be enabled", -result);
    }
  }
  ::io_uring_register_ring_fd(&ring_);  // saves a look-up a call; nothing depends on it
  description_ = flags_ & IORING_SETUP_DEFER_TASKRUN ? "deferred completions" : "plain completions";
  description_ += is_restricted ? ", restricted" : ", unrestricted";
  if (files_max_ == 0) description_ += ", files unregistered";
  if (buffers_max_ == 0) description_ += ", buffers unregistered";
  return Status::Ok();
}

Status UringRing::SetUp(uint32_t entries, std::string* why) {
  int result = -ENOSYS;
  for (const uint32_t flags : kFlagChoices) {
    io_uring_params params{};
    params.flags = flags;
    result = ::io_uring_queue_init_params(entries, &ring_, &params);
    flags_ = flags;
    if (result != -EINVAL) break;
  }
  if (result >= 0) return Status::Ok();
  *why = std::string("io_uring_setup: ") + std::strerror(-result) + ReasonOf(-result);
  return Status(StatusCode::kUnsupported, "io_uring cannot be set up", -result);
}

bool UringRing::HasOperations() {
  io_uring_probe* const probe = ::io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return false;
  const bool has_all = std::ranges::all_of(kOperations, [probe](int operation) {
    return ::io_uring_opcode_supported(probe, operation);
  });
  ::io_uring_free_probe(probe);
  return has_all;
}

void UringRing::MakeTables(const Options& options) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const auto rows =
      static_cast<uint32_t>(std::min<uint64_t>(options.files_max + 1, files.rlim_cur));
  if (::io_uring_register_files_sparse(&ring_, rows) == 0) files_max_ = rows - 1;
  is_holding_ = files_max_ > 0 && options.held_fd >= 0 &&
                ::io_uring_register_files_update(&ring_, files_max_, &options.held_fd, 1) == 1;
  if (::io_uring_register_buffers_sparse(&ring_, options.buffers_max) == 0) {
    buffers_max_ = options.buffers_max;
  }
}

// A ring whose memory somebody overwrites can still only read and write.
bool UringRing::Restrict() {
  std::array<io_uring_restriction, kOperations.size() + kRegistrations.size() + 1> rules{};
  size_t count = 0;
  for (const auto operation : kOperations) {
    rules[count].opcode = IORING_RESTRICTION_SQE_OP;
    rules[count++].sqe_op = static_cast<uint8_t>(operation);
  }
  for (const auto registration : kRegistrations) {
    rules[count].opcode = IORING_RESTRICTION_REGISTER_OP;
    rules[count++].register_op = static_cast<uint8_t>(registration);
  }
  rules[count].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
  rules[count++].sqe_flags = IOSQE_FIXED_FILE;
  return Register(&ring_, IORING_REGISTER_RESTRICTIONS, rules.data(), count) == 0;
}

bool UringRing::SetFile(uint32_t index, int fd) {
  return index < files_max_ && ::io_uring_register_files_update(&ring_, index, &fd, 1) == 1;
}

void UringRing::ClearFile(uint32_t index) {
  int none = -1;
  if (index < files_max_) ::io_uring_register_files_update(&ring_, index, &none, 1);
}

Status UringRing::SetBuffer(uint32_t index, std::span<std::byte> memory, uint64_t tag) {
  if (index >= buffers_max_ || memory.size() > kRegisteredBufferBytesMax) {
    return Status(StatusCode::kUnsupported, "io_uring holds no such buffer");
  }
  const iovec piece{.iov_base = memory.data(), .iov_len = memory.size()};
  const __u64 tags = tag;
  const int result = ::io_uring_register_buffers_update_tag(&ring_, index, &piece, &tags, 1);
  if (result == 1) return Status::Ok();
  return Status(StatusCode::kIo, "registering a buffer", result < 0 ? -result : EIO);
}

Status UringRing::ClearBuffer(uint32_t index) {
  const iovec none{};
  const __u64 tags = 0;
  const int result = ::io_uring_register_buffers_update_tag(&ring_, index, &none, &tags, 1);
  if (result == 1) return Status::Ok();
  return Status(StatusCode::kIo, "unregistering a buffer", result < 0 ? -result : EIO);
}

}  // namespace terrace
