// Device memory that processes share by file descriptor: the driver's virtual memory calls, found
// in whatever driver there is.
#include <cuda.h>
#include <cudaTypedefs.h>

#include "cuda/abi/cuda_backend.h"
#include "terrace/status.h"

namespace terrace::cuda {
namespace {

constexpr uint32_t kVirtualMemoryVersion = 10020;
constexpr uint32_t kContextFreeVersion = 2000;

template <typename Function>
Function Driver(const char* name, uint32_t version = kVirtualMemoryVersion) {
  return reinterpret_cast<Function>(DriverFunction(name, version));
}

struct VirtualMemory {
  PFN_cuMemCreate_v10020 create = Driver<PFN_cuMemCreate_v10020>("cuMemCreate");
  PFN_cuMemRelease_v10020 release = Driver<PFN_cuMemRelease_v10020>("cuMemRelease");
  PFN_cuMemExportToShareableHandle_v10020 export_fd =
      Driver<PFN_cuMemExportToShareableHandle_v10020>("cuMemExportToShareableHandle");
  PFN_cuMemImportFromShareableHandle_v10020 import_fd =
      Driver<PFN_cuMemImportFromShareableHandle_v10020>("cuMemImportFromShareableHandle");
  PFN_cuMemAddressReserve_v10020 reserve =
      Driver<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve");
  PFN_cuMemAddressFree_v10020 free = Driver<PFN_cuMemAddressFree_v10020>("cuMemAddressFree");
  PFN_cuMemMap_v10020 map = Driver<PFN_cuMemMap_v10020>("cuMemMap");
  PFN_cuMemUnmap_v10020 unmap = Driver<PFN_cuMemUnmap_v10020>("cuMemUnmap");
  PFN_cuMemSetAccess_v10020 set_access = Driver<PFN_cuMemSetAccess_v10020>("cuMemSetAccess");

  bool is_whole() const {
    return create && release && export_fd && import_fd && reserve && free && map && unmap &&
           set_access;
  }
};

const VirtualMemory& Calls() {
  static const VirtualMemory calls;
  return calls;
}

DeviceStatus NoVirtualMemory() {
  return Refuse(static_cast<int32_t>(StatusCode::kUnsupported),
                "this CUDA driver has no virtual memory management");
}

}  // namespace

DeviceStatus FromDriver(int driver_error) {
  if (driver_error == CUDA_SUCCESS) return kCudaOk;
  StatusCode code = StatusCode::kIo;
  if (driver_error == CUDA_ERROR_OUT_OF_MEMORY) code = StatusCode::kNoSpace;
  if (driver_error == CUDA_ERROR_INVALID_VALUE) code = StatusCode::kInvalid;
  if (driver_error == CUDA_ERROR_NOT_SUPPORTED) code = StatusCode::kUnsupported;
  const char* what = "a call of the CUDA driver failed";
  const auto name = Driver<PFN_cuGetErrorString_v6000>("cuGetErrorString", 6000);
  if (name != nullptr) name(static_cast<CUresult>(driver_error), &what);
  return {static_cast<int32_t>(code), driver_error, what};
}

DeviceStatus CreateSlab(DeviceHandle* device, uint64_t byte_count, int32_t* fd) {
  const auto init = Driver<PFN_cuInit_v2000>("cuInit", kContextFreeVersion);
  const VirtualMemory& calls = Calls();
  if (init == nullptr || !calls.is_whole()) return NoVirtualMemory();
  DeviceStatus status = FromDriver(init(0));
  if (status.code != 0) return status;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, AsCuda(device)->ordinal};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle memory = 0;
  status = FromDriver(calls.create(&memory, byte_count, &properties, 0));
  if (status.code != 0) return status;
  status = FromDriver(calls.export_fd(fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  calls.release(memory);  // the descriptor keeps it
  return status;
}

DeviceStatus MapSlab(DeviceHandle* device, int32_t fd, uint64_t byte_count, SlabAccess access,
                     void** address) {
  const DeviceScope scope(*AsCuda(device));
  if (scope.status().code != 0) return scope.status();
  const VirtualMemory& calls = Calls();
  if (!calls.is_whole()) return NoVirtualMemory();
  CUmemGenericAllocationHandle memory = 0;
  DeviceStatus status =
      FromDriver(calls.import_fd(&memory, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  if (status.code != 0) return status;
  CUdeviceptr range = 0;
  status = FromDriver(calls.reserve(&range, byte_count, 0, 0, 0));
  if (status.code == 0) {
    status = FromDriver(calls.map(range, byte_count, 0, memory, 0));
    if (status.code == 0) {
      CUmemAccessDesc rights = {};
      rights.location = {CU_MEM_LOCATION_TYPE_DEVICE, AsCuda(device)->ordinal};
      rights.flags = access == SlabAccess::kRead ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                 : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      status = FromDriver(calls.set_access(range, byte_count, &rights, 1));
      if (status.code != 0 && access == SlabAccess::kRead) {
        // A driver may know no mapping that is read-only: kernels then could write, and do not.
        rights.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        status = FromDriver(calls.set_access(range, byte_count, &rights, 1));
      }
      if (status.code != 0) calls.unmap(range, byte_count);
    }
    if (status.code != 0) calls.free(range, byte_count);
  }
  calls.release(memory);  // the mapping keeps it
  if (status.code == 0) *address = reinterpret_cast<void*>(range);
  return status;
}

DeviceStatus UnmapSlab(DeviceHandle* device, void* address, uint64_t byte_count) {
  const DeviceScope scope(*AsCuda(device));
  if (scope.status().code != 0) return scope.status();
  const VirtualMemory& calls = Calls();
  if (!calls.is_whole()) return NoVirtualMemory();
  const auto range = reinterpret_cast<CUdeviceptr>(address);
  const DeviceStatus status = FromDriver(calls.unmap(range, byte_count));
  if (status.code != 0) return status;
  return FromDriver(calls.free(range, byte_count));
}

}  // namespace terrace::cuda
