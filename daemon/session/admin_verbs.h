// AdminVerbs: what stands between a request and its work: whether its user may ask it, as the role
// of its verb and that of the session say, and whether its domain serves such requests now; and the
// verbs with which an administrator rules over the daemon.
//
// THREADING: store thread. OWNERSHIP: the SessionTable's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/log/operator_log.h"
#include "daemon/session/peer_identity.h"
#include "daemon/session/request.h"
#include "daemon/session/verb_table.h"
#include "daemon/store/store.h"
#include "terrace/error.h"
#include "terrace/protocol_admin.h"

namespace terrace {

class AdminVerbs {
 public:
  // Answers a request whose outcome was kWaiting.
  using Tell = std::function<void(SessionId session, protocol::Verb verb, uint64_t request_id,
                                  const Error& error, const std::string& document)>;
  explicit AdminVerbs(Tell tell) : tell_(std::move(tell)) {}
  void NameDomains(std::vector<std::string> names) { log_.NameDomains(std::move(names)); }

  // Users that may rule beside root and the daemon's own. None: nobody else, and what engines could
  // ask before there were admins (VerbRow::is_open_unless_named) is everybody's.
  using Uids = std::optional<std::vector<uint32_t>>;
  // What the rest of the daemon does for them; a verb without its hook is not supported.
  struct Hooks {
    // `done` is called once, now or in a later turn: kOk and a document, or a sentence.
    using ConfigDone = std::function<void(const Error& error, const std::string& document)>;
    std::function<const Uids&()> admin_uids;
    // Who may store in a domain. None: everybody who may connect.
    std::function<const Uids&(uint32_t domain_index)> writer_uids;
    std::function<protocol::DrainReply(const PeerIdentity& peer, protocol::DrainAction action)>
        drain;
    std::function<void(const PeerIdentity& peer, protocol::ConfigAction action,
                       const std::string& text, const ConfigDone& done)>
        config;
  };
  void SetHooks(Hooks hooks) { hooks_ = std::move(hooks); }

  // Whose request it is.
  struct Asker {
    const PeerIdentity& peer;
    const std::string& client_name;  // printable
  };
  // For OperatorLog: what a request that has ended has done, or was refused.
  void Note(const Asker& asker, protocol::Verb verb, Store& store, OperatorEvent event);

  // Of a session that begins now; what is configured later is for later ones.
  SessionRole RoleOf(const PeerIdentity& peer) const;

  // Answers a request that has begun and is one of these, or is not served now; or, of a Config,
  // tells now or later. None: it goes on.
  std::optional<RequestOutcome> Answer(const Asker& asker, const RequestContext& context,
                                       Store& store, Request& request);

 private:
  bool AreNamed() const;  // who the admins are, by the configuration
  bool IsAdmin(uint32_t uid) const;
  bool MayAsk(const VerbRow& row, const MessageBody& body, uint32_t uid) const;
  bool MayChange(const VerbRow& row, const MessageBody& body, const RequestContext& context) const;
  RequestOutcome Drain(const PeerIdentity& peer, const RequestContext& context,
                       Request& request) const;
  RequestOutcome Config(const Asker& asker, const RequestContext& context, Store& store,
                        Request& request);

  const Tell tell_;
  Hooks hooks_;
  OperatorLog log_;
};

}  // namespace terrace
