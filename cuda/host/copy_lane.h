// One direction of paged copies: its streams and, where it is staged, its ring.
//
// Pages and slots are each touched by one stream of the lane. An edge towards the engine's kernels
// is therefore a wait or an event of the pages' stream, and what becomes of slots is known from the
// slots' stream. The staged path has two streams, so that the kernel fills one stage while the copy
// engine empties another; the other paths have one.
//
// Slots that the device does not reach are copied to and from pinned memory of the lane's, the
// bounce, in their place, and a CPU copies between the two. All that touches slots and bounce is
// in the slots' stream, so one copy after another may use the same bounce.
//
// With a codec, slots, stages and bounce hold encoded layers. Pages that are rows of tokens are
// encoded from where they lie and decoded to there; others are gathered to the lane's own raw
// memory and encoded from there, or decoded to it and scattered. All in the pages' stream. The
// kernels that decode keys turn them to other positions, too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/abi/paged_layout.h"
#include "cuda/host/page_codes.h"
#include "cuda/host/stream.h"
#include "terrace/status.h"
#include "terrace/units.h"

namespace terrace {

inline constexpr uint64_t kStageBytesMax = kGiB;
inline constexpr uint32_t kStageCountMax = 16;

enum class TransferPath {
  kDirect,    // the copy engine, run by run
  kStaged,    // kernel ↔ ring ↔ one copy a slot
  kZeroCopy,  // a kernel that reaches the slots itself
};
inline constexpr uint32_t kTransferPathCount = 3;
std::string_view TransferPathName(TransferPath path);

// A page and the slot that holds it or shall.
struct PageSlot {
  uint64_t page_index = 0;
  std::byte* slot = nullptr;         // its nest's slot_bytes
  std::byte* device_slot = nullptr;  // as kernels reach it; for kZeroCopy
  bool is_in_device = false;         // `slot` lies in the device's own memory
  int32_t key_delta = 0;             // positions that a load turns the keys by
};

struct CopyLaneOptions {
  PagedDirection direction = PagedDirection::kGather;
  TransferPath path = TransferPath::kStaged;
  uint64_t stage_bytes = 0;
  uint32_t stage_count = 0;
  uint32_t thread_blocks_max = 0;
  uint64_t bounce_bytes = 0;  // pinned memory for slots that the device does not reach; 0: none
  std::optional<SpaceCodec> codec;  // the nest is then of one part, in the order NHD
  std::optional<RopeSpec> rope;     // keys of a page turn by the table that UseCodes has of it
};

struct LayerRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

class CopyLane {
 public:
  // `device_rows` is nest.rows where kernels read them. All that is given outlives the lane.
  static Result<std::unique_ptr<CopyLane>> Create(const Device& device, const PagedNest& nest,
                                                  const PagedRow* device_rows,
                                                  const CopyLaneOptions& options);
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  Stream& pages_stream() { return pages_; }
  Stream& slots_stream() { return slots_ ? *slots_ : pages_; }

  // Whether a stage's worth of memory is for pages that are encoded or decoded.
  bool has_raw() const { return raw_.has_value(); }
  // Layers that one Copy may be of: those that fit a stage, and the bounce.
  uint32_t layers_max() const;
  // What a codec's launches use until it is set anew. REQUIRES, with a codec: room for what is
  // copied; it stays until that is done.
  void UseCodes(PageCodes* codes) { codes_ = codes; }
  // Queues these layers of all pages.
  Status Copy(std::span<const PageSlot> pages, LayerRange layers);
  // The same of slots that only a CPU reaches. REQUIRES: there is a bounce.
  Status CopyBounced(std::span<const PageSlot> pages, LayerRange layers);
  // The same of slots in the device's own memory: a kernel's work, whatever the path. The slots are
  // then touched by the pages' stream; SettleSlots says so to the slots' stream.
  Status CopyWithin(std::span<const PageSlot> pages, LayerRange layers);
  Status SettleSlots();
  // Waits until nothing of the lane is under way.
  void Drain();

 private:
  struct Stage;

  CopyLane(const Device& device, const PagedNest& nest, const PagedRow* device_rows,
           const CopyLaneOptions& options, Stream pages);
  Status MakeRing(StreamPriority priority);
  Status MakeBounce();
  Status MakeRaw();
  Status ClearRing();
  uint64_t SpanBytes(
      LayerRange layers) const;  // of these layers in a slot, padding between them too
  PagedLaunch LaunchOf(std::span<const PagedPage> pages, LayerRange layers) const;

  Status CopyDirect(std::span<const PageSlot> pages, LayerRange layers);
  Status CopyZero(std::span<const PageSlot> pages, LayerRange layers);
  Status CopyStaged(std::span<const PageSlot> pages, LayerRange layers);
  // Pages that one launch may be of, where `bytes_max` hold their layers.
  uint64_t PagesPerLaunch(LayerRange layers, uint64_t bytes_max) const;
  // Between pages and where their layers, encoded or not, lie: slots, or a stage.
  Status Launch(std::span<const PagedPage> pages, LayerRange layers);
  Status LaunchCodecs(std::span<const PagedPage> pages, LayerRange layers);
  Status LaunchCodec(std::span<const PagedPage> pages, LayerRange layers, PieceRole role);
  Status LaunchTurned(CodecLaunch launch, std::span<const PagedPage> pages, uint32_t layer_count);
  Status CopyOnHost(std::span<const PageSlot> pages, std::span<const PageSlot> bounced,
                    LayerRange layers);
  Status GatherStage(Stage& stage, std::span<const PagedPage> pages, LayerRange layers,
                     std::span<const CopyPiece> pieces);
  Status ScatterStage(Stage& stage, std::span<const PagedPage> pages, LayerRange layers,
                      std::span<const CopyPiece> pieces);

  const Device& device_;
  const PagedNest& nest_;
  const PagedRow* device_rows_;
  const CopyLaneOptions options_;
  const SlotLayers slot_layers_;
  Stream pages_;
  std::optional<Stream> slots_;
  std::optional<Event> drained_;  // made before anything is under way
  std::optional<Event> within_;   // all CopyWithin so far, where there are two streams
  std::vector<Stage> ring_;
  uint32_t next_stage_ = 0;
  std::optional<DeviceBuffer> bounce_;
  std::optional<PiecesInPlace> in_place_;  // with a codec
  std::optional<DeviceBuffer> raw_;        // where it is not; touched by the pages' stream alone
  PageCodes* codes_ = nullptr;
};

}  // namespace terrace
