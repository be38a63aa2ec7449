// OpenFile: a file descriptor that is closed on the way out, whichever way that is.
#pragma once

#include <string>

namespace terrace {

class OpenFile {
 public:
  // open(2) with O_CLOEXEC; errno says why there is none.
  OpenFile(const std::string& path, int flags, unsigned mode);
  explicit OpenFile(int fd) : fd_(fd) {}  // takes it over
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }  // < 0: it could not be opened

 private:
  int fd_;
};

}  // namespace terrace
