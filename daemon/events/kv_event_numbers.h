// KvEventNumbers: with which number the events of a start begin: the microseconds since 1970, or
// behind all that a daemon before it can have given, whatever its clock said. A file of state_dir
// has a number that none reached; it is raised before one does.
//
// THREADING: the publisher's thread, once it runs. Without the file (it cannot be written, or the
// host lost power) the clock alone counts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace terrace {

class KvEventNumbers {
 public:
  static constexpr uint64_t kAhead = 1 << 20;  // the file is written once in so many

  // `file`: empty for none.
  explicit KvEventNumbers(std::string file) : file_(std::move(file)) {}

  uint64_t First(uint64_t unix_us) const;
  // Before `number` is given.
  void Reserve(uint64_t number) {
    if (number >= reserved_end_) Raise(number);
  }

 private:
  void Raise(uint64_t number);

  const std::string file_;
  uint64_t reserved_end_ = 0;
};

}  // namespace terrace
