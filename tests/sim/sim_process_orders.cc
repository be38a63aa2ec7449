// A process that makes the daemon's copies to and from a device.
#include <cstring>

#include "sim/sim_process.h"

namespace terrace::sim {

// Not with the first frames: the answers to those must be on their way.
void SimProcess::AttachDevice() {
  const uint64_t request_id = next_request_id_++;
  FrameWriter frame(protocol::kVerbDeviceAttach, request_id);
  protocol::DeviceAttachRequest request;
  std::memcpy(request.device, kSimDevice, sizeof(kSimDevice));
  frame.Put(request);
  Send(frame, request_id, {.verb = protocol::kVerbDeviceAttach});
}

void SimProcess::HandleOrder(BodyReader& body) {
  Order order{.told = body.Get<protocol::WorkOrder>()};
  order.part_bytes = body.GetAll<uint64_t>(order.told.part_count);
  if (!body.ok() || !is_attached_) options_.host->Fail("a work order that cannot be one");
  orders_.push_back(std::move(order));
}

// Both slots are this process's to touch until it answers, however late that is.
void SimProcess::CopyOrder(Order& order) {
  std::byte* const device = options_.host->SlotMemory(options_.domain_index, order.told.device);
  std::byte* const arena = options_.host->SlotMemory(options_.domain_index, order.told.arena);
  const bool is_promotion = order.told.kind == protocol::OrderKind::kPromote;
  std::memcpy(is_promotion ? device : arena, is_promotion ? arena : device,
              order.told.length_bytes);
  order.is_copied = true;
}

void SimProcess::ActOnOrder() {
  const size_t index = Pick(orders_.size());
  Order& order = orders_[index];
  if (order.is_forgotten) return;
  if (!order.is_copied) {
    if (Happens(Kind::kWrongCopies, 60'000)) {  // all but for a bit
      CopyOrder(order);
      const bool is_promotion = order.told.kind == protocol::OrderKind::kPromote;
      std::byte* const to = options_.host->SlotMemory(
          options_.domain_index, is_promotion ? order.told.device : order.told.arena);
      to[Pick(order.part_bytes.empty() ? kArenaPageBytes : order.part_bytes[0])] ^= std::byte{0x40};
      return;
    }
    if (Happens(Kind::kWrongOrders, 40'000)) return AnswerOrder(order, Answer::kWrongGeneration);
    if (Happens(Kind::kForgottenOrders, 20'000)) {
      order.is_forgotten = true;
      return;
    }
    if (Happens(Kind::kLateOrders, 40'000)) return;
    if (!Happens(Kind::kRefusedOrders, 40'000)) return CopyOrder(order);
  }
  Answer answer = order.is_copied ? Answer::kHonest : Answer::kRefusal;
  if (order.is_copied && Happens(Kind::kDoubleAnswers, 50'000)) answer = Answer::kAgain;
  const bool has_sums = order.is_copied && !order.part_bytes.empty();
  if (has_sums && Happens(Kind::kWrongSums, 50'000)) answer = Answer::kWrongSums;
  AnswerOrder(order, answer);
  orders_.erase(orders_.begin() + static_cast<long>(index));
}

void SimProcess::AnswerOrder(const Order& order, Answer answer) {
  std::vector<Checksum> sums;
  if (order.told.kind == protocol::OrderKind::kPromote && order.is_copied) {
    const std::byte* part = options_.host->SlotMemory(options_.domain_index, order.told.device);
    for (uint32_t p = 0; p < order.part_bytes.size(); ++p) {
      const uint64_t seed =
          ChecksumSeed(options_.host->Secret(options_.domain_index),
                       {order.told.space, order.told.key, order.told.commit_id, p});
      sums.push_back(ChecksumPart({part, order.part_bytes[p]}, seed));
      part += RoundUp(order.part_bytes[p], kArenaPageBytes);
    }
    if (answer == Answer::kWrongSums) sums[Pick(sums.size())].low ^= 1;
  }
  protocol::OrderDoneRequest done{.order_id = order.told.order_id,
                                  .generation = order.told.generation,
                                  .checksum_count = static_cast<uint32_t>(sums.size())};
  if (answer == Answer::kWrongGeneration) ++done.generation;
  if (answer == Answer::kRefusal) done.status = static_cast<uint8_t>(StatusCode::kNoSpace);
  for (uint32_t i = 0; i < (answer == Answer::kAgain ? 2 : 1); ++i) {
    const uint64_t request_id = next_request_id_++;
    FrameWriter frame(protocol::kVerbOrderDone, request_id);
    frame.Put(done).PutAll(sums);
    Pending pending{.verb = protocol::kVerbOrderDone};
    if (i > 0 || answer == Answer::kWrongGeneration) pending.must_fail = {true};
    Send(frame, request_id, std::move(pending));
  }
}

}  // namespace terrace::sim
