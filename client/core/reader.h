// Reader: takes messages from the connection and brings each to where it belongs: answers to their
// requests, completions and revocations to leases, orders and turns to the device's parts.
//
// Who waits, reads: a blocking caller takes the reader role for as long as it waits; the background
// thread reads for asynchronous requests and what comes unasked. Whoever reads the end of a
// connection, or nonsense, tears it down: leases become invalid, requests end with kGone.
//
// THREADING: whoever holds the ReaderRole, but for Begin and End, which take it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "client/core/answers.h"
#include "client/core/pending_requests.h"
#include "client/lease/leases.h"
#include "client/link/fork_guard.h"
#include "client/link/frames.h"
#include "client/link/reader_role.h"
#include "client/session/arena_pins.h"
#include "client/session/connection.h"
#include "client/session/group.h"
#include "client/session/work_orders.h"

namespace terrace::client {

// Whom messages are for.
struct Receivers {
  PendingRequests& requests;
  Leases& leases;
  ArenaPins& pins;
  WorkOrders& orders;
  const GroupTable& groups;
};

class Reader {
 public:
  Reader(const ClientOptions& options, Connection& connection, ReaderRole& role,
         const Receivers& receivers);

  // The background thread has made a connection: from here on it is read.
  struct Session {
    std::shared_ptr<Attachment> attachment;
    GuardedFd socket;
    FrameReader frames;  // with what came beyond the handshake
    uint32_t connection = 0;
  };
  void Begin(Session session);
  // The Client ends: nothing is read any more.
  void End();

  // Until `awaited` is over, the connection is, or the deadline (CLOCK_MONOTONIC, µs).
  void ReadWhile(const Awaited& awaited, uint64_t deadline_us);
  // Takes what the socket has. False when it has nothing now, or the connection ended.
  bool ReadOnce();
  // Gives the role back; the background thread listens if somebody wants what may come.
  void Leave();

 private:
  bool Sleep(const Awaited& awaited, uint64_t deadline_us);
  void Dispatch();
  void OnMessage(const Message& message);
  void OnAnswer(const Message& message);
  void OnUnawaited(const Message& message);
  void OnReopened(const Message& message);
  void OnCompletion(const Message& message);
  void OnLeaseRevoked(const Message& message);
  void OnSegmentRevoke(const Message& message);
  void OnWorkOrder(const Message& message);
  void BreakOnAnswer(const Message& message, const char* why) noexcept;
  void BreakUnheard(const Status& attached);
  void Break(std::string_view why);
  void Teardown();

  const ClientOptions& options_;
  Connection& connection_;
  ReaderRole& role_;
  const Receivers to_;
  Answers answers_;
  // The reader's.
  FrameReader frames_{protocol::kFrameBytesMax};
  bool is_broken_ = true;  // no connection, or torn down
};

}  // namespace terrace::client
