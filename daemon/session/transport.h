// Transport: how sessions reach their clients. The shell implements it with sockets, simulation
// with queues; sessions know neither.
//
// THREADING: store thread. No call blocks, and none calls back into the SessionTable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/block/store_listener.h"

namespace terrace {

enum class CloseReason : uint8_t {
  kClientLeft,   // the client ended the connection
  kMalformed,    // its frames cannot be believed
  kDescriptors,  // it sent file descriptors
  kRefused,      // Hello was answered with an error
  kSlowReader,   // it does not read what it asked for
  kNoBuffers,    // all sessions together hold too much, and it the most
  kNoHello,      // it said none in time, or too many have not and its user has the most of them
};
inline constexpr size_t kCloseReasonCount = 7;
const char* CloseReasonName(CloseReason reason);

class Transport {
 public:
  // What travels beside the bytes: the Hello reply carries the domain's arena memfds, a reader's
  // open for reading alone, and one end of the session's life socket, and the notice page if it was
  // asked for; that of DeviceAttach the slabs of its HBM tier.
  enum class Attach {
    kNothing,
    kArenaAndLife,
    kArenaLifeAndNotices,
    kReadersArenaAndLife,
    kReadersArenaLifeAndNotices,
    kDeviceSlabs
  };

  virtual ~Transport() = default;
  // Takes whole frames over; sends what the connection takes now and keeps the rest. Returns the
  // bytes kept for this session. A dead connection swallows them.
  virtual uint64_t Send(SessionId session, std::span<const std::byte> bytes, Attach attach) = 0;
  // Bytes kept, over all sessions and for one.
  virtual uint64_t unsent_bytes() const = 0;
  virtual uint64_t unsent_bytes_of(SessionId session) const = 0;
  // No more input is taken from this session until ResumeInput.
  virtual void ResumeInput(SessionId session) = 0;
  // Ends the connection once what was sent is out, or at once if it does not drain. No OnHangUp
  // follows; proof of death still does, if the session had its life socket.
  virtual void Close(SessionId session, CloseReason reason) = 0;
  // The session has ended, and there is nothing to prove: once its last bytes are out nothing is
  // left of it. OnProofOfDeath does not follow.
  virtual void Forget(SessionId session) = 0;
};

}  // namespace terrace
