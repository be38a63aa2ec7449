#include "daemon/events/kv_event_numbers.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "daemon/log/log.h"

namespace terrace {
namespace {

constexpr uint64_t kNumbersEnd = uint64_t{1} << 62;  // what is above that was never written

}  // namespace

uint64_t KvEventNumbers::First(uint64_t unix_us) const {
  uint64_t kept = 0;
  std::ifstream file(file_);
  if (file_.empty() || !(file >> kept) || kept >= kNumbersEnd) return unix_us;
  return std::max(unix_us, kept);
}

void KvEventNumbers::Raise(uint64_t number) {
  reserved_end_ = number + kAhead;
  if (file_.empty()) return;
  const std::string next = file_ + ".next";
  errno = 0;
  std::ofstream file(next, std::ios::trunc);
  file << reserved_end_ << '\n';
  file.close();
  if (!file.fail() && std::rename(next.c_str(), file_.c_str()) == 0) return;
  Log(LogLevel::kWarn, "kv events' numbers are not kept",
      {{"file", file_},
       {"why", std::strerror(errno)},
       {"effect", "after a start under a clock that went back they begin below those of before"}});
}

}  // namespace terrace
