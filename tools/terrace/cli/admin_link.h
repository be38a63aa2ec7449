// AdminLink: one connection to a daemon for the frames of protocol_introspection.h, which
// libterrace does not speak. One request at a time; each answer is whole within the address's
// timeout.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terrace/prefix_hasher.h"
#include "terrace/protocol_introspection.h"
#include "terrace/status.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

class AdminLink {
 public:
  // Null after telling the person why not.
  static std::unique_ptr<AdminLink> Open(const DaemonAddress& address);
  // Whether the daemon answers somebody who comes now, within the address's timeout.
  static bool Lives(const DaemonAddress& address);
  ~AdminLink();
  AdminLink(const AdminLink&) = delete;
  AdminLink& operator=(const AdminLink&) = delete;

  // What the domain's keys are made with.
  const DomainSecret& secret() const { return secret_; }
  KeyHash key_hash() const { return key_hash_; }
  const std::string& domain_name() const { return domain_name_; }

  // The body of the answer; otherwise a sentence in why(). Of a status that is not kOk it is the
  // daemon's.
  Result<std::vector<std::byte>> Ask(protocol::Verb verb, std::span<const std::byte> body);
  const std::string& why() const { return why_; }
  // Whenever the time for an answer is over it is waited for as long again, if `goes_on` says so.
  void WaitWhile(std::function<bool()> goes_on) { goes_on_ = std::move(goes_on); }

 private:
  AdminLink(int fd, uint32_t timeout_ms) : fd_(fd), timeout_(timeout_ms) {}
  // In `*why` what a person is told. kIo: nobody has answered.
  static Status Connect(const DaemonAddress& address, std::unique_ptr<AdminLink>* link,
                        std::string* why);
  Status Hello();
  Status Send(protocol::Verb verb, std::span<const std::byte> body);
  Status Receive(std::vector<std::byte>* body);
  Status ReceiveBytes(std::span<std::byte> bytes);
  // Until the socket is ready for poll's `events`, or the time for this answer is over.
  Status Await(short events);
  Status Broken(std::string why);

  const int fd_;
  const std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point deadline_;
  std::function<bool()> goes_on_;
  uint64_t request_id_ = 0;
  DomainSecret secret_{};
  KeyHash key_hash_ = KeyHash::kXxh3;
  std::string domain_name_;
  std::string why_;
};

}  // namespace terrace::tools
