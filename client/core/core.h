// Core: the parts of a Client, put together, and its background thread. It lives until the last
// lease is gone, for a lease has to be ended on the connection that gave it.
//
//   Calls ► Reader ► PendingRequests, Leases, ArenaPins, WorkOrders ► Connection ► Link
//   Background ► Reader, …: the thread
//
// THREADING: any thread, but Start and Stop, which the Client's maker and destroyer call.
// OWNERSHIP: shared by the Client, its background thread, and each lease.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "client/core/bypass.h"
#include "client/core/calls.h"
#include "client/core/pending_requests.h"
#include "client/core/reader.h"
#include "client/lease/leases.h"
#include "client/link/reader_role.h"
#include "client/session/arena_pins.h"
#include "client/session/connection.h"
#include "client/session/group.h"
#include "client/session/notice_board.h"
#include "client/session/work_orders.h"
#include "terrace/client.h"

namespace terrace::client {

class Core : public std::enable_shared_from_this<Core> {
 public:
  // Starts the background thread. kNoSpace or kIo with `*why`.
  static Result<std::shared_ptr<Core>> Start(const ClientOptions& options, std::string* why);
  // Ends everything pending with kGone. Leases stay mapped.
  void Stop();

  const ClientOptions& options() const { return options_; }
  Connection& connection() { return connection_; }
  const Connection& connection() const { return connection_; }
  GroupTable& groups() { return groups_; }
  Calls& calls() { return calls_; }
  CompletionQueue& completions() { return requests_.completions(); }
  ArenaPins& pins() { return pins_; }
  const Bypass& bypass() const { return bypass_; }

  // A cleared lease that keeps this Core. May throw std::bad_alloc.
  std::shared_ptr<LeaseState> NewLease();
  bool IsLeaseOfMine(const LeaseState& lease) const { return lease.owner.get() == &leases_; }
  // A Join ended between two pages: the daemon's lease is let go.
  void GiveUpJoin(LeaseState& lease) { leases_.GiveUpJoin(lease); }

 private:
  Core(const ClientOptions& options, std::string device_name);

  const ClientOptions options_;
  const std::string device_name_;  // how others know ClientOptions::device; empty: there is none
  NoticeBoard notices_;            // what a daemon said last stands when its connection has ended
  Connection connection_{options_};
  ReaderRole role_;
  GroupTable groups_;
  Leases leases_{connection_};
  PendingRequests requests_{options_, connection_.link(), role_};
  ArenaPins pins_{options_, connection_, role_};
  WorkOrders orders_{connection_, pins_};
  Reader reader_{options_, connection_, role_, {requests_, leases_, pins_, orders_, groups_}};
  Bypass bypass_{notices_, leases_};
  Calls calls_{connection_, role_, reader_, requests_, bypass_};
  std::thread background_;
};

}  // namespace terrace::client
