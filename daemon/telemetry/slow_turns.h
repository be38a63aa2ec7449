// SlowTurns: turns of the store thread that took longer than they should, gathered so that the log
// has one line a minute of them, however many there are.
//
// THREADING: store thread. LIMITS: kNamesMax kinds of turns; the rest count together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/telemetry/turn_meter.h"

namespace terrace {

class SlowTurns {
 public:
  struct Summary {
    uint64_t turn_count = 0;
    TurnCost longest_cost;
    std::string longest;        // what that turn did
    std::string count_by_turn;  // "request 12, timer 3", most first
    uint64_t seconds = 0;       // from the first of them on
  };

  // `turn` is a literal, or lives as long.
  void Note(std::string_view turn, const TurnCost& cost, uint64_t now_us);
  // Those since the last summary, a minute after the first of them; nothing before.
  std::optional<Summary> Take(uint64_t now_us);
  // The same, into the log.
  void Tell(uint64_t now_us);

 private:
  static constexpr uint64_t kIntervalUs = 60'000'000;
  static constexpr size_t kNamesMax = 32;
  struct Kind {
    std::string_view turn;
    uint64_t turn_count = 0;
  };

  std::vector<Kind> kinds_;
  uint64_t began_us_ = 0;
  TurnCost longest_cost_;
  std::string_view longest_;
};

}  // namespace terrace
