// The device: who has it mapped, and the copies it makes for the tier.
#include <bit>

#include "daemon/log/printable.h"
#include "daemon/store/store_state.h"

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
                           protocol::DeviceAttachReply* reply, std::string* why) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  const DeviceUse& use = caller.domain().options.device;
  if (use.tier == nullptr) {
    *why = "this domain has no HBM tier: hbm.capacity_bytes says how large it is";
    return Status(StatusCode::kUnsupported, "this domain has no HBM tier");
  }
  if (device != use.device) {
    *why = "the HBM tier is of device '" + use.device + "' (hbm.device); blocks come from DRAM";
    return Status(StatusCode::kNotFound, "the HBM tier is of another device");
  }
  SessionRecord& record = state_->sessions.at(caller.session);
  record.has_device = record.has_slots = true;
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

Status Store::AskPinTurn(SessionId session, uint32_t* ahead_count) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  state_->sessions.at(caller.session).has_slots = true;  // it registers what it has mapped
  *ahead_count = state_->turns.Ask(session);
  if (state_->turns.holder() == session) {
    state_->seams.listener.OnPinTurn(session);  // asked again: it may not have heard
  } else {
    state_->StepTurns();
  }
  return Status::Ok();
}

Status Store::EndPinTurn(SessionId session) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  const bool had_place = state_->turns.End(session);
  state_->StepTurns();
  return had_place ? Status::Ok()
                   : Status(StatusCode::kGone, "this session has no turn to register, nor waits");
}

Status Store::ReportDevice(SessionId session, const protocol::DeviceReport& report) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(state_->Enter(session, kAllGroups, &caller));
  state_->sessions.at(caller.session).report = std::make_unique<protocol::DeviceReport>(report);
  return Status::Ok();
}

DomainStats::CopyStats Store::State::CopyStatsOf(uint32_t domain_index) const {
  DomainStats::CopyStats sum;
  for (SessionIndex index = 0; index < sessions.index_count(); ++index) {
    const SessionRecord& record = sessions.at(index);
    const bool is_present = record.is_used && !record.is_hung_up;
    if (!is_present || record.domain_index != domain_index || record.report == nullptr) continue;
    const protocol::DeviceReport& report = *record.report;
    ++sum.client_count;
    sum.pinned_bytes += report.pinned_bytes;
    sum.straight_bytes += report.straight_bytes;
    sum.bounced_bytes += report.bounced_bytes;
    sum.registrations_failed += report.failed_count;
    if (sum.clients.size() == kCopyClientsShownMax) continue;
    sum.clients.push_back({.session = record.id,
                           .backend = Printable(report.backend),
                           .why = Printable(report.why),
                           .counts = report});
  }
  return sum;
}

void Store::State::StepTurns() {
  const SessionId session = turns.Next(clock.NowUs());
  if (session != 0) seams.listener.OnPinTurn(session);
}

void Store::State::OnWorkOrder(ExecutorId executor, const protocol::WorkOrder& order,
                               std::span<const uint64_t> part_bytes) {
  seams.listener.OnWorkOrder(executor, order, part_bytes);
}

}  // namespace terrace
