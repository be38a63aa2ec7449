// DeviceVerbs: the device: who has it mapped, the copies its clients make for the tier, and whose
// turn it is to register memory with it.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/block/store_listener.h"
#include "terrace/error.h"
#include "terrace/protocol_device.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

class DeviceVerbs {
 public:
  explicit DeviceVerbs(StoreRooms& store) : store_(store) {}

  // From here on the session is sent work orders, and may be answered with addresses there.
  // kUnsupported: there is no such tier; kNotFound: it is of another device.
  Error Attach(SessionId session, std::string_view device, protocol::DeviceAttachReply* reply);
  // kGone: the session has no such order any more; nothing was believed.
  Status OrderDone(SessionId session, const protocol::OrderDoneRequest& done,
                   std::span<const Checksum> checksums);

  // Registration turns, of all domains. AskPinTurn: StoreListener::OnPinTurn follows, at once
  // perhaps. EndPinTurn: kGone if the session neither has the turn nor waits for it.
  Status AskPinTurn(SessionId session, uint32_t* ahead_count);
  Status EndPinTurn(SessionId session);
  // For Stats.
  Status Report(SessionId session, const protocol::DeviceReport& report);

 private:
  StoreRooms& store_;
};

}  // namespace terrace
