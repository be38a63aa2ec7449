// Copies an engine's pages to slots and back, by one of three paths, ordered against the engine's
// kernels by the four edges.
//
// The staged path turns many small pieces into one large copy a slot: a kernel gathers pages into a
// stage of a ring in device memory, the copy engine moves the stage while the kernel fills the
// next. Loads run the same way back, a few layers at a time, so that the engine can begin with
// layer 0. With a codec the kernels encode what they gather and decode what they scatter.
//
// THREADING: one thread stores and one thread loads at a time; they need not be the same.
// LIMITS: kPagesPerCallMax pages a call; kCopierEventsMax events, else kBusy. Nothing blocks but
// Create, what edges.h says blocks, and, with a codec, a call of more pages, or of more ways to
// turn keys, than any before it, and a call that fails half-way waits for what it has queued.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/abi/paged_layout.h"
#include "cuda/host/copy_lane.h"
#include "cuda/host/edges.h"
#include "cuda/host/host_pins.h"
#include "cuda/host/page_codes.h"
#include "cuda/host/stream.h"
#include "terrace/codec.h"
#include "terrace/status.h"
#include "terrace/units.h"

namespace terrace {

inline constexpr uint32_t kPagesPerCallMax = 4096;
inline constexpr uint32_t kCopierEventsMax = 8192;

struct CopierOptions {
  TransferPath store_path = TransferPath::kStaged;
  TransferPath load_path = TransferPath::kStaged;
  // A ring for each direction that is staged: at 55 GB/s and 0.2 ms of latency, 11 MB are under
  // way.
  uint64_t stage_bytes = 16 * kMiB;
  uint32_t stage_count = 4;
  uint32_t staged_thread_blocks_max = 32;
  uint32_t zero_copy_thread_blocks_max = 12;  // more slow the engine's kernels, and gain nothing
  // So many layers are loaded in one step as make these bytes of one slot, and of all slots
  // together: with less of them the driver's calls take longer than their copies.
  uint64_t load_chunk_bytes_min = 256 * kKiB;
  uint64_t load_step_bytes_min = 8 * kMiB;
  // Which slots the device reaches; the bytes of others pass through pinned memory of the copier's,
  // so many a direction. None: it reaches all slots.
  std::shared_ptr<HostPins> pins;
  uint64_t bounce_bytes = 16 * kMiB;
  // Slots hold encoded pages. Of the nest, kNhd and all layers in one part; not by kDirect. Needs
  // stage_bytes more of device memory a direction, if pages are no rows of tokens.
  std::optional<SpaceCodec> codec;
  // Loads turn keys by their page's key_delta. With a codec, if only raw.
  std::optional<RopeSpec> rope;
};

// Of what a codec refuses, `codes` tells once the slots are written; null without a codec. It goes
// last: what is under way uses it.
struct StoreTicket {
  std::shared_ptr<PageCodes> codes;
  PageReuse page_reuse;
  SlotsDone slots_written;
};

struct LoadTicket {
  std::shared_ptr<PageCodes> codes;
  LayerReady layer_ready;
  SlotsDone slots_read;
};

class PagedCopier {
 public:
  // `device` outlives the copier.
  static Result<std::unique_ptr<PagedCopier>> Create(const Device& device, PagedNest nest,
                                                     const CopierOptions& options,
                                                     std::string* why);
  ~PagedCopier();
  PagedCopier(const PagedCopier&) = delete;
  PagedCopier& operator=(const PagedCopier&) = delete;

  EventPool& events() { return events_; }
  const PagedNest& nest() const { return nest_; }

  // REQUIRES: no page or slot twice in one call; no key_delta but in a load, with a rope, within
  // ±kRopePositionMax.
  Result<StoreTicket> Store(std::span<const PageSlot> pages, const KvWritten& written);
  Result<LoadTicket> Load(std::span<const PageSlot> pages, const DestinationFree& free);

 private:
  PagedCopier(const Device& device, PagedNest nest, const CopierOptions& options);
  Status Prepare();
  Status UploadRows();
  Status CheckPages(std::span<const PageSlot> pages, TransferPath path) const;
  // Pages by how their slots are reached.
  struct Routed {
    Routed() = default;
    Routed(Routed&&) = default;        // the spans stay right
    std::vector<PageSlot> kept;        // if pages had to be sorted
    std::span<const PageSlot> within;  // in the device's own memory
    std::span<const PageSlot> straight;
    std::span<const PageSlot> bounced;
    uint64_t page_count() const { return within.size() + straight.size() + bounced.size(); }
  };
  Routed Route(std::span<const PageSlot> pages) const;
  static Status Copy(CopyLane& lane, const Routed& pages, LayerRange layers);
  Status LendCodes(CopyLane& lane, const Routed& pages, std::shared_ptr<PageCodes>* codes);
  std::map<int32_t, std::vector<uint64_t>> PagesByDelta(const Routed& pages) const;
  Result<StoreTicket> QueueStore(const Routed& pages, const KvWritten& written,
                                 std::shared_ptr<PageCodes>* codes);
  uint32_t LayersOfStep(uint64_t page_count) const;
  Result<LoadTicket> QueueLoad(const Routed& pages, const DestinationFree& free,
                               std::shared_ptr<PageCodes>* codes);

  const Device& device_;
  const PagedNest nest_;
  const CopierOptions options_;
  const SlotLayers slot_layers_;
  EventPool events_;
  PageCodesPool codes_;
  std::optional<DeviceBuffer> rows_;  // nest_.rows where kernels read them
  std::unique_ptr<CopyLane> store_;
  std::unique_ptr<CopyLane> load_;
};

}  // namespace terrace
