// Connection: what a Client has of the daemon now: the socket, its number, the attachment that the
// handshake gave, and, while there is none, why.
//
// A connection is *numbered*, from 1 on; what belongs to an earlier one is kGone. The background
// thread begins one, the reader ends it; leases may keep the attachment of an earlier one.
//
// THREADING: any thread, but what REQUIRES the reader role, or is the background thread's.
// `state_lock_` guards the attachments, the last refusal and the last error; it is held for pointer
// and string work only. FORK: in a child of fork() only is_forked() may be called.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/arena/attachment.h"
#include "client/link/fork_guard.h"
#include "client/link/frames.h"
#include "client/link/link.h"
#include "client/link/timed_lock.h"
#include "client/session/handshake.h"
#include "terrace/client.h"

namespace terrace::client {

class Connection {
 public:
  explicit Connection(const ClientOptions& options);

  // Makes the descriptors. kIo if the system gives none.
  Status Open() { return link_.Open(); }
  // The Client ends: who waits is woken, the socket breaks, and attachments are dropped by whoever
  // lets them go.
  void Stop();
  // Whether Stop was called; a Handshake looks at it, too.
  const std::atomic<bool>& is_stopping() const { return is_stopping_; }

  bool is_forked() const { return fork_generation_ != ForkGeneration(); }
  bool is_connected() const { return number() != 0; }
  // Of the present connection; 0 while there is none.
  uint32_t number() const { return link_.connection(); }
  // Of the present connection, or while there is none the one before: see Attachment.
  bool is_reader() const { return is_reader_.load(); }
  // Of the daemon; 0 while there is none.
  uint64_t boot_id() const { return boot_id_.load(); }
  // The daemon's limit, of the connection before while there is none.
  uint32_t keys_per_request_max() const { return keys_per_request_max_.load(); }
  // What the present connection's handshake gave; null while there is none.
  std::shared_ptr<Attachment> attachment() const;
  // The same without the lock. REQUIRES: the reader role.
  const std::shared_ptr<Attachment>& readers_attachment() const { return attachment_; }

  // kOk when there is a connection; kBusy at the deadline, kGone if the Client ends, else the final
  // refusal of the last attempt.
  Status WaitUntilConnected(uint64_t deadline_us);

  // kGone if `connection` is not the present one; kBusy if send_buffer_bytes_max bytes are unsent,
  // or the deadline passed before it was this thread's turn to send.
  Status Send(uint32_t connection, const Outgoing& message, uint64_t deadline_us);
  // A message whose answer nobody waits for. It is never refused: rather the connection breaks.
  void SendUnawaited(uint32_t connection, protocol::Verb verb,
                     std::array<std::span<const std::byte>, 4> parts);
  // Tells the daemon that this process has a segment not mapped any more.
  void SendUnmapped(uint32_t connection, uint32_t segment);

  // ---- the reader and the background thread ----
  // The handshake is done: `attachment` is the present one. Attach is to follow.
  // REQUIRES: the reader role.
  void SetAttachment(std::shared_ptr<Attachment> attachment);
  // From here on messages are sent and received. As Link::Attach. REQUIRES: the reader role,
  // SetAttachment.
  Status Attach(GuardedFd socket, uint32_t connection);
  // Who waits for a connection looks again.
  void WakeWaiting() { connecting_.WakeAll(); }
  // An attempt failed.
  void Refuse(const Refusal& refusal);
  // The socket is closed and the attachment left to DropUnused. REQUIRES: the reader role.
  void Detach();
  // Lets go of the attachment of a lease that `connection` gave. Of one that is gone it may be the
  // last, and unmapping all of an arena takes long; so does memory of a device, and may wait for
  // it: then the background thread does it, as long as there is one.
  void DropLater(std::shared_ptr<Attachment> attachment, uint32_t connection);
  // Lets go of the attachments that Detach and DropLater left. The background thread's.
  void DropUnused();
  Link& link() { return link_; }

  // The last sentence for a person.
  void SetError(std::string_view text) noexcept;
  // If that still is the last sentence, there is none.
  void ClearError(std::string_view text);
  std::string last_error() const;

 private:
  const ClientOptions& options_;
  const uint32_t fork_generation_;
  Link link_;
  std::atomic<uint64_t> boot_id_{0};
  std::atomic<bool> is_reader_{false};
  std::atomic<uint32_t> keys_per_request_max_{protocol::kKeysPerRequestMax};
  std::atomic<uint32_t> unawaited_count_{0};
  std::atomic<bool> is_stopping_{false};
  Sleepers connecting_;  // callers of WaitUntilConnected

  mutable TimedLock state_lock_;
  std::shared_ptr<Attachment> attachment_;           // changed by the reader only
  std::shared_ptr<Attachment> retired_;              // of the connection before
  std::vector<std::shared_ptr<Attachment>> unused_;  // their leases were the last owners
  Refusal refusal_;                                  // the last attempt's
  std::string last_error_;
};

// A sentence about a request, with the words by which `terrace slow` and the daemon's log name it.
void SetErrorOf(Connection& connection, uint64_t request_id, std::string_view sentence) noexcept;

}  // namespace terrace::client
