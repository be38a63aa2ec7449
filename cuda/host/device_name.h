// How a device is named. Between processes: "host", else the backend and the device's UUID, as in
// "cuda:GPU-8f3c2d1e-…": processes count the devices that they see, so an index means nothing to
// others. In a configuration: the same, or the backend and an index.
//
// THREADING: pure, but for what opens and describes devices.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/host/stream.h"
#include "terrace/status.h"

namespace terrace {

using DeviceUuid = std::array<uint8_t, kDeviceUuidBytes>;

// What a name says of the one device it means.
struct DeviceChoice {
  bool is_host = false;
  uint32_t index = 0;              // of the backend `cuda`, where there is no uuid
  std::optional<DeviceUuid> uuid;  // the same
};

// "host", "cuda:3" or "cuda:GPU-…", and "cuda:MIG-…" for a share of a GPU; else kInvalid.
Result<DeviceChoice> ParseDeviceChoice(std::string_view text);

// "GPU-8f3c2d1e-…", as drivers print it.
std::string FormatDeviceUuid(const DeviceUuid& uuid);

// As other processes know it.
Result<std::string> DeviceName(const Device& device);

// The chosen device of this backend. Makes no context on any device. kNotFound with `*why`, which
// names those that there are.
Result<Device> OpenDevice(const DeviceOps& ops, const DeviceChoice& choice, std::string* why);

}  // namespace terrace
