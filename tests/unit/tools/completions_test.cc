#include "tools/terrace/cli/completions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace::tools {
namespace {

using ::testing::HasSubstr;

// terrace: ls [--json] [--sort ORDER], bench store [--config FILE] TRACE
DescribedCommand Small() {
  const DescribedArgument json{.names = {"--json"}, .description = "It's one [document]: JSON"};
  const DescribedArgument sort{
      .names = {"--sort", "-s"}, .description = "Order", .type = "ORDER", .words = {"idle", "age"}};
  const DescribedArgument config{
      .names = {"--config"}, .description = "Configuration", .type = "FILE"};
  const DescribedArgument trace{
      .names = {"TRACE"}, .description = "A trace", .type = "TEXT", .is_option = false};
  const DescribedCommand ls{.name = "ls", .description = "List", .arguments = {json, sort}};
  const DescribedCommand store{
      .name = "store", .description = "Store", .arguments = {config, trace}};
  const DescribedCommand bench{.name = "bench", .description = "Measure", .verbs = {store}};
  return {.name = "terrace", .description = "All", .arguments = {json}, .verbs = {ls, bench}};
}

TEST(Completions, BashKnowsVerbsOptionsAndTheirValues) {
  const std::string script = BashCompletions(Small());
  EXPECT_THAT(script, HasSubstr("' ls') verb='ls' ;;"));
  EXPECT_THAT(script, HasSubstr("'bench store') verb='bench store' ;;"));
  EXPECT_THAT(script, HasSubstr("'ls:--sort'|'ls:-s') _terrace_words 'idle age'; return ;;"));
  EXPECT_THAT(script, HasSubstr("'bench store:--config') _terrace_files -f; return ;;"));
  EXPECT_THAT(script, HasSubstr("'')\n      if [[ $cur == -* ]]; then _terrace_words '--json'; "
                                "else _terrace_words 'ls bench'; fi ;;"));
  EXPECT_THAT(script, HasSubstr("_terrace_words '--config'; else _terrace_files -f; fi"));
  EXPECT_THAT(script, HasSubstr("complete -F _terrace terrace\n"));
}

TEST(Completions, ZshDescribesAndQuotes) {
  const std::string script = ZshCompletions(Small());
  EXPECT_TRUE(script.starts_with("#compdef terrace\n"));
  EXPECT_THAT(script, HasSubstr(R"('*--json[It'\''s one \[document\]\: JSON]')"));
  EXPECT_THAT(script, HasSubstr("'*--sort=[Order]:ORDER:(idle age)'"));
  EXPECT_THAT(script, HasSubstr("'*-s[Order]:ORDER:(idle age)'"));
  EXPECT_THAT(script, HasSubstr("'*--config=[Configuration]:FILE:_files'"));
  EXPECT_THAT(script, HasSubstr("'*:TRACE:_files'"));
  EXPECT_THAT(script, HasSubstr("'bench:Measure'"));
}

TEST(Completions, FishDescribesAndQuotes) {
  const std::string script = FishCompletions(Small());
  EXPECT_THAT(script, HasSubstr("complete -c terrace -n '__terrace_at ' -a ls -d 'List'\n"));
  EXPECT_THAT(script, HasSubstr(R"(-n '__terrace_at ls' -l json -d 'It\'s one [document]: JSON')"));
  EXPECT_THAT(script, HasSubstr("-n '__terrace_at ls' -l sort -s s -x -a 'idle age' -d 'Order'"));
  EXPECT_THAT(script, HasSubstr("-n '__terrace_at bench store' -l config -r -F -d"));
  EXPECT_THAT(script, HasSubstr("-n '__terrace_at bench store' -F\n"));
  EXPECT_THAT(script, HasSubstr("case ' ls' ' bench' 'bench store'\n"));
}

}  // namespace
}  // namespace terrace::tools
