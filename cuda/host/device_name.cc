#include "cuda/host/device_name.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace terrace {
namespace {

constexpr std::string_view kHost = "host";
constexpr std::string_view kCudaPrefix = "cuda:";
constexpr std::string_view kUuidPrefixes[] = {"GPU-", "MIG-"};
constexpr size_t kUuidDashesAt[] = {8, 13, 18, 23};
constexpr size_t kUuidChars = 36;

Status NoDeviceName() {
  return Status(StatusCode::kInvalid, "a device is host, cuda:<index> or cuda:GPU-<UUID>");
}

bool IsDashAt(size_t at) { return std::ranges::find(kUuidDashesAt, at) != std::end(kUuidDashesAt); }

// 8-4-4-4-12 hexadecimal digits.
bool ParseUuid(std::string_view text, DeviceUuid* uuid) {
  if (text.size() != kUuidChars) return false;
  size_t byte_index = 0;
  for (size_t at = 0; at < text.size();) {
    if (IsDashAt(at)) {
      if (text[at++] != '-') return false;
      continue;
    }
    const char* const digits = text.data() + at;
    const auto [end, error] = std::from_chars(digits, digits + 2, (*uuid)[byte_index++], 16);
    if (error != std::errc() || end != digits + 2) return false;
    at += 2;
  }
  return true;
}

DeviceUuid UuidOf(const DeviceTraits& traits) {
  DeviceUuid uuid;
  std::memcpy(uuid.data(), traits.uuid, uuid.size());
  return uuid;
}

}  // namespace

Result<DeviceChoice> ParseDeviceChoice(std::string_view text) {
  DeviceChoice choice;
  if (text == kHost) {
    choice.is_host = true;
    return choice;
  }
  if (!text.starts_with(kCudaPrefix)) return NoDeviceName();
  text.remove_prefix(kCudaPrefix.size());
  for (const std::string_view prefix : kUuidPrefixes) {
    if (!text.starts_with(prefix)) continue;
    DeviceUuid uuid;
    if (!ParseUuid(text.substr(prefix.size()), &uuid)) return NoDeviceName();
    choice.uuid = uuid;
    return choice;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), choice.index);
  if (error != std::errc() || end != text.data() + text.size()) return NoDeviceName();
  return choice;
}

std::string FormatDeviceUuid(const DeviceUuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(kUuidPrefixes[0]);
  for (size_t at = 0, byte_index = 0; at < kUuidChars;) {
    if (IsDashAt(at)) {
      text += '-';
      ++at;
      continue;
    }
    text += kDigits[uuid[byte_index] >> 4];
    text += kDigits[uuid[byte_index++] & 15];
    at += 2;
  }
  return text;
}

Result<std::string> DeviceName(const Device& device) {
  const std::string backend = device.ops().backend;
  if (backend == kHost) return backend;
  const Result<DeviceTraits> traits = device.Describe();
  if (!traits.ok()) return traits.status();
  return backend + ":" + FormatDeviceUuid(UuidOf(*traits));
}

Result<Device> OpenDevice(const DeviceOps& ops, const DeviceChoice& choice, std::string* why) {
  uint32_t device_count = 0;
  const Status counted = FromDeviceStatus(ops.count_devices(&device_count));
  if (!counted.ok()) {
    *why = std::string(ops.backend) + " has no device here: " + counted.what();
    return counted;
  }
  std::string seen;
  for (uint32_t index = 0; index < device_count; ++index) {
    Result<Device> device = Device::Open(ops, {.device_index = index});
    Result<DeviceTraits> traits = device.ok() ? device->Describe() : device.status();
    const bool is_counted = choice.is_host || (!choice.uuid && choice.index == index);
    if (!traits.ok() && is_counted) {
      *why = std::string(ops.backend) + ", device " + std::to_string(index) +
             ", cannot be opened: " + traits.status().what();
      return traits.status();
    }
    if (is_counted || (traits.ok() && choice.uuid && *choice.uuid == UuidOf(*traits))) {
      return device;
    }
    // One that does not work is in nobody's way who means another.
    seen += (index == 0 ? "" : ", ") + std::to_string(index) +
            (traits.ok() ? " is " + FormatDeviceUuid(UuidOf(*traits))
                         : std::string(" cannot be opened (") + traits.status().what() + ")");
  }
  *why = "no such device; this process sees " + std::to_string(device_count) + ": " + seen;
  return Status(StatusCode::kNotFound, "no such device");
}

}  // namespace terrace
