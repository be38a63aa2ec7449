// What tests of attacks borrow of the machine: another user, and huge pages.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>

#include "huge_pages.h"

namespace terrace::test {

// Runs `act` as another user in a process of its own, which says a number. Its wait status.
inline int RunAs(uid_t uid, const std::function<int()>& act, int* said) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    if (uid != geteuid() && (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0)) {
      _exit(1);
    }
    const int number = act();
    _exit(write(ends[1], &number, sizeof(number)) == sizeof(number) ? 0 : 1);
  }
  close(ends[1]);
  if (read(ends[0], said, sizeof(*said)) != sizeof(*said)) *said = -1;
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace terrace::test
