// Configuration text, from a file or from an operator: refused in one sentence, or read; and what
// was read is printed as a text that means the same.
#include <algorithm>
#include <charconv>
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
  uint64_t number = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), number);
  Require(*read >= number, "a size of fewer bytes than its number says");
  const Result<uint64_t> again = ParseBytes(FormatBytes(*read));
  Require(again.ok() && *again == *read, "a size does not come back");
}

// What an operator asks to be changed, a line each: what is not said so is kept as it was said, for
// the sentence that refuses it.
void TryChanges(const std::string& text) {
  const std::vector<ConfigChange> changes = ConfigChangesOf(text);
  Require(!changes.empty() && changes.size() <= kConfigChangesMax + 1, "changes without a bound");
  const auto is_trimmed = [](std::string_view part) {
    constexpr std::string_view kBlanks = " \t\r\n";
    return part.empty() || (kBlanks.find(part.front()) == kBlanks.npos &&
                            kBlanks.find(part.back()) == kBlanks.npos);
  };
  size_t at = 0;
  for (const ConfigChange& change : changes) {
    Require(text.compare(at, change.text.size(), change.text) == 0, "another line than was said");
    at += change.text.size() + 1;
    Require(change.key.find('=') == change.key.npos, "a key with a value in it");
    Require(is_trimmed(change.key) && is_trimmed(change.value.value_or("")), "blanks are no key");
    Require(change.value.has_value() == (change.text.find('=') != change.text.npos),
            "a value that nobody gave, or one that was lost");
  }
}

Seed TextSeed(const std::string& name, std::string_view text, uint8_t kind = 0) {
  return {name, ChoiceWriter().Byte(kind).Append(text).Take()};
}

// Each is read; what it means is refused.
constexpr std::string_view kRefused[] = {
    "[daemon]\nstate_dir = \"x\"\n",
    "[daemon]\nkeeper_socket = \"x\"\n",
    "[daemon]\ntrace_dir = \"x\"\n",
    "[daemon]\ntrace = \"on\"\n",
    "[daemon]\nsegment_bytes = \"6MiB\"\n",
    "[daemon]\ndram_bytes = \"64MiB\"\nsegment_bytes = \"256MiB\"\n",
    "[daemon]\ndeadline_default_ms = 9000\ndeadline_ms_max = 8000\n",
    "[[domain]]\nname = \"A\"\nsocket = \"/s\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"s\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\n[[domain]]\nname = \"a\"\nsocket = \"/t\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\n[[domain]]\nname = \"b\"\nsocket = \"/s\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\ndram_guaranteed_bytes = \"8GiB\"\n"
    "dram_max_bytes = \"1GiB\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\ndram_lent_bytes_max = \"1GiB\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\ndram_max_bytes = \"1MiB\"\n",
    "[daemon]\ndram_bytes = \"1GiB\"\n[[domain]]\nname = \"a\"\nsocket = \"/s\"\n"
    "dram_guaranteed_bytes = \"1GiB\"\n[[domain]]\nname = \"b\"\nsocket = \"/t\"\n",
    "[nvme]\npaths = [\"x\"]\n",
    "[nvme]\npaths = [\"/x\", \"/x\"]\n",
    "[nvme]\npaths = [\"/x\"]\n",
    "[nvme]\ncapacity_bytes = \"1GiB\"\n",
    "[nvme]\nslab_bytes = 67108865\n",
    "[nvme]\npaths = [\"/x\"]\ncapacity_bytes = \"1GiB\"\nslab_bytes = \"8GiB\"\n",
    "[nvme]\npaths = [\"/x\"]\ncapacity_bytes = \"4GiB\"\n[[domain]]\nname = \"a\"\n"
    "socket = \"/s\"\nnvme_max_bytes = \"8GiB\"\n",
    "[hbm]\ndevice = \"x\"\n",
    "[hbm]\nplugin_path = \"x\"\n",
    "[hbm]\ncapacity_bytes = \"1GiB\"\nslab_bytes = \"6MiB\"\n",
    "[hbm]\ncapacity_bytes = \"4MiB\"\nslab_bytes = \"256MiB\"\n",
    "[metrics]\nlisten = \"x\"\n",
    "[metrics]\nlisten = \"0.0.0.0:9464\"\n",
    "[kv_events]\nreplay_endpoint = \"tcp://*:1\"\n",
    "[kv_events]\nendpoint = \"x\"\n",
    "[kv_events]\nendpoint = \"tcp://*:1\"\ntopic = \"{x}\"\n",
    "[redis]\nmaster_name = \"m\"\n",
    "[redis]\nendpoints = [\"r:1\"]\nmaster_name = \"m\"\n",
    "[redis]\nendpoints = [\"r:1\"]\nmode = \"sentinel\"\n",
    "[redis]\nendpoints = [\"r:1\"]\ntls_ca_file = \"/c\"\n",
    "[redis]\nendpoints = [\"r:1\"]\ntls = \"on\"\ntls_key_file = \"/k\"\n",
    "[redis]\nendpoints = [\"r:1\", \"r:2\"]\n",
    "[redis]\nendpoints = [\"r:1\"]\nprefix = \"{\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\nsocket_mode = \"0999\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\nnvme_max_bytes = \"1GiB\"\n",
    "[[domain]]\nname = \"a\"\nsocket = \"/s\"\nredis_max_bytes = \"1GiB\"\n",
    "[nvme]\npaths = [\"/x\"]\ncapacity_bytes = \"4GiB\"\n[[domain]]\nname = \"a\"\n"
    "socket = \"/s\"\nnvme_guaranteed_bytes = \"2GiB\"\nnvme_max_bytes = \"1GiB\"\n",
    "[nvme]\npaths = [\"/x\"]\ncapacity_bytes = \"1TiB\"\nslab_bytes = \"64MiB\"\n",
    "[nvme]\npaths = [\"/x\"]\ncapacity_bytes = \"1023TiB\"\nslab_bytes = \"64GiB\"\n",
    "[kv_events]\nendpoint = \"ipc:///s\"\n[[domain]]\nname = \"a\"\nsocket = \"/s\"\n",
    "[kv_events]\nendpoint = \"ipc:///s.bypass\"\n[[domain]]\nname = \"a\"\nsocket = \"/s\"\n",
    "[daemon]\nkeeper_socket = \"/k\"\n[kv_events]\nendpoint = \"ipc:///k\"\n",
    "[kv_events]\nendpoint = \"ipc:///e\"\nreplay_endpoint = \"ipc:///e\"\n",
    "[redis]\nendpoints = [\"r:1\"]\n[[domain]]\nname = \"a\"\nsocket = \"/s\"\n"
    "redis_guaranteed_bytes = \"1GiB\"\n",
    "[redis]\nendpoints = [\"r:1\"]\ncapacity_bytes = \"1GiB\"\n[[domain]]\nname = \"a\"\n"
    "socket = \"/s\"\nredis_guaranteed_bytes = \"600MiB\"\n[[domain]]\nname = \"b\"\n"
    "socket = \"/t\"\nredis_guaranteed_bytes = \"600MiB\"\n",
};

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
  std::vector<Seed> seeds;
  for (const std::string_view text : kRefused) {
    seeds.push_back(TextSeed("refused_" + std::to_string(seeds.size()), text));
  }
  std::string domains;
  for (uint32_t i = 0; i <= kDomainsMax; ++i) {
    domains += "[[domain]]\nname = \"" + std::to_string(i) + "\"\nsocket = \"/" +
               std::to_string(i) + "\"\n";
  }
  seeds.push_back(TextSeed("refused_domains", domains));
  const std::vector<Seed> others = {
      TextSeed("full", PrintConfig(full)),
      TextSeed("empty", ""),
      TextSeed("short", "[daemon]\ndram_bytes = \"2GiB\"\n"),
      TextSeed("domain", "[[domain]]\nname = \"a\"\nallow_uids = [1, 2]\n[domain.x]\n"),
      TextSeed("strings", "daemon.state_dir = \"\"\"\n/a\\u0041\"\"\"\nx='''q'''\n# end"),
      TextSeed("deep", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z.a.b.c.d.e.f.g = 1"),
      TextSeed("wrong_type", "[nvme]\npaths = [1979-05-27T07:32:00Z, {a = 1.5e3}, 0x10]\n"),
      TextSeed("size", "8GiB", 1),
      TextSeed("size_spaced", "512 MiB", 1),
      TextSeed("size_plain", "4096", 1),
      TextSeed("changes", "daemon.log_level = debug\n domain.a.allow_uids=[1, 2]\r\nnothing\n=", 2),
      TextSeed("changes_many", std::string(kConfigChangesMax + 3, '\n'), 2)};
  seeds.insert(seeds.end(), others.begin(), others.end());
  return seeds;
}

bool Run(std::span<const std::byte> input) {
  if (input.size() > kTextBytesMax) return false;
  Choices choices(input);
  const uint8_t kind = choices.Byte() % 8;
  const std::string text(TextOf(choices.Rest()));
  if (kind == 1) {
    TryBytes(text);
  } else if (kind == 2) {
    TryChanges(text);
  } else {
    TryText(text);
  }
  return true;
}

// PROMISE: T29 configuration files
const Registration registration({"config", Run, Seeds});

}  // namespace terrace::fuzz::config
