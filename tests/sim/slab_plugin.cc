// A device plugin for a terraced under test: two "GPUs" whose slabs are memfds, and nothing that a
// daemon does not need. Clients of the tests have simulated devices of the same UUIDs.
#include "tests/sim/slab_plugin.h"

#include <algorithm>

#include "cuda/abi/device_status.h"
#include "cuda/host/host_memory.h"

namespace terrace {
namespace {

struct SlabDevice {
  uint32_t index;
};

DeviceStatus CountDevices(uint32_t* device_count) {
  *device_count = kSlabPluginDevices;
  return {};
}

DeviceStatus OpenDevice(const DeviceOpenOptions* options, DeviceHandle** device) {
  *device = reinterpret_cast<DeviceHandle*>(new SlabDevice{options->device_index});
  return {};
}

void CloseDevice(DeviceHandle* device) { delete reinterpret_cast<SlabDevice*>(device); }

DeviceStatus DescribeDevice(DeviceHandle* device, DeviceTraits* traits) {
  const auto uuid = SlabPluginUuid(reinterpret_cast<SlabDevice*>(device)->index);
  std::copy(uuid.begin(), uuid.end(), traits->uuid);
  traits->capabilities = static_cast<uint32_t>(DeviceCapability::kSlabs);
  return {};
}

DeviceStatus CreateSlab(DeviceHandle*, uint64_t byte_count, int32_t* fd) {
  return ToDeviceStatus(CreateHostSlab(byte_count, fd));
}

constexpr DeviceOps MakeOps() {
  DeviceOps ops = {};
  ops.struct_bytes = sizeof(DeviceOps);
  ops.abi_version = kDeviceAbiVersion;
  ops.backend = "cuda";
  ops.count_devices = CountDevices;
  ops.open_device = OpenDevice;
  ops.close_device = CloseDevice;
  ops.describe_device = DescribeDevice;
  ops.create_slab = CreateSlab;
  return ops;
}

constexpr DeviceOps kOps = MakeOps();

}  // namespace
}  // namespace terrace

extern "C" __attribute__((visibility("default"))) const terrace::DeviceOps* terrace_device_plugin(
    uint32_t abi_version) {
  return abi_version == terrace::kDeviceAbiVersion ? &terrace::kOps : nullptr;
}
