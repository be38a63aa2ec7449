#include "cuda/host/host_device.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/abi/device_status.h"
#include "cuda/host/host_copy.h"
#include "cuda/host/host_memory.h"
#include "cuda/host/paged_host.h"
#include "cuda/host/stream_queues.h"
#include "cuda/kernels/codec_host.h"
#include "src/thread_name.h"
#include "terrace/check.h"

namespace terrace {
namespace {

// What one thread takes at a time: long enough that taking it costs nothing, short enough to share.
constexpr uint64_t kShardBytes = uint64_t{1} << 20;

class HostDevice;

// Handles carry their device: the ABI's calls for streams and events name no other.
struct HostStream {
  HostDevice* device = nullptr;
  StreamQueues::Stream* stream = nullptr;
};

struct HostEvent {
  HostDevice* device = nullptr;
  QueuedEvent* event = nullptr;
};

HostDevice* AsHost(DeviceHandle* handle) { return reinterpret_cast<HostDevice*>(handle); }
HostStream* AsHost(StreamHandle* handle) { return reinterpret_cast<HostStream*>(handle); }
HostEvent* AsHost(EventHandle* handle) { return reinterpret_cast<HostEvent*>(handle); }

class HostDevice {
 public:
  explicit HostDevice(uint32_t worker_count) : running_(worker_count) {
    try {
      for (uint32_t i = 0; i < worker_count; ++i) {
        workers_.push_back(StartThread("terrace-device", [this] { Work(); }));
      }
    } catch (...) {
      Stop();
      throw;
    }
  }
  ~HostDevice() { Stop(); }
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  uint32_t worker_count() const { return static_cast<uint32_t>(workers_.size()); }

  // Changes the queues and wakes whom that may concern.
  template <typename Change>
  auto Queue(Change&& change) {
    const std::lock_guard lock(mutex_);
    const Wake wake(this);
    return change(queues_);
  }

  Status Query(const QueuedEvent& event) {
    const std::lock_guard lock(mutex_);
    return event.is_reached() ? event.failure() : Status(StatusCode::kBusy, "not reached yet");
  }

  Status Await(const QueuedEvent& event) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return event.is_reached(); });
    return event.failure();
  }

 private:
  struct Wake {
    explicit Wake(HostDevice* device) : device(device) {}
    ~Wake() { device->changed_.notify_all(); }
    HostDevice* device;
  };

  // An operation that threads are at; none without a stream.
  struct Running {
    StreamQueues::Stream* stream = nullptr;
    const StreamWork* work = nullptr;
    uint32_t next_shard = 0;
    uint32_t done_count = 0;
    Status status;
  };

  // The operation to take a shard of; nullptr where there is none.
  Running* Choose() {
    Running* unused = nullptr;
    for (Running& running : running_) {
      if (running.stream == nullptr) {
        unused = &running;
      } else if (running.next_shard < running.work->shard_count) {
        return &running;
      }
    }
    if (queues_.ready().empty()) return nullptr;
    // Each of the others has a thread, and this one is at none.
    TERRACE_CHECK(unused != nullptr, "as many operations run as there are threads");
    StreamQueues::Stream* stream = queues_.ready().front();
    *unused = {.stream = stream, .work = &queues_.Begin(stream)};
    return unused;
  }

  static Status RunShard(const StreamWork& work, uint32_t shard_index) {
    try {
      return work.run(shard_index);
    } catch (const std::bad_alloc&) {
      return Status(StatusCode::kNoSpace, "no memory for a copy of the host's");
    }
  }

  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      Running* running = Choose();
      if (running == nullptr) {
        if (is_stopping_) return;  // all that was queued and could run has run
        changed_.wait(lock);
        continue;
      }
      const uint32_t shard_index = running->next_shard++;
      lock.unlock();
      const Status status = RunShard(*running->work, shard_index);
      lock.lock();
      if (running->status.ok()) running->status = status;
      if (++running->done_count < running->work->shard_count) continue;
      queues_.Finish(running->stream, running->status);
      *running = {};
      changed_.notify_all();
    }
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  StreamQueues queues_;
  std::vector<Running> running_;  // as many as there are threads: none takes memory for one
  bool is_stopping_ = false;
  std::vector<std::thread> workers_;
};

uint32_t ShardCount(uint64_t byte_count) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, (byte_count + kShardBytes - 1) / kShardBytes));
}

// Share `index` of `count` items, where there are `share_count` shares.
std::pair<uint32_t, uint32_t> Share(uint32_t count, uint32_t share_count, uint32_t index) {
  const auto first = static_cast<uint32_t>(uint64_t{count} * index / share_count);
  const auto end = static_cast<uint32_t>(uint64_t{count} * (index + 1) / share_count);
  return {first, end - first};
}

StreamWork BatchWork(const CopyPiece* first, uint32_t piece_count) {
  uint64_t byte_count = 0;
  for (uint32_t i = 0; i < piece_count; ++i) byte_count += first[i].byte_count;
  // One piece is the staged path's whole slot: it is cut by bytes, a batch by pieces.
  if (piece_count == 1) {
    const uint32_t shard_count = ShardCount(byte_count);
    return {[piece = first[0], shard_count](uint32_t shard) {
              const uint64_t from = piece.byte_count * shard / shard_count;
              const uint64_t end = piece.byte_count * (shard + 1) / shard_count;
              CopyBytes({static_cast<std::byte*>(piece.to) + from, end - from},
                        {static_cast<const std::byte*>(piece.from) + from, end - from});
              return Status::Ok();
            },
            shard_count};
  }
  const uint32_t shard_count = std::min(piece_count, ShardCount(byte_count));
  return {
      [pieces = std::vector<CopyPiece>(first, first + piece_count), shard_count](uint32_t shard) {
        const auto [first_piece, count] =
            Share(static_cast<uint32_t>(pieces.size()), shard_count, shard);
        for (uint32_t i = first_piece; i < first_piece + count; ++i) {
          const CopyPiece& next = pieces[std::min<size_t>(i + 1, pieces.size() - 1)];
          CopyRun(static_cast<std::byte*>(pieces[i].to),
                  static_cast<const std::byte*>(pieces[i].from), pieces[i].byte_count,
                  static_cast<const std::byte*>(next.from));
        }
        FenceRuns();
        return Status::Ok();
      },
      shard_count};
}

StreamWork PagedWork(const PagedLaunch& launch) {
  const uint32_t shard_count =
      std::min(PartCount(launch), ShardCount(PartBytes(launch) * PartCount(launch)));
  return {[launch, pages = std::vector<PagedPage>(launch.pages, launch.pages + launch.page_count),
           shard_count](uint32_t shard) mutable {
            PagedLaunch mine = launch;
            mine.pages = pages.data();
            const auto [first, count] = Share(PartCount(mine), shard_count, shard);
            CopyParts(mine, first, count);
            return Status::Ok();
          },
          shard_count};
}

DeviceStatus CountDevices(uint32_t* device_count) {
  *device_count = 1;
  return {};
}

DeviceStatus OpenDevice(const DeviceOpenOptions* options, DeviceHandle** device) {
  return Guarded([&] {
    if (options->device_index != 0) {
      return Status(StatusCode::kNotFound, "the host is one device, of index 0");
    }
    if (options->worker_count == 0 || options->worker_count > kHostWorkersMax) {
      return Status(StatusCode::kInvalid, "worker_count: 1..64 threads");
    }
    try {
      *device = reinterpret_cast<DeviceHandle*>(new HostDevice(options->worker_count));
    } catch (const std::system_error& error) {
      return Status(StatusCode::kIo, "no thread for the host's copies", error.code().value());
    }
    return Status::Ok();
  });
}

void CloseDevice(DeviceHandle* device) { delete AsHost(device); }

DeviceStatus DescribeDevice(DeviceHandle* device, DeviceTraits* traits) {
  traits->capabilities = static_cast<uint32_t>(DeviceCapability::kSlabs) |
                         static_cast<uint32_t>(DeviceCapability::kKernelsReachHost);
  std::strncpy(traits->name, "host memory", kDeviceNameBytes - 1);
  const long page_count = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  traits->memory_bytes = page_count > 0 && page_bytes > 0
                             ? static_cast<uint64_t>(page_count) * static_cast<uint64_t>(page_bytes)
                             : 0;
  traits->compute_units = AsHost(device)->worker_count();
  return {};
}

DeviceStatus Allocate(DeviceHandle*, DeviceMemory, uint64_t byte_count, void** address) {
  return ToDeviceStatus(AllocateHostMemory(byte_count, address));
}

DeviceStatus Deallocate(DeviceHandle*, DeviceMemory, void* address) {
  FreeHostMemory(address);
  return {};
}

DeviceStatus RegisterHost(DeviceHandle*, void* address, uint64_t, void** device_address) {
  *device_address = address;
  return {};
}

DeviceStatus UnregisterHost(DeviceHandle*, void*) { return {}; }

DeviceStatus CreateSlab(DeviceHandle*, uint64_t byte_count, int32_t* fd) {
  return ToDeviceStatus(CreateHostSlab(byte_count, fd));
}

DeviceStatus MapSlab(DeviceHandle*, int32_t fd, uint64_t byte_count, SlabAccess access,
                     void** address) {
  return ToDeviceStatus(MapHostSlab(fd, byte_count, access, address));
}

DeviceStatus UnmapSlab(DeviceHandle*, void* address, uint64_t byte_count) {
  return ToDeviceStatus(UnmapHostSlab(address, byte_count));
}

DeviceStatus CreateStream(DeviceHandle* handle, StreamPriority priority, StreamHandle** stream) {
  return Guarded([&] {
    HostDevice* device = AsHost(handle);
    auto created = std::make_unique<HostStream>(HostStream{device});
    created->stream =
        device->Queue([priority](StreamQueues& queues) { return queues.CreateStream(priority); });
    *stream = reinterpret_cast<StreamHandle*>(created.release());
    return Status::Ok();
  });
}

DeviceStatus AdoptStream(DeviceHandle*, void*, StreamHandle**) {
  return ToDeviceStatus(
      Status(StatusCode::kUnsupported, "an engine on the CPU has no streams to adopt"));
}

void DestroyStream(StreamHandle* handle) {
  HostStream* stream = AsHost(handle);
  stream->device->Queue([stream](StreamQueues& queues) { queues.DestroyStream(stream->stream); });
  delete stream;
}

DeviceStatus CreateEvent(DeviceHandle* handle, EventHandle** event) {
  return Guarded([&] {
    HostDevice* device = AsHost(handle);
    auto created = std::make_unique<HostEvent>(HostEvent{device});
    created->event = device->Queue([](StreamQueues& queues) { return queues.CreateEvent(); });
    *event = reinterpret_cast<EventHandle*>(created.release());
    return Status::Ok();
  });
}

void DestroyEvent(EventHandle* handle) {
  HostEvent* event = AsHost(handle);
  event->device->Queue([event](StreamQueues& queues) { queues.DestroyEvent(event->event); });
  delete event;
}

DeviceStatus RecordEvent(EventHandle* event, StreamHandle* stream) {
  return Guarded([&] {
    AsHost(stream)->device->Queue(
        [&](StreamQueues& queues) { queues.Record(AsHost(event)->event, AsHost(stream)->stream); });
    return Status::Ok();
  });
}

DeviceStatus WaitEvent(StreamHandle* stream, EventHandle* event, StreamEdge /*edge*/) {
  return Guarded([&] {
    AsHost(stream)->device->Queue(
        [&](StreamQueues& queues) { queues.Wait(AsHost(stream)->stream, AsHost(event)->event); });
    return Status::Ok();
  });
}

DeviceStatus QueryEvent(EventHandle* event) {
  return ToDeviceStatus(AsHost(event)->device->Query(*AsHost(event)->event));
}

DeviceStatus AwaitEvent(EventHandle* event) {
  return ToDeviceStatus(AsHost(event)->device->Await(*AsHost(event)->event));
}

DeviceStatus Push(StreamHandle* stream, StreamWork work) {
  AsHost(stream)->device->Queue(
      [&](StreamQueues& queues) { queues.Push(AsHost(stream)->stream, std::move(work)); });
  return {};
}

DeviceStatus CopyBatch(StreamHandle* stream, CopyDirection, const CopyPiece* pieces,
                       uint32_t piece_count) {
  return Guarded([&] {
    if (piece_count == 0 || piece_count > kBatchPiecesMax) {
      return Status(StatusCode::kInvalid, "piece_count: a batch is of 1..4096 pieces");
    }
    return FromDeviceStatus(Push(stream, BatchWork(pieces, piece_count)));
  });
}

DeviceStatus CopyPaged(StreamHandle* stream, const PagedLaunch* launch) {
  return Guarded([&] {
    TERRACE_RETURN_IF_ERROR(ValidateLaunch(*launch));
    return FromDeviceStatus(Push(stream, PagedWork(*launch)));
  });
}

StreamWork CodecWork(const CodecLaunch& launch, CodecDirection direction) {
  const uint32_t shard_count =
      std::min(launch.piece_count, ShardCount(launch.piece_count * RawBytes(launch)));
  return {[launch, direction, shard_count](uint32_t shard) {
            const auto [first, count] = Share(launch.piece_count, shard_count, shard);
            CodePieces(launch, direction, first, count);
            return Status::Ok();
          },
          shard_count};
}

template <CodecDirection kDirection>
DeviceStatus Code(StreamHandle* stream, const CodecLaunch* launch) {
  return Guarded([&] {
    TERRACE_RETURN_IF_ERROR(ValidateLaunch(*launch, kDirection));
    return FromDeviceStatus(Push(stream, CodecWork(*launch, kDirection)));
  });
}

constexpr CodecOps kCodecOps = {sizeof(CodecOps), 0, Code<CodecDirection::kEncode>,
                                Code<CodecDirection::kDecode>};

constexpr DeviceOps kOps = {
    sizeof(DeviceOps), kDeviceAbiVersion, "host",       CountDevices, OpenDevice,     CloseDevice,
    DescribeDevice,    Allocate,          Deallocate,   RegisterHost, UnregisterHost, CreateSlab,
    MapSlab,           UnmapSlab,         CreateStream, AdoptStream,  DestroyStream,  CreateEvent,
    DestroyEvent,      RecordEvent,       WaitEvent,    QueryEvent,   AwaitEvent,     CopyBatch,
    CopyPaged,         &kCodecOps,
};

}  // namespace

const DeviceOps& HostDeviceOps() { return kOps; }

}  // namespace terrace
