// The tier that hosts share: what a request asks of it, and what it answers.
#include <algorithm>

#include "daemon/store/store_state.h"
#include "terrace/check.h"

namespace terrace {

Status Store::Seek(const KeysQuery& query, uint64_t* end_us) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(query.session, query.group_index, &caller));
  const CacheDomain& domain = caller.domain();
  if (domain.options.shared.tier == nullptr || query.keys.empty()) return Status::Ok();
  const uint64_t now_us = domain.NowUs();
  if (*end_us == 0) {
    *end_us = std::min(now_us + domain.options.shared.seek_us, state_->AnswerDueUs(query.hints));
  }
  if (now_us >= *end_us) return Status::Ok();
  std::vector<BlockRange> path;
  const uint32_t known_count =
      domain.index.Match(query.group_index, query.keys, RadixIndex::Proof::kEveryKey, &path);
  if (known_count == query.keys.size()) return Status::Ok();
  if (known_count > 0) {
    // What is being written here comes from here.
    const Found found = state_->Judge(caller, path.back().first + path.back().block_count - 1);
    if (found == Found::kNothing || found == Found::kReserved) return Status::Ok();
  }
  return caller.rooms->shared_reader.Seek(query, known_count, *end_us);
}

SharedTierListener& Store::shared_listener(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < state_->domains.size(), "a tier names its domain");
  return *state_->domains[domain_index];
}

void DomainRooms::OnSharedFetched(TransferId transfer_id, Status status,
                                  const BlockRecord& record) {
  shared_reader.OnFetched(transfer_id, status, record);
  settle();
}

void DomainRooms::OnSharedStored(TransferId transfer_id, Status status) {
  shared_writer.OnStored(transfer_id, status);
  settle();
}

void DomainRooms::OnSharedProbed(uint64_t probe_id, Status status,
                                 const std::vector<bool>& is_present) {
  shared_reader.OnProbed(probe_id, status, is_present);
  settle();
}

}  // namespace terrace
