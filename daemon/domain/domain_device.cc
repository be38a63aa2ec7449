#include "daemon/domain/domain_device.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "cuda/abi/device_status.h"
#include "cuda/host/device_loader.h"
#include "cuda/host/device_name.h"
#include "cuda/host/host_device.h"
#include "daemon/config/config_text.h"
#include "daemon/log/log.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kRoomRetries = 100;  // 10 s
constexpr std::chrono::milliseconds kRoomPause{100};

}  // namespace

DomainDevice::~DomainDevice() {
  for (const int fd : slab_fds_) close(fd);
}

Status DomainDevice::Open(const Device& device, std::string* why) {
  for (uint32_t slab = 0; slab < options_.slab_count; ++slab) {
    TERRACE_RETURN_IF_ERROR(MakeSlab(device, why));
  }
  HbmTier::Options tier;
  tier.domain_index = options_.domain_index;
  tier.slab_bytes = options_.hbm.slab_bytes;
  tier.slab_count = options_.slab_count;
  tier.locate = [arena = options_.arena](const std::byte* slot) {
    return arena->arena().AddressOf(slot);
  };
  tier.now_us = options_.now_us;
  tier.order_deadline_us = options_.hbm.order_timeout_ms * kUsPerMs;
  tier_ = std::make_unique<HbmTier>(std::move(tier));
  Log(LogLevel::kInfo, "hbm tier",
      {{"domain", options_.domain_name},
       {"device", options_.device_name},
       {"slabs", options_.slab_count},
       {"slab_bytes", options_.hbm.slab_bytes}});
  return Status::Ok();
}

Status DomainDevice::MakeSlab(const Device& device, std::string* why) {
  int32_t fd = -1;
  const auto make = [&] {
    return FromDeviceStatus(
        device.ops().create_slab(device.handle(), options_.hbm.slab_bytes, &fd));
  };
  Status made = make();
  while (made.code() == StatusCode::kNoSpace && retry_count_ < options_.retries_max) {
    if (retry_count_++ == 0) {
      Log(LogLevel::kWarn, "hbm tier waits for room",
          {{"domain", options_.domain_name}, {"device", options_.device_name}});
    }
    options_.pause();
    made = make();
  }
  if (made.ok()) {
    slab_fds_.push_back(fd);
    return made;
  }
  *why = "domain " + options_.domain_name + ": slab " + std::to_string(slab_fds_.size() + 1) +
         " of " + std::to_string(options_.slab_count) + " of the HBM tier, " +
         FormatBytes(options_.hbm.slab_bytes) + " of " + options_.device_name +
         ", cannot be made: " + made.what() + " (" + std::to_string(made.detail()) +
         "); lower hbm.capacity_bytes, or end who else uses it";
  return made;
}

DeviceUse DomainDevice::use() const {
  return {.tier = tier_.get(),
          .device = options_.device_name,
          .why = "hbm.device is \"" + options_.hbm.device + "\"",
          .hits_min = options_.hbm.hits_min};
}

Result<HbmDevice> OpenHbmDevice(const HbmConfig& hbm, std::string* why) {
  const std::string asked = "hbm.device is '" + hbm.device + "': ";
  const Result<DeviceChoice> choice = ParseDeviceChoice(hbm.device);
  if (!choice.ok()) {
    *why = asked + choice.status().what();
    return choice.status();
  }
  const DeviceOps* ops = &HostDeviceOps();
  if (!choice->is_host) {
    const Result<const DeviceOps*> plugin = LoadDevicePlugin(hbm.plugin_path, why);
    if (!plugin.ok()) {
      *why = asked + *why +
             "; set hbm.plugin_path to libterrace_cuda.so, which a build with nvcc installs, or "
             "hbm.device to \"host\"";
      return plugin.status();
    }
    ops = *plugin;
  }
  Result<Device> device = OpenDevice(*ops, *choice, why);
  if (!device.ok()) {
    *why = asked + *why +
           (device.status().code() == StatusCode::kNotFound
                ? "; name one of those, as nvidia-smi -L prints its UUID, or set it to \"host\""
                : "; see whether the driver works (nvidia-smi) and terraced may open /dev/nvidia* "
                  "(PrivateDevices=no and DeviceAllow= of its unit), or set it to \"host\"");
    return device.status();
  }
  const Result<DeviceTraits> traits = device->Describe();
  Result<std::string> name = DeviceName(*device);
  if (!traits.ok() || !name.ok()) {
    const Status status = traits.ok() ? name.status() : traits.status();
    *why = asked + "it cannot be described: " + status.what();
    return status;
  }
  if ((traits->capabilities & static_cast<uint32_t>(DeviceCapability::kSlabs)) == 0) {
    *why = asked + *name +
           " cannot share memory by descriptor: set it to \"host\", or update the driver";
    return Status(StatusCode::kUnsupported, "the device has no slabs");
  }
  return HbmDevice{std::move(device).value(), std::move(name).value()};
}

Status OpenDevices(const DaemonConfig& config,
                   const std::vector<std::unique_ptr<DomainArena>>& arenas,
                   const std::function<uint64_t()>& now_us,
                   std::vector<std::unique_ptr<DomainDevice>>* devices, std::string* why) {
  if (!config.hbm.is_on()) return Status::Ok();
  TERRACE_CHECK(arenas.size() == config.domains.size() && devices->empty(),
                "a device copies to its own domain's memory: both are found by its index");
  const Result<HbmDevice> opened = OpenHbmDevice(config.hbm, why);
  if (!opened.ok()) return opened.status();
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    DomainDevice::Options options;
    options.domain_index = i;
    options.domain_name = config.domains[i].name;
    options.hbm = config.hbm;
    options.device_name = opened->name;
    options.slab_count = config.hbm.slabs_of_domain(config.domains.size());
    options.arena = arenas[i].get();
    options.now_us = now_us;
    options.retries_max = kRoomRetries;
    options.pause = [] { std::this_thread::sleep_for(kRoomPause); };
    devices->push_back(std::make_unique<DomainDevice>(std::move(options)));
    TERRACE_RETURN_IF_ERROR(devices->back()->Open(opened->device, why));
  }
  return Status::Ok();
}

}  // namespace terrace
