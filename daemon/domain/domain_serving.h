// DomainServing: whether each domain serves, is drained or bypassed: said to its clients by the
// notice page and by answers, and of a bypass kept in a file beside the socket, <socket>.bypass, so
// that a daemon that is started anew begins as its predecessor was told. What is drained ends with
// the daemon.
//
// THREADING: store thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/arenas/notice_memory.h"
#include "daemon/block/seams.h"
#include "daemon/config/config.h"
#include "daemon/domain/domain_nvme.h"
#include "daemon/session/peer_identity.h"
#include "daemon/store/store.h"
#include "terrace/protocol_admin.h"

namespace terrace {

class DomainServing {
 public:
  // Makes the pages; a domain that cannot have one goes without, and the log says so.
  // `config` and `clock` outlive it.
  DomainServing(const DaemonConfig& config, const Clock& clock);
  // −1: the domain has none.
  int notice_fd(uint32_t domain_index) const { return domains_[domain_index].notices.fd(); }

  // The store begins as the files say. Both outlive it; once, before anybody asks.
  void Serve(Store& store, const std::vector<std::unique_ptr<DomainNvme>>& nvme);
  // Does so, if it is not done already, and says what is left. REQUIRES: Serve was called.
  protocol::DrainReply Drain(const PeerIdentity& peer, protocol::DrainAction action);

 private:
  struct Domain {
    NoticeMemory notices;
    std::string kept_path;
    uint64_t since_unix_s = 0;
    uint32_t by_uid = 0;
    int kept_error = 0;  // errno of the file
  };

  void Set(const PeerIdentity& peer, protocol::ServingMode mode);
  void Keep(Domain& domain, protocol::ServingMode mode);

  const DaemonConfig& config_;
  const Clock& clock_;
  Store* store_ = nullptr;
  const std::vector<std::unique_ptr<DomainNvme>>* nvme_ = nullptr;
  std::vector<Domain> domains_;
};

}  // namespace terrace
