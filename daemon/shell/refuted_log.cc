#include "daemon/shell/refuted_log.h"

#include <fstream>
#include <string>
#include <vector>

#include "daemon/log/log.h"
#include "daemon/log/printable.h"

namespace terrace {
namespace {

// Empty: there is no such process any more.
std::string CommOf(uint32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string comm;
  std::getline(file, comm);
  return Printable(comm);
}

}  // namespace

void WatchWriters(const DaemonConfig& config, const Clock& clock, const SessionTable& sessions,
                  StoreOptions* options) {
  const auto describe = [&sessions](SessionId session, RefutedWriter* writer) {
    PeerIdentity peer;
    if (!sessions.Describe(session, &peer, &writer->client_name)) return;
    writer->uid = peer.uid;
    writer->pid = peer.pid;
    writer->comm = CommOf(peer.pid);
  };
  options->describe_writer = [describe](RefutedWriter* w) { describe(w->session, w); };
  std::vector<std::string> names;
  for (const DomainConfig& domain : config.domains) names.push_back(domain.name);
  options->on_refuted = [names, &clock, gate = LogGate()](uint32_t domain_index,
                                                          const RefutedWriter& writer) mutable {
    uint64_t held_back = 0;
    if (!gate.Open(clock.NowUs(), &held_back)) return;
    Log(LogLevel::kWarn, "a client's checksums are wrong: the block is erased",
        {{"domain", names[domain_index]},
         {"session", SessionText(writer.session)},
         {"uid", writer.uid},
         {"pid", writer.pid},
         {"comm", writer.comm},
         {"client", writer.client_name},
         {"blocks_of_session", writer.block_count},
         {"not_told", held_back}});
  };
  options->on_silent = [names, describe, &clock, ttl_ms = config.lease_ttl_ms, gate = LogGate()](
                           uint32_t domain_index, SessionId session, uint32_t lease_count) mutable {
    uint64_t held_back = 0;
    if (!gate.Open(clock.NowUs(), &held_back)) return;
    RefutedWriter who;
    describe(session, &who);
    Log(LogLevel::kWarn, "a client is silent: its leases are revoked, what they hold is fenced",
        {{"domain", names[domain_index]},
         {"session", SessionText(session)},
         {"uid", who.uid},
         {"pid", who.pid},
         {"comm", who.comm},
         {"client", who.client_name},
         {"leases", lease_count},
         {"silent_ms", ttl_ms},
         {"remedy", "is its process stopped (T) or hung (D)? It must go on or end"},
         {"not_told", held_back}});
  };
}

}  // namespace terrace
