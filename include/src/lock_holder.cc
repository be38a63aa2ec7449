#include "terrace/lock_holder.h"

#include <unistd.h>

#include <charconv>
#include <system_error>
#include <tuple>

namespace terrace {

LockHolder LockHolder::Read(int lock_fd) {
  char bytes[24] = {};
  const ssize_t length = pread(lock_fd, bytes, sizeof bytes, 0);
  LockHolder holder;
  if (length <= 0) return holder;
  const auto [end, error] = std::from_chars(bytes, bytes + length, holder.pid);
  const bool is_whole = end == bytes + length || *end == '\n';
  if (error != std::errc() || !is_whole || holder.pid < 0) holder.pid = 0;
  return holder;
}

// What a holder before wrote beyond the line is cut off after it, so that no reader finds nothing.
void LockHolder::NameMyself(int lock_fd) {
  const std::string line = std::to_string(getpid()) + "\n";
  std::ignore = pwrite(lock_fd, line.data(), line.size(), 0);
  std::ignore = ftruncate(lock_fd, static_cast<off_t>(line.size()));
}

std::string LockHolder::Text() const {
  return pid == 0 ? "a process of unknown number" : "process " + std::to_string(pid);
}

}  // namespace terrace
