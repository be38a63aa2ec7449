#include "client/core/bypass.h"

#include <cstring>

namespace terrace::client {
namespace {

using protocol::Verb;

template <typename T>
void SetBody(Request& request, const T& value) {
  request.body.resize(sizeof(value));
  std::memcpy(request.body.data(), &value, sizeof(value));
}

}  // namespace

bool Bypass::Takes(Verb verb) const {
  switch (verb) {
    case Verb::kMatch:
    case Verb::kAcquire:
    case Verb::kPrefetch:
    case Verb::kTouch:
    case Verb::kReserve:
    case Verb::kCommit:
    case Verb::kQuery:
    case Verb::kWait:
      return is_on();
    default:
      return false;
  }
}

void Bypass::Answer(Request& request) {
  answered_count_.fetch_add(1, std::memory_order_relaxed);
  switch (request.asked.verb) {
    case Verb::kMatch:
      return SetBody(request, protocol::MatchReply());
    case Verb::kQuery:  // a QueriedBlock of zeroes is absent
      return request.body.assign(request.asked.key_count * sizeof(protocol::QueriedBlock),
                                 std::byte(0));
    case Verb::kWait:
      request.status =
          Status(StatusCode::kNotFound, "the domain is bypassed: nothing is known of the blocks");
      return;
    case Verb::kAcquire:
    case Verb::kReserve:
      return AnswerLease(request);
    case Verb::kCommit:
      return DropCommit(request);
    default:
      return;  // Prefetch: 0 blocks; Touch: the status says all
  }
}

// A miss, or no room for any key: nothing that the daemon knows of, or is told the end of.
void Bypass::AnswerLease(Request& request) {
  LeaseState& lease = *request.lease;
  lease.connection = request.connection;
  lease.request_id = request.id;
  if (lease.kind == LeaseState::Kind::kRead) {
    request.status = lease.PrepareRead();
  } else {
    constexpr protocol::ReservedKey kNoRoom{.status = static_cast<uint8_t>(StatusCode::kNoSpace)};
    lease.block_count = request.asked.key_count;
    lease.reserved.assign(request.asked.key_count, kNoRoom);
    request.status = lease.PrepareWrite();
  }
  if (request.status.ok()) leases_.Admit(lease);
}

// What was written is forgotten; its slots go back with the end of the lease.
void Bypass::DropCommit(Request& request) {
  LeaseState& lease = *request.lease;
  {
    LockGuard guard(lease.write_lock);
    lease.written.clear();
  }
  if ((request.commit.flags & protocol::kCommitRelease) == 0) return;
  lease.is_end_wanted = true;
  lease.is_valid = false;
  leases_.SendEndIfDue(lease);
}

}  // namespace terrace::client
