#include "daemon/domain_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/log.h"

namespace terrace {

DomainDevice::~DomainDevice() {
  for (const int fd : slab_fds_) close(fd);
}

Status DomainDevice::Open(std::string* why) {
  for (uint32_t slab = 0; slab < options_.slab_count; ++slab) {
    TERRACE_RETURN_IF_ERROR(MakeSlab(why));
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
       {"device", options_.hbm.device},
       {"slabs", options_.slab_count},
       {"slab_bytes", options_.hbm.slab_bytes}});
  return Status::Ok();
}

// Of the device "host": memory paid for now, so that no client's write meets a want of it later,
// and whose length nobody can change.
Status DomainDevice::MakeSlab(std::string* why) {
  const auto length_bytes = static_cast<off_t>(options_.hbm.slab_bytes);
  const int fd = memfd_create("terrace-hbm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool is_made = fd >= 0 && ftruncate(fd, length_bytes) == 0 &&
                       fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
                       fallocate(fd, 0, 0, length_bytes) == 0;
  const int error = errno;
  if (fd >= 0) slab_fds_.push_back(fd);
  if (is_made) return Status::Ok();
  *why = "domain " + options_.domain_name + ": slab " + std::to_string(slab_fds_.size()) + " of " +
         std::to_string(options_.slab_count) + " of the HBM tier, " +
         FormatBytes(options_.hbm.slab_bytes) + ", cannot be made: " + std::strerror(error) +
         "; lower hbm.capacity_bytes";
  return Status(StatusCode::kNoSpace, "no memory for the HBM tier", error);
}

DeviceUse DomainDevice::use() const {
  return {.tier = tier_.get(), .device = options_.hbm.device, .hits_min = options_.hbm.hits_min};
}

Status OpenDevices(const DaemonConfig& config,
                   const std::vector<std::unique_ptr<DomainArena>>& arenas,
                   const std::function<uint64_t()>& now_us,
                   std::vector<std::unique_ptr<DomainDevice>>* devices, std::string* why) {
  if (!config.hbm.is_on()) return Status::Ok();
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    DomainDevice::Options options;
    options.domain_index = i;
    options.domain_name = config.domains[i].name;
    options.hbm = config.hbm;
    options.slab_count = config.hbm.slabs_of_domain(config.domains.size());
    options.arena = arenas[i].get();
    options.now_us = now_us;
    devices->push_back(std::make_unique<DomainDevice>(std::move(options)));
    TERRACE_RETURN_IF_ERROR(devices->back()->Open(why));
  }
  return Status::Ok();
}

}  // namespace terrace
