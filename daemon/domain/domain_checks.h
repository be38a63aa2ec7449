// DomainChecks: an OnlineFsck for each domain with drives, and what sessions ask them; and the
// audit of erasures, which the domain's catalog keeps.
//
// THREADING: store thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/block/seams.h"
#include "daemon/check/online_fsck.h"
#include "daemon/domain/domain_nvme.h"
#include "daemon/session/session.h"
#include "daemon/store/copy_checks.h"

namespace terrace {

class DomainChecks {
 public:
  // `post` runs its argument as a turn of the store thread, later; on any thread.
  DomainChecks(const std::vector<std::unique_ptr<DomainNvme>>& domains, CopyChecks& copies,
               const Clock& clock, const std::function<void(std::function<void()>)>& post);
  // They use what this is made of.
  SessionTable::FsckHooks Hooks();

 private:
  void Audit(const PeerIdentity& peer, const std::string& client_name,
             const ErasureSummary& erased);

  const std::vector<std::unique_ptr<DomainNvme>>& domains_;
  const Clock& clock_;
  std::vector<std::unique_ptr<OnlineFsck>> checks_;  // by domain
};

}  // namespace terrace
