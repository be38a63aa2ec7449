#include "daemon/session/session.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "daemon/session/operator_events.h"
#include "daemon/session/session_state.h"
#include "terrace/check.h"

namespace terrace {

using protocol::Verb;

namespace {

constexpr size_t kAwaitedSpansMax = 16;  // what is behind counts as the last of them
constexpr size_t kOutputCapacityKeptBytes = 512 * kKiB;

// Of a verb that is refused an empty one.
const VerbRow& RowOf(Verb verb) {
  static constexpr VerbRow kNone{};
  const VerbRow* const row = FindVerb(verb);
  return row != nullptr ? *row : kNone;
}

uint32_t Spend(uint32_t budget_blocks, uint64_t cost_blocks) {
  return budget_blocks - static_cast<uint32_t>(std::min<uint64_t>(budget_blocks, cost_blocks));
}

}  // namespace

SessionTable::SessionTable(SessionTableOptions options, Transport& transport,
                           StatsSource stats_source)
    : options_(std::move(options)),
      stats_source_(std::move(stats_source)),
      transport_(transport),
      admin_([this](SessionId id, Verb verb, uint64_t request_id, const Error& error,
                    const std::string& document) {
        Session* const session = Find(id);
        if (session == nullptr || session->is_closed) return;
        EndPending(*session, request_id, error.status().code());
        const std::string text = error.ok() ? document : error.sentence();
        AddNews(*session, verb, request_id, error.status(), std::as_bytes(std::span(text)));
      }) {
  TERRACE_CHECK(options_.boot_id != 0, "clients read boot id 0 as no daemon");
  slow_log_.SetLimit(options_.slow_request_ms);
  std::vector<std::string> names;
  for (const SessionDomain& domain : options_.domains) names.push_back(domain.name);
  slow_log_.NameDomains(names);
  admin_.NameDomains(std::move(names));
}

SessionTable::~SessionTable() = default;

SessionTable::Session* SessionTable::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

// ---- from the transport -------------------------------------------------------------------------

void SessionTable::OnAccept(SessionId id, const PeerIdentity& peer) {
  TERRACE_CHECK(peer.domain_index < options_.domains.size(), "every socket belongs to a domain");
  if (strangers_.size() >= options_.strangers_max) CloseStranger();
  strangers_.push_back(id);
  auto session = std::make_unique<Session>();
  session->peer = peer;
  session->timed.session = id;
  session->timed.uid = peer.uid;
  session->timed.pid = peer.pid;
  session->context.session = id;
  session->context.boot_id = options_.boot_id;
  session->context.uid = peer.uid;
  const bool is_new = sessions_.emplace(id, std::move(session)).second;
  TERRACE_CHECK(is_new, "every connection has an id of its own");
  Flush();
}

// Of the user with the most the oldest goes. A client says Hello as it connects, at once.
void SessionTable::CloseStranger() {
  TERRACE_CHECK(!strangers_.empty(), "strangers_max is 1 at least: with 0 nobody says Hello");
  const auto owner_of = [this](SessionId id) {
    const PeerIdentity& peer = sessions_.at(id)->peer;
    return std::pair(peer.domain_index, peer.uid);
  };
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> counts;
  for (const SessionId id : strangers_) ++counts[owner_of(id)];
  const auto is_less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = std::max_element(counts.begin(), counts.end(), is_less)->first;
  const SessionId oldest =
      *std::ranges::find_if(strangers_, [&](SessionId id) { return owner_of(id) == most; });
  Session& session = *Find(oldest);
  constexpr std::string_view kWhy = "this user has the most connections without Hello: say it";
  AddNews(session, Verb::kHello, 0, Status(StatusCode::kNoSpace), std::as_bytes(std::span(kWhy)));
  Close(session, CloseReason::kNoHello);
}

bool SessionTable::OnBytes(SessionId id, std::span<const std::byte> bytes, uint64_t read_us) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return false;
  now_us_ = read_us != 0 ? read_us : store_->events().NowUs();
  if (session->is_open) store_->sessions().SignOfLife(id);
  if (session->has_work()) {
    session->backlog.insert(session->backlog.end(), bytes.begin(), bytes.end());
  } else {
    session->came_us = now_us_;
    Work(*session, &bytes);
    if (session->request != nullptr) session->request->Own();
    if (!session->is_closed) session->backlog.assign(bytes.begin(), bytes.end());
  }
  session->is_paused = session->has_work();
  const bool wants_more = !session->is_paused && !session->is_closed;
  EndTurn(*session);
  Flush();
  return wants_more;
}

void SessionTable::OnTurn() {
  if (ready_.empty()) return;
  Session* session = Find(ready_.front());
  ready_.pop_front();
  if (session == nullptr) return;
  TERRACE_CHECK(session->is_ready, "a session is in ready_ once: it has no two turns in a round");
  session->is_ready = false;
  now_us_ = store_->events().NowUs();
  if (session->is_working()) session->timed.times.Enter(RequestPhase::kStore, now_us_);
  std::span<const std::byte> input(session->backlog);
  Work(*session, &input);
  if (session->request != nullptr) session->request->Own();
  if (!session->is_closed) {
    session->backlog.erase(session->backlog.begin(),
                           session->backlog.end() - static_cast<ptrdiff_t>(input.size()));
  }
  if (session->is_paused && !session->has_work() && !session->is_closed) {
    session->is_paused = false;
    transport_.ResumeInput(session->context.session);
  }
  EndTurn(*session);
  Flush();
}

void SessionTable::OnHangUp(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  HangUp(*session);
  Flush();
}

void SessionTable::OnProofOfDeath(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr) return;
  if (!session->is_closed) HangUp(*session);
  if (session->is_open) store_->sessions().ProofOfDeath(id);
  sessions_.erase(id);
  Flush();
}

// ---- a session's turn ---------------------------------------------------------------------------

void SessionTable::Work(Session& session, std::span<const std::byte>* input) {
  uint32_t budget_blocks = protocol::kBlocksPerTurnMax;
  while (budget_blocks > 0 && !session.is_closed && !session.is_seeking) {
    if (session.is_replying) {
      CutPage(session);
      budget_blocks = 0;
    } else if (session.request != nullptr) {
      const uint64_t work_before = store_->work();
      EndStep(session, session.request->Step(session.context, *store_, &budget_blocks));
      budget_blocks = Spend(budget_blocks, store_->work() - work_before);
      if (session.is_replying) budget_blocks = 0;  // a page was cut, and more are left
    } else if (TakeMessage(session, input)) {
      budget_blocks = Spend(budget_blocks, RowOf(session.frames.last_verb()).message_blocks);
    } else {
      return;
    }
  }
}

bool SessionTable::TakeMessage(Session& session, std::span<const std::byte>* input) {
  Message message;
  const FrameAssembler::Outcome outcome = session.frames.Next(input, &message);
  if (outcome == FrameAssembler::Outcome::kNeedsMore) return false;
  TERRACE_CHECK(session.request == nullptr, "requests are answered in order: one is under way");
  session.request = spare_request_ ? std::move(spare_request_) : std::make_unique<Request>();
  BeginTimes(session);
  if (outcome == FrameAssembler::Outcome::kMessage) {
    EndStep(session, BeginRequest(session, std::move(message)));
    return true;
  }
  message.verb = session.frames.last_verb();
  message.request_id = session.frames.last_request_id();
  (void)session.request->Begin(std::move(message), session.context);
  EndStep(session, Refuse(session, session.frames.error()));
  return true;
}

// Answers with an error and closes.
void SessionTable::Trace(Session& session) {
  const uint32_t domain_index = session.peer.domain_index;
  if (!trace_.is_recording || !session.is_open || !trace_.is_recording(domain_index)) return;
  TracedRequest traced;
  if (session.request->Describe(session.context, &traced)) {
    trace_.record(domain_index, std::move(traced));
  }
}

void SessionTable::CountTime(const Session& session) {
  const std::optional<TimedVerb> verb = RowOf(session.request->verb()).timed_as;
  if (!verb || !session.is_open) return;
  store_->events().OnAnswered(session.peer.domain_index, *verb, session.timed.times.total_us());
}

void SessionTable::Audit(Session& session, Request::Outcome outcome) {
  ErasureSummary erased;
  const bool has_erased = session.request->TakeErasure(session.context, &erased);
  if (has_erased && fsck_.erased) fsck_.erased(session.peer, session.client_name, erased);
  auto event = has_erased ? EventOf(erased) : EventOf(*session.request, outcome);
  const AdminVerbs::Asker asker{session.peer, session.client_name};
  if (event) admin_.Note(asker, session.request->verb(), *store_, std::move(*event));
}

void SessionTable::EndStep(Session& session, Request::Outcome outcome) {
  if (outcome != Request::Outcome::kMore && outcome != Request::Outcome::kSeeking)
    Audit(session, outcome);
  if (outcome == Request::Outcome::kReply || outcome == Request::Outcome::kMalformed) {
    now_us_ = store_->events().NowUs();
    session.timed.times.Enter(RequestPhase::kReply, now_us_);
    session.timed.status = session.request->reply().status();
    session.request->Describe(session.context, &session.timed);
  }
  switch (outcome) {
    case Request::Outcome::kMore:
      return;
    case Request::Outcome::kSeeking:
      session.is_seeking = true;
      now_us_ = store_->events().NowUs();
      session.timed.times.Enter(
          session.request->verb() == Verb::kReserve ? RequestPhase::kRoom : RequestPhase::kSeek,
          now_us_);
      return;
    case Request::Outcome::kWaiting:
      Await(session, RequestPhase::kDisk);
      return EndRequest(session);
    case Request::Outcome::kErasing:
      session.erasing.push_back(
          {session.request->id(), session.request->verb(), session.request->evicted()});
      session.pending.push_back({session.request->id(), nullptr});
      Await(session, RequestPhase::kDisk);
      return EndRequest(session);
    case Request::Outcome::kMalformed:
      session.is_last_reply = true;
      break;
    case Request::Outcome::kReply:
      TERRACE_CHECK(session.request->HasItsReply(), "an answer begins as its verb's row says");
      if (session.request->has_pending_blocks()) {
        Await(session, RequestPhase::kReply);
      } else {
        session.EndPending(session.request->id());
      }
      Trace(session);
      CountTime(session);
      break;
  }
  session.is_replying = true;
  CutPage(session);
}

void SessionTable::CutPage(Session& session) {
  TERRACE_CHECK(session.is_replying && session.request != nullptr, "pages are of an answer");
  session.request->reply().AppendPage(&session.output);
  if (!session.request->reply().is_done()) return;
  session.is_replied = !session.is_awaited;
  EndRequest(session);
}

void SessionTable::EndRequest(Session& session) {
  TERRACE_CHECK(session.request != nullptr, "a request ends once");
  session.is_replying = false;
  if (session.request->Recycle()) {
    spare_request_ = std::move(session.request);
  } else {
    session.request.reset();
  }
  session.output.insert(session.output.end(), session.held.begin(), session.held.end());
  session.held.clear();
  if (session.is_last_reply) {
    Close(session, session.is_open ? CloseReason::kMalformed : CloseReason::kRefused);
  }
}

// ---- ends ---------------------------------------------------------------------------------------

void SessionTable::EnqueueWork(Session& session) {
  if (session.is_ready || session.is_closed) return;
  session.is_ready = true;
  ready_.push_back(session.context.session);
}

// ---- times --------------------------------------------------------------------------------------

void SessionTable::BeginTimes(Session& session) {
  if (session.is_replied) EndTimes(session);  // of the one before
  session.is_awaited = false;
  session.timed.times.Begin(session.came_us);
  session.timed.times.Enter(RequestPhase::kStore, now_us_);
}

// The answer of session.timed has left, or nobody waits for it any more.
void SessionTable::EndTimes(Session& session) {
  session.is_replied = false;
  slow_log_.Note(session.peer.domain_index, session.timed);
}

// The request goes on when its turn and its first answer are over: in `phase`, or as its spans say.
void SessionTable::Await(Session& session, RequestPhase phase) {
  const auto found =
      std::ranges::find(session.pending, session.request->id(), &Session::Pending::id);
  if (found == session.pending.end()) return;  // answered already
  if (phase != RequestPhase::kReply) {
    now_us_ = store_->events().NowUs();
    session.timed.status = StatusCode::kOk;
    session.request->Describe(session.context, &session.timed);
  }
  found->awaited = std::make_unique<Session::Awaited>();
  Session::Awaited& awaited = *found->awaited;
  for (const protocol::BlockSpan& span : session.request->spans()) {
    if (phase != RequestPhase::kReply || span.state == protocol::SpanState::kReady) continue;
    const RequestPhase waits = span.state == protocol::SpanState::kFollowing
                                   ? RequestPhase::kWriter
                                   : PhaseOfTier(static_cast<size_t>(span.tier));
    const uint32_t end_block = span.first_block + span.block_count;
    const bool is_next = awaited.spans.empty() || (awaited.spans.back().second != waits &&
                                                   awaited.spans.size() < kAwaitedSpansMax);
    if (is_next) awaited.spans.emplace_back(end_block, waits);
    awaited.spans.back().first = end_block;
  }
  session.timed.times.Enter(awaited.spans.empty() ? phase : awaited.spans.front().second, now_us_);
  awaited.request = session.timed;
  session.is_awaited = true;
}

// Counts what the session keeps in memory into the sum over all sessions.
void SessionTable::Account(Session& session) {
  size_t bytes = session.frames.buffered_bytes() + session.backlog.size() + session.held.size();
  const Request* const request = session.request.get();
  if (request != nullptr) bytes += request->body().owned_bytes() + request->result_bytes();
  TERRACE_CHECK(buffered_bytes_ >= session.buffered_bytes,
                "the sum that sessions are closed by has each session's bytes");
  buffered_bytes_ = buffered_bytes_ - session.buffered_bytes + bytes;
  session.buffered_bytes = bytes;
}

void SessionTable::EndTurn(Session& session) {
  Account(session);
  if (session.is_working()) {
    session.timed.times.Enter(RequestPhase::kQueue, store_->events().NowUs());
  }
  if (session.may_work()) EnqueueWork(session);
  if (!session.is_dirty) dirty_.push_back(session.context.session);
  session.is_dirty = true;
}

void SessionTable::Close(Session& session, CloseReason reason) {
  // What is in output goes out first; the reply says why.
  SendOutput(session);
  transport_.Close(session.context.session, reason);
  HangUp(session);
}

void SessionTable::HangUp(Session& session) {
  session.is_closed = true;
  if (!session.is_open) std::erase(strangers_, session.context.session);
  if (session.is_open && !store_->sessions().HangUp(session.context.session)) {
    session.is_gone = true;
    transport_.Forget(session.context.session);
  }
  if (std::exchange(session.is_checking, false)) {
    fsck_.cancel(session.peer.domain_index, session.context.session);
  }
  for (const Session::Pending& waits : session.pending) {
    if (waits.awaited) EndAwaited(session, waits.awaited->request, StatusCode::kGone);
  }
  if (session.request != nullptr) {
    Audit(session, Request::Outcome::kMore);  // what was erased until here
    session.request->Describe(session.context, &session.timed);
    session.timed.status = StatusCode::kGone;
    session.is_replied = !session.is_awaited;
  }
  OnSent(session.context.session);
  session.request.reset();
  session.is_replying = session.is_seeking = false;
  session.backlog.clear();
  session.pending.clear();
  session.erasing.clear();
  session.output.clear();
  session.held.clear();
  session.frames = FrameAssembler();
  Account(session);
  if (!session.is_dirty) dirty_.push_back(session.context.session);
  session.is_dirty = true;
}

void SessionTable::SendOutput(Session& session) {
  if (session.output.empty()) return;
  const Transport::Attach attach = std::exchange(session.attach, Transport::Attach::kNothing);
  session.unsent_bytes = transport_.Send(session.context.session, session.output, attach);
  if (session.is_replied && session.unsent_bytes == 0) EndTimes(session);
  session.output.clear();
  if (session.output.capacity() > kOutputCapacityKeptBytes) session.output.shrink_to_fit();
}

void SessionTable::CheckBounds(Session& session) {
  if (session.unsent_bytes + session.held.size() > options_.output_bytes_max) {
    Close(session, CloseReason::kSlowReader);
  } else if (session.backlog.size() > protocol::kMessageBytesMax) {
    Close(session, CloseReason::kNoBuffers);
  } else if (IsOverBuffered()) {
    CloseHeaviest(session);
  }
}

bool SessionTable::IsOverBuffered() const {
  return buffered_bytes_ + transport_.unsent_bytes() > options_.buffers_bytes_max;
}

// Whoever holds the most pays, not whoever speaks next: that may be another domain's client. Of
// equals it is the speaker, else the lowest id, so that the order of the table decides nothing.
void SessionTable::CloseHeaviest(Session& speaker) {
  const auto held_bytes = [this](const Session& session) {
    return session.buffered_bytes + transport_.unsent_bytes_of(session.context.session);
  };
  Session* heaviest = &speaker;
  uint64_t most_bytes = held_bytes(speaker);
  for (const auto& [id, session] : sessions_) {
    if (session->is_closed) continue;
    const uint64_t bytes = held_bytes(*session);
    const bool is_first = heaviest != &speaker && id < heaviest->context.session;
    if (bytes < most_bytes || (bytes == most_bytes && !is_first)) continue;
    heaviest = session.get();
    most_bytes = bytes;
  }
  Close(*heaviest, CloseReason::kNoBuffers);
}

void SessionTable::Flush() {
  // Closing a session makes news of others: the list may grow while it is walked.
  for (size_t i = 0; i < dirty_.size(); ++i) {
    Session* session = Find(dirty_[i]);
    if (session == nullptr) continue;
    session->is_dirty = false;
    if (!session->is_closed) {
      SendOutput(*session);
      CheckBounds(*session);
    }
    if (!session->is_closed) continue;
    if (session->is_open && !session->is_gone) {
      // It stays, as a name, until its process has ended; its memory does not.
      session->backlog = {};
      session->output = {};
      session->held = {};
    } else {
      TERRACE_CHECK(session->buffered_bytes == 0,
                    "who goes leaves nothing in the sum that others are closed by");
      // Without Hello, or without slots, there is nothing whose end must be proven.
      sessions_.erase(session->context.session);
    }
  }
  dirty_.clear();
}

bool SessionTable::Describe(SessionId session, PeerIdentity* peer, std::string* client_name) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return false;
  *peer = found->second->peer;
  *client_name = found->second->client_name;
  return true;
}

std::vector<SessionSummary> SessionTable::Summaries(uint32_t domain_index, size_t count_max) const {
  std::vector<SessionSummary> rows;
  for (const auto& [id, session] : sessions_) {
    if (rows.size() == count_max) break;
    if (session->peer.domain_index != domain_index || !session->is_open) continue;
    rows.push_back({.id = id,
                    .peer = session->peer,
                    .client_name = session->client_name,
                    .group_count = static_cast<uint32_t>(session->context.handles.size()),
                    .pending_count = static_cast<uint32_t>(session->pending.size()),
                    .segments_owed = store_->sessions().SegmentsOwedBy(id),
                    .revoked_leases = store_->sessions().RevokedLeasesOf(id),
                    .is_reader = session->context.role == SessionRole::kReader,
                    .is_hung_up = session->is_closed});
  }
  return rows;
}

}  // namespace terrace
