#include "daemon/telemetry/slow_turns.h"

#include <algorithm>
#include <functional>

#include "daemon/log/log.h"
#include "daemon/telemetry/metrics.h"
#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {

void SlowTurns::Note(std::string_view turn, const TurnCost& cost, uint64_t now_us) {
  if (kinds_.empty()) began_us_ = now_us;
  if (cost.took_us > longest_cost_.took_us) {
    longest_cost_ = cost;
    longest_ = turn;
  }
  auto kind = std::ranges::find(kinds_, turn, &Kind::turn);
  if (kind == kinds_.end() && kinds_.size() >= kNamesMax) {
    turn = "other";
    kind = std::ranges::find(kinds_, turn, &Kind::turn);
  }
  if (kind == kinds_.end()) kind = kinds_.insert(kind, {.turn = turn});
  ++kind->turn_count;
  TERRACE_CHECK(kinds_.size() <= kNamesMax + 1, "names beyond the limit count as 'other'");
}

std::optional<SlowTurns::Summary> SlowTurns::Take(uint64_t now_us) {
  if (kinds_.empty() || now_us < began_us_ + kIntervalUs) return std::nullopt;
  std::ranges::stable_sort(kinds_, std::ranges::greater(), &Kind::turn_count);
  Summary summary{.longest_cost = longest_cost_,
                  .longest = std::string(longest_),
                  .seconds = (now_us - began_us_) / kUsPerSecond};
  for (const Kind& kind : kinds_) {
    summary.turn_count += kind.turn_count;
    if (!summary.count_by_turn.empty()) summary.count_by_turn += ", ";
    summary.count_by_turn += std::string(kind.turn) + " " + std::to_string(kind.turn_count);
  }
  kinds_.clear();
  longest_cost_ = {};
  return summary;
}

void SlowTurns::Tell(uint64_t now_us) {
  const std::optional<Summary> told = Take(now_us);
  if (!told) return;
  Log(LogLevel::kWarn, "slow turns",
      {{"count", told->turn_count},
       {"seconds", told->seconds},
       {"limit_us", kTurnLimitUs},
       {"longest_us", told->longest_cost.took_us},
       {"longest_waited_us", told->longest_cost.waited_us},
       {"longest", told->longest},
       {"turns", told->count_by_turn}});
}

}  // namespace terrace
