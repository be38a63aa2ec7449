#include "cuda/host/device_loader.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "cuda/abi/device_status.h"
#include "cuda/host/host_device.h"

namespace terrace {
namespace {

// `owner` besides root may have made it: who runs as this user could load code of their own anyway.
bool IsTrusted(const struct stat& file, std::string* why, const std::string& path) {
  const uid_t owner = geteuid();
  if (file.st_uid != 0 && file.st_uid != owner) {
    *why = path + " belongs to user " + std::to_string(file.st_uid) +
           ": make root its owner, or load another";
    return false;
  }
  if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    *why = path + " can be written to by its group or by others: chmod go-w it";
    return false;
  }
  return true;
}

Status CheckFile(const std::string& path, std::string* why) {
  if (path.empty()) {
    *why =
        "plugin_path names no device plugin: give it the absolute path of libterrace_cuda.so, "
        "or set backend to \"host\"";
    return Status(StatusCode::kInvalid, "no device plugin is named");
  }
  if (path.front() != '/') {
    *why = "the device plugin's path is '" + path + "': give an absolute one";
    return Status(StatusCode::kInvalid, "a device plugin's path must be absolute");
  }
  struct stat file;
  if (stat(path.c_str(), &file) != 0) {
    const int error = errno;
    *why = "no device plugin at " + path + ": " + std::strerror(error);
    return Status(StatusCode::kNotFound, "no device plugin there", error);
  }
  if (!S_ISREG(file.st_mode)) {
    *why = path + " is no regular file, so it is no device plugin";
    return Status(StatusCode::kInvalid, "a device plugin is a regular file");
  }
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  struct stat parent;
  if (stat(directory.c_str(), &parent) != 0) {
    *why = directory + ": " + std::strerror(errno);
    return Status(StatusCode::kIo, "the device plugin's directory", errno);
  }
  if (!IsTrusted(file, why, path) || !IsTrusted(parent, why, directory)) {
    return Status(StatusCode::kInvalid, "a device plugin that others can change");
  }
  return Status::Ok();
}

// The backend's devices; with none, kUnsupported and why.
Status CheckDevices(const DeviceOps& ops, std::string* why) {
  uint32_t device_count = 0;
  const Status status = FromDeviceStatus(ops.count_devices(&device_count));
  if (!status.ok()) {
    *why = std::string(ops.backend) + ": no device: " + status.what();
    return Status(StatusCode::kUnsupported, "the backend has no device", status.detail());
  }
  if (device_count == 0) {
    *why = std::string(ops.backend) + ": no device is visible to this process";
    return Status(StatusCode::kUnsupported, "the backend has no device");
  }
  return Status::Ok();
}

}  // namespace

Result<DeviceBackend> ParseDeviceBackend(std::string_view word) {
  if (word == "auto") return DeviceBackend::kAuto;
  if (word == "host") return DeviceBackend::kHost;
  if (word == "cuda") return DeviceBackend::kCuda;
  return Status(StatusCode::kInvalid, "backend: auto, host or cuda");
}

Result<const DeviceOps*> LoadDevicePlugin(const std::string& path, std::string* why) {
  TERRACE_RETURN_IF_ERROR(CheckFile(path, why));
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    *why = std::string("the device plugin cannot be loaded: ") + dlerror();
    return Status(StatusCode::kUnsupported, "the device plugin cannot be loaded");
  }
  const auto entry = reinterpret_cast<DevicePluginEntry>(dlsym(library, kDevicePluginSymbol));
  if (entry == nullptr) {
    *why = path + " exports no " + kDevicePluginSymbol + ": it is no device plugin of Terrace";
    return Status(StatusCode::kInvalid, "no device plugin of Terrace");
  }
  const DeviceOps* ops = entry(kDeviceAbiVersion);
  if (ops == nullptr || ops->abi_version != kDeviceAbiVersion ||
      ops->struct_bytes < sizeof(DeviceOps)) {
    *why = path + " speaks another version of the device ABI than " +
           std::to_string(kDeviceAbiVersion) + ": install the one of this Terrace";
    return Status(StatusCode::kUnsupported, "a device plugin of another version");
  }
  return ops;
}

Result<ChosenBackend> ChooseBackend(DeviceBackend backend, const std::string& plugin_path,
                                    std::string* why) {
  if (backend == DeviceBackend::kHost)
    return ChosenBackend{&HostDeviceOps(), "host: as configured"};
  const Result<const DeviceOps*> plugin = LoadDevicePlugin(plugin_path, why);
  const Status status = plugin.ok() ? CheckDevices(*plugin.value(), why) : plugin.status();
  if (status.ok()) return ChosenBackend{plugin.value(), std::string(plugin.value()->backend)};
  if (backend == DeviceBackend::kAuto) return ChosenBackend{&HostDeviceOps(), "host: " + *why};
  return status;
}

std::string InstalledPluginPath() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return TERRACE_PLUGIN_PATH;  // no /proc here
  return (program.parent_path() / TERRACE_PLUGIN_FROM_PROGRAMS).lexically_normal();
}

}  // namespace terrace
