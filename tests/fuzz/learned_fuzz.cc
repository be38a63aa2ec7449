// What an eviction policy has learned, as a catalog or a predecessor may hand it over: it is taken
// as a whole or not at all, and whatever the policy believes now, it still names victims.
#include <memory>
#include <string>

#include "daemon/policy/eviction/policies.h"
#include "fuzz/fuzz.h"

namespace terrace::fuzz::learned {

constexpr uint32_t kPolicyBlocks = 64;

std::vector<Seed> Seeds() {
  const auto count = static_cast<uint8_t>(EvictionPolicyNames().size());
  std::vector<Seed> seeds;
  for (uint8_t policy = 0; policy < count; ++policy) {
    const std::string name(EvictionPolicyNames()[policy]);
    seeds.push_back({name, ChoiceWriter().Byte(policy).Take()});
    seeds.push_back(
        {name + "_patched",
         ChoiceWriter().Byte(policy).Put<uint16_t>(8).Put<uint32_t>(0x7FC0'0000).Take()});
    seeds.push_back({name + "_cut", ChoiceWriter().Byte(policy).Put<uint16_t>(0xFFFF).Take()});
  }
  return seeds;
}

// [policy; where to patch what it has learned, and what with]
bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  const auto names = EvictionPolicyNames();
  const std::string_view name = names[choices.Below(static_cast<uint32_t>(names.size()))];
  const std::unique_ptr<EvictionPolicy> policy = MakeEvictionPolicy(name, kPolicyBlocks);
  Bytes learned = policy->Learned();
  while (!choices.is_empty()) {
    const uint32_t at = choices.Number<uint16_t>();
    const std::span<const std::byte> patch = choices.Take(4);
    if (learned.empty()) break;
    for (size_t i = 0; i < patch.size(); ++i) learned[(at + i) % learned.size()] = patch[i];
    if (at == 0xFFFF) learned.resize(learned.size() / 2);
  }
  const Bytes before = policy->Learned();
  const Bytes handed(learned.begin(), learned.end());  // not a byte more is its own
  const bool is_taken = policy->StartFrom(handed);
  const Bytes after = policy->Learned();
  Require(is_taken || after == before, "refused, and something was learned");
  Require(after.size() == before.size(), "what was learned has another shape");
  // Whatever it believes now, it still names a victim, and one that there is.
  for (BlockId id = 0; id < 4; ++id) {
    policy->OnInsert(id, {}, 1'000'000);
    policy->OnCandidate(id);
  }
  Require(policy->Victim() < 4, "a victim that there is not");
  Require(after.empty() || MakeEvictionPolicy(name, kPolicyBlocks)->StartFrom(policy->Learned()),
          "what is learned from there on is what no policy says");
  return true;
}

// PROMISE: T29 what policies have learned
const Registration registration({"learned", Run, Seeds});

}  // namespace terrace::fuzz::learned
