// The machine's pool of huge pages, for tests that set its size.
#pragma once

#include <cstdint>
#include <fstream>
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

}  // namespace terrace::test
