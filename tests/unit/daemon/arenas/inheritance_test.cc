// One daemon after the other, and what the first leaves in other hands.
#include "daemon/arenas/inheritance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/socket/peer.h"
#include "huge_pages.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::UnorderedElementsAre;

// Whoever holds descriptors, as long as the test lasts.
struct Hands {
  ~Hands() {
    for (const auto& [name, fd] : held) close(fd);
  }
  void Drop(const std::string& name) {
    const auto found = held.find(name);
    if (found == held.end()) return;
    close(found->second);
    held.erase(found);
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& [name, fd] : held) names.insert(name);
    return names;
  }
  std::map<std::string, int> held;
};

class InHands final : public FdStore {
 public:
  explicit InHands(Hands& hands) : hands_(hands) {}
  std::string_view holder() const override { return "keeper"; }
  Status TakeAll(std::map<std::string, int>* fds, std::string*) override {
    for (const auto& [name, fd] : hands_.held) (*fds)[name] = dup(fd);
    return Status::Ok();
  }
  void Put(const std::string& name, int fd) override {
    hands_.Drop(name);
    hands_.held[name] = dup(fd);
  }
  void Drop(const std::string& name) override { hands_.Drop(name); }
  void Retry() override {}
  bool is_holding() const override { return true; }

 private:
  Hands& hands_;
};

// A daemon of one domain, as far as this goes.
struct Daemon {
  explicit Daemon(Hands& hands, const std::string& domain = "a", uint32_t segments = 4)
      : arena({.domain_name = domain,
               .segment_bytes = kSegmentBytesMin,
               .segments_max = segments,
               .segments_expected = 1,
               .hugepages = HugePages::kOff},
              [this](std::function<void()> work) { asio::post(loop, std::move(work)); },
              {.on_populated = [](uint32_t, Status) {}, .on_punched = [](uint32_t, Status) {}}),
        inheritance(loop, std::make_unique<InHands>(hands),
                    [this](uint32_t, SessionId session) { ended.push_back(session); }) {
    std::string why;
    EXPECT_TRUE(inheritance.Take(&why).ok()) << why;
    DomainArena* const arenas[] = {&arena};
    EXPECT_TRUE(inheritance.Furnish(arenas, &why).ok()) << why;
    inheritance.Settle();
    inheritance.BeginWatch();
  }
  // Whatever has happened is heard.
  const std::vector<SessionId>& Ended() {
    loop.restart();
    loop.poll();
    return ended;
  }

  asio::io_context loop;
  DomainArena arena;
  std::vector<SessionId> ended;
  Inheritance inheritance;
};

// A client's life socket, its end open as long as this.
struct Life {
  Life() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0); }
  ~Life() {
    close(ends[0]);
    End();
  }
  void SayGoodbye() const { EXPECT_EQ(send(ends[1], "x", 1, 0), 1); }
  void End() {
    if (ends[1] >= 0) close(std::exchange(ends[1], -1));
  }
  int ours() const { return ends[0]; }

  int ends[2];
};

// A process, and a pidfd of it.
struct Process {
  Process() : pid(fork()) {
    if (pid == 0) {
      closefrom(3);  // the sockets of the test
      pause();
      _exit(0);
    }
    pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  }
  ~Process() {
    if (pid > 0) Kill();
    close(pidfd);
  }
  void Kill() {
    kill(pid, SIGKILL);
    waitpid(std::exchange(pid, -1), nullptr, 0);
  }

  pid_t pid;
  int pidfd = -1;
};

TEST(Inheritance, ANewArenaIsHeldFromTheStart) {
  Hands hands;
  Daemon first(hands);
  EXPECT_FALSE(first.inheritance.is_adopted(0));
  EXPECT_THAT(hands.Names(), IsSupersetOf({"arena.a.0", "slots.a"}));
}

TEST(Inheritance, ASuccessorGetsTheSameMemory) {
  Hands hands;
  {
    Daemon first(hands);
    first.arena.arena().slot_table()[5] = std::byte{42};
  }
  Daemon second(hands);
  EXPECT_TRUE(second.inheritance.is_adopted(0));
  EXPECT_EQ(second.arena.arena().slot_table()[5], std::byte{42});
  EXPECT_THAT(second.inheritance.SessionsOf(0), IsEmpty());
}

TEST(Inheritance, WithoutAPidfdTheEndOfTheLifeSocketIsTheProof) {
  Hands hands;
  Life life;
  Daemon(hands).inheritance.NoteSession(0, 77, -1, life.ours());
  Daemon second(hands);
  EXPECT_THAT(second.inheritance.SessionsOf(0), ElementsAre(77));
  EXPECT_THAT(second.Ended(), IsEmpty());
  life.End();
  EXPECT_THAT(second.Ended(), ElementsAre(77));
  EXPECT_THAT(second.arena.arena().NotedSessions(), IsEmpty());
  EXPECT_EQ(hands.Names().count("lone.77"), 0u);
}

// A dying process closes its sockets before its devices.
TEST(Inheritance, WithAPidfdItProvesNothing) {
  Hands hands;
  Life life;
  Process process;
  Daemon(hands).inheritance.NoteSession(0, 78, process.pidfd, life.ours());
  Daemon second(hands);
  life.End();
  EXPECT_THAT(second.Ended(), IsEmpty());
  process.Kill();
  EXPECT_THAT(second.Ended(), ElementsAre(78));
}

TEST(Inheritance, GoodbyesOfTheTimeBetweenAreHeard) {
  Hands hands;
  Life life;
  Process process;
  Daemon(hands).inheritance.NoteSession(0, 79, process.pidfd, life.ours());
  life.SayGoodbye();
  EXPECT_EQ(ReadLife(life.ours()), LifeSign::kGoodbye);  // whoever looks first
  Daemon second(hands);
  EXPECT_THAT(second.Ended(), ElementsAre(79));
}

TEST(Inheritance, SessionsLastOverTwoCrashes) {
  Hands hands;
  Life first_life, second_life;
  Daemon(hands).inheritance.NoteSession(0, 1, -1, first_life.ours());
  Daemon(hands).inheritance.NoteSession(0, 2, -1, second_life.ours());
  Daemon third(hands);
  EXPECT_THAT(third.inheritance.SessionsOf(0), UnorderedElementsAre(1, 2));
}

TEST(Inheritance, ForgottenSessionsAreNotWaitedFor) {
  Hands hands;
  Life life;
  Process process;
  {
    Daemon first(hands);
    first.inheritance.NoteSession(0, 80, process.pidfd, life.ours());
    first.inheritance.ForgetSession(80);
  }
  EXPECT_THAT(hands.Names(), UnorderedElementsAre("arena.a.0", "slots.a"));
  Daemon second(hands);
  EXPECT_TRUE(second.inheritance.is_adopted(0));
  EXPECT_THAT(second.inheritance.SessionsOf(0), IsEmpty());
}

class InheritanceLost : public testing::TestWithParam<const char*> {};

TEST_P(InheritanceLost, ASessionNobodyCanWatchMeansAColdStart) {
  Hands hands;
  Life life, lone;
  Process process;
  {
    Daemon first(hands);
    first.inheritance.NoteSession(0, 81, process.pidfd, life.ours());
    first.inheritance.NoteSession(0, 82, -1, lone.ours());
    first.arena.arena().slot_table()[5] = std::byte{42};
  }
  hands.Drop(GetParam());
  Daemon second(hands);
  EXPECT_FALSE(second.inheritance.is_adopted(0));
  EXPECT_EQ(second.arena.arena().slot_table()[5], std::byte{0});
  EXPECT_THAT(hands.Names(), UnorderedElementsAre("arena.a.0", "slots.a"));
  Daemon third(hands);
  EXPECT_TRUE(third.inheritance.is_adopted(0));
}

INSTANTIATE_TEST_SUITE_P(Of, InheritanceLost, testing::Values("peer.81", "lone.82"),
                         [](const auto& info) { return std::string(info.param, 4); });

// With the goodbye lost, its process's end still tells.
TEST(Inheritance, APidfdAloneWillDo) {
  Hands hands;
  Life life;
  Process process;
  Daemon(hands).inheritance.NoteSession(0, 83, process.pidfd, life.ours());
  hands.Drop("life.83");
  Daemon second(hands);
  ASSERT_TRUE(second.inheritance.is_adopted(0));
  process.Kill();
  EXPECT_THAT(second.Ended(), ElementsAre(83));
}

TEST(Inheritance, WhatNoDomainWantsIsDropped) {
  Hands hands;
  Life life;
  Daemon(hands, "gone").inheritance.NoteSession(0, 84, -1, life.ours());
  Daemon second(hands, "a");
  EXPECT_FALSE(second.inheritance.is_adopted(0));
  EXPECT_THAT(hands.Names(), UnorderedElementsAre("arena.a.0", "slots.a"));
}

constexpr uint32_t kHugePagesMax = 64;

// Domains of segments of one huge page, side by side.
struct HugeDomains {
  HugeDomains(Hands& hands, HugePages hugepages, const std::vector<std::string>& names,
              uint32_t segments_expected, bool may_adopt = true)
      : inheritance(
            loop, std::make_unique<InHands>(hands), [](uint32_t, SessionId) {},
            [may_adopt](uint32_t, uint64_t) { return may_adopt; }) {
    std::vector<DomainArena*> all;
    for (const std::string& name : names) {
      arenas.push_back(std::make_unique<DomainArena>(
          DomainArena::Options{.domain_name = name,
                               .segment_bytes = kSegmentBytesMin,
                               .segments_max = kHugePagesMax,
                               .segments_expected = segments_expected,
                               .hugepages = hugepages},
          [this](std::function<void()> work) { asio::post(loop, std::move(work)); },
          DomainArena::Events{
              .on_populated = [this](uint32_t, Status status) { populated = status; },
              .on_punched = [](uint32_t, Status) {}}));
      all.push_back(arenas.back().get());
    }
    EXPECT_TRUE(inheritance.Take(&why).ok()) << why;
    has_started = inheritance.Furnish(all, &why).ok();
    if (has_started) inheritance.Settle();
  }
  Status Populate(size_t index, uint32_t segment) {
    populated.reset();
    arenas[index]->BeginPopulate(segment);
    loop.restart();
    const auto work = asio::make_work_guard(loop);
    while (!populated) loop.run_one();
    return *populated;
  }
  bool IsHuge(size_t index) const {
    return arenas[index]->arena().backing() == ArenaBacking::kHugetlb;
  }

  asio::io_context loop;
  std::vector<std::unique_ptr<DomainArena>> arenas;
  Inheritance inheritance;
  std::string why;
  bool has_started = false;
  std::optional<Status> populated;  // as the segment that was asked for last
};

void Expect(bool holds, const std::string& why) {
  if (!holds) throw std::runtime_error(why);
}

// `body` is told how many huge pages are free. Others on the machine take some at any time, or give
// them back, so what does not hold is tried again.
void WithHugePages(const std::function<void(uint32_t free)>& body) {
  test::HugePages pool;
  if (!pool.Take(8)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  std::string why;
  for (int tries = 0; tries < 40; ++tries) {
    const uint32_t free = test::HugePages::FreeCount();
    try {
      if (free >= 8 && free < kHugePagesMax) return body(free);
    } catch (const std::runtime_error& mismatch) {
      why = mismatch.what();
    }
    usleep(50'000);
  }
  if (why.empty()) GTEST_SKIP() << "others have them";
  ADD_FAILURE() << why;
}

TEST(Inheritance, NewArenasAreOfHugePagesIfThereAreEnoughForAllOfThem) {
  WithHugePages([](uint32_t free) {
    const uint32_t half = free / 2;
    for (const HugePages choice : {HugePages::kOn, HugePages::kAuto}) {
      Hands hands;
      const HugeDomains enough(hands, choice, {"a", "b"}, half);
      Expect(enough.has_started, enough.why);
      Expect(enough.IsHuge(0) && enough.IsHuge(1), "not all are huge");
    }
    Hands hands;
    const HugeDomains refused(hands, HugePages::kOn, {"a", "b"}, half + 1);
    Expect(!refused.has_started, "is not refused");
    Expect(refused.why.find("domain a: no " + std::to_string(2 * half + 2) + " free") !=
               refused.why.npos,
           refused.why);
    Expect(test::HugePages::FreeCount() == free, "what it had claimed is free again");
    const HugeDomains small(hands, HugePages::kAuto, {"a", "b"}, half + 1);
    Expect(small.has_started, small.why);
    Expect(!small.IsHuge(0) && !small.IsHuge(1), "all or none");
  });
}

// Whatever the order of the domains: what is left comes first, then what others need.
TEST(Inheritance, AnArenaThatIsTakenOverStillCountsOnItsHugePages) {
  WithHugePages([](uint32_t free) {
    Hands hands;
    Expect(HugeDomains(hands, HugePages::kOn, {"a"}, 4).has_started, "a does not start");
    for (const std::vector<std::string>& names :
         {std::vector<std::string>{"a", "b"}, std::vector<std::string>{"b", "a"}}) {
      for (const uint32_t expected : {free / 2, free / 2 + 1}) {  // one of a's is claimed
        Hands same;
        for (const auto& [name, fd] : hands.held) same.held[name] = dup(fd);
        const HugeDomains domains(same, HugePages::kOn, names, expected);
        Expect(domains.has_started == (expected == free / 2), names[0] + ": " + domains.why);
      }
    }
  });
}

// Of all huge pages there are: the first gives back what the other is to have.
TEST(Inheritance, ANewArenaWaitsForHugePagesThatAnotherIsToGiveBack) {
  WithHugePages([](uint32_t free) {
    Hands hands;
    {
      HugeDomains first(hands, HugePages::kOn, {"a"}, free);
      Expect(first.has_started, first.why);
      for (uint32_t segment = 0; segment < free; ++segment) {
        Expect(first.Populate(0, segment).ok(), "there is no memory");
      }
    }
    Expect(test::HugePages::FreeCount() == 0, "some are left");
    HugeDomains both(hands, HugePages::kOn, {"b", "a"}, free / 2);
    Expect(both.has_started, both.why);
    Expect(both.IsHuge(0) && both.IsHuge(1), "not all are huge");
    Expect(both.arenas[1]->SegmentsOwed() == int64_t{free / 2} - free, "what a is to give back");
    Expect(!both.Populate(0, 0).ok(), "not yet");
    const std::set<std::string> before = hands.Names();
    const HugeDomains more(hands, HugePages::kOn, {"c", "b", "a"}, free / 2);
    Expect(!more.has_started, "what a gives back is b's");
    Expect(hands.Names() == before, "a start that is refused costs nothing");
    // So do those of domains that are gone, and of memory that must not be used: the keeper lets go
    // of them a little later.
    Expect(HugeDomains(hands, HugePages::kOn, {"c", "d"}, free / 2).has_started,
           "what is let go of does not count");
  });
}

TEST(Inheritance, HugePagesOfAnArenaThatIsNotTakenOverComeBack) {
  WithHugePages([](uint32_t free) {
    Hands hands;
    {
      HugeDomains first(hands, HugePages::kOn, {"a", "b"}, free / 2);
      Expect(first.has_started, first.why);
      for (uint32_t segment = 0; segment < free / 2; ++segment) {
        Expect(first.Populate(0, segment).ok(), "there is no memory");
        Expect(first.Populate(1, segment).ok(), "there is no memory");
      }
    }
    for (const HugePages choice : {HugePages::kOn, HugePages::kAuto}) {
      Hands same;
      for (const auto& [name, fd] : hands.held) same.held[name] = dup(fd);
      HugeDomains second(same, choice, {"a", "b"}, free / 2, false);
      Expect(second.has_started, second.why);
      Expect(second.IsHuge(0) && second.IsHuge(1), "not all are huge");
      Expect(!second.inheritance.is_adopted(0) && !second.inheritance.is_adopted(1),
             "memory that missed an erasure is taken over");
    }
  });
}

TEST(Inheritance, AnArenaOfAnotherShapeIsReplaced) {
  Hands hands;
  Daemon(hands, "a", 4);
  Daemon second(hands, "a", 6);
  EXPECT_FALSE(second.inheritance.is_adopted(0));
  EXPECT_THAT(hands.Names(), UnorderedElementsAre("arena.a.0", "slots.a"));
  EXPECT_TRUE(Daemon(hands, "a", 6).inheritance.is_adopted(0));
}

}  // namespace
}  // namespace terrace
