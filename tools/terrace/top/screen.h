// Screen: the terminal while `terrace top` has it: its alternate screen without a cursor, keys as
// they are pressed. What it was before comes back at the end, and while the process is stopped.
//
// THREADING: one thread. Open blocks the signals that it waits for; threads that are to have them
// blocked, too, are started after it.
// LIMITS: one in a process.
#pragma once

#include <termios.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tools/terrace/top/frame.h"

namespace terrace::tools {

class Screen {
 public:
  // Whether standard input and output are a terminal that can be drawn on.
  static bool IsUsable();
  // Null with `*why`.
  static std::unique_ptr<Screen> Open(std::string* why);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  FrameLimits size() const;
  // From the top of the screen on; what was there before is gone.
  void Draw(std::span<const std::string> lines) const;

  enum class Event : uint8_t {
    kTimeout,
    kRedraw,  // another size, or the process goes on after it was stopped
    kQuit,    // q, Ctrl-C, a signal that ends, or nobody at the keyboard any more
  };
  Event Await(uint64_t timeout_ms);

 private:
  Screen() = default;
  void Enter() const;
  void Leave() const;
  Event TakeSignal();
  Event TakeKey() const;

  termios before_{};
  int signal_fd_ = -1;
};

}  // namespace terrace::tools
