// Background: the one thread a Client has of its own: connects, reads when asynchronous requests
// wait, ends those whose deadline has passed, runs callbacks, carries out work orders, and shows
// the daemon that this process lives.
//
// THREADING: Run and all it calls: that thread.
#pragma once

#include <cstdint>
#include <string>

#include "client/core/pending_requests.h"
#include "client/core/reader.h"
#include "client/lease/leases.h"
#include "client/link/link.h"
#include "client/link/reader_role.h"
#include "client/session/connection.h"
#include "client/session/group.h"
#include "client/session/handshake.h"
#include "client/session/notice_board.h"
#include "client/session/work_orders.h"
#include "terrace/client.h"

namespace terrace::client {

class Background {
 public:
  // What the thread works on; it outlives Run.
  struct Parts {
    const ClientOptions& options;
    const std::string& device_name;  // how others know ClientOptions::device; empty: there is none
    NoticeBoard& notices;
    Connection& connection;
    const GroupTable& groups;
    Leases& leases;
    PendingRequests& requests;
    WorkOrders& orders;
    ReaderRole& role;
    Reader& reader;
  };
  explicit Background(const Parts& parts) : to_(parts), link_(parts.connection.link()) {}
  // Until Connection::Stop; ends everything pending on the way out.
  void Run();

 private:
  void RunOnce();
  bool Connect();
  bool OpenGroups(Handshake& handshake, uint32_t connection);
  bool AttachDevice(Handshake& handshake);
  void Serve();
  void Read(Link::Event event);
  void BackOff();
  // When it wants to be called again.
  uint64_t ShowLife();
  // Asks again for groups that this daemon refused to open again; the reader takes the answers.
  // When it wants to be called again.
  uint64_t ReopenGroups();
  uint64_t ReopenUs() const;
  // Callbacks of the user, and memory that was left to be unmapped.
  void CleanUp();

  const Parts to_;
  Link& link_;
  uint32_t connection_count_ = 0;
  uint64_t device_refused_boot_id_ = 0;  // the daemon that is not asked for its device again
  uint64_t connected_at_us_ = 0;
  std::string unconnected_why_;  // the last failure of a handshake
  uint64_t backoff_us_ = 0;
  uint64_t random_state_ = 0;
  uint32_t sent_count_seen_ = 0;
  uint64_t sent_at_us_ = 0;
  uint64_t reopen_at_us_ = 0;
};

}  // namespace terrace::client
