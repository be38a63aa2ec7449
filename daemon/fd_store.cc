#include "daemon/fd_store.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/keeper.h"

namespace terrace {
namespace {

constexpr std::string_view kPrefixes[] = {"arena.", "slots.", "peer.", "life."};

class NoFdStore final : public FdStore {
 public:
  std::string_view holder() const override { return "nobody"; }
  Status TakeAll(std::map<std::string, int>* /*fds*/, std::string* /*why*/) override {
    return Status::Ok();
  }
  void Put(const std::string& /*name*/, int /*fd*/) override {}
  void Drop(const std::string& /*name*/) override {}
  bool is_holding() const override { return false; }
};

// Messages to the supervisor are datagrams; what exceeds FileDescriptorStoreMax= it drops.
class SystemdFdStore final : public FdStore {
 public:
  explicit SystemdFdStore(std::map<std::string, int> activated)
      : activated_(std::move(activated)) {}
  ~SystemdFdStore() override {
    for (const auto& [name, fd] : activated_) close(fd);
  }

  std::string_view holder() const override { return "systemd"; }
  Status TakeAll(std::map<std::string, int>* fds, std::string* /*why*/) override {
    *fds = std::exchange(activated_, {});
    return Status::Ok();
  }
  // FDPOLL=0: else it would drop a life socket at the very event that a successor waits for.
  void Put(const std::string& name, int fd) override {
    const std::string text = "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name;
    if (sd_pid_notify_with_fds(0, 0, text.c_str(), &fd, 1) <= 0) is_holding_ = false;
  }
  void Drop(const std::string& name) override {
    (void)sd_notify(0, ("FDSTOREREMOVE=1\nFDNAME=" + name).c_str());
  }
  bool is_holding() const override { return is_holding_; }

 private:
  std::map<std::string, int> activated_;
  bool is_holding_ = true;
};

class KeeperFdStore final : public FdStore {
 public:
  explicit KeeperFdStore(std::string path) : path_(std::move(path)) {}
  ~KeeperFdStore() override { Close(); }

  std::string_view holder() const override { return "keeper"; }
  Status TakeAll(std::map<std::string, int>* fds, std::string* why) override;
  // A keeper that is gone, or so slow that its socket is full, is given up: better no keeper than
  // one that holds half of it.
  void Put(const std::string& name, int fd) override { Send(KeeperVerb::kPut, name, fd); }
  void Drop(const std::string& name) override { Send(KeeperVerb::kDrop, name, -1); }
  bool is_holding() const override { return socket_fd_ >= 0; }

 private:
  bool Connect(std::string* why);
  void Send(KeeperVerb verb, const std::string& name, int fd) {
    if (socket_fd_ < 0) return;
    if (!SendKeeperMessage(socket_fd_, verb, name, fd, MSG_DONTWAIT).ok()) Close();
  }
  void Close() {
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
  Status status;
  while (socket_fd_ >= 0) {
    KeeperMessage message;
    int fd = -1;
    status = ReceiveKeeperMessage(socket_fd_, &message, &fd, 0);
    if (!status.ok() || message.verb == KeeperVerb::kEnd) break;
    if (message.verb == KeeperVerb::kWelcome && !std::exchange(is_welcome, true)) {
      Send(KeeperVerb::kGiveAll, "", -1);
    }
    if (message.verb == KeeperVerb::kBusy) {
      *why = "keeper_socket " + path_ +
             ": the keeper serves another daemon: stop that one, or name another keeper";
      Close();
      return Status(StatusCode::kBusy, "the keeper serves another daemon");
    }
    if (fd >= 0) fds->insert_or_assign(std::string(message.name, message.name_bytes), fd);
  }
  if (status.ok() && socket_fd_ >= 0) return Status::Ok();
  // Half of what is held is no good.
  *why = "keeper_socket " + path_ + ": the keeper does not answer: DRAM starts cold";
  for (const auto& [name, fd] : *fds) close(fd);
  fds->clear();
  Close();
  return Status::Ok();
}

}  // namespace

std::string ArenaFdName(std::string_view domain, size_t node_index) {
  return "arena." + std::string(domain) + "." + std::to_string(node_index);
}
std::string SlotTableFdName(std::string_view domain) { return "slots." + std::string(domain); }
std::string PeerFdName(uint64_t session) { return "peer." + std::to_string(session); }
std::string LifeFdName(uint64_t session) { return "life." + std::to_string(session); }

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
  if (!activated.empty() || std::getenv("NOTIFY_SOCKET") != nullptr) {
    return std::make_unique<SystemdFdStore>(std::move(activated));
  }
  return std::make_unique<NoFdStore>();
}

}  // namespace terrace
