// What judges the histories of chaos checks finds what cannot have been, and nothing else.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "chaos/history_check.h"

namespace terrace::chaos {
namespace {

constexpr CommitId kFirst = 0xA1;
constexpr CommitId kSecond = 0xA2;
constexpr uint32_t kPrompt = 8;
constexpr uint16_t kBlock = 5;  // behind those that a family has in common

// One process's history, written by hand.
class Story {
 public:
  Story& Add(EventKind kind, uint64_t began_ns, uint64_t ended_ns, std::vector<CommitId> ids,
             Event more = {}) {
    Event event = more;
    event.kind = kind;
    event.began_ns = began_ns;
    event.ended_ns = ended_ns;
    event.id_count = static_cast<uint16_t>(ids.size());
    if (event.prompt == 0) event.prompt = kPrompt;
    if (event.first == 0) event.first = kBlock;
    if (event.asked == 0) event.asked = static_cast<uint16_t>(event.first + ids.size());
    if (kind == EventKind::kCommit) event.asked = static_cast<uint16_t>(ids.size());
    last_at_ = words_.size();
    words_.resize(words_.size() + sizeof(Event) / sizeof(uint64_t));
    std::memcpy(&words_[last_at_], &event, sizeof(event));
    words_.insert(words_.end(), ids.begin(), ids.end());
    return *this;
  }
  // Granted from 10 on, committed between 20 and 30.
  Story& Stores(CommitId id, uint64_t at_ns = 10, Event more = {}) {
    Add(EventKind::kReserve, at_ns, at_ns + 5, {id}, more);
    return Add(EventKind::kCommit, at_ns + 10, at_ns + 20, {id}, more);
  }
  Story& Reads(CommitId id, uint64_t began_ns, uint64_t ended_ns, Event more = {}) {
    return Add(EventKind::kRead, began_ns, ended_ns, {id}, more);
  }
  Story& Erases(uint64_t began_ns, uint64_t ended_ns, Event more = {}) {
    more.asked = more.asked == 0 ? kBlock + 1 : more.asked;
    return Add(EventKind::kErase, began_ns, ended_ns, {}, more);
  }
  // The lease of the last event, read again.
  Story& Holds(CommitId id, uint64_t began_ns, Event more = {}) {
    more.earlier = static_cast<uint32_t>(last_at_);
    return Add(EventKind::kHeld, began_ns, began_ns + 1, {id}, more);
  }
  std::span<const uint64_t> words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
  size_t last_at_ = 0;
};

Verdict VerdictOf(const std::vector<Story>& stories, bool is_settled = false) {
  std::vector<std::span<const uint64_t>> histories;
  for (const Story& story : stories) histories.push_back(story.words());
  return CheckHistories(histories, {.is_settled = is_settled});
}

// The faults that are found, in order.
std::string FaultsOf(const std::vector<Story>& stories, bool is_settled = false) {
  std::string names;
  for (const Finding& finding : VerdictOf(stories, is_settled).findings) {
    names += std::string(names.empty() ? "" : " ") + FaultName(finding.fault);
  }
  return names;
}

TEST(ChaosHistory, WhatCanHaveBeenIsNoFinding) {
  const Story writer = Story().Stores(kFirst);
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 40, 50).Holds(kFirst, 60)}, true), "");
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 5, 25)}), "") << "while it is committed";
  EXPECT_EQ(FaultsOf({writer, Story().Erases(40, 60), Story().Reads(kFirst, 59, 70)}), "")
      << "while it is erased";
  EXPECT_EQ(FaultsOf({writer, Story().Erases(25, 60), Story().Reads(kFirst, 70, 80)}), "")
      << "committed after it was erased, or before: both can be";
}

TEST(ChaosHistory, EachBlockThatIsReadIsCounted) {
  const Event revoked{.status = StatusCode::kGone};
  const Verdict verdict =
      VerdictOf({Story().Stores(kFirst), Story().Reads(kFirst, 40, 50).Holds(kFirst, 60),
                 Story().Reads(kFirst, 40, 50).Holds(kFirst, 60, revoked)});
  EXPECT_EQ(verdict.blocks_read, 2u);
  EXPECT_EQ(verdict.blocks_held, 1u) << "what was revoked says nothing";
  EXPECT_EQ(verdict.commits, 1u);
}

TEST(ChaosHistory, BytesOfNobodyAreFound) {
  const Story writer = Story().Stores(kFirst);
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kSecond, 40, 50)}), "unknown");
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 40, 50, {.first = kBlock - 1})}), "unknown")
      << "of another block";
}

TEST(ChaosHistory, ReadsBeforeACommitAreFound) {
  const Story writer = Story().Stores(kFirst);
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 12, 19)}), "uncommitted");
  const Story aborted = Story().Add(EventKind::kReserve, 10, 15, {kFirst});
  EXPECT_EQ(FaultsOf({aborted, Story().Reads(kFirst, 40, 50)}), "uncommitted");
  const Story refused =
      Story()
          .Add(EventKind::kReserve, 10, 15, {kFirst})
          .Add(EventKind::kCommit, 20, 30, {kFirst}, {.status = StatusCode::kCorrupt});
  EXPECT_EQ(FaultsOf({refused, Story().Reads(kFirst, 40, 50)}), "uncommitted");
}

TEST(ChaosHistory, WhatWasErasedAndComesBackIsFound) {
  const Story writer = Story().Stores(kFirst);
  EXPECT_EQ(FaultsOf({writer, Story().Erases(40, 50), Story().Reads(kFirst, 51, 60)}), "erased");
  const Event in_vain{.status = StatusCode::kBusy};
  EXPECT_EQ(FaultsOf({writer, Story().Erases(40, 50, in_vain), Story().Reads(kFirst, 51, 60)}), "");
  // A Commit that had no answer may happen after the erasure.
  for (const StatusCode status : {StatusCode::kBusy, StatusCode::kGone}) {
    const Story late = Story()
                           .Add(EventKind::kReserve, 10, 15, {kFirst})
                           .Add(EventKind::kCommit, 20, 30, {kFirst}, {.status = status});
    EXPECT_EQ(FaultsOf({late, Story().Erases(40, 50), Story().Reads(kFirst, 51, 60)}), "");
  }
}

TEST(ChaosHistory, TheFirstOfManyErasuresCounts) {
  const Story writer = Story().Stores(kFirst).Stores(kSecond, 100);
  const Story eraser = Story().Erases(15, 500).Erases(40, 50).Erases(60, 400).Erases(130, 140);
  EXPECT_EQ(FaultsOf({writer, eraser, Story().Reads(kFirst, 49, 60)}), "");
  EXPECT_EQ(FaultsOf({writer, eraser, Story().Reads(kFirst, 55, 60)}), "erased");
  EXPECT_EQ(FaultsOf({writer, eraser, Story().Reads(kSecond, 125, 150)}), "");
  EXPECT_EQ(FaultsOf({writer, eraser, Story().Reads(kSecond, 145, 150)}), "erased");
}

TEST(ChaosHistory, WhatAFamilyHasInCommonIsOneBlock) {
  const Event shared{.first = 2, .asked = 3, .prompt = kPrompt};
  const Event sibling{.first = 2, .asked = 3, .prompt = kPrompt + 3};
  const Event stranger{.first = 2, .asked = 3, .prompt = kPrompt + 4};
  const Story writer = Story().Stores(kFirst, 10, shared);
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 40, 50, sibling)}), "");
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 40, 50, stranger)}), "unknown");
  EXPECT_EQ(
      FaultsOf({writer, Story().Erases(40, 50, sibling), Story().Reads(kFirst, 60, 70, shared)}),
      "erased");
}

TEST(ChaosHistory, ALeaseThatShowsOtherBytesIsFound) {
  const Story writer = Story().Stores(kFirst).Stores(kSecond, 11);
  EXPECT_EQ(FaultsOf({writer, Story().Reads(kFirst, 40, 50).Holds(kSecond, 60)}), "changed shared")
      << "and two had it to write at once";
  const Event revoked{.status = StatusCode::kGone};
  EXPECT_EQ(
      FaultsOf({Story().Stores(kFirst), Story().Reads(kFirst, 40, 50).Holds(kSecond, 60, revoked)}),
      "");
}

TEST(ChaosHistory, TwoThatWriteOneBlockAreFound) {
  const Story one = Story().Stores(kFirst);
  EXPECT_EQ(FaultsOf({one, Story().Stores(kSecond, 14)}), "shared");
  EXPECT_EQ(FaultsOf({one, Story().Stores(kSecond, 21)}), "");
  EXPECT_EQ(FaultsOf({one, Story()
                               .Add(EventKind::kReserve, 14, 16, {kSecond})
                               .Add(EventKind::kCommit, 25, 28, {kSecond},
                                    {.status = StatusCode::kGone})}),
            "")
      << "its lease may have ended long before";
}

TEST(ChaosHistory, OfASettledDaemonWhatWasReplacedNeverComesBack) {
  const Story writer = Story().Stores(kFirst).Stores(kSecond, 100);
  const std::vector<Story> stories = {writer, Story().Reads(kFirst, 130, 140)};
  EXPECT_EQ(FaultsOf(stories, true), "erased");
  EXPECT_EQ(FaultsOf(stories), "") << "a drive that was away may have it";
}

TEST(ChaosHistory, OfASettledDaemonWhatIsLeasedIsFoundByAll) {
  const Story writer = Story().Stores(kFirst);
  const Story holder = Story().Reads(kFirst, 40, 50).Holds(kFirst, 90);
  const Story misser = Story().Add(EventKind::kRead, 60, 70, {}, {.asked = kBlock + 1});
  EXPECT_EQ(FaultsOf({writer, holder, misser}, true), "lost");
  EXPECT_EQ(FaultsOf({writer, holder, misser}), "");
  EXPECT_EQ(FaultsOf({writer, holder, misser, Story().Erases(65, 66)}, true), "");
  const Story busy =
      Story().Add(EventKind::kRead, 60, 70, {}, {.status = StatusCode::kBusy, .asked = kBlock + 1});
  EXPECT_EQ(FaultsOf({writer, holder, busy}, true), "");
}

TEST(ChaosHistory, IsWrittenAsItIsRead) {
  const std::string path = std::filesystem::temp_directory_path() / "chaos-history-test.history";
  {
    History history(path);
    const size_t read_at = history.Begin({.kind = EventKind::kRead, .asked = 3, .prompt = 7});
    const CommitId ids[] = {1, 2, 3};
    history.End(read_at, {.ids = ids});
    const size_t commit_at = history.Begin({.kind = EventKind::kCommit, .prompt = 8}, ids);
    history.End(commit_at, {.status = StatusCode::kGone, .asked = 2});
    history.Begin({.kind = EventKind::kErase, .asked = 9, .prompt = 9});  // and is killed
  }
  std::vector<uint64_t> words(32);
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(words.data()), 32 * 8);
  std::filesystem::remove(path);
  HistoryReader reader(words);
  EventView view;
  ASSERT_TRUE(reader.Next(&view));
  EXPECT_EQ(view.event.prompt, 7u);
  EXPECT_EQ(view.ids.size(), 3u);
  EXPECT_GE(view.event.ended_ns, view.event.began_ns);
  ASSERT_TRUE(reader.Next(&view));
  EXPECT_EQ(view.event.status, StatusCode::kGone);
  EXPECT_EQ(view.event.asked, 2u);
  ASSERT_TRUE(reader.Next(&view));
  EXPECT_EQ(view.event.kind, EventKind::kErase);
  EXPECT_EQ(view.event.ended_ns, 0u);
  EXPECT_FALSE(reader.Next(&view));
}

}  // namespace
}  // namespace terrace::chaos
