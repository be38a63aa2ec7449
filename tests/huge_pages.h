// The machine's pool of huge pages, for tests that set its size.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace terrace::test {

// Of the machine's huge pages, for as long as it lives: so long other tests wait for theirs.
class HugePages {
 public:
  HugePages() = default;
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages() {
    GiveBack();
    if (lock_ >= 0) close(lock_);
  }
  bool Take(uint32_t count) {
    if (lock_ < 0) lock_ = open(kLock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_ < 0 || flock(lock_, LOCK_EX) != 0) return false;
    std::ifstream(kPool) >> before_;
    Set(std::to_string(count));
    count_ = count;
    return AreThere();
  }
  // Those that nobody uses by now.
  void GiveBack() {
    if (!before_.empty()) Set(before_);
  }
  // That nobody uses or has claimed.
  static uint32_t FreeCount() {
    const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
    uint32_t free = 0, claimed = 0;
    std::ifstream(pool + "free_hugepages") >> free;
    std::ifstream(pool + "resv_hugepages") >> claimed;
    return free - claimed;
  }
  // Others on the machine may take them away.
  bool AreThere() const {
    uint32_t there = 0;
    std::ifstream(kPool) >> there;
    return there >= count_;
  }

 private:
  static constexpr const char* kPool = "/proc/sys/vm/nr_hugepages";
  static constexpr const char* kLock = "/tmp/terrace-tests-huge-pages";
  static void Set(const std::string& count) { std::ofstream(kPool) << count << std::flush; }
  int lock_ = -1;
  std::string before_;
  uint32_t count_ = 0;
};

}  // namespace terrace::test
