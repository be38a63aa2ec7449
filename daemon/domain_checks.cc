#include "daemon/domain_checks.h"

#include <utility>

namespace terrace {

DomainChecks::DomainChecks(const std::vector<std::unique_ptr<DomainNvme>>& domains, Store& store,
                           const std::function<void(std::function<void()>)>& post) {
  for (const std::unique_ptr<DomainNvme>& domain : domains) {
    checks_.push_back(std::make_unique<OnlineFsck>(
        OnlineFsck::Options{.domain_index = static_cast<uint32_t>(checks_.size()),
                            .secret = domain->secret(),
                            .directories = domain->slab_directories(),
                            .groups_directory = domain->groups_directory(),
                            .store = &store,
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
                           SessionId session) { checks_[domain_index]->Cancel(session); }};
}

}  // namespace terrace
