#include "daemon/log/slow_log.h"

#include <algorithm>

#include "daemon/log/domain_text.h"
#include "daemon/log/log.h"
#include "src/verb_names.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kMinuteUs = 60 * kUsPerSecond;

// "queue 12, nvme 250310": phases that took a microsecond.
std::string Phases(const SlowRequest& request, const char* quote, const char* after_name) {
  std::string text;
  for (size_t i = 0; i < kRequestPhaseNames.size(); ++i) {
    const uint32_t us = request.times.us(static_cast<RequestPhase>(i));
    if (us == 0) continue;
    if (!text.empty()) text += ", ";
    text += quote + std::string(kRequestPhaseNames[i]) + quote + after_name + std::to_string(us);
  }
  return text;
}

std::string RowDocument(const SlowRequest& row, uint64_t now_us) {
  std::string text;
  const auto add = [&text](std::string_view name, uint64_t number) {
    text.append(", \"").append(name).append("\": ").append(std::to_string(number));
  };
  const auto add_text = [&text](std::string_view name, std::string_view value) {
    text.append(", \"").append(name).append("\": \"");
    for (const char c : value) text.append(c == '"' || c == '\\' ? "\\" : "").append(1, c);
    text += '"';
  };
  add("age_us", now_us - std::min(now_us, row.times.ended_us()));
  add("took_us", row.times.total_us());
  add("request", row.request_id);
  add_text("session", SessionText(row.session));
  add_text("verb", VerbNameOr(row.verb, "unknown"));
  add("status", static_cast<uint64_t>(row.status));
  add_text("client", row.client_name.data());
  add("uid", row.uid);
  add("pid", row.pid);
  add_text("group", row.group.is_zero() ? "" : ToHex(row.group));
  add("blocks", row.key_count);
  add("bytes", row.byte_count);
  text[0] = '{';
  text.append(", \"phases_us\": {").append(Phases(row, "\"", ": ")).append("}}");
  return text;
}

}  // namespace

void SlowLog::Add(uint32_t domain_index, const SlowRequest& request) {
  if (domain_index >= domains_.size()) domains_.resize(domain_index + 1);
  Domain& domain = domains_[domain_index];
  domain.rows.resize(kRowsMax);
  domain.rows[domain.request_count++ % kRowsMax] = request;

  Tell(request.times.ended_us());
  if (minute_count_ == 0) minute_began_us_ = request.times.ended_us();
  if (++minute_count_ > kLinesPerMinuteMax) {
    longest_us_ = std::max(longest_us_, request.times.total_us());
    return;
  }
  Log(LogLevel::kWarn, "slow request",
      {{"request", request.request_id},
       {"session", SessionText(request.session)},
       {"verb", std::string(VerbNameOr(request.verb, "unknown"))},
       {"domain", DomainText(names_, domain_index)},
       {"uid", request.uid},
       {"pid", request.pid},
       {"client", request.client_name.data()},
       {"status", static_cast<uint32_t>(request.status)},
       {"blocks", request.key_count},
       {"took_us", request.times.total_us()},
       {"phases_us", Phases(request, "", " ")}});
}

void SlowLog::Tell(uint64_t now_us) {
  if (minute_count_ == 0 || now_us < minute_began_us_ + kMinuteUs) return;
  if (minute_count_ > kLinesPerMinuteMax) {
    Log(LogLevel::kWarn, "slow requests",
        {{"count", minute_count_},
         {"not_told", minute_count_ - kLinesPerMinuteMax},
         {"seconds", (now_us - minute_began_us_) / kUsPerSecond},
         {"longest_us", longest_us_}});
  }
  minute_count_ = 0;
  longest_us_ = 0;
}

void SlowLog::Reset(uint32_t domain_index) {
  if (domain_index < domains_.size()) {
    domains_[domain_index].kept_from = domains_[domain_index].request_count;
  }
}

std::string SlowLog::Answer(uint32_t domain_index, uint64_t now_us, uint32_t row_count_max) const {
  static const Domain kNone;
  const Domain& domain = domain_index < domains_.size() ? domains_[domain_index] : kNone;
  const uint64_t row_count =
      std::min<uint64_t>({domain.request_count - domain.kept_from, kRowsMax, row_count_max});
  std::string rows;
  for (uint64_t i = 1; i <= row_count; ++i) {
    if (i > 1) rows += ",\n";
    rows += RowDocument(domain.rows[(domain.request_count - i) % kRowsMax], now_us);
  }
  return "{\"limit_ms\": " + std::to_string(limit_ms_) +
         ", \"request_count\": " + std::to_string(domain.request_count) + ", \"requests\": [" +
         rows + "]}";
}

}  // namespace terrace
