#include "tools/replay/eviction/compared_policies.h"

#include <array>

#include "daemon/policy/eviction/policies.h"
#include "tools/replay/eviction/fifo.h"
#include "tools/replay/eviction/gdsf.h"
#include "tools/replay/eviction/lfu.h"
#include "tools/replay/eviction/sieve.h"
#include "tools/replay/eviction/wtinylfu.h"

namespace terrace::tools {

std::span<const std::string_view> ComparedPolicyNames() {
  static constexpr std::array<std::string_view, 9> kNames = {
      "arc", "fifo", "gdsf", "hazard", "lfu", "lru", "s3fifo", "sieve", "wtinylfu"};
  return kNames;
}

std::unique_ptr<EvictionPolicy> MakeComparedPolicy(std::string_view name,
                                                   uint32_t capacity_blocks) {
  if (name == "fifo") return std::make_unique<FifoPolicy>();
  if (name == "gdsf") return std::make_unique<GdsfPolicy>();
  if (name == "lfu") return std::make_unique<LfuPolicy>();
  if (name == "sieve") return std::make_unique<SievePolicy>();
  if (name == "wtinylfu") return std::make_unique<WTinyLfuPolicy>(capacity_blocks);
  return MakeEvictionPolicy(name, capacity_blocks);
}

}  // namespace terrace::tools
