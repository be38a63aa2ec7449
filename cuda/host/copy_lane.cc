#include "cuda/host/copy_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/abi/run_cursor.h"

namespace terrace {
namespace {

constexpr uint64_t kZeroBytes = kMiB;

}  // namespace

std::string_view TransferPathName(TransferPath path) {
  switch (path) {
    case TransferPath::kDirect:
      return "direct";
    case TransferPath::kStaged:
      return "staged";
    case TransferPath::kZeroCopy:
      break;
  }
  return "zero_copy";
}

// Its two users take turns: one fills it, the other empties it.
struct CopyLane::Stage {
  DeviceBuffer memory;
  Event filled;
  Event emptied;
};

CopyLane::CopyLane(const Device& device, const PagedNest& nest, const PagedRow* device_rows,
                   const CopyLaneOptions& options, Stream pages)
    : device_(device),
      nest_(nest),
      device_rows_(device_rows),
      options_(options),
      slot_layers_(options.codec ? SlotLayers::Of(*options.codec) : SlotLayers::Of(nest)),
      pages_(std::move(pages)) {}

CopyLane::~CopyLane() { Drain(); }

Result<std::unique_ptr<CopyLane>> CopyLane::Create(const Device& device, const PagedNest& nest,
                                                   const PagedRow* device_rows,
                                                   const CopyLaneOptions& options) {
  const StreamPriority priority =
      options.direction == PagedDirection::kGather ? StreamPriority::kStore : StreamPriority::kLoad;
  Result<Stream> pages = Stream::Create(device, priority);
  if (!pages.ok()) return pages.status();
  std::unique_ptr<CopyLane> lane(
      new CopyLane(device, nest, device_rows, options, std::move(pages).value()));
  Result<Event> drained = Event::Create(device);
  if (!drained.ok()) return drained.status();
  lane->drained_.emplace(std::move(drained).value());
  if (options.path == TransferPath::kStaged) TERRACE_RETURN_IF_ERROR(lane->MakeRing(priority));
  if (options.bounce_bytes > 0) TERRACE_RETURN_IF_ERROR(lane->MakeBounce());
  if (options.codec) {
    const CodecOps* const codecs = device.ops().codecs;
    lane->in_place_ = PiecesInPlace::Of(nest, *options.codec, codecs && codecs->takes_gaps != 0);
    if (!lane->in_place_) TERRACE_RETURN_IF_ERROR(lane->MakeRaw());
  }
  return lane;
}

Status CopyLane::MakeBounce() {
  Result<DeviceBuffer> bounce =
      DeviceBuffer::Allocate(device_, DeviceMemory::kPinned, options_.bounce_bytes);
  if (!bounce.ok()) return bounce.status();
  bounce_.emplace(std::move(bounce).value());
  return Status::Ok();
}

Status CopyLane::MakeRaw() {
  Result<DeviceBuffer> raw =
      DeviceBuffer::Allocate(device_, DeviceMemory::kDevice, options_.stage_bytes);
  if (!raw.ok()) return raw.status();
  raw_.emplace(std::move(raw).value());
  return Status::Ok();
}

Status CopyLane::MakeRing(StreamPriority priority) {
  Result<Stream> slots = Stream::Create(device_, priority);
  if (!slots.ok()) return slots.status();
  slots_.emplace(std::move(slots).value());
  Result<Event> within = Event::Create(device_);
  if (!within.ok()) return within.status();
  within_.emplace(std::move(within).value());
  for (uint32_t i = 0; i < options_.stage_count; ++i) {
    Result<DeviceBuffer> memory =
        DeviceBuffer::Allocate(device_, DeviceMemory::kDevice, options_.stage_bytes);
    if (!memory.ok()) return memory.status();
    Result<Event> filled = Event::Create(device_);
    if (!filled.ok()) return filled.status();
    Result<Event> emptied = Event::Create(device_);
    if (!emptied.ok()) return emptied.status();
    ring_.push_back(
        {std::move(memory).value(), std::move(filled).value(), std::move(emptied).value()});
  }
  return options_.direction == PagedDirection::kGather ? ClearRing() : Status::Ok();
}

// Slots get the padding between their parts from the ring: it must not be what the memory held
// before.
Status CopyLane::ClearRing() {
  Result<DeviceBuffer> zeros = DeviceBuffer::Allocate(device_, DeviceMemory::kPinned, kZeroBytes);
  if (!zeros.ok()) return zeros.status();
  std::memset(zeros->address(), 0, kZeroBytes);
  Status status;
  for (const Stage& stage : ring_) {
    for (uint64_t at = 0; at < stage.memory.byte_count() && status.ok(); at += kZeroBytes) {
      const CopyPiece piece{stage.memory.address() + at, zeros->address(),
                            std::min(kZeroBytes, stage.memory.byte_count() - at)};
      status = pages_.Copy(CopyDirection::kToDevice, {&piece, 1});
    }
  }
  Drain();
  return status;
}

uint64_t CopyLane::SpanBytes(LayerRange layers) const {
  return slot_layers_.offset_bytes[layers.first + layers.count] -
         slot_layers_.offset_bytes[layers.first];
}

uint32_t CopyLane::layers_max() const {
  uint64_t bytes_max = options_.path == TransferPath::kStaged ? options_.stage_bytes : UINT64_MAX;
  if (options_.bounce_bytes > 0) bytes_max = std::min(bytes_max, options_.bounce_bytes);
  uint32_t count = nest_.layer_count();
  if (raw_) {
    count =
        static_cast<uint32_t>(std::min<uint64_t>(count, options_.stage_bytes / nest_.layer_bytes));
  }
  const auto fits = [&](uint32_t layer_count) {
    for (uint32_t first = 0; first + layer_count <= nest_.layer_count(); ++first) {
      if (SpanBytes({first, layer_count}) > bytes_max) return false;
    }
    return true;
  };
  while (count > 0 && !fits(count)) --count;
  return count;
}

PagedLaunch CopyLane::LaunchOf(std::span<const PagedPage> pages, LayerRange layers) const {
  PagedLaunch launch = nest_.Launch(layers.first, layers.count);
  launch.direction = options_.direction;
  launch.rows = device_rows_;
  launch.pages = pages.data();
  launch.page_count = static_cast<uint32_t>(pages.size());
  launch.thread_blocks_max = options_.thread_blocks_max;
  return launch;
}

Status CopyLane::Copy(std::span<const PageSlot> pages, LayerRange layers) {
  switch (options_.path) {
    case TransferPath::kDirect:
      return CopyDirect(pages, layers);
    case TransferPath::kZeroCopy:
      return CopyZero(pages, layers);
    case TransferPath::kStaged:
      break;
  }
  return CopyStaged(pages, layers);
}

namespace {

// Collects pieces and hands them to a stream a full batch at a time.
class Batcher {
 public:
  Batcher(Stream& stream, CopyDirection direction) : stream_(stream), direction_(direction) {
    pieces_.reserve(kBatchPiecesMax);
  }

  Status Add(const CopyPiece& piece) {
    pieces_.push_back(piece);
    return pieces_.size() == kBatchPiecesMax ? Flush() : Status::Ok();
  }
  Status Flush() {
    if (pieces_.empty()) return Status::Ok();
    const Status status = stream_.Copy(direction_, pieces_);
    pieces_.clear();
    return status;
  }

 private:
  Stream& stream_;
  CopyDirection direction_;
  std::vector<CopyPiece> pieces_;
};

}  // namespace

Status CopyLane::CopyDirect(std::span<const PageSlot> pages, LayerRange layers) {
  const bool gathers = options_.direction == PagedDirection::kGather;
  Batcher batcher(pages_, gathers ? CopyDirection::kToHost : CopyDirection::kToDevice);
  for (uint32_t i = 0; i < layers.count * nest_.rows_per_layer; ++i) {
    const PagedRow& row = nest_.rows[layers.first * nest_.rows_per_layer + i];
    for (const PageSlot& page : pages) {
      auto* in_page = reinterpret_cast<std::byte*>(row.page0_address +
                                                   page.page_index * nest_.page_stride_bytes);
      std::byte* in_slot = page.slot + row.slot_offset_bytes;
      RunCursor cursor({nest_.axes, nest_.axis_count});
      do {
        std::byte* a = in_page + cursor.page_offset_bytes();
        std::byte* b = in_slot + cursor.slot_offset_bytes();
        TERRACE_RETURN_IF_ERROR(batcher.Add(gathers ? CopyPiece{b, a, nest_.run_bytes}
                                                    : CopyPiece{a, b, nest_.run_bytes}));
      } while (cursor.Advance());
    }
  }
  return batcher.Flush();
}

uint64_t CopyLane::PagesPerLaunch(LayerRange layers, uint64_t bytes_max) const {
  uint64_t count = std::min<uint64_t>(bytes_max / SpanBytes(layers), kPagedPagesMax);
  if (options_.codec) count = std::min(count, uint64_t{kCodecPiecesMax / layers.count});
  if (raw_) count = std::min(count, options_.stage_bytes / (layers.count * nest_.layer_bytes));
  return std::max<uint64_t>(count, 1);
}

Status CopyLane::Launch(std::span<const PagedPage> pages, LayerRange layers) {
  if (!options_.codec) return pages_.Copy(LaunchOf(pages, layers));
  if (in_place_) return LaunchCodecs(pages, layers);
  PagedPage raw[kPagedPagesMax];
  const uint64_t raw_bytes = layers.count * nest_.layer_bytes;
  for (size_t i = 0; i < pages.size(); ++i) {
    raw[i] = {reinterpret_cast<uint64_t>(raw_->address()) + i * raw_bytes, pages[i].page_index};
  }
  const PagedLaunch launch = LaunchOf({raw, pages.size()}, layers);
  if (options_.direction == PagedDirection::kGather) TERRACE_RETURN_IF_ERROR(pages_.Copy(launch));
  TERRACE_RETURN_IF_ERROR(LaunchCodecs(pages, layers));
  return options_.direction == PagedDirection::kGather ? Status::Ok() : pages_.Copy(launch);
}

Status CopyLane::LaunchCodecs(std::span<const PagedPage> pages, LayerRange layers) {
  TERRACE_RETURN_IF_ERROR(LaunchCodec(pages, layers, PieceRole::kKeys));
  return options_.codec->has_values() ? LaunchCodec(pages, layers, PieceRole::kValues)
                                      : Status::Ok();
}

// Of a layer, raw or encoded, keys come first, and values behind them.
Status CopyLane::LaunchCodec(std::span<const PagedPage> pages, LayerRange layers, PieceRole role) {
  const SpaceCodec& codec = *options_.codec;
  const bool is_keys = role == PieceRole::kKeys;
  const PieceShape& shape = is_keys ? codec.keys : codec.values;
  const uint64_t raw_offset = is_keys ? 0 : codec.keys.raw_bytes();
  const uint64_t encoded_offset = is_keys ? 0 : LayoutOf(codec.codec, codec.keys).encoded_bytes;
  uint64_t page_indexes[kPagedPagesMax];
  for (size_t i = 0; i < pages.size(); ++i) page_indexes[i] = pages[i].page_index;
  const PageCodes::Batch batch =
      codes_->Take({page_indexes, pages.size()}, layers.first, layers.count);
  const std::span<const uint64_t> offsets(&slot_layers_.offset_bytes[layers.first], layers.count);
  CodecPiece* piece = batch.pieces;
  uint64_t raw_address = raw_ ? reinterpret_cast<uint64_t>(raw_->address()) + raw_offset : 0;
  for (const PagedPage& page : pages) {
    for (uint32_t i = 0; i < layers.count; ++i, ++piece, raw_address += nest_.layer_bytes) {
      const uint64_t engine_address =
          in_place_ ? in_place_->AddressOf(nest_, page.page_index, layers.first + i, role)
                    : raw_address;
      *piece = {engine_address, page.slot_address + offsets[i] - offsets[0] + encoded_offset};
    }
  }
  CodecLaunch launch{.codec = static_cast<uint32_t>(codec.codec),
                     .element = static_cast<uint32_t>(shape.element),
                     .role = static_cast<uint32_t>(role),
                     .tokens = shape.tokens,
                     .heads = shape.heads,
                     .head_dim = shape.head_dim,
                     .piece_count = static_cast<uint32_t>(piece - batch.pieces)};
  launch.engine_token_stride_bytes =
      in_place_ ? in_place_->token_stride_bytes : shape.raw_bytes() / shape.tokens;
  launch.pieces = batch.pieces;
  launch.refused = batch.refused;
  if (options_.direction == PagedDirection::kGather) return pages_.Encode(launch);
  if (!options_.rope || !is_keys) return pages_.Decode(launch);
  return LaunchTurned(launch, pages, layers.count);
}

// One launch for pages side by side that turn the same way.
Status CopyLane::LaunchTurned(CodecLaunch launch, std::span<const PagedPage> pages,
                              uint32_t layer_count) {
  launch.pairing = static_cast<uint32_t>(options_.rope->pairing);
  launch.rot_dim = options_.rope->rot_dim;
  launch.rot_offset = options_.rope->rot_offset;
  while (!pages.empty()) {
    launch.turns = codes_->TurnsOf(pages[0].page_index);
    size_t count = 1;
    while (count < pages.size() && codes_->TurnsOf(pages[count].page_index) == launch.turns) {
      ++count;
    }
    launch.piece_count = static_cast<uint32_t>(count * layer_count);
    TERRACE_RETURN_IF_ERROR(pages_.Decode(launch));
    launch.pieces += launch.piece_count;
    pages = pages.subspan(count);
  }
  return Status::Ok();
}

Status CopyLane::CopyZero(std::span<const PageSlot> pages, LayerRange layers) {
  PagedPage launched[kPagedPagesMax];
  const uint64_t origin_bytes = slot_layers_.offset_bytes[layers.first];
  // However narrow its vectors are, there are fewer than 2^31 of a launch.
  constexpr uint64_t kLaunchBytesMax = (uint64_t{1} << 31) - 1;
  const uint64_t pages_max = PagesPerLaunch(layers, kLaunchBytesMax);
  while (!pages.empty()) {
    const size_t count = std::min<size_t>(pages.size(), pages_max);
    for (size_t i = 0; i < count; ++i) {
      launched[i] = {reinterpret_cast<uint64_t>(pages[i].device_slot) + origin_bytes,
                     pages[i].page_index};
    }
    TERRACE_RETURN_IF_ERROR(Launch({launched, count}, layers));
    pages = pages.subspan(count);
  }
  return Status::Ok();
}

Status CopyLane::CopyWithin(std::span<const PageSlot> pages, LayerRange layers) {
  return CopyZero(pages, layers);
}

Status CopyLane::SettleSlots() {
  if (!slots_) return Status::Ok();
  TERRACE_RETURN_IF_ERROR(within_->Record(pages_));
  return slots_->Wait(*within_, StreamEdge::kStaging);
}

Status CopyLane::CopyStaged(std::span<const PageSlot> pages, LayerRange layers) {
  PagedPage launched[kPagedPagesMax];
  CopyPiece pieces[kPagedPagesMax];
  const uint64_t span_bytes = SpanBytes(layers);
  const uint64_t origin_bytes = slot_layers_.offset_bytes[layers.first];
  const bool gathers = options_.direction == PagedDirection::kGather;
  const uint64_t pages_max = PagesPerLaunch(layers, options_.stage_bytes);
  while (!pages.empty()) {
    const size_t count = std::min<size_t>(pages.size(), pages_max);
    Stage& stage = ring_[next_stage_];
    next_stage_ = (next_stage_ + 1) % options_.stage_count;
    for (size_t i = 0; i < count; ++i) {
      std::byte* staged = stage.memory.address() + i * span_bytes;
      std::byte* slot = pages[i].slot + origin_bytes;
      launched[i] = {reinterpret_cast<uint64_t>(staged), pages[i].page_index};
      pieces[i] =
          gathers ? CopyPiece{slot, staged, span_bytes} : CopyPiece{staged, slot, span_bytes};
    }
    TERRACE_RETURN_IF_ERROR(gathers
                                ? GatherStage(stage, {launched, count}, layers, {pieces, count})
                                : ScatterStage(stage, {launched, count}, layers, {pieces, count}));
    pages = pages.subspan(count);
  }
  return Status::Ok();
}

Status CopyLane::CopyBounced(std::span<const PageSlot> pages, LayerRange layers) {
  const uint64_t span_bytes = SpanBytes(layers);
  const uint64_t origin_bytes = slot_layers_.offset_bytes[layers.first];
  const uint64_t pages_max = options_.bounce_bytes / span_bytes;
  std::vector<PageSlot> bounced;
  while (!pages.empty()) {
    const std::span<const PageSlot> some = pages.first(std::min<size_t>(pages.size(), pages_max));
    bounced.clear();
    for (size_t i = 0; i < some.size(); ++i) {
      // Where its slot would begin for these layers to lie in the bounce.
      auto* slot = reinterpret_cast<std::byte*>(
          reinterpret_cast<uintptr_t>(bounce_->address() + i * span_bytes) - origin_bytes);
      bounced.push_back({.page_index = some[i].page_index, .slot = slot, .device_slot = slot});
    }
    if (options_.direction == PagedDirection::kGather) {
      TERRACE_RETURN_IF_ERROR(Copy(bounced, layers));
      TERRACE_RETURN_IF_ERROR(CopyOnHost(some, bounced, layers));
    } else {
      TERRACE_RETURN_IF_ERROR(CopyOnHost(some, bounced, layers));
      TERRACE_RETURN_IF_ERROR(Copy(bounced, layers));
    }
    pages = pages.subspan(some.size());
  }
  return Status::Ok();
}

// Without the padding between parts: the bounce has there what it was used for before.
Status CopyLane::CopyOnHost(std::span<const PageSlot> pages, std::span<const PageSlot> bounced,
                            LayerRange layers) {
  const bool gathers = options_.direction == PagedDirection::kGather;
  const std::vector<uint64_t>& offsets = slot_layers_.offset_bytes;
  const uint32_t end = layers.first + layers.count;
  Batcher batcher(slots_stream(), CopyDirection::kWithinHost);
  for (size_t i = 0; i < pages.size(); ++i) {
    for (uint32_t layer = layers.first; layer < end;) {
      const uint64_t from_bytes = offsets[layer];
      uint64_t end_bytes = from_bytes + slot_layers_.layer_bytes;
      for (++layer; layer < end && offsets[layer] == end_bytes; ++layer) {
        end_bytes += slot_layers_.layer_bytes;
      }
      std::byte* const slot = pages[i].slot + from_bytes;
      std::byte* const bounce = bounced[i].slot + from_bytes;
      const uint64_t byte_count = end_bytes - from_bytes;
      TERRACE_RETURN_IF_ERROR(batcher.Add(gathers ? CopyPiece{slot, bounce, byte_count}
                                                  : CopyPiece{bounce, slot, byte_count}));
    }
  }
  return batcher.Flush();
}

Status CopyLane::GatherStage(Stage& stage, std::span<const PagedPage> pages, LayerRange layers,
                             std::span<const CopyPiece> pieces) {
  TERRACE_RETURN_IF_ERROR(pages_.Wait(stage.emptied, StreamEdge::kStaging));
  TERRACE_RETURN_IF_ERROR(Launch(pages, layers));
  TERRACE_RETURN_IF_ERROR(stage.filled.Record(pages_));
  TERRACE_RETURN_IF_ERROR(slots_->Wait(stage.filled, StreamEdge::kStaging));
  TERRACE_RETURN_IF_ERROR(slots_->Copy(CopyDirection::kToHost, pieces));
  return stage.emptied.Record(*slots_);
}

Status CopyLane::ScatterStage(Stage& stage, std::span<const PagedPage> pages, LayerRange layers,
                              std::span<const CopyPiece> pieces) {
  TERRACE_RETURN_IF_ERROR(slots_->Wait(stage.emptied, StreamEdge::kStaging));
  TERRACE_RETURN_IF_ERROR(slots_->Copy(CopyDirection::kToDevice, pieces));
  TERRACE_RETURN_IF_ERROR(stage.filled.Record(*slots_));
  TERRACE_RETURN_IF_ERROR(pages_.Wait(stage.filled, StreamEdge::kStaging));
  TERRACE_RETURN_IF_ERROR(Launch(pages, layers));
  return stage.emptied.Record(pages_);
}

void CopyLane::Drain() {
  if (!drained_) return;
  for (Stream* stream : {&pages_, slots_ ? &*slots_ : nullptr}) {
    if (stream != nullptr) (void)drained_->AwaitAll(*stream);
  }
}

}  // namespace terrace
