#include "daemon/store/copy_checks.h"

#include "daemon/store/store_rooms.h"
#include "terrace/check.h"

namespace terrace {
namespace {

bool HasCopyBelow(const CacheDomain& domain, uint32_t owner) {
  if (domain.persistent_tier == kLowerTiersMax || owner >= domain.index.id_count()) return false;
  const Block& b = domain.block(owner);
  return b.phase == BlockPhase::kSealed &&
         b.lower[domain.persistent_tier].state == CopyState::kReady;
}

}  // namespace

Result<BlockRecord> CopyChecks::DescribeCopy(uint32_t domain_index, uint32_t owner,
                                             const Extent& extent) const {
  const DomainRooms& rooms = store_.at(domain_index);
  const CacheDomain& domain = rooms.domain;
  if (!HasCopyBelow(domain, owner)) return Status(StatusCode::kNotFound, "no such copy");
  const Block& b = domain.block(owner);
  const BlockCopy& copy = b.lower[domain.persistent_tier];
  Group& group = domain.group_of(b);
  const std::span<const Extent> extents = group.extents().at(copy.row);
  const std::span<const LocalMember> locals = group.locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    const bool is_there = (copy.member_mask >> locals[i].member) & 1;
    if (is_there && extents[i] == extent) return domain.RecordOf(owner, locals[i]);
  }
  return Status(StatusCode::kNotFound, "its copy lies elsewhere");
}

Status CopyChecks::CheckCopies(uint32_t domain_index, std::vector<CopyName> copies,
                               uint64_t bytes_per_second, std::function<void(CopyFindings)> done) {
  DomainRooms& rooms = store_.at(domain_index);
  if (rooms.checker.is_checking()) return Status(StatusCode::kBusy, "a check is under way");
  for (const CopyName& copy : copies) {
    TERRACE_CHECK(copy.owner < rooms.domain.index.id_count(), "a copy has an owner");
  }
  rooms.checker.Check(std::move(copies), bytes_per_second, std::move(done));
  rooms.checker.Tick();
  return Status::Ok();
}

uint32_t CopyChecks::group_count(uint32_t domain_index) const {
  return static_cast<uint32_t>(store_.at(domain_index).domain.groups.size());
}

void CopyChecks::CancelCheck(uint32_t domain_index) {
  store_.at(domain_index).checker.CancelCheck();
}

Status CopyChecks::DropCopy(uint32_t domain_index, const CopyName& copy, CopyFault fault) {
  DomainRooms& rooms = store_.at(domain_index);
  CacheDomain& domain = rooms.domain;
  const auto is_there = [&] {
    return HasCopyBelow(domain, copy.owner) && domain.block(copy.owner).commit_id == copy.commit_id;
  };
  if (!is_there()) return Status(StatusCode::kNotFound, "the copy has left");
  if (domain.block(copy.owner).job_count > 0) {
    return Status(StatusCode::kBusy, "something is reading or writing the block");
  }
  ++domain.counters.blocks_corrupt;
  const EraseCauseScope scope(domain, protocol::MissCause::kCorrupt);
  rooms.residency.lifecycle.DropLower(
      copy.owner, domain.persistent_tier,
      fault == CopyFault::kUnreadable ? DropReason::kBadBytes : DropReason::kNotWanted);
  const Block& b = domain.block(copy.owner);
  if (b.phase == BlockPhase::kSealed && b.commit_id == copy.commit_id) {
    (void)rooms.mover.Persist(copy.owner);
  }
  store_.Settle(rooms);
  return Status::Ok();
}

}  // namespace terrace
