// The table of verbs is what docs/PROTOCOL.md says, row by row.
#include "daemon/session/verb_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "terrace/protocol_insight.h"
#include "test_paths.h"

namespace terrace {
namespace {

// Name to number: rows "| Name | nr | asks | answers |" of verbs that clients send.
std::map<std::string, unsigned> DocumentedVerbs() {
  std::ifstream file(std::string(TERRACE_SOURCE_DIR) + "/docs/PROTOCOL.md");
  std::map<std::string, unsigned> verbs;
  bool is_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| verb | nr |")) is_table = true;
    if (!line.starts_with("|")) is_table = false;
    std::string bar, name, next;
    unsigned number = 0;
    std::istringstream row(line);
    const bool is_row = is_table && (row >> bar >> name >> next >> number);
    if (is_row && number <= static_cast<unsigned>(protocol::kVerbLast)) verbs[name] = number;
  }
  return verbs;
}

TEST(VerbTable, IsTheTableOfTheProtocol) {
  std::map<std::string, unsigned> verbs;
  for (const VerbRow& row : VerbTable()) {
    verbs[std::string(row.name)] = static_cast<unsigned>(row.verb);
  }
  EXPECT_EQ(verbs, DocumentedVerbs());
}

TEST(VerbTable, FindsWhatAClientSendsAndNothingElse) {
  for (unsigned number = 0; number < 256; ++number) {
    const auto verb = static_cast<protocol::Verb>(number);
    const bool is_sent = number >= 1 && number <= static_cast<unsigned>(protocol::kVerbLast);
    ASSERT_EQ(FindVerb(verb) != nullptr, is_sent) << number;
    EXPECT_EQ(VerbName(verb) == "unknown verb", !is_sent) << number;
  }
}

}  // namespace
}  // namespace terrace
