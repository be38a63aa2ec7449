#include "cuda/host/page_codes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "terrace/check.h"
#include "terrace/chunk.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kPiecesMin = 1024;
constexpr uint64_t kTurnAlignmentBytes = 64;

}  // namespace

SlotLayers SlotLayers::Of(const PagedNest& nest) {
  return {.layer_bytes = nest.layer_bytes,
          .slot_bytes = nest.slot_bytes,
          .offset_bytes = nest.layer_offset_bytes};
}

SlotLayers SlotLayers::Of(const SpaceCodec& codec) {
  SlotLayers layers{.layer_bytes = codec.EncodedLayerBytes(), .slot_bytes = 0, .offset_bytes = {}};
  if (codec.has_chunk_header) layers.slot_bytes = RoundUp(kChunkHeaderBytes, kPartAlignmentBytes);
  for (uint32_t part = codec.has_chunk_header ? 1 : 0; part < codec.part_count; ++part) {
    for (uint32_t i = 0; i < codec.LayersOf(part); ++i) {
      layers.offset_bytes.push_back(layers.slot_bytes + i * layers.layer_bytes);
    }
    layers.slot_bytes =
        RoundUp(layers.slot_bytes + codec.LayersOf(part) * layers.layer_bytes, kPartAlignmentBytes);
  }
  layers.offset_bytes.push_back(layers.slot_bytes);
  return layers;
}

uint64_t SlotLayers::SpanBytesMax() const {
  uint64_t bytes_max = 0;
  for (size_t layer = 1; layer < offset_bytes.size(); ++layer) {
    bytes_max = std::max(bytes_max, offset_bytes[layer] - offset_bytes[layer - 1]);
  }
  return bytes_max;
}

std::optional<PiecesInPlace> PiecesInPlace::Of(const PagedNest& nest, const SpaceCodec& codec,
                                               bool takes_gaps) {
  const uint64_t plane_bytes = codec.keys.raw_bytes();
  const uint64_t row_bytes = plane_bytes / codec.keys.tokens;
  PiecesInPlace places{.token_stride_bytes = row_bytes, .values_offset_bytes = plane_bytes};
  uint64_t covered_bytes = nest.run_bytes;  // of the slot's layer, by the loops so far
  for (uint32_t i = nest.axis_count; i > 0; --i) {
    const PagedAxis& axis = nest.axes[i - 1];
    if (axis.slot_stride_bytes != covered_bytes) return std::nullopt;
    if (covered_bytes == plane_bytes) {
      places.values_offset_bytes = axis.page_stride_bytes;
    } else if (covered_bytes == row_bytes && axis.count == codec.keys.tokens) {
      places.token_stride_bytes = axis.page_stride_bytes;
    } else {
      return std::nullopt;  // heads apart, or tokens in blocks
    }
    covered_bytes *= axis.count;
  }
  if (covered_bytes * nest.rows_per_layer != nest.layer_bytes) return std::nullopt;
  if (places.token_stride_bytes != row_bytes && !takes_gaps) return std::nullopt;
  return places;
}

uint64_t PiecesInPlace::AddressOf(const PagedNest& nest, uint64_t page_index, uint32_t layer,
                                  PieceRole role) const {
  const bool is_values = role == PieceRole::kValues;
  const bool is_own_row = is_values && nest.rows_per_layer == 2;
  const PagedRow& row = nest.rows[layer * nest.rows_per_layer + (is_own_row ? 1 : 0)];
  return row.page0_address + page_index * nest.page_stride_bytes +
         (is_values && !is_own_row ? values_offset_bytes : 0);
}

uint64_t TurnTableBytes(const RopeSpec& rope) {
  return RoundUp(rope.rot_dim * sizeof(float), kTurnAlignmentBytes);
}

PageCodes::PageCodes(DeviceBuffer memory, const CodeCounts& room)
    : memory_(std::move(memory)), room_(room) {
  std::memset(memory_.address(), 0, memory_.byte_count());
}

Result<std::unique_ptr<PageCodes>> PageCodes::Create(const Device& device,
                                                     const CodeCounts& counts) {
  CodeCounts room{.pieces = std::bit_ceil(std::max(counts.pieces, kPiecesMin))};
  if (counts.turn_bytes > 0) room.turn_bytes = std::bit_ceil(counts.turn_bytes);
  Result<DeviceBuffer> memory = DeviceBuffer::Allocate(
      device, DeviceMemory::kPinned,
      room.turn_bytes + room.pieces * (sizeof(CodecPiece) + sizeof(uint32_t)));
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<PageCodes>(new PageCodes(std::move(memory).value(), room));
}

void PageCodes::Clear() {
  std::memset(words(), 0, used_.pieces * sizeof(uint32_t));
  used_ = {};
  taken_.clear();
  turns_.clear();
}

PageCodes::Batch PageCodes::Take(std::span<const uint64_t> page_indexes, uint32_t layer_first,
                                 uint32_t layer_count) {
  const Batch batch{pieces() + used_.pieces, words() + used_.pieces};
  taken_.push_back(
      {used_.pieces, layer_first, layer_count, {page_indexes.begin(), page_indexes.end()}});
  used_.pieces += page_indexes.size() * layer_count;
  TERRACE_CHECK(used_.pieces <= room_.pieces, "a call has as many pieces as it was given room for");
  return batch;
}

void PageCodes::Turn(const RopeSpec& rope, int32_t delta, std::span<const uint64_t> page_indexes) {
  auto* const turns = reinterpret_cast<float*>(tables() + used_.turn_bytes);
  used_.turn_bytes += TurnTableBytes(rope);
  TERRACE_CHECK(used_.turn_bytes <= room_.turn_bytes, "a table has the room it was given");
  std::ranges::copy(RopeTable(rope, delta).turns(), turns);
  for (const uint64_t page_index : page_indexes) turns_.emplace(page_index, turns);
}

const float* PageCodes::TurnsOf(uint64_t page_index) const {
  const auto found = turns_.find(page_index);
  return found == turns_.end() ? nullptr : found->second;
}

std::vector<RefusedLayer> PageCodes::Refused() const {
  std::vector<RefusedLayer> refused;
  for (const Taken& taken : taken_) {
    const uint32_t* word = words() + taken.piece_first;
    for (const uint64_t page_index : taken.page_indexes) {
      for (uint32_t i = 0; i < taken.layer_count; ++i, ++word) {
        if (*word != 0) refused.push_back({page_index, taken.layer_first + i});
      }
    }
  }
  return refused;
}

Status PageCodesPool::Prepare(uint32_t count, const CodeCounts& counts) {
  std::vector<std::shared_ptr<PageCodes>> lent;
  for (uint32_t i = 0; i < count; ++i) {
    Result<std::shared_ptr<PageCodes>> codes = Lend(counts);
    if (!codes.ok()) return codes.status();
    lent.push_back(std::move(codes).value());
  }
  return Status::Ok();
}

Result<std::shared_ptr<PageCodes>> PageCodesPool::Lend(const CodeCounts& counts) {
  std::unique_ptr<PageCodes> codes;
  {
    const std::lock_guard lock(lock_);
    const auto fits = [&](const auto& other) { return counts.Fits(other->room()); };
    const auto found = std::ranges::find_if(free_, fits);
    if (found != free_.end()) {
      codes = std::move(*found);
      free_.erase(found);
    }
  }
  if (codes == nullptr) {
    Result<std::unique_ptr<PageCodes>> made = PageCodes::Create(device_, counts);
    if (!made.ok()) return made.status();
    codes = std::move(made).value();
    const std::lock_guard lock(lock_);
    free_.reserve(made_count_ + 1);
    ++made_count_;
  }
  codes->Clear();
  return std::shared_ptr<PageCodes>(codes.release(), [this](PageCodes* returned) {
    const std::lock_guard lock(lock_);
    free_.emplace_back(returned);
  });
}

}  // namespace terrace
