#include "daemon/domain/domain_checks.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/log/json_text.h"

namespace terrace {

DomainChecks::DomainChecks(const std::vector<std::unique_ptr<DomainNvme>>& domains,
                           CopyChecks& copies, const Clock& clock,
                           const std::function<void(std::function<void()>)>& post)
    : domains_(domains), clock_(clock) {
  for (const std::unique_ptr<DomainNvme>& domain : domains) {
    checks_.push_back(std::make_unique<OnlineFsck>(
        OnlineFsck::Options{.domain_index = static_cast<uint32_t>(checks_.size()),
                            .secret = domain->secret(),
                            .directories = domain->slab_directories(),
                            .copies = &copies,
                            .tier = &domain->tier(),
                            .catalog = &domain->catalog(),
                            .post = post}));
  }
}

SessionTable::FsckHooks DomainChecks::Hooks() {
  return {.begin =
              [this](uint32_t domain_index, SessionId session, const protocol::FsckRequest& request,
                     SessionTable::FsckHooks::Done done) {
                checks_[domain_index]->Begin(session, request, std::move(done));
              },
          .cancel = [this](uint32_t domain_index,
                           SessionId session) { checks_[domain_index]->Cancel(session); },
          .erased = [this](const PeerIdentity& peer, const std::string& client_name,
                           const ErasureSummary& erased) { Audit(peer, client_name, erased); }};
}

void DomainChecks::Audit(const PeerIdentity& peer, const std::string& client_name,
                         const ErasureSummary& erased) {
  const bool is_reset = erased.verb == protocol::Verb::kReset;
  nlohmann::json line = {{"time_s", clock_.UnixSeconds()},
                         {"verb", is_reset ? "reset" : "evict"},
                         {"group", erased.group ? ToHex(*erased.group) : "all"},
                         {"is_whole", erased.is_whole},
                         {"uid", peer.uid},
                         {"pid", peer.pid},
                         {"client", client_name}};
  if (!is_reset) {
    line["asked_count"] = erased.key_count;
    line["erased_count"] = erased.counts.block_count;
    line["erased_bytes"] = erased.counts.byte_count;
  }
  if (!erased.filter.empty()) line["filter"] = erased.filter;
  domains_[peer.domain_index]->catalog().KeepAudit(JsonText(line));
}

}  // namespace terrace
