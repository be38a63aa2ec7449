// What passes between a daemon, its keeper and its successor: a keeper that says anything to a
// daemon; a daemon that says anything to a keeper; and descriptors of any kind under any names, of
// which a successor makes an arena and sessions to watch. Nobody waits for ever, no descriptor is
// left open or closed twice, and what was put and not dropped comes back.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "daemon/arenas/inheritance.h"
#include "daemon/handover/fd_store.h"
#include "daemon/handover/memory_keeper.h"
#include "fuzz/descriptors.h"
#include "fuzz/fuzz.h"

namespace terrace::fuzz::handover {

constexpr uint32_t kPacketsMax = 40;
constexpr size_t kFdsOfPacketMax = 3;
constexpr uint8_t kHugeFd = 255;        // a choice of a kind: a file of huge pages, of none yet
constexpr uint8_t kManySessions = 255;  // a choice: the predecessor had more than an arena notes

struct Packet {
  Bytes bytes;
  size_t fd_count = 0;
};

// [the verb; the name, which is of few; where another byte stands; how long it is; descriptors]
Packet TakePacket(Choices& choices) {
  constexpr std::string_view kNames[] = {"arena.a.0", "slots.a", "life.7", "peer.7", ""};
  KeeperMessage message;
  message.verb = static_cast<KeeperVerb>(choices.Byte());
  const uint8_t named = choices.Byte();
  const std::string_view name =
      named < 250 ? kNames[named % std::size(kNames)] : TextOf(choices.Take(sizeof(message.name)));
  message.name_bytes = static_cast<uint8_t>(name.copy(message.name, sizeof(message.name)));
  Packet packet;
  const auto whole = std::as_bytes(std::span(&message, 1));
  packet.bytes.assign(whole.begin(), whole.end());
  const uint8_t bent = choices.Byte();
  if (bent % 4 == 1) packet.bytes[choices.Byte() % 8] = static_cast<std::byte>(choices.Byte());
  if (bent % 4 == 2) packet.bytes.resize(choices.Byte());
  packet.fd_count = choices.Below(kFdsOfPacketMax + 1);
  return packet;
}

bool SendPacket(int socket_fd, const Packet& packet) {
  std::vector<int> fds;
  for (size_t i = 0; i < packet.fd_count; ++i) fds.push_back(MakeFd(FdKind::kEvent));
  const bool is_sent = SendWithFds(socket_fd, packet.bytes, fds);
  for (const int fd : fds) close(fd);
  return is_sent;
}

// ---- a keeper that says anything ----

std::vector<Packet> TakePackets(Choices& choices) {
  std::vector<Packet> packets;
  while (!choices.is_empty() && packets.size() < kPacketsMax) {
    packets.push_back(TakePacket(choices));
  }
  return packets;
}

// A socket that can have no name.
void RequireNoKeeper(const std::string& path) {
  std::map<std::string, int> fds;
  std::string why;
  const std::unique_ptr<FdStore> store = MakeFdStore(path, {});
  Require(store->TakeAll(&fds, &why).ok() && !why.empty() && !store->is_holding(),
          "a path that no socket has was connected to");
}

void TryKeeper(Choices& choices) {
  if (choices.is_empty()) RequireNoKeeper("/" + std::string(sizeof(sockaddr_un::sun_path), 'k'));
  const std::vector<Packet> packets = TakePackets(choices);
  const std::string path = PathInNoFolder("keeper");
  const uint32_t fd_count = OpenFdCount();
  const int listener = ListenAt(path, SOCK_SEQPACKET);
  std::thread keeper([&packets, listener] {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    for (const Packet& packet : packets) {
      if (!SendPacket(fd, packet)) break;
    }
    shutdown(fd, SHUT_WR);
    ReadToEnd(fd);
    close(fd);
  });
  {
    const std::unique_ptr<FdStore> store = MakeFdStore(path, {});
    std::map<std::string, int> fds;
    std::string why;
    const Status status = store->TakeAll(&fds, &why);
    Require(status.ok() || status.code() == StatusCode::kBusy, "no answer that a daemon expects");
    Require(why.empty() ? store->is_holding() : fds.empty() && !store->is_holding(),
            "half of what is held was taken over");
    for (const auto& [name, fd] : fds) {
      Require(name.size() <= sizeof(KeeperMessage::name), "a name longer than any");
      Require(close(fd) == 0, "a descriptor that is none");
    }
    store->Drop("x");
  }
  keeper.join();
  close(listener);
  Require(OpenFdCount() == fd_count, "a descriptor is left open, or another's was closed");
}

// ---- a daemon that says anything ----

// One keeper for all inputs; it is empty before and after each.
class Keeper {
 public:
  Keeper() {
    char name[] = "/tmp/terrace_fuzz_XXXXXX";
    Require(mkdtemp(name) != nullptr, "no folder for a keeper");
    folder_ = name;
    std::atexit([] { (void)!system(("rm -rf " + folder_).c_str()); });
    std::thread([path = path()] {
      std::string why;
      (void)RunMemoryKeeper(path, &why);
    }).detach();
  }
  static std::string path() { return folder_ + "/keeper.sock"; }

  // Waits until the keeper has heard that the one before has gone.
  int Connect() const {
    while (true) {
      const int fd = ConnectTo(path(), SOCK_SEQPACKET);
      KeeperMessage welcome;
      int passed = -1;
      if (fd >= 0 && ReceiveKeeperMessage(fd, &welcome, &passed, 0).ok() &&
          welcome.verb == KeeperVerb::kWelcome) {
        return fd;
      }
      if (fd >= 0) close(fd);
      usleep(100);
    }
  }
  // Names of what is held; nothing if the keeper has hung up.
  static std::vector<std::string> Held(int fd) {
    std::vector<std::string> names;
    if (!SendKeeperMessage(fd, KeeperVerb::kGiveAll, "", -1, 0).ok()) return names;
    KeeperMessage message;
    int passed = -1;
    while (ReceiveKeeperMessage(fd, &message, &passed, 0).ok() &&
           message.verb != KeeperVerb::kEnd) {
      Require(message.verb == KeeperVerb::kHeld && passed >= 0, "what is held has no descriptor");
      Require(fcntl(passed, F_GETFD) >= 0 && close(passed) == 0, "a descriptor that is none");
      names.emplace_back(message.name, message.name_bytes);
    }
    return names;
  }

 private:
  inline static std::string folder_;
};

// The keeper closes its end a while later.
void AwaitFdCount(uint32_t count) {
  for (int i = 0; i < 400'000 && OpenFdCount() != count; ++i) usleep(50);
  Require(OpenFdCount() == count, "a descriptor is left open, or another's was closed");
}

void TryDaemon(Choices& choices) {
  // And the keeper's own: its lock, its socket, and the one for signals.
  static const uint32_t fd_count = OpenFdCount() + 3;
  static const Keeper keeper;
  const std::vector<Packet> packets = TakePackets(choices);
  int fd = keeper.Connect();
  for (const Packet& packet : packets) {
    if (!SendPacket(fd, packet)) break;
    if (packet.bytes.size() > 4 && packet.bytes[4] == std::byte{3}) (void)Keeper::Held(fd);
  }
  close(fd);
  fd = keeper.Connect();
  for (const std::string& name : Keeper::Held(fd)) {
    Require(SendKeeperMessage(fd, KeeperVerb::kDrop, name, -1, 0).ok(), "the keeper is gone");
  }
  Require(Keeper::Held(fd).empty(), "what was dropped is held");
  close(fd);
  AwaitFdCount(fd_count);
}

// ---- descriptors of any kind under any name ----

using Hands = std::map<std::string, int>;

class InHands final : public FdStore {
 public:
  explicit InHands(Hands& hands) : hands_(hands) {}
  std::string_view holder() const override { return "keeper"; }
  Status TakeAll(std::map<std::string, int>* fds, std::string* /*why*/) override {
    for (const auto& [name, fd] : hands_) (*fds)[name] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return Status::Ok();
  }
  void Put(const std::string& name, int fd) override {
    Drop(name);
    hands_[name] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }
  void Drop(const std::string& name) override {
    const auto found = hands_.find(name);
    if (found == hands_.end()) return;
    close(found->second);
    hands_.erase(found);
  }
  void Retry() override {}
  bool is_holding() const override { return true; }

 private:
  Hands& hands_;
};

struct Daemon {
  explicit Daemon(Hands& hands, const Inheritance::MayAdopt& may_adopt = {})
      : arena({.domain_name = "a",
               .segment_bytes = kSegmentBytesMin,
               .segments_max = 2,
               .segments_expected = 1,
               .hugepages = HugePages::kOff},
              [this](std::function<void()> work) { asio::post(loop, std::move(work)); },
              {.on_populated = [](uint32_t, Status) {}, .on_punched = [](uint32_t, Status) {}}),
        inheritance(
            loop, std::make_unique<InHands>(hands),
            [this](uint32_t domain, SessionId session) {
              Require(domain == 0, "the end of a session of no domain");
              ended.push_back(session);
            },
            may_adopt) {
    std::string why;
    DomainArena* const arenas[] = {&arena};
    Require(inheritance.Take(&why).ok() && inheritance.Furnish(arenas, &why).ok(),
            "a daemon that does not start");
    inheritance.Settle();
    inheritance.BeginWatch();
    loop.poll();
  }

  asio::io_context loop;
  DomainArena arena;
  std::vector<SessionId> ended;
  Inheritance inheritance;
};

int MakeFdOf(uint8_t kind) {
  if (kind == kHugeFd) return memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
  return MakeFd(static_cast<FdKind>(kind % kFdKinds));
}
FdKind TakeKind(uint8_t chosen) { return static_cast<FdKind>(chosen % kFdKinds); }

// [which name: of those there are, or made of a prefix and text]
std::string TakeName(const Hands& hands, Choices& choices) {
  constexpr std::string_view kPrefixes[] = {"arena.a.", "slots.", "peer.", "life.", "lone.", ""};
  const uint8_t chosen = choices.Byte();
  if (chosen < 128 && !hands.empty()) {
    return std::next(hands.begin(), chosen % static_cast<ptrdiff_t>(hands.size()))->first;
  }
  return std::string(kPrefixes[chosen % std::size(kPrefixes)]) +
         std::string(TextOf(choices.Take(choices.Below(24))));
}

// [which sessions the predecessor had; then what happens to its descriptors; whether its memory has
// missed an erasure]
void TryInheritance(Choices& choices) {
  const uint32_t fd_count = OpenFdCount();
  Hands hands;
  {
    Daemon first(hands);
    const uint8_t sessions = choices.Byte();
    for (SessionId id = 1; sessions == kManySessions && id <= kNotedSessionsMax + 1; ++id) {
      first.arena.arena().NoteSession(id);
    }
    for (uint32_t left = sessions % 4; left > 0; --left) {
      const uint8_t session = choices.Byte();
      const int life = MakeFd(FdKind::kSocket);
      const int pidfd = session % 2 == 0 ? -1 : MakeFd(TakeKind(choices.Byte()));
      first.inheritance.NoteSession(0, 1 + session % 4, pidfd, life);
      close(life);
      if (pidfd >= 0) close(pidfd);
    }
  }
  InHands changed(hands);
  for (uint32_t left = choices.Below(6); left > 0; --left) {
    const std::string name = TakeName(hands, choices);
    const uint8_t kind = choices.Byte();
    if (kind % 8 < 4) {
      changed.Drop(name);
    } else if (const int fd = MakeFdOf(kind); fd >= 0) {
      changed.Put(name, fd);
      close(fd);
    }
  }
  const bool has_missed = choices.Below(4) == 3;
  {
    Daemon second(hands, [has_missed](uint32_t, uint64_t) { return !has_missed; });
    Require(!has_missed || !second.inheritance.is_adopted(0), "memory that missed an erasure");
    for (const SessionId session : second.inheritance.SessionsOf(0)) {
      Require(second.inheritance.is_adopted(0) && session != 0, "watched, and nothing adopted");
    }
    const auto noted = second.arena.arena().NotedSessions();
    for (const SessionId session : second.ended) {
      Require(std::ranges::find(noted, session) == noted.end(), "it has ended, and is noted");
    }
    second.inheritance.NoteSession(0, 99, -1, STDERR_FILENO);
    second.inheritance.ForgetSession(99);
  }
  for (const auto& [name, fd] : hands) close(fd);
  Require(OpenFdCount() == fd_count, "a descriptor is left open, or another's was closed");
}

constexpr void (*kTries[])(Choices&) = {TryKeeper, TryDaemon, TryInheritance};

Bytes PacketsSeed(uint8_t kind, const std::vector<std::array<uint8_t, 3>>& packets) {
  ChoiceWriter writer;
  writer.Byte(kind);
  for (const auto& [verb, name, fd_count] : packets) {
    writer.Byte(verb).Byte(name).Byte(0).Byte(fd_count);
  }
  return writer.Take();
}

std::vector<Seed> Seeds() {
  // [sessions; changes: a place or a name, and a kind or none; whether an erasure was missed]
  const auto successor = [](std::vector<uint8_t> choices) {
    ChoiceWriter writer;
    writer.Byte(2);
    for (const uint8_t choice : choices) writer.Byte(choice);
    return writer.Take();
  };
  return {
      {"keeper_of_no_name", PacketsSeed(0, {})},
      {"successor_of_an_erasure", successor({0, 0, 3})},
      {"successor_of_many", successor({kManySessions, 0})},
      {"successor_of_no_peer", successor({1, 1, 0, 1, 2, 0})},
      {"successor_of_a_gap", successor({0, 3, 1, 4, 132, 1, '3', 4, 131, 1, 'z', 4})},
      {"successor_of_huge_pages", successor({0, 2, 0, kHugeFd, 131, 1, 'z', kHugeFd})},
      {"keeper", PacketsSeed(0, {{7, 4, 0}, {4, 0, 1}, {4, 1, 1}, {5, 4, 0}})},
      {"keeper_is_busy", PacketsSeed(0, {{6, 4, 0}})},
      {"keeper_gives_two", PacketsSeed(0, {{7, 4, 0}, {4, 0, 1}, {4, 0, 1}, {5, 4, 0}})},
      {"daemon", PacketsSeed(1, {{1, 0, 1}, {1, 1, 1}, {3, 4, 0}, {2, 0, 0}})},
      {"daemon_puts_nothing", PacketsSeed(1, {{1, 0, 0}, {2, 3, 0}, {9, 0, 0}})},
      {"successor", ChoiceWriter().Byte(2).Byte(2).Byte(1).Byte(1).Byte(2).Take()},
      {"successor_of_less", ChoiceWriter().Byte(2).Byte(1).Byte(2).Byte(1).Byte(0).Byte(0).Take()},
      {"successor_of_more",
       ChoiceWriter().Byte(2).Byte(0).Byte(1).Byte(204).Byte(1).Append("1").Byte(4).Take()}};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 keepers, daemons and descriptors handed over
const Registration registration({"handover", Run, Seeds});

}  // namespace terrace::fuzz::handover
