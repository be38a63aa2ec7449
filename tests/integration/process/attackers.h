// What tests of attacks borrow of the machine: huge pages, and another user.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

namespace terrace::test {

// Of the machine's huge pages, for as long as it lives.
class HugePages {
 public:
  HugePages() = default;
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages() { GiveBack(); }
  bool Take(uint32_t count) {
    std::ifstream(kPool) >> before_;
    Set(std::to_string(count));
    count_ = count;
    return AreThere();
  }
  // Those that nobody uses by now.
  void GiveBack() {
    if (!before_.empty()) Set(before_);
  }
  // Others on the machine may take them away.
  bool AreThere() const {
    uint32_t there = 0;
    std::ifstream(kPool) >> there;
    return there >= count_;
  }

 private:
  static constexpr const char* kPool = "/proc/sys/vm/nr_hugepages";
  static void Set(const std::string& count) { std::ofstream(kPool) << count << std::flush; }
  std::string before_;
  uint32_t count_ = 0;
};

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
