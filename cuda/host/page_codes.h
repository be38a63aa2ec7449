// A codec between pages and slots: where encoded layers lie in a slot, and what the codec's kernels
// of one call read and write beside pages and slots. Raw is a codec, too: its kernels turn keys.
//
// THREADING: a PageCodes is one call's at a time; the pool may be used from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cuda/abi/paged_layout.h"
#include "cuda/host/stream.h"
#include "cuda/kernels/codec_device.h"
#include "cuda/kernels/rope.h"
#include "terrace/codec.h"
#include "terrace/status.h"

namespace terrace {

// Where the layers of a page lie in its slot.
struct SlotLayers {
  // Of raw pages: as the nest says.
  static SlotLayers Of(const PagedNest& nest);
  // Encoded: part by part, each at a multiple of kPartAlignmentBytes; behind a chunk's header.
  static SlotLayers Of(const SpaceCodec& codec);
  // From one layer to the next, where most lies between: the last of a part has the part's padding.
  uint64_t SpanBytesMax() const;

  uint64_t layer_bytes = 0;
  uint64_t slot_bytes = 0;
  // Where each layer begins, and, last, the end of the slot.
  std::vector<uint64_t> offset_bytes;
};

// Where the keys and values of a page's layer lie, for a codec to read and write them there.
struct PiecesInPlace {
  // None where they are no rows of tokens, or have gaps that the device's codecs do not take.
  static std::optional<PiecesInPlace> Of(const PagedNest& nest, const SpaceCodec& codec,
                                         bool takes_gaps);

  uint64_t AddressOf(const PagedNest& nest, uint64_t page_index, uint32_t layer,
                     PieceRole role) const;

  uint64_t token_stride_bytes = 0;
  uint64_t values_offset_bytes = 0;  // from the keys, in one tensor
};

// A layer of a page with a value that the codec does not take.
struct RefusedLayer {
  uint64_t page_index = 0;
  uint32_t layer = 0;
};

// What a call has of pieces, and of keys that are turned different ways.
struct CodeCounts {
  uint64_t pieces = 0;
  uint64_t turn_bytes = 0;  // TurnTableBytes() each way

  bool Fits(const CodeCounts& room) const {
    return pieces <= room.pieces && turn_bytes <= room.turn_bytes;
  }
};
// Of a table, with what its alignment leaves.
uint64_t TurnTableBytes(const RopeSpec& rope);

class PageCodes {
 public:
  struct Batch {
    CodecPiece* pieces;
    uint32_t* refused;  // all 0
  };

  // Tables of a call of that size, in pinned memory.
  static Result<std::unique_ptr<PageCodes>> Create(const Device& device, const CodeCounts& counts);

  const CodeCounts& room() const { return room_; }
  // Nothing has been taken any more. REQUIRES: what was queued with it is done.
  void Clear();
  // Tables of one launch, a piece a page and layer, the layers of a page side by side. REQUIRES:
  // there is room.
  Batch Take(std::span<const uint64_t> page_indexes, uint32_t layer_first, uint32_t layer_count);
  // Writes the table of `delta` for the keys of these pages. REQUIRES: there is room; delta is not
  // 0, and none of the pages has a table.
  void Turn(const RopeSpec& rope, int32_t delta, std::span<const uint64_t> page_indexes);
  // Where that table is; null for a page whose keys stay as they are.
  const float* TurnsOf(uint64_t page_index) const;
  // REQUIRES: all that was queued is done.
  std::vector<RefusedLayer> Refused() const;

 private:
  struct Taken {
    uint64_t piece_first;
    uint32_t layer_first;
    uint32_t layer_count;
    std::vector<uint64_t> page_indexes;
  };

  PageCodes(DeviceBuffer memory, const CodeCounts& room);
  std::byte* tables() const { return memory_.address(); }  // of turns, the most aligned
  CodecPiece* pieces() const {
    return reinterpret_cast<CodecPiece*>(memory_.address() + room_.turn_bytes);
  }
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(pieces() + room_.pieces); }

  const DeviceBuffer memory_;
  const CodeCounts room_;
  CodeCounts used_;
  std::vector<Taken> taken_;
  std::unordered_map<uint64_t, const float*> turns_;  // by page
};

// Pinned memory is slow to come by: it is kept for the next call. Outlives what it has lent.
class PageCodesPool {
 public:
  explicit PageCodesPool(const Device& device) : device_(device) {}

  // Has as many to lend as that, without asking the device for more.
  Status Prepare(uint32_t count, const CodeCounts& counts);
  // Comes back by itself when the last owner goes. REQUIRES: nothing queued uses it then.
  Result<std::shared_ptr<PageCodes>> Lend(const CodeCounts& counts);

 private:
  const Device& device_;
  std::mutex lock_;
  std::vector<std::unique_ptr<PageCodes>> free_;  // with room for all that were made
  size_t made_count_ = 0;
};

}  // namespace terrace
