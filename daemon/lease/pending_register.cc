#include "daemon/lease/pending_register.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

// REQUIRES: it is in the list of the key.
template <typename Key>
void EraseFrom(std::unordered_map<Key, std::vector<PendingId>>* lists, Key key, PendingId id) {
  const auto list = lists->find(key);
  TERRACE_CHECK(list != lists->end(), "a pending request is in its lists");
  std::vector<PendingId>& ids = list->second;
  const auto found = std::find(ids.rbegin(), ids.rend(), id);
  TERRACE_CHECK(found != ids.rend(), "a pending request is in its lists");
  *found = ids.back();
  ids.pop_back();
  if (ids.empty()) lists->erase(list);
}

}  // namespace

PendingId PendingRegister::Open(const NewPending& what) {
  const RequestKey key{what.session, what.request_id};
  if (by_request_.contains(key)) return kPendingNone;
  const PendingId id = requests_.Take({.what = what, .stamp = ++opened_count_});
  by_request_.emplace(key, id);
  by_session_[what.session].push_back(id);
  if (what.lease != kLeaseNone) by_lease_[what.lease].push_back(id);
  return id;
}

PendingId PendingRegister::Find(SessionId session, uint64_t request_id) const {
  const auto found = by_request_.find({session, request_id});
  return found == by_request_.end() ? kPendingNone : found->second;
}

uint32_t PendingRegister::CountOf(SessionId session) const {
  const auto found = by_session_.find(session);
  return found == by_session_.end() ? 0 : static_cast<uint32_t>(found->second.size());
}

std::vector<PendingId> PendingRegister::OfLease(LeaseId lease) const {
  const auto found = by_lease_.find(lease);
  return found == by_lease_.end() ? std::vector<PendingId>() : found->second;
}

std::vector<PendingId> PendingRegister::OfSession(SessionId session) const {
  const auto found = by_session_.find(session);
  return found == by_session_.end() ? std::vector<PendingId>() : found->second;
}

void PendingRegister::Arm(PendingId id, uint64_t deadline_us) {
  Request& request = requests_[id];
  TERRACE_CHECK(!request.is_over && !request.is_armed, "a request is armed once");
  request.is_armed = true;
  request.deadline = d_.seams.deadlines.Add({.due_us = deadline_us,
                                             .kind = DeadlineKind::kPending,
                                             .domain_index = d_.domain_index,
                                             .id = id});
}

void PendingRegister::End(PendingId id) {
  Request& request = requests_[id];
  TERRACE_CHECK(!request.is_over, "a request ends once");
  request.is_over = true;
  request.is_armed = false;
  if (request.deadline != kHandleNone) d_.seams.deadlines.Remove(request.deadline);
  request.deadline = kHandleNone;
  by_request_.erase({request.what.session, request.what.request_id});
  EraseFrom(&by_session_, request.what.session, id);
  if (request.what.lease != kLeaseNone) EraseFrom(&by_lease_, request.what.lease, id);
}

void PendingRegister::Free(PendingId id) {
  TERRACE_CHECK(requests_[id].is_over, "an id is given back once its request has ended");
  requests_.Give(id);
}

}  // namespace terrace
