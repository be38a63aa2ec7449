// A hint is honoured or refused by name: every verb with every hint, as docs/PROTOCOL.md says.
#include "daemon/session/hint_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/session/verb_table.h"
#include "terrace/protocol_retention.h"
#include "test_paths.h"

namespace terrace {
namespace {

using protocol::Hints;
using protocol::Verb;
using ::testing::HasSubstr;

const std::vector<Verb> kVerbs = {Verb::kMatch,  Verb::kAcquire, Verb::kPrefetch, Verb::kReserve,
                                  Verb::kCommit, Verb::kTouch,   Verb::kQuery,    Verb::kWait,
                                  Verb::kEvict,  Verb::kPin,     Verb::kRelease};

// One that says something, by the name in the document.
struct Example {
  std::string name;
  Hint hint;
  Hints hints;
};
const std::vector<Example> kExamples = {
    {"deadline_us", Hint::kDeadline, {.deadline_us = 1}},
    {"recompute_ns_per_token", Hint::kRecompute, {.recompute_ns_per_token = 1}},
    {"session_hash", Hint::kSession, {.session_hash = 1}},
    {"ttl_s", Hint::kTtl, {.ttl_s = 1}},
    {"min_tokens", Hint::kMinTokens, {.min_tokens = 1}},
    {"expected_reuse_ms", Hint::kExpectedReuse, {.expected_reuse_ms = 1}},
    {"end_reason", Hint::kEndReason, {.end_reason = protocol::EndReason::kLength}},
    {"priority", Hint::kPriority, {.priority = 0}},
    {"pin", Hint::kPin, {.flags = protocol::kHintPin}},
    {"no_store", Hint::kNoStore, {.flags = protocol::kHintNoStore}},
    {"exact", Hint::kExact, {.flags = protocol::kHintExact}},
    {"by_verb", Hint::kByVerb, {.by_verb = 1}}};

std::vector<std::string> CellsOf(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream rest(line.substr(1));
  for (std::string cell; std::getline(rest, cell, '|');) {
    const size_t first = cell.find_first_not_of(" `");
    const size_t last = cell.find_last_not_of(" `");
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last + 1 - first));
  }
  return cells;
}

// By hint and verb, as the document has it.
std::map<std::string, std::map<std::string, std::string>> DocumentedTable() {
  std::ifstream page(TERRACE_SOURCE_DIR "/docs/PROTOCOL.md");
  std::map<std::string, std::map<std::string, std::string>> table;
  std::vector<std::string> head;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| hint |")) {
      head = CellsOf(line);
    } else if (!head.empty() && line.starts_with("| `")) {
      const std::vector<std::string> cells = CellsOf(line);
      for (size_t i = 1; i < cells.size(); ++i) table[cells[0]][head[i]] = cells[i];
    } else if (!head.empty() && !line.starts_with("|")) {
      break;
    }
  }
  return table;
}

TEST(HintTable, EveryCellIsHonouredOrRefusedByNameAsTheDocumentSays) {
  const auto table = DocumentedTable();
  ASSERT_EQ(table.size(), kExamples.size());
  for (const Example& example : kExamples) {
    for (const Verb verb : kVerbs) {
      const std::string name(VerbName(verb));
      SCOPED_TRACE(name + " with " + example.name);
      const Error checked = CheckHints(verb, example.hints);
      const std::string why = checked.sentence();
      const std::string& cell = table.at(example.name).at(name);
      EXPECT_EQ(TakesHint(verb, example.hint), checked.ok());
      EXPECT_EQ(cell, checked.ok() ? "yes" : "") << why;
      if (checked.ok()) continue;
      EXPECT_EQ(checked.code(), StatusCode::kInvalid);
      EXPECT_THAT(why, HasSubstr("the hint " + example.name + " ("));
      EXPECT_THAT(why, HasSubstr("with " + name));
    }
  }
}

TEST(HintTable, HintsThatSayNothingAreTakenByAll) {
  for (const Verb verb : kVerbs) {
    const Error checked = CheckHints(verb, {});
    EXPECT_TRUE(checked.ok()) << VerbName(verb) << checked.sentence();
  }
}

TEST(HintTable, WhatATimeToLiveIsOfIsSaidOnceAndOfSomething) {
  const auto refusal = [](const Hints& hints) {
    return CheckHints(Verb::kReserve, hints).sentence();
  };
  constexpr uint8_t kFromHits = protocol::kHintTtlFromHits;
  constexpr uint8_t kOfPriority = protocol::kHintTtlOfPriority;
  EXPECT_EQ(refusal({.ttl_s = 9, .flags = kFromHits}), "");
  EXPECT_EQ(refusal({.ttl_s = 9, .priority = 80, .flags = kOfPriority}), "");
  EXPECT_EQ(refusal({.ttl_s = 9, .priority = 80, .flags = kFromHits}), "");
  EXPECT_THAT(refusal({.flags = kFromHits}), HasSubstr("wants a ttl_s"));
  EXPECT_THAT(refusal({.priority = 80, .flags = kOfPriority}), HasSubstr("wants a ttl_s"));
  EXPECT_THAT(refusal({.ttl_s = 9, .flags = kOfPriority}), HasSubstr("a priority, too"));
  EXPECT_THAT(refusal({.ttl_s = 9, .priority = 80, .flags = kFromHits | kOfPriority}),
              HasSubstr("do not go together"));
  EXPECT_THAT(refusal({.flags = 32}), HasSubstr("flags are up to 31"));
  EXPECT_NE(CheckHints(Verb::kAcquire, {.ttl_s = 9, .flags = kFromHits}).sentence(), "");
}

}  // namespace
}  // namespace terrace
