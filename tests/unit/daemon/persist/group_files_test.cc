#include "daemon/persist/group_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "sim/group_keys.h"
#include "unit/include/example_space.h"
#include "unit/include/soon.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

SpaceGroupSpec GroupNamed(const std::string& name, uint32_t layers = 32) {
  SpaceGroupSpec group{.name = name};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    SpaceSpec spec;
    spec.model = "an = odd % name\n";
    spec.revision = "main";
    spec.dtype = "bf16";
    spec.layers = layers;
    spec.kv_heads = 4;
    spec.head_size = 128;
    spec.layout = "nhd";
    spec.block_tokens = 16;
    spec.tp_rank = rank;
    spec.tp_size = 2;
    spec.part_bytes = {4096, 100};
    group.members.push_back({.spec = spec, .is_remote = rank == 1});
  }
  return group;
}

constexpr uint64_t kWaitUs = 60'000'000;

class GroupShelfTest : public testing::Test {
 protected:
  GroupShelfTest() {
    std::string pattern = fs::temp_directory_path() / "terrace-groups-XXXXXX";
    root_ = mkdtemp(pattern.data());
    directory_ = root_ / "groups";
  }
  ~GroupShelfTest() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  DiskGroupFiles::Options OptionsOf(uint32_t groups_max = 256) {
    return {.domains = {{.directory = directory_, .secret = secret_}},
            .groups_max = groups_max,
            .look_interval = std::chrono::hours(1),
            .trouble = [this](const std::string& sentence) { troubles_.push_back(sentence); }};
  }
  std::vector<SpaceGroupSpec> Load() {
    notes_.clear();
    return LoadGroupFiles(directory_, secret_, &notes_);
  }
  fs::path PathOf(const SpaceGroupSpec& spec) const {
    return directory_ / (ToHex(spec.Id()) + ".group");
  }
  void Keep(const std::vector<SpaceGroupSpec>& specs, uint32_t groups_max = 256) {
    DiskGroupFiles files(OptionsOf(groups_max));
    for (const SpaceGroupSpec& spec : specs) files.Keep(0, spec);
    ASSERT_TRUE(files.Drain(kWaitUs));
  }
  static void MakeOld(const fs::path& path, int hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  }

  fs::path root_, directory_;
  DomainSecret secret_ = ExampleSecret();
  std::vector<std::string> notes_, troubles_;
};

bool AreSame(const SpaceGroupSpec& a, const SpaceGroupSpec& b) {
  return a.name == b.name && a.members == b.members;
}

TEST_F(GroupShelfTest, WhatIsKeptIsLoadedWhole) {
  const SpaceGroupSpec group = GroupNamed("llama");
  Keep({group, GroupNamed("other", 33)});
  const std::vector<SpaceGroupSpec> loaded = Load();
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_TRUE(AreSame(loaded[0], group) || AreSame(loaded[1], group));
  EXPECT_TRUE(notes_.empty());
  EXPECT_TRUE(troubles_.empty());
}

TEST_F(GroupShelfTest, NoDirectoryHoldsNoGroups) {
  EXPECT_TRUE(Load().empty());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(GroupShelfTest, DrainGivesUpOnADiskThatHangs) {
  std::promise<void> disk;
  DiskGroupFiles::Options options = OptionsOf();
  options.domains[0].also = [&](const GroupId&, const std::string&) { disk.get_future().wait(); };
  DiskGroupFiles files(std::move(options));
  files.Keep(0, GroupNamed("llama"));
  EXPECT_FALSE(files.Drain(10'000));
  disk.set_value();
  EXPECT_TRUE(files.Drain(kWaitUs));
}

TEST_F(GroupShelfTest, TellsWhenAGroupIsKeptOrCannotBe) {
  DiskGroupFiles::Options options = OptionsOf();
  const DiskGroupFiles* asked = nullptr;
  std::vector<GroupFiles::State> states;
  const SpaceGroupSpec good = GroupNamed("good"), bad = GroupNamed("bad", 33);
  std::promise<void> is_asked;  // until then the bad one is coming
  options.domains[0].also = [&](const GroupId& id, const std::string&) {
    if (id == bad.Id()) is_asked.get_future().wait();
  };
  options.changed = [&](uint32_t) {
    states.push_back(asked->StateOf(0, states.empty() ? good.Id() : bad.Id()));
  };
  DiskGroupFiles files(std::move(options));
  asked = &files;
  files.Keep(0, good);
  ASSERT_TRUE(files.Drain(kWaitUs));
  fs::remove_all(directory_);
  std::ofstream(directory_) << "a file where the directory was";
  files.Keep(0, bad);
  EXPECT_EQ(files.StateOf(0, bad.Id()), GroupFiles::State::kComing);
  is_asked.set_value();
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(states, (std::vector{GroupFiles::State::kKept, GroupFiles::State::kFailed}));
}

TEST_F(GroupShelfTest, NewNameOfAGroupReplacesTheOld) {
  Keep({GroupNamed("before")});
  Keep({GroupNamed("after")});
  const std::vector<SpaceGroupSpec> loaded = Load();
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].name, "after");
}

// The name was given to another spec: blocks of that one are in use.
TEST_F(GroupShelfTest, OfTwoGroupsWithOneNameTheOneOpenedLastComesFirst) {
  for (const bool is_first_older : {true, false}) {
    SpaceGroupSpec first = GroupNamed("llama"), second = first;
    second.members[0].spec.revision = std::string("another");
    Keep({first});
    Keep({second});
    const auto path_of = [this](const SpaceGroupSpec& spec) {
      return root_ / "groups" / (ToHex(spec.Id()) + std::string(kGroupFileSuffix));
    };
    const SpaceGroupSpec& older = is_first_older ? first : second;
    fs::last_write_time(path_of(older), fs::file_time_type::clock::now() - std::chrono::hours(1));
    const std::vector<SpaceGroupSpec> loaded = Load();
    ASSERT_EQ(loaded.size(), 2u);
    EXPECT_EQ(loaded[0].Id(), (is_first_older ? second : first).Id());
  }
}

TEST_F(GroupShelfTest, AnyFlippedBitOfAFileIsFound) {
  const std::string content = FormatGroupFile(GroupNamed("llama"), secret_);
  SpaceGroupSpec spec;
  std::string why;
  ASSERT_TRUE(ParseGroupFile(content, secret_, &spec, &why).ok()) << why;
  for (size_t at = 0; at < content.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = content;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      ASSERT_FALSE(ParseGroupFile(flipped, secret_, &spec, &why).ok()) << at << ' ' << bit;
    }
  }
}

TEST_F(GroupShelfTest, CutOrLengthenedFileIsFound) {
  const std::string content = FormatGroupFile(GroupNamed("llama"), secret_);
  SpaceGroupSpec spec;
  std::string why;
  for (size_t length = 0; length < content.size(); ++length) {
    ASSERT_FALSE(ParseGroupFile(content.substr(0, length), secret_, &spec, &why).ok()) << length;
  }
  EXPECT_FALSE(ParseGroupFile(content + "\n", secret_, &spec, &why).ok());
  std::string other = content.substr(0, content.size() - 22);  // without its seal
  other.replace(other.find("members="), 8, "members=0");
  other += "seal=" + GroupFileSeal(other, secret_) + "\n";
  EXPECT_FALSE(ParseGroupFile(other, secret_, &spec, &why).ok()) << "nobody writes it so";
}

TEST_F(GroupShelfTest, FileOfAnotherDomainIsNotBelieved) {
  SpaceGroupSpec spec;
  std::string why;
  DomainSecret other = secret_;
  other[0] ^= std::byte{1};
  const std::string content = FormatGroupFile(GroupNamed("llama"), other);
  EXPECT_EQ(ParseGroupFile(content, secret_, &spec, &why).code(), StatusCode::kCorrupt);
  EXPECT_NE(why.find("another domain"), std::string::npos) << why;
}

TEST_F(GroupShelfTest, BadFilesAreNotedAndLeftAside) {
  const SpaceGroupSpec good = GroupNamed("good"), torn = GroupNamed("torn", 33),
                       moved = GroupNamed("moved", 34);
  Keep({good, torn, moved});
  fs::resize_file(PathOf(torn), fs::file_size(PathOf(torn)) / 2);
  fs::rename(PathOf(moved), directory_ / (std::string(32, '0') + ".group"));
  std::ofstream(directory_ / "huge.group") << std::string(kGroupFileBytesMax + 1, 'x');
  fs::create_directory(directory_ / "directory.group");
  ASSERT_EQ(mkfifo((directory_ / "fifo.group").c_str(), 0600), 0);
  std::ofstream(directory_ / "draft.group.new") << "half";
  const std::vector<SpaceGroupSpec> loaded = Load();
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].name, "good");
  EXPECT_EQ(notes_.size(), 5u);
  EXPECT_TRUE(fs::exists(PathOf(torn)));
  Keep({torn});  // opened again: mended
  EXPECT_EQ(Load().size(), 2u);
}

TEST_F(GroupShelfTest, GroupOpenedLongestAgoMakesRoom) {
  const SpaceGroupSpec oldest = GroupNamed("oldest", 1), older = GroupNamed("older", 2),
                       recent = GroupNamed("recent", 3);
  Keep({oldest, older, recent});
  MakeOld(PathOf(oldest), 3);
  MakeOld(PathOf(older), 2);
  MakeOld(PathOf(recent), 1);
  Keep({oldest, GroupNamed("new", 4)}, 3);  // opened again: not the oldest any more
  EXPECT_TRUE(fs::exists(PathOf(oldest)));
  EXPECT_FALSE(fs::exists(PathOf(older)));
  EXPECT_TRUE(fs::exists(PathOf(recent)));
  EXPECT_EQ(Load().size(), 3u);
}

// Two daemons that serve from one path in turn, by mistake or for good.
TEST_F(GroupShelfTest, FilesOfAnotherSecretStayAndStandBeside) {
  const DomainSecret ours = secret_;
  DomainSecret theirs = ours;
  theirs[0] ^= std::byte{1};
  const SpaceGroupSpec both = GroupNamed("llama"), old = GroupNamed("old", 2);
  secret_ = theirs;
  Keep({both, old});
  MakeOld(PathOf(old), 3);
  secret_ = ours;
  Keep({both});
  const SpaceGroupSpec kept = GroupNamed("new", 3);
  Keep({kept}, 2);  // two of ours, two of theirs: room enough
  for (const bool is_ours : {true, false}) {
    secret_ = is_ours ? ours : theirs;
    const std::vector<SpaceGroupSpec> loaded = Load();
    ASSERT_EQ(loaded.size(), 2u) << is_ours;
    EXPECT_TRUE(AreSame(loaded[0], both) || AreSame(loaded[1], both)) << is_ours;
    EXPECT_EQ(notes_.size(), 2u) << is_ours;
  }
  secret_ = ours;
  DiskGroupFiles files(OptionsOf());
  files.Keep(0, both);
  files.Drop(0, both.Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(Load().size(), 1u);
  secret_ = theirs;
  EXPECT_EQ(Load().size(), 2u);
}

// As `rm -rf` of a domain's directory does under a daemon that runs.
TEST_F(GroupShelfTest, WhatSomebodyRemovesIsWrittenAgain) {
  const SpaceGroupSpec inherited = GroupNamed("inherited", 33), kept = GroupNamed("kept");
  Keep({inherited});
  DiskGroupFiles::Options options = OptionsOf();
  options.look_interval = std::chrono::milliseconds(5);
  std::mutex mutex;
  std::vector<std::string> told;
  options.trouble = [&](const std::string& sentence) {
    const std::lock_guard lock(mutex);
    told.push_back(sentence);
  };
  DiskGroupFiles files(options);
  files.Inherit(0, inherited);
  files.Keep(0, kept);
  files.Keep(0, GroupNamed("dropped", 34));
  files.Drop(0, GroupNamed("dropped", 34).Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  for (int times = 0; times < 2; ++times) {
    fs::rename(directory_, root_ / std::to_string(times));  // at once
    ASSERT_TRUE(Soon([&] { return fs::exists(PathOf(kept)) && fs::exists(PathOf(inherited)); }));
    ASSERT_TRUE(Soon([&] {
      return !files.IsLost(0, kept.Id()) && !files.IsLost(0, inherited.Id()) &&
             files.StateOf(0, kept.Id()) == GroupFiles::State::kKept;
    }));
    EXPECT_EQ(Load().size(), 2u) << "and nothing that was dropped";
  }
  const std::lock_guard lock(mutex);
  ASSERT_FALSE(told.empty());
  EXPECT_NE(told[0].find("were removed while terraced runs: they are written again"),
            std::string::npos)
      << told[0];
}

// The drive may not be mounted there: what is written would lie in its place.
TEST_F(GroupShelfTest, WhatSomebodyRemovesWithTheDrivesPathIsLostUntilThatIsThere) {
  DiskGroupFiles::Options options = OptionsOf();
  const fs::path drive = root_ / "drive";
  fs::create_directory(drive);
  options.domains[0].directory = drive / "d" / "groups";
  options.domains[0].drive_path = drive;
  options.look_interval = std::chrono::milliseconds(5);
  std::atomic<int> told_count = 0;
  options.trouble = [&](const std::string&) { ++told_count; };
  std::atomic<int> changed_count = 0;
  options.changed = [&](uint32_t) { ++changed_count; };
  const SpaceGroupSpec group = GroupNamed("llama");
  DiskGroupFiles files(options);
  files.Keep(0, group);
  ASSERT_TRUE(files.Drain(kWaitUs));
  fs::rename(drive, root_ / "removed");
  const auto has_failed = [&] {
    return files.IsLost(0, group.Id()) &&
           files.StateOf(0, group.Id()) == GroupFiles::State::kFailed;
  };
  ASSERT_TRUE(Soon(has_failed));
  const int tries = changed_count;
  ASSERT_TRUE(Soon([&] { return changed_count > tries + 4; })) << "it is tried on and on";
  EXPECT_FALSE(fs::exists(drive));
  EXPECT_EQ(told_count, 2) << "that they were removed, and why they are not there again: once";
  fs::create_directory(drive);
  ASSERT_TRUE(Soon([&] { return !files.IsLost(0, group.Id()); }));
  EXPECT_TRUE(fs::exists(drive / "d" / "groups" / (ToHex(group.Id()) + ".group")));
  EXPECT_EQ(files.StateOf(0, group.Id()), GroupFiles::State::kKept);
}

TEST_F(GroupShelfTest, WhatCannotBeWrittenIsSaidAndTriedAgain) {
  std::ofstream(root_ / "groups") << "in the way";
  DiskGroupFiles files(OptionsOf());
  files.Keep(0, GroupNamed("llama"));
  ASSERT_TRUE(files.Drain(kWaitUs));
  ASSERT_EQ(troubles_.size(), 1u);
  EXPECT_NE(troubles_[0].find("llama"), std::string::npos) << troubles_[0];
  EXPECT_EQ(files.StateOf(0, GroupNamed("llama").Id()), GroupFiles::State::kFailed);
  fs::remove(root_ / "groups");
  files.Keep(0, GroupNamed("llama"));
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.StateOf(0, GroupNamed("llama").Id()), GroupFiles::State::kKept);
  EXPECT_EQ(Load().size(), 1u);
}

// The drive was full for a moment, say: an engine opens its group once and runs for weeks.
TEST_F(GroupShelfTest, WhatCannotBeWrittenIsTriedOnAndOnAndToldOnce) {
  std::ofstream(root_ / "groups") << "in the way";
  DiskGroupFiles::Options options = OptionsOf();
  options.look_interval = std::chrono::milliseconds(5);
  std::atomic<int> told_count = 0, changed_count = 0, cataloged_count = 0;
  options.trouble = [&](const std::string&) { ++told_count; };
  options.changed = [&](uint32_t) { ++changed_count; };
  options.domains[0].also = [&](const GroupId&, const std::string&) { ++cataloged_count; };
  const SpaceGroupSpec group = GroupNamed("llama"), dropped = GroupNamed("dropped", 33);
  DiskGroupFiles files(options);
  files.Keep(0, group);
  files.Keep(0, dropped);
  ASSERT_TRUE(Soon([&] { return changed_count > 8; })) << "it is tried on and on";
  EXPECT_EQ(told_count, 2) << "once a group";
  EXPECT_EQ(cataloged_count, 2);
  GroupFilesTrouble trouble = files.TroubleOf(0);
  EXPECT_EQ(trouble.groups_not_kept, 2u);
  EXPECT_EQ(trouble.directory, directory_);
  EXPECT_NE(trouble.why_not_kept.find("cannot make the directory of groups"), std::string::npos)
      << trouble.why_not_kept;
  files.Drop(0, dropped.Id());
  EXPECT_EQ(files.TroubleOf(0).groups_not_kept, 1u);
  fs::remove(root_ / "groups");
  ASSERT_TRUE(Soon([&] { return files.StateOf(0, group.Id()) == GroupFiles::State::kKept; }));
  ASSERT_TRUE(Soon([&] { return files.TroubleOf(0).groups_not_kept == 0; }));
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(Load().size(), 1u) << "and nothing that was dropped";
}

// What holds one writer up for a moment, as a read-only file system does.
class KeyedShelfTest : public GroupShelfTest {
 protected:
  KeyedShelfTest() {
    options_.domains[0].keys = &keys_;
    options_.look_interval = std::chrono::milliseconds(5);
    options_.trouble = [this](const std::string&) { ++told_count_; };
    options_.changed = [this](uint32_t) { ++changed_count_; };
  }

  std::atomic<bool> may_erase_ = true, may_wrap_ = true;
  std::atomic<int> told_count_ = 0, changed_count_ = 0;
  GroupKeyFiles keys_{
      {.directory = root_ / "keys",
       .ring = std::make_shared<const KeyRing>(std::vector<CipherKey>{sim::KeyFrom(5)}),
       .may_go_on = [this](GroupKeyStep step) {
         if (step == GroupKeyStep::kPlaceWritten) return may_wrap_.load();
         return may_erase_ || step != GroupKeyStep::kErasedInPlace;
       }}};
  DiskGroupFiles::Options options_ = OptionsOf();
  const SpaceGroupSpec group_ = GroupNamed("llama");
};

TEST_F(KeyedShelfTest, AKeyThatCouldNotBeErasedIsErasedOnceItCanBe) {
  DiskGroupFiles files(options_);
  files.Keep(0, group_);
  ASSERT_TRUE(files.Drain(kWaitUs));
  may_erase_ = false;
  files.DestroyKey(0, group_.Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  const int tries = changed_count_;
  ASSERT_TRUE(Soon([&] { return changed_count_ > tries + 4; })) << "it is tried on and on";
  EXPECT_FALSE(files.AreKeysDestroyed(0));
  EXPECT_EQ(keys_.Find(group_.Id()), nullptr);
  GroupFilesTrouble trouble = files.TroubleOf(0);
  EXPECT_EQ(trouble.keys_not_erased, 1u);
  EXPECT_EQ(trouble.groups_not_kept, 1u) << "nothing is written under a key that is destroyed";
  EXPECT_NE(trouble.why_not_erased.find("Input/output error"), std::string::npos);
  may_erase_ = true;
  ASSERT_TRUE(Soon([&] { return files.StateOf(0, group_.Id()) == GroupFiles::State::kKept; }));
  ASSERT_TRUE(Soon([&] { return files.TroubleOf(0).groups_not_kept == 0; }));
  EXPECT_TRUE(files.AreKeysDestroyed(0));
  EXPECT_EQ(files.TroubleOf(0).keys_not_erased, 0u);
  EXPECT_NE(keys_.Find(group_.Id()), nullptr) << "another one";
  EXPECT_EQ(told_count_, 1) << "that it is not erased";
}

TEST_F(KeyedShelfTest, AKeyThatCouldNotBeWrappedAnewIsOnceItCanBe) {
  DiskGroupFiles files(options_);
  files.Keep(0, group_);
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.TroubleOf(0).key_files_not_wrapped, 0u);
  may_wrap_ = false;
  std::atomic<size_t> note_count = 0;
  files.SetRing(0, std::make_shared<const KeyRing>(std::vector<CipherKey>{sim::KeyFrom(6)}),
                [&](const std::vector<std::string>& notes) { note_count = notes.size(); });
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(note_count, 1u);
  const GroupFilesTrouble trouble = files.TroubleOf(0);
  EXPECT_EQ(trouble.key_files_not_wrapped, 1u);
  EXPECT_EQ(trouble.keys_needed,
            KeyIdText(KeyRing(std::vector<CipherKey>{sim::KeyFrom(5)}).first()));
  EXPECT_NE(trouble.why_not_wrapped.find("Input/output error"), std::string::npos);
  may_wrap_ = true;
  ASSERT_TRUE(Soon([&] { return files.TroubleOf(0).key_files_not_wrapped == 0; }));
}

// The key is to be destroyed while the group's files are being written.
TEST_F(KeyedShelfTest, AnErasureBehindAnOpenIsNoTrouble) {
  std::promise<void> disk;
  std::shared_future<void> goes_on = disk.get_future().share();
  std::atomic<bool> is_writing = false;
  options_.domains[0].also = [&](const GroupId&, const std::string&) {
    is_writing = true;
    goes_on.wait();
  };
  DiskGroupFiles files(options_);
  files.Keep(0, group_);
  while (!is_writing) std::this_thread::yield();
  files.DestroyKey(0, group_.Id());
  disk.set_value();
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.StateOf(0, group_.Id()), GroupFiles::State::kKept);
  EXPECT_TRUE(files.AreKeysDestroyed(0));
  EXPECT_NE(keys_.Find(group_.Id()), nullptr) << "another one";
  EXPECT_EQ(told_count_, 0) << "nothing has failed";
}

// Of a group that nobody has open any more.
TEST_F(KeyedShelfTest, AKeyOfADroppedGroupIsErasedOnceItCanBe) {
  DiskGroupFiles files(options_);
  files.Keep(0, group_);
  ASSERT_TRUE(files.Drain(kWaitUs));
  may_erase_ = false;
  files.Drop(0, group_.Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_FALSE(files.AreKeysDestroyed(0));
  EXPECT_EQ(files.TroubleOf(0).groups_not_kept, 0u);
  may_erase_ = true;
  ASSERT_TRUE(Soon([&] { return files.AreKeysDestroyed(0); }));
  EXPECT_TRUE(fs::is_empty(root_ / "keys"));
}

TEST_F(GroupShelfTest, ADroppedGroupLeavesNothingBehind) {
  std::vector<std::string> told;
  DiskGroupFiles::Options options = OptionsOf();
  options.domains[0].also = [&](const GroupId&, const std::string& content) {
    told.push_back(content);
  };
  DiskGroupFiles files(options);
  const SpaceGroupSpec group = GroupNamed("llama"), other = GroupNamed("other", 33);
  files.Keep(0, group);
  files.Keep(0, other);
  ASSERT_TRUE(files.Drain(kWaitUs));
  files.Drop(0, group.Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.StateOf(0, group.Id()), GroupFiles::State::kFailed);
  EXPECT_FALSE(fs::exists(PathOf(group)));
  EXPECT_TRUE(fs::exists(PathOf(other)));
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[2], "") << "the catalog forgets it, too";
  files.Keep(0, group);
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.StateOf(0, group.Id()), GroupFiles::State::kKept);
  EXPECT_EQ(Load().size(), 2u);
}

// A file of an earlier run, of a group that nobody has opened since.
TEST_F(GroupShelfTest, AGroupIsDroppedWhoeverKeptIt) {
  Keep({GroupNamed("llama")});
  DiskGroupFiles files(OptionsOf());
  files.Drop(0, GroupNamed("llama").Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_TRUE(Load().empty());
}

TEST_F(GroupShelfTest, ADropWhileTheDiskHangsConcernsWhatWasKeptBefore) {
  std::promise<void> disk;
  std::shared_future<void> goes_on = disk.get_future().share();
  std::atomic<bool> is_hanging = false;
  DiskGroupFiles::Options options = OptionsOf();
  options.domains[0].also = [&](const GroupId&, const std::string&) {
    is_hanging = true;
    goes_on.wait();
  };
  DiskGroupFiles files(std::move(options));
  const SpaceGroupSpec written = GroupNamed("written"), queued = GroupNamed("queued", 33),
                       again = GroupNamed("again", 34);
  files.Keep(0, written);
  while (!is_hanging) std::this_thread::yield();
  for (const SpaceGroupSpec& group : {queued, again}) files.Keep(0, group);
  for (const SpaceGroupSpec& group : {written, queued, again}) files.Drop(0, group.Id());
  files.Keep(0, again);
  EXPECT_EQ(files.StateOf(0, written.Id()), GroupFiles::State::kFailed);
  EXPECT_EQ(files.StateOf(0, queued.Id()), GroupFiles::State::kFailed);
  EXPECT_EQ(files.StateOf(0, again.Id()), GroupFiles::State::kComing);
  disk.set_value();
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.StateOf(0, written.Id()), GroupFiles::State::kFailed);
  EXPECT_EQ(files.StateOf(0, again.Id()), GroupFiles::State::kKept);
  const std::vector<SpaceGroupSpec> loaded = Load();
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].name, "again");
}

// What was begun before the drop says nothing of what was kept after it.
TEST_F(GroupShelfTest, AGroupThatIsKeptAgainIsComingUntilItIsWrittenAgain) {
  std::mutex mutex;
  std::condition_variable changed;
  int begun = 0, allowed = 0, forgotten = 0;
  DiskGroupFiles::Options options = OptionsOf();
  options.domains[0].also = [&](const GroupId&, const std::string& content) {
    std::unique_lock lock(mutex);
    ++begun;
    forgotten += content.empty() ? 1 : 0;
    changed.notify_all();
    changed.wait(lock, [&] { return allowed >= begun; });
  };
  DiskGroupFiles files(std::move(options));
  const SpaceGroupSpec group = GroupNamed("llama");
  files.Keep(0, group);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun == 1; });
  }
  files.Drop(0, group.Id());
  files.Keep(0, group);
  {
    std::unique_lock lock(mutex);
    allowed = 1;
    changed.notify_all();
    changed.wait(lock, [&] { return begun == 2; });
  }
  EXPECT_EQ(files.StateOf(0, group.Id()), GroupFiles::State::kComing);
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(forgotten, 0) << "it was back before anybody looked";
    allowed = 1000;
    changed.notify_all();
  }
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_EQ(files.StateOf(0, group.Id()), GroupFiles::State::kKept);
}

TEST_F(GroupShelfTest, GroupsThatComeAndGoTakeNoRoom) {
  DiskGroupFiles files(OptionsOf(/*groups_max=*/3));
  for (uint32_t i = 0; i < 20; ++i) {
    const SpaceGroupSpec group = GroupNamed(std::to_string(i), 1 + i);
    files.Keep(0, group);
    files.Drop(0, group.Id());
    ASSERT_TRUE(files.Drain(kWaitUs));
  }
  // Where each Drop overtook its Keep nothing was ever written.
  EXPECT_TRUE(!fs::exists(directory_) || fs::is_empty(directory_));
}

TEST_F(GroupShelfTest, CatalogIsToldOncePerRun) {
  std::map<std::string, std::string> told;
  int times = 0;
  DiskGroupFiles::Options options = OptionsOf();
  options.domains[0].also = [&](const GroupId& id, const std::string& content) {
    told[ToHex(id)] = content;
    ++times;
  };
  {
    DiskGroupFiles files(options);
    files.Keep(0, GroupNamed("llama"));
    files.Keep(0, GroupNamed("llama"));
  }
  EXPECT_EQ(times, 1);
  EXPECT_EQ(told[ToHex(GroupNamed("llama").Id())], FormatGroupFile(GroupNamed("llama"), secret_));
}

}  // namespace
}  // namespace terrace
