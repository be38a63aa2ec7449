#include "daemon/log/operator_log.h"

#include <string>

#include "daemon/log/domain_text.h"
#include "daemon/log/log.h"
#include "terrace/units.h"

namespace terrace {

// No longer than the field; of a longer one the end is three dots.
static std::string CutTo(const std::string& text, size_t bytes) {
  constexpr std::string_view kDots = "...";
  if (text.size() <= bytes) return text;
  return text.substr(0, bytes - kDots.size()).append(kDots);
}

void OperatorLog::Add(uint32_t domain_index, std::string_view verb_name,
                      const OperatorEvent& event) {
  if (domain_index >= domains_.size()) domains_.resize(domain_index + 1);
  Domain& domain = domains_[domain_index];
  Kept& kept = domain.kept.emplace_front(Kept{.at_us = event.at_us,
                                              .entry = {.block_count = event.block_count,
                                                        .byte_count = event.byte_count,
                                                        .group = event.group,
                                                        .uid = event.uid,
                                                        .pid = event.pid,
                                                        .verb = event.verb,
                                                        .is_whole = event.is_whole,
                                                        .status = event.status}});
  event.client_name.copy(kept.entry.client_name, sizeof(kept.entry.client_name) - 1);
  CutTo(event.detail, sizeof(kept.entry.detail) - 1)
      .copy(kept.entry.detail, sizeof(kept.entry.detail) - 1);
  ++domain.event_count;
  if (domain.kept.size() > protocol::kOperatorLogMax) domain.kept.pop_back();
  Log(LogLevel::kInfo, "operator request",
      {{"verb", std::string(verb_name)},
       {"domain", DomainText(names_, domain_index)},
       {"uid", event.uid},
       {"pid", event.pid},
       {"client", std::string(event.client_name)},
       {"group", event.group.is_zero() ? "all" : ToHex(event.group)},
       {"blocks", event.block_count},
       {"bytes", event.byte_count},
       {"whole", event.is_whole ? "yes" : "no"},
       {"detail", event.detail},
       {"outcome", event.status == StatusCode::kOk ? "taken" : "refused: " + event.why}});
}

std::string OperatorLog::Answer(uint32_t domain_index, uint64_t now_us,
                                const protocol::OperatorLogRequest& asked) const {
  protocol::OperatorLogReply reply;
  std::string entries;
  if (domain_index < domains_.size()) {
    const Domain& domain = domains_[domain_index];
    reply.event_count = domain.event_count;
    for (const Kept& kept : domain.kept) {
      if (reply.entry_count == asked.entry_count_max) break;
      ++reply.entry_count;
      protocol::OperatorLogEntry entry = kept.entry;
      entry.age_ms = (now_us - kept.at_us) / kUsPerMs;
      entries.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
    }
  }
  return std::string(reinterpret_cast<const char*>(&reply), sizeof(reply)) + entries;
}

}  // namespace terrace
