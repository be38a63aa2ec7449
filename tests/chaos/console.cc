// The eyes of a chaos check: asks the daemon what it holds, and compares it with what can be read.
#include <algorithm>
#include <cinttypes>
#include <set>
#include <string>
#include <vector>

#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

constexpr uint64_t kConsoleDeadlineUs = 5'000'000;
constexpr uint32_t kListPageEntries = 512;
constexpr uint32_t kListPagesMax = 4096;

std::string OnOneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void SayError(const char* command, const Status& status, Client& client) {
  std::string reason = client.last_error();
  std::replace(reason.begin(), reason.end(), '"', '\'');
  Say("{\"error\": \"%s: status %u: %s\"}", command, static_cast<unsigned>(status.code()),
      OnOneLine(reason).c_str());
}

void SayStats(Client& client) {
  const auto stats = client.Stats(kConsoleDeadlineUs);
  if (stats.ok()) {
    Say("%s", OnOneLine(*stats).c_str());
  } else {
    SayError("stats", stats.status(), client);
  }
}

// What the blocks themselves add up to.
void SayLedger(Client& client, uint64_t small_bytes) {
  uint64_t cursor = 0;
  uint64_t block_count = 0;
  uint64_t byte_count = 0;
  uint64_t leased_count = 0;
  for (uint32_t page = 0; page < kListPagesMax; ++page) {
    const auto entries =
        client.List({.entry_count_max = kListPageEntries}, &cursor, kConsoleDeadlineUs);
    if (!entries.ok()) return SayError("ledger", entries.status(), client);
    for (const protocol::ListEntry& entry : *entries) {
      ++block_count;
      byte_count += entry.byte_count;
      leased_count += entry.lease_count > 0 ? 1 : 0;
    }
    if (cursor == 0) break;
  }
  Say("{\"blocks\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"leased\": %" PRIu64
      ", \"slot_bytes\": %" PRIu64 "}",
      block_count, byte_count, leased_count, ChaosGroup(small_bytes).members[0].spec.slot_bytes());
}

// Reads every block of every prompt that is still there.
void SayAudit(Traffic& traffic) {
  const Traffic::Options& options = traffic.options();
  std::set<BlockKey> seen;
  uint32_t wrong_count = 0;
  for (uint32_t i = 0; i < options.prompt_count; ++i) {
    const auto keys = traffic.Keys(options.prompt_first + i, options.blocks_max);
    auto lease = traffic.Acquire(keys);
    if (!lease.ok()) return SayError("audit", lease.status(), traffic.client());
    traffic.WaitReady(*lease);
    wrong_count += traffic.Verify(*lease, keys);
    seen.insert(keys.begin(), keys.begin() + lease->ready_count());
    lease->Release();
  }
  Say("{\"blocks\": %zu, \"wrong\": %u}", seen.size(), wrong_count);
}

void SayEvict(Client& client) {
  const auto reply = client.Evict(
      GroupRef{}, {}, {.deadline_us = kConsoleDeadlineUs, .flags = protocol::kEvictSubtree});
  if (!reply.ok()) return SayError("evict", reply.status(), client);
  Say("{\"blocks\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"skipped\": %" PRIu64 "}",
      reply->block_count, reply->byte_count, reply->skipped_count);
}

void SayReset(Traffic& traffic) {
  const Status status = traffic.client().Reset(traffic.group());
  if (!status.ok()) return SayError("reset", status, traffic.client());
  Say("{}");
}

}  // namespace

int RunConsole(const Arguments& arguments, Progress* progress) {
  Traffic::Options options = Traffic::ReadOptions(arguments);
  options.client_name = "console";
  options.deadline_us = kConsoleDeadlineUs;
  Traffic traffic(options, progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Say("ready");
  std::string line;
  while (Listen(&line)) {
    (void)traffic.client().WaitConnected(kConsoleDeadlineUs);  // the answer to `line` will tell
    if (line == "stats") {
      SayStats(traffic.client());
    } else if (line == "ledger") {
      SayLedger(traffic.client(), traffic.options().small_bytes);
    } else if (line == "audit") {
      SayAudit(traffic);
    } else if (line == "evict") {
      SayEvict(traffic.client());
    } else if (line == "reset") {
      SayReset(traffic);
    } else {
      break;
    }
  }
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
