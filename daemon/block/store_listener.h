// StoreListener: what a Store tells of sessions' requests after its calls have returned.
#pragma once

#include <cstdint>
#include <span>

#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/protocol_device.h"
#include "terrace/status.h"

namespace terrace {

using SessionId = uint64_t;

// What happens after a call has returned. Called from inside Store methods: the listener must only
// queue (it may not call the Store).
class StoreListener {
 public:
  virtual ~StoreListener() = default;
  // Progress of an Acquire or Prefetch; see protocol::Completion.
  virtual void OnCompletion(SessionId session, uint64_t request_id, Status status,
                            const protocol::Completion& completion) = 0;
  // An Acquire's lease has ended, or has been revoked, before all was told: nothing more will be.
  virtual void OnRequestDropped(SessionId /*session*/, uint64_t /*request_id*/) {}
  // A Wait ended: kOk (all persisted), kBusy (deadline), kNotFound (a key left the cache). Or an
  // AwaitErasures.
  virtual void OnWaitDone(SessionId session, uint64_t request_id, Status status) = 0;
  virtual void OnLeaseRevoked(SessionId session, const LeaseToken& token) = 0;
  virtual void OnSegmentRevoke(SessionId session, uint32_t segment) = 0;
  // A Seek has ended: the keys it was about may be asked for now.
  virtual void OnSeekDone(SessionId /*session*/, uint64_t /*request_id*/) {}
  // A copy that this session, which has attached the device, is to make.
  virtual void OnWorkOrder(SessionId /*session*/, const protocol::WorkOrder& /*order*/,
                           std::span<const uint64_t> /*part_bytes*/) {}
  // It may register a segment with its device now.
  virtual void OnPinTurn(SessionId /*session*/) {}
};

}  // namespace terrace
