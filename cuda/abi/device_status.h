// Between terrace::Status and its form in the device ABI.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "cuda/abi/device.h"
#include "terrace/status.h"

namespace terrace {

inline DeviceStatus ToDeviceStatus(const Status& status) {
  return {static_cast<int32_t>(status.code()), status.detail(), status.what()};
}

// A code that Terrace does not know, from a newer plugin, is kIo.
inline Status FromDeviceStatus(const DeviceStatus& status) {
  const bool is_known = status.code >= 0 && status.code < kStatusCodeCount;
  const auto code = is_known ? static_cast<StatusCode>(status.code) : StatusCode::kIo;
  return Status(code, status.what == nullptr ? "" : status.what, status.detail);
}

// Runs the body of a call of the ABI, through which no exception may pass.
template <typename Body>
DeviceStatus Guarded(Body&& body) noexcept {
  try {
    return ToDeviceStatus(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return ToDeviceStatus(Status(StatusCode::kNoSpace, "no memory for what a device call queues"));
  } catch (const std::exception&) {
    return ToDeviceStatus(Status(StatusCode::kIo, "a device call failed unexpectedly"));
  }
}

}  // namespace terrace
