#include "sim/sim_device.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "cuda/abi/device_status.h"
#include "cuda/host/host_memory.h"
#include "cuda/host/paged_host.h"
#include "cuda/kernels/codec_host.h"

namespace terrace {

SimDevice::SimDevice(const SimDeviceOptions& options) : options_(options), random_(options.seed) {}

bool SimDevice::Step() {
  const size_t ready_count = queues_.ready().size();
  const size_t choice_count = ready_count + running_.size();
  if (choice_count == 0) return false;
  size_t choice = Random(choice_count);
  while (LetsOthersPass(
      choice < ready_count ? queues_.ready()[choice] : running_[choice - ready_count].stream,
      choice_count)) {
    choice = Random(choice_count);
  }
  if (choice < ready_count) {
    StreamQueues::Stream* stream = queues_.ready()[choice];
    const StreamWork& work = queues_.Begin(stream);
    Running begun{stream, &work, std::vector<uint32_t>(work.shard_count), Status::Ok()};
    std::iota(begun.shards.begin(), begun.shards.end(), 0);
    running_.push_back(std::move(begun));
  }
  const size_t index = choice < ready_count ? running_.size() - 1 : choice - ready_count;
  Running& running = running_[index];
  std::swap(running.shards[Random(running.shards.size())], running.shards.back());
  const uint32_t shard = running.shards.back();
  running.shards.pop_back();
  const Status status = running.work->run(shard);
  if (running.status.ok()) running.status = status;
  ++step_count_;
  if (running.shards.empty()) {
    const Running finished = std::move(running);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    queues_.Finish(finished.stream, finished.status);
  }
  return true;
}

bool SimDevice::LetsOthersPass(const StreamQueues::Stream* stream, size_t choice_count) {
  return options_.store_slowness > 1 && choice_count > 1 && store_streams_.contains(stream) &&
         Random(options_.store_slowness) != 0;
}

void SimDevice::Settle() {
  while (Step()) {
  }
}

void SimDevice::Drift() {
  if (options_.steps_per_call_max == 0) return;
  for (uint64_t steps = Random(options_.steps_per_call_max + uint64_t{1}); steps > 0; --steps) {
    if (!Step()) return;
  }
}

bool SimDevice::FailsNow() {
  if (options_.copy_failures_per_million == 0) return false;
  const bool fails = Random(1000 * 1000) < options_.copy_failures_per_million;
  failure_count_ += fails ? 1 : 0;
  return fails;
}

bool SimDevice::FailsToRegister() {
  if (++registrations_tried_ == options_.failing_registration) return true;
  return options_.registration_failures_per_million > 0 &&
         Random(1000 * 1000) < options_.registration_failures_per_million;
}

bool SimDevice::IsWithin(const Ranges& ranges, const void* address, uint64_t byte_count) const {
  const auto* first = static_cast<const std::byte*>(address);
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin()) return false;
  --range;
  return first + byte_count <= static_cast<const std::byte*>(range->first) + range->second;
}

void SimDevice::CheckCopyReach(const void* host, uint64_t byte_count) {
  if (!options_.needs_registration) return;
  const bool is_reached =
      IsWithin(allocations_, host, byte_count) || IsWithin(registrations_, host, byte_count);
  stray_count_ += is_reached ? 0 : 1;
}

void SimDevice::CheckKernelReach(const void* address, uint64_t byte_count) {
  if (IsWithin(slabs_, address, byte_count)) return;
  CheckCopyReach(address, byte_count);
}

// The calls of the ABI. Each lets the device get on a little, before the host goes on.
struct SimCalls {
  struct SimEvent {
    SimDevice* device;
    QueuedEvent* event;
  };
  struct SimStream {
    SimDevice* device;
    StreamQueues::Stream* stream;
    bool is_adopted = false;
  };

  static SimDevice* Of(DeviceHandle* handle) { return reinterpret_cast<SimDevice*>(handle); }
  static SimStream* Of(StreamHandle* handle) { return reinterpret_cast<SimStream*>(handle); }
  static SimEvent* Of(EventHandle* handle) { return reinterpret_cast<SimEvent*>(handle); }

  static DeviceStatus CountDevices(uint32_t* device_count) {
    *device_count = 1;
    return {};
  }
  static DeviceStatus OpenDevice(const DeviceOpenOptions*, DeviceHandle**) {
    return ToDeviceStatus(Status(StatusCode::kUnsupported, "tests make their simulated devices"));
  }
  static void CloseDevice(DeviceHandle*) {}
  static DeviceStatus DescribeDevice(DeviceHandle* handle, DeviceTraits* traits) {
    const auto& uuid = Of(handle)->options_.uuid;
    std::copy(uuid.begin(), uuid.end(), traits->uuid);
    traits->capabilities = static_cast<uint32_t>(DeviceCapability::kSlabs) |
                           static_cast<uint32_t>(DeviceCapability::kKernelsReachHost);
    std::strncpy(traits->name, "simulated", kDeviceNameBytes - 1);
    traits->compute_units = 1;
    return {};
  }

  static DeviceStatus Allocate(DeviceHandle* handle, DeviceMemory, uint64_t byte_count,
                               void** address) {
    return Guarded([&] {
      TERRACE_RETURN_IF_ERROR(AllocateHostMemory(byte_count, address));
      std::memset(*address, std::to_integer<int>(kSimPoison), byte_count);
      Of(handle)->allocations_[*address] = byte_count;
      return Status::Ok();
    });
  }
  static DeviceStatus Deallocate(DeviceHandle* handle, DeviceMemory, void* address) {
    auto& allocations = Of(handle)->allocations_;
    const auto found = allocations.find(address);
    if (found == allocations.end()) {
      return ToDeviceStatus(Status(StatusCode::kInvalid, "no memory of this device"));
    }
    std::memset(address, std::to_integer<int>(kSimPoison), found->second);
    allocations.erase(found);
    FreeHostMemory(address);
    return {};
  }
  // The device gets on before and behind it: registering takes long.
  static DeviceStatus RegisterHost(DeviceHandle* handle, void* address, uint64_t byte_count,
                                   void** device_address) {
    return Guarded([&] {
      SimDevice* device = Of(handle);
      device->Drift();
      if (device->FailsToRegister()) {
        return Status(StatusCode::kNoSpace, "a simulated registration failed");
      }
      if (!device->registrations_.emplace(address, byte_count).second) {
        return Status(StatusCode::kInvalid, "this memory is registered already");
      }
      *device_address = address;
      device->Drift();
      return Status::Ok();
    });
  }
  static DeviceStatus UnregisterHost(DeviceHandle* handle, void* address) {
    SimDevice* device = Of(handle);
    if (device->registrations_.erase(address) == 0) {
      return ToDeviceStatus(Status(StatusCode::kInvalid, "this memory is not registered"));
    }
    device->Drift();
    return {};
  }
  static DeviceStatus CreateSlab(DeviceHandle*, uint64_t byte_count, int32_t* fd) {
    return ToDeviceStatus(CreateHostSlab(byte_count, fd));
  }
  static DeviceStatus MapSlab(DeviceHandle* handle, int32_t fd, uint64_t byte_count,
                              SlabAccess access, void** address) {
    return Guarded([&] {
      TERRACE_RETURN_IF_ERROR(MapHostSlab(fd, byte_count, access, address));
      Of(handle)->slabs_[*address] = byte_count;
      return Status::Ok();
    });
  }
  static DeviceStatus UnmapSlab(DeviceHandle* handle, void* address, uint64_t byte_count) {
    Of(handle)->slabs_.erase(address);
    return ToDeviceStatus(UnmapHostSlab(address, byte_count));
  }

  static DeviceStatus CreateStream(DeviceHandle* handle, StreamPriority priority,
                                   StreamHandle** stream) {
    return Guarded([&] {
      SimDevice* device = Of(handle);
      StreamQueues::Stream* const queue = device->queues_.CreateStream(priority);
      if (priority == StreamPriority::kStore) device->store_streams_.insert(queue);
      *stream = reinterpret_cast<StreamHandle*>(new SimStream{device, queue});
      return Status::Ok();
    });
  }
  // The native stream of a simulated engine is a StreamHandle of this device.
  static DeviceStatus AdoptStream(DeviceHandle*, void* native, StreamHandle** stream) {
    return Guarded([&] {
      SimStream adopted = *Of(static_cast<StreamHandle*>(native));
      adopted.is_adopted = true;
      *stream = reinterpret_cast<StreamHandle*>(new SimStream(adopted));
      return Status::Ok();
    });
  }
  static void DestroyStream(StreamHandle* handle) {
    const std::unique_ptr<SimStream> stream(Of(handle));
    if (stream->is_adopted) return;
    stream->device->store_streams_.erase(stream->stream);
    stream->device->queues_.DestroyStream(stream->stream);
  }

  static DeviceStatus CreateEvent(DeviceHandle* handle, EventHandle** event) {
    return Guarded([&] {
      SimDevice* device = Of(handle);
      *event = reinterpret_cast<EventHandle*>(new SimEvent{device, device->queues_.CreateEvent()});
      return Status::Ok();
    });
  }
  static void DestroyEvent(EventHandle* handle) {
    const std::unique_ptr<SimEvent> event(Of(handle));
    event->device->queues_.DestroyEvent(event->event);
  }
  static DeviceStatus RecordEvent(EventHandle* event, StreamHandle* stream) {
    return Guarded([&] {
      Of(stream)->device->queues_.Record(Of(event)->event, Of(stream)->stream);
      Of(stream)->device->Drift();
      return Status::Ok();
    });
  }
  static DeviceStatus WaitEvent(StreamHandle* stream, EventHandle* event, StreamEdge edge) {
    return Guarded([&] {
      SimDevice* device = Of(stream)->device;
      if (device->options_.dropped_edge != edge) {
        device->queues_.Wait(Of(stream)->stream, Of(event)->event);
      }
      device->Drift();
      return Status::Ok();
    });
  }
  static DeviceStatus QueryEvent(EventHandle* event) {
    return Guarded([&] {
      Of(event)->device->Drift();
      const QueuedEvent& queued = *Of(event)->event;
      return queued.is_reached() ? queued.failure() : Status(StatusCode::kBusy, "not reached yet");
    });
  }
  static DeviceStatus AwaitEvent(EventHandle* event) {
    return Guarded([&] {
      const QueuedEvent& queued = *Of(event)->event;
      while (!queued.is_reached()) {
        if (!Of(event)->device->Step()) {
          return Status(StatusCode::kIo, "the simulated device waits for what nobody records");
        }
      }
      return queued.failure();
    });
  }

  static DeviceStatus CopyBatch(StreamHandle* handle, CopyDirection direction,
                                const CopyPiece* pieces, uint32_t piece_count) {
    return Guarded([&] {
      if (piece_count == 0 || piece_count > kBatchPiecesMax) {
        return Status(StatusCode::kInvalid, "piece_count: a batch is of 1..4096 pieces");
      }
      SimDevice* device = Of(handle)->device;
      device->queues_.Push(
          Of(handle)->stream,
          {[device, direction,
            copied = std::vector<CopyPiece>(pieces, pieces + piece_count)](uint32_t shard) {
             if (device->FailsNow()) return Status(StatusCode::kIo, "a simulated copy failed");
             const CopyPiece& piece = copied[shard];
             if (direction == CopyDirection::kToHost) {
               device->CheckCopyReach(piece.to, piece.byte_count);
             }
             if (direction == CopyDirection::kToDevice) {
               device->CheckCopyReach(piece.from, piece.byte_count);
             }
             std::memcpy(piece.to, piece.from, piece.byte_count);
             return Status::Ok();
           },
           piece_count});
      device->Drift();
      return Status::Ok();
    });
  }
  static DeviceStatus CopyPaged(StreamHandle* handle, const PagedLaunch* launch) {
    return Guarded([&] {
      TERRACE_RETURN_IF_ERROR(ValidateLaunch(*launch));
      SimDevice* device = Of(handle)->device;
      std::vector<PagedPage> pages(launch->pages, launch->pages + launch->page_count);
      device->queues_.Push(Of(handle)->stream,
                           {[device, copied = *launch, pages](uint32_t shard) mutable {
                              if (device->FailsNow()) {
                                return Status(StatusCode::kIo, "a simulated kernel failed");
                              }
                              for (const PagedPage& page : pages) {
                                device->CheckKernelReach(
                                    reinterpret_cast<const void*>(page.slot_address), 1);
                              }
                              copied.pages = pages.data();
                              CopyParts(copied, shard, 1);
                              return Status::Ok();
                            },
                            PartCount(*launch)});
      device->Drift();
      return Status::Ok();
    });
  }

  // A piece is a shard.
  template <CodecDirection kDirection>
  static DeviceStatus Code(StreamHandle* handle, const CodecLaunch* launch) {
    return Guarded([&] {
      TERRACE_RETURN_IF_ERROR(ValidateLaunch(*launch, kDirection));
      SimDevice* device = Of(handle)->device;
      device->queues_.Push(Of(handle)->stream,
                           {[device, copied = *launch](uint32_t shard) {
                              if (device->FailsNow())
                                return Status(StatusCode::kIo, "a simulated kernel failed");
                              device->CheckKernelReach(
                                  reinterpret_cast<const void*>(copied.pieces[shard].slot_address),
                                  1);
                              CodePieces(copied, kDirection, shard, 1);
                              return Status::Ok();
                            },
                            launch->piece_count});
      device->Drift();
      return Status::Ok();
    });
  }
};

void SimDevice::Launch(StreamHandle* stream, uint32_t shard_count,
                       std::function<void(uint32_t)> shard) {
  queues_.Push(SimCalls::Of(stream)->stream, {[shard = std::move(shard)](uint32_t index) {
                                                shard(index);
                                                return Status::Ok();
                                              },
                                              shard_count});
  Drift();
}

const DeviceOps& SimDeviceOps() {
  using Calls = SimCalls;
  static constexpr CodecOps kCodecOps = {sizeof(CodecOps), 0, Calls::Code<CodecDirection::kEncode>,
                                         Calls::Code<CodecDirection::kDecode>};
  static constexpr DeviceOps kOps = {
      sizeof(DeviceOps),
      kDeviceAbiVersion,
      "sim",
      Calls::CountDevices,
      Calls::OpenDevice,
      Calls::CloseDevice,
      Calls::DescribeDevice,
      Calls::Allocate,
      Calls::Deallocate,
      Calls::RegisterHost,
      Calls::UnregisterHost,
      Calls::CreateSlab,
      Calls::MapSlab,
      Calls::UnmapSlab,
      Calls::CreateStream,
      Calls::AdoptStream,
      Calls::DestroyStream,
      Calls::CreateEvent,
      Calls::DestroyEvent,
      Calls::RecordEvent,
      Calls::WaitEvent,
      Calls::QueryEvent,
      Calls::AwaitEvent,
      Calls::CopyBatch,
      Calls::CopyPaged,
      &kCodecOps,
  };
  return kOps;
}

}  // namespace terrace
