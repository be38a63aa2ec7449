#include "tests/sim/engine_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kPageCount = 6;
constexpr uint32_t kSlotCount = 8;
constexpr uint32_t kPagesPerCall = 3;
constexpr uint32_t kSlotsPerSegment = 2;

SimDeviceOptions SimOptions(const EngineWorldOptions& options) {
  return {.seed = options.seed,
          .steps_per_call_max = static_cast<uint32_t>(options.seed % 5),
          .copy_failures_per_million = options.copy_failures_per_million,
          .dropped_edge = options.dropped_edge,
          .registration_failures_per_million = options.registration_failures_per_million,
          .failing_registration = options.failing_registration,
          .needs_registration = options.has_pins};
}

}  // namespace

EngineWorld::EngineWorld(const EngineWorldOptions& options)
    : options_(options),
      random_(options.seed * 7919 + 1),
      sim_(SimOptions(options)),
      device_(SimDeviceOps(), sim_.handle()),
      pages_(kPageCount),
      slots_(kSlotCount) {
  const std::vector<std::string> kinds = CacheKinds();
  cache_ = MakeCache(kinds[Random(kinds.size())],
                     {.layer_count = static_cast<uint32_t>(1 + Random(4)),
                      .page_tokens = 8,
                      .head_count = static_cast<uint32_t>(1 + Random(2)),
                      .head_bytes = 16,
                      .page_count = kPageCount},
                     static_cast<uint32_t>(options.seed));
  order_ = static_cast<SlotOrder>(Random(3));
  compute_.emplace(std::move(Stream::Create(device_, StreamPriority::kLoad)).value());
  MakeCopier();
  if (copier_ != nullptr) MakeSegments();
}

EngineWorld::~EngineWorld() = default;

void EngineWorld::MakeCopier() {
  std::string why;
  Result<PagedNest> nest = CompileNest(cache_.layout, {.order = order_}, &why);
  TERRACE_CHECK(nest.ok(), "test layouts are valid");
  CopierOptions options;
  options.store_path = static_cast<TransferPath>(Random(kTransferPathCount));
  options.load_path = static_cast<TransferPath>(Random(kTransferPathCount));
  // From a ring that holds one layer of one page to one that holds several pages.
  options.stage_bytes = nest->layer_offset_bytes[1] * (1 + Random(6));
  options.stage_count = static_cast<uint32_t>(1 + Random(3));
  options.load_chunk_bytes_min = nest->layer_bytes * (1 + Random(3));
  options.load_step_bytes_min = 1 + Random(2) * 16 * nest->layer_bytes;
  if (options_.has_pins) {
    const uint64_t segment_bytes = kSlotsPerSegment * nest->slot_bytes;
    const std::shared_ptr<const Device> unowned(&device_, [](const Device*) {});
    pins_ = std::make_shared<HostPins>(unowned, segment_bytes * (1 + Random(4)));
    options.pins = pins_;
    options.bounce_bytes = nest->layer_offset_bytes[1] * (1 + Random(6));
  }
  Result<std::unique_ptr<PagedCopier>> copier =
      PagedCopier::Create(device_, std::move(nest).value(), options, &why);
  TERRACE_CHECK(copier.ok() || options_.copy_failures_per_million > 0, "a copier can be made");
  if (copier.ok()) copier_ = std::move(copier).value();
}

void EngineWorld::MakeSegments() {
  const uint64_t slot_bytes = copier_->nest().slot_bytes;
  segments_.resize(kSlotCount / kSlotsPerSegment);
  for (Segment& segment : segments_) {
    segment.memory.assign(kSlotsPerSegment * slot_bytes, kSimPoison);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].bytes = std::span(segments_[i / kSlotsPerSegment].memory)
                          .subspan(i % kSlotsPerSegment * slot_bytes, slot_bytes);
  }
}

// Once a mapping, whatever comes of it: copies go on meanwhile.
void EngineWorld::Pin() {
  Segment& segment = segments_[Random(segments_.size())];
  if (std::exchange(segment.is_tried, true)) return;
  (void)pins_->Register(segment.memory.data(), segment.memory.size());
}

// The daemon takes a segment back; another mapping of the same memory follows.
void EngineWorld::Unmap() {
  const size_t index = Random(segments_.size());
  Segment& segment = segments_[index];
  const std::span<const Slot> slots =
      std::span(slots_).subspan(index * kSlotsPerSegment, kSlotsPerSegment);
  const bool is_leased =
      std::ranges::any_of(slots, [](const Slot& slot) { return slot.use_count > 0; });
  if (is_leased && !options_.unmaps_under_copies) return;
  pins_->Unregister(segment.memory.data());
  segment.is_tried = false;
}

EngineWorld::Image EngineWorld::MakeImage() {
  auto image = std::make_shared<std::vector<std::byte>>(copier_->nest().slot_bytes);
  for (std::byte& byte : *image) byte = static_cast<std::byte>(random_());
  return image;
}

std::vector<size_t> EngineWorld::ChooseSlots(bool is_sealed, size_t count) {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (is_sealed ? slot.is_sealed : slot.use_count == 0) fitting.push_back(i);
  }
  std::ranges::shuffle(fitting, random_);
  if (fitting.size() > count) fitting.resize(count);
  return fitting;
}

std::vector<uint64_t> EngineWorld::ChoosePages(size_t count) {
  std::vector<uint64_t> pages(kPageCount);
  for (uint64_t i = 0; i < kPageCount; ++i) pages[i] = i;
  std::ranges::shuffle(pages, random_);
  pages.resize(count);
  return pages;
}

// A kernel that writes a page, layer by layer in any order.
void EngineWorld::LaunchWrite(uint64_t page, Image image) {
  pages_[page].image = image;
  sim_.Launch(compute_->handle(), cache_.layout.layer_count, [this, page, image](uint32_t layer) {
    const uint64_t origin = copier_->nest().layer_offset_bytes[layer];
    VisitVectors(cache_.layout, order_, layer, page, [&](std::byte* vector, uint64_t offset) {
      std::memcpy(vector, image->data() + origin + offset, cache_.layout.head_bytes);
    });
  });
}

// A kernel that reads a page, as attention does, and is told what it must see.
void EngineWorld::LaunchRead(uint64_t page, uint32_t layer_first, uint32_t layer_count) {
  const Image image = pages_[page].image;
  sim_.Launch(compute_->handle(), layer_count, [this, page, image, layer_first](uint32_t index) {
    const uint32_t layer = layer_first + index;
    const uint64_t origin = copier_->nest().layer_offset_bytes[layer];
    bool is_equal = true;
    VisitVectors(cache_.layout, order_, layer, page, [&](std::byte* vector, uint64_t offset) {
      is_equal = is_equal && std::memcmp(vector, image->data() + origin + offset,
                                         cache_.layout.head_bytes) == 0;
    });
    if (!is_equal && options_.copy_failures_per_million == 0) Mismatch("a kernel reads a page");
  });
}

void EngineWorld::ReadSomePage() {
  const uint64_t page = Random(kPageCount);
  if (pages_[page].image != nullptr) LaunchRead(page, 0, cache_.layout.layer_count);
}

// A prefill: kernels write pages, the pages are stored, and the engine uses them again.
void EngineWorld::Store() {
  const std::vector<size_t> slots = ChooseSlots(/*is_sealed=*/false, 1 + Random(kPagesPerCall));
  if (slots.empty()) return;
  std::vector<PageSlot> asked;
  std::vector<Image> images;
  const std::vector<uint64_t> pages = ChoosePages(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots_[slots[i]];
    slot.is_sealed = false;
    ++slot.use_count;
    std::ranges::fill(slot.bytes, kSimPoison);
    images.push_back(MakeImage());
    LaunchWrite(pages[i], images.back());
    asked.push_back({pages[i], slot.bytes.data(), pins_ ? nullptr : slot.bytes.data()});
  }
  const Result<KvWritten> written = KvWritten::After(copier_->events(), *compute_);
  TERRACE_CHECK(written.ok(), "events suffice");
  Result<StoreTicket> ticket = copier_->Store(asked, written.value());
  TERRACE_CHECK(ticket.ok(), "a store is queued");
  // An engine that forgets to wait: the edge waits for it. One that drops the edge on purpose is
  // the mutation, and must not be saved by that.
  if (options_.dropped_edge || !Chance(10)) {
    TERRACE_CHECK(ticket->page_reuse.Gate(*compute_).ok(), "an edge is queued");
  }
  storing_.push_back({std::move(ticket->slots_written), slots, images});
}

// A hit: pages of other prompts are filled from slots, and each layer is read as soon as it is
// ready.
void EngineWorld::Load() {
  const std::vector<size_t> slots = ChooseSlots(/*is_sealed=*/true, 1 + Random(kPagesPerCall));
  if (slots.empty()) return;
  std::vector<PageSlot> asked;
  const std::vector<uint64_t> pages = ChoosePages(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots_[slots[i]];
    ++slot.use_count;
    asked.push_back({pages[i], slot.bytes.data(), pins_ ? nullptr : slot.bytes.data()});
  }
  const Result<DestinationFree> free = DestinationFree::After(copier_->events(), *compute_);
  TERRACE_CHECK(free.ok(), "events suffice");
  Result<LoadTicket> ticket = copier_->Load(asked, free.value());
  TERRACE_CHECK(ticket.ok(), "a load is queued");
  for (size_t i = 0; i < slots.size(); ++i) pages_[pages[i]].image = slots_[slots[i]].image;
  const bool forgets = !options_.dropped_edge && Chance(10);
  if (forgets) {
    const LayerReady dropped = std::move(ticket->layer_ready);
  }
  for (uint32_t layer = 0; layer < cache_.layout.layer_count; ++layer) {
    if (!forgets) {
      TERRACE_CHECK(ticket->layer_ready.Gate(layer, *compute_).ok(), "an edge is queued");
    }
    for (const uint64_t page : pages) LaunchRead(page, layer, 1);
  }
  loading_.push_back({std::move(ticket->slots_read), slots});
}

bool EngineWorld::IsEqual(const std::byte* bytes, const std::vector<std::byte>& image) const {
  const PagedNest& nest = copier_->nest();
  for (uint32_t layer = 0; layer < nest.layer_count(); ++layer) {
    const uint64_t offset = nest.layer_offset_bytes[layer];
    if (std::memcmp(bytes + offset, image.data() + offset, nest.layer_bytes) != 0) return false;
  }
  return true;
}

void EngineWorld::FinishStore(Storing& storing, Status status) {
  for (size_t i = 0; i < storing.slots.size(); ++i) {
    Slot& slot = slots_[storing.slots[i]];
    --slot.use_count;
    if (!status.ok()) {
      ++failed_count_;
      is_dead_ = true;
      continue;
    }
    ++stored_count_;
    slot.image = storing.images[i];
    slot.is_sealed = true;
    if (!IsEqual(slot.bytes.data(), *slot.image)) Mismatch("a slot that is said to be written");
  }
}

// What the host hears of: only then slots are committed or used again.
void EngineWorld::Poll() {
  std::erase_if(storing_, [this](Storing& storing) {
    const Status status = storing.done.Query();
    if (status.code() == StatusCode::kBusy) return false;
    FinishStore(storing, status);
    return true;
  });
  std::erase_if(loading_, [this](Loading& loading) {
    const Status status = loading.done.Query();
    if (status.code() == StatusCode::kBusy) return false;
    for (const size_t slot : loading.slots) --slots_[slot].use_count;
    ++(status.ok() ? loaded_count_ : failed_count_);
    is_dead_ = is_dead_ || !status.ok();
    return true;
  });
}

void EngineWorld::Mismatch(const char* where) {
  if (mismatch_count_++ > 0) return;
  first_mismatch_ = "seed " + std::to_string(options_.seed) + ", step " +
                    std::to_string(sim_.step_count()) + ": " + where;
}

uint64_t EngineWorld::Run() {
  if (copier_ == nullptr) return 0;  // its own copies failed, and it said so
  for (uint32_t i = 0; i < options_.operation_count && !is_dead_; ++i) {
    switch (Random(4)) {
      case 0:
        Store();
        break;
      case 1:
        Load();
        break;
      default:
        ReadSomePage();
    }
    if (pins_ != nullptr && Chance(40)) Chance(70) ? Pin() : Unmap();
    Poll();
  }
  sim_.Settle();
  Poll();
  TERRACE_CHECK(storing_.empty() && loading_.empty(), "a settled device has reached every event");
  return mismatch_count_;
}

}  // namespace terrace
