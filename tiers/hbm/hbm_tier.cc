#include "tiers/hbm/hbm_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "terrace/check.h"
#include "tiers/arena/dram_tier.h"

namespace terrace {
namespace {

// Rows are touched as their slots are used, so most of a table costs address space only.
std::span<std::byte> MapTable(size_t length_bytes) {
  void* table = mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TERRACE_CHECK(table != MAP_FAILED, "there is address space for a slot table");
  return {static_cast<std::byte*>(table), length_bytes};
}

}  // namespace

HbmTier::HbmTier(Options options)
    : options_(std::move(options)),
      slot_table_(MapTable(SlotTableBytes(options_.slab_bytes, options_.slab_count))) {
  TERRACE_CHECK(options_.slab_count > 0 && options_.slab_count <= protocol::kDeviceSlabsMax,
                "1 to kDeviceSlabsMax slabs");
  TERRACE_CHECK(options_.orders_max > 0 && options_.orders_per_executor_max > 0 &&
                    options_.failures_max > 0 && options_.bytes_per_us > 0,
                "zero never means unlimited");
  slots_ =
      std::make_unique<SlotAllocator>(SlotAllocator::Options{.segment_bytes = options_.slab_bytes,
                                                             .segments_max = options_.slab_count,
                                                             .slot_table = slot_table_});
  for (uint32_t slab = 0; slab < options_.slab_count; ++slab) slots_->SegmentPopulated(slab);
}

HbmTier::~HbmTier() { munmap(slot_table_.data(), slot_table_.size()); }

void HbmTier::Serve(TierListener* listener, WorkOrderSink* sink) {
  listener_ = listener;
  sink_ = sink;
}

SlotAddress HbmTier::AddressOf(const Extent& extent) {
  SlotAddress address = DramTier::SlotOf(extent).address;
  address.segment += protocol::kDeviceSegmentFirst;
  return address;
}

// ---- places ----

Result<Extent> HbmTier::Allocate(uint32_t /*domain_index*/, uint64_t length_bytes,
                                 uint32_t /*part_count*/) {
  const uint64_t slot_bytes = RoundUp(length_bytes, kArenaPageBytes);
  auto known = class_by_slot_bytes_.find(slot_bytes);
  if (known == class_by_slot_bytes_.end()) {
    const Result<uint32_t> added = slots_->AddClass(slot_bytes, 0);
    if (!added.ok()) return Status(StatusCode::kNoSpace, "no slab takes a slot of this size");
    known = class_by_slot_bytes_.emplace(slot_bytes, *added).first;
  }
  const Result<SlotRef> slot = slots_->Allocate(known->second);
  if (!slot.ok()) return slot.status();
  return DramTier::ExtentOf(*slot, length_bytes);
}

void HbmTier::Free(const Extent& extent) {
  const SlotAddress address = AddressOf(extent);
  TERRACE_CHECK(
      std::ranges::none_of(orders_,
                           [&](const auto& entry) { return entry.second.told.device == address; }),
      "no transfer on a freed extent is in flight");
  slots_->Free(DramTier::SlotOf(extent));
}

// ---- transfers ----

Status HbmTier::Refusal(const Extent& extent) const {
  if (orders_.size() >= options_.orders_max) {
    return Status(StatusCode::kBusy, "orders_max work orders have not ended");
  }
  if (!slots_->IsCurrent(DramTier::SlotOf(extent))) {
    return Status(StatusCode::kGone, "the extent was freed");
  }
  return Status::Ok();
}

Status HbmTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  TERRACE_CHECK(into.size() == extent.length_bytes, "the buffer is as long as the extent");
  TERRACE_RETURN_IF_ERROR(Refusal(extent));
  Begin(transfer_id, protocol::OrderKind::kDemote, extent, into.data(), {});
  return Status::Ok();
}

Status HbmTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                      std::span<const std::byte> from) {
  TERRACE_CHECK(from.size() == extent.length_bytes, "the buffer is as long as the extent");
  TERRACE_RETURN_IF_ERROR(Refusal(extent));
  Order order;
  order.told.space = record.space;
  order.told.key = record.key;
  order.told.commit_id = record.commit_id;
  order.part_bytes.assign(record.part_bytes.begin(), record.part_bytes.end());
  order.roots.assign(record.part_checksums.begin(), record.part_checksums.end());
  Begin(transfer_id, protocol::OrderKind::kPromote, extent, from.data(), std::move(order));
  return Status::Ok();
}

void HbmTier::Begin(TransferId transfer_id, protocol::OrderKind kind, const Extent& extent,
                    const std::byte* slot, Order order) {
  order.transfer_id = transfer_id;
  order.deadline_us = options_.now_us() + options_.order_deadline_us;
  order.told.order_id = next_order_id_++;
  order.told.generation = extent.generation;
  order.told.device = AddressOf(extent);
  order.told.arena = options_.locate(slot);
  order.told.length_bytes = extent.length_bytes;
  order.told.part_count = static_cast<uint32_t>(order.part_bytes.size());
  order.told.kind = kind;
  bytes_in_flight_ += extent.length_bytes;
  queued_.push_back(order.told.order_id);
  orders_.emplace(order.told.order_id, std::move(order));
  Issue();
}

void HbmTier::Issue() {
  const uint64_t now_us = options_.now_us();
  for (auto next = queued_.begin(); next != queued_.end();) {
    Order& order = orders_.at(*next);
    if (order.deadline_us <= now_us) {  // Tick ends it
      ++next;
      continue;
    }
    Executor* const executor = Idlest();
    if (executor == nullptr) return;
    next = queued_.erase(next);
    order.executor = executor->id;
    order.told.deadline_us =
        static_cast<uint32_t>(std::min<uint64_t>(order.deadline_us - now_us, UINT32_MAX));
    ++executor->order_count;
    ++order_stats_.issued;
    sink_->OnWorkOrder(executor->id, order.told, order.part_bytes);
  }
}

// Of equals whoever came first, so that a seed replays exactly.
HbmTier::Executor* HbmTier::Idlest() {
  const uint64_t now_us = options_.now_us();
  std::vector<ExecutorId> late;  // see IsLate: each order is looked at once, not once an executor
  for (const auto& [order_id, order] : orders_) {
    if (order.executor != 0 && order.deadline_us <= now_us) late.push_back(order.executor);
  }
  std::ranges::sort(late);
  Executor* idlest = nullptr;
  for (Executor& executor : executors_) {
    if (!IsUsable(executor) || executor.order_count >= options_.orders_per_executor_max ||
        std::ranges::binary_search(late, executor.id)) {
      continue;
    }
    if (idlest == nullptr || executor.order_count < idlest->order_count) idlest = &executor;
  }
  return idlest;
}

// ---- executors ----

HbmTier::Executor* HbmTier::FindExecutor(ExecutorId id) {
  const auto found = std::ranges::find(executors_, id, &Executor::id);
  return found == executors_.end() ? nullptr : &*found;
}

bool HbmTier::IsUsable(const Executor& executor) const {
  return !executor.is_hung_up && executor.failure_count < options_.failures_max;
}

// It hangs, perhaps: it gets no more before it has answered what it has.
bool HbmTier::IsLate(const Executor& executor) const {
  const uint64_t now_us = options_.now_us();
  return executor.order_count > 0 && std::ranges::any_of(orders_, [&](const auto& entry) {
           return entry.second.executor == executor.id && entry.second.deadline_us <= now_us;
         });
}

void HbmTier::HealthMayHaveChanged(bool was_healthy) {
  if (stats().is_healthy != was_healthy) listener_->OnRoom(options_.domain_index);
}

void HbmTier::AddExecutor(ExecutorId executor) {
  TERRACE_CHECK(executor != 0, "0 is nobody");
  const bool was_healthy = stats().is_healthy;
  if (Executor* const known = FindExecutor(executor)) {
    known->failure_count = 0;  // it has mapped the device anew
  } else {
    executors_.push_back({.id = executor});
  }
  Issue();
  HealthMayHaveChanged(was_healthy);
}

void HbmTier::HangUp(ExecutorId id) {
  Executor* const executor = FindExecutor(id);
  if (executor == nullptr) return;
  const bool was_healthy = stats().is_healthy;
  executor->is_hung_up = true;
  HealthMayHaveChanged(was_healthy);
}

void HbmTier::ProofOfDeath(ExecutorId id) {
  if (FindExecutor(id) == nullptr) return;
  const bool was_healthy = stats().is_healthy;
  std::erase_if(executors_, [id](const Executor& executor) { return executor.id == id; });
  // The oldest first again, before what came since.
  std::vector<uint64_t> orphans;
  for (const auto& [order_id, order] : orders_) {
    if (order.executor == id) orphans.push_back(order_id);
  }
  for (const uint64_t order_id : orphans) orders_.at(order_id).executor = 0;
  queued_.insert(queued_.begin(), orphans.begin(), orphans.end());
  order_stats_.reissued += orphans.size();
  Issue();
  HealthMayHaveChanged(was_healthy);
}

Status HbmTier::OrderDone(ExecutorId id, const protocol::OrderDoneRequest& done,
                          std::span<const Checksum> checksums) {
  const auto found = orders_.find(done.order_id);
  if (found == orders_.end() || found->second.executor != id ||
      found->second.told.generation != done.generation) {
    return Status(StatusCode::kGone, "the session has no such work order");
  }
  Executor* const executor = FindExecutor(id);
  TERRACE_CHECK(executor != nullptr, "an order is with an executor, or with nobody");
  const bool was_healthy = stats().is_healthy;
  --executor->order_count;
  const bool is_in_time = found->second.deadline_us > options_.now_us();
  const Status status = Judge(found->second, done, checksums);
  // Of other bytes than the block's it may be innocent, and while it is late it gets nothing more.
  if (status.ok()) {
    executor->failure_count = 0;
  } else if (is_in_time && done.status != static_cast<uint8_t>(StatusCode::kOk)) {
    ++executor->failure_count;
  }
  End(done.order_id, status);
  Issue();
  HealthMayHaveChanged(was_healthy);
  return Status::Ok();
}

Status HbmTier::Judge(const Order& order, const protocol::OrderDoneRequest& done,
                      std::span<const Checksum> checksums) {
  if (order.deadline_us <= options_.now_us()) {
    ++order_stats_.expired;
    return Status(StatusCode::kBusy, "the work order was answered after its deadline");
  }
  if (done.status != static_cast<uint8_t>(StatusCode::kOk)) {
    ++order_stats_.refused;
    return Status(StatusCode::kBusy, "the client could not execute the work order");
  }
  if (!std::ranges::equal(checksums, order.roots)) {
    ++order_stats_.wrong;
    return Status(StatusCode::kCorrupt, "the device holds other bytes than the block");
  }
  return Status::Ok();
}

void HbmTier::End(uint64_t order_id, Status status) {
  const Order order = orders_.extract(order_id).mapped();
  bytes_in_flight_ -= order.told.length_bytes;
  if (!status.ok()) {
    ++stats_.failed_transfers;
  } else if (order.told.kind == protocol::OrderKind::kPromote) {
    stats_.written_bytes += order.told.length_bytes;
  } else {
    stats_.read_bytes += order.told.length_bytes;
  }
  listener_->OnTransferDone(order.transfer_id, status);
}

void HbmTier::Tick() {
  const uint64_t now_us = options_.now_us();
  // Those that are with somebody go on: their slots may still be written.
  std::vector<uint64_t> expired;
  std::erase_if(queued_, [&](uint64_t order_id) {
    const bool is_expired = orders_.at(order_id).deadline_us <= now_us;
    if (is_expired) expired.push_back(order_id);
    return is_expired;
  });
  for (const uint64_t order_id : expired) {
    ++order_stats_.expired;
    End(order_id, Status(StatusCode::kBusy, "no client of the device took the work order"));
  }
  Issue();
}

// ---- what is told ----

uint64_t HbmTier::PredictReadUs(uint64_t length_bytes) const {
  return (bytes_in_flight_ + length_bytes) / options_.bytes_per_us + 1;
}

HbmTier::OrderStats HbmTier::order_stats() const {
  OrderStats stats = order_stats_;
  stats.queued = static_cast<uint32_t>(queued_.size());
  const uint64_t now_us = options_.now_us();
  for (const Executor& executor : executors_) stats.executors += IsUsable(executor) ? 1 : 0;
  for (const auto& [order_id, order] : orders_) {
    if (order.executor != 0 && order.deadline_us <= now_us) ++stats.late;
  }
  return stats;
}

TierStats HbmTier::stats() const {
  TierStats stats = stats_;
  stats.capacity_bytes = options_.slab_bytes * options_.slab_count;
  stats.used_bytes = slots_->usage().used_bytes;
  stats.transfers_in_flight = orders_.size();
  stats.stuck_transfers = order_stats().late;
  // Without a client nobody can copy, and with one that hangs nobody does: what lies there waits.
  stats.is_healthy = std::ranges::any_of(executors_, [this](const Executor& executor) {
    return IsUsable(executor) && !IsLate(executor);
  });
  return stats;
}

}  // namespace terrace
