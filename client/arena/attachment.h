// Attachment: what one handshake gave this process and what outlives the connection: the arena's
// memory, mapped by segment when a lease first needs it, a device's, mapped by slab at once, the
// domain's secret, and the life socket.
// Leases share it; with the last one it unmaps and closes, and only then does the daemon's life
// socket end, which says that no thread of this process can touch a slot any more.
//
// Segments that leases retain are registered with a device by the SegmentPinner, where there is
// one: it takes them out again and unmaps them, and so it does an Attachment that has such
// segments.
//
// THREADING: any thread; one lock guards what is mapped, retained and registered. A lease may call
// base() without it for the segments it retains.
// FORK: segments are not mapped in a child; there the destructor does nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/arena/segment_pinner.h"
#include "client/link/fork_guard.h"
#include "client/link/timed_lock.h"
#include "cuda/host/stream.h"
#include "terrace/arena_layout.h"
#include "terrace/checksum.h"
#include "terrace/prefix_hasher.h"
#include "terrace/protocol_device.h"
#include "terrace/status.h"

namespace terrace::client {

inline constexpr uint32_t kNodesMax = 64;
inline constexpr uint32_t kSegmentsMax = 1 << 20;  // 256 TiB of the largest segments

// Who touches a segment's bytes.
enum class SegmentUse {
  kLease,
  kOrder,  // of another process's making: no reason to register it
};

class Attachment : public std::enable_shared_from_this<Attachment> {
 public:
  // What came with the Hello reply.
  struct Granted {
    uint64_t boot_id = 0;
    protocol::HelloReply reply;
    std::vector<GuardedFd> fds;  // node_count memfds, then the life socket
  };
  // kInvalid with `*why` if counts, sizes or descriptors cannot be.
  static Result<std::shared_ptr<Attachment>> Create(Granted granted, std::string* why);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  uint64_t boot_id() const { return granted_.boot_id; }
  const protocol::HelloReply& geometry() const { return granted_.reply; }
  const DomainSecret& secret() const { return secret_; }
  // The daemon has handed its memory over to be read only (writer_uids of the domain), as the
  // descriptors themselves say: segments are mapped so, and not registered with a device, which
  // would want to write.
  bool is_reader() const { return is_reader_; }

  // A device, and how other processes know it.
  struct SlabDevice {
    std::shared_ptr<const Device> device;
    std::string name;
  };
  // The slabs of a device's memory: mapped here, so that no lease waits for a driver, they are
  // segments like others, from protocol::kDeviceSegmentFirst on. kInvalid with `*why` if they
  // cannot be what they are said to be, or be mapped. Before the attachment is shared.
  Status GrantSlabs(const protocol::DeviceAttachReply& reply, std::vector<GuardedFd> fds,
                    SlabDevice device, std::string* why);
  const SlabDevice& slab_device() const { return slab_device_; }
  // Whether the bytes of a segment are there for this process's own threads: of a GPU's they are
  // not.
  bool is_host_readable(uint32_t segment) const {
    return segment < protocol::kDeviceSegmentFirst || slab_device_.name == "host";
  }
  // 0 if there is no such segment.
  uint64_t segment_bytes(uint32_t segment) const {
    if (segment >= protocol::kDeviceSegmentFirst) {
      return segment - protocol::kDeviceSegmentFirst < slab_count_ ? slab_bytes_ : 0;
    }
    return segment < granted_.reply.segments_max ? granted_.reply.segment_bytes : 0;
  }

  // Maps and retains each segment that `slots` name, once, and appends it to `*segments`.
  // kInvalid if one does not exist, kNoSpace if it cannot be mapped; then nothing is retained.
  Status RetainSegments(std::span<const SlotAddress> slots, std::vector<uint32_t>* segments,
                        SegmentUse use = SegmentUse::kLease);
  // True if the segment was waiting for this and is unmapped now: tell the daemon.
  bool ReleaseSegment(uint32_t segment);
  // The daemon wants it back. True if it is unmapped now, or never was mapped; else it will be at
  // the last ReleaseSegment.
  bool RevokeSegment(uint32_t segment);

  // Who registers segments, and what it asks of their session, on its own thread.
  struct Pinning {
    std::shared_ptr<SegmentPinner> pinner;
    std::function<bool(const Attachment&)> is_present;  // of the present connection
    // The daemon gets the segment back, which it waits for.
    std::function<void(const Attachment&, uint32_t segment)> unmapped;
  };
  // From here on segments of the arena that leases retain are registered. The first one stays.
  void SetPinning(Pinning pinning);

  // REQUIRES: the segment is retained.
  std::byte* base(uint32_t segment) const {
    return EntryOf(segment).base.load(std::memory_order_acquire);
  }

 private:
  struct Segment {
    std::atomic<std::byte*> base{nullptr};
    uint32_t lease_count = 0;
    uint32_t seen_at = 0;  // the RetainSegments call that met it last
    bool is_revoked = false;
    bool is_wanted = false;   // by leases, and the pinner knows
    bool is_pinning = false;  // being registered: not to be unmapped
    bool is_pinned = false;
  };
  // A segment's memory that is nobody's any more.
  struct Unmapping {
    std::byte* base = nullptr;
    bool is_pinned = false;
  };

  explicit Attachment(Granted granted);
  void WantPinned(uint32_t segment);
  // On the pinner's thread: nobody may have wanted the segment any more for a while.
  Status Pin(uint32_t segment);
  // The segment's memory, which stays mapped until EndPin; nullptr if it is not to be registered.
  std::byte* BeginPin(uint32_t segment);
  void EndPin(uint32_t segment, bool is_pinned);
  Segment& EntryOf(uint32_t segment) const {
    return segment >= protocol::kDeviceSegmentFirst
               ? slabs_[segment - protocol::kDeviceSegmentFirst]
               : segments_[segment];
  }
  Status CheckFds(std::string* why) const;
  void FindRole();
  Status MapSlab(uint32_t slab, const GuardedFd& fd, std::string* why);
  struct Place {
    int fd = -1;
    uint64_t offset_bytes = 0;
  };
  Place PlaceOf(uint32_t segment) const;
  Status Map(uint32_t segment);
  static Unmapping Take(Segment& entry);
  // True if it is unmapped now; else the pinner does it, and tells.
  bool Forget(uint32_t segment, const Unmapping& gone);
  void Unmap(uint32_t segment, const Unmapping& gone) const;
  static void Delete(Attachment* attachment);

  Granted granted_;
  DomainSecret secret_;
  bool is_reader_ = false;  // set once, by Create
  uint32_t fork_generation_;
  TimedLock lock_;
  uint32_t retain_count_ = 0;
  std::unique_ptr<Segment[]> segments_;
  std::unique_ptr<Segment[]> slabs_;
  SlabDevice slab_device_;
  uint32_t slab_count_ = 0;
  uint64_t slab_bytes_ = 0;
  Pinning pinning_;  // set once, under lock_
};

}  // namespace terrace::client
