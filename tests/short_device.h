// A device that is short of memory for recordings, as many as a test says. What is queued on a
// stream stays under way until an event that was recorded behind it has been awaited.
//
// LIMITS: one at a time. It copies nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>

#include "cuda/host/stream.h"
#include "terrace/status.h"
#include "terrace/units.h"

namespace terrace {

class ShortDevice {
 public:
  ShortDevice() {
    g_present = this;
    ops_.struct_bytes = sizeof(ops_);
    ops_.abi_version = kDeviceAbiVersion;
    ops_.backend = "short";
    ops_.close_device = [](DeviceHandle*) {};
    ops_.allocate = [](DeviceHandle*, DeviceMemory, uint64_t byte_count, void** address) {
      *address = std::aligned_alloc(4096, RoundUp(byte_count, 4096));
      return DeviceStatus{};
    };
    ops_.deallocate = Free;
    ops_.create_stream = [](DeviceHandle*, StreamPriority, StreamHandle** stream) {
      *stream = reinterpret_cast<StreamHandle*>(&g_present->streams_.emplace_back());
      return DeviceStatus{};
    };
    ops_.destroy_stream = [](StreamHandle*) {};
    ops_.create_event = [](DeviceHandle*, EventHandle** event) {
      *event = reinterpret_cast<EventHandle*>(&g_present->events_.emplace_back());
      return DeviceStatus{};
    };
    ops_.destroy_event = [](EventHandle*) {};
    ops_.record_event = Record;
    ops_.wait_event = [](StreamHandle*, EventHandle*, StreamEdge) { return DeviceStatus{}; };
    ops_.query_event = [](EventHandle* event) {
      const ShortStream* const stream = Of(event).behind;
      const bool is_busy = stream != nullptr && stream->queued_count > 0;
      return is_busy ? DeviceStatus{static_cast<int32_t>(StatusCode::kBusy), 0, ""}
                     : DeviceStatus{};
    };
    ops_.await_event = [](EventHandle* event) {
      if (Of(event).behind != nullptr) Of(event).behind->queued_count = 0;
      return DeviceStatus{};
    };
    ops_.copy_batch = [](StreamHandle* stream, CopyDirection, const CopyPiece*, uint32_t) {
      ++Of(stream).queued_count;
      return DeviceStatus{};
    };
    ops_.copy_paged = [](StreamHandle* stream, const PagedLaunch*) {
      ++Of(stream).queued_count;
      return DeviceStatus{};
    };
    device_ = std::make_shared<const Device>(ops_, reinterpret_cast<DeviceHandle*>(this));
  }
  ShortDevice(const ShortDevice&) = delete;
  ShortDevice& operator=(const ShortDevice&) = delete;

  const std::shared_ptr<const Device>& device() const { return device_; }
  // The next `count` recordings find no memory.
  void RefuseRecordings(int count) { refusals_left_ = count; }
  // Copies that nobody has seen the end of.
  int under_way_count() const {
    int count = 0;
    for (const ShortStream& stream : streams_) count += stream.queued_count;
    return count;
  }
  // Memory that was freed while there were any.
  int freed_under_way_count() const { return freed_under_way_count_; }

 private:
  struct ShortStream {
    int queued_count = 0;
  };
  struct ShortEvent {
    ShortStream* behind = nullptr;
  };

  static ShortStream& Of(StreamHandle* stream) { return *reinterpret_cast<ShortStream*>(stream); }
  static ShortEvent& Of(EventHandle* event) { return *reinterpret_cast<ShortEvent*>(event); }
  static DeviceStatus Record(EventHandle* event, StreamHandle* stream) {
    if (g_present->refusals_left_ > 0) {
      --g_present->refusals_left_;
      return {static_cast<int32_t>(StatusCode::kNoSpace), 2, "out of memory"};
    }
    Of(event).behind = &Of(stream);
    return {};
  }
  static DeviceStatus Free(DeviceHandle*, DeviceMemory, void* address) {
    if (g_present->under_way_count() > 0) ++g_present->freed_under_way_count_;
    std::free(address);
    return {};
  }

  static inline ShortDevice* g_present = nullptr;
  DeviceOps ops_{};
  std::deque<ShortStream> streams_;
  std::deque<ShortEvent> events_;
  int refusals_left_ = 0;
  int freed_under_way_count_ = 0;
  std::shared_ptr<const Device> device_;
};

}  // namespace terrace
