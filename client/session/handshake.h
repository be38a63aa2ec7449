// Handshake: from a socket path to a session: connect, Hello with its descriptors, and Open of
// every group the user has opened before. Runs on the background thread; nobody else knows the
// socket yet.
//
// LIMITS: kAnswerUsMax for each answer; a wake-up interrupts any wait: Stop is prompt, and what the
// thread has to do besides is done meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/arena/attachment.h"
#include "client/link/fork_guard.h"
#include "client/link/frames.h"
#include "client/session/group.h"
#include "terrace/client.h"

namespace terrace::client {

inline constexpr uint64_t kAnswerUsMax = 5'000'000;

// Why there is no session.
struct Refusal {
  Status status;
  std::string text;       // for a person
  bool is_final = false;  // trying again alone will not help: a person has to do something
};

class Handshake {
 public:
  // `stopping` ends it early; who sets it writes to `wake_fd`. `on_wake` is called whenever that
  // was written to.
  Handshake(const ClientOptions& options, int wake_fd, const std::atomic<bool>& stopping,
            std::function<void()> on_wake)
      : options_(options), wake_fd_(wake_fd), stopping_(stopping), on_wake_(std::move(on_wake)) {}

  // Connects and says Hello. May throw std::bad_alloc.
  bool Run(Refusal* refusal);
  // Opens `group` under the session's number `connection`. A group the daemon refuses is unbound,
  // its refusal in `*refusal`; false if the session broke.
  bool Open(Group& group, uint32_t connection, Refusal* refusal);

  // Asks for the memory of ClientOptions::device, which others know by `device_name`. A daemon that
  // has none for this session says why in `*refusal`, and the session goes on without; false if it
  // broke. After kInvalid the daemon does not know the verb, or has granted what this process
  // cannot map: connect without.
  bool AttachDevice(std::string_view device_name, Refusal* refusal);

  std::shared_ptr<Attachment> attachment() const { return attachment_; }
  GuardedFd TakeSocket() { return std::move(socket_); }
  // Closed if the daemon has none.
  const GuardedFd& notices() const { return notices_; }
  // With what the daemon sent beyond the last answer.
  FrameReader TakeReader() { return std::move(reader_); }

 private:
  bool Connect(Refusal* refusal);
  bool Hello(Refusal* refusal);
  // Sends a request, once, and takes its answer. Segments that are revoked meanwhile are given up.
  bool Ask(const Outgoing& message, Message* answer, Refusal* refusal);
  bool AcknowledgeRevoke(const Message& message, Refusal* refusal);
  bool Send(const Outgoing& message, Refusal* refusal);
  // The next message, collecting descriptors.
  bool Receive(Message* message, Refusal* refusal);
  bool ReceiveBytes(uint64_t deadline_us, Refusal* refusal);
  bool WaitFor(short events, uint64_t deadline_us, Refusal* refusal) const;
  bool Refuse(Status status, std::string text, Refusal* refusal) const;

  const ClientOptions& options_;
  int wake_fd_;
  const std::atomic<bool>& stopping_;
  const std::function<void()> on_wake_;
  GuardedFd socket_;
  FrameReader reader_{protocol::kFrameBytesMax};
  std::vector<GuardedFd> fds_;
  GuardedFd notices_;
  std::shared_ptr<Attachment> attachment_;
  uint64_t next_request_id_ = 1;
};

}  // namespace terrace::client
