// Shell: what stands between the sans-I/O core and the operating system. It owns the event loop,
// the sockets, the arenas, the offload threads and the timers, and calls store and sessions in
// turns.
//
// THREADING: Start and Run on one thread, which becomes the store thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/config/config.h"
#include "daemon/shell/live_config.h"
#include "terrace/status.h"

namespace terrace {

class Shell {
 public:
  // REQUIRES: `config` is what LoadConfig made of `source`.
  Shell(DaemonConfig config, ConfigSource source);
  ~Shell();
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  // Takes everything the daemon needs, or says in one sentence what is missing.
  Status Start(std::string* why);
  // Serves until SIGTERM or SIGINT. REQUIRES: Start was kOk.
  // False if a disk, or what Redis's thread waits for, hangs in a thread that cannot be ended:
  // leave the process by _Exit, as kill -9 would, and destroy nothing.
  [[nodiscard]] bool Run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
