// Copies on a CUDA device: batches on the copy engines, and the kernel that gathers pages into
// slots and scatters them back.
//
// The kernel's loads go to shared memory asynchronously (cp.async), eight a thread before the first
// store: unrolled loads through registers were interleaved with the stores by ptxas, which leaves
// too few bytes under way for the latency of a bus.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "cuda/abi/cuda_backend.h"
#include "cuda/abi/launch.h"
#include "cuda/abi/paged_index.h"
#include "terrace/status.h"

namespace terrace::cuda {
namespace {

constexpr uint32_t kThreadsPerBlock = 256;
constexpr uint32_t kVectorsPerThread = 8;
constexpr uint32_t kParameterBytesMax = 4096;

struct KernelArguments {
  PagedIndex index;
  const PagedRow* rows;
  uint64_t page_stride_bytes;
  uint64_t slot_origin_bytes;
  PagedPage pages[kPagedPagesMax];
};
static_assert(sizeof(KernelArguments) <= kParameterBytesMax);

struct alignas(16) Vector16 {
  uint32_t words[4];
};

template <typename Vector, PagedDirection kDirection>
__device__ __forceinline__ void Locate(const KernelArguments& arguments, uint32_t n,
                                       const Vector** from, Vector** to) {
  const PagedIndex::Place place = arguments.index.At(n, sizeof(Vector));
  const PagedRow row = arguments.rows[place.row];
  const PagedPage page = arguments.pages[place.page];
  const uint64_t in_page =
      row.page0_address + page.page_index * arguments.page_stride_bytes + place.page_offset_bytes;
  const uint64_t in_slot = page.slot_address + row.slot_offset_bytes - arguments.slot_origin_bytes +
                           place.slot_offset_bytes;
  constexpr bool kGathers = kDirection == PagedDirection::kGather;
  *from = reinterpret_cast<const Vector*>(kGathers ? in_page : in_slot);
  *to = reinterpret_cast<Vector*>(kGathers ? in_slot : in_page);
}

template <typename Vector>
__device__ __forceinline__ void LoadAsync(Vector* shared, const Vector* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Vector) >= 4) {
    const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    if constexpr (sizeof(Vector) == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(from),
                   "n"(sizeof(Vector))
                   : "memory");
    }
    return;
  }
#endif
  *shared = *from;
}

__device__ __forceinline__ void AwaitLoads() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A thread reads back only what it loaded itself, so threads never wait for each other.
template <typename Vector, PagedDirection kDirection>
__global__ void __launch_bounds__(kThreadsPerBlock)
    CopyPages(const __grid_constant__ KernelArguments arguments) {
  __shared__ Vector staged[kVectorsPerThread][kThreadsPerBlock];
  constexpr uint32_t kVectorsPerBlock = kThreadsPerBlock * kVectorsPerThread;
  const uint64_t vector_count = arguments.index.vector_count;
  for (uint64_t first = uint64_t{blockIdx.x} * kVectorsPerBlock; first < vector_count;
       first += uint64_t{gridDim.x} * kVectorsPerBlock) {
    Vector* to[kVectorsPerThread];
#pragma unroll
    for (uint32_t i = 0; i < kVectorsPerThread; ++i) {
      const uint64_t n = first + i * kThreadsPerBlock + threadIdx.x;
      to[i] = nullptr;
      if (n < vector_count) {
        const Vector* from;
        Locate<Vector, kDirection>(arguments, static_cast<uint32_t>(n), &from, &to[i]);
        LoadAsync(&staged[i][threadIdx.x], from);
      }
    }
    AwaitLoads();
#pragma unroll
    for (uint32_t i = 0; i < kVectorsPerThread; ++i) {
      if (to[i] != nullptr) *to[i] = staged[i][threadIdx.x];
    }
  }
}

template <typename Vector>
cudaError_t Launch(const KernelArguments& arguments, PagedDirection direction, uint32_t block_count,
                   cudaStream_t stream) {
  const auto kernel = direction == PagedDirection::kGather
                          ? CopyPages<Vector, PagedDirection::kGather>
                          : CopyPages<Vector, PagedDirection::kScatter>;
  return LaunchKernel(kernel, block_count, kThreadsPerBlock, stream, arguments);
}

cudaError_t LaunchWidest(const KernelArguments& arguments, PagedDirection direction,
                         uint32_t block_count, uint32_t vector_bytes, cudaStream_t stream) {
  switch (vector_bytes) {
    case 16:
      return Launch<Vector16>(arguments, direction, block_count, stream);
    case 8:
      return Launch<uint64_t>(arguments, direction, block_count, stream);
    case 4:
      return Launch<uint32_t>(arguments, direction, block_count, stream);
    case 2:
      return Launch<uint16_t>(arguments, direction, block_count, stream);
    default:
      return Launch<uint8_t>(arguments, direction, block_count, stream);
  }
}

// The signature changed between 12.8 and 13.0 under one name; a pointer from the one called as the
// other crashes. So both are asked for by version.
struct BatchCopy {
#if CUDA_VERSION >= 13000
  PFN_cuMemcpyBatchAsync_v13000 call =
      reinterpret_cast<PFN_cuMemcpyBatchAsync_v13000>(DriverFunction("cuMemcpyBatchAsync", 13000));
#elif CUDA_VERSION >= 12080
  PFN_cuMemcpyBatchAsync_v12080 call =
      reinterpret_cast<PFN_cuMemcpyBatchAsync_v12080>(DriverFunction("cuMemcpyBatchAsync", 12080));
#else
  void* call = nullptr;
#endif
};

// Off where a driver's batches are suspect, or unseen by who watches (compute-sanitizer's
// initcheck).
bool AreBatchesWanted() {
  const char* const asked = std::getenv("TERRACE_CUDA_BATCHES");
  return asked == nullptr || std::strcmp(asked, "off") != 0;
}

DeviceStatus CopyOneByOne(CudaStream* stream, CopyDirection direction, const CopyPiece* pieces,
                          uint32_t piece_count) {
  cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;
  if (direction == CopyDirection::kToHost) kind = cudaMemcpyDeviceToHost;
  if (direction == CopyDirection::kToDevice) kind = cudaMemcpyHostToDevice;
  for (uint32_t i = 0; i < piece_count; ++i) {
    const DeviceStatus status = FromRuntime(
        cudaMemcpyAsync(pieces[i].to, pieces[i].from, pieces[i].byte_count, kind, stream->stream));
    if (status.code != 0) return status;
  }
  return kCudaOk;
}

// What a host function copies. It frees itself; a device that has failed runs none any more.
struct HostCopies {
  std::shared_ptr<HostCopyGate> gate;
  uint64_t piece_count;  // pieces follow
  CopyPiece* pieces() { return reinterpret_cast<CopyPiece*>(this + 1); }
};
static_assert(sizeof(HostCopies) % alignof(CopyPiece) == 0);

void Free(HostCopies* copies) {
  copies->gate->Dequeue();
  copies->~HostCopies();
  std::free(copies);
}

void CUDART_CB RunHostCopies(void* argument) {
  auto* copies = static_cast<HostCopies*>(argument);
  if (copies->gate->Enter()) {
    for (uint64_t i = 0; i < copies->piece_count; ++i) {
      const CopyPiece& piece = copies->pieces()[i];
      std::memcpy(piece.to, piece.from, piece.byte_count);
    }
    copies->gate->Leave();
  }
  Free(copies);
}

// The runtime's own copy between two places of the host would block the caller until it is done.
DeviceStatus CopyWithinHost(CudaStream* stream, const CopyPiece* pieces, uint32_t piece_count) {
  const size_t pieces_bytes = piece_count * sizeof(CopyPiece);
  void* const memory = std::malloc(sizeof(HostCopies) + pieces_bytes);
  if (memory == nullptr) return Refuse(static_cast<int32_t>(StatusCode::kNoSpace), "no memory");
  auto* copies = new (memory) HostCopies{stream->device->host_copies, piece_count};
  std::memcpy(copies->pieces(), pieces, pieces_bytes);
  copies->gate->Queue();
  const DeviceStatus status =
      FromRuntime(cudaLaunchHostFunc(stream->stream, RunHostCopies, copies));
  if (status.code != 0) Free(copies);
  return status;
}

}  // namespace

DeviceStatus CopyBatch(StreamHandle* handle, CopyDirection direction, const CopyPiece* pieces,
                       uint32_t piece_count) {
  CudaStream* stream = AsCuda(handle);
  const DeviceScope scope(*stream->device);
  if (scope.status().code != 0) return scope.status();
  if (piece_count == 0 || piece_count > kBatchPiecesMax) {
    return Refuse(static_cast<int32_t>(StatusCode::kInvalid), "a batch is of 1..4096 pieces");
  }
  if (direction == CopyDirection::kWithinHost) return CopyWithinHost(stream, pieces, piece_count);
#if CUDA_VERSION >= 12080
  static const BatchCopy batch;
  static const bool is_batched = batch.call != nullptr && AreBatchesWanted();
  if (is_batched && piece_count > 1) {
    static thread_local CUdeviceptr to[kBatchPiecesMax];
    static thread_local CUdeviceptr from[kBatchPiecesMax];
    static thread_local size_t byte_counts[kBatchPiecesMax];
    for (uint32_t i = 0; i < piece_count; ++i) {
      to[i] = reinterpret_cast<CUdeviceptr>(pieces[i].to);
      from[i] = reinterpret_cast<CUdeviceptr>(pieces[i].from);
      byte_counts[i] = pieces[i].byte_count;
    }
    // Also where slots are read, which never change: it may be the bounce, which a host function
    // that is queued before this fills.
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first_of_attributes = 0;
#if CUDA_VERSION >= 13000
    return FromDriver(batch.call(to, from, byte_counts, piece_count, &attributes,
                                 &first_of_attributes, 1, stream->stream));
#else
    size_t failed_index = 0;
    return FromDriver(batch.call(to, from, byte_counts, piece_count, &attributes,
                                 &first_of_attributes, 1, &failed_index, stream->stream));
#endif
  }
#endif
  return CopyOneByOne(stream, direction, pieces, piece_count);
}

DeviceStatus CopyPaged(StreamHandle* handle, const PagedLaunch* launch) {
  CudaStream* stream = AsCuda(handle);
  const DeviceScope scope(*stream->device);
  if (scope.status().code != 0) return scope.status();
  if (launch->path != PagedPath::kKernel) {
    return Refuse(static_cast<int32_t>(StatusCode::kUnsupported), "no bulk copies on this device");
  }
  if (launch->page_count == 0 || launch->page_count > kPagedPagesMax || launch->row_count == 0 ||
      launch->axis_count > kPagedAxesMax || launch->thread_blocks_max == 0) {
    return Refuse(static_cast<int32_t>(StatusCode::kInvalid), "a launch past the limits");
  }
  KernelArguments arguments;
  const uint32_t vector_bytes = PagedVectorBytes(*launch, launch->rows_alignment_bits);
  if (!MakePagedIndex(*launch, vector_bytes, &arguments.index)) {
    return Refuse(static_cast<int32_t>(StatusCode::kInvalid), "a launch of 2^31 vectors or more");
  }
  arguments.rows = launch->rows + launch->row_first;
  arguments.page_stride_bytes = launch->page_stride_bytes;
  arguments.slot_origin_bytes = launch->slot_origin_bytes;
  std::memcpy(arguments.pages, launch->pages, launch->page_count * sizeof(PagedPage));
  constexpr uint32_t kVectorsPerBlock = kThreadsPerBlock * kVectorsPerThread;
  const uint32_t block_count =
      (arguments.index.vector_count + kVectorsPerBlock - 1) / kVectorsPerBlock;
  return FromRuntime(LaunchWidest(
      arguments, launch->direction,
      block_count < launch->thread_blocks_max ? block_count : launch->thread_blocks_max,
      vector_bytes, stream->stream));
}

}  // namespace terrace::cuda
