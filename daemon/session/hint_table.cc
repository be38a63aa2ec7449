#include "daemon/session/hint_table.h"

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/session/verb_table.h"
#include "terrace/protocol_retention.h"

namespace terrace {
namespace {

using protocol::Verb;

constexpr uint8_t kOfTtl = protocol::kHintTtlFromHits | protocol::kHintTtlOfPriority;
constexpr uint8_t kFlags =
    protocol::kHintPin | protocol::kHintNoStore | protocol::kHintExact | kOfTtl;

constexpr uint32_t Set(std::initializer_list<Hint> hints) {
  uint32_t set = 0;
  for (const Hint hint : hints) set |= 1u << static_cast<uint32_t>(hint);
  return set;
}

// What a block is worth and how long it stays: of verbs that make blocks, or are about some.
constexpr uint32_t kOfBlocks =
    Set({Hint::kRecompute, Hint::kSession, Hint::kTtl, Hint::kExpectedReuse, Hint::kEndReason,
         Hint::kPriority, Hint::kPin, Hint::kNoStore});
constexpr uint32_t kOfReaders = Set({Hint::kRecompute, Hint::kSession, Hint::kMinTokens,
                                     Hint::kExpectedReuse, Hint::kExact, Hint::kByVerb});

struct Row {
  Verb verb;
  uint32_t taken;
};
constexpr std::array kRows = {
    Row{Verb::kMatch, Set({Hint::kMinTokens, Hint::kExact})},
    Row{Verb::kAcquire, kOfReaders},
    Row{Verb::kPrefetch, kOfReaders},
    Row{Verb::kReserve, kOfBlocks | Set({Hint::kExact, Hint::kByVerb})},
    Row{Verb::kCommit, kOfBlocks | Set({Hint::kByVerb})},
    Row{Verb::kTouch, kOfBlocks | Set({Hint::kExact})},
    Row{Verb::kQuery, Set({Hint::kExact})},
    Row{Verb::kWait, Set({Hint::kExact})},
    Row{Verb::kEvict, Set({Hint::kExact})},
    Row{Verb::kPin, Set({Hint::kTtl, Hint::kExact})},
    Row{Verb::kRelease, Set({Hint::kSession, Hint::kEndReason})},
};

struct Said {
  Hint hint;
  std::string_view name;
  uint64_t value;
  bool is_said;
};

std::array<Said, kHintCount> AllOf(const protocol::Hints& hints) {
  const auto number = [](Hint hint, std::string_view name, uint64_t value) {
    return Said{hint, name, value, value != 0};
  };
  const auto flag = [&hints](Hint hint, std::string_view name, uint8_t bit) {
    return Said{hint, name, 1, (hints.flags & bit) != 0};
  };
  return {
      number(Hint::kDeadline, "deadline_us", hints.deadline_us),
      number(Hint::kRecompute, "recompute_ns_per_token", hints.recompute_ns_per_token),
      number(Hint::kSession, "session_hash", hints.session_hash),
      number(Hint::kTtl, "ttl_s", hints.ttl_s),
      number(Hint::kMinTokens, "min_tokens", hints.min_tokens),
      number(Hint::kExpectedReuse, "expected_reuse_ms", hints.expected_reuse_ms),
      number(Hint::kEndReason, "end_reason", static_cast<uint64_t>(hints.end_reason)),
      Said{Hint::kPriority, "priority", hints.priority, hints.priority != protocol::kPriorityUnset},
      flag(Hint::kPin, "pin", protocol::kHintPin),
      flag(Hint::kNoStore, "no_store", protocol::kHintNoStore),
      flag(Hint::kExact, "exact", protocol::kHintExact),
      number(Hint::kByVerb, "by_verb", hints.by_verb)};
}

// "Reserve, Commit and Pin".
std::string TakersOf(Hint hint) {
  std::string names;
  std::string_view last;
  for (const Row& row : kRows) {
    if (!TakesHint(row.verb, hint)) continue;
    if (!last.empty()) names += (names.empty() ? "" : ", ") + std::string(last);
    last = VerbName(row.verb);
  }
  return names.empty() ? std::string(last) : names + " and " + std::string(last);
}

}  // namespace

bool TakesHint(Verb verb, Hint hint) {
  if (hint == Hint::kDeadline) return true;  // every request ends by one
  for (const Row& row : kRows) {
    if (row.verb == verb) return (row.taken >> static_cast<uint32_t>(hint) & 1) != 0;
  }
  return false;
}

Error CheckHints(Verb verb, const protocol::Hints& hints) {
  const auto refuse = [](std::string sentence) {
    return Error(Status(StatusCode::kInvalid, "a hint is refused"), std::move(sentence));
  };
  if (hints.priority > protocol::kPriorityMax && hints.priority != protocol::kPriorityUnset) {
    return refuse("priority " + std::to_string(hints.priority) +
                  "; write 0 to 100, or 255 to say nothing");
  }
  if ((hints.flags & ~kFlags) != 0 || hints.end_reason > protocol::EndReason::kAborted) {
    return refuse("hints with flags " + std::to_string(hints.flags) + " and end reason " +
                  std::to_string(static_cast<unsigned>(hints.end_reason)) +
                  "; flags are up to 31 and reasons up to 4");
  }
  const bool has_priority = hints.priority != protocol::kPriorityUnset;
  const uint8_t of_ttl = hints.flags & kOfTtl;
  if (of_ttl == kOfTtl || (of_ttl != 0 && hints.ttl_s == 0) ||
      (of_ttl == protocol::kHintTtlOfPriority && !has_priority)) {
    return refuse("hints with flags " + std::to_string(hints.flags) + ", ttl_s " +
                  std::to_string(hints.ttl_s) + " and priority " + std::to_string(hints.priority) +
                  "; flag 8 (from hits) wants a ttl_s, flag 16 (of the priority) a priority, too, "
                  "and they do not go together");
  }
  for (const Said& said : AllOf(hints)) {
    if (!said.is_said || TakesHint(verb, said.hint)) continue;
    return refuse("the hint " + std::string(said.name) + " (" + std::to_string(said.value) +
                  ") with " + std::string(VerbName(verb)) +
                  ", which has no use for it: leave it out" +
                  (said.hint == Hint::kPriority ? " (255)" : "") + ", or give it with " +
                  TakersOf(said.hint));
  }
  return {};
}

}  // namespace terrace
