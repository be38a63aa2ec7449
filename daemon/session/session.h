// SessionTable: all connected clients, between a Transport and the Store. It is sans-I/O: bytes
// come in, verbs are asked of the store, replies and later news go out.
//
// A session answers its requests in order. One that needs more than a turn's worth of blocks goes
// on turn by turn (OnTurn), sessions taking turns; meanwhile its client is not read from. News
// about a request never overtakes its reply, nor cut into a paged one.
//
//   OnAccept ─► Hello ─► verbs ─► hang-up (revoked, fenced) ─► proof of death (gone)
//
// THREADING: store thread. LIMITS: SessionTableOptions.
// INVARIANT: a session holds at most one begun message and one request under way, beside those it
// waits for.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/log/slow_log.h"
#include "daemon/session/admin_verbs.h"
#include "daemon/session/peer_identity.h"
#include "daemon/session/request.h"
#include "daemon/session/transport.h"
#include "daemon/store/store.h"
#include "terrace/check.h"
#include "terrace/error.h"

namespace terrace {

// The domain, as Hello describes it to a client.
struct SessionDomain {
  std::string name;
  DomainSecret secret{};
  KeyHash key_hash = KeyHash::kXxh3;
  uint64_t segment_bytes = kSegmentBytesDefault;
  uint32_t segments_max = 0;
  uint32_t segments_per_node = 0;
  uint16_t node_count = 1;
};

struct SessionTableOptions {
  std::vector<SessionDomain> domains;
  uint64_t boot_id = 0;  // random, not 0
  uint32_t lease_ttl_ms = 30'000;
  uint32_t strangers_max = 64;  // connections that have not said Hello
  uint32_t pending_per_session_max = 1024;
  uint64_t output_bytes_max = 32 * kMiB;    // unsent, one session
  uint64_t buffers_bytes_max = 512 * kMiB;  // begun messages, answers, unsent bytes; all sessions
  uint32_t slow_request_ms = 100;           // SlowLog's limit
};

// A row of `terrace status`.
struct SessionSummary {
  SessionId id = 0;
  PeerIdentity peer;
  std::string client_name;
  uint32_t group_count = 0;
  uint32_t pending_count = 0;
  uint32_t segments_owed = 0;   // memory that another domain wants and it has not unmapped
  uint32_t revoked_leases = 0;  // it holds them still: what they hold is fenced
  bool is_reader = false;       // it may not store: writer_uids
  bool is_hung_up = false;      // connection gone, process not yet proven dead
};

class SessionTable : public StoreListener {
 public:
  // Answers Stats for a domain: a JSON document.
  using StatsSource = std::function<std::string(uint32_t domain_index)>;

  SessionTable(SessionTableOptions options, Transport& transport, StatsSource stats_source);
  ~SessionTable() override;

  // The store sessions ask. Call once, before anything else; the store outlives the table's use.
  void Serve(Store& store) {
    TERRACE_CHECK(store_ == nullptr, "another store knows nothing of this one's sessions");
    store_ = &store;
  }
  // Who records requests; without, recording is not supported.
  struct TraceHooks {
    std::function<bool(uint32_t domain_index)> is_recording;
    std::function<void(uint32_t domain_index, TracedRequest request)> record;
    std::function<protocol::TraceRecordReply(uint32_t domain_index, protocol::TraceAction action)>
        control;
  };
  void SetTrace(TraceHooks hooks) { trace_ = std::move(hooks); }
  // Who checks what lies on drives; without, that is not supported. `done` is called in a later
  // turn, or never if the session is cancelled.
  struct FsckHooks {
    using Done = std::function<void(Status status, std::string text)>;
    std::function<void(uint32_t domain_index, SessionId session,
                       const protocol::FsckRequest& request, Done done)>
        begin;
    std::function<void(uint32_t domain_index, SessionId session)> cancel;
    // Somebody has erased blocks: for the audit.
    std::function<void(const PeerIdentity& peer, const std::string& client_name,
                       const ErasureSummary& erased)>
        erased;
  };
  void SetFsck(FsckHooks hooks) { fsck_ = std::move(hooks); }
  // pending_per_session_max, output_bytes_max, buffers_bytes_max and slow_request_ms, from now on.
  void SetLimits(const SessionTableOptions& limits) {
    options_.pending_per_session_max = limits.pending_per_session_max;
    options_.output_bytes_max = limits.output_bytes_max;
    options_.buffers_bytes_max = limits.buffers_bytes_max;
    slow_log_.SetLimit(limits.slow_request_ms);
  }
  void SetAdmin(AdminVerbs::Hooks hooks) { admin_.SetHooks(std::move(hooks)); }

  // ---- from the transport ----
  // Above strangers_max the oldest of the user with the most makes room. REQUIRES: `session` is
  // new, not 0.
  void OnAccept(SessionId session, const PeerIdentity& peer);
  // False: the session has work left; give it no more bytes before ResumeInput. `read_us`: when the
  // bytes were read, if that is known; 0: now.
  bool OnBytes(SessionId session, std::span<const std::byte> bytes, uint64_t read_us = 0);
  // What Send had kept of the session has left.
  void OnSent(SessionId session);
  void OnHangUp(SessionId session);
  void OnProofOfDeath(SessionId session);

  // Works one session's turn of what OnBytes left. Call from the event loop while has_work().
  void OnTurn();
  bool has_work() const { return !ready_.empty(); }
  // Sessions whose requests take more than a turn, and wait for their next one.
  size_t ready_count() const { return ready_.size(); }
  // Sends the news that a store event (OnTimer, OnChecksumsDone, …) caused. Every other entry does
  // so by itself.
  void Flush();

  // What the log is still to hear of slow requests. Call about once a second.
  void TellSlow(uint64_t now_us) { slow_log_.Tell(now_us); }

  // At most `count_max`, of one domain.
  std::vector<SessionSummary> Summaries(uint32_t domain_index, size_t count_max) const;
  // False: there is no such session any more.
  bool Describe(SessionId session, PeerIdentity* peer, std::string* client_name) const;

 private:
  struct Session;

  // StoreListener: news, queued only.
  void OnCompletion(SessionId session, uint64_t request_id, Status status,
                    const protocol::Completion& completion) override;
  void OnRequestDropped(SessionId session, uint64_t request_id) override;
  void OnWaitDone(SessionId session, uint64_t request_id, Status status) override;
  void OnLeaseRevoked(SessionId session, const LeaseToken& token) override;
  void OnSegmentRevoke(SessionId session, uint32_t segment) override;
  void OnSeekDone(SessionId session, uint64_t request_id) override;
  void OnWorkOrder(SessionId session, const protocol::WorkOrder& order,
                   std::span<const uint64_t> part_bytes) override;
  void OnPinTurn(SessionId session) override;

  Session* Find(SessionId id);
  // One turn of a session: works until nothing is left or the turn's budget is spent.
  void Work(Session& session, std::span<const std::byte>* input);
  bool TakeMessage(Session& session, std::span<const std::byte>* input);
  Request::Outcome BeginRequest(Session& session, Message message);
  Request::Outcome Refuse(Session& session, const Error& error);
  Request::Outcome Hello(Session& session, const MessageBody& body);
  Request::Outcome DeviceAttach(Session& session);
  Request::Outcome TraceRecord(Session& session);
  Request::Outcome Fsck(Session& session);
  void EndFsck(SessionId session, uint64_t request_id, Status status, const std::string& text);
  Request::Outcome Diagnose(Session& session);
  void Trace(Session& session);
  void CountTime(const Session& session);
  // Tells of a request that has ended what is to be remembered of it.
  // REQUIRES: it has one.
  void Audit(Session& session, Request::Outcome outcome);
  void EndStep(Session& session, Request::Outcome outcome);
  void CutPage(Session& session);
  // Where the time of requests goes: of what is answered `session.timed`, of what waits an Awaited.
  void BeginTimes(Session& session);
  void Await(Session& session, RequestPhase phase);
  void PassAwaited(Session& session, uint64_t request_id, uint32_t end_block);
  void EndPending(Session& session, uint64_t request_id, StatusCode status);
  void EndAwaited(const Session& session, SlowRequest& request, StatusCode status);
  void EndTimes(Session& session);
  void EndRequest(Session& session);
  // Appends a message that no request of this moment asked for.
  // False if the request is no Evict or Reset whose answer was put off.
  bool EndErasing(Session& session, uint64_t request_id, Status status);
  void AddNews(Session& session, protocol::Verb verb, uint64_t request_id, Status status,
               std::span<const std::byte> body);
  void EnqueueWork(Session& session);
  void Account(Session& session);
  void EndTurn(Session& session);
  void Close(Session& session, CloseReason reason);
  void CloseStranger();
  void HangUp(Session& session);
  void SendOutput(Session& session);
  void CheckBounds(Session& session);
  bool IsOverBuffered() const;
  void CloseHeaviest(Session& speaker);

  SessionTableOptions options_;
  const StatsSource stats_source_;
  Transport& transport_;
  Store* store_ = nullptr;
  TraceHooks trace_;
  FsckHooks fsck_;
  AdminVerbs admin_;
  SlowLog slow_log_;
  uint64_t now_us_ = 0;  // when the clock was last looked at

  std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::vector<SessionId> strangers_;        // have not said Hello yet; in the order they came
  std::deque<SessionId> ready_;             // sessions with work left, each once
  std::vector<SessionId> dirty_;            // sessions with output to send, or to be forgotten
  std::unique_ptr<Request> spare_request_;  // so that a short request allocates nothing
  uint64_t buffered_bytes_ = 0;             // begun messages and held news of all sessions
};

}  // namespace terrace
