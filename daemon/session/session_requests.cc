// How a request begins, and those that the sessions' table answers by itself: what is said of the
// connection, its device, the daemon's own records.
#include <string>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/log/printable.h"
#include "daemon/session/hello.h"
#include "daemon/session/session.h"
#include "daemon/session/session_state.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_operator.h"

namespace terrace {

using protocol::Verb;

Request::Outcome SessionTable::Refuse(Session& session, const Error& error) {
  session.request->Answer(session.context, error.status(), error.sentence());
  return Request::Outcome::kMalformed;
}

Request::Outcome SessionTable::BeginRequest(Session& session, Message message) {
  const Verb verb = message.verb;
  const uint64_t id = message.request_id;
  Request& request = *session.request;
  if (verb == Verb::kHello || !session.is_open) {
    MessageBody body = std::move(message.body);
    (void)request.Begin({.verb = verb, .request_id = id, .body = {}}, session.context);
    if (verb == Verb::kHello) return Hello(session, body);
    return Refuse(session,
                  {StatusCode::kInvalid,
                   std::string(VerbName(verb)) + " before Hello; a connection begins with Hello"});
  }
  Request::Outcome outcome = request.Begin(std::move(message), session.context);
  if (session.is_pending(id)) {
    return Refuse(session, {StatusCode::kInvalid,
                            "request id " + std::to_string(id) +
                                " is that of a pending request; choose ids that differ"});
  }
  if (outcome != Request::Outcome::kMore) return outcome;
  // The answer to a Config may come before it is known to be awaited.
  if (verb == protocol::kVerbConfig) session.pending.push_back({id, nullptr});
  if (const auto answered =
          admin_.Answer({session.peer, session.client_name}, session.context, *store_, request)) {
    return *answered;
  }
  if (verb == Verb::kStats) {
    request.Answer(session.context, Status::Ok(), stats_source_(session.peer.domain_index));
    return Request::Outcome::kReply;
  }
  if (verb == protocol::kVerbTraceRecord) return TraceRecord(session);
  if (verb == protocol::kVerbFsck) return Fsck(session);
  if (verb == protocol::kVerbDeviceAttach) return DeviceAttach(session);
  if (verb == protocol::kVerbDiagnose) return Diagnose(session);
  if (!FindVerb(verb)->has_news) return outcome;
  if (session.pending.size() >= options_.pending_per_session_max) {
    request.Answer(session.context, Status(StatusCode::kBusy),
                   std::to_string(session.pending.size()) +
                       " requests of this session are pending; the limit "
                       "pending_per_session_max is reached: wait for some, or raise it");
    return Request::Outcome::kReply;
  }
  session.pending.push_back({id, nullptr});
  return outcome;
}

Request::Outcome SessionTable::Hello(Session& session, const MessageBody& body) {
  if (session.is_open) {
    return Refuse(session, {StatusCode::kInvalid, "a second Hello; a connection says it once"});
  }
  protocol::HelloRequest hello;
  if (Error refused = ReadHello(body, &hello); !refused.ok()) {
    return Refuse(session, std::move(refused));
  }
  session.context.role = admin_.RoleOf(session.peer);
  if (Error refused = CheckRole(session.context, hello); !refused.ok()) {
    return Refuse(session, std::move(refused));
  }
  const SessionId id = session.context.session;
  const Error opened = store_->sessions().Open({.id = id,
                                                .domain_index = session.peer.domain_index,
                                                .uid = session.peer.uid,
                                                .pid = session.peer.pid});
  if (!opened.ok()) {
    return Refuse(session, {opened.status(), "no further session: " + opened.sentence()});
  }
  session.is_open = true;
  std::erase(strangers_, id);
  session.client_name = Printable(hello.client_name);
  session.client_name.copy(session.timed.client_name.data(), session.timed.client_name.size() - 1);
  session.attach = AttachOf(session.context.role, hello);
  const SessionDomain& domain = options_.domains[session.peer.domain_index];
  protocol::HelloReply reply{
      .session_id = id,
      .version = std::min(hello.version_max, protocol::kVersion),
      .key_hash = static_cast<uint8_t>(domain.key_hash),
      .node_count = domain.node_count,
      .segment_bytes = domain.segment_bytes,
      .segments_max = domain.segments_max,
      .segments_per_node = domain.segments_per_node,
      .lease_ttl_ms = options_.lease_ttl_ms,
  };
  domain.name.copy(reply.domain_name, sizeof(reply.domain_name) - 1);
  std::copy(domain.secret.begin(), domain.secret.end(), reply.secret);
  Reply& answer = session.request->reply();
  answer.Begin(Verb::kHello, session.request->id(), options_.boot_id, Status::Ok());
  answer.AddHead(reply);
  return Request::Outcome::kReply;
}

Request::Outcome SessionTable::DeviceAttach(Session& session) {
  Request& request = *session.request;
  const auto asked = request.Head<protocol::DeviceAttachRequest>();
  // Descriptors travel with an answer: those of one are on their way before the next.
  if (session.attach != Transport::Attach::kNothing || session.has_device) {
    return Refuse(session,
                  {StatusCode::kInvalid, "DeviceAttach once a session, after the answer to Hello"});
  }
  const std::string device = Printable(asked.device);
  protocol::DeviceAttachReply reply;
  const Error attached = store_->devices().Attach(session.context.session, device, &reply);
  if (attached.ok()) {
    session.attach = Transport::Attach::kDeviceSlabs;
    session.has_device = true;
    request.reply().Begin(request.verb(), request.id(), options_.boot_id, Status::Ok());
    request.reply().AddHead(reply);
  } else {
    request.Answer(session.context, attached.status(),
                   "device '" + device + "': " + attached.sentence());
  }
  return Request::Outcome::kReply;
}

Request::Outcome SessionTable::TraceRecord(Session& session) {
  Request& request = *session.request;
  const auto asked = request.Head<protocol::TraceRecordRequest>();
  if (!trace_.control) {
    request.Answer(session.context, Status(StatusCode::kUnsupported),
                   "this daemon records nothing: name a directory in daemon.trace_dir");
  } else if (asked.action > protocol::TraceAction::kStop) {
    request.Answer(session.context, Status(StatusCode::kInvalid),
                   "trace action " + std::to_string(static_cast<uint32_t>(asked.action)) +
                       "; there are 0 (status), 1 (start) and 2 (stop)");
  } else {
    request.reply().Begin(request.verb(), request.id(), options_.boot_id, Status::Ok());
    request.reply().AddHead(trace_.control(session.peer.domain_index, asked.action));
  }
  return Request::Outcome::kReply;
}

Request::Outcome SessionTable::Fsck(Session& session) {
  Request& request = *session.request;
  const auto asked = request.Head<protocol::FsckRequest>();
  if (!fsck_.begin) {
    request.Answer(session.context, Status(StatusCode::kUnsupported),
                   "this daemon keeps nothing on drives: nvme.paths names none");
    return Request::Outcome::kReply;
  }
  if (session.is_checking) {
    request.Answer(session.context, Status(StatusCode::kBusy),
                   "this session has asked for an fsck already: wait for its answer");
    return Request::Outcome::kReply;
  }
  const SessionId id = session.context.session;
  session.is_checking = true;
  session.pending.push_back({request.id(), nullptr});
  fsck_.begin(session.peer.domain_index, id, asked,
              [this, id, request_id = request.id()](Status status, const std::string& text) {
                EndFsck(id, request_id, status, text);
              });
  return Request::Outcome::kWaiting;
}

void SessionTable::EndFsck(SessionId id, uint64_t request_id, Status status,
                           const std::string& text) {
  Session* session = Find(id);
  if (session == nullptr || session->is_closed) return;
  session->is_checking = false;
  EndPending(*session, request_id, status.code());
  AddNews(*session, protocol::kVerbFsck, request_id, status, std::as_bytes(std::span(text)));
  Flush();
}

Request::Outcome SessionTable::Diagnose(Session& session) {
  Request& request = *session.request;
  const auto asked = request.Head<protocol::DiagnoseRequest>();
  const uint32_t domain_index = session.peer.domain_index;
  if (asked.action > protocol::DiagnoseAction::kLogLines) {
    request.Answer(session.context, Status(StatusCode::kInvalid),
                   "diagnose action " + std::to_string(static_cast<uint32_t>(asked.action)) +
                       "; there are 0 (slow requests), 1 (the same, and reset) and 2 (log lines)");
    return Request::Outcome::kReply;
  }
  if (asked.action == protocol::DiagnoseAction::kLogLines) {
    std::string lines;
    const bool is_read = RecentLogLines(asked.row_count_max, &lines);
    request.Answer(session.context, Status(is_read ? StatusCode::kOk : StatusCode::kBusy),
                   is_read ? lines : "the log is being written: ask again");
    return Request::Outcome::kReply;
  }
  request.Answer(session.context, Status::Ok(),
                 slow_log_.Answer(domain_index, now_us_, asked.row_count_max));
  if (asked.action == protocol::DiagnoseAction::kResetSlowRequests) {
    slow_log_.Reset(domain_index);
    Log(LogLevel::kInfo, "slow requests are forgotten",
        {{"domain", domain_index}, {"uid", session.peer.uid}, {"pid", session.peer.pid}});
  }
  return Request::Outcome::kReply;
}

}  // namespace terrace
