// The devices of the plugin that tests give a terraced.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/abi/device.h"

namespace terrace {

inline constexpr uint32_t kSlabPluginDevices = 2;

inline std::array<uint8_t, kDeviceUuidBytes> SlabPluginUuid(uint32_t device_index) {
  std::array<uint8_t, kDeviceUuidBytes> uuid;
  uuid.fill(0x5e);
  uuid.back() = static_cast<uint8_t>(device_index);
  return uuid;
}

}  // namespace terrace
