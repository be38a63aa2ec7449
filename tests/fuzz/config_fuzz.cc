// Configuration text, from a file or from an operator: refused in one sentence, or read; and what
// was read is printed as a text that means the same.
#include <algorithm>
#include <map>
#include <string>

#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"
#include "fuzz/fuzz.h"
#include "terrace/units.h"

namespace terrace::fuzz::config {

constexpr size_t kTextBytesMax = 64 * kKiB;
constexpr size_t kWhyBytesMax = 16 * kKiB;
// The library's tree of a text: a table a few characters long is some maps and strings.
constexpr uint64_t kHeapBytesMax = 256 * kKiB;
constexpr uint64_t kHeapFactor = 2'048;

ConfigEnvironment Somewhere() {
  return {.uid = 1000,
          .runtime_dir = "/run/user/1000",
          .state_directory = "",
          .state_home = "/home/somebody/state",
          .home = "/home/somebody"};
}

// What is printed is what a daemon would run with; before it is resolved, some keys say that they
// are still to be chosen, which no text can.
void JudgeResolved(const DaemonConfig& config) {
  const std::string printed = PrintConfig(config);
  DaemonConfig again;
  std::string why;
  Require(!config.domains.empty() && !config.state_dir.empty(), "resolved, and still unset");
  Require(ParseConfig(printed, "printed", &again, &why).ok(),
          "what was printed is refused: " + why);
  Require(PrintConfig(again) == printed, "what was printed means something else");
  Require(ResolveConfig({}, Somewhere(), &again, &why).ok(),
          "resolved twice it is refused: " + why);
  Require(PrintConfig(again) == printed, "resolved twice it means something else");
}

void JudgeRead(const std::string& text, const DaemonConfig& config) {
  std::string why;
  const std::map<std::string, uint32_t> lines = ConfigLines(text);
  const auto line_count = static_cast<uint32_t>(1 + std::ranges::count(text, '\n'));
  for (const ConfigEntry& entry : ConfigEntries(config)) {
    Require(!entry.key.empty() && !entry.meaning.empty(), "a key without a name or meaning");
    const auto line = lines.find(entry.key);
    Require(line == lines.end() || (line->second >= 1 && line->second <= line_count),
            "a key at a line that is not there");
  }
  DaemonConfig copied;
  copied.domains = config.domains;
  (void)CopyLive(config, "", &copied);
  const ConfigOverrides none;
  DaemonConfig resolved = config;
  if (!ResolveConfig(none, Somewhere(), &resolved, &why).ok()) {
    Require(!why.empty(), "refused, and nobody says why");
    return;
  }
  JudgeResolved(resolved);
}

void TryText(const std::string& text) {
  DaemonConfig config;
  std::string why;
  Status status;
  {
    HeapMeter meter;
    status = ParseConfig(text, "fuzz.toml", &config, &why);
    meter.RequireAtMost(kHeapBytesMax, kHeapFactor, text.size());
  }
  if (status.ok()) return JudgeRead(text, config);
  Require(status.code() == StatusCode::kInvalid && !why.empty(), "refused, and nobody says why");
  Require(why.size() <= kWhyBytesMax, "a refusal that nobody reads to its end");
}

void TryBytes(const std::string& text) {
  const Result<uint64_t> read = ParseBytes(text);
  if (!read.ok()) return Require(read.code() == StatusCode::kInvalid, "an unknown refusal");
  const Result<uint64_t> again = ParseBytes(FormatBytes(*read));
  Require(again.ok() && *again == *read, "a size does not come back");
}

Seed TextSeed(const std::string& name, std::string_view text, uint8_t kind = 0) {
  return {name, ChoiceWriter().Byte(kind).Append(text).Take()};
}

std::vector<Seed> Seeds() {
  DaemonConfig full;
  full.admin_uids = {0, 1000};
  full.nvme.paths = {"/mnt/a", "/mnt/b"};
  full.nvme.capacity_bytes = 8 * kGiB;
  full.kv_events.endpoint = "tcp://*:5557";
  full.redis.endpoints = {"redis:6379", "[::1]:6379"};
  full.redis.mode = RedisMode::kCluster;
  full.metrics.listen = "127.0.0.1:9090";
  full.domains.push_back({.name = "chat", .socket_path = "/run/chat.sock", .allow_uids = {{1000}}});
  full.domains.push_back(
      {.name = "batch", .socket_path = "/run/batch.sock", .dram_guaranteed_bytes = 64 * kMiB});
  std::string why;
  Require(ResolveConfig({}, Somewhere(), &full, &why).ok(), "the target's own: " + why);
  return {TextSeed("full", PrintConfig(full)),
          TextSeed("empty", ""),
          TextSeed("short", "[daemon]\ndram_bytes = \"2GiB\"\n"),
          TextSeed("domain", "[[domain]]\nname = \"a\"\nallow_uids = [1, 2]\n[domain.x]\n"),
          TextSeed("strings", "daemon.state_dir = \"\"\"\n/a\\u0041\"\"\"\nx='''q'''\n# end"),
          TextSeed("deep", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z.a.b.c.d.e.f.g = 1"),
          TextSeed("wrong_type", "[nvme]\npaths = [1979-05-27T07:32:00Z, {a = 1.5e3}, 0x10]\n"),
          TextSeed("size", "8GiB", 1),
          TextSeed("size_spaced", "512 MiB", 1),
          TextSeed("size_plain", "4096", 1)};
}

bool Run(std::span<const std::byte> input) {
  if (input.size() > kTextBytesMax) return false;
  Choices choices(input);
  const bool is_size = choices.Byte() % 8 == 1;
  const std::string text(TextOf(choices.Rest()));
  if (is_size) {
    TryBytes(text);
  } else {
    TryText(text);
  }
  return true;
}

// PROMISE: T29 configuration files
const Registration registration({"config", Run, Seeds});

}  // namespace terrace::fuzz::config
