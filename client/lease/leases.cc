#include "client/lease/leases.h"

#include <new>
#include <span>
#include <utility>
#include <vector>

namespace terrace::client {

void Leases::Admit(LeaseState& lease) {
  registry_.Add(lease);
  lease.is_valid = true;
}

void Leases::GiveUpJoin(LeaseState& lease) {
  if (lease.is_end_sent.exchange(true)) return;
  SendRelease(lease.connection, lease.token, 0, registry_.GiveUp(lease));
}

bool Leases::CloseForRelease(LeaseState& lease) {
  if (lease.copy_count.load() != 0) return false;
  // As a revocation: a copy that does not see this is seen.
  lease.is_valid = false;
  return lease.copy_count.load() == 0;
}

void Leases::StayOpen(LeaseState& lease) {
  registry_.ForToken(lease.token, [&](LeaseState& found) {
    if (&found != &lease || lease.is_revoked.load()) return;
    // Under the registry's lock: whoever takes the number away invalidates all leases next.
    if (lease.connection != connection_.number()) return;
    lease.is_valid = true;
    // Its user says so first: who ends it meanwhile is seen here, or sees it valid no more.
    if (lease.is_end_wanted.load()) lease.is_valid = false;
  });
  SendEndIfDue(lease);
}

void Leases::EndedByCommit(LeaseState& lease) {
  lease.is_valid = false;
  if (!lease.is_end_sent.exchange(true)) registry_.Remove(lease);
}

void Leases::SendEndIfDue(LeaseState& lease) {
  if (!lease.TakeEnd()) return;
  uint32_t ends_owed = registry_.Remove(lease);
  registry_.SettleProgress(lease);
  if (lease.connection != connection_.number()) return;
  // What this process did not finish nobody can: other joiners' parts of it are worthless.
  if (lease.kind == LeaseState::Kind::kWrite && !lease.is_revoked && ends_owed > 0) {
    if (SendAbort(lease)) --ends_owed;
  }
  SendRelease(lease.connection, lease.token, lease.end_reason, ends_owed);
}

void Leases::GiveBack(const LeaseToken& token) {
  if (!registry_.Inherit(token)) SendRelease(connection_.number(), token, 0, 1);
}

void Leases::OnCompletion(const protocol::Completion& completion, const Message& message) {
  registry_.ForToken(completion.token, [&](LeaseState& lease) {
    if (lease.request_id != message.request_id || !lease.is_coming.load()) return;
    if (!message.status().ok()) {
      lease.BlocksLeft(completion.first_block);
    } else if ((completion.flags & protocol::kCompletionAbsent) != 0 || completion.part_count > 0) {
      lease.PartsReadable(completion);
    } else {
      lease.BlocksReady(completion.first_block, completion.block_count);
    }
    if ((completion.flags & protocol::kCompletionLast) != 0) registry_.SettleProgress(lease);
  });
}

void Leases::OnRevoked(const LeaseToken& token) {
  const uint32_t ends_owed = registry_.Revoke(token);
  SendRelease(connection_.number(), token, 0, ends_owed);
}

void Leases::SendRelease(uint32_t connection, const LeaseToken& token, uint8_t end_reason,
                         uint32_t times) {
  protocol::ReleaseRequest release;
  release.token = token;
  release.hints.end_reason = static_cast<protocol::EndReason>(end_reason);
  for (uint32_t i = 0; i < times; ++i) {
    connection_.SendUnawaited(connection, protocol::Verb::kRelease, {BytesOf(release)});
  }
}

bool Leases::SendAbort(LeaseState& lease) {
  protocol::AbortRequest abort;
  abort.token = lease.token;
  abort.parts_refused = lease.parts_refused.exchange(0);
  std::vector<uint32_t> key_indexes;
  bool is_whole = true;
  try {
    LockGuard guard(lease.write_lock);
    for (uint32_t key = 0; key < lease.reserved.size(); ++key) {
      if (!lease.is_reserved(key)) continue;
      if (lease.IsCommitted(key)) {
        is_whole = false;
      } else {
        key_indexes.push_back(key);
      }
    }
  } catch (const std::bad_alloc&) {
    // Aborting what was committed as well costs hits, never bytes.
    is_whole = true;
  }
  if (is_whole) key_indexes.clear();
  abort.key_count = static_cast<uint32_t>(key_indexes.size());
  if (is_whole || abort.key_count > 0) {
    connection_.SendUnawaited(lease.connection, protocol::Verb::kAbort,
                              {BytesOf(abort), std::as_bytes(std::span(key_indexes))});
  }
  return is_whole;
}

void Leases::Retire(LeaseState& lease) {
  // In a child of fork() the parent's locks may be held by threads that do not exist here.
  if (lease.owner->is_forked()) return;
  const std::shared_ptr<Leases> owner = std::move(lease.owner);
  owner->End(lease);
  owner->pool_.Put(&lease);
}

void Leases::End(LeaseState& lease) {
  // Its caller was gone when the first page came: nobody else lets go of it.
  if (lease.has_more && !lease.token.is_zero()) GiveUpJoin(lease);
  lease.is_valid = false;
  lease.is_end_wanted = true;
  SendEndIfDue(lease);
  // From here on nothing finds it any more.
  SendRelease(lease.connection, lease.token, lease.end_reason, registry_.Remove(lease));
  if (lease.attachment == nullptr) return;
  for (const uint32_t segment : lease.segments) {
    if (lease.attachment->ReleaseSegment(segment)) {
      connection_.SendUnmapped(lease.connection, segment);
    }
  }
  lease.segments.clear();
  connection_.DropLater(std::move(lease.attachment), lease.connection);
}

}  // namespace terrace::client
