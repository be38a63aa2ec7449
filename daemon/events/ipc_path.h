// IpcPath: the path of an ipc:// endpoint. ZeroMQ puts its socket in the place of whatever is
// there, be it somebody's file or the socket of a daemon that lives: so it is taken before, as the
// path of a domain's socket is.
//
// OWNERSHIP: the lock falls with the IpcPath; the socket's file is ZeroMQ's. THREADING: one thread.
#pragma once

#include <sys/types.h>

#include <string>

#include "terrace/status.h"

namespace terrace {

class IpcPath {
 public:
  IpcPath() = default;
  ~IpcPath();
  IpcPath(const IpcPath&) = delete;
  IpcPath& operator=(const IpcPath&) = delete;

  // Of an endpoint of another kind nothing is taken. Otherwise what LockSocketPath and
  // FreeSocketPath answer.
  Status Take(const std::string& endpoint, std::string* why);
  // The socket that is there now is the one that was bound. REQUIRES: Take was kOk.
  void NoteBound();
  // False: it has gone, or is another's, and nobody who comes finds this one.
  bool IsStillBound() const;
  bool is_taken() const { return !path_.empty(); }

 private:
  std::string path_;  // empty: none is held
  int lock_fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace terrace
