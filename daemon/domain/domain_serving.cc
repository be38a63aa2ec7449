#include "daemon/domain/domain_serving.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/log/log.h"
#include "daemon/telemetry/names.h"
#include "terrace/check.h"

namespace terrace {
namespace {

using protocol::DrainAction;
using protocol::ServingMode;

// What the mode becomes; a bypassed domain takes nothing new already.
ServingMode ModeAfter(ServingMode mode, DrainAction action) {
  switch (action) {
    case DrainAction::kDrain:
      return mode == ServingMode::kBypassed ? mode : ServingMode::kDraining;
    case DrainAction::kBypass:
      return ServingMode::kBypassed;
    case DrainAction::kResume:
      return ServingMode::kServing;
    case DrainAction::kStatus:
      break;
  }
  return mode;
}

}  // namespace

DomainServing::DomainServing(const DaemonConfig& config, const Clock& clock)
    : config_(config), clock_(clock) {
  for (const DomainConfig& domain : config.domains) {
    Domain& entry = domains_.emplace_back();
    entry.kept_path = domain.socket_path + ".bypass";
    if (const Status made = entry.notices.Create(domain.name); !made.ok()) {
      Log(LogLevel::kWarn, "no notice page",
          {{"domain", domain.name},
           {"why", std::string(made.what()) + ": " + std::strerror(made.detail())},
           {"effect", "clients of a bypassed domain ask it all the same, and are answered misses"},
           {"remedy", "a kernel of 5.1 or newer, and memory for one page"}});
    }
  }
}

void DomainServing::Serve(Store& store, const std::vector<std::unique_ptr<DomainNvme>>& nvme) {
  store_ = &store;
  nvme_ = &nvme;
  for (uint32_t i = 0; i < domains_.size(); ++i) {
    struct stat kept;
    if (lstat(domains_[i].kept_path.c_str(), &kept) != 0 || !S_ISREG(kept.st_mode)) continue;
    domains_[i].since_unix_s = static_cast<uint64_t>(kept.st_mtime);
    domains_[i].by_uid = kept.st_uid;
    store.operators().SetServing(i, ServingMode::kBypassed);
    domains_[i].notices.Tell(ServingMode::kBypassed);
    Log(LogLevel::kWarn, "domain is bypassed, as it was when the last daemon ended",
        {{"domain", config_.domains[i].name},
         {"file", domains_[i].kept_path},
         {"remedy", "terrace drain --resume"}});
  }
}

protocol::DrainReply DomainServing::Drain(const PeerIdentity& peer, DrainAction action) {
  const uint32_t domain_index = peer.domain_index;
  TERRACE_CHECK(store_ != nullptr && domain_index < domains_.size(),
                "who rules over a domain has come by its socket, and sockets are opened last");
  const ServingMode mode = store_->operators().serving(domain_index);
  const ServingMode wanted = ModeAfter(mode, action);
  if (wanted != mode) Set(peer, wanted);
  const Domain& domain = domains_[domain_index];
  protocol::DrainReply reply{.mode = wanted,
                             .since_unix_s = domain.since_unix_s,
                             .by_uid = domain.by_uid,
                             .kept_error = domain.kept_error};
  store_->operators().AddLeft(domain_index, &reply);
  const bool is_disk_idle = nvme_->empty() || (*nvme_)[domain_index]->is_idle();
  if (!is_disk_idle || wanted == ServingMode::kServing) reply.is_done = 0;
  return reply;
}

void DomainServing::Set(const PeerIdentity& peer, ServingMode mode) {
  Domain& domain = domains_[peer.domain_index];
  store_->operators().SetServing(peer.domain_index, mode);
  domain.notices.Tell(mode);
  const bool is_serving = mode == ServingMode::kServing;
  domain.since_unix_s = is_serving ? 0 : clock_.UnixSeconds();
  domain.by_uid = is_serving ? 0 : peer.uid;
  Keep(domain, mode);
  Log(LogLevel::kWarn, "domain serves otherwise",
      {{"domain", config_.domains[peer.domain_index].name},
       {"mode", std::string(kServingModeNames[static_cast<size_t>(mode)])},
       {"uid", peer.uid},
       {"pid", peer.pid}});
}

// An empty file in the directory of the socket, which is a memory file system as installed. Where
// it cannot be, the domain is bypassed all the same, and the answer says for how long.
void DomainServing::Keep(Domain& domain, ServingMode mode) {
  domain.kept_error = 0;
  if (mode != ServingMode::kBypassed) {
    if (unlink(domain.kept_path.c_str()) != 0 && errno != ENOENT) domain.kept_error = errno;
    return;
  }
  const int fd = open(domain.kept_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    domain.kept_error = errno;
    return;
  }
  close(fd);
}

}  // namespace terrace
