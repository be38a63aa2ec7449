#include "tools/terrace/cli/status_report.h"

#include <fmt/core.h>

#include <array>
#include <ctime>
#include <optional>
#include <string_view>

#include "src/printable_text.h"
#include "terrace/protocol.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, protocol::kTierKindCount> kTierNames = {"hbm", "dram",
                                                                               "nvme", "redis"};

constexpr uint64_t kDayMs = uint64_t{24} * 3600 * 1000;

std::string BytesOr(std::optional<uint64_t> bytes) { return bytes ? FormatBytes(*bytes) : "-"; }

std::optional<uint64_t> Product(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  return a && b ? std::optional(*a * *b) : std::nullopt;
}

std::string ShareOr(std::optional<uint64_t> part, std::optional<uint64_t> whole) {
  return part && whole ? FormatShare(*part, *whole) : "-";
}

std::string Line(std::string_view title, const std::string& text) {
  return fmt::format("{:<10}{}\n", title, PrintableText(text));
}

std::string UptimeOr(const StatsView& stats) {
  auto uptime_ms = stats.Count("uptime_ms");
  return uptime_ms ? FormatMilliseconds(*uptime_ms) : "-";
}

std::string OrDash(std::string text) { return text.empty() ? "-" : text; }

// Nothing of a daemon that does not say.
std::string RenderHealth(const StatsView& stats) {
  const std::string health = stats.Text("health");
  if (health.empty()) return "";
  const std::vector<std::string> troubles = stats.Texts("troubles");
  if (troubles.empty()) return Line("health", health);
  std::string text;
  for (const std::string& trouble : troubles) {
    text += Line(text.empty() ? "health" : "", fmt::format("DEGRADED: {}", trouble));
  }
  return text;
}

// Who watches by HTTP is told nothing. Nothing where that is served, or was not asked for.
std::string RenderMetricsTrouble(const StatsView& stats) {
  const std::string trouble = stats.Text("metrics_trouble");
  if (trouble.empty()) return "";
  return Line("", "NOT SERVED: metrics, " + trouble + "; tried again every 5 s");
}

// Memory that cannot be had: pinned, or on its way to another domain. Nothing where there is none.
std::string RenderHeld(const StatsView& stats) {
  std::string text;
  const uint64_t by_engines = stats.Count("engine_pinned_bytes").value_or(0);
  const uint64_t by_name = stats.Count("named_pinned_bytes").value_or(0);
  if (by_engines + by_name > 0) {
    text +=
        Line("", fmt::format("pinned: {} in {} by engines themselves, {} in {} by name",
                             FormatBytes(by_engines),
                             CountOr(stats.Count("engine_pinned_blocks"), "block"),
                             FormatBytes(by_name), CountOr(stats.Count("named_pinned_blocks"))));
  }
  const uint64_t leaving = stats.Count("segments_leaving").value_or(0);
  if (leaving == 0) return text;
  std::string owed;
  for (const StatsView& session : stats.Each("sessions")) {
    const uint64_t count = session.Count("segments_owed").value_or(0);
    if (count == 0) continue;
    owed +=
        fmt::format("{}{} (pid {}) has not unmapped {}", owed.empty() ? ": " : ", ",
                    session.Text("client_name"), OrDash(session.Text("pid")), FormatCount(count));
  }
  return text +
         Line("", fmt::format("LEAVING: {}, {}{}", FormatCount(leaving, "segment"),
                              BytesOr(Product(leaving, stats.Count("segment_bytes"))), owed));
}

std::string RenderHead(const StatsView& stats) {
  std::string text = Line("domain", OrDash(stats.Text("domain.name")));
  text += Line("daemon", fmt::format("version {}, up {}, pid {}, boot {}",
                                     OrDash(stats.Text("version")), UptimeOr(stats),
                                     OrDash(stats.Text("pid")), OrDash(stats.Text("boot_id"))));
  text += Line(
      "", fmt::format(
              "{} turns, the longest {} us (at least {} of it without a processor), "
              "{} over {} us, {} of these for want of one",
              CountOr(stats.Count("turns")), CountOr(stats.Count("turn_us_max")),
              CountOr(stats.Count("turn_us_max_waited")), CountOr(stats.Count("turns_over_limit")),
              CountOr(stats.Count("turn_us_limit")), CountOr(stats.Count("turns_starved"))));
  auto segment_bytes = stats.Count("segment_bytes");
  auto used = stats.Count("slot_bytes_used");
  auto populated = Product(segment_bytes, stats.Count("segments_populated"));
  const auto page_bytes = stats.Count("arena_page_bytes");  // absent: an older daemon
  const auto mapped = stats.MappedBytes();
  const auto capacity = stats.DramCapacityBytes();
  text += Line(
      "memory",
      fmt::format("{} used ({} of populated), {} populated of at most {}{}{}", BytesOr(used),
                  ShareOr(used, populated), BytesOr(populated), BytesOr(capacity),
                  capacity == mapped ? "" : " (clients have mapped " + BytesOr(mapped) + ")",
                  page_bytes.value_or(0) == 0 ? "" : ", in pages of " + FormatBytes(*page_bytes)));
  const auto fenced_max = stats.Count("fenced_bytes_max");
  text += Line(
      "", fmt::format(
              "{} stranded, {} fenced in {} slots{}", BytesOr(stats.Count("slot_bytes_stranded")),
              BytesOr(stats.Count("fenced_bytes")), CountOr(stats.Count("fenced_slot_count")),
              fenced_max ? fmt::format(" (at {} nothing more is stored)", FormatBytes(*fenced_max))
                         : ""));
  text += RenderHeld(stats);
  text += RenderHealth(stats);
  text += RenderMetricsTrouble(stats);
  if (std::string serving = stats.Text("domain.serving"); !serving.empty()) {
    if (stats.Count("segments_populated") == 0) {
      serving += ", its first memory is being made ready: until then what lies below it is a miss";
    }
    const uint64_t unserved = stats.Count("domain.requests_unserved").value_or(0);
    text += Line("serving", unserved == 0 ? serving
                                          : fmt::format("{}, {} answered without being "
                                                        "served, while it was not",
                                                        serving, FormatCount(unserved, "request")));
  }
  text += Line("eviction", OrDash(stats.Text("domain.eviction")));
  text +=
      Line("blocks",
           fmt::format("{} resident, {} reserved, {} leased", CountOr(stats.Count("block_count")),
                       CountOr(stats.Count("reserved_count")),
                       CountOr(stats.Count("leased_block_count").has_value()
                                   ? stats.Count("leased_block_count")
                                   : stats.Count("pinned_count"))));  // of an older daemon
  text +=
      Line("clients", fmt::format("{}, {}, {}", CountOr(stats.Count("session_count"), "session"),
                                  CountOr(stats.Count("lease_count"), "lease"),
                                  CountOr(stats.Count("group_count"), "group")));
  return text;
}

// The process that wrote, as far as it was still known; when it did last.
std::string RenderWriter(const StatsView& writer) {
  std::string text;
  if (writer.Count("pid").value_or(0) > 0) {
    text += fmt::format(", pid {} ({}), client {}", writer.Text("pid"), OrDash(writer.Text("comm")),
                        OrDash(writer.Text("client_name")));
  }
  if (const auto unix_s = writer.Count("unix_s")) {
    const auto at = static_cast<std::time_t>(*unix_s);
    std::tm utc{};
    char when[32] = {};
    if (gmtime_r(&at, &utc) != nullptr) std::strftime(when, sizeof(when), "%FT%TZ", &utc);
    text += fmt::format(", last {}", when);
  }
  return text;
}

std::string RenderTraffic(const StatsView& stats) {
  auto asked = stats.Count("acquire_blocks_asked");
  auto hit = stats.Count("acquire_blocks_hit");
  std::string text = Line("hits", fmt::format("{} of {} acquired ({}), in {}", CountOr(hit),
                                              CountOr(asked, "block"), ShareOr(hit, asked),
                                              CountOr(stats.Count("acquire_requests"), "request")));
  std::string tiers;
  const std::vector<uint64_t> by_tier = stats.Counts("acquire_blocks_by_tier");
  for (size_t tier = 0; tier < by_tier.size() && tier < kTierNames.size(); ++tier) {
    if (by_tier[tier] == 0 && kTierNames[tier] != "dram") continue;
    tiers += fmt::format("{}{} {}", tiers.empty() ? "" : ", ", kTierNames[tier],
                         asked ? FormatShare(by_tier[tier], *asked) : FormatCount(by_tier[tier]));
  }
  if (!tiers.empty()) text += Line("", "by tier: " + tiers);
  if (stats.Count("read_ahead_blocks").value_or(0) > 0) {
    text += Line("", fmt::format("read ahead: {}, {} of them used",
                                 CountOr(stats.Count("read_ahead_blocks"), "block"),
                                 CountOr(stats.Count("read_ahead_used"))));
  }
  text += Line(
      "stores",
      fmt::format("{} sealed, {} evicted, {} expired, {} corrupt",
                  CountOr(stats.Count("blocks_sealed")), CountOr(stats.Count("blocks_evicted")),
                  CountOr(stats.Count("blocks_expired")), CountOr(stats.Count("blocks_corrupt"))));
  for (const StatsView& writer : stats.Each("domain.refuted_writers")) {
    text += Line("", fmt::format("WRONG CHECKSUMS: {} of session {}, uid {}{}: {} erased",
                                 CountOr(writer.Count("block_count"), "block"),
                                 writer.Text("session"), writer.Text("uid"), RenderWriter(writer),
                                 writer.Count("block_count") == 1u ? "it was" : "they were"));
  }
  text += Line(
      "refused",
      fmt::format("{} existed, {} busy, {} without space, {} passed by, {} commits too late",
                  CountOr(stats.Count("reserve_exists")), CountOr(stats.Count("reserve_busy")),
                  CountOr(stats.Count("reserve_no_space")),
                  CountOr(stats.Count("reserve_passed_by")), CountOr(stats.Count("commits_gone"))));
  return text;
}

std::string RenderGroups(const StatsView& stats) {
  using enum TextTable::Align;
  const std::vector<StatsView> groups = stats.Each("groups");
  if (groups.empty()) return "";
  TextTable table({{"GROUP", kLeft},
                   {"ID", kLeft},
                   {"MEMBERS", kRight},
                   {"TOKENS/BLOCK", kRight},
                   {"BLOCKS", kRight},
                   {"BLOCK SIZE", kRight},
                   {"BYTES", kRight},
                   {"HIT RATE", kRight}});
  for (const StatsView& group : groups) {
    auto blocks = group.Count("block_count");
    table.AddRow({group.Text("name"), group.Text("id"), CountOr(group.Count("member_count")),
                  CountOr(group.Count("block_tokens")), CountOr(blocks),
                  BytesOr(group.Count("block_bytes")),
                  BytesOr(Product(blocks, group.Count("block_bytes"))),
                  ShareOr(group.Count("acquire_blocks_hit"), group.Count("acquire_blocks_asked"))});
  }
  return fmt::format("\n{}", table.Render());
}

// What a tier that cannot be used now waits for.
std::string_view RenderTrouble(const StatsView& tier) {
  if (tier.Text("is_healthy") != "false") return "";
  return tier.Text("kind") == "hbm" ? ", WAITS for a client of the device"
                                    : ", DISABLED after errors";
}

// The copies that clients make between the device and DRAM; nothing where there is no HBM tier.
std::string RenderDevice(const StatsView& stats) {
  const auto count = [&stats](std::string_view name) {
    return CountOr(stats.Count(fmt::format("hbm.{}", name)));
  };
  if (!stats.Count("hbm.clients")) return "";
  return Line(
      "device",
      fmt::format("{}: {}, {} read there; orders: {} issued, {} again, {} "
                  "wait, {} late, {} refused, {} wrong, {} expired",
                  stats.Text("hbm.device"), CountOr(stats.Count("hbm.clients"), "client"),
                  CountOr(stats.Count("hbm.blocks_served"), "block"), count("orders_issued"),
                  count("orders_reissued"), count("orders_queued"), count("orders_late"),
                  count("orders_refused"), count("orders_wrong"), count("orders_expired")));
}

// What makes clients' copies between devices and DRAM; nothing where nobody has said.
std::string RenderCopies(const StatsView& stats) {
  using enum TextTable::Align;
  const std::vector<StatsView> clients = stats.Each("copies.clients");
  if (clients.empty()) return "";
  TextTable table({{"COPIES OF", kLeft},
                   {"BACKEND", kLeft},
                   {"PINNED", kRight},
                   {"STRAIGHT", kRight},
                   {"BOUNCED", kRight},
                   {"NOT PINNED", kRight},
                   {"WHY", kLeft}});
  for (const StatsView& client : clients) {
    table.AddRow({client.Text("session"), OrDash(client.Text("backend")),
                  BytesOr(client.Count("pinned_bytes")), BytesOr(client.Count("straight_bytes")),
                  BytesOr(client.Count("bounced_bytes")),
                  CountOr(client.Count("registrations_failed")), OrDash(client.Text("why"))});
  }
  return fmt::format("\n{}", table.Render());
}

// Since the daemon's start, at most of a day: what an earlier one wrote it does not know.
std::string RenderWritten(const StatsView& stats, const StatsView& tier) {
  const auto budget = tier.Count("write_bytes_per_day");
  const std::string allowed = budget ? fmt::format(" of {} allowed", FormatBytes(*budget)) : "";
  const std::string written = BytesOr(tier.Count("written_bytes_of_day"));
  const auto uptime_ms = stats.Count("uptime_ms");
  if (!uptime_ms || *uptime_ms >= kDayMs)
    return fmt::format("{} written in 24 h{}", written, allowed);
  return fmt::format("{} written since the start {} ago{}{}", written,
                     FormatMilliseconds(*uptime_ms), allowed, budget ? " in 24 h" : "");
}

std::string RenderLowerTiers(const StatsView& stats) {
  std::string text;
  for (const StatsView& tier : stats.Each("lower_tiers")) {
    text += Line(tier.Text("kind"),
                 fmt::format("{}, {} used of {}{}", CountOr(tier.Count("block_count"), "block"),
                             BytesOr(tier.Count("used_bytes")),
                             BytesOr(tier.Count("capacity_bytes")), RenderTrouble(tier)));
    const uint64_t suspect_bytes = tier.Count("suspect_bytes").value_or(0);
    const uint64_t lost_bytes = tier.Count("quarantined_bytes").value_or(0);
    if (suspect_bytes + lost_bytes > 0) {
      text += Line("", fmt::format("{} quarantined ({} of capacity), {} suspect and being tried",
                                   FormatBytes(lost_bytes),
                                   ShareOr(lost_bytes, tier.Count("capacity_bytes")),
                                   FormatBytes(suspect_bytes)));
    }
    if (const uint64_t above_bytes = tier.Count("above_bytes").value_or(0); above_bytes > 0) {
      text += Line("", fmt::format("{} of files, {} above the limit; {} are being emptied",
                                   BytesOr(tier.Count("held_bytes")), FormatBytes(above_bytes),
                                   BytesOr(tier.Count("leaving_bytes"))));
    }
    text += Line("", fmt::format("eviction {}, admission {}, {}", OrDash(tier.Text("eviction")),
                                 OrDash(tier.Text("admission")), RenderWritten(stats, tier)));
  }
  return text;
}

// The tier that hosts share; nothing where there is none.
std::string RenderRedis(const StatsView& stats) {
  const auto count = [&stats](std::string_view name) {
    return CountOr(stats.Count(fmt::format("redis.{}", name)));
  };
  const auto counted = [&stats](std::string_view name, std::string_view thing) {
    return CountOr(stats.Count(fmt::format("redis.{}", name)), thing);
  };
  const auto bytes = [&stats](std::string_view name) {
    return BytesOr(stats.Count(fmt::format("redis.{}", name)));
  };
  if (!stats.Count("redis.connections")) return "";
  const bool is_ready = stats.Text("redis.is_ready") == "true";
  const std::string trouble = stats.Text("redis.trouble");
  std::string text = Line(
      "redis",
      is_ready
          ? fmt::format("ready, {}, {} lost, breaker opened {}",
                        counted("connections", "connection"), count("connections_lost"),
                        counted("breaker_opened", "time"))
          : fmt::format("AWAY{}: {}",
                        stats.Text("redis.is_refused") == "true" ? ", the server refuses us" : "",
                        trouble.empty() ? "no server has answered yet" : trouble));
  if (const std::string refusal = stats.Text("redis.write_trouble"); is_ready && !refusal.empty()) {
    text += Line("", fmt::format("TAKES NO WRITES: {}", refusal));
  }
  if (const std::string part = stats.Text("redis.part_trouble"); is_ready && !part.empty()) {
    text += Line("", fmt::format("AWAY IN PART: {}", part));
  }
  if (const std::string files = stats.Text("redis.tls_trouble"); !files.empty()) {
    text += Line("", fmt::format("TLS FILES OF BEFORE are in use: {}", files));
  }
  text += Line("", fmt::format("given: {}, {} were there, {} failed, {} dropped, {} outdated; "
                               "{} in {} wait of at most {}",
                               counted("blocks_stored", "block"), count("blocks_existing"),
                               count("blocks_failed"), count("blocks_dropped"),
                               count("blocks_outdated"), bytes("queued_bytes"),
                               counted("queued_blocks", "block"), bytes("queue_bytes_max")));
  text +=
      Line("", fmt::format("taken: {} of {} found, {} missed, {} not worth it; {}, {} "
                           "shared, {} late",
                           counted("blocks_fetched", "block"), count("blocks_found"),
                           count("blocks_missed"), count("blocks_not_worth"),
                           counted("seeks", "seek"), count("seeks_joined"), count("seeks_late")));
  if (const uint64_t blocks = stats.Count("redis.blocks_over_quota").value_or(0); blocks > 0) {
    text += Line("", fmt::format("OVER QUOTA: {} not given, since the domain's share was used up: "
                                 "see `terrace quota`",
                                 FormatCount(blocks, "block")));
  }
  if (const uint64_t groups = stats.Count("redis.forgets_owed").value_or(0); groups > 0) {
    text += Line("", fmt::format("OWED: {} {} erased, and the server is not told yet; it is not "
                                 "used for {} until it is",
                                 FormatCount(groups, "group"), groups == 1 ? "was" : "were",
                                 groups == 1 ? "it" : "them"));
  }
  if (const uint64_t blocks = stats.Count("redis.erasures_owed").value_or(0); blocks > 0) {
    text += Line("", fmt::format("OWED: {} {} erased, and the server has {} yet; {} not taken "
                                 "from it",
                                 FormatCount(blocks, "block"), blocks == 1 ? "was" : "were",
                                 blocks == 1 ? "it" : "them", blocks == 1 ? "it is" : "they are"));
  }
  return text;
}

std::string StateOf(const StatsView& session) {
  std::string state = session.Text("is_hung_up") == "true" ? "gone, fenced" : "connected";
  if (session.Text("is_hung_up") != "true" && session.Count("revoked_leases").value_or(0) > 0) {
    state = "silent, fenced";
  }
  if (session.Text("is_reader") == "true") state += ", reads only";
  if (const uint64_t owed = session.Count("segments_owed").value_or(0); owed > 0) {
    state += fmt::format(", owes {}", FormatCount(owed, "segment"));
  }
  return state;
}

std::string RenderSessions(const StatsView& stats) {
  using enum TextTable::Align;
  const std::vector<StatsView> sessions = stats.Each("sessions");
  if (sessions.empty()) return "";
  TextTable table({{"CLIENT", kLeft},
                   {"SESSION", kLeft},
                   {"PID", kRight},
                   {"UID", kRight},
                   {"GROUPS", kRight},
                   {"PENDING", kRight},
                   {"STATE", kLeft}});
  for (const StatsView& session : sessions) {
    table.AddRow({session.Text("client_name"), session.Text("id"), OrDash(session.Text("pid")),
                  OrDash(session.Text("uid")), CountOr(session.Count("group_count")),
                  CountOr(session.Count("pending_count")), StateOf(session)});
  }
  return fmt::format("\n{}", table.Render());
}

}  // namespace

std::string RenderStatus(const StatsView& stats) {
  return RenderHead(stats) + RenderLowerTiers(stats) + RenderDevice(stats) + RenderRedis(stats) +
         RenderTraffic(stats) + RenderGroups(stats) + RenderSessions(stats) + RenderCopies(stats);
}

}  // namespace terrace::tools
