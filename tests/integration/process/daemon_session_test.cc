// Sessions of a real terraced, spoken to in frames by hand.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <vector>

#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"

namespace terrace::test {
namespace {

using protocol::Verb;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSlotBytes = 4096;

nlohmann::json StatsOf(RawClient& client) {
  return nlohmann::json::parse(client.Call(Verb::kStats, BytesOf(protocol::StatsRequest{})).text());
}

// Asks until it is so; false after ten seconds.
bool Eventually(const std::function<bool()>& is_so) {
  for (int i = 0; i < 2000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class DaemonSession : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.StartReady()) << daemon_.Errors();
    ASSERT_TRUE(client_.Attach(daemon_.socket_path()));
    group_ = client_.Open("g", kSlotBytes);
    ASSERT_NE(group_, 0u);
  }
  nlohmann::json Stats() { return StatsOf(client_); }
  // Waits until a field of the domain's statistics has a value.
  bool EventuallyDomain(const std::string& field, uint64_t value) {
    if (Eventually([&] { return Stats()["domain"][field] == value; })) return true;
    ADD_FAILURE() << field << " is " << Stats()["domain"][field] << ", not " << value;
    return false;
  }

  DaemonProcess daemon_;
  RawClient client_;
  uint32_t group_ = 0;
};

TEST_F(DaemonSession, SmokeStoreAndAcquire) {
  const auto keys = MakeKeys(100, 1);
  EXPECT_EQ(Store(client_, group_, keys).sealed_count, 100u);
  const RawReply acquired = client_.CallKeys(Verb::kAcquire, group_, keys);
  ASSERT_EQ(acquired.status(), StatusCode::kOk) << acquired.text();
  const auto head = acquired.At<protocol::AcquireReply>();
  EXPECT_EQ(head.block_count, 100u);
  EXPECT_EQ(head.slot_count, 100u);
  const RawReply released =
      client_.Call(Verb::kRelease, BytesOf(protocol::ReleaseRequest{.token = head.token}));
  EXPECT_EQ(released.status(), StatusCode::kOk);
  EXPECT_EQ(Stats()["domain"]["block_count"], 100);
}

// 65,536 blocks of 16 tokens, and 262,144 of 4: key lists and replies of many pages.
TEST(DaemonPrompts, AMillionTokensAreStoredAndAcquiredInOneRequestEach) {
  for (const size_t count : {65'536u, 262'144u}) {
    DaemonProcess daemon;
    const size_t segments = count * kSlotBytes / (256 << 20);
    ASSERT_TRUE(daemon.StartReady({.dram_bytes = std::to_string((segments + 1) * 256) + "MiB",
                                   .segment_bytes = "256MiB",
                                   .segments_spare = static_cast<uint32_t>(segments)}))
        << daemon.Errors();
    RawClient client;
    ASSERT_TRUE(client.Attach(daemon.socket_path()));
    const uint32_t group = client.Open("g", kSlotBytes);
    ASSERT_TRUE(
        Eventually([&] { return StatsOf(client)["domain"]["segments_populated"] >= segments; }));
    const auto keys = MakeKeys(count, 1);
    EXPECT_EQ(Store(client, group, keys).sealed_count, count);
    const RawReply acquired = client.CallKeys(Verb::kAcquire, group, keys);
    ASSERT_EQ(acquired.status(), StatusCode::kOk) << acquired.text();
    const auto head = acquired.At<protocol::AcquireReply>();
    EXPECT_EQ(head.block_count, count);
    EXPECT_EQ(acquired.body.size(), sizeof(head) + head.span_count * sizeof(protocol::BlockSpan) +
                                        count * sizeof(SlotAddress));
    EXPECT_GT(acquired.body.size(), protocol::kFrameBytesMax / 2) << "a reply of several pages";
  }
}

TEST_F(DaemonSession, ALongRequestDoesNotHoldUpOthers) {
  const auto many = MakeKeys(262'144, 9);
  RawClient bystander;
  ASSERT_TRUE(bystander.Attach(daemon_.socket_path()));
  client_.SendKeys(Verb::kQuery, group_, many);
  const RawReply stats = bystander.Call(Verb::kStats, BytesOf(protocol::StatsRequest{}));
  EXPECT_EQ(stats.status(), StatusCode::kOk);
  const auto queried = client_.Receive();
  ASSERT_TRUE(queried.has_value());
  EXPECT_EQ(queried->body.size(), many.size() * sizeof(protocol::QueriedBlock));
}

TEST_F(DaemonSession, AMalformedFrameIsAnsweredAndTheConnectionEnds) {
  protocol::FrameHeader header{.frame_bytes = 16, .verb = static_cast<Verb>(99), .request_id = 7};
  client_.SendBytes(BytesOf(header));
  const auto reply = client_.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status(), StatusCode::kInvalid);
  EXPECT_EQ(reply->header.request_id, 7u);
  EXPECT_THAT(reply->text(), HasSubstr("verb 99"));
  EXPECT_TRUE(client_.IsEnded());
}

TEST_F(DaemonSession, ABadArgumentLeavesTheSessionAlive) {
  const RawReply bad = client_.CallKeys(Verb::kMatch, 77, MakeKeys(1, 1));
  EXPECT_EQ(bad.status(), StatusCode::kInvalid);
  EXPECT_THAT(bad.text(), HasSubstr("group handle 77"));
  EXPECT_EQ(client_.CallKeys(Verb::kMatch, group_, MakeKeys(1, 1)).status(), StatusCode::kOk);
}

TEST_F(DaemonSession, AnotherSpecUnderAKnownNameIsRefusedWithBothValues) {
  RawClient other;
  ASSERT_TRUE(other.Attach(daemon_.socket_path()));
  EXPECT_EQ(other.Open("g", 8192), 0u);
  EXPECT_THAT(other.last_text(),
              AllOf(HasSubstr("part_bytes"), HasSubstr("1x4096"), HasSubstr("1x8192")));
  EXPECT_NE(other.Open("g", kSlotBytes), 0u) << "the same spec is the same group";
}

// Whoever talks nonsense as fast as he can: the log has a line a second of it, which counts the
// rest.
TEST_F(DaemonSession, ClientsThatAreClosedDoNotFloodTheLog) {
  constexpr int kClients = 200;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kClients; ++i) {
    RawClient nonsense;
    ASSERT_TRUE(nonsense.Attach(daemon_.socket_path()));
    nonsense.SendBytes(std::vector<std::byte>(64, std::byte{0xff}));
    ASSERT_TRUE(nonsense.Receive().has_value()) << "why it is closed";
    ASSERT_TRUE(nonsense.IsEnded());
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began);
  daemon_.Signal(SIGTERM);  // what is queued is written
  ASSERT_EQ(daemon_.Wait(), 0);
  const std::string log = daemon_.Errors();
  int64_t lines = 0;
  for (size_t at = 0; (at = log.find("session closed", at)) != log.npos; ++at) ++lines;
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 2 + seconds.count());
}

// PROMISE: T35 descriptors
TEST_F(DaemonSession, DescriptorsOfAClientNeverArrive) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const protocol::FrameHeader header{.frame_bytes = sizeof(header) + sizeof(protocol::StatsRequest),
                                     .verb = Verb::kStats,
                                     .request_id = 500};
  std::byte frame[sizeof(header) + sizeof(protocol::StatsRequest)] = {};
  std::memcpy(frame, &header, sizeof(header));
  iovec piece{frame, sizeof(frame)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{.msg_iov = &piece, .msg_iovlen = 1};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &ends[1], sizeof(int));
  const ssize_t sent = sendmsg(client_.fd(), &message, MSG_NOSIGNAL);
  close(ends[1]);
  // A kernel that can refuses at the sender; else the descriptor is dropped on receipt, and the
  // connection with it.
  if (sent > 0) {
    EXPECT_TRUE(client_.IsEnded());
  }
  std::byte byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "nobody holds the pipe's other end";
  close(ends[0]);
}

// `count` copies of `fd` with one message; whether it left.
bool SendDescriptors(int socket_fd, int fd, size_t count, std::span<const std::byte> bytes) {
  std::vector<int> fds(count, fd);
  std::vector<std::byte> control(CMSG_SPACE(count * sizeof(int)));
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{.msg_iov = &piece, .msg_iovlen = 1};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(rights), fds.data(), count * sizeof(int));
  return sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

size_t FdCountOf(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd";
  const std::filesystem::directory_iterator fds(path);
  return static_cast<size_t>(std::distance(begin(fds), end(fds)));
}

// Before a Hello, with half a frame, and behind whole requests; several before the first is read.
// They are all of one pipe: its end is seen by who reads it once nobody has any.
// PROMISE: T35 10,000 messages of 253
TEST_F(DaemonSession, TenThousandMessagesFullOfDescriptorsLeaveNone) {
  constexpr size_t kMessages = 10'000, kFdsMax = 253, kInARow = 4;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const protocol::FrameHeader header{.frame_bytes = sizeof(header) + sizeof(protocol::StatsRequest),
                                     .verb = Verb::kStats,
                                     .request_id = 500};
  std::byte frame[sizeof(header) + sizeof(protocol::StatsRequest)] = {};
  std::memcpy(frame, &header, sizeof(header));
  const bool may_count = geteuid() == 0;  // else its descriptors are nobody's to see
  const size_t before = may_count ? FdCountOf(daemon_.pid()) : 0;
  size_t most = before;
  size_t tried_count = 0, refused_count = 0;
  for (size_t peer = 0; tried_count < kMessages; ++peer) {
    RawClient client;
    if (peer % 8 == 0) {
      ASSERT_TRUE(client.Attach(daemon_.socket_path())) << client.last_text();
    } else {
      ASSERT_TRUE(client.Connect(daemon_.socket_path()));
    }
    const std::span<const std::byte> bytes(frame, peer % 3 == 0 ? 7 : sizeof(frame));
    size_t sent_count = 0;
    for (size_t i = 0; i < kInARow; ++i, ++tried_count) {
      if (SendDescriptors(client.fd(), ends[1], kFdsMax, bytes)) {
        ++sent_count;
      } else if (errno == EPERM) {
        ++refused_count;  // a kernel that can does it at the sender, once it is accepted
      } else {
        ASSERT_TRUE(errno == EPIPE || errno == ECONNRESET) << std::strerror(errno);
      }
    }
    if (sent_count > 0) {
      std::byte sink[4096];  // an answer to what came before may be there
      while (recv(client.fd(), sink, sizeof(sink), 0) > 0) {
      }
      ASSERT_TRUE(client.IsEnded()) << "the sender is dropped";
    }
    if (may_count && peer % 64 == 0) most = std::max(most, FdCountOf(daemon_.pid()));
  }
  RecordProperty("refused", static_cast<int>(refused_count));
  close(ends[1]);
  std::byte byte;
  EXPECT_TRUE(Eventually([&] { return read(ends[0], &byte, 1) == 0; })) << "somebody holds one";
  close(ends[0]);
  EXPECT_LE(most, before + 16);
  EXPECT_TRUE(!may_count || Eventually([&] { return FdCountOf(daemon_.pid()) <= before; }));
  EXPECT_EQ(Stats()["sessions"].size(), 1u) << "and who sent none stays";
}

// PROMISE: T21 the proof
TEST_F(DaemonSession, AKilledClientsSlotsAreFreedByProofOfDeath) {
  ASSERT_EQ(Stats()["domain"]["slot_bytes_used"], 0);
  int told[2];
  ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    RawClient victim;
    const bool is_attached = victim.Attach(daemon_.socket_path());
    const uint32_t group = is_attached ? victim.Open("g", kSlotBytes) : 0;
    const RawReply reserved = victim.CallKeys(Verb::kReserve, group, MakeKeys(64, 5));
    const char is_reserved = reserved.At<protocol::ReserveReply>().slot_count == 64;
    (void)!write(told[1], &is_reserved, 1);
    pause();
    _exit(0);
  }
  char is_reserved = 0;
  ASSERT_EQ(read(told[0], &is_reserved, 1), 1);
  ASSERT_EQ(is_reserved, 1);
  EXPECT_TRUE(EventuallyDomain("slot_bytes_used", 64 * kSlotBytes));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(EventuallyDomain("slot_bytes_used", 0));
  EXPECT_TRUE(EventuallyDomain("fenced_bytes", 0));
  EXPECT_TRUE(EventuallyDomain("session_count", 1));
  close(told[0]);
  close(told[1]);
}

// PROMISE: T21 a client that hangs up and lives
TEST_F(DaemonSession, AHungUpClientsSlotsStayFencedWhileItLives) {
  RawClient victim;
  ASSERT_TRUE(victim.Attach(daemon_.socket_path()));
  const uint32_t group = victim.Open("g", kSlotBytes);
  ASSERT_EQ(victim.CallKeys(Verb::kReserve, group, MakeKeys(8, 6)).status(), StatusCode::kOk);
  victim.CloseControl();
  EXPECT_TRUE(EventuallyDomain("fenced_bytes", 8 * kSlotBytes));
  // The end of the life socket alone proves nothing where there is a pidfd: a dying process closes
  // it before a device has stopped writing.
  victim.CloseLife();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(Stats()["domain"]["fenced_bytes"], 8 * kSlotBytes);
}

TEST_F(DaemonSession, AGoodbyeOnTheLifeSocketIsAProof) {
  RawClient victim;
  ASSERT_TRUE(victim.Attach(daemon_.socket_path()));
  const uint32_t group = victim.Open("g", kSlotBytes);
  ASSERT_EQ(victim.CallKeys(Verb::kReserve, group, MakeKeys(8, 7)).status(), StatusCode::kOk);
  victim.CloseControl();
  EXPECT_TRUE(EventuallyDomain("fenced_bytes", 8 * kSlotBytes));
  ASSERT_EQ(write(victim.received_fds().back(), "", 1), 1);
  EXPECT_TRUE(EventuallyDomain("fenced_bytes", 0));
}

// PROMISE: T34 a real connection
TEST_F(DaemonSession, WhoMayNotConnectIsToldWhy) {
  DaemonProcess daemon;
  const std::string config = daemon.WriteFile(
      "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nstate_dir = \"" +
                    daemon.directory() + "\"\n[[domain]]\nname = \"a\"\nsocket = \"" +
                    daemon.socket_path() + "\"\nallow_uids = [4242]\n");
  daemon.Start({"--config", config});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  RawClient asking, silent;
  EXPECT_FALSE(asking.Attach(daemon.socket_path()));
  EXPECT_THAT(asking.last_text(), HasSubstr("allow_uids"));
  EXPECT_TRUE(asking.IsEnded());
  EXPECT_TRUE(asking.received_fds().empty());
  ASSERT_TRUE(silent.Connect(daemon.socket_path()));
  const auto reply = silent.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.request_id, 0u);
  EXPECT_THAT(reply->text(), HasSubstr("allow_uids"));
  EXPECT_TRUE(silent.IsEnded());
}

// A process that sleeps and has the number `pid`, which nobody has now. False without the right to
// choose numbers, or where somebody else was faster.
bool UseAgain(pid_t pid, pid_t* sleeper) {
  for (int tries = 0; tries < 50; ++tries) {
    std::ofstream("/proc/sys/kernel/ns_last_pid") << pid - 1 << std::flush;
    *sleeper = fork();
    if (*sleeper == 0) {
      pause();
      _exit(0);
    }
    if (*sleeper == pid) return true;
    kill(*sleeper, SIGKILL);
    waitpid(*sleeper, nullptr, 0);
  }
  *sleeper = -1;
  return false;
}

// PROMISE: T34 a process number that is used again
TEST_F(DaemonSession, ASocketIsNoCallersWhoseProcessHasEnded) {
  for (const bool is_used_again : {false, true}) {
    SCOPED_TRACE(is_used_again);
    daemon_.Signal(SIGSTOP);  // it finds the connection when all has happened
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const pid_t caller = fork();
    if (caller == 0) {
      sockaddr_un address{.sun_family = AF_UNIX};
      std::strcpy(address.sun_path, daemon_.socket_path().c_str());
      _exit(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(caller, &status, 0);
    ASSERT_EQ(status, 0);
    pid_t sleeper = -1;
    const bool was_used_again = is_used_again && UseAgain(caller, &sleeper);
    RawClient heir;
    heir.Adopt(fd);
    protocol::HelloRequest hello;
    heir.Send(Verb::kHello, BytesOf(hello));
    daemon_.Signal(SIGCONT);
    const auto reply = heir.Receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_THAT(reply->text(), HasSubstr("has ended"));
    EXPECT_EQ(reply->status(), StatusCode::kGone);
    EXPECT_TRUE(heir.IsEnded());
    EXPECT_TRUE(heir.received_fds().empty());
    if (sleeper > 0) {
      kill(sleeper, SIGKILL);
      waitpid(sleeper, nullptr, 0);
    }
    if (is_used_again && !was_used_again) GTEST_SKIP() << "no number can be chosen here";
  }
}

// PROMISE: T37 statistics
TEST_F(DaemonSession, StatsTellNothingOfOtherDomains) {
  DaemonProcess daemon;
  const std::string config = daemon.WriteFile(
      "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nstate_dir = \"" +
                    daemon.directory() + "\"\n[[domain]]\nname = \"mine\"\nsocket = \"" +
                    daemon.socket_path() + "\"\n[[domain]]\nname = \"theirs\"\nsocket = \"" +
                    daemon.directory() + "/theirs.sock\"\n");
  daemon.Start({"--config", config});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  RawClient mine, theirs;
  ASSERT_TRUE(mine.Attach(daemon.socket_path()));
  ASSERT_TRUE(theirs.Attach(daemon.directory() + "/theirs.sock"));
  ASSERT_NE(theirs.Open("secret-model", kSlotBytes), 0u);
  const std::string stats = mine.Call(Verb::kStats, BytesOf(protocol::StatsRequest{})).text();
  EXPECT_THAT(stats, HasSubstr("\"mine\""));
  EXPECT_THAT(stats, ::testing::Not(HasSubstr("theirs")));
  EXPECT_THAT(stats, ::testing::Not(HasSubstr("secret-model")));
  EXPECT_NE(std::memcmp(mine.hello().secret, theirs.hello().secret, 192), 0);
}

}  // namespace
}  // namespace terrace::test
