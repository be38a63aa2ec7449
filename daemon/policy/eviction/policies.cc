#include "daemon/policy/eviction/policies.h"

#include <array>

#include "daemon/policy/eviction/arc.h"
#include "daemon/policy/eviction/hazard.h"
#include "daemon/policy/eviction/lru.h"
#include "daemon/policy/eviction/s3fifo.h"
#include "terrace/check.h"

namespace terrace {

std::span<const std::string_view> EvictionPolicyNames() {
  static constexpr std::array<std::string_view, 4> kNames = {"arc", "hazard", "lru", "s3fifo"};
  return kNames;
}

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(std::string_view name,
                                                   uint32_t capacity_blocks) {
  TERRACE_CHECK(capacity_blocks > 0, "a tier of no blocks has no policy");
  if (name == "arc") return std::make_unique<ArcPolicy>(capacity_blocks);
  if (name == "hazard") {
    return std::make_unique<HazardPolicy>(HazardOptions{.capacity_blocks = capacity_blocks});
  }
  if (name == "lru") return std::make_unique<LruPolicy>();
  if (name == "s3fifo") return std::make_unique<S3FifoPolicy>(capacity_blocks);
  return nullptr;
}

}  // namespace terrace
