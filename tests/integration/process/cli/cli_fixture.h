// Runs the real `terrace` against a real `terraced`, each test with a daemon and a directory of its
// own.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "integration/process/daemon_process.h"

namespace terrace {

class CliTest : public testing::Test {
 protected:
  struct Outcome {
    int exit_code = -1;
    std::string out;
    std::string err;
  };

  // A daemon with one domain "chat" and 64 MiB, and `more` tables; fails the test if it does not
  // come up. Another one has the same secret.
  void StartDaemon(const std::string& more = "");
  void KillDaemon();

  // `terrace` with these arguments and TERRACE_SOCKET set to the daemon's socket; stdin is empty.
  Outcome Terrace(const std::vector<std::string>& arguments) const;
  // The same with a terminal as stdin and stderr on which somebody types `answer`.
  Outcome TerraceOnTerminal(const std::vector<std::string>& arguments,
                            const std::string& answer) const;
  // Adds --json; fails the test unless it exits 0 with one JSON document on stdout and nothing on
  // stderr.
  nlohmann::json TerraceJson(std::vector<std::string> arguments) const;

  // Leaves 8 prompts of 8 blocks of 16 KiB in group "bench-16384x1", the halves of four shared:
  // 2 heads of 4 blocks, each continued by 4 tails of 4 blocks, 40 blocks in all.
  void FillWithPrompts() const;

  test::DaemonProcess& daemon() { return daemon_; }
  const test::DaemonProcess& daemon() const { return daemon_; }
  std::string Path(const std::string& name) const { return daemon_.directory() + "/" + name; }
  std::string socket_path() const { return daemon_.socket_path(); }

 private:
  pid_t Spawn(const std::vector<std::string>& arguments, int in, int out, int err) const;

  test::DaemonProcess daemon_;
};

// A file's whole text.
std::string ReadText(const std::string& path);

}  // namespace terrace
