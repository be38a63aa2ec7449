// What the policies of a domain have learned, to outlive the process.
#include <array>
#include <utility>

#include "daemon/store/store_state.h"

namespace terrace {
namespace {

// Who may have learned something: calls `visit(name, learner)` for each.
template <typename Visit>
void ForEachLearner(const StoreOptions& options, CacheDomain& domain, const Visit& visit) {
  visit("dram." + options.eviction_policy, domain.dram_policy.get());
  if (domain.persistent_tier == kLowerTiersMax) return;
  visit("below." + options.lower_eviction_policy,
        domain.lower[domain.persistent_tier].policy.get());
  visit("admission." + options.admission_policy, domain.admission.get());
}

}  // namespace

std::vector<Store::Learned> Store::WhatWasLearned(uint32_t domain_index) const {
  std::vector<Learned> all;
  ForEachLearner(state_->options, state_->domains[domain_index]->domain,
                 [&](std::string name, auto* learner) {
                   if (learner == nullptr) return;
                   std::vector<std::byte> state = learner->Learned();
                   if (!state.empty()) all.push_back({std::move(name), std::move(state)});
                 });
  return all;
}

bool Store::StartFrom(uint32_t domain_index, const Learned& learned) {
  bool has_started = false;
  ForEachLearner(state_->options, state_->domains[domain_index]->domain,
                 [&](const std::string& name, auto* learner) {
                   if (learner == nullptr || name != learned.name) return;
                   has_started = learner->StartFrom(learned.state);
                 });
  return has_started;
}

}  // namespace terrace
