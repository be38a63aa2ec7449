#include "client/paged/paged_cache.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "client/link/cancel_deferred.h"
#include "cuda/copy/transfer_plan.h"
#include "cuda/host/device_name.h"

namespace terrace::client {
namespace {

constexpr uint64_t kWaitStepUsMin = 10;
constexpr uint64_t kWaitStepUsMax = 500;
// On the host pages are gathered to memory that its caches hold until they are encoded.
constexpr uint64_t kHostRawBytes = kMiB;

constexpr Status kRefusedByCodec(StatusCode::kUnsupported,
                                 "a page has a NaN, an infinity or a magnitude that the Space's "
                                 "codec does not take: its block is not written, the others are");

uint32_t PartOf(const SpaceCodec& codec, uint32_t layer) {
  uint32_t part = 0;
  for (uint32_t end = codec.LayersOf(0); layer >= end; end += codec.LayersOf(part)) ++part;
  return part;
}

std::string Number(uint64_t value) { return std::to_string(value); }

Status Refuse(std::string* why, std::string text, StatusCode code = StatusCode::kInvalid) {
  *why = std::move(text);
  return Status(code, "paged copies were refused");
}

// The order that a Space's layout names.
Status OrderOf(const SpaceSpec& space, bool is_opaque, SlotOrder* order, std::string* why) {
  const bool is_nhd = space.layout == "nhd" || space.layout == "layer-kv-nhd" || IsOfChunks(space);
  const bool is_hnd = space.layout == "hnd" || space.layout == "layer-kv-hnd";
  if (is_opaque ? is_nhd || is_hnd : !is_nhd && !is_hnd) {
    return Refuse(why,
                  "layout is '" + space.layout + "', and the pages are " +
                      (is_opaque ? "opaque: give the engine's own order a name of its own"
                                 : "written as nhd or hnd: name one, or call the pages opaque"),
                  StatusCode::kUnsupported);
  }
  *order = is_opaque ? SlotOrder::kAsEngine : is_nhd ? SlotOrder::kNhd : SlotOrder::kHnd;
  return Status::Ok();
}

struct SameCount {
  const char* in_layout;
  uint64_t laid_out;
  const char* in_space;
  uint64_t declared;
};

Status CheckCounts(const PagedLayout& layout, const SpaceSpec& space, std::string* why) {
  const SameCount counts[] = {
      {"layer_count", layout.layer_count, "layers", space.layers},
      {"page_tokens", layout.page_tokens, "block_tokens", space.block_tokens},
      {"head_count", layout.head_count, "kv_heads", space.kv_heads},
  };
  for (const SameCount& count : counts) {
    if (count.laid_out != count.declared) {
      return Refuse(why, std::string(count.in_layout) + " is " + Number(count.laid_out) +
                             ", and the Space's " + count.in_space + " is " +
                             Number(count.declared) + ": describe the cache of this Space");
    }
  }
  // Bytes of K and V side by side are not those of K, then V, though they are as many.
  const uint32_t plane_count = space.attention == AttentionKind::kMla ? 1 : 2;
  if (layout.plane_count == plane_count) return Status::Ok();
  return Refuse(
      why, "plane_count is " + Number(layout.plane_count) + ", and a Space of this attention has " +
               Number(plane_count) +
               (plane_count == 2 ? ": K and V side by side are planes a head apart" : ""));
}

Status CheckRuns(const PagedLayout& layout, std::string* why) {
  if (layout.plane_count == 1 && layout.head_count == 1) return Status::Ok();
  return Refuse(why, "plane_count is " + Number(layout.plane_count) + " and head_count " +
                         Number(layout.head_count) +
                         ": opaque pages have neither, so 1; a layer is a run of memory");
}

// How many layers a part holds; every part is as large as its layers are.
Status LayersPerPart(const PagedLayout& layout, const SpaceSpec& space, uint32_t* layers_per_part,
                     std::string* why) {
  const auto part_count = static_cast<uint32_t>(space.part_bytes.size());
  const uint32_t layers = layout.layer_count;
  *layers_per_part = (layers + part_count - 1) / part_count;
  if ((layers + *layers_per_part - 1) / *layers_per_part != part_count) {
    return Refuse(why, "part_bytes are " + Number(part_count) + " parts, in which " +
                           Number(layers) + " layers do not lie evenly: use " +
                           Number((layers + *layers_per_part - 1) / *layers_per_part));
  }
  for (uint32_t part = 0; part < part_count; ++part) {
    const uint32_t first = part * *layers_per_part;
    const uint64_t bytes = std::min(*layers_per_part, layers - first) * layout.layer_bytes();
    if (space.part_bytes[part] != bytes) {
      return Refuse(why, "part_bytes[" + Number(part) + "] is " + Number(space.part_bytes[part]) +
                             ", and its layers take " + Number(bytes) + " of a page (head_bytes " +
                             Number(layout.head_bytes) + ")");
    }
  }
  return Status::Ok();
}

Status CheckElements(const PagedLayout& layout, const SpaceCodec& codec, std::string* why) {
  const uint64_t head_bytes = codec.keys.head_dim * ElementBytes(codec.keys.element);
  if (layout.head_bytes == head_bytes) return Status::Ok();
  return Refuse(why, "head_bytes is " + Number(layout.head_bytes) +
                         ", and the Space's head_size of " + Number(codec.keys.head_dim) +
                         " in its dtype takes " + Number(head_bytes));
}

// None for a Space that holds the engine's bytes and no more.
Result<std::optional<SpaceCodec>> CodecOf(const SpaceSpec& space, std::string* why) {
  SpaceCodec codec;
  TERRACE_RETURN_IF_ERROR(SpaceCodec::Of(space, &codec, why));
  const bool has_pieces = codec.is_lossy() || codec.has_chunk_header;
  return has_pieces ? std::optional(codec) : std::nullopt;
}

Status CheckRopeOf(const PagedCacheOptions& options, std::string* why) {
  if (options.rope.has_value() == IsOfChunks(options.space)) {
    return options.rope && options.rope->rot_dim > 0
               ? options.rope->Validate(options.space.head_size, why)
               : Status::Ok();
  }
  return Refuse(why, options.rope
                         ? "rope is set, and the Space's layout is '" + options.space.layout +
                               "': keys turn in Spaces of chunks only, of layout '" +
                               std::string(kChunkLayout) + "'"
                         : "the Space's layout is '" + options.space.layout +
                               "', and no rope is set: say how the model turns its keys, or, with "
                               "a rot_dim of 0, that they have no positions");
}

Result<PagedNest> NestOf(const PagedCacheOptions& options, const std::optional<SpaceCodec>& codec,
                         std::string* why) {
  const PagedLayout& layout = options.layout;
  const SpaceSpec& space = options.space;
  TERRACE_RETURN_IF_ERROR(layout.Validate(why));
  SlotShape shape;
  TERRACE_RETURN_IF_ERROR(OrderOf(space, options.is_opaque, &shape.order, why));
  TERRACE_RETURN_IF_ERROR(options.is_opaque ? CheckRuns(layout, why)
                                            : CheckCounts(layout, space, why));
  if (codec) {
    TERRACE_RETURN_IF_ERROR(CheckElements(layout, *codec, why));
    shape.layers_per_part = layout.layer_count;  // they are parts once they are encoded
  } else {
    TERRACE_RETURN_IF_ERROR(LayersPerPart(layout, space, &shape.layers_per_part, why));
  }
  return CompileNest(layout, shape, why);
}

CopierOptions OptionsByRule(const Device& device, const PagedNest& nest,
                            const std::optional<SpaceCodec>& codec, bool is_host,
                            const std::shared_ptr<HostPins>& pins) {
  CopierOptions options = PlanByRule(nest, is_host).Apply({});
  const SlotLayers raw = SlotLayers::Of(nest);
  uint64_t layer_bytes = raw.SpanBytesMax();
  // What a launch fills at most: a rank that has many small Spaces has a ring of each.
  uint64_t full_bytes = kPagedPagesMax * raw.slot_bytes;
  if (codec) {
    if (options.store_path == TransferPath::kDirect) options.store_path = TransferPath::kStaged;
    if (options.load_path == TransferPath::kDirect) options.load_path = TransferPath::kStaged;
    if (is_host) options.stage_bytes = kHostRawBytes;
    const SlotLayers coded = SlotLayers::Of(*codec);
    layer_bytes = std::max(layer_bytes, coded.SpanBytesMax());
    full_bytes = std::max(full_bytes, kPagedPagesMax * coded.slot_bytes);
  }
  options.stage_bytes = std::max(std::min(options.stage_bytes, full_bytes), layer_bytes);
  options.bounce_bytes = std::max(std::min(options.bounce_bytes, full_bytes), layer_bytes);
  if (is_host) return options;
  // Where no slot is registered all pass through the copier's own memory, and nothing of a copy is
  // made by the thread that asks for it. The device outlives the copier: it is not owned.
  options.pins = pins != nullptr
                     ? pins
                     : std::make_shared<HostPins>(
                           std::shared_ptr<const Device>(std::shared_ptr<void>(), &device), 0);
  return options;
}

Status CheckPages(const PageList& list, uint64_t page_count, std::string* why) {
  if (list.page_indexes.empty() || list.page_indexes.size() > kPagesPerCallMax) {
    return Refuse(why, "page_indexes are " + Number(list.page_indexes.size()) + ", not 1.." +
                           Number(kPagesPerCallMax) + " a call");
  }
  for (size_t i = 0; i < list.page_indexes.size(); ++i) {
    const uint64_t page = list.page_indexes[i];
    if (page != kNoPage && page >= page_count) {
      return Refuse(why, "page_indexes[" + Number(i) + "] is " + Number(page) +
                             ", and page_count is " + Number(page_count));
    }
  }
  return Status::Ok();
}

// Two blocks in one page: one of them would be lost.
Status CheckDistinct(const PageList& list, std::string* why) {
  std::vector<uint64_t> pages(list.page_indexes.begin(), list.page_indexes.end());
  std::erase(pages, kNoPage);
  std::ranges::sort(pages);
  const auto twice = std::ranges::adjacent_find(pages);
  if (twice == pages.end()) return Status::Ok();
  return Refuse(why, "page_indexes hold page " + Number(*twice) + " twice: one block a page");
}

bool IsReady(const LeaseState& lease, uint32_t block, uint32_t member) {
  if (block < lease.ready_count.load()) return true;
  for (uint32_t part = 0; part < lease.member(member).part_count(); ++part) {
    if (!lease.is_part_readable(block, member, part)) return false;
  }
  return true;
}

Status FailedTo(const char* what, Status status, std::string* why) {
  *why = std::string(what) + " failed: " + status.what();
  return status;
}

}  // namespace

PagedCopy::PagedCopy(std::shared_ptr<LeaseState> lease, uint32_t member, bool is_store)
    : lease_(std::move(lease)), member_(member), is_store_(is_store) {
  counted_.emplace(*lease_);
}

PagedCopy::~PagedCopy() {
  store_.reset();  // waits
  load_.reset();
  if (has_slots_) lease_->EndRewrite(blocks_, member_);
}

Status PagedCopy::QueryEvents() {
  if (store_) return store_->slots_written.Query();
  if (!load_) return Status::Ok();
  // Slots first: they end before the pages do, and both are to be seen.
  const Status read = load_->slots_read.Query();
  return read.ok() ? load_->layer_ready.Query() : read;
}

// All parts of the blocks that no codec refused.
Status PagedCopy::RememberWritten() {
  const GroupMember& member = lease_->member(member_);
  std::map<uint64_t, std::set<uint32_t>> refused_parts;  // by page, which may be of two blocks
  if (store_->codes != nullptr) {
    for (const RefusedLayer& refused : store_->codes->Refused()) {
      refused_parts[refused.page_index].insert(PartOf(member.codec, refused.layer));
    }
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (const auto refused = refused_parts.find(pages_[i]); refused != refused_parts.end()) {
      lease_->parts_refused.fetch_add(static_cast<uint32_t>(refused->second.size()));
      continue;
    }
    for (uint32_t part = 0; part < member.part_count(); ++part) {
      TERRACE_RETURN_IF_ERROR(lease_->Remember({.key_index = blocks_[i],
                                                .member = static_cast<uint16_t>(member_),
                                                .part_index = static_cast<uint16_t>(part),
                                                .kind = WrittenPart::Kind::kUnchecked,
                                                .checksum = {}},
                                               /*from_copy=*/true));
    }
  }
  return refused_parts.empty() ? Status::Ok() : kRefusedByCodec;
}

Status PagedCopy::Finish(Status copied) {
  const bool has_ended = copied.ok();
  if (copied.ok() && !lease_->is_valid.load()) copied = kLeaseGone;
  if (copied.ok() && store_) copied = RememberWritten();
  end_ = copied;
  // A copy that failed may still be writing: until it is destroyed, which waits for it, its slots
  // stay taken, and a lease that was revoked is not acknowledged.
  if (!has_ended) return copied;
  if (has_slots_) lease_->EndRewrite(blocks_, member_);
  has_slots_ = false;
  counted_.reset();
  return copied;
}

Status PagedCopy::Poll() {
  if (end_) return *end_;
  if (lease_->owner->is_forked()) return kForked;
  const Status copied = QueryEvents();
  return copied.code() == StatusCode::kBusy ? copied : Finish(copied);
}

Status PagedCopy::Wait(uint64_t deadline_us) {
  const uint64_t now_us = MonotonicUs();
  const uint64_t until_us = deadline_us > kNever - now_us ? kNever : now_us + deadline_us;
  uint64_t step_us = kWaitStepUsMin;
  while (true) {
    const Status status = Poll();
    if (status.code() != StatusCode::kBusy || MonotonicUs() >= until_us) return status;
    const timespec step{.tv_sec = 0, .tv_nsec = static_cast<long>(step_us * 1000)};
    const CancelDeferred deferred;
    nanosleep(&step, nullptr);
    step_us = std::min(2 * step_us, kWaitStepUsMax);
  }
}

Result<std::unique_ptr<PagedCache>> PagedCache::Create(const Device& device,
                                                       const PagedCacheOptions& options,
                                                       std::string* why) {
  TERRACE_RETURN_IF_ERROR(options.space.Validate(why));
  const Result<std::optional<SpaceCodec>> codec = CodecOf(options.space, why);
  if (!codec.ok()) return codec.status();
  TERRACE_RETURN_IF_ERROR(CheckRopeOf(options, why));
  Result<PagedNest> nest = NestOf(options, *codec, why);
  if (!nest.ok()) return nest.status();
  Result<std::string> device_name = DeviceName(device);
  if (!device_name.ok()) {
    return Refuse(why, std::string("device cannot say which it is: ") + device_name.status().what(),
                  device_name.status().code());
  }
  const bool is_host = *device_name == "host";
  CopierOptions copier_options = options.copier
                                     ? *options.copier
                                     : OptionsByRule(device, *nest, *codec, is_host, options.pins);
  copier_options.codec = *codec;
  if (options.rope && options.rope->rot_dim > 0) copier_options.rope = options.rope;
  Result<std::unique_ptr<PagedCopier>> copier =
      PagedCopier::Create(device, std::move(nest).value(), copier_options, why);
  if (!copier.ok()) return copier.status();
  std::unique_ptr<ChunkHeaders> headers;
  if (options.rope) {
    auto made = ChunkHeaders::Create(device, is_host, options.space, *options.rope);
    if (!made.ok()) return FailedTo("allocating memory for headers of chunks", made.status(), why);
    headers = std::move(made).value();
  }
  return std::unique_ptr<PagedCache>(new PagedCache(options.space.Id(),
                                                    std::move(device_name).value(),
                                                    std::move(copier).value(), std::move(headers)));
}

Status PagedCache::CheckLease(const LeaseState* lease, const PageList& list, uint32_t block_count,
                              std::string* why) const {
  if (lease == nullptr) return Refuse(why, "lease is none: acquire or reserve first");
  if (lease->owner->is_forked()) {
    return Refuse(why, "lease is the parent's: a forked child makes a client of its own",
                  StatusCode::kGone);
  }
  if (lease->group == nullptr || lease->MemberOrdinal(list.member) < 0) {
    return Refuse(why, "member is " + Number(list.member) + ", which the lease has no slots of");
  }
  if (lease->member(list.member).space != space_) {
    return Refuse(why, "member " + Number(list.member) + " of the lease is Space " +
                           ToHex(lease->member(list.member).space) +
                           ", and the pages are described for " + ToHex(space_));
  }
  if (list.first_block + uint64_t{list.page_indexes.size()} > block_count) {
    return Refuse(why, "first is " + Number(list.first_block) + " and count " +
                           Number(list.page_indexes.size()) + ", and the lease has " +
                           Number(block_count) + " blocks");
  }
  TERRACE_RETURN_IF_ERROR(CheckPages(list, nest().page_count, why));
  return CheckPositions(list, why);
}

Status PagedCache::CheckPositions(const PageList& list, std::string* why) const {
  const size_t wanted = headers_ == nullptr ? 0 : list.page_indexes.size();
  if (list.first_token_positions.size() == wanted) return Status::Ok();
  return Refuse(why, "positions are " + Number(list.first_token_positions.size()) + " of " +
                         Number(list.page_indexes.size()) + " pages: " +
                         (headers_ == nullptr ? "only chunks have them"
                                              : "chunks have one a page, of its first token"));
}

PageSlot PagedCache::SlotOf(uint64_t page_index, std::byte* slot) const {
  return {.page_index = page_index, .slot = slot, .device_slot = reaches_slots_ ? slot : nullptr};
}

Status PagedCache::CheckDevice(const LeaseState& lease, std::string* why) const {
  const std::string& name = lease.attachment->slab_device().name;
  if (name == device_name_) return Status::Ok();
  return Refuse(why, "a block lies in the memory of device '" + name + "', and the pages are " +
                         "described on '" + device_name_ +
                         "': acquire without the flag for device memory");
}

Result<std::unique_ptr<PagedCopy>> PagedCache::Store(const WriteLease& lease, const PageList& list,
                                                     const KvWritten& written, std::string* why) {
  LeaseState* const state = lease.state_.get();
  const auto key_count = static_cast<uint32_t>(state == nullptr ? 0 : state->reserved.size());
  TERRACE_RETURN_IF_ERROR(CheckLease(state, list, key_count, why));
  std::unique_ptr<PagedCopy> copy(new PagedCopy(lease.state_, list.member, /*is_store=*/true));
  // Counted first, looked at then: a revocation either sees the copy or is seen.
  if (!state->is_valid.load()) return Refuse(why, kLeaseGone.what(), StatusCode::kGone);
  std::vector<PageSlot> pages;
  std::vector<uint32_t> positions;  // of chunks
  for (uint32_t i = 0; i < list.page_indexes.size(); ++i) {
    const uint32_t key = list.first_block + i;
    std::byte* const slot = state->WriteSlot(key, list.member);
    if (list.page_indexes[i] == kNoPage || slot == nullptr) continue;
    copy->blocks_.push_back(key);
    copy->pages_.push_back(list.page_indexes[i]);
    pages.push_back(SlotOf(list.page_indexes[i], slot));
    if (headers_ != nullptr) positions.push_back(list.first_token_positions[i]);
  }
  if (pages.empty()) return copy;
  if (const Status fresh = state->Rewrite(copy->blocks_, list.member); !fresh.ok()) {
    *why = fresh.what();
    return fresh;
  }
  copy->has_slots_ = true;
  for (size_t i = 0; i < positions.size(); ++i) headers_->Write(pages[i].slot, positions[i]);
  const std::lock_guard lock(store_lock_);
  Result<StoreTicket> ticket = copier_->Store(pages, written);
  if (!ticket.ok()) return FailedTo("queueing the store", ticket.status(), why);
  copy->store_.emplace(std::move(ticket).value());
  return copy;
}

Result<std::unique_ptr<PagedCopy>> PagedCache::Load(const ReadLease& lease, const PageList& list,
                                                    const DestinationFree& free, std::string* why) {
  LeaseState* const state = lease.state_.get();
  TERRACE_RETURN_IF_ERROR(CheckLease(state, list, state == nullptr ? 0 : state->block_count, why));
  TERRACE_RETURN_IF_ERROR(CheckDistinct(list, why));
  std::unique_ptr<PagedCopy> copy(new PagedCopy(lease.state_, list.member, /*is_store=*/false));
  if (!state->is_valid.load()) return Refuse(why, kLeaseGone.what(), StatusCode::kGone);
  copy->layer_count_ = nest().layer_count();
  std::vector<PageSlot> pages;
  std::vector<uint32_t> positions;  // of chunks
  for (uint32_t i = 0; i < list.page_indexes.size(); ++i) {
    const uint32_t block = list.first_block + i;
    if (list.page_indexes[i] == kNoPage) continue;
    const bool is_ready = IsReady(*state, block, list.member);
    // Behind that: what a followed block is without is heard before the block is ready.
    std::byte* const slot = state->ReadSlot(block, list.member);
    if (slot == nullptr) {
      return Refuse(why, "member " + Number(list.member) + " has no bytes for block " +
                             Number(block) + ": give it TERRACE_PAGE_NONE");
    }
    if (!is_ready) {
      return Refuse(why, "block " + Number(block) + " is not ready: wait for it first",
                    StatusCode::kBusy);
    }
    copy->blocks_.push_back(block);
    pages.push_back(SlotOf(list.page_indexes[i], slot));
    if (headers_ != nullptr) positions.push_back(list.first_token_positions[i]);
    if (state->IsHostReadable(block, list.member)) continue;
    TERRACE_RETURN_IF_ERROR(CheckDevice(*state, why));
    pages.back().is_in_device = true;
  }
  if (pages.empty()) return copy;
  const std::lock_guard lock(load_lock_);
  if (headers_ != nullptr) {
    const Status set = headers_->SetDeltas(positions, copy->blocks_, pages, why);
    // What a lease that ended lets be read may be another block's.
    if (!state->is_valid.load()) return Refuse(why, kLeaseGone.what(), StatusCode::kGone);
    TERRACE_RETURN_IF_ERROR(set);
    // A launch is of pages that turn the same way.
    std::ranges::stable_sort(pages, {}, &PageSlot::key_delta);
  }
  Result<LoadTicket> ticket = copier_->Load(pages, free);
  if (!ticket.ok()) return FailedTo("queueing the load", ticket.status(), why);
  copy->load_.emplace(std::move(ticket).value());
  return copy;
}

}  // namespace terrace::client
