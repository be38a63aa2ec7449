#include "client/session/work_orders.h"

#include <algorithm>
#include <new>
#include <utility>

namespace terrace::client {
namespace {

static_assert(kOrderSliceBytes % kChecksumLeafBytes == 0);  // hashed where they lie

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
  order.checksums.reserve(order.part_bytes.size());
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

uint64_t WorkOrders::Step() {
  if (!current_.has_value()) {
    current_ = Next();
    if (!current_.has_value()) return kNever;
    // One that came while its connection was being taken down holds that one's memory.
    if (current_->connection != connection_.number()) return End(Status());
    // It waited behind others.
    if (MonotonicUs() >= current_->deadline_us) {
      return End(Status(StatusCode::kBusy, "the order's deadline passed"));
    }
    const Status begun = Begin(*current_);
    if (!begun.ok()) return End(begun);
    CopySlice(*current_);
    return 0;
  }
  Order& order = *current_;
  const Status copied = lane_->Poll();
  if (copied.code() == StatusCode::kBusy) return MonotonicUs() + kOrderPollUs;
  if (!copied.ok()) {
    lane_.reset();
    return End(copied);
  }
  const uint64_t slice_offset_bytes = order.copied_bytes;
  order.copied_bytes += order.slice_bytes;
  const std::span<const std::byte> read_back = lane_->read_back();
  const bool is_over = order.copied_bytes == order.told.length_bytes;
  if (order.connection != connection_.number()) return End(Status());
  if (MonotonicUs() >= order.deadline_us) {
    return End(Status(StatusCode::kBusy, "the order's deadline passed"));
  }
  if (!is_over) CopySlice(order);
  if (order.told.kind == protocol::OrderKind::kPromote) {
    HashSlice(order, read_back, slice_offset_bytes);
  }
  // What others were to read in either slot they read after this.
  return is_over ? End(Status()) : 0;
}

Status WorkOrders::Begin(Order& order) {
  const SlotAddress slots[] = {order.told.device, order.told.arena};
  const std::shared_ptr<const Device>& device = order.attachment->slab_device().device;
  const bool is_right_way = device != nullptr && order.told.length_bytes > 0 &&
                            order.told.device.segment >= protocol::kDeviceSegmentFirst &&
                            order.told.arena.segment < protocol::kDeviceSegmentFirst;
  for (const SlotAddress& slot : slots) {
    if (!is_right_way || !IsInside(*order.attachment, slot, order.told.length_bytes)) {
      return Status(StatusCode::kInvalid, "the order names no slots of this session");
    }
  }
  if (lane_ == nullptr) TERRACE_RETURN_IF_ERROR(MakeLane(device));
  return order.attachment->RetainSegments(slots, &order.segments, SegmentUse::kOrder);
}

Status WorkOrders::MakeLane(std::shared_ptr<const Device> device) {
  try {
    Result<std::unique_ptr<OrderLane>> lane = OrderLane::Create(std::move(device));
    if (!lane.ok()) return lane.status();
    lane_ = std::move(lane).value();
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kNoSpace, "no memory for what makes an order's copies");
  }
}

void WorkOrders::CopySlice(Order& order) {
  const Attachment& attachment = *order.attachment;
  order.slice_bytes = std::min(order.told.length_bytes - order.copied_bytes, kOrderSliceBytes);
  OrderSlice slice{.in_device = FirstByte(attachment, order.told.device) + order.copied_bytes,
                   .in_arena = FirstByte(attachment, order.told.arena) + order.copied_bytes,
                   .byte_count = order.slice_bytes};
  const Attachment::SlabDevice& device = attachment.slab_device();
  slice.is_arena_reached = device.name == "host";
  // What is registered stays so while this order retains its segment.
  const std::shared_ptr<SegmentPinner> pinner = pins_.pinner();
  if (pinner != nullptr && &pinner->pins()->device() == device.device.get()) {
    slice.is_arena_reached |=
        pinner->pins()->DeviceAddress(slice.in_arena, slice.byte_count) != nullptr;
  }
  if (order.told.kind == protocol::OrderKind::kPromote) {
    lane_->Promote(slice);
  } else {
    lane_->Demote(slice);
  }
}

// What was copied is hashed as it lies in the device now: that is what others will read.
void WorkOrders::HashSlice(Order& order, std::span<const std::byte> slice, uint64_t offset_bytes) {
  const uint64_t end_bytes = offset_bytes + slice.size();
  while (order.checksums.size() < order.part_bytes.size()) {
    const auto part_index = static_cast<uint32_t>(order.checksums.size());
    if (!checksum_.has_value()) {
      checksum_.emplace(ChecksumSeed(order.attachment->secret(), {.space = order.told.space,
                                                                  .key = order.told.key,
                                                                  .commit_id = order.told.commit_id,
                                                                  .part_index = part_index}));
    }
    const uint64_t part_end_bytes = order.part_offset_bytes + order.part_bytes[part_index];
    const uint64_t from_bytes = std::max(offset_bytes, order.part_offset_bytes);
    const uint64_t to_bytes = std::min(end_bytes, part_end_bytes);
    if (from_bytes < to_bytes) {
      checksum_->Append(slice.subspan(from_bytes - offset_bytes, to_bytes - from_bytes));
    }
    if (part_end_bytes > end_bytes) return;
    order.checksums.push_back(checksum_->Finish());
    checksum_.reset();
    order.part_offset_bytes += RoundUp(order.part_bytes[part_index], kArenaPageBytes);
  }
}

// Of the present order, of which nothing is under way.
uint64_t WorkOrders::End(Status status) {
  Answer(*current_, status);
  LetGo(*current_);
  current_.reset();
  checksum_.reset();
  return 0;
}

void WorkOrders::Answer(Order& order, Status status) {
  if (order.connection != connection_.number()) return;
  if (!status.ok()) order.checksums.clear();
  const protocol::OrderDoneRequest done{
      .order_id = order.told.order_id,
      .generation = order.told.generation,
      .checksum_count = static_cast<uint32_t>(order.checksums.size()),
      .status = static_cast<uint8_t>(status.code())};
  connection_.SendUnawaited(order.connection, protocol::kVerbOrderDone,
                            {BytesOf(done), std::as_bytes(std::span(order.checksums))});
}

void WorkOrders::LetGo(Order& order) {
  for (const uint32_t segment : order.segments) {
    if (order.attachment->ReleaseSegment(segment)) {
      connection_.SendUnmapped(order.connection, segment);
    }
  }
  order.segments.clear();
}

// Takes no memory, which another deque would: the Client's end runs through here.
void WorkOrders::Drop() {
  while (Next().has_value()) {
  }
}

void WorkOrders::Close() {
  Drop();
  lane_.reset();
  if (current_.has_value()) End(Status(StatusCode::kGone, "the Client ends"));
}

}  // namespace terrace::client
