#include "daemon/eviction/policies.h"

#include <array>

#include "daemon/eviction/fifo.h"
#include "daemon/eviction/gdsf.h"
#include "daemon/eviction/hazard.h"
#include "daemon/eviction/lfu.h"
#include "daemon/eviction/lru.h"

namespace terrace {

std::span<const std::string_view> EvictionPolicyNames() {
  static constexpr std::array<std::string_view, 5> kNames = {"fifo", "gdsf", "hazard", "lfu",
                                                             "lru"};
  return kNames;
}

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(std::string_view name,
                                                   uint32_t capacity_blocks) {
  if (name == "fifo") return std::make_unique<FifoPolicy>();
  if (name == "gdsf") return std::make_unique<GdsfPolicy>();
  if (name == "hazard") {
    return std::make_unique<HazardPolicy>(HazardOptions{.capacity_blocks = capacity_blocks});
  }
  if (name == "lfu") return std::make_unique<LfuPolicy>();
  if (name == "lru") return std::make_unique<LruPolicy>();
  return nullptr;
}

}  // namespace terrace
