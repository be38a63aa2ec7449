#include "daemon/policy/eviction/policies.h"

#include <array>

#include "daemon/policy/eviction/arc.h"
#include "daemon/policy/eviction/fifo.h"
#include "daemon/policy/eviction/gdsf.h"
#include "daemon/policy/eviction/hazard.h"
#include "daemon/policy/eviction/lfu.h"
#include "daemon/policy/eviction/lru.h"
#include "daemon/policy/eviction/s3fifo.h"
#include "daemon/policy/eviction/sieve.h"
#include "daemon/policy/eviction/wtinylfu.h"

namespace terrace {

std::span<const std::string_view> EvictionPolicyNames() {
  static constexpr std::array<std::string_view, 9> kNames = {
      "arc", "fifo", "gdsf", "hazard", "lfu", "lru", "s3fifo", "sieve", "wtinylfu"};
  return kNames;
}

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(std::string_view name,
                                                   uint32_t capacity_blocks) {
  if (name == "arc") return std::make_unique<ArcPolicy>(capacity_blocks);
  if (name == "fifo") return std::make_unique<FifoPolicy>();
  if (name == "gdsf") return std::make_unique<GdsfPolicy>();
  if (name == "hazard") {
    return std::make_unique<HazardPolicy>(HazardOptions{.capacity_blocks = capacity_blocks});
  }
  if (name == "lfu") return std::make_unique<LfuPolicy>();
  if (name == "lru") return std::make_unique<LruPolicy>();
  if (name == "s3fifo") return std::make_unique<S3FifoPolicy>(capacity_blocks);
  if (name == "sieve") return std::make_unique<SievePolicy>();
  if (name == "wtinylfu") return std::make_unique<WTinyLfuPolicy>(capacity_blocks);
  return nullptr;
}

}  // namespace terrace
