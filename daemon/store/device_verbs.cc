#include "daemon/store/device_verbs.h"

#include <bit>

#include "daemon/log/printable.h"
#include "daemon/store/store_rooms.h"

namespace terrace {

Error DeviceVerbs::Attach(SessionId session, std::string_view device,
                          protocol::DeviceAttachReply* reply) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const DeviceUse& use = caller.domain().options.device;
  if (use.tier == nullptr) {
    return {StatusCode::kUnsupported,
            "this domain has no HBM tier: hbm.capacity_bytes says how large it is"};
  }
  if (device != use.device) {
    return {StatusCode::kNotFound,
            "the HBM tier is of device '" + use.device + "' (hbm.device); blocks come from DRAM"};
  }
  SessionRecord& record = store_.sessions.at(caller.session);
  record.has_device = record.has_slots = true;
  use.tier->AddExecutor(session);
  *reply = {.slab_bytes = use.tier->slab_bytes(), .slab_count = use.tier->slab_count()};
  store_.Settle(*caller.rooms);
  return {};
}

Status DeviceVerbs::OrderDone(SessionId session, const protocol::OrderDoneRequest& done,
                              std::span<const Checksum> checksums) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  HbmTier* const tier = caller.domain().options.device.tier;
  if (tier == nullptr) return Status(StatusCode::kUnsupported, "this domain has no HBM tier");
  const Status status = tier->OrderDone(session, done, checksums);
  store_.Settle(*caller.rooms);
  return status;
}

Status DeviceVerbs::AskPinTurn(SessionId session, uint32_t* ahead_count) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  store_.sessions.at(caller.session).has_slots = true;  // it registers what it has mapped
  *ahead_count = store_.turns.Ask(session);
  if (store_.turns.holder() == session) {
    store_.seams.listener.OnPinTurn(session);  // asked again: it may not have heard
  } else {
    store_.StepTurns();
  }
  return Status::Ok();
}

Status DeviceVerbs::EndPinTurn(SessionId session) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const bool had_place = store_.turns.End(session);
  store_.StepTurns();
  return had_place ? Status::Ok()
                   : Status(StatusCode::kGone, "this session has no turn to register, nor waits");
}

Status DeviceVerbs::Report(SessionId session, const protocol::DeviceReport& report) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  store_.sessions.at(caller.session).report = std::make_unique<protocol::DeviceReport>(report);
  return Status::Ok();
}

}  // namespace terrace
