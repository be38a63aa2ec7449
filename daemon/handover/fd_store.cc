#include "daemon/handover/fd_store.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "daemon/handover/memory_keeper.h"
#include "daemon/handover/supervisor.h"

namespace terrace {
namespace {

constexpr std::string_view kPrefixes[] = {"arena.", "slots.", "peer.", "life.", "lone."};

class NoFdStore final : public FdStore {
 public:
  std::string_view holder() const override { return "nobody"; }
  Status TakeAll(std::map<std::string, int>* /*fds*/, std::string* /*why*/) override {
    return Status::Ok();
  }
  void Put(const std::string& /*name*/, int /*fd*/) override {}
  void Drop(const std::string& /*name*/) override {}
  void Retry() override {}
  bool is_holding() const override { return false; }
};

// A holder that is told by messages.
class ToldFdStore : public FdStore {
 public:
  ~ToldFdStore() override { Forget(); }

  void Put(const std::string& name, int fd) override {
    const int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (held < 0) return GiveUp();
    Tell({.name = name, .fd = held});
  }
  void Drop(const std::string& name) override { Tell({.name = name}); }
  void Retry() override;
  bool is_holding() const override { return is_open(); }

 protected:
  struct Handover {
    std::string name;
    int fd = -1;  // to hold, ours to close; -1: let go of the name
  };
  // kBusy: later. Any other error: never again.
  virtual Status Send(const Handover& handover) = 0;
  virtual bool is_open() const = 0;
  // Better no holder than one that holds half of it.
  virtual void Close() = 0;

 private:
  void Tell(Handover handover);
  void GiveUp() {
    Close();
    Forget();
  }
  void Forget() {
    for (const Handover& handover : waiting_) {
      if (handover.fd >= 0) close(handover.fd);
    }
    waiting_.clear();
  }

  std::deque<Handover> waiting_;
};

void ToldFdStore::Tell(Handover handover) {
  waiting_.push_back(std::move(handover));
  Retry();
  if (waiting_.size() > kHandoversWaitingMax) GiveUp();
}

void ToldFdStore::Retry() {
  while (!waiting_.empty()) {
    const Status status =
        is_open() ? Send(waiting_.front()) : Status(StatusCode::kIo, "the holder was given up");
    if (status.code() == StatusCode::kBusy) return;
    if (!status.ok()) return GiveUp();
    if (waiting_.front().fd >= 0) close(waiting_.front().fd);
    waiting_.pop_front();
  }
}

// The supervisor's datagram socket. What exceeds FileDescriptorStoreMax= it drops.
class SystemdFdStore final : public ToldFdStore {
 public:
  SystemdFdStore(const std::string& notify_path, std::map<std::string, int> activated)
      : activated_(std::move(activated)), supervisor_(SupervisorAddressOf(notify_path)) {
    if (supervisor_.byte_count == 0) return;
    socket_fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  }
  ~SystemdFdStore() override {
    Close();
    for (const auto& [name, fd] : activated_) close(fd);
  }

  std::string_view holder() const override { return "systemd"; }
  Status TakeAll(std::map<std::string, int>* fds, std::string* /*why*/) override {
    *fds = std::exchange(activated_, {});
    return Status::Ok();
  }

 private:
  Status Send(const Handover& handover) override;
  bool is_open() const override { return socket_fd_ >= 0; }
  void Close() override {
    if (socket_fd_ >= 0) close(std::exchange(socket_fd_, -1));
  }

  std::map<std::string, int> activated_;
  SupervisorAddress supervisor_;
  int socket_fd_ = -1;
};

// sd_notify would wait for a supervisor that does not read.
Status SystemdFdStore::Send(const Handover& handover) {
  // FDPOLL=0: else it would drop a life socket at the very event that a successor waits for.
  std::string text =
      (handover.fd >= 0 ? "FDSTORE=1\nFDPOLL=0\nFDNAME=" : "FDSTOREREMOVE=1\nFDNAME=") +
      handover.name;
  iovec piece{text.data(), text.size()};
  msghdr message{};
  message.msg_name = &supervisor_.address;
  message.msg_namelen = supervisor_.byte_count;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (handover.fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &handover.fd, sizeof(int));
  }
  const ssize_t sent = sendmsg(socket_fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(text.size())) return Status::Ok();
  const bool is_full =
      errno == EAGAIN || errno == ENOBUFS || errno == EINTR || errno == ETOOMANYREFS;
  return Status(is_full ? StatusCode::kBusy : StatusCode::kIo, "the supervisor does not read",
                errno);
}

class KeeperFdStore final : public ToldFdStore {
 public:
  explicit KeeperFdStore(std::string path) : path_(std::move(path)) {}
  ~KeeperFdStore() override { Close(); }

  std::string_view holder() const override { return "keeper"; }
  Status TakeAll(std::map<std::string, int>* fds, std::string* why) override;

 private:
  bool Connect(std::string* why);
  Status Send(const Handover& handover) override {
    return SendKeeperMessage(socket_fd_, handover.fd >= 0 ? KeeperVerb::kPut : KeeperVerb::kDrop,
                             handover.name, handover.fd, MSG_DONTWAIT);
  }
  bool is_open() const override { return socket_fd_ >= 0; }
  void Close() override {
    if (socket_fd_ >= 0) close(std::exchange(socket_fd_, -1));
  }

  const std::string path_;
  int socket_fd_ = -1;
};

bool KeeperFdStore::Connect(std::string* why) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path_.size() >= sizeof(address.sun_path)) {
    *why = "keeper_socket " + path_ + ": the path is longer than 107 bytes";
    return false;
  }
  std::memcpy(address.sun_path, path_.data(), path_.size());
  socket_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket_fd_ >= 0 &&
      connect(socket_fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const timeval patience{.tv_sec = kKeeperPatienceMs / 1000, .tv_usec = 0};
    (void)setsockopt(socket_fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    return true;
  }
  *why = "keeper_socket " + path_ + ": " + std::strerror(errno) +
         ": DRAM will not outlive this daemon; start terraced --keeper --socket " + path_ +
         " first";
  Close();
  return false;
}

Status KeeperFdStore::TakeAll(std::map<std::string, int>* fds, std::string* why) {
  if (!Connect(why)) return Status::Ok();
  bool is_welcome = false;
  KeeperMessage message;
  Status status;
  do {
    int fd = -1;
    status = ReceiveKeeperMessage(socket_fd_, &message, &fd, 0);
    if (!status.ok()) break;
    const bool is_kept = fd >= 0 && message.verb == KeeperVerb::kHeld &&
                         fds->emplace(std::string(message.name, message.name_bytes), fd).second;
    if (fd >= 0 && !is_kept) close(fd);
    if (message.verb == KeeperVerb::kWelcome && !std::exchange(is_welcome, true)) {
      status = SendKeeperMessage(socket_fd_, KeeperVerb::kGiveAll, "", -1, 0);
    }
  } while (status.ok() && message.verb != KeeperVerb::kEnd && message.verb != KeeperVerb::kBusy);
  const bool is_busy = status.ok() && message.verb == KeeperVerb::kBusy;
  if (status.ok() && !is_busy) return Status::Ok();
  *why = "keeper_socket " + path_ +
         (is_busy ? ": the keeper serves another daemon: stop that one, or name another keeper"
                  : ": the keeper does not answer: DRAM starts cold");
  // Half of what is held is no good.
  for (const auto& [name, fd] : *fds) close(fd);
  fds->clear();
  Close();
  return is_busy ? Status(StatusCode::kBusy, "the keeper serves another daemon") : Status::Ok();
}

}  // namespace

std::string ArenaFdName(std::string_view domain, size_t node_index) {
  return "arena." + std::string(domain) + "." + std::to_string(node_index);
}
std::string SlotTableFdName(std::string_view domain) { return "slots." + std::string(domain); }
std::string PeerFdName(uint64_t session) { return "peer." + std::to_string(session); }
std::string LifeFdName(uint64_t session) { return "life." + std::to_string(session); }
std::string LoneFdName(uint64_t session) { return "lone." + std::to_string(session); }

bool IsStoredFdName(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

std::unique_ptr<FdStore> MakeFdStore(const std::string& keeper_socket,
                                     std::map<std::string, int> activated) {
  if (!keeper_socket.empty()) {
    for (const auto& [name, fd] : activated) close(fd);
    return std::make_unique<KeeperFdStore>(keeper_socket);
  }
  const char* notify_path = std::getenv("NOTIFY_SOCKET");
  if (!activated.empty() || notify_path != nullptr) {
    return std::make_unique<SystemdFdStore>(notify_path == nullptr ? "" : notify_path,
                                            std::move(activated));
  }
  return std::make_unique<NoFdStore>();
}

}  // namespace terrace
