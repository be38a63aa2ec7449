// FileStamp: what a file looked like when it was read, as far as can be told without reading it:
// under another stamp it may hold something else.
//
// THREADING: any.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct FileStamp {
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t changed_ns = 0;  // st_ctim, which nobody can set back

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// All 0: there is no such file. Where a link is swapped, that of what it names.
FileStamp StampOf(const std::string& path);

// Whoever writes from now on changes the stamp: the clock of file systems ticks, and was past this
// one's tick by now.
bool IsSettled(const FileStamp& stamp);

}  // namespace terrace
