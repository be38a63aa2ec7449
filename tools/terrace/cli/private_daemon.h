// A terraced of one's own: a temporary directory with a configuration, a socket and a log, and a
// daemon that ends with it. For benchmarks that measure everything with one command.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace terrace::tools {

class PrivateDaemon {
 public:
  struct Options {
    std::string program;          // empty: FindProgram()
    uint64_t dram_bytes = 0;      // of block memory; > 0
    uint64_t slot_bytes_max = 0;  // the largest slot it has to hold; > 0
    uint32_t start_timeout_ms = 60'000;
  };
  // Returns once it is ready; nullptr with `*why`, which ends with the daemon's last words.
  // REQUIRES: this process has one thread.
  static std::unique_ptr<PrivateDaemon> Start(const Options& options, std::string* why);
  // Ends the daemon and removes the directory.
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  pid_t pid() const { return pid_; }

  // Where `terraced` is looked for, first to last: beside this program, ../daemon (a build tree),
  // ../sbin, PATH. Empty with `*why` if it is nowhere.
  static std::string FindProgram(std::string* why);

 private:
  PrivateDaemon() = default;
  bool Prepare(const Options& options, std::string* why);
  bool Launch(const std::string& program, std::string* why);
  bool Listen(std::string* why);
  bool AwaitReady(uint32_t timeout_ms, std::string* why);
  std::string LastWords() const;

  std::string directory_;
  std::string socket_path_;
  int notify_fd_ = -1;
  pid_t pid_ = -1;
};

}  // namespace terrace::tools
