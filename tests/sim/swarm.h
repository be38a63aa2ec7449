// What a seed's world is made of. Each kind of fault, actor, verb and setting has a level, drawn
// from a stream of its own: about half are off, the rest weak, plain or strong. Many seeds then
// try many narrow mixtures, where one mixture of everything tries itself again and again (Groce et
// al., Swarm Testing, 2012). One seed in eight has everything at its plain level.
//
// What is taken out of a world does not happen; every other draw stays what it was. So the kinds,
// and the steps, of a seed that fails can be taken out one by one.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace terrace::sim {

// 64 bits that look drawn, of these alone.
inline uint64_t HashOf(uint64_t seed, uint64_t first, uint64_t second = 0, uint64_t third = 0) {
  uint64_t word = seed;
  for (const uint64_t part : {first, second, third}) {
    word += 0x9E3779B97F4A7C15 + part * 0xD6E8FEB86659FD93;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    word ^= word >> 31;
  }
  return word;
}

// Names and ranges: kRows of swarm.cc, in this order.
enum class Kind : uint8_t {
  // Verbs, and work on leases a process has.
  kAcquire,
  kReserve,
  kLeaseWork,
  kJoin,
  kMatch,
  kPrefetch,
  kTouch,
  kQuery,
  kEvict,
  kPin,
  kCancel,
  kList,
  kReset,
  // How they are asked for.
  kByParts,
  kFollow,
  kFlatKeys,
  kByVerb,
  kMinTokens,
  kTtl,
  kPriority,
  kChecksums,
  kAbsences,
  kAborts,
  // Clients that fail, stop and lie.
  kWrongChecksums,
  kStaleCommits,
  kWrongAbsences,
  kKills,
  kStops,
  kStrayWrites,
  // Copies of a device.
  kWrongCopies,
  kWrongOrders,
  kForgottenOrders,
  kLateOrders,
  kRefusedOrders,
  kWrongSums,
  kDoubleAnswers,
  // The host.
  kTimeLeaps,
  kStalls,
  kWallJumps,
  kReloads,
  kDeafRouters,
  kDaemonEnds,
  kDriveResizes,
  kServerAway,
  kServerFull,
  kServerLoses,
  // Of the tier below in memory, in the order of Fault.
  kTierReadFails,
  kTierWriteFails,
  kTierReadShort,
  kTierWriteShort,
  kTierReadFlipsBit,
  kTierReadMisdirected,
  kTierHangs,
  kTierBusy,
  kTierNoSpace,
  kTierMakesRoom,
  kTierOff,
  // Of drives, in the order of DiskFault.
  kDriveReadFails,
  kDriveWriteFails,
  kDriveShort,
  kDriveCreateNoSpace,
  kDriveCreateFails,
  kDriveCreateVanishes,
  kDriveSyncFails,
  kDriveMisdirected,
  kDriveStaleRead,
  kDriveStuck,
  kDriveBusy,
  // Settings: taken out they have their plain value.
  kTierBelow,
  kPowerLoss,
  kDriveFaultPpm,
  kProcesses,
  kBurst,
  kChains,
  kChainBlocks,
  kPartPercent,
  kWindowTokens,
  kDeadlineUs,
  kQuickSteps,
  kEvictionPolicy,
  kLowerPolicy,
  kAdmissionPolicy,
  kSegmentsLent,
  kDriveShares,
  kReadAhead,
  kPartReadBytes,
  kLeaseTtlMs,
  kSessionLeases,
  kSessionPending,
  kFencedBytes,
  kBlocksMax,
  kTtlDefault,
  kTierBytes,
  kTierQueue,
  kTierBytesPerUs,
  kScrubBytes,
  kOrderDeadlineUs,
  kDeviceHits,
  // What a client says, mixed up on its way. (Here, since draws go by the place in this list.)
  kMessagesLost,
  kMessagesDoubled,
  kMessagesOvertaken,
  kCount,
};
inline constexpr size_t kKindCount = static_cast<size_t>(Kind::kCount);
using KindSet = std::bitset<kKindCount>;

const char* KindName(Kind kind);
// Of names with commas between them. False: `*wrong` is none.
bool ParseKinds(const std::string& text, KindSet* kinds, std::string* wrong);
std::string KindsText(const KindSet& kinds);

class Swarm {
 public:
  static constexpr uint32_t kPlain = 4;  // levels of what happens are quarters of the usual rate

  Swarm() : Swarm(0) {}
  explicit Swarm(uint64_t seed);

  bool is_on(Kind kind) const { return levels_[Index(kind)] > 0; }
  uint32_t level(Kind kind) const { return levels_[Index(kind)]; }
  // REQUIRES: a setting.
  uint64_t value(Kind setting) const;
  // What it is in one of kValues worlds.
  static constexpr uint64_t kValues = 4;
  static uint64_t ValueIn(Kind setting, uint64_t world);
  // A rate, as this seed has it.
  uint32_t Ppm(Kind kind, uint32_t plain_ppm) const;
  // How often a verb is chosen, whether or not it was taken out.
  uint32_t weight(Kind verb) const { return drawn_[Index(verb)]; }

  void TakeOut(const KindSet& kinds);
  // Kinds that do anything but what they usually do.
  KindSet taken_in() const;
  // In one line: what is off, weak, strong, and settings that are not plain.
  std::string Describe() const;

 private:
  static size_t Index(Kind kind) { return static_cast<size_t>(kind); }

  std::array<uint32_t, kKindCount> drawn_ = {};
  std::array<uint32_t, kKindCount> levels_ = {};  // 0 where taken out
};

// Steps in which anybody acts; of the others only time passes. Empty: all.
class StepSet {
 public:
  StepSet() = default;
  explicit StepSet(const std::vector<uint32_t>& steps);  // in order
  // As "3-5,17". False: it is no such text.
  static bool Parse(const std::string& text, StepSet* set);
  std::string Text() const;
  bool contains(uint32_t step) const;
  bool is_all() const { return ranges_.empty(); }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;  // first, last
};

// Draws of one seed: a stream for each step and use, one for each step and kind.
class Dice {
 public:
  Dice(uint64_t seed, const Swarm& swarm) : seed_(seed), swarm_(swarm) {}

  const Swarm& swarm() const { return swarm_; }
  // Nothing happens in a step that is not `is_live`.
  void BeginStep(uint64_t step, bool is_live);
  // Whether what happens `plain_ppm` times in a million in a plain world happens now.
  bool Happens(Kind kind, uint32_t plain_ppm);
  // 64 bits of the kind's own stream.
  uint64_t Word(Kind kind);
  // The seed of a stream for this step. Uses are told apart by number.
  uint64_t SeedOf(uint64_t use) const;
  // Of verbs, by weight.
  Kind PickVerb(uint64_t word) const;

 private:
  const uint64_t seed_;
  const Swarm swarm_;
  uint64_t step_ = 0;
  bool is_live_ = true;
  std::array<uint32_t, kKindCount> asked_ = {};  // in this step
};

}  // namespace terrace::sim
