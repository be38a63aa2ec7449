// What an operator changes while the world goes on: the configuration, and clocks.
#include <algorithm>

#include "sim/world.h"

namespace terrace::sim {
namespace {

constexpr uint32_t kSegmentsTotal = 4;  // two domains cannot both be at their maximum
constexpr uint32_t kSegmentsTotalMin = 2;
constexpr uint64_t kStallStepsMax = 60;
constexpr uint64_t kWallJumpMaxS = 7'200;
constexpr uint32_t kWallJumpsShort = 2;  // one in so many is of seconds

}  // namespace

void World::TakeConfiguration() {
  const Swarm& swarm = options_.swarm;
  tuned_ = {.segments_total = kSegmentsTotal,
            .segments_lent_halves = swarm.value(Kind::kSegmentsLent),
            .fenced_bytes = swarm.value(Kind::kFencedBytes),
            .session_leases = swarm.value(Kind::kSessionLeases),
            .session_pending = swarm.value(Kind::kSessionPending),
            .read_ahead = swarm.value(Kind::kReadAhead),
            .admission = swarm.value(Kind::kAdmissionPolicy),
            // A second after a restart is not exact.
            .ttl_default_s = has_successors() ? 0 : swarm.value(Kind::kTtlDefault),
            .scrub_bytes = swarm.value(Kind::kScrubBytes),
            .device_hits = swarm.value(Kind::kDeviceHits)};
  segments_held_max_ = kSegmentsTotal;
}

// Some keys have other values from now on, and a successor begins with them.
void World::MaybeReload() {
  if (!dice_.Happens(Kind::kReloads, 1'500)) return;
  SimRandom draws(dice_.Word(Kind::kReloads));
  const auto other = [&draws](Kind setting, uint64_t* value) {
    const uint64_t world = draws.Pick(2 * Swarm::kValues);
    if (world < Swarm::kValues) *value = Swarm::ValueIn(setting, world);
  };
  other(Kind::kSegmentsLent, &tuned_.segments_lent_halves);
  other(Kind::kFencedBytes, &tuned_.fenced_bytes);
  other(Kind::kSessionLeases, &tuned_.session_leases);
  other(Kind::kSessionPending, &tuned_.session_pending);
  other(Kind::kReadAhead, &tuned_.read_ahead);
  other(Kind::kAdmissionPolicy, &tuned_.admission);
  if (!has_successors()) other(Kind::kTtlDefault, &tuned_.ttl_default_s);
  other(Kind::kScrubBytes, &tuned_.scrub_bytes);
  other(Kind::kDeviceHits, &tuned_.device_hits);
  const uint64_t totals = kSegmentsTotal - kSegmentsTotalMin + 1;
  tuned_.segments_total = kSegmentsTotalMin + static_cast<uint32_t>(draws.Pick(totals));
  segments_held_max_ = std::max(segments_held_max_, tuned_.segments_total);
  store_->Retune(MakeStoreOptions());
  Trace(0x5E10AD00 + tuned_.segments_total);
  ++reloads_;
}

// The monotonic clock stands still while messages go on; the wall's is set forward and back.
void World::MaybeSetClocks() {
  if (dice_.Happens(Kind::kStalls, 1'500)) {
    stalled_until_step_ = steps_ + 1 + dice_.Word(Kind::kStalls) % kStallStepsMax;
    ++stalls_;
  }
  if (!dice_.Happens(Kind::kWallJumps, 2'000)) return;
  SimRandom draws(dice_.Word(Kind::kWallJumps));
  const uint64_t range_s = draws.Pick(kWallJumpsShort) == 0 ? 10 : kWallJumpMaxS;
  clock_.SetWall(clock_.UnixSeconds() + draws.Pick(range_s + 1) - range_s / 2);
  ++wall_jumps_;
}

}  // namespace terrace::sim
