// The C ABI between Terrace and what makes its copies on a device. A backend is one table of
// functions: `host` (linked in: an engine that infers on the CPU), `cuda` (a shared object of its
// own) and, in tests, `sim`. Everything is in streams, as on a GPU: calls that take a stream only
// queue, what one stream holds runs in order, and only events order two streams.
//
// No call throws, aborts, or lets a fault of one stream out of it: a failed copy makes every later
// event of its stream fail. docs/DEVICE.md says who owns what.
//
// THREADING: every function may be called from any thread; one stream's calls come from one thread
// at a time. INVARIANT: structs only grow at their end; struct_bytes says how much the caller
// knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace terrace {

inline constexpr uint32_t kDeviceAbiVersion = 1;
// What a plugin exports: `const DeviceOps* terrace_device_plugin(uint32_t abi_version)`, nullptr
// for a version it does not speak.
inline constexpr char kDevicePluginSymbol[] = "terrace_device_plugin";

inline constexpr uint32_t kDeviceNameBytes = 64;
inline constexpr uint32_t kDeviceUuidBytes = 16;
inline constexpr uint32_t kPagedAxesMax = 4;
// Pages of one launch travel by value in the kernel's parameters, of which there are 4 KiB.
inline constexpr uint32_t kPagedPagesMax = 224;
inline constexpr uint32_t kBatchPiecesMax = 4096;

// Opaque; each backend defines its own.
struct DeviceHandle;
struct StreamHandle;
struct EventHandle;

struct CodecOps;  // cuda/kernels/codec_device.h

// terrace::Status in C. `detail` is the backend's own error number; `what` outlives the process.
struct DeviceStatus {
  int32_t code = 0;  // a StatusCode
  int32_t detail = 0;
  const char* what = "";
};

enum class DeviceCapability : uint32_t {
  kSlabs = 1,             // device memory that processes share by file descriptor
  kKernelsReachHost = 2,  // copy_paged takes slots in registered host memory
  kBulkCopies = 4,        // copy_paged may use bulk copies through shared memory (sm_90)
  kStorageToDevice = 8,   // storage reads straight into device memory
};

struct DeviceTraits {
  uint32_t struct_bytes = sizeof(DeviceTraits);
  uint32_t capabilities = 0;  // of DeviceCapability
  uint8_t uuid[kDeviceUuidBytes] = {};
  char name[kDeviceNameBytes] = {};
  uint64_t memory_bytes = 0;
  int32_t numa_node = -1;  // of the host memory nearest to it; -1: unknown
  uint32_t compute_units = 0;
};

struct DeviceOpenOptions {
  uint32_t struct_bytes = sizeof(DeviceOpenOptions);
  uint32_t device_index = 0;  // as count_devices counts
  uint32_t worker_count = 1;  // threads that copy; `host` only
  uint32_t reserved = 0;
};

enum class DeviceMemory : uint32_t {
  kDevice = 0,  // where engines keep pages; kernels only
  kPinned = 1,  // host memory that both sides reach
};

enum class StreamPriority : uint32_t { kStore = 0, kLoad = 1 };  // stores give way, loads do not

// Why one stream waits for an event of another. Backends only report it; `sim` can leave one kind
// of wait out, to show that tests notice.
enum class StreamEdge : uint32_t {
  kKvWritten = 0,        // a store's copies, for the kernels that wrote the pages
  kPageReuse = 1,        // the engine, before it writes to stored pages again, for their copies
  kDestinationFree = 2,  // a load's copies, for kernels that still read the pages it fills
  kLayerReady = 3,       // the engine, before it reads a layer, for that layer's copies
  kStaging = 4,          // between the kernels and the copies that share a staging ring
};
inline constexpr uint32_t kStreamEdgeCount = 5;

enum class CopyDirection : uint32_t {
  kToHost = 0,
  kToDevice = 1,
  kWithinDevice = 2,
  kWithinHost = 3,  // by a CPU, registered memory or not, when the stream comes to it
};

struct CopyPiece {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t byte_count = 0;
};

// One loop of a nest, outermost first: `count` steps, so far apart in a page and in a slot.
struct PagedAxis {
  uint64_t count = 0;
  uint64_t page_stride_bytes = 0;
  uint64_t slot_stride_bytes = 0;
};

// One tensor that holds a part of every page: a layer, or one plane of a layer.
struct PagedRow {
  uint64_t page0_address = 0;      // of the tensor's page 0
  uint64_t slot_offset_bytes = 0;  // of its part of a page in the page's slot
};

struct PagedPage {
  uint64_t slot_address = 0;  // of the byte at slot_origin_bytes of the page's slot
  uint64_t page_index = 0;
};

enum class PagedDirection : uint32_t {
  kGather = 0,
  kScatter = 1
};  // pages to slots; slots to pages
enum class PagedPath : uint32_t { kKernel = 0, kBulk = 1 };

// Copies rows × pages × nest × run_bytes between pages and slots.
struct PagedLaunch {
  uint32_t struct_bytes = sizeof(PagedLaunch);
  PagedDirection direction = PagedDirection::kGather;
  PagedPath path = PagedPath::kKernel;
  uint32_t axis_count = 0;
  PagedAxis axes[kPagedAxesMax];
  uint64_t run_bytes = 0;
  uint64_t page_stride_bytes = 0;
  const PagedRow* rows = nullptr;    // memory that kernels read, unchanged until the copy is done
  uint64_t rows_alignment_bits = 0;  // all addresses and offsets of `rows`, or-ed
  uint32_t row_first = 0;
  uint32_t row_count = 0;
  const PagedPage* pages = nullptr;  // copied by the call
  uint32_t page_count = 0;           // 1..kPagedPagesMax
  uint32_t thread_blocks_max = 0;    // how much of the device it may take, 1 or more
  uint64_t slot_origin_bytes = 0;
};

enum class SlabAccess : uint32_t { kRead = 0, kReadWrite = 1 };

struct DeviceOps {
  uint32_t struct_bytes;
  uint32_t abi_version;
  const char* backend;

  // kUnsupported, with the reason, where the backend cannot work at all (no driver).
  DeviceStatus (*count_devices)(uint32_t* device_count);
  DeviceStatus (*open_device)(const DeviceOpenOptions* options, DeviceHandle** device);
  // REQUIRES: its streams, events and memory are gone.
  void (*close_device)(DeviceHandle* device);
  DeviceStatus (*describe_device)(DeviceHandle* device, DeviceTraits* traits);

  DeviceStatus (*allocate)(DeviceHandle* device, DeviceMemory kind, uint64_t byte_count,
                           void** address);
  DeviceStatus (*deallocate)(DeviceHandle* device, DeviceMemory kind, void* address);
  // `device_address` is what kernels must use; it may differ from `address`.
  DeviceStatus (*register_host)(DeviceHandle* device, void* address, uint64_t byte_count,
                                void** device_address);
  DeviceStatus (*unregister_host)(DeviceHandle* device, void* address);

  // Device memory behind a file descriptor, paid for and not mapped anywhere; it lives as long as a
  // descriptor or a mapping of it. Needs no context on the device, as open_device and
  // describe_device need none.
  DeviceStatus (*create_slab)(DeviceHandle* device, uint64_t byte_count, int32_t* fd);
  // Does not take the descriptor.
  DeviceStatus (*map_slab)(DeviceHandle* device, int32_t fd, uint64_t byte_count, SlabAccess access,
                           void** address);
  // REQUIRES: no stream uses it any more.
  DeviceStatus (*unmap_slab)(DeviceHandle* device, void* address, uint64_t byte_count);

  DeviceStatus (*create_stream)(DeviceHandle* device, StreamPriority priority,
                                StreamHandle** stream);
  // The engine's stream, which stays the engine's: `native` is a cudaStream_t. Backends without
  // streams that others know (`host`) answer kUnsupported.
  DeviceStatus (*adopt_stream)(DeviceHandle* device, void* native, StreamHandle** stream);
  void (*destroy_stream)(StreamHandle* stream);  // what is queued still runs

  DeviceStatus (*create_event)(DeviceHandle* device, EventHandle** event);
  void (*destroy_event)(EventHandle* event);
  DeviceStatus (*record_event)(EventHandle* event, StreamHandle* stream);
  DeviceStatus (*wait_event)(StreamHandle* stream, EventHandle* event, StreamEdge edge);
  // kOk: reached; kBusy: not yet; else what went wrong on its stream. An event never recorded is
  // reached.
  DeviceStatus (*query_event)(EventHandle* event);
  DeviceStatus (*await_event)(EventHandle* event);  // blocks until it is reached

  // REQUIRES: 1..kBatchPiecesMax pieces. `pieces` is copied by the call.
  DeviceStatus (*copy_batch)(StreamHandle* stream, CopyDirection direction, const CopyPiece* pieces,
                             uint32_t piece_count);
  DeviceStatus (*copy_paged)(StreamHandle* stream, const PagedLaunch* launch);

  const CodecOps* codecs;  // nullptr: the backend has none
};
static_assert(std::is_standard_layout_v<DeviceOps> && std::is_standard_layout_v<PagedLaunch>);

using DevicePluginEntry = const DeviceOps* (*)(uint32_t abi_version);

}  // namespace terrace
