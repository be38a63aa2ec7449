// ClientRequests: what a client says of itself: the groups it opens, the memory it has mapped, its
// device. Open, Unmapped, OrderDone, PinTurn, DeviceReport.
//
// THREADING: the store thread. OWNERSHIP: of one Request; its reply's arrays point into it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/session/request_frame.h"
#include "daemon/store/store.h"

namespace terrace {

class ClientRequests {
 public:
  explicit ClientRequests(RequestFrame& frame) : frame_(frame) {}

  RequestOutcome Step(RequestContext& context, Store& store);
  void Restart() { turn_.reset(); }

 private:
  // *is_malformed: the body's size is wrong.
  Error Act(RequestContext& context, Store& store, bool* is_malformed);
  Error Open(RequestContext& context, Store& store, bool* is_malformed);
  Error ReadGroup(SpaceGroupSpec* group, uint64_t* self_mask, bool* is_malformed);
  Error OrderDone(const RequestContext& context, Store& store, bool* is_malformed);
  Error PinTurn(const RequestContext& context, Store& store);

  RequestFrame& frame_;
  std::optional<protocol::PinTurnReply> turn_;  // of one that asks
  protocol::OpenReply opened_;
  std::vector<protocol::OpenedMember> opened_members_;
  std::vector<Checksum> step_checksums_;  // scratch
};

}  // namespace terrace
