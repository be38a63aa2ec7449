#include "client/work_orders.h"

#include <algorithm>
#include <utility>

#include "client/core.h"
#include "cuda/host_copy.h"

namespace terrace::client {
namespace {

static_assert(kOrderSliceBytes % kChecksumLeafBytes == 0);

std::byte* FirstByte(const Attachment& attachment, const SlotAddress& slot) {
  return attachment.base(slot.segment) + slot.page * kArenaPageBytes;
}

bool IsInside(const Attachment& attachment, const SlotAddress& slot, uint64_t length_bytes) {
  const uint64_t segment_bytes = attachment.segment_bytes(slot.segment);
  const uint64_t offset_bytes = slot.page * kArenaPageBytes;
  return offset_bytes <= segment_bytes && length_bytes <= segment_bytes - offset_bytes;
}

// Parts begin at 4 KiB, one behind the other.
bool PartsFit(std::span<const uint64_t> part_bytes, uint64_t length_bytes) {
  uint64_t end_bytes = 0;
  for (const uint64_t bytes : part_bytes) {
    if (bytes > length_bytes) return false;
    end_bytes += RoundUp(bytes, kArenaPageBytes);
    if (end_bytes > length_bytes) return false;
  }
  return true;
}

}  // namespace

const char* WorkOrders::Push(std::span<const std::byte> body, uint32_t connection,
                             const std::shared_ptr<Attachment>& attachment) {
  Order order;
  BodyReader reader(body);
  const bool has_head = reader.Read(&order.told) && order.told.part_count <= kPartsPerSpaceMax;
  order.part_bytes.resize(has_head ? order.told.part_count : 0);
  if (!has_head || reader.rest().size() != order.part_bytes.size() * sizeof(uint64_t) ||
      !reader.ReadArray(std::span(order.part_bytes))) {
    return "it is no WorkOrder";
  }
  if (!PartsFit(order.part_bytes, order.told.length_bytes)) return "its parts pass its slot's end";
  order.attachment = attachment;
  order.connection = connection;
  order.deadline_us = MonotonicUs() + order.told.deadline_us;
  {
    LockGuard guard(lock_);
    if (waiting_.size() < kOrdersMax) {
      waiting_.push_back(std::move(order));
      return nullptr;
    }
  }
  Answer(order, Status(StatusCode::kBusy, "kOrdersMax orders wait"));
  return nullptr;
}

std::optional<WorkOrders::Order> WorkOrders::Next() {
  LockGuard guard(lock_);
  if (waiting_.empty()) return std::nullopt;
  Order next = std::move(waiting_.front());
  waiting_.pop_front();
  return next;
}

bool WorkOrders::Step() {
  // One that came while its connection was being taken down holds that one's memory.
  if (current_.has_value() && current_->connection != core_.connection()) {
    LetGo(*current_);
    current_.reset();
  }
  if (!current_.has_value()) {
    current_ = Next();
    if (!current_.has_value()) return false;
    if (current_->connection != core_.connection()) {
      current_.reset();
      return true;
    }
    if (const Status begun = Begin(*current_); !begun.ok()) {
      Answer(*current_, begun);
      LetGo(*current_);
      current_.reset();
      return true;
    }
  }
  Order& order = *current_;
  const bool is_late = MonotonicUs() >= order.deadline_us;
  if (!is_late && !Work(order)) return true;
  // What others were to read in either slot they read after this.
  Answer(order, is_late ? Status(StatusCode::kBusy, "the order's deadline passed") : Status::Ok());
  LetGo(order);
  current_.reset();
  return true;
}

Status WorkOrders::Begin(Order& order) {
  const SlotAddress slots[] = {order.told.device, order.told.arena};
  const bool is_right_way = order.told.device.segment >= protocol::kDeviceSegmentFirst &&
                            order.told.arena.segment < protocol::kDeviceSegmentFirst;
  for (const SlotAddress& slot : slots) {
    if (!is_right_way || !IsInside(*order.attachment, slot, order.told.length_bytes)) {
      return Status(StatusCode::kInvalid, "the order names no slots of this session");
    }
  }
  return order.attachment->RetainSegments(slots, &order.segments, SegmentUse::kOrder);
}

bool WorkOrders::Work(Order& order) {
  std::byte* const device = FirstByte(*order.attachment, order.told.device);
  std::byte* const arena = FirstByte(*order.attachment, order.told.arena);
  const bool is_promotion = order.told.kind == protocol::OrderKind::kPromote;
  const uint64_t left_bytes = order.told.length_bytes - order.copied_bytes;
  if (left_bytes > 0) {
    const uint64_t slice_bytes = std::min(left_bytes, kOrderSliceBytes);
    std::byte* const to = (is_promotion ? device : arena) + order.copied_bytes;
    const std::byte* const from = (is_promotion ? arena : device) + order.copied_bytes;
    CopyBytes({to, slice_bytes}, {from, slice_bytes});
    order.copied_bytes += slice_bytes;
    return false;
  }
  if (!is_promotion || order.checksums.size() == order.part_bytes.size()) return true;
  HashSlice(order);
  return false;
}

// What was copied is read where it lies now: that is what others will read.
void WorkOrders::HashSlice(Order& order) {
  const auto part_index = static_cast<uint32_t>(order.checksums.size());
  if (order.checksum == nullptr) {
    order.checksum = std::make_unique<ChecksumStream>(
        ChecksumSeed(order.attachment->secret(), {.space = order.told.space,
                                                  .key = order.told.key,
                                                  .commit_id = order.told.commit_id,
                                                  .part_index = part_index}));
  }
  const uint64_t part_bytes = order.part_bytes[part_index];
  const uint64_t slice_bytes = std::min(part_bytes - order.hashed_bytes, kOrderSliceBytes);
  order.checksum->Append({FirstByte(*order.attachment, order.told.device) +
                              order.part_offset_bytes + order.hashed_bytes,
                          slice_bytes});
  order.hashed_bytes += slice_bytes;
  if (order.hashed_bytes < part_bytes) return;
  order.checksums.push_back(order.checksum->Finish());
  order.checksum.reset();
  order.part_offset_bytes += RoundUp(part_bytes, kArenaPageBytes);
  order.hashed_bytes = 0;
}

void WorkOrders::Answer(Order& order, Status status) {
  if (order.connection != core_.connection()) return;
  if (!status.ok()) order.checksums.clear();
  const protocol::OrderDoneRequest done{
      .order_id = order.told.order_id,
      .generation = order.told.generation,
      .checksum_count = static_cast<uint32_t>(order.checksums.size()),
      .status = static_cast<uint8_t>(status.code())};
  core_.SendUnawaited(order.connection, protocol::kVerbOrderDone,
                      {BytesOf(done), std::as_bytes(std::span(order.checksums))});
}

void WorkOrders::LetGo(Order& order) {
  for (const uint32_t segment : order.segments) {
    if (!order.attachment->ReleaseSegment(segment)) continue;
    const protocol::UnmappedRequest unmapped{.segment = segment};
    core_.SendUnawaited(order.connection, protocol::Verb::kUnmapped, {BytesOf(unmapped)});
  }
  order.segments.clear();
}

void WorkOrders::Drop() {
  if (current_.has_value()) LetGo(*current_);
  current_.reset();
  std::deque<Order> dropped;
  LockGuard guard(lock_);
  dropped.swap(waiting_);
}

}  // namespace terrace::client
