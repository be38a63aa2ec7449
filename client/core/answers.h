// Answers: what the daemon's answer does to the request it belongs to: its status and results, the
// lease it gives, the parts it commits. Nothing is ended here.
//
// THREADING: the reader of the connection.
#pragma once

#include <string_view>

#include "client/core/request_table.h"
#include "client/lease/leases.h"
#include "client/link/frames.h"
#include "client/session/connection.h"

namespace terrace::client {

class Answers {
 public:
  Answers(Connection& connection, Leases& leases) : connection_(connection), leases_(leases) {}

  // What the daemon says of a request that it refuses.
  static std::string_view TextOf(const Message& message);
  // Whether an answer to `verb` may bring a lease.
  static bool GivesLease(protocol::Verb verb);
  // Fills in a claimed request. Null, or what is wrong with the answer: then the request's status
  // is kGone, and the connection is worth nothing any more.
  const char* Take(const Message& message, Request& request);
  // Of an answer that nobody waits for: it leaves nothing behind in the daemon.
  void GiveBack(const Message& message);

 private:
  const char* TakeLease(const Message& message, Request& request);
  const char* TakeCommit(const Message& message, Request& request);

  Connection& connection_;
  Leases& leases_;
};

}  // namespace terrace::client
