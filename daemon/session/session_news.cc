// What sessions are told beside their replies: news from the store, and answers that came later.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "daemon/session/session.h"
#include "daemon/session/session_state.h"
#include "terrace/check.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

using protocol::Verb;

namespace {

constexpr std::string_view kNotDurable =
    "erased, but that has not been written down for 3 s, by the NVMe tier or in state_dir (of kept "
    "memory, of drives that are away and of Redis servers that have not been told): a crash now "
    "could bring blocks back; see what `terrace status` and the log say of both, and ask again to "
    "learn when they cannot";
static_assert(protocol::kErasureWaitUs == 3'000'000);

}  // namespace

void SessionTable::AddNews(Session& session, Verb verb, uint64_t request_id, Status status,
                           std::span<const std::byte> body) {
  Reply news;
  news.Begin(verb, request_id, options_.boot_id, status);
  news.AddArray(body);
  news.AppendPage(session.request != nullptr ? &session.held : &session.output);
  if (!session.is_dirty) dirty_.push_back(session.context.session);
  session.is_dirty = true;
}

void SessionTable::PassAwaited(Session& session, uint64_t request_id, uint32_t end_block) {
  const auto found = std::ranges::find(session.pending, request_id, &Session::Pending::id);
  if (found == session.pending.end() || found->awaited == nullptr) return;
  auto& spans = found->awaited->spans;
  while (spans.size() > 1 && spans.front().first <= end_block) {
    spans.erase(spans.begin());
    found->awaited->request.times.Enter(spans.front().second, store_->events().NowUs());
  }
}

void SessionTable::EndPending(Session& session, uint64_t request_id, StatusCode status) {
  const auto awaited = session.EndPending(request_id);
  if (awaited != nullptr) EndAwaited(session, awaited->request, status);
}

void SessionTable::EndAwaited(const Session& session, SlowRequest& request, StatusCode status) {
  if (request.verb == protocol::kVerbFsck) return;  // a question is as much as takes a second
  request.times.Enter(RequestPhase::kReply, store_->events().NowUs());
  request.status = status;
  slow_log_.Note(session.peer.domain_index, request);
}

void SessionTable::OnSent(SessionId id) {
  Session* const session = Find(id);
  if (session == nullptr || !session->is_replied) return;
  session->timed.times.Enter(RequestPhase::kReply, store_->events().NowUs());
  EndTimes(*session);
}

void SessionTable::OnCompletion(SessionId id, uint64_t request_id, Status status,
                                const protocol::Completion& completion) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  AddNews(*session, Verb::kCompletion, request_id, status,
          std::as_bytes(std::span(&completion, 1)));
  if ((completion.flags & protocol::kCompletionLast) != 0) {
    EndPending(*session, request_id, status.code());
  } else if (completion.part_count == 0) {
    PassAwaited(*session, request_id, completion.first_block + completion.block_count);
  }
}

// Who let go of the lease expects no answer.
void SessionTable::OnRequestDropped(SessionId id, uint64_t request_id) {
  Session* session = Find(id);
  if (session != nullptr && !session->is_closed) {
    EndPending(*session, request_id, StatusCode::kGone);
  }
}

void SessionTable::OnWaitDone(SessionId id, uint64_t request_id, Status status) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  EndPending(*session, request_id, status.code());
  if (EndErasing(*session, request_id, status)) return;
  const std::string_view text = status.what();
  AddNews(*session, Verb::kWait, request_id, status, std::as_bytes(std::span(text)));
}

bool SessionTable::EndErasing(Session& session, uint64_t request_id, Status status) {
  const auto found = std::ranges::find(session.erasing, request_id, &Session::Erasing::request_id);
  if (found == session.erasing.end()) return false;
  const Session::Erasing erasing = *found;
  session.erasing.erase(found);
  std::span<const std::byte> body;
  if (!status.ok()) {
    body = std::as_bytes(std::span(kNotDurable));
  } else if (erasing.verb != Verb::kReset) {
    body = std::as_bytes(std::span(&erasing.evicted, 1));
  }
  AddNews(session, erasing.verb, request_id, status, body);
  return true;
}

void SessionTable::OnLeaseRevoked(SessionId id, const LeaseToken& token) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  const protocol::LeaseRevoked revoked{token};
  AddNews(*session, Verb::kLeaseRevoked, 0, Status::Ok(), std::as_bytes(std::span(&revoked, 1)));
}

void SessionTable::OnSegmentRevoke(SessionId id, uint32_t segment) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  const protocol::SegmentRevoke revoke{.segment = segment};
  AddNews(*session, Verb::kSegmentRevoke, 0, Status::Ok(), std::as_bytes(std::span(&revoke, 1)));
}

void SessionTable::OnWorkOrder(SessionId id, const protocol::WorkOrder& order,
                               std::span<const uint64_t> part_bytes) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  std::vector<std::byte> body(sizeof(order) + part_bytes.size_bytes());
  std::memcpy(body.data(), &order, sizeof(order));
  if (!part_bytes.empty()) {
    std::memcpy(body.data() + sizeof(order), part_bytes.data(), part_bytes.size_bytes());
  }
  AddNews(*session, protocol::kVerbWorkOrder, 0, Status::Ok(), body);
}

void SessionTable::OnPinTurn(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  AddNews(*session, protocol::kVerbPinTurnBegins, 0, Status::Ok(), {});
}

void SessionTable::OnSeekDone(SessionId id, uint64_t request_id) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed || !session->is_seeking) return;
  TERRACE_CHECK(session->request != nullptr, "what waits for the answer of a seek is a request");
  if (session->request->id() != request_id) return;
  session->is_seeking = false;
  session->timed.times.Enter(RequestPhase::kQueue, store_->events().NowUs());
  EnqueueWork(*session);
}

}  // namespace terrace
