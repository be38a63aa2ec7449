// The device: who has it mapped, and the copies it makes for the tier.
#include <bit>

#include "daemon/store_state.h"

namespace terrace {

void AppendDeviceSlots(const Group& group, const CacheDomain& domain, const Block& block,
                       uint64_t member_mask, std::vector<SlotAddress>* slots) {
  const BlockCopy& copy = block.lower[domain.device_tier];
  const std::span<const Extent> extents = domain.group_of(block).extents().at(copy.row);
  const std::span<const LocalMember> locals = group.locals();
  for (size_t i = 0; i < locals.size(); ++i) {
    if (!((member_mask >> locals[i].member) & 1)) continue;
    const bool has_bytes = (copy.member_mask >> locals[i].member) & 1;
    slots->push_back(has_bytes ? HbmTier::AddressOf(extents[i]) : SlotAddress{});
  }
}

Status Store::AttachDevice(SessionId session, std::string_view device,
                           protocol::DeviceAttachReply* reply) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  const DeviceUse& use = caller.domain().options.device;
  if (use.tier == nullptr) {
    return Status(StatusCode::kUnsupported, "this domain has no HBM tier");
  }
  if (device != use.device) {
    return Status(StatusCode::kNotFound, "the HBM tier is of another device");
  }
  state_->sessions.at(caller.session).has_device = true;
  use.tier->AddExecutor(session);
  *reply = {.slab_bytes = use.tier->slab_bytes(), .slab_count = use.tier->slab_count()};
  state_->Settle(*caller.rooms);
  return Status::Ok();
}

Status Store::OrderDone(SessionId session, const protocol::OrderDoneRequest& done,
                        std::span<const Checksum> checksums) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  HbmTier* const tier = caller.domain().options.device.tier;
  if (tier == nullptr) return Status(StatusCode::kUnsupported, "this domain has no HBM tier");
  const Status status = tier->OrderDone(session, done, checksums);
  state_->Settle(*caller.rooms);
  return status;
}

void Store::State::OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                               std::span<const uint64_t> part_bytes) {
  seams.listener.OnWorkOrder(executor, order, part_bytes);
}

}  // namespace terrace
