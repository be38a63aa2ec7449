// How written parts become a Commit and what its answer does to them. A part that was sent in a
// Commit whose answer is not there yet belongs to that request; if it was refused or could not be
// sent, the part goes back to the lease and the next Commit tries again.
#pragma once

#include "client/core/request_table.h"
#include "client/link/frames.h"
#include "terrace/status.h"

namespace terrace::client {

// Whether all that a lease has written can be said within so many bytes.
bool IsOneCommit(LeaseState& lease, uint64_t bytes_max);

// Moves what the request's lease has written to the request and says it in `*message`; of more than
// `bytes_max` say, as much as they do, and request.has_more. A Commit that releases takes all.
// Token and entry count of request.commit are filled in, and how many parts the codec refused; its
// flags and other hints are the caller's. May throw std::bad_alloc; all is the lease's again then.
void BuildCommit(Request& request, uint64_t bytes_max, Outgoing* message);

// Gives the parts of a Commit back to its lease, and how many the codec refused, which the daemon
// has not counted; the lease goes on if the Commit was to release it. Of any other request there
// are none.
void ReturnWritten(Request& request);

// Accounts for an answer. Returns kOk, or, if no block was sealed, the first refusal of an entry.
StatusCode AccountCommit(Request& request, const protocol::CommitReply& reply,
                         std::span<const std::byte> entry_statuses);

}  // namespace terrace::client
