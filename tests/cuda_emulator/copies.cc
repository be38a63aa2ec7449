// Copies of the emulated GPUs, and the driver's virtual memory.
#include <cudaTypedefs.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda_emulator/state.h"

using namespace terrace::emulator;  // NOLINT: what follows is CUDA's names

namespace {

constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;

struct Piece {
  void* to;
  const void* from;
  uint64_t byte_count;
  std::shared_ptr<std::vector<std::byte>> early;  // the source, where it has been read already
};

void CopyPiece(const Piece& piece) {
  const void* const from = piece.early != nullptr ? piece.early->data() : piece.from;
  std::memcpy(piece.to, from, piece.byte_count);
}

void ReadEarly(Piece* piece) {
  ReachDeviceMemory(true);
  const auto* first = static_cast<const std::byte*>(piece->from);
  piece->early = std::make_shared<std::vector<std::byte>>(first, first + piece->byte_count);
  ReachDeviceMemory(false);
}

bool IsPageable(const void* address, uint64_t byte_count) {
  return Find(address, byte_count) == nullptr;
}

bool FitsKind(const Region* to, const Region* from, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return IsDevice(to) && !IsDevice(from);
    case cudaMemcpyDeviceToHost:
      return !IsDevice(to) && IsDevice(from);
    case cudaMemcpyDeviceToDevice:
      return IsDevice(to) && IsDevice(from);
    case cudaMemcpyHostToHost:
      return !IsDevice(to) && !IsDevice(from);
    default:
      return true;
  }
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t byte_count, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  State& state = TheState();
  std::unique_lock lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  if (!FitsKind(Find(to, byte_count), Find(from, byte_count), kind)) {
    return Leave(cudaErrorInvalidValue);
  }
  CUstream_st* const stream = StreamOf(handle, device);
  if (stream->device != device) return Leave(cudaErrorInvalidResourceHandle);
  Piece piece{to, from, byte_count, nullptr};
  const bool is_pageable = IsPageable(to, byte_count) || IsPageable(from, byte_count);
  if (is_pageable) ++state.counts.pageable_copies;
  if (IsPageable(from, byte_count)) ReadEarly(&piece);
  Queue(stream, {.is_ready = {}, .run = [piece] { CopyPiece(piece); }});
  if (IsPageable(to, byte_count)) {
    state.changed.wait(lock, [&] { return stream->queue.empty() && !stream->is_running; });
  }
  return cudaSuccess;
}

// --- the driver

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult, const char** what) {
  *what = "an emulated error of the driver";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (device < 0 || device >= kDeviceCount) return CUDA_ERROR_INVALID_DEVICE;
  std::memset(uuid->bytes, 0xE0 + device, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (device < 0 || device >= kDeviceCount) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(TheState().mutex);
  *context = &TheState().contexts[device];
  MakeContext(*context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  if (device < 0 || device >= kDeviceCount) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *is_active = HasContext(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  t_thread.contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (t_thread.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = t_thread.contexts.back();
  t_thread.contexts.pop_back();
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12080
namespace {

// Every piece by itself, in any order; sources that may be read early are, or not.
CUresult CopyBatch(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* byte_counts,
                   size_t piece_count, const CUmemcpyAttributes* attributes,
                   const size_t* attribute_firsts, size_t attribute_count, CUstream handle) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return static_cast<CUresult>(error);  // the numbers are the same
  if (handle == nullptr || piece_count == 0 || attribute_count == 0 || attribute_firsts[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (handle->device != device) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < piece_count; ++i) {
    size_t n = 0;
    while (n + 1 < attribute_count && attribute_firsts[n + 1] <= i) ++n;
    const CUmemcpySrcAccessOrder order = attributes[n].srcAccessOrder;
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Piece piece{reinterpret_cast<void*>(to[i]), reinterpret_cast<const void*>(from[i]),
                byte_counts[i], nullptr};
    if (IsPageable(piece.to, byte_counts[i]) || IsPageable(piece.from, byte_counts[i])) {
      ++state.counts.pageable_copies;
    }
    if (order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) ReadEarly(&piece);
    pieces.push_back(piece);
  }
  ++state.counts.batches;
  std::shuffle(pieces.begin(), pieces.end(), handle->random);
  Queue(handle, {.is_ready = {}, .run = [pieces] {
                   for (const Piece& piece : pieces) CopyPiece(piece);
                 }});
  return CUDA_SUCCESS;
}

}  // namespace

#if CUDA_VERSION >= 13000
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* byte_counts, size_t count,
                            CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                            CUstream stream) {
  return CopyBatch(to, from, byte_counts, count, attributes, firsts, attribute_count, stream);
}
#else
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* byte_counts, size_t count,
                            CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                            size_t* /*failed_index*/, CUstream stream) {
  return CopyBatch(to, from, byte_counts, count, attributes, firsts, attribute_count, stream);
}
#endif
#endif

// --- the driver's virtual memory: a slab is a file in memory

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t byte_count,
                     const CUmemAllocationProp* properties, unsigned long long) {
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->location.id < 0 ||
      properties->location.id >= kDeviceCount || byte_count == 0 ||
      byte_count % kGranularityBytes != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = memfd_create("emulated-slab", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(byte_count)) != 0) {
    if (fd >= 0) close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  *handle = state.next_slab++;
  state.slabs[*handle] = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  const auto found = state.slabs.find(handle);
  if (found == state.slabs.end()) return CUDA_ERROR_INVALID_VALUE;
  close(found->second);
  state.slabs.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* fd, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  const auto found = state.slabs.find(handle);
  if (found == state.slabs.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<int*>(fd) = dup(found->second);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* fd,
                                        CUmemAllocationHandleType type) {
  const int copy = dup(static_cast<int>(reinterpret_cast<intptr_t>(fd)));
  if (copy < 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    if (copy >= 0) close(copy);
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  *handle = state.next_slab++;
  state.slabs[*handle] = copy;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t byte_count, size_t, CUdeviceptr,
                             unsigned long long) {
  if (byte_count == 0 || byte_count % kGranularityBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const mapping =
      mmap(nullptr, byte_count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  *address = reinterpret_cast<CUdeviceptr>(mapping);
  state.regions[*address] = {RegionKind::kReserved, -1, byte_count, byte_count,
                             static_cast<std::byte*>(mapping)};
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t byte_count) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  const auto found = state.regions.find(address);
  if (found == state.regions.end() || found->second.kind != RegionKind::kReserved ||
      found->second.byte_count != byte_count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(found->second.mapping, byte_count);
  state.regions.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t byte_count, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  const Region* const region = Find(reinterpret_cast<void*>(address), byte_count);
  const auto slab = state.slabs.find(handle);
  struct stat file;
  if (region == nullptr || region->kind != RegionKind::kReserved || slab == state.slabs.end() ||
      fstat(slab->second, &file) != 0 || offset + byte_count > static_cast<size_t>(file.st_size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* const mapped = mmap(reinterpret_cast<void*>(address), byte_count, PROT_NONE,
                            MAP_SHARED | MAP_FIXED, slab->second, static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t byte_count) {
  const std::lock_guard lock(TheState().mutex);
  void* const mapped = mmap(reinterpret_cast<void*>(address), byte_count, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return mapped == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t byte_count, const CUmemAccessDesc* rights,
                        size_t count) {
  if (count != 1 || rights->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_writable = rights->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (!is_writable && TheState().refuses_read_only) return CUDA_ERROR_NOT_SUPPORTED;
  ProtectDeviceMemory(reinterpret_cast<void*>(address), byte_count,
                      is_writable ? PROT_READ | PROT_WRITE : PROT_READ);
  return CUDA_SUCCESS;
}

// --- the driver's functions by name

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  struct Entry {
    const char* name;
    void* function;
    int since;
  };
  // A macro of CUDA's header may put a version behind a name: the table says what is asked for.
  static const Entry kEntries[] = {
    {"cuInit", reinterpret_cast<void*>(&cuInit), 2000},
    {"cuGetErrorString", reinterpret_cast<void*>(&cuGetErrorString), 6000},
    {"cuDeviceGetUuid", reinterpret_cast<void*>(&cuDeviceGetUuid), 11040},
    {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&cuDevicePrimaryCtxRetain), 7000},
    {"cuCtxPushCurrent", reinterpret_cast<void*>(&cuCtxPushCurrent), 4000},
    {"cuCtxPopCurrent", reinterpret_cast<void*>(&cuCtxPopCurrent), 4000},
    {"cuMemCreate", reinterpret_cast<void*>(&cuMemCreate), 10020},
    {"cuMemRelease", reinterpret_cast<void*>(&cuMemRelease), 10020},
    {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&cuMemExportToShareableHandle), 10020},
    {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(&cuMemImportFromShareableHandle),
     10020},
    {"cuMemAddressReserve", reinterpret_cast<void*>(&cuMemAddressReserve), 10020},
    {"cuMemAddressFree", reinterpret_cast<void*>(&cuMemAddressFree), 10020},
    {"cuMemMap", reinterpret_cast<void*>(&cuMemMap), 10020},
    {"cuMemUnmap", reinterpret_cast<void*>(&cuMemUnmap), 10020},
    {"cuMemSetAccess", reinterpret_cast<void*>(&cuMemSetAccess), 10020},
#if CUDA_VERSION >= 13000
    {"cuMemcpyBatchAsync", reinterpret_cast<void*>(&cuMemcpyBatchAsync), 13000},
#elif CUDA_VERSION >= 12080
    {"cuMemcpyBatchAsync", reinterpret_cast<void*>(&cuMemcpyBatchAsync), 12080},
#endif
  };
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, name) != 0) continue;
    const bool is_there = entry.since <= static_cast<int>(version) &&
                          static_cast<int>(version) <= TheState().driver_version;
    *function = is_there ? entry.function : nullptr;
    *found = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
    return cudaSuccess;
  }
  *function = nullptr;
  *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
