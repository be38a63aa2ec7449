#include <chrono>
#include <cstdio>
#include <vector>

#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kSecondsDefault = 60;
constexpr uint64_t kReconnectSliceUs = 20'000;

SteadyClock::time_point EndTime(const Arguments& arguments) {
  return SteadyClock::now() + std::chrono::seconds(arguments.Number("seconds", kSecondsDefault));
}

}  // namespace

int RunWorker(const Arguments& arguments, Progress* progress) {
  Traffic traffic(Traffic::ReadOptions(arguments), progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Say("ready");
  const auto end = EndTime(arguments);
  const Traffic::Options& options = traffic.options();
  const uint64_t erase_nth = arguments.Number("erase-nth", 0);  // 0: it erases nothing
  const uint64_t peek_nth = arguments.Number("peek-nth", 0);
  const uint64_t skew = arguments.Number("skew", 0);
  while (!IsTold() && SteadyClock::now() < end && !traffic.has_full_history()) {
    if (!traffic.client().is_connected()) (void)traffic.client().WaitConnected(kReconnectSliceUs);
    uint64_t prompt_bound = options.prompt_count;
    for (uint64_t i = 0; i < skew; ++i) prompt_bound = 1 + traffic.Draw(prompt_bound);
    const uint32_t prompt =
        options.prompt_first + static_cast<uint32_t>(traffic.Draw(prompt_bound));
    const auto block_count = 1 + static_cast<uint32_t>(traffic.Draw(options.blocks_max));
    if (erase_nth != 0 && traffic.Draw(erase_nth) == 0) {
      (void)traffic.Erase(prompt, block_count - 1);
    } else if (peek_nth != 0 && traffic.Draw(peek_nth) == 0) {
      traffic.Peek(prompt, static_cast<uint32_t>(traffic.Draw(block_count)), block_count);
    } else {
      traffic.Serve(prompt, block_count);
    }
  }
  traffic.ReleaseKept();
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

int RunBystander(const Arguments& arguments, Progress* progress) {
  Traffic traffic(Traffic::ReadOptions(arguments), progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  const Traffic::Options& options = traffic.options();
  std::vector<ReadLease> leases;
  for (uint32_t i = 0; i < options.prompt_count; ++i) {
    if (!traffic.Hold(options.prompt_first + i, &leases)) return kExitCannotStart;
  }
  Say("ready");
  const auto end = EndTime(arguments);
  while (!IsTold() && SteadyClock::now() < end) {
    for (uint32_t i = 0; i < leases.size(); ++i) {
      const auto keys = traffic.Keys(options.prompt_first + i, options.blocks_max);
      traffic.Verify(leases[i], keys);
      // Leased blocks cannot leave; a busy daemon may only be late with saying so.
      const auto match =
          traffic.client().Match(traffic.group(), keys, {.deadline_us = options.deadline_us});
      const bool is_short = match.ok() && match->block_count < options.blocks_max;
      if (is_short || !leases[i].is_valid()) {
        std::fprintf(stderr, "LOST prompt %u: lease %s, match %s of %u blocks\n",
                     options.prompt_first + i, leases[i].is_valid() ? "valid" : "revoked",
                     match.ok() ? "answered" : "did not answer",
                     match.ok() ? match->block_count : 0);
        return kExitLost;
      }
    }
    Count(progress->ops);
  }
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
