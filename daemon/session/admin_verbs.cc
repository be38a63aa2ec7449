#include "daemon/session/admin_verbs.h"

#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/session/operator_events.h"
#include "terrace/check.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_operator.h"

namespace terrace {
namespace {

using protocol::ServingMode;

constexpr std::string_view kDraining =
    "the domain is being drained: it takes nothing new, and what is held is served to its end; "
    "`terrace drain --resume` has it serve again, and so does a restart of the daemon";
constexpr std::string_view kBypassed =
    "the domain is bypassed: nothing is stored; `terrace drain --resume` has it serve again";

// Who may, and what this user may all the same.
std::string RefusalOf(const VerbRow& row, uint32_t uid) {
  std::string_view what = "this";
  std::string_view instead;
  if (row.verb == protocol::Verb::kEvict) {
    what = "Evict of every block";
    instead = "; evict blocks by their keys, or reset a SpaceGroup of yours";
  } else if (row.verb == protocol::Verb::kPin) {
    what = "Pin without an end";
    instead = "; pin with a time to live (hints.ttl_s)";
  } else if (row.verb == protocol::kVerbEvictWhere) {
    what = "evicting by filters";
    instead = "; --dry-run may be asked for, and blocks evicted by their keys";
  } else if (row.verb == protocol::kVerbNamedPin) {
    what = "a named pin without an end";
    instead = "; give it a time to live (ttl_s)";
  } else if (row.verb == protocol::kVerbTraceRecord) {
    what = "starting and ending a recording";
  } else if (row.verb == protocol::kVerbFsck) {
    what = "repair";
  } else if (row.verb == protocol::kVerbDrain) {
    what = "draining and bypassing a domain";
  } else if (row.verb == protocol::kVerbConfig) {
    what = "the configuration";
  } else if (row.verb == protocol::kVerbDiagnose) {
    what = "reading the daemon's log, or emptying the list of slow requests,";
  }
  return std::string(what) + " is for admins, and uid " + std::to_string(uid) +
         " is none: root, the user that terraced runs as, and those of daemon.admin_uids may" +
         std::string(instead);
}

// A request for something new in a domain that takes nothing.
RequestOutcome AnswerUnserved(ServingMode mode, const RequestContext& context, Request& request) {
  if (mode == ServingMode::kBypassed) return request.AnswerMiss(context, kBypassed);
  request.Answer(context, Status(StatusCode::kBusy), std::string(kDraining));
  return RequestOutcome::kReply;
}

}  // namespace

std::optional<RequestOutcome> AdminVerbs::Answer(const Asker& asker, const RequestContext& context,
                                                 Store& store, Request& request) {
  const PeerIdentity& peer = asker.peer;
  const VerbRow* const row = FindVerb(request.verb());
  if (row == nullptr) return std::nullopt;
  if (!MayAsk(*row, request.body(), peer.uid)) {
    request.Answer(context, Status(StatusCode::kUnsupported), RefusalOf(*row, peer.uid));
    return RequestOutcome::kReply;
  }
  if (!MayChange(*row, request.body(), context)) {
    request.Answer(context, Status(StatusCode::kUnsupported),
                   RefusalOfReader(VerbName(row->verb), context.uid));
    return RequestOutcome::kReply;
  }
  // An engine goes on without it: refused, it would lose the blocks.
  if (AreNamed() && !IsAdmin(peer.uid) && PinsForGood(*row, request.body())) {
    request.DropPin();
    store.operators().CountPinDropped(peer.domain_index);
  }
  if (row->takes_new) {
    const ServingMode mode = store.operators().serving(peer.domain_index);
    if (mode == ServingMode::kServing) return std::nullopt;
    store.operators().CountUnserved(peer.domain_index);
    return AnswerUnserved(mode, context, request);
  }
  if (request.verb() == protocol::kVerbDrain) return Drain(peer, context, request);
  if (request.verb() == protocol::kVerbConfig) return Config(asker, context, store, request);
  if (request.verb() == protocol::kVerbOperatorLog) {
    request.Answer(context, Status::Ok(),
                   log_.Answer(peer.domain_index, store.events().NowUs(),
                               request.Head<protocol::OperatorLogRequest>()));
    return RequestOutcome::kReply;
  }
  return std::nullopt;
}

void AdminVerbs::Note(const Asker& asker, protocol::Verb verb, Store& store, OperatorEvent event) {
  event.at_us = store.events().NowUs();
  event.verb = verb;
  event.client_name = asker.client_name;
  event.uid = asker.peer.uid;
  event.pid = asker.peer.pid;
  log_.Add(asker.peer.domain_index, VerbName(event.verb), event);
}

SessionRole AdminVerbs::RoleOf(const PeerIdentity& peer) const {
  if (!hooks_.writer_uids) return SessionRole::kWriter;
  const Uids& writers = hooks_.writer_uids(peer.domain_index);
  const bool is_writer =
      !writers.has_value() || std::ranges::find(*writers, peer.uid) != writers->end();
  return is_writer ? SessionRole::kWriter : SessionRole::kReader;
}

bool AdminVerbs::IsAdmin(uint32_t uid) const {
  if (uid == 0 || uid == geteuid()) return true;
  if (!hooks_.admin_uids) return false;
  const Uids& admins = hooks_.admin_uids();
  return admins.has_value() && std::ranges::find(*admins, uid) != admins->end();
}

bool AdminVerbs::AreNamed() const { return hooks_.admin_uids && hooks_.admin_uids().has_value(); }

bool AdminVerbs::MayAsk(const VerbRow& row, const MessageBody& body, uint32_t uid) const {
  if (!IsForAdmins(row, body) || IsAdmin(uid)) return true;
  return !AreNamed() && row.is_open_unless_named;
}

// An admin among the readers erases and pins as ever; nobody stores in memory that he may only
// read.
bool AdminVerbs::MayChange(const VerbRow& row, const MessageBody& body,
                           const RequestContext& context) const {
  if (context.role == SessionRole::kWriter || !IsForWriters(row, body)) return true;
  return !row.stores && IsAdmin(context.uid);
}

RequestOutcome AdminVerbs::Drain(const PeerIdentity& peer, const RequestContext& context,
                                 Request& request) const {
  const auto asked = request.Head<protocol::DrainRequest>();
  if (!hooks_.drain) {
    request.Answer(context, Status(StatusCode::kUnsupported), "nothing here can be drained");
  } else if (asked.action > protocol::DrainAction::kResume) {
    request.Answer(context, Status(StatusCode::kInvalid),
                   "drain action " + std::to_string(static_cast<uint32_t>(asked.action)) +
                       "; there are 0 (status), 1 (drain), 2 (bypass) and 3 (resume)");
  } else {
    request.reply().Begin(request.verb(), request.id(), context.boot_id, Status::Ok());
    request.reply().AddHead(hooks_.drain(peer, asked.action));
  }
  return RequestOutcome::kReply;
}

RequestOutcome AdminVerbs::Config(const Asker& asker, const RequestContext& context, Store& store,
                                  Request& request) {
  const auto asked = request.Head<protocol::ConfigRequest>();
  std::string text(request.body().size_bytes() - sizeof(asked), '\0');
  if (!hooks_.config) {
    request.Answer(context, Status(StatusCode::kUnsupported), "nothing here can be configured");
    return RequestOutcome::kReply;
  }
  if (text.size() > protocol::kConfigTextBytesMax) {
    request.Answer(context, Status(StatusCode::kInvalid),
                   std::to_string(text.size()) + " bytes of text; the limit of a Config is " +
                       std::to_string(protocol::kConfigTextBytesMax) + ": write it into the file");
    return RequestOutcome::kReply;
  }
  const bool has_text = request.body().ReadArray(sizeof(asked), std::span(text));
  TERRACE_CHECK(has_text, "the text is what the body has behind its head");
  const auto done = [this, &store, peer = asker.peer, client_name = asker.client_name,
                     event = EventOfConfig(request), session = context.session,
                     id = request.id()](const Error& error, const std::string& document) {
    if (event) {
      OperatorEvent ended = *event;
      ended.status = error.status().code();
      ended.why = error.sentence();
      Note({peer, client_name}, protocol::kVerbConfig, store, std::move(ended));
    }
    tell_(session, protocol::kVerbConfig, id, error, document);
  };
  hooks_.config(asker.peer, asked.action, text, done);
  return RequestOutcome::kWaiting;
}

}  // namespace terrace
