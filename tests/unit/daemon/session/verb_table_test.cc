// The table of verbs is what docs/PROTOCOL.md says, row by row.
#include "daemon/session/verb_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "terrace/protocol_introspection.h"
#include "test_paths.h"

namespace terrace {
namespace {

// Name to "number role head / head", as it stands in the document.
using Rows = std::map<std::string, std::string>;

// Rows "| Name | nr | for | head | asks | answers |" of verbs that clients send.
Rows DocumentedVerbs() {
  std::ifstream file(std::string(TERRACE_SOURCE_DIR) + "/docs/PROTOCOL.md");
  Rows verbs;
  bool is_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| verb | nr |")) is_table = true;
    if (!line.starts_with("|")) is_table = false;
    std::string bar, name, next, role, asks, slash, answers;
    unsigned number = 0;
    std::istringstream row(line);
    const bool is_row = is_table && (row >> bar >> name >> next >> number);
    if (!is_row || number > static_cast<unsigned>(protocol::kVerbLast)) continue;
    row >> bar >> role >> bar >> asks >> slash >> answers;
    verbs[name] = std::to_string(number) + " " + role + " " + asks + " / " + answers;
  }
  return verbs;
}

std::string_view RoleName(VerbRole role) {
  switch (role) {
    case VerbRole::kEngine:
      return " engine ";
    case VerbRole::kOperator:
      return " operator ";
    case VerbRole::kAdmin:
      break;
  }
  return " admin ";
}

TEST(VerbTable, IsTheTableOfTheProtocol) {
  const auto bytes = [](size_t count) { return count == 0 ? "–" : std::to_string(count); };
  Rows verbs;
  for (const VerbRow& row : VerbTable()) {
    verbs[std::string(VerbName(row.verb))] = std::to_string(static_cast<unsigned>(row.verb)) +
                                             std::string(RoleName(row.role)) +
                                             bytes(row.head_bytes) + " / " + bytes(row.reply_bytes);
  }
  EXPECT_EQ(verbs, DocumentedVerbs());
}

TEST(VerbTable, FindsWhatAClientSendsAndNothingElse) {
  for (unsigned number = 0; number < 256; ++number) {
    const auto verb = static_cast<protocol::Verb>(number);
    bool is_sent = false;
    for (const VerbRow& row : VerbTable()) is_sent = is_sent || row.verb == verb;
    ASSERT_EQ(FindVerb(verb) != nullptr, is_sent) << number;
    if (is_sent) {
      ASSERT_EQ(FindVerb(verb)->verb, verb);
    }
    EXPECT_EQ(VerbName(verb) == "unknown verb", !is_sent) << number;
  }
}

}  // namespace
}  // namespace terrace
