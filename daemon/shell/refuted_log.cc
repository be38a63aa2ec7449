#include "daemon/shell/refuted_log.h"

#include <string>
#include <vector>

#include "daemon/log/log.h"

namespace terrace {

std::function<void(uint32_t domain_index, const RefutedWriter& writer)> LogRefuted(
    const DaemonConfig& config, const Clock& clock) {
  std::vector<std::string> names;
  for (const DomainConfig& domain : config.domains) names.push_back(domain.name);
  return [names, &clock, gate = LogGate()](uint32_t domain_index,
                                           const RefutedWriter& writer) mutable {
    uint64_t held_back = 0;
    if (!gate.Open(clock.NowUs(), &held_back)) return;
    Log(LogLevel::kWarn, "a client's checksums are wrong: the block is erased",
        {{"domain", names[domain_index]},
         {"session", writer.session},
         {"uid", writer.uid},
         {"blocks_of_session", writer.block_count},
         {"not_told", held_back}});
  };
}

}  // namespace terrace
