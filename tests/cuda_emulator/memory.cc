// Memory of the emulated GPUs. Device memory ends where its mapping ends, before a page that nobody
// reaches; where the CPU has protection keys only streams' threads reach any of it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/cuda_emulator/state.h"

namespace terrace::emulator {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kAlignmentBytes = 256;  // as cudaMalloc's
constexpr uint64_t kDeviceMemoryBytes = uint64_t{8} << 30;
constexpr int kPoison = 0xDB;

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

uint64_t UsedBytes(int device) {
  uint64_t used = 0;
  for (const auto& [address, region] : TheState().regions) {
    if (region.kind == RegionKind::kDevice && region.device == device) used += region.byte_count;
  }
  return used;
}

}  // namespace

void ReachDeviceMemory(bool is_allowed) {
  const int key = TheState().protection_key;
  if (key >= 0) pkey_set(key, is_allowed ? 0 : PKEY_DISABLE_ACCESS);
}

void ProtectDeviceMemory(void* address, uint64_t byte_count, int protection) {
  const int key = TheState().protection_key;
  if (key >= 0) {
    pkey_mprotect(address, byte_count, protection, key);
  } else {
    mprotect(address, byte_count, protection);
  }
}

const Region* Find(const void* address, uint64_t byte_count) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto& regions = TheState().regions;
  auto next = regions.upper_bound(at);
  if (next == regions.begin()) return nullptr;
  const auto& [first, region] = *std::prev(next);
  return at - first <= region.byte_count && byte_count <= region.byte_count - (at - first)
             ? &region
             : nullptr;
}

bool IsDevice(const Region* region) {
  return region != nullptr &&
         (region->kind == RegionKind::kDevice || region->kind == RegionKind::kReserved);
}

cudaError_t Allocate(RegionKind kind, int device, uint64_t byte_count, void** address) {
  if (byte_count == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  if (kind == RegionKind::kDevice && byte_count > kDeviceMemoryBytes - UsedBytes(device)) {
    return cudaErrorMemoryAllocation;
  }
  const uint64_t used_bytes = RoundUp(byte_count, kAlignmentBytes);
  const uint64_t usable_bytes = RoundUp(used_bytes, kPageBytes);
  void* mapping = mmap(nullptr, usable_bytes + kPageBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::byte* const start = static_cast<std::byte*>(mapping) + (usable_bytes - used_bytes);
  std::memset(start, kPoison, used_bytes);
  mprotect(static_cast<std::byte*>(mapping) + usable_bytes, kPageBytes, PROT_NONE);
  if (kind == RegionKind::kDevice) {
    ProtectDeviceMemory(mapping, usable_bytes, PROT_READ | PROT_WRITE);
  }
  State& state = TheState();
  state.regions[reinterpret_cast<uintptr_t>(start)] = {
      kind, device, byte_count, usable_bytes + kPageBytes, static_cast<std::byte*>(mapping)};
  ++state.counts.allocations;
  *address = start;
  return cudaSuccess;
}

cudaError_t Free(RegionKind kind, void* address) {
  if (address == nullptr) return cudaSuccess;
  State& state = TheState();
  const auto found = state.regions.find(reinterpret_cast<uintptr_t>(address));
  if (found == state.regions.end() || found->second.kind != kind) return cudaErrorInvalidValue;
  munmap(found->second.mapping, found->second.mapped_bytes);
  state.regions.erase(found);
  --state.counts.allocations;
  return cudaSuccess;
}

}  // namespace terrace::emulator

using namespace terrace::emulator;  // NOLINT: what follows is CUDA's names

namespace {

// A call that waits for all of the device's work, as the real ones do, and then frees.
cudaError_t FreeWhenIdle(RegionKind kind, void* address) {
  std::unique_lock lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  AwaitIdle(device, &lock);
  return Leave(Free(kind, address));
}

bool IsMapped(void* address, uint64_t byte_count) {
  const auto first = reinterpret_cast<uintptr_t>(address) / 4096 * 4096;
  const uint64_t span_bytes = reinterpret_cast<uintptr_t>(address) + byte_count - first;
  return msync(reinterpret_cast<void*>(first), span_bytes, MS_ASYNC) == 0;
}

}  // namespace

cudaError_t cudaMalloc(void** address, size_t byte_count) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  return Leave(Allocate(RegionKind::kDevice, device, byte_count, address));
}

cudaError_t cudaFree(void* address) { return FreeWhenIdle(RegionKind::kDevice, address); }

cudaError_t cudaHostAlloc(void** address, size_t byte_count, unsigned int /*flags*/) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  return Leave(Allocate(RegionKind::kPinned, -1, byte_count, address));
}

cudaError_t cudaFreeHost(void* address) { return FreeWhenIdle(RegionKind::kPinned, address); }

cudaError_t cudaHostRegister(void* address, size_t byte_count, unsigned int /*flags*/) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  if (address == nullptr || byte_count == 0 || !IsMapped(address, byte_count)) {
    return Leave(cudaErrorInvalidValue);
  }
  const auto first = reinterpret_cast<uintptr_t>(address);
  for (const auto& [other, region] : state.regions) {
    if (other < first + byte_count && first < other + region.byte_count) {
      return Leave(cudaErrorHostMemoryAlreadyRegistered);
    }
  }
  state.regions[first] = {RegionKind::kRegistered, -1, byte_count, 0, nullptr};
  ++state.counts.registrations;
  return Leave(cudaSuccess);
}

cudaError_t cudaHostUnregister(void* address) {
  State& state = TheState();
  std::unique_lock lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  AwaitIdle(device, &lock);
  const auto found = state.regions.find(reinterpret_cast<uintptr_t>(address));
  if (found == state.regions.end() || found->second.kind != RegionKind::kRegistered) {
    return Leave(cudaErrorHostMemoryNotRegistered);
  }
  state.regions.erase(found);
  --state.counts.registrations;
  return Leave(cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void** device_address, void* address, unsigned int) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  const Region* const region = Find(address, 1);
  if (region == nullptr || IsDevice(region)) return Leave(cudaErrorInvalidValue);
  *device_address = address;
  return Leave(cudaSuccess);
}
