// Bypass: what calls are answered while an operator has the domain bypassed (`terrace drain
// --bypass`): at once, as by a cache that is empty and takes nothing. The daemon hears nothing of
// them; only what was held before is given back to it.
//
// THREADING: any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "client/core/request_table.h"
#include "client/lease/leases.h"
#include "client/session/notice_board.h"
#include "terrace/protocol.h"

namespace terrace::client {

class Bypass {
 public:
  Bypass(const NoticeBoard& notices, Leases& leases) : notices_(notices), leases_(leases) {}
  Bypass(const Bypass&) = delete;
  Bypass& operator=(const Bypass&) = delete;

  // Whether a request of this verb is to be answered here, now. What only takes part in what is
  // held (Join), erases (Evict, Reset), pins or looks after the daemon (Stats, List) never is.
  bool Takes(protocol::Verb verb) const;
  // Fills in the request, as an answer would have. May throw std::bad_alloc.
  void Answer(Request& request);

  bool is_on() const { return notices_.is_bypassed(); }
  // Requests that were answered here, since the Client began.
  uint64_t answered_count() const { return answered_count_.load(std::memory_order_relaxed); }

 private:
  void AnswerLease(Request& request);
  void DropCommit(Request& request);

  const NoticeBoard& notices_;
  Leases& leases_;
  std::atomic<uint64_t> answered_count_{0};
};

}  // namespace terrace::client
