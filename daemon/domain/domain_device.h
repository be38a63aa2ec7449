// DomainDevice: one domain's share of a device's memory as the daemon runs it: slabs that clients
// map by descriptor and the daemon never does, and the tier that hands out places in them. The
// device is open only while slabs are made, and no context is made on it.
//
// THREADING: store thread; Open blocks. OWNERSHIP: outlives the Store; the arena outlives it. The
// slabs live as long as somebody has them mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/host/stream.h"
#include "daemon/arenas/domain_arena.h"
#include "daemon/config/config.h"
#include "daemon/store/store.h"
#include "tiers/hbm/hbm_tier.h"

namespace terrace {

class DomainDevice {
 public:
  struct Options {
    uint32_t domain_index = 0;
    std::string domain_name;
    HbmConfig hbm;
    std::string device_name;  // as clients know it
    uint32_t slab_count = 0;
    DomainArena* arena = nullptr;
    std::function<uint64_t()> now_us;
    // A predecessor's slabs take room until its last client has unmapped them: so often a slab is
    // tried again, after a pause.
    uint32_t retries_max = 0;
    std::function<void()> pause;
  };
  explicit DomainDevice(Options options) : options_(std::move(options)) {}
  ~DomainDevice();
  DomainDevice(const DomainDevice&) = delete;
  DomainDevice& operator=(const DomainDevice&) = delete;

  // Not kOk: `*why` says what, the value and the remedy.
  Status Open(const Device& device, std::string* why);
  // How the store uses it.
  DeviceUse use() const;
  // Of each slab in order; they stay this room's.
  const std::vector<int>& slab_fds() const { return slab_fds_; }

 private:
  Status MakeSlab(const Device& device, std::string* why);

  const Options options_;
  uint32_t retry_count_ = 0;
  std::vector<int> slab_fds_;
  std::unique_ptr<HbmTier> tier_;
};

// The device that the configuration names, and the name that clients know it by.
struct HbmDevice {
  Device device;
  std::string name;
};
Result<HbmDevice> OpenHbmDevice(const HbmConfig& hbm, std::string* why);

// One a domain, or none if the configuration gives the tier no capacity.
Status OpenDevices(const DaemonConfig& config,
                   const std::vector<std::unique_ptr<DomainArena>>& arenas,
                   const std::function<uint64_t()>& now_us,
                   std::vector<std::unique_ptr<DomainDevice>>* devices, std::string* why);

}  // namespace terrace
