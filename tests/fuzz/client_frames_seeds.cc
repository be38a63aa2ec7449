#include "fuzz/client_frames_seeds.h"

#include <utility>
#include <vector>

#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace::fuzz::client_frames {
namespace {

void PutRecord(uint8_t operation, const std::vector<uint8_t>& choices, ChoiceWriter* writer) {
  writer->Byte(operation).Byte(static_cast<uint8_t>(choices.size()));
  for (const uint8_t choice : choices) writer->Byte(choice);
}

Bytes Conversation(uint8_t page, uint8_t cut) {
  ChoiceWriter writer;
  const auto tell = [&](uint8_t whom, std::vector<uint8_t> of_body) {
    std::vector<uint8_t> choices = {whom, 0, page, 0};
    choices.insert(choices.end(), of_body.begin(), of_body.end());
    choices.insert(choices.end(), {0, cut});
    PutRecord(1, choices, &writer);
  };
  PutRecord(0, {0, protocol::kAcquireByParts / 2}, &writer);
  tell(0, {2, 0});                // an Acquire, two ready
  tell(130, {2, 0, 0, 1, 0, 0});  // a part
  tell(130, {2, 1, 0, 0, 0, 1});  // the rest
  PutRecord(4, {3}, &writer);
  PutRecord(4, {0, 1}, &writer);
  PutRecord(0, {1}, &writer);
  tell(1, {0});  // a Reserve
  PutRecord(4, {1}, &writer);
  PutRecord(0, {3}, &writer);
  tell(2, {});     // its Commit
  tell(131, {});   // revoked
  tell(132, {0});  // a segment
  tell(128, {1});  // an order
  PutRecord(6, {}, &writer);
  return writer.Take();
}

// Joins in pages: right ones, those that end in the midst, and what is no page.
Bytes Pages(uint8_t kind) {
  ChoiceWriter writer;
  const uint8_t is_write = kind;
  const auto join = [&] {
    PutRecord(0, {2, is_write == 0 ? uint8_t{0} : uint8_t{2}, 0, 0, 1}, &writer);
  };
  const auto tell = [&](uint8_t whom, uint8_t page, std::vector<uint8_t> rest) {
    std::vector<uint8_t> choices = {whom, 0, 0, 0, is_write, 2};
    if (is_write == 0) choices.push_back(0);
    choices.push_back(page);
    choices.insert(choices.end(), rest.begin(), rest.end());
    PutRecord(1, choices, &writer);
  };
  join();
  tell(0, 1, {});
  PutRecord(10, {0}, &writer);
  tell(1, 1, {1});
  PutRecord(10, {0}, &writer);
  tell(2, 0, {2});
  join();
  tell(3, 1, {});
  PutRecord(10, {1}, &writer);  // given up
  tell(4, 1, {1});
  join();
  tell(5, 1, {});
  PutRecord(10, {0}, &writer);
  tell(6, 1, {1, 1, 0, 9, 9, 9, 9});  // of another lease
  return writer.Take();
}
Bytes WrongPage(uint8_t is_write, uint8_t first, std::vector<uint8_t> second) {
  ChoiceWriter writer;
  PutRecord(0, {2, is_write == 0 ? uint8_t{0} : uint8_t{2}, 0, 0, 1}, &writer);
  std::vector<uint8_t> choices = {0, 0, 0, 0, is_write, 2};
  if (is_write == 0) choices.push_back(0);
  choices.push_back(first);
  PutRecord(1, choices, &writer);
  PutRecord(10, {0}, &writer);
  second.insert(second.begin(), {1, 0, 0, 0});
  PutRecord(1, second, &writer);
  return writer.Take();
}
// Answers under another verb, answers that nobody awaits, and what is too late.
Bytes Misplaced(uint8_t way) {
  ChoiceWriter writer;
  PutRecord(0, {0, 0, way % 2 == 0 ? uint8_t{1} : uint8_t{0}, 1}, &writer);
  if (way < 2) PutRecord(6, {}, &writer);
  if (way < 4) PutRecord(5, {0}, &writer);
  PutRecord(7, {way % 3 == 0 ? uint8_t{0} : uint8_t{1}, 0}, &writer);
  PutRecord(0, {0, 0, 1, 1}, &writer);
  PutRecord(6, {}, &writer);
  PutRecord(1, {1}, &writer);
  return writer.Take();
}
Bytes UnawaitedAnswers(std::vector<uint8_t> last) {
  ChoiceWriter writer;
  for (uint8_t verb = 1; verb < 4; ++verb) {
    for (const StatusCode status : {StatusCode::kOk, StatusCode::kInvalid}) {
      PutRecord(8, {verb, static_cast<uint8_t>(status)}, &writer);
    }
  }
  PutRecord(8, {0, static_cast<uint8_t>(StatusCode::kGone)}, &writer);
  PutRecord(8, {0, 0, 1}, &writer);
  PutRecord(8, last, &writer);
  return writer.Take();
}
// A Commit of which nothing became visible.
Bytes RefusedCommit(uint8_t status) {
  ChoiceWriter writer;
  PutRecord(0, {1}, &writer);
  PutRecord(1, {0}, &writer);
  PutRecord(4, {1, 0}, &writer);
  PutRecord(4, {1, 1}, &writer);
  PutRecord(0, {3}, &writer);
  const auto no_space = static_cast<uint8_t>(StatusCode::kNoSpace);
  PutRecord(1, {1, status, 0, 0, 2, 4, 0, 0, 0, 0, 8, no_space}, &writer);
  return writer.Take();
}
// One answer to one request, and bytes of it that are others. [a verb's index; the body's choices]
Bytes Patched(uint8_t verb, std::vector<uint8_t> of_body, uint8_t at, uint8_t value) {
  ChoiceWriter writer;
  PutRecord(0, {verb}, &writer);
  std::vector<uint8_t> choices = {0, 0, 0, 0};
  of_body.insert(of_body.end(), {1, at, value, 0, 0, 0});
  choices.insert(choices.end(), of_body.begin(), of_body.end());
  PutRecord(1, choices, &writer);
  return writer.Take();
}
Bytes Raw(const std::vector<uint8_t>& frames) {
  ChoiceWriter writer;
  PutRecord(3, frames, &writer);
  return writer.Take();
}

}  // namespace

std::vector<Seed> Seeds() {
  ChoiceWriter every, more, raw;
  for (uint8_t verb = 0; verb < 8; ++verb) PutRecord(0, {verb, 0, verb}, &every);
  for (uint8_t verb = 0; verb < 8; ++verb) PutRecord(1, {verb}, &every);
  PutRecord(5, {0}, &every);
  for (uint8_t verb = 8; verb < 12; ++verb) PutRecord(0, {verb}, &more);
  for (uint8_t verb = 0; verb < 4; ++verb) PutRecord(1, {verb}, &more);
  PutRecord(0, {6}, &raw);
  PutRecord(3, {32, 0, 0, 0, 1, 1, 0, 0, 15, 0, 1, 0, 0, 0, 0, 0, 77, 0, 0, 0}, &raw);
  return {{"conversation", Conversation(0, 0)},
          {"conversation_in_pages", Conversation(40, 3)},
          {"every_verb", every.Take()},
          {"raw", raw.Take()},
          {"pages_of_reads", Pages(0)},
          {"pages_of_writes", Pages(1)},
          {"page_of_other_members", WrongPage(0, 1, {0, 2, 0, 1, 1, 1, 16, 5})},
          {"page_of_the_other_kind", WrongPage(0, 1, {1, 2, 0})},
          {"page_of_the_other_kind_of_writes", WrongPage(1, 1, {0, 2, 0, 0})},
          {"page_of_no_blocks", WrongPage(0, 1, {0, 2, 0, 2})},
          {"page_with_spans", WrongPage(0, 1, {0, 2, 0, 3})},
          {"page_of_no_keys", WrongPage(1, 1, {1, 2, 2})},
          {"first_page_of_no_keys", WrongPage(1, 2, {})},
          {"misplaced", Misplaced(0)},
          {"misplaced_late", Misplaced(1)},
          {"misplaced_given_up", Misplaced(3)},
          {"misplaced_awaited", Misplaced(5)},
          {"unawaited", UnawaitedAnswers({0})},
          {"unawaited_of_another_space", UnawaitedAnswers({0, 0, 0, 30, 1})},
          {"unawaited_short", UnawaitedAnswers({0, 0, 0, 0, 60})},
          {"refused_commit", RefusedCommit(0)},
          {"commit_of_none", RefusedCommit(static_cast<uint8_t>(StatusCode::kNoSpace))},
          {"more_verbs", more.Take()},
          {"list_of_more", Patched(9, {}, 0, 9)},
          {"list_of_less", Patched(9, {}, 0, 1)},
          {"pin_of_less", Patched(8, {}, 0, 0)},
          {"spans_out_of_order", Patched(0, {2, 0}, 48, 9)},
          {"span_of_no_state", Patched(0, {2, 0}, 56, 99)},
          {"keys_of_less", Patched(1, {1}, 24, 3)},
          {"keys_of_no_status", Patched(1, {1}, 56, 99)},
          {"slots_of_less", Patched(1, {0}, 40, 2)},
          {"without_end",
           [] {
             ChoiceWriter writer;
             PutRecord(9, {kWithoutEnd}, &writer);
             return writer.Take();
           }()},
          {"raw_pages_of_two", Raw({17, 0, 0, 0, 1, 18, 1, 0, 15, 0, 1, 0, 0, 0, 0, 0, 1,
                                    17, 0, 0, 0, 1, 18, 0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 1})},
          {"raw_short", Raw({20, 0, 0, 0, 1, 18, 0, 0, 15, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4})}};
}

}  // namespace terrace::fuzz::client_frames
