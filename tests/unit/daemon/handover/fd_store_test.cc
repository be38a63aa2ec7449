// Descriptors in the hands of a real keeper process.
#include "daemon/handover/fd_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/handover/memory_keeper.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class FdStoreTest : public testing::Test {
 protected:
  FdStoreTest() {
    char name[] = "/tmp/terrace_keeper_XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/keeper.sock";
    unsetenv("NOTIFY_SOCKET");
  }
  ~FdStoreTest() override {
    StopKeeper(SIGTERM);
    (void)!system(("rm -rf " + directory_).c_str());
  }
  void StartKeeper(uint64_t fds_limit = 256) {
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    keeper_ = fork();
    if (keeper_ == 0) {
      const rlimit limit{fds_limit, fds_limit};
      setrlimit(RLIMIT_NOFILE, &limit);
      std::string why;
      _exit(RunMemoryKeeper(path_, &why).ok() ? 0 : 1);
    }
    close(ready[0]);
    close(ready[1]);
    while (!IsListening()) usleep(1000);
    struct stat stat {};
    ASSERT_EQ(::stat(path_.c_str(), &stat), 0);
    EXPECT_EQ(stat.st_mode & 0777, 0600u);
  }
  bool IsListening() const {
    constexpr std::string_view kAccepts = " 00010000 ";  // flags of a socket that listens
    std::ifstream sockets("/proc/net/unix");
    for (std::string line; std::getline(sockets, line);) {
      if (line.ends_with(" " + path_) && line.find(kAccepts) != std::string::npos) return true;
    }
    return false;
  }
  int StopKeeper(int signal) {
    if (keeper_ <= 0) return -1;
    kill(keeper_, signal);
    int status = 0;
    waitpid(keeper_, &status, 0);
    keeper_ = -1;
    return status;
  }
  static int Memfd(const std::string& text) {
    const int fd = memfd_create("test", MFD_CLOEXEC);
    EXPECT_EQ(pwrite(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return fd;
  }
  static std::string TextIn(int fd) {
    char text[64] = {};
    (void)!pread(fd, text, sizeof(text) - 1, 0);
    return text;
  }
  // All that is held, as text; closes the descriptors.
  std::map<std::string, std::string> Held(FdStore* store, StatusCode expected = StatusCode::kOk) {
    std::map<std::string, int> fds;
    EXPECT_EQ(store->TakeAll(&fds, &why_).code(), expected) << why_;
    std::map<std::string, std::string> held;
    for (const auto& [name, fd] : fds) {
      held[name] = TextIn(fd);
      close(fd);
    }
    return held;
  }
  // What the next daemon finds.
  std::map<std::string, std::string> HeldBySuccessor() {
    return Held(MakeFdStore(path_, {}).get());
  }

  std::string directory_;
  std::string path_;
  std::string why_;
  pid_t keeper_ = -1;
};

TEST_F(FdStoreTest, SuccessorIsHandedWhatWasPutAndNotDropped) {
  StartKeeper();
  auto store = MakeFdStore(path_, {});
  EXPECT_TRUE(Held(store.get()).empty());
  for (const std::string name : {"arena.a.0", "slots.a", "life.7"}) {
    const int fd = Memfd("of " + name);
    store->Put(name, fd);
    close(fd);
  }
  store->Drop("life.7");
  EXPECT_TRUE(store->is_holding());
  store.reset();
  const std::map<std::string, std::string> expected = {{"arena.a.0", "of arena.a.0"},
                                                       {"slots.a", "of slots.a"}};
  EXPECT_EQ(HeldBySuccessor(), expected);
}

TEST_F(FdStoreTest, OneDaemonAtATime) {
  StartKeeper();
  const auto first = MakeFdStore(path_, {});
  Held(first.get());
  const auto second = MakeFdStore(path_, {});
  std::map<std::string, int> fds;
  EXPECT_EQ(second->TakeAll(&fds, &why_).code(), StatusCode::kBusy);
  EXPECT_THAT(why_, HasSubstr("serves another daemon"));
  const int fd = Memfd("x");
  second->Put("arena.b.0", fd);
  close(fd);
  EXPECT_TRUE(first->is_holding());
}

TEST_F(FdStoreTest, GoesOnWithoutAKeeper) {
  const auto store = MakeFdStore(path_, {});
  EXPECT_TRUE(Held(store.get()).empty());
  EXPECT_THAT(why_, HasSubstr("terraced --keeper --socket " + path_));
  EXPECT_FALSE(store->is_holding());
  store->Put("slots.a", 0);
}

TEST_F(FdStoreTest, NoticesThatItsKeeperDied) {
  StartKeeper();
  const auto store = MakeFdStore(path_, {});
  Held(store.get());
  StopKeeper(SIGKILL);
  store->Put("slots.a", 0);
  EXPECT_FALSE(store->is_holding());
}

TEST_F(FdStoreTest, KeeperHoldsNoMoreThanItMay) {
  StartKeeper(/*fds_limit=*/64);
  auto store = MakeFdStore(path_, {});
  Held(store.get());
  const int fd = Memfd("x");
  for (int i = 0; i < 100; ++i) store->Put(LifeFdName(static_cast<uint64_t>(i)), fd);
  close(fd);
  EXPECT_TRUE(store->is_holding());
  store.reset();
  const size_t held = HeldBySuccessor().size();
  EXPECT_GT(held, 16u);
  EXPECT_LT(held, 64u);
}

TEST_F(FdStoreTest, StrangeMessagesEndTheConnectionOnly) {
  StartKeeper();
  auto store = MakeFdStore(path_, {});
  Held(store.get());
  const int fd = Memfd("kept");
  store->Put("slots.a", fd);
  close(fd);
  store.reset();
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path_.copy(address.sun_path, path_.size());
  for (const std::string& bytes : {std::string("hello"), std::string(128, 'x'), std::string()}) {
    const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    (void)!send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char byte;
    (void)!recv(peer, &byte, 1, 0);
    close(peer);
  }
  EXPECT_EQ(HeldBySuccessor().size(), 1u);
}

size_t OpenFdCount() {
  size_t count = 0;
  for (int fd = 0; fd < 256; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// Descriptors come with kHeld, one a name; others are closed, and where there is no end, all.
TEST_F(FdStoreTest, AKeeperThatTalksNonsenseLeavesNothingOpen) {
  using Verbs = std::vector<KeeperVerb>;
  constexpr auto kWelcome = KeeperVerb::kWelcome, kHeld = KeeperVerb::kHeld,
                 kBusy = KeeperVerb::kBusy, kEnd = KeeperVerb::kEnd;
  const std::vector<std::pair<Verbs, size_t>> cases = {
      {{kWelcome, kHeld, kEnd}, 1},  {{kWelcome, kHeld, kHeld, kEnd}, 1},      {{kBusy}, 0},
      {{kWelcome, kHeld, kBusy}, 0}, {{kWelcome, kHeld, KeeperVerb::kPut}, 0}, {{kEnd}, 0}};
  for (const auto& [verbs, held_count] : cases) {
    const size_t before = OpenFdCount();
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(address.sun_path, path_.size());
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    std::thread keeper([&verbs = verbs, listener] {
      const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      for (const KeeperVerb verb : verbs) {
        (void)SendKeeperMessage(peer, verb, "slots.a", STDERR_FILENO, 0);
      }
      shutdown(peer, SHUT_WR);
      char heard[sizeof(KeeperMessage)];
      while (recv(peer, heard, sizeof(heard), 0) > 0) {
      }
      close(peer);
    });
    const auto expected = verbs.back() == kBusy ? StatusCode::kBusy : StatusCode::kOk;
    EXPECT_EQ(Held(MakeFdStore(path_, {}).get(), expected).size(), held_count);
    keeper.join();
    close(listener);
    unlink(path_.c_str());
    EXPECT_EQ(OpenFdCount(), before) << verbs.size() << " messages";
  }
}

// Of a message with more than one, none is taken and none is left open.
TEST(KeeperMessages, OneDescriptorAtMost) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  KeeperMessage body{.verb = KeeperVerb::kPut};
  iovec piece{&body, sizeof(body)};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{.msg_iov = &piece,
                 .msg_iovlen = 1,
                 .msg_control = control,
                 .msg_controllen = sizeof(control)};
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  std::memcpy(CMSG_DATA(header), ends, 2 * sizeof(int));
  const size_t before = OpenFdCount();
  ASSERT_EQ(sendmsg(ends[0], &message, 0), static_cast<ssize_t>(sizeof(body)));
  KeeperMessage got;
  int fd = -1;
  EXPECT_EQ(ReceiveKeeperMessage(ends[1], &got, &fd, 0).code(), StatusCode::kIo);
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(OpenFdCount(), before);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(FdStoreTest, SecondKeeperOfAPathIsRefused) {
  StartKeeper();
  const pid_t second = fork();
  if (second == 0) {
    std::string why;
    const Status status = RunMemoryKeeper(path_, &why);
    _exit(why.find("another keeper serves it") != std::string::npos ? 42 : status.ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(second, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(StopKeeper(SIGTERM), 0);
}

TEST(FdNames, AreNoDomainNames) {
  EXPECT_TRUE(IsStoredFdName(ArenaFdName("arena-0", 1)));
  EXPECT_TRUE(IsStoredFdName(SlotTableFdName("a")));
  EXPECT_TRUE(IsStoredFdName(PeerFdName(UINT64_MAX)));
  EXPECT_FALSE(IsStoredFdName("arena"));
  EXPECT_FALSE(IsStoredFdName("terraced.socket"));
}

// More than its socket takes, for a while.
TEST_F(FdStoreTest, AKeeperThatSleepsLosesNothing) {
  constexpr uint64_t kSessions = 1500;
  StartKeeper(4 * kSessions);
  auto store = MakeFdStore(path_, {});
  Held(store.get());
  kill(keeper_, SIGSTOP);
  const int fd = Memfd("life");
  for (uint64_t session = 1; session <= kSessions; ++session) {
    store->Put(LifeFdName(session), fd);
    if (session % 2 == 0) store->Drop(LifeFdName(session - 1));
  }
  close(fd);
  EXPECT_TRUE(store->is_holding());
  kill(keeper_, SIGCONT);
  for (int i = 0; i < 200; ++i) {
    usleep(1000);
    store->Retry();
  }
  store.reset();
  EXPECT_EQ(HeldBySuccessor().size(), kSessions / 2);
}

}  // namespace
}  // namespace terrace
