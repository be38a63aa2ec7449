// A terraced of one test: its own directory, its own socket, stopped and removed with the test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace terrace::test {

class DaemonProcess {
 public:
  DaemonProcess();
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  const std::string& directory() const { return directory_; }
  std::string socket_path() const { return directory_ + "/t.sock"; }
  pid_t pid() const { return pid_; }

  // Writes <directory>/<name> and returns its path.
  std::string WriteFile(const std::string& name, const std::string& content, mode_t mode = 0600);

  // What systemd would have put around the daemon.
  struct Surroundings {
    int listening_fd = -1;  // passed as the socket named `listening_name`
    std::string listening_name;
    uint32_t watchdog_us = 0;
    uint64_t open_files_max = 0;     // the hard limit; 0: the test's
    bool obeys_permissions = false;  // even if the test runs as root
    bool has_fd_store = false;  // what earlier daemons of this test gave to keep is handed back
    std::string preloaded;      // a library
  };
  // Starts terraced with `arguments`; standard error goes to a file. Does not wait.
  void Start(const std::vector<std::string>& arguments) { Start(arguments, Surroundings()); }
  void Start(const std::vector<std::string>& arguments, const Surroundings& surroundings);
  struct Memory {
    std::string dram_bytes = "64MiB";
    std::string segment_bytes = "2MiB";
    uint32_t segments_spare = 1;
    std::string hugepages = "auto";
  };
  // Start on socket_path() and wait until it is ready. False, with what it said in Errors(), if it
  // is not within the deadline.
  bool StartReady() { return StartReady(Memory()); }
  bool StartReady(const Memory& memory);
  // Waits for READY=1 from the daemon. Only after Start.
  bool WaitReady() { return WaitNotified("READY=1"); }
  // Waits for a notification that holds `what`.
  bool WaitNotified(const std::string& what);

  // Names of the descriptors that the daemons of this test gave to keep, as far as read.
  std::vector<std::string> StoredNames() const;

  void Signal(int signal);
  // The exit status, 128 + signal if it was killed, −1 if it still runs after the deadline.
  int Wait();
  // What it wrote to standard error.
  std::string Errors() const;

 private:
  // The next notification, if there is one now.
  bool ReadNotification(std::string* text);
  void PassDescriptors(const Surroundings& surroundings) const;

  std::string directory_;
  std::map<std::string, int> stored_;
  int notify_fd_ = -1;
  pid_t pid_ = -1;
};

}  // namespace terrace::test
