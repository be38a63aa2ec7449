#include "daemon/socket/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "daemon/socket/peer.h"
#include "terrace/check.h"

namespace terrace {
namespace {

std::string WhyNoDescriptor(const char* of, int error) {
  const char* remedy = "the host is short of memory";
  if (error == EMFILE) remedy = "raise the limit of open files (LimitNOFILE=, ulimit -n)";
  if (error == ENFILE) remedy = "raise fs.file-max";
  return std::string("the daemon has no descriptor for ") + of + ": " + std::strerror(error) +
         "; " + remedy;
}

}  // namespace

Acceptor::Acceptor(asio::io_context& loop, const Clock& clock, const DomainConfig& config,
                   RefusedPeers& refused_peers, Listener listener, Events events)
    : clock_(clock),
      config_(config),
      refused_peers_(refused_peers),
      listener_(std::move(listener)),
      events_(std::move(events)),
      descriptor_(loop),
      pause_(loop),
      step_(loop) {
  const int fd = listener_.ReleaseFd();
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  descriptor_.assign(fd);
}

Acceptor::~Acceptor() {
  for (const Peer& peer : parked_) close(peer.socket_fd);
  if (paused_fd_ >= 0) close(paused_fd_);
}

void Acceptor::Wait() {
  descriptor_.async_wait(asio::posix::descriptor_base::wait_read,
                         [this](const asio::error_code& error) {
                           if (error || !AcceptOne()) return;
                           // Behind parked ones the next are looked at some a step. Until then no
                           // connection wakes this thread: the kernel would move it, awake for
                           // nothing, to the CPU of the process that connects.
                           if (parked_.empty() || ++accepted_in_step_ < kAcceptsPerStep) {
                             Wait();
                           } else {
                             paused_fd_ = descriptor_.release();
                           }
                         });
}

void Acceptor::Pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([this](const asio::error_code& error) {
    if (!error) Wait();
  });
}

// False when there is nobody left to accept now; the next wait has been begun.
bool Acceptor::AcceptOne() {
  Peer peer;
  peer.socket_fd =
      accept4(descriptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (peer.socket_fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      events_.on_refused(ConnectionRefusal::kDescriptors, {},
                         WhyNoDescriptor("a connection", errno));
      Pause();
    } else {
      Wait();
    }
    return false;
  }
  std::string why = "the peer's credentials cannot be read";
  Status status = ReadPeerCredentials(peer.socket_fd, &peer.credentials);
  if (status.ok()) status = AuthorisePeer(config_, peer.credentials, &why);
  if (!status.ok()) {
    events_.on_refused(ConnectionRefusal::kNotAllowed, peer.credentials, why);
    refused_peers_.TurnAway(peer.socket_fd, status, why);
    return true;
  }
  const uint32_t uid = peer.credentials.uid;
  const bool is_operator = uid == 0 || uid == geteuid();
  if (is_operator || (!parked_of_.contains(uid) && pace_.Take(uid, clock_.NowUs()))) {
    Admit(peer);
  } else {
    Park(peer);
  }
  return true;
}

void Acceptor::Admit(Peer peer) {
  RefusePassedDescriptors(peer.socket_fd);
  const Status status = OpenPeerPidfd(peer.socket_fd, peer.credentials, &peer.pidfd);
  if (status.code() == StatusCode::kNoSpace) {
    const std::string why = WhyNoDescriptor("the process that connects", status.detail());
    events_.on_refused(ConnectionRefusal::kDescriptors, peer.credentials, why);
    refused_peers_.TurnAway(peer.socket_fd, Status(StatusCode::kBusy), why);
    return;
  }
  if (!status.ok()) {
    const std::string why = "the process that connected has ended: each process connects itself";
    events_.on_refused(ConnectionRefusal::kNotAllowed, peer.credentials, why);
    refused_peers_.TurnAway(peer.socket_fd, status, why);
    return;
  }
  events_.on_peer(peer);
}

void Acceptor::Park(const Peer& peer) {
  const auto others = parked_of_.find(peer.credentials.uid);
  const bool has_share = others != parked_of_.end() && others->second >= kParkedOfUserMax;
  if (has_share || parked_.size() >= kParkedMax) {
    const std::string why =
        "uid " + std::to_string(peer.credentials.uid) + " connects faster than " +
        std::to_string(ConnectionPace::kBurst) + " times at once and " +
        std::to_string(1'000'000 / ConnectionPace::kPaceUs) + " times a second, and " +
        std::to_string(kParkedOfUserMax) + " of its connections wait already, or " +
        std::to_string(kParkedMax) + " of all users: keep connections open";
    events_.on_refused(ConnectionRefusal::kTooFast, peer.credentials, why);
    // One of many is told: a sentence costs more than the connection did.
    const uint64_t now_us = clock_.NowUs();
    if (now_us < told_until_us_) {
      close(peer.socket_fd);
    } else {
      told_until_us_ = now_us + ConnectionPace::kPaceUs;
      refused_peers_.TurnAway(peer.socket_fd, Status(StatusCode::kBusy), why);
    }
    return;
  }
  parked_.push_back(peer);
  ++parked_of_[peer.credentials.uid];
  if (parked_.size() == 1) WaitForPace();
}

void Acceptor::WaitForPace() {
  step_.expires_after(kStep);
  step_.async_wait([this](const asio::error_code& error) {
    if (!error) AdmitParked();
  });
}

// Those whose users may by now, each user's in the order they came. Who has hung up meanwhile costs
// next to nothing.
void Acceptor::AdmitParked() {
  std::vector<uint32_t> waiting_uids;
  int step_count = 0;
  std::deque<Peer> kept;
  for (const Peer& peer : std::exchange(parked_, {})) {
    const uint32_t uid = peer.credentials.uid;
    const auto end = waiting_uids.end();
    const bool is_next =
        step_count < kParkedPerStep && std::find(waiting_uids.begin(), end, uid) == end;
    char byte;
    const bool is_gone = is_next && recv(peer.socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    if (!is_gone && !(is_next && pace_.Take(uid, clock_.NowUs()))) {
      if (is_next) waiting_uids.push_back(uid);
      kept.push_back(peer);
      continue;
    }
    ++step_count;
    const auto of_user = parked_of_.find(uid);
    TERRACE_CHECK(of_user != parked_of_.end() && of_user->second > 0,
                  "a connection that waits counts for its user");
    if (--of_user->second == 0) parked_of_.erase(of_user);
    if (is_gone) {
      close(peer.socket_fd);
    } else {
      Admit(peer);
    }
  }
  parked_ = std::move(kept);
  TERRACE_CHECK(parked_.empty() == parked_of_.empty(),
                "a user none of whose connections wait waits for nothing");
  if (!parked_.empty()) WaitForPace();
  accepted_in_step_ = 0;
  if (paused_fd_ < 0) return;
  asio::error_code error;
  descriptor_.assign(paused_fd_, error);
  if (!error) {
    paused_fd_ = -1;
    Wait();
  } else if (parked_.empty()) {
    WaitForPace();  // the kernel has no memory for it now
  }
}

}  // namespace terrace
