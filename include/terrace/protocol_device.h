// Frames about device memory: a client that maps the HBM tier's slabs, and the copies the daemon
// has it make. terraced never touches a device; it issues *work orders*, and a client of the device
// copies, compares and reports. Like protocol.h, of frame version 1. Only a session that attached
// the device is sent an order, so a client that does not know these frames never meets one.
#pragma once

#include <cstdint>

#include "terrace/protocol.h"
#include "terrace/protocol_introspection.h"

namespace terrace::protocol {

inline constexpr Verb kVerbDeviceAttach{25};
inline constexpr Verb kVerbOrderDone{26};
inline constexpr Verb kVerbPinTurn{27};
inline constexpr Verb kVerbDeviceReport{28};
static_assert(kVerbDeviceAttach > kVerbFsck && kVerbDeviceReport < kVerbLast);

// Daemon to client, unasked.
inline constexpr Verb kVerbWorkOrder{67};
inline constexpr Verb kVerbPinTurnBegins{68};  // no body

// The reply carries one descriptor a slab: what one message can carry beside bytes.
inline constexpr uint32_t kDeviceSlabsMax = 250;

// Slot addresses with a segment from here on name the device's memory: kDeviceSegmentFirst + slab.
inline constexpr uint32_t kDeviceSegmentFirst = 0x80000000;

// Of Acquire and Join on a ReadLease: blocks may be answered where they lie in the device's memory.
// Such a span is of tier kHbm and ready. Means nothing to a session that has not attached the
// device.
inline constexpr uint32_t kAcquireDevice = 128;

// Body: DeviceAttachRequest. Reply body: DeviceAttachReply, and slab_count descriptors in order.
struct DeviceAttachRequest {
  char device[64] = {};  // NUL-padded: backend and UUID, "cuda:GPU-8f3c2d1e-…", or "host"
};
struct DeviceAttachReply {
  uint64_t slab_bytes = 0;
  uint32_t slab_count = 0;
  uint32_t reserved = 0;
};

enum class OrderKind : uint8_t {
  kPromote = 0,  // arena → device; answered with the checksums of what then lies in the device
  kDemote = 1,   // device → arena
};

// Body: WorkOrder, then part_count u64 lengths. Parts begin at 4 KiB in either slot.
struct WorkOrder {
  uint64_t order_id = 0;     // never used again by this daemon
  uint32_t generation = 0;   // of the device's slot; echoed
  uint32_t deadline_us = 0;  // from receipt; later answers count for nothing
  SlotAddress device;
  SlotAddress arena;
  uint64_t length_bytes = 0;  // of the whole slot
  SpaceId space;              // what the checksums are seeded with
  BlockKey key;
  CommitId commit_id = 0;
  uint32_t part_count = 0;
  OrderKind kind = OrderKind::kPromote;
  uint8_t reserved[3] = {};
};

// The end of an order: no thread of this process touches either slot any more. Body:
// OrderDoneRequest, then checksum_count Checksums.
struct OrderDoneRequest {
  uint64_t order_id = 0;
  uint32_t generation = 0;
  uint32_t checksum_count = 0;  // of a promotion that went well: part_count
  uint8_t status = 0;           // StatusCode
  uint8_t reserved[7] = {};
};

// Registering host memory with a device stops every other process that does: who wants to asks for
// its turn, registers a segment when kVerbPinTurnBegins comes, and says that it has. A turn that
// others wait for is over after two seconds, whatever its holder does.
enum class PinTurnAction : uint32_t {
  kAsk = 0,  // asked again, it changes nothing
  kEnd = 1,  // of the turn, or of waiting for it; "gone": it has neither
};
// Body: PinTurnRequest. Reply body of kAsk: PinTurnReply.
struct PinTurnRequest {
  PinTurnAction action = PinTurnAction::kAsk;
  uint32_t reserved = 0;
};
struct PinTurnReply {
  uint32_t ahead_count = 0;  // sessions whose turn comes or ends first
  uint32_t reserved = 0;
};

// What makes this session's copies, for status; the last one counts. Texts are NUL-padded.
struct DeviceReport {
  char backend[16] = {};
  char why[208] = {};  // it is this one
  uint64_t pinned_bytes = 0;
  uint64_t pinned_bytes_max = 0;
  uint64_t straight_bytes = 0;  // copied from and to registered memory, since the client began
  uint64_t bounced_bytes = 0;   // and by way of pinned memory of the copiers'
  uint32_t failed_count = 0;    // of registrations
  uint32_t reserved = 0;
};

static_assert(sizeof(DeviceReport) == 264);
static_assert(sizeof(PinTurnRequest) == 8 && sizeof(PinTurnReply) == 8);
static_assert(sizeof(DeviceAttachRequest) == 64 && sizeof(DeviceAttachReply) == 16);
static_assert(sizeof(WorkOrder) == 88 && sizeof(OrderDoneRequest) == 24);

}  // namespace terrace::protocol
