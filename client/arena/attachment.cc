#include "client/arena/attachment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "client/link/cancel_deferred.h"
#include "cuda/abi/device_status.h"

namespace terrace::client {
namespace {

Status Refused(std::string* why, std::string text) {
  *why = std::move(text);
  return Status(StatusCode::kInvalid, "the Hello reply cannot be right");
}

Status CheckGeometry(const protocol::HelloReply& reply, std::string* why) {
  const uint64_t segment_bytes = reply.segment_bytes;
  if (segment_bytes < kSegmentBytesMin || segment_bytes > kSegmentBytesMax ||
      segment_bytes % kExtentUnitBytes != 0) {
    return Refused(why, "the Hello reply says segment_bytes " + std::to_string(segment_bytes) +
                            "; the limit is a multiple of 2 MiB up to 256 MiB: update libterrace "
                            "or terraced so that both are of one release");
  }
  if (reply.node_count == 0 || reply.node_count > kNodesMax) {
    return Refused(why, "the Hello reply says " + std::to_string(reply.node_count) +
                            " NUMA nodes; the limit is 1 to " + std::to_string(kNodesMax) +
                            ": update libterrace");
  }
  if (reply.segments_max == 0 || reply.segments_max > kSegmentsMax ||
      reply.segments_per_node == 0 ||
      uint64_t{reply.segments_per_node} * reply.node_count < reply.segments_max) {
    return Refused(why, "the Hello reply says " + std::to_string(reply.segments_max) +
                            " segments, " + std::to_string(reply.segments_per_node) +
                            " a node; the limit is " + std::to_string(kSegmentsMax) +
                            " over all nodes: update libterrace");
  }
  if (reply.frame_bytes_max <= sizeof(protocol::FrameHeader) + sizeof(protocol::ReplyPrefix) ||
      reply.frame_bytes_max > protocol::kFrameBytesMax || reply.keys_per_request_max == 0) {
    return Refused(why, "the Hello reply says frame_bytes_max " +
                            std::to_string(reply.frame_bytes_max) + "; the limit is " +
                            std::to_string(protocol::kFrameBytesMax) + ": update libterrace");
  }
  if (reply.key_hash > static_cast<uint8_t>(KeyHash::kSha256)) {
    return Refused(why, "the Hello reply says key_hash " + std::to_string(reply.key_hash) +
                            "; this library knows 0 and 1: update libterrace");
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<Attachment>> Attachment::Create(Granted granted, std::string* why) {
  TERRACE_RETURN_IF_ERROR(CheckGeometry(granted.reply, why));
  std::shared_ptr<Attachment> attachment(new Attachment(std::move(granted)), &Attachment::Delete);
  TERRACE_RETURN_IF_ERROR(attachment->CheckFds(why));
  attachment->FindRole();
  return attachment;
}

Attachment::Attachment(Granted granted)
    : granted_(std::move(granted)),
      fork_generation_(ForkGeneration()),
      segments_(std::make_unique<Segment[]>(granted_.reply.segments_max)) {
  std::memcpy(secret_.data(), granted_.reply.secret, secret_.size());
  WipeMemory(granted_.reply.secret, sizeof(granted_.reply.secret));
}

Attachment::~Attachment() {
  if (fork_generation_ != ForkGeneration()) return;
  for (uint32_t segment = 0; segment < granted_.reply.segments_max; ++segment) {
    Unmap(segment, Take(segments_[segment]));
  }
  for (uint32_t slab = 0; slab < slab_count_; ++slab) {
    Unmap(protocol::kDeviceSegmentFirst + slab, Take(slabs_[slab]));
  }
  // The life socket is last: its goodbye byte says that nothing of this session touches the arena
  // any more, though the process lives on. Without the byte the daemon waits for the process's end.
  if (granted_.fds.size() != granted_.reply.node_count + 1u) return;
  const std::byte goodbye{1};
  const CancelDeferred deferred;
  (void)!send(granted_.fds.back().get(), &goodbye, sizeof(goodbye), MSG_NOSIGNAL | MSG_DONTWAIT);
  granted_.fds.back().ShutdownAndClose();
}

// Taking memory out of a device takes long: not on the thread of whoever let the last lease go.
void Attachment::Delete(Attachment* attachment) {
  const bool is_slow =
      attachment->fork_generation_ == ForkGeneration() && attachment->pinning_.pinner != nullptr &&
      (attachment->slab_count_ > 0 ||
       std::any_of(attachment->segments_.get(),
                   attachment->segments_.get() + attachment->granted_.reply.segments_max,
                   [](const Segment& segment) { return segment.is_pinned; }));
  if (is_slow && attachment->pinning_.pinner->Retire([attachment] { delete attachment; })) return;
  delete attachment;
}

Status Attachment::CheckFds(std::string* why) const {
  const size_t wanted = granted_.reply.node_count + 1u;
  if (granted_.fds.size() != wanted) {
    return Refused(why, "the Hello reply carries " + std::to_string(granted_.fds.size()) +
                            " descriptors; " + std::to_string(wanted) +
                            " are needed (one arena per node, then the life socket): raise this "
                            "process's descriptor limit, or update libterrace");
  }
  for (size_t i = 0; i + 1 < wanted; ++i) {
    // Else a daemon gone wrong could take pages away under a thread that reads them.
    const int seals = fcntl(granted_.fds[i].get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return Refused(why, "arena memory file " + std::to_string(i) +
                              " of the Hello reply is not sealed against shrinking: " +
                              "update libterrace or terraced so that both are of one release");
    }
  }
  for (size_t i = 0; i < wanted; ++i) {
    struct stat status;
    const bool is_life = i + 1 == wanted;
    if (fstat(granted_.fds[i].get(), &status) != 0 ||
        (is_life ? !S_ISSOCK(status.st_mode) : !S_ISREG(status.st_mode))) {
      return Refused(why, "descriptor " + std::to_string(i) + " of the Hello reply is no " +
                              (is_life ? "socket" : "memory file") +
                              ": update libterrace or terraced so that both are of one release");
    }
  }
  return Status::Ok();
}

void Attachment::FindRole() {
  for (size_t i = 0; i < granted_.reply.node_count; ++i) {
    const int flags = fcntl(granted_.fds[i].get(), F_GETFL);
    is_reader_ |= flags >= 0 && (flags & O_ACCMODE) == O_RDONLY;
  }
}

Status Attachment::GrantSlabs(const protocol::DeviceAttachReply& reply, std::vector<GuardedFd> fds,
                              SlabDevice device, std::string* why) {
  const bool is_size = reply.slab_bytes >= kSegmentBytesMin &&
                       reply.slab_bytes <= kSegmentBytesMax &&
                       reply.slab_bytes % kExtentUnitBytes == 0;
  if (!is_size || reply.slab_count == 0 || reply.slab_count > protocol::kDeviceSlabsMax) {
    return Refused(why, "the DeviceAttach reply says " + std::to_string(reply.slab_count) +
                            " slabs of " + std::to_string(reply.slab_bytes) +
                            " bytes: update libterrace or terraced so that both are of one "
                            "release");
  }
  if (fds.size() != reply.slab_count) {
    return Refused(why, "the DeviceAttach reply carries " + std::to_string(fds.size()) +
                            " descriptors; " + std::to_string(reply.slab_count) +
                            " are needed (one a slab): raise this process's descriptor limit, or "
                            "update libterrace");
  }
  slab_device_ = std::move(device);
  slabs_ = std::make_unique<Segment[]>(reply.slab_count);
  slab_bytes_ = reply.slab_bytes;
  for (uint32_t slab = 0; slab < reply.slab_count; ++slab) {
    TERRACE_RETURN_IF_ERROR(MapSlab(slab, fds[slab], why));
  }
  return Status::Ok();  // a mapping keeps what its descriptor named
}

Status Attachment::MapSlab(uint32_t slab, const GuardedFd& fd, std::string* why) {
  const Device& device = *slab_device_.device;
  void* address = nullptr;
  const Status mapped = FromDeviceStatus(device.ops().map_slab(
      device.handle(), fd.get(), slab_bytes_, SlabAccess::kReadWrite, &address));
  if (!mapped.ok()) {
    return Refused(why, "slab " + std::to_string(slab) + " of the HBM tier, " +
                            std::to_string(slab_bytes_) + " bytes, cannot be mapped on device '" +
                            slab_device_.name + "': " + mapped.what() + " (" +
                            std::to_string(mapped.detail()) +
                            "); blocks come from DRAM. Update libterrace or terraced so that both "
                            "are of one release, or see whether the device works");
  }
  slabs_[slab].base.store(static_cast<std::byte*>(address), std::memory_order_release);
  slab_count_ = slab + 1;
  return Status::Ok();
}

Status Attachment::RetainSegments(std::span<const SlotAddress> slots,
                                  std::vector<uint32_t>* segments, SegmentUse use) {
  const size_t before = segments->size();
  LockGuard guard(lock_);
  // Zero is what fresh segments say; a wrapped count would only retain one twice.
  const uint32_t this_call = ++retain_count_ == 0 ? ++retain_count_ : retain_count_;
  Status status;
  for (const SlotAddress& slot : slots) {
    if (!slot.has_bytes()) continue;
    if (segment_bytes(slot.segment) == 0) {
      status = Status(StatusCode::kInvalid, "a slot lies in a segment that does not exist");
      break;
    }
    Segment& segment = EntryOf(slot.segment);
    if (segment.seen_at == this_call) continue;
    if (segment.base.load(std::memory_order_relaxed) == nullptr) {
      status = Map(slot.segment);
      if (!status.ok()) break;
    }
    try {
      segments->push_back(slot.segment);
    } catch (const std::bad_alloc&) {
      status = Status(StatusCode::kNoSpace, "no memory to remember a lease's segments");
      break;
    }
    segment.seen_at = this_call;
    ++segment.lease_count;
    const bool is_arena = slot.segment < protocol::kDeviceSegmentFirst;
    if (use == SegmentUse::kLease && is_arena) WantPinned(slot.segment);
  }
  if (status.ok()) return status;
  for (size_t i = before; i < segments->size(); ++i) --EntryOf((*segments)[i]).lease_count;
  segments->resize(before);
  return status;
}

bool Attachment::ReleaseSegment(uint32_t segment) {
  Unmapping gone;
  {
    LockGuard guard(lock_);
    Segment& entry = EntryOf(segment);
    if (--entry.lease_count > 0 || !entry.is_revoked || entry.is_pinning) return false;
    gone = Take(entry);
  }
  return Forget(segment, gone);
}

bool Attachment::RevokeSegment(uint32_t segment) {
  if (segment >= granted_.reply.segments_max) return false;
  Unmapping gone;
  {
    LockGuard guard(lock_);
    Segment& entry = segments_[segment];
    if (entry.lease_count > 0 || entry.is_pinning) {
      entry.is_revoked = true;
      return false;
    }
    gone = Take(entry);
  }
  return Forget(segment, gone);
}

Attachment::Unmapping Attachment::Take(Segment& entry) {
  entry.is_revoked = entry.is_wanted = false;
  return {entry.base.exchange(nullptr), std::exchange(entry.is_pinned, false)};
}

bool Attachment::Forget(uint32_t segment, const Unmapping& gone) {
  if (gone.is_pinned) {
    try {
      const bool is_handed_on = pinning_.pinner->Retire([self = shared_from_this(), segment, gone] {
        self->Unmap(segment, gone);
        self->pinning_.unmapped(*self, segment);
      });
      if (is_handed_on) return false;
    } catch (const std::bad_alloc&) {
      // Then here and now.
    }
  }
  Unmap(segment, gone);
  return true;
}

void Attachment::SetPinning(Pinning pinning) {
  LockGuard guard(lock_);
  if (pinning_.pinner == nullptr) pinning_ = std::move(pinning);
}

// REQUIRES: lock_.
void Attachment::WantPinned(uint32_t segment) {
  Segment& entry = segments_[segment];
  if (pinning_.pinner == nullptr || entry.is_wanted || is_reader_) return;
  entry.is_wanted = true;
  try {
    pinning_.pinner->Want({.segment = segment,
                           .segment_bytes = segment_bytes(segment),
                           .pin = [attachment = weak_from_this(), segment] {
                             const auto self = attachment.lock();
                             return self == nullptr ? Status::Ok() : self->Pin(segment);
                           }});
  } catch (const std::bad_alloc&) {
    // It stays as it is.
  }
}

Status Attachment::Pin(uint32_t segment) {
  if (!pinning_.is_present(*this)) return Status::Ok();
  std::byte* const base = BeginPin(segment);
  if (base == nullptr) return Status::Ok();
  const Status status = pinning_.pinner->pins()->Register(base, segment_bytes(segment));
  EndPin(segment, status.ok());
  return status;
}

std::byte* Attachment::BeginPin(uint32_t segment) {
  LockGuard guard(lock_);
  Segment& entry = segments_[segment];
  std::byte* const base = entry.base.load(std::memory_order_relaxed);
  if (base == nullptr || entry.is_revoked || entry.is_pinned) return nullptr;
  entry.is_pinning = true;
  return base;
}

void Attachment::EndPin(uint32_t segment, bool is_pinned) {
  Unmapping gone;
  {
    LockGuard guard(lock_);
    Segment& entry = segments_[segment];
    entry.is_pinning = false;
    entry.is_pinned = is_pinned;
    if (entry.lease_count > 0 || !entry.is_revoked) return;
    gone = Take(entry);
  }
  Unmap(segment, gone);
  pinning_.unmapped(*this, segment);
}

Attachment::Place Attachment::PlaceOf(uint32_t segment) const {
  const uint32_t segments_per_node = granted_.reply.segments_per_node;
  return {.fd = granted_.fds[segment / segments_per_node].get(),
          .offset_bytes = segment % segments_per_node * granted_.reply.segment_bytes};
}

Status Attachment::Map(uint32_t segment) {
  const uint64_t length_bytes = segment_bytes(segment);
  const Place place = PlaceOf(segment);
  struct stat status;
  if (fstat(place.fd, &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < place.offset_bytes + length_bytes) {
    return Status(StatusCode::kInvalid, "a slot lies past the end of its arena memory file");
  }
  const int protection = is_reader_ ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = mmap(nullptr, length_bytes, protection, MAP_SHARED, place.fd,
                      static_cast<off_t>(place.offset_bytes));
  if (mapped == MAP_FAILED) {
    return Status(StatusCode::kNoSpace, "an arena segment cannot be mapped", errno);
  }
  if (madvise(mapped, length_bytes, MADV_DONTFORK) != 0) {
    munmap(mapped, length_bytes);
    return Status(StatusCode::kNoSpace, "an arena segment cannot be kept from children", errno);
  }
  EntryOf(segment).base.store(static_cast<std::byte*>(mapped), std::memory_order_release);
  return Status::Ok();
}

void Attachment::Unmap(uint32_t segment, const Unmapping& gone) const {
  if (gone.base == nullptr) return;
  if (segment >= protocol::kDeviceSegmentFirst) {
    const Device& device = *slab_device_.device;
    (void)device.ops().unmap_slab(device.handle(), gone.base, slab_bytes_);
    return;
  }
  if (gone.is_pinned) pinning_.pinner->pins()->Unregister(gone.base);
  munmap(gone.base, segment_bytes(segment));
}

}  // namespace terrace::client
