#include "tools/terrace/top/frame.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "src/printable_text.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

using enum TextTable::Align;

std::string BytesOr(Figure bytes) { return bytes ? FormatBytes(*bytes) : "-"; }

std::string RateOr(Rate rate) {
  if (!rate) return "-";
  if (*rate > 0 && *rate < 10) return fmt::format("{:.1f}", *rate);
  return FormatCount(static_cast<uint64_t>(*rate + 0.5));
}

std::string BytesRateOr(Rate rate) {
  return rate ? FormatBytes(static_cast<uint64_t>(*rate + 0.5)) : "-";
}

std::string ShareOr(Rate share) { return share ? fmt::format("{:.1f} %", *share * 100) : "-"; }

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

bool IsContinued(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// At most `columns` wide, one a character; '?' in place of what would steer a terminal.
std::string Fitted(std::string_view line, size_t columns) {
  std::string fitted = PrintableText(line);
  size_t width = 0;
  for (size_t i = 0; i < fitted.size(); ++i) {
    if (!IsContinued(fitted[i]) && ++width > columns) fitted.resize(i);
  }
  return fitted;
}

void AddLines(std::string_view text, std::vector<std::string>* lines) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    lines->emplace_back(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
}

void AddHead(const Frame& frame, std::vector<std::string>* lines) {
  const Sample& now = *frame.sample;
  lines->push_back(fmt::format("domain {}, terraced {} of pid {} up {}, rates of {:g} s",
                               OrDash(now.domain), OrDash(now.version), OrDash(now.pid),
                               FormatMilliseconds(now.uptime_ms), frame.interval_s));
  if (!frame.away.empty()) {
    lines->push_back("NO DAEMON: " + frame.away);
  } else if (now.health == "ok" || now.health.empty()) {
    lines->push_back(frame.rates && frame.rates->is_restarted
                         ? "the daemon has started anew: rates from the next picture on"
                         : "health " + OrDash(now.health));
  } else {
    lines->push_back("DEGRADED: " + now.health);
  }
  lines->push_back(fmt::format("{}, {} of {}; {}, {} being written",
                               CountOr(now.sessions, "session"), CountOr(now.leases, "lease"),
                               CountOr(now.leased_blocks, "block"), CountOr(now.blocks, "block"),
                               CountOr(now.reserved_blocks)));
  lines->emplace_back();
}

void AddTiers(const Sample& now, const Rates& rates, std::vector<std::string>* lines) {
  TextTable table({{"TIER", kLeft},
                   {"USED", kRight},
                   {"CAPACITY", kRight},
                   {"FULL", kRight},
                   {"HITS/s", kRight},
                   {"SHARE", kRight},
                   {"READ/s", kRight},
                   {"WRITTEN/s", kRight}});
  for (size_t t = 0; t < now.tiers.size(); ++t) {
    const TierSample& tier = now.tiers[t];
    const TierRates of_tier = t < rates.tiers.size() ? rates.tiers[t] : TierRates{};
    table.AddRow({tier.trouble.empty() ? tier.kind : tier.kind + " " + tier.trouble,
                  BytesOr(tier.used_bytes), BytesOr(tier.capacity_bytes),
                  tier.used_bytes && tier.capacity_bytes
                      ? FormatShare(*tier.used_bytes, *tier.capacity_bytes)
                      : "-",
                  RateOr(of_tier.hits), ShareOr(of_tier.share), BytesRateOr(of_tier.read_bytes),
                  BytesRateOr(of_tier.written_bytes)});
  }
  const Rate missed = rates.asked && rates.hit && *rates.asked >= *rates.hit
                          ? Rate(*rates.asked - *rates.hit)
                          : std::nullopt;
  table.AddRow({"missed", "", "", "", RateOr(missed), ShareOr(rates.miss_share), "", ""});
  AddLines(table.Render(), lines);
}

// Indexes of groups, the busiest first; then those with the most bytes.
std::vector<size_t> Busiest(const Sample& now, const Rates& rates) {
  std::vector<size_t> order(now.groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto asked = [&](size_t g) {
    return g < rates.groups.size() ? rates.groups[g].asked.value_or(0) : 0.0;
  };
  const auto bytes = [&](size_t g) {
    return now.groups[g].block_count.value_or(0) * now.groups[g].block_bytes.value_or(0);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return asked(a) != asked(b) ? asked(a) > asked(b) : bytes(a) > bytes(b);
  });
  return order;
}

// A name takes what a row of 80 columns has left.
std::string Shortened(const std::string& name) {
  constexpr size_t kNameColumnsMax = 28;
  const std::string cut = Fitted(name, kNameColumnsMax);
  return cut.size() < name.size() ? Fitted(name, kNameColumnsMax - 1) + "…" : cut;
}

void AddGroups(const Sample& now, const Rates& rates, size_t rows_max,
               std::vector<std::string>* lines) {
  if (now.groups.empty() || rows_max < 2) return;
  const std::vector<size_t> order = Busiest(now, rates);
  const bool is_cut = order.size() > rows_max - 1;
  const size_t shown = is_cut ? rows_max - 2 : order.size();
  TextTable table({{"GROUP", kLeft},
                   {"BLOCKS", kRight},
                   {"BYTES", kRight},
                   {"ASKED/s", kRight},
                   {"HIT/s", kRight},
                   {"SHARE", kRight}});
  for (size_t i = 0; i < shown; ++i) {
    const GroupSample& group = now.groups[order[i]];
    const GroupRates of_group =
        order[i] < rates.groups.size() ? rates.groups[order[i]] : GroupRates{};
    table.AddRow({Shortened(group.name), CountOr(group.block_count),
                  group.block_count && group.block_bytes
                      ? FormatBytes(*group.block_count * *group.block_bytes)
                      : "-",
                  RateOr(of_group.asked), RateOr(of_group.hit), ShareOr(of_group.share)});
  }
  AddLines(table.Render(), lines);
  if (is_cut) lines->push_back(fmt::format("and {} more", order.size() - shown));
}

nlohmann::json Or(const Rate& rate) { return rate ? nlohmann::json(*rate) : nlohmann::json(); }
nlohmann::json Or(const Figure& figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

}  // namespace

std::vector<std::string> RenderFrame(const Frame& frame, const FrameLimits& limits) {
  std::vector<std::string> lines;
  if (!frame.sample) {
    lines.push_back("NO DAEMON: " + frame.away);
  } else {
    // Nothing goes on while nobody answers.
    const Rates rates = frame.away.empty() ? frame.rates.value_or(Rates{}) : Rates{};
    AddHead(frame, &lines);
    AddTiers(*frame.sample, rates, &lines);
    lines.emplace_back();
    lines.push_back(fmt::format("a second: {} requests, {} blocks asked, {} hit ({})",
                                RateOr(rates.requests), RateOr(rates.asked), RateOr(rates.hit),
                                ShareOr(rates.share)));
    lines.push_back(fmt::format("          {} stored, {} evicted, {} expired", RateOr(rates.stored),
                                RateOr(rates.evicted), RateOr(rates.expired)));
    lines.emplace_back();
    AddGroups(*frame.sample, rates, limits.rows - std::min(limits.rows, lines.size()), &lines);
  }
  if (lines.size() > limits.rows) lines.resize(limits.rows);
  for (std::string& line : lines) line = Fitted(line, limits.columns);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

nlohmann::json ToJson(const Frame& frame) {
  nlohmann::json document = {
      {"away", frame.away.empty() ? nlohmann::json() : nlohmann::json(frame.away)}};
  if (!frame.sample) return document;
  const Sample& now = *frame.sample;
  const Rates rates = frame.rates.value_or(Rates{});
  document.update({{"domain", now.domain},
                   {"version", now.version},
                   {"boot_id", now.boot_id},
                   {"uptime_ms", now.uptime_ms},
                   {"health", now.health},
                   {"elapsed_ms", rates.elapsed_ms},
                   {"is_restarted", rates.is_restarted},
                   {"session_count", Or(now.sessions)},
                   {"lease_count", Or(now.leases)},
                   {"block_count", Or(now.blocks)},
                   {"requests_per_s", Or(rates.requests)},
                   {"blocks_asked_per_s", Or(rates.asked)},
                   {"blocks_hit_per_s", Or(rates.hit)},
                   {"blocks_stored_per_s", Or(rates.stored)},
                   {"blocks_evicted_per_s", Or(rates.evicted)},
                   {"blocks_expired_per_s", Or(rates.expired)},
                   {"hit_share", Or(rates.share)},
                   {"tiers", nlohmann::json::array()},
                   {"groups", nlohmann::json::array()}});
  for (size_t t = 0; t < now.tiers.size(); ++t) {
    const TierSample& tier = now.tiers[t];
    const TierRates of_tier = t < rates.tiers.size() ? rates.tiers[t] : TierRates{};
    document["tiers"].push_back({{"kind", tier.kind},
                                 {"used_bytes", Or(tier.used_bytes)},
                                 {"capacity_bytes", Or(tier.capacity_bytes)},
                                 {"blocks_hit_per_s", Or(of_tier.hits)},
                                 {"hit_share", Or(of_tier.share)},
                                 {"read_bytes_per_s", Or(of_tier.read_bytes)},
                                 {"written_bytes_per_s", Or(of_tier.written_bytes)},
                                 {"trouble", tier.trouble}});
  }
  for (const size_t g : Busiest(now, rates)) {
    const GroupRates of_group = g < rates.groups.size() ? rates.groups[g] : GroupRates{};
    document["groups"].push_back({{"name", now.groups[g].name},
                                  {"id", now.groups[g].id},
                                  {"block_count", Or(now.groups[g].block_count)},
                                  {"blocks_asked_per_s", Or(of_group.asked)},
                                  {"blocks_hit_per_s", Or(of_group.hit)},
                                  {"hit_share", Or(of_group.share)}});
  }
  return document;
}

}  // namespace terrace::tools
