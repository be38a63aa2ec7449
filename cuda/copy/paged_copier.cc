#include "cuda/copy/paged_copier.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace terrace {
namespace {

Status Invalid(std::string* why, std::string text) {
  *why = std::move(text);
  return Status(StatusCode::kInvalid, "options of paged copies were refused");
}

// Tables of codecs are there from the start for a store and a load of so many, and for keys that
// turn so many ways.
constexpr uint64_t kPreparedPages = 64;
constexpr uint64_t kPreparedTurns = 8;

struct NamedCount {
  const char* name;
  uint64_t value;
  uint64_t max;
};

Status CheckOptions(const CopierOptions& options, std::string* why) {
  const NamedCount counts[] = {
      {"stage_bytes", options.stage_bytes, kStageBytesMax},
      {"stage_count", options.stage_count, kStageCountMax},
      {"staged_thread_blocks_max", options.staged_thread_blocks_max, 65535},
      {"zero_copy_thread_blocks_max", options.zero_copy_thread_blocks_max, 65535},
      {"load_chunk_bytes_min", options.load_chunk_bytes_min, kStageBytesMax},
      {"load_step_bytes_min", options.load_step_bytes_min, kStageBytesMax},
      {"bounce_bytes", options.bounce_bytes, kStageBytesMax},
  };
  for (const NamedCount& count : counts) {
    if (count.value == 0 || count.value > count.max) {
      return Invalid(why, std::string(count.name) + " is " + std::to_string(count.value) +
                              ", not 1.." + std::to_string(count.max));
    }
  }
  return Status::Ok();
}

Status CheckCodec(const Device& device, const PagedNest& nest, const CopierOptions& options,
                  std::string* why) {
  const SpaceCodec& codec = *options.codec;
  if (device.ops().codecs == nullptr) {
    *why = std::string("codec is ") + std::string(CodecName(codec.codec)) +
           ", and the device's backend, " + device.ops().backend + ", has none";
    return Status(StatusCode::kUnsupported, "options of paged copies were refused");
  }
  if (options.store_path == TransferPath::kDirect || options.load_path == TransferPath::kDirect) {
    return Invalid(why, "path is direct, and a codec needs kernels: staged or zero_copy");
  }
  const bool fits = codec.layer_count == nest.layer_count() &&
                    codec.RawLayerBytes() == nest.layer_bytes &&
                    nest.layer_offset_bytes[nest.layer_count() - 1] ==
                        (nest.layer_count() - 1) * nest.layer_bytes;
  if (fits && options.rope) return options.rope->Validate(codec.keys.head_dim, why);
  if (fits) return Status::Ok();
  return Invalid(why, "codec is of " + std::to_string(codec.layer_count) + " layers of " +
                          std::to_string(codec.RawLayerBytes()) + " bytes, the nest of " +
                          std::to_string(nest.layer_count()) + " of " +
                          std::to_string(nest.layer_bytes) + ": they lie in one part");
}

CopyLaneOptions LaneOptions(PagedDirection direction, const CopierOptions& options) {
  const TransferPath path =
      direction == PagedDirection::kGather ? options.store_path : options.load_path;
  return {.direction = direction,
          .path = path,
          .stage_bytes = options.stage_bytes,
          .stage_count = options.stage_count,
          .thread_blocks_max = path == TransferPath::kZeroCopy ? options.zero_copy_thread_blocks_max
                                                               : options.staged_thread_blocks_max,
          .bounce_bytes = options.pins != nullptr ? options.bounce_bytes : 0,
          .codec = options.codec,
          .rope = options.rope};
}

// What `queue` answers; where it fails half-way, nothing of it is under way any more: the caller
// will give up the slots.
template <typename Queue>
auto OrDrain(CopyLane& lane, Queue queue) -> decltype(queue()) {
  Status failed(StatusCode::kNoSpace, "no memory to queue a copy");
  try {
    auto ticket = queue();
    if (ticket.ok()) return ticket;
    failed = ticket.status();
  } catch (const std::bad_alloc&) {
  }
  lane.Drain();
  return failed;
}

}  // namespace

PagedCopier::PagedCopier(const Device& device, PagedNest nest, const CopierOptions& options)
    : device_(device),
      nest_(std::move(nest)),
      options_(options),
      slot_layers_(options.codec ? SlotLayers::Of(*options.codec) : SlotLayers::Of(nest_)),
      events_(device, kCopierEventsMax),
      codes_(device) {}

PagedCopier::~PagedCopier() = default;

Result<std::unique_ptr<PagedCopier>> PagedCopier::Create(const Device& device, PagedNest nest,
                                                         const CopierOptions& options,
                                                         std::string* why) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(options, why));
  if (options.codec) TERRACE_RETURN_IF_ERROR(CheckCodec(device, nest, options, why));
  if (options.rope && !options.codec) return Invalid(why, "rope is set, and codec is not: raw");
  std::unique_ptr<PagedCopier> copier(new PagedCopier(device, std::move(nest), options));
  const Status status = copier->Prepare();
  if (!status.ok()) {
    *why = status.what();
    return status;
  }
  for (const CopyLane* lane : {copier->store_.get(), copier->load_.get()}) {
    if (lane->layers_max() == 0) {
      const uint64_t in_slot = copier->slot_layers_.SpanBytesMax();
      const bool is_bounce = options.pins != nullptr && options.bounce_bytes < in_slot;
      const uint64_t needed =
          is_bounce || !lane->has_raw() ? in_slot : std::max(in_slot, copier->nest_.layer_bytes);
      return Invalid(why, (is_bounce ? "bounce_bytes is " + std::to_string(options.bounce_bytes)
                                     : "stage_bytes is " + std::to_string(options.stage_bytes)) +
                              ", less than a layer of a slot takes: " + std::to_string(needed));
    }
  }
  return copier;
}

Status PagedCopier::Prepare() {
  TERRACE_RETURN_IF_ERROR(UploadRows());
  const auto* rows = reinterpret_cast<const PagedRow*>(rows_->address());
  for (const PagedDirection direction : {PagedDirection::kGather, PagedDirection::kScatter}) {
    Result<std::unique_ptr<CopyLane>> lane =
        CopyLane::Create(device_, nest_, rows, LaneOptions(direction, options_));
    if (!lane.ok()) return lane.status();
    (direction == PagedDirection::kGather ? store_ : load_) = std::move(lane).value();
  }
  if (!options_.codec) return Status::Ok();
  return codes_.Prepare(
      2, {.pieces = kPreparedPages * nest_.layer_count() * 2,
          .turn_bytes = options_.rope ? kPreparedTurns * TurnTableBytes(*options_.rope) : 0});
}

Status PagedCopier::UploadRows() {
  const uint64_t byte_count = nest_.rows.size() * sizeof(PagedRow);
  Result<DeviceBuffer> rows = DeviceBuffer::Allocate(device_, DeviceMemory::kDevice, byte_count);
  if (!rows.ok()) return rows.status();
  Result<DeviceBuffer> pinned = DeviceBuffer::Allocate(device_, DeviceMemory::kPinned, byte_count);
  if (!pinned.ok()) return pinned.status();
  std::memcpy(pinned->address(), nest_.rows.data(), byte_count);
  Result<Stream> stream = Stream::Create(device_, StreamPriority::kLoad);
  if (!stream.ok()) return stream.status();
  Result<Event> done = Event::Create(device_);
  if (!done.ok()) return done.status();
  const CopyPiece piece{rows->address(), pinned->address(), byte_count};
  TERRACE_RETURN_IF_ERROR(stream->Copy(CopyDirection::kToDevice, {&piece, 1}));
  TERRACE_RETURN_IF_ERROR(done->AwaitAll(*stream));
  rows_.emplace(std::move(rows).value());
  return Status::Ok();
}

Status PagedCopier::CheckPages(std::span<const PageSlot> pages, TransferPath path) const {
  if (pages.empty() || pages.size() > kPagesPerCallMax) {
    return Status(StatusCode::kInvalid, "pages: 1..4096 a call");
  }
  for (const PageSlot& page : pages) {
    if (page.page_index >= nest_.page_count) {
      return Status(StatusCode::kInvalid, "page_index: past the cache's last page");
    }
    const bool needs_device_slot = path == TransferPath::kZeroCopy && options_.pins == nullptr;
    const bool is_reachable =
        needs_device_slot ? page.device_slot != nullptr : page.slot != nullptr;
    if (!is_reachable) return Status(StatusCode::kInvalid, "slot: no address that the path uses");
  }
  return Status::Ok();
}

PagedCopier::Routed PagedCopier::Route(std::span<const PageSlot> pages) const {
  Routed routed;
  routed.straight = pages;
  const auto is_in_device = [](const PageSlot& page) { return page.is_in_device; };
  if (options_.pins == nullptr && std::ranges::none_of(pages, is_in_device)) return routed;
  routed.kept.assign(pages.begin(), pages.end());
  for (PageSlot& page : routed.kept) {
    if (page.is_in_device) {
      page.device_slot = page.slot;
    } else if (options_.pins != nullptr) {
      page.device_slot = options_.pins->DeviceAddress(page.slot, slot_layers_.slot_bytes);
    }
  }
  const auto first_straight =
      std::stable_partition(routed.kept.begin(), routed.kept.end(), is_in_device);
  const auto first_bounced =
      std::stable_partition(first_straight, routed.kept.end(), [this](const PageSlot& page) {
        return options_.pins == nullptr || page.device_slot != nullptr;
      });
  routed.within = {routed.kept.begin(), first_straight};
  routed.straight = {first_straight, first_bounced};
  routed.bounced = {first_bounced, routed.kept.end()};
  if (options_.pins == nullptr) return routed;
  const uint64_t page_bytes = slot_layers_.layer_bytes * nest_.layer_count();
  options_.pins->CountCopied(routed.straight.size() * page_bytes,
                             routed.bounced.size() * page_bytes);
  return routed;
}

Status PagedCopier::Copy(CopyLane& lane, const Routed& pages, LayerRange layers) {
  TERRACE_RETURN_IF_ERROR(lane.CopyWithin(pages.within, layers));
  TERRACE_RETURN_IF_ERROR(lane.Copy(pages.straight, layers));
  return lane.CopyBounced(pages.bounced, layers);
}

Status PagedCopier::LendCodes(CopyLane& lane, const Routed& pages,
                              std::shared_ptr<PageCodes>* codes) {
  if (!options_.codec) return Status::Ok();
  const auto by_delta = PagesByDelta(pages);
  CodeCounts counts{.pieces = pages.page_count() * nest_.layer_count() * 2};  // keys and values
  if (options_.rope) counts.turn_bytes = by_delta.size() * TurnTableBytes(*options_.rope);
  Result<std::shared_ptr<PageCodes>> lent = codes_.Lend(counts);
  if (!lent.ok()) return lent.status();
  *codes = std::move(lent).value();
  for (const auto& [delta, page_indexes] : by_delta) {
    (*codes)->Turn(*options_.rope, delta, page_indexes);
  }
  lane.UseCodes(codes->get());
  return Status::Ok();
}

// Of those whose keys are turned.
std::map<int32_t, std::vector<uint64_t>> PagedCopier::PagesByDelta(const Routed& pages) const {
  std::map<int32_t, std::vector<uint64_t>> by_delta;
  if (!options_.rope) return by_delta;
  for (const std::span<const PageSlot> some : {pages.within, pages.straight, pages.bounced}) {
    for (const PageSlot& page : some) {
      if (page.key_delta != 0) by_delta[page.key_delta].push_back(page.page_index);
    }
  }
  return by_delta;
}

Result<StoreTicket> PagedCopier::Store(std::span<const PageSlot> pages, const KvWritten& written) {
  TERRACE_RETURN_IF_ERROR(CheckPages(pages, options_.store_path));
  std::shared_ptr<PageCodes> codes;  // stays until what failed half-way has ended
  return OrDrain(*store_, [&] { return QueueStore(Route(pages), written, &codes); });
}

Result<StoreTicket> PagedCopier::QueueStore(const Routed& pages, const KvWritten& written,
                                            std::shared_ptr<PageCodes>* codes) {
  CopyLane& lane = *store_;
  TERRACE_RETURN_IF_ERROR(LendCodes(lane, pages, codes));
  TERRACE_RETURN_IF_ERROR(written.Gate(lane.pages_stream()));
  const uint32_t step = lane.layers_max();
  for (uint32_t first = 0; first < nest_.layer_count(); first += step) {
    TERRACE_RETURN_IF_ERROR(
        Copy(lane, pages, {first, std::min(step, nest_.layer_count() - first)}));
  }
  if (!pages.within.empty()) TERRACE_RETURN_IF_ERROR(lane.SettleSlots());
  Result<PooledEvent> read = PooledEvent::After(events_, lane.pages_stream());
  if (!read.ok()) return read.status();
  Result<PooledEvent> stored = PooledEvent::After(events_, lane.slots_stream());
  if (!stored.ok()) return stored.status();
  return StoreTicket{*codes, PageReuse(std::move(read).value()),
                     SlotsDone(std::move(stored).value())};
}

Result<LoadTicket> PagedCopier::Load(std::span<const PageSlot> pages, const DestinationFree& free) {
  TERRACE_RETURN_IF_ERROR(CheckPages(pages, options_.load_path));
  std::shared_ptr<PageCodes> codes;
  return OrDrain(*load_, [&] { return QueueLoad(Route(pages), free, &codes); });
}

uint32_t PagedCopier::LayersOfStep(uint64_t page_count) const {
  const auto layers_of = [](uint64_t bytes, uint64_t layer_bytes) {
    return RoundUp(bytes, layer_bytes) / layer_bytes;
  };
  const uint64_t wanted =
      std::max(layers_of(options_.load_chunk_bytes_min, nest_.layer_bytes),
               layers_of(options_.load_step_bytes_min, page_count * nest_.layer_bytes));
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, nest_.layer_count()));
}

Result<LoadTicket> PagedCopier::QueueLoad(const Routed& pages, const DestinationFree& free,
                                          std::shared_ptr<PageCodes>* codes) {
  CopyLane& lane = *load_;
  TERRACE_RETURN_IF_ERROR(LendCodes(lane, pages, codes));
  TERRACE_RETURN_IF_ERROR(free.Gate(lane.pages_stream()));
  const uint32_t step = std::min(LayersOfStep(pages.page_count()), lane.layers_max());
  std::vector<PooledEvent> ready;
  for (uint32_t first = 0; first < nest_.layer_count(); first += step) {
    TERRACE_RETURN_IF_ERROR(
        Copy(lane, pages, {first, std::min(step, nest_.layer_count() - first)}));
    Result<PooledEvent> event = PooledEvent::After(events_, lane.pages_stream());
    if (!event.ok()) return event.status();
    ready.push_back(std::move(event).value());
  }
  if (!pages.within.empty()) TERRACE_RETURN_IF_ERROR(lane.SettleSlots());
  Result<PooledEvent> read = PooledEvent::After(events_, lane.slots_stream());
  if (!read.ok()) return read.status();
  // Slots have been read before the last pages are decoded, by tables that the ticket keeps.
  return LoadTicket{*codes, LayerReady(std::move(ready), step, *codes != nullptr),
                    SlotsDone(std::move(read).value())};
}

}  // namespace terrace
