// The listening socket of a domain: taken over from systemd by the domain's name, else bound here.
// A socket file nobody listens on is replaced; one whose other end lives belongs to another daemon.
//
// OWNERSHIP: a bound socket's file goes, and its lock falls, with the Listener.
#pragma once

#include <map>
#include <string>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// The name under which systemd passes the socket where figures are asked for; no domain's, which
// have no dots.
inline constexpr char kMetricsFdName[] = "metrics.http";

// Descriptors passed by systemd: domain name → listening socket, or kMetricsFdName → one of TCP,
// and what an earlier daemon put into its descriptor store (IsStoredFdName), by name. Takes them
// from the environment, once. kInvalid with `*why` if one is no such socket.
Status TakeActivatedSockets(std::map<std::string, int>* sockets, std::map<std::string, int>* stored,
                            std::string* why);

class Listener {
 public:
  Listener() = default;
  ~Listener();
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;

  // Adopts a socket from systemd, whose unit said where it is and who may connect. `*otherwise`
  // tells what of that `config` says otherwise, which then counts for nothing; empty: nothing.
  static Listener Adopt(int fd, const DomainConfig& config, std::string* otherwise);
  // Binds `config.socket_path`. kBusy (another daemon answers there), kIo or kInvalid with `*why`.
  static Status Bind(const DomainConfig& config, Listener* listener, std::string* why);

  int fd() const { return fd_; }
  // Gives the descriptor away; the file and the lock stay with the Listener.
  int ReleaseFd();

 private:
  int fd_ = -1;
  int lock_fd_ = -1;
  std::string path_;  // empty if adopted
};

}  // namespace terrace
