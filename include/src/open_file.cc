#include "terrace/open_file.h"

#include <fcntl.h>
#include <unistd.h>

namespace terrace {

OpenFile::OpenFile(const std::string& path, int flags, unsigned mode)
    : fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {}

OpenFile::~OpenFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace terrace
