// RequestPhases: where a request's time went, phase by phase. At any time a request is in one
// phase; whoever moves it on says when, so the phases add up to the whole.
//
// Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace terrace {

// What it waited for. docs/ARCHITECTURE.md says of each what belongs to it.
enum class RequestPhase : uint8_t {
  kQueue,
  kStore,
  kSeek,
  kRoom,
  kWriter,
  kHbm,  // from here on as protocol::TierKind, DRAM being checksums
  kVerify,
  kNvme,
  kRedis,
  kDisk,
  kReply,
};
inline constexpr std::array<std::string_view, 11> kRequestPhaseNames = {
    "queue", "store", "seek", "room", "writer", "hbm", "verify", "nvme", "redis", "disk", "reply"};

// Waiting for blocks that lie in a tier, a protocol::TierKind.
constexpr RequestPhase PhaseOfTier(size_t tier) {
  return static_cast<RequestPhase>(static_cast<size_t>(RequestPhase::kHbm) + tier);
}

class RequestPhases {
 public:
  void Begin(uint64_t now_us) {
    *this = {};
    began_us_ = since_us_ = now_us;
  }
  // The time until now was the last phase's. A time before that is taken as that.
  void Enter(RequestPhase phase, uint64_t now_us) {
    constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max();  // 71 minutes
    uint32_t& spent_us = us_[static_cast<size_t>(phase_)];
    now_us = std::max(now_us, since_us_);
    spent_us = static_cast<uint32_t>(std::min(kMax, spent_us + (now_us - since_us_)));
    since_us_ = now_us;
    phase_ = phase;
  }

  uint64_t total_us() const { return since_us_ - began_us_; }
  uint64_t ended_us() const { return since_us_; }
  uint32_t us(RequestPhase phase) const { return us_[static_cast<size_t>(phase)]; }

 private:
  uint64_t began_us_ = 0;
  uint64_t since_us_ = 0;
  RequestPhase phase_ = RequestPhase::kQueue;
  std::array<uint32_t, kRequestPhaseNames.size()> us_{};
};

}  // namespace terrace
