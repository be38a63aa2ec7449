#include "daemon/shell/live_config.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "daemon/config/config_keys.h"
#include "daemon/log/json_text.h"
#include "daemon/log/log.h"
#include "daemon/socket/domain.h"
#include "src/thread_name.h"

namespace terrace {
namespace {

constexpr size_t kReloadsAwaitingMax = 16;
constexpr char kOnCommandLine[] = "command line";
constexpr char kKept[] = "kept";
constexpr char kTakenByARestart[] = "a restart takes it";

using nlohmann::json;
using protocol::ConfigAction;

Error Invalid(std::string sentence) {
  return {Status(StatusCode::kInvalid, "the configuration is not valid"), std::move(sentence)};
}

// The domain that there is where the file names none.
void NameDomains(const DaemonConfig& resolved, DaemonConfig* config) {
  if (!config->domains.empty()) return;
  DomainConfig domain;
  domain.name = resolved.domains[0].name;
  domain.socket_path = resolved.domains[0].socket_path;
  domain.is_socket_default = resolved.domains[0].is_socket_default;
  config->domains.push_back(std::move(domain));
}

Error Resolve(const ConfigSource& source, DaemonConfig* config) {
  std::string why;
  if (const Status status = ResolveConfig(source.overrides, source.environment, config, &why);
      !status.ok()) {
    return {status, std::move(why)};
  }
  return {};
}

Error Parse(const ConfigSource& source, DaemonConfig* config) {
  if (source.path.empty()) return {};
  std::string why;
  const Status status = ParseConfig(source.text, source.path, config, &why);
  if (!status.ok()) return {status, std::move(why)};
  return {};
}

// Of a key of a tier that this daemon has not: the key that would bring it. Empty: it has it.
std::string_view TierMissing(const DaemonConfig& running, const std::string& key) {
  const std::string name = key.substr(key.rfind('.') + 1);
  const bool is_of_domain = key.starts_with("domain.");
  const auto is_of = [&](std::string_view tier) {
    return key.starts_with(std::string(tier) + ".") ||
           (is_of_domain && name.starts_with(std::string(tier) + "_"));
  };
  if (is_of("nvme") && !running.nvme.is_on()) return "nvme.paths";
  if (is_of("redis") && !running.redis.is_on()) return "redis.endpoints";
  if (is_of("hbm") && !running.hbm.is_on()) return "hbm.capacity_bytes";
  return {};
}

std::map<std::string, std::string> ValuesOf(const DaemonConfig& config) {
  std::map<std::string, std::string> values;
  for (ConfigEntry& entry : ConfigEntries(config)) values[entry.key] = std::move(entry.value);
  return values;
}

// Keys whose values have changed, with both, but of tiers that are not there.
json Changes(const DaemonConfig& from, const DaemonConfig& to) {
  std::map<std::string, std::string> before = ValuesOf(from);
  json rows = json::array();
  for (const ConfigEntry& entry : ConfigEntries(to)) {
    const std::string& value = before[entry.key];
    if (value == entry.value || !TierMissing(to, entry.key).empty()) continue;
    rows.push_back({{"key", entry.key}, {"from", value}, {"to", entry.value}});
  }
  return rows;
}

// What somebody who changed `from`, or wrote a first file, may not have meant. The same is logged.
json NotesOn(const DaemonConfig* from, const DaemonConfig& to) {
  json notes = json::array();
  for (size_t i = 0; i < to.domains.size(); ++i) {
    const DomainConfig& domain = to.domains[i];
    if (!domain.admits_nobody() || (from != nullptr && from->domains[i].admits_nobody())) continue;
    const std::string note =
        "domain " + domain.name +
        " admits nobody: allow_uids and allow_gids name nobody who can be let in";
    Log(LogLevel::kWarn, "configuration", {{"note", note}});
    notes.push_back(note);
  }
  return notes;
}

// What a restart would change, with the value that each key has and would have: `now` and `then`
// are resolved. Of a domain that comes or goes, what files have said of it (`told`).
json RestartRows(const DaemonConfig& now, const DaemonConfig& then,
                 const std::set<std::string>& told) {
  const auto is_told = [&told](const std::string& key) {
    return told.contains(key) || key.ends_with(".socket");
  };
  std::map<std::string, std::string> running = ValuesOf(now);
  json rows = json::array();
  for (const ConfigEntry& entry : ConfigEntries(then)) {
    const auto known = running.find(entry.key);
    const bool is_known = known != running.end();
    const std::string value = is_known ? known->second : "";
    if (is_known) running.erase(known);
    if (value == entry.value || (!is_known && !is_told(entry.key))) continue;
    rows.push_back({{"key", entry.key}, {"running", value}, {"file", entry.value}});
  }
  for (const auto& [key, value] : running) {
    if (value.empty() || !is_told(key)) continue;
    rows.push_back({{"key", key}, {"running", value}, {"file", ""}});
  }
  return rows;
}

// Of the files in effect that `file` still names for the domain. Of others, which no start will
// read again, `*rings` stay as they are.
Error LoadNamedRings(const DaemonConfig& running, const DaemonConfig& file, KeyRings* rings) {
  rings->resize(running.domains.size());
  for (size_t i = 0; i < running.domains.size(); ++i) {
    const DomainConfig& domain = running.domains[i];
    const bool is_named = std::ranges::any_of(file.domains, [&domain](const DomainConfig& other) {
      return other.name == domain.name && other.encryption_keys_file == domain.encryption_keys_file;
    });
    std::string why;
    if (!is_named) continue;
    const Status status = LoadKeyRing(domain, &(*rings)[i], &why);
    if (!status.ok()) return {status, std::move(why)};
  }
  return {};
}

// Ids alone, of keys files that hold others now, or the same in another order.
json KeysTaken(const DaemonConfig& config, const KeyRings& from, const KeyRings& to) {
  json rows = json::array();
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] == nullptr) continue;
    const std::string before = i < from.size() && from[i] != nullptr ? from[i]->Describe() : "";
    const std::string now = to[i]->Describe();
    if (now == before) continue;
    const DomainConfig& domain = config.domains[i];
    rows.push_back({{"domain", domain.name},
                    {"file", domain.encryption_keys_file},
                    {"from", before},
                    {"to", now},
                    {"encrypts", KeyIdText(to[i]->first())}});
  }
  return rows;
}

// "domain.chat.allow_uids" and [1000] as a file would say it. Of a value that is no TOML, as text.
std::string AsToml(const std::string& key, const std::string& value) {
  const size_t dot = key.rfind('.');
  const std::string section = key.substr(0, dot);
  const std::string line = key.substr(dot + 1) + " = " + value + "\n";
  if (!section.starts_with("domain.")) return "[" + section + "]\n" + line;
  return "[[domain]]\nname = \"" + section.substr(7) + "\"\n" + line;
}

// Of a key that is valid and cannot be set: of what domain it is, or that it is read at a start.
std::string WhyNotLive(const DaemonConfig& running, const std::string& key,
                       const std::string& path) {
  const std::string section = key.substr(0, key.rfind('.'));
  if (section.starts_with("domain.")) {
    const std::string name = section.substr(7);
    std::string names;
    bool is_there = false;
    for (const DomainConfig& domain : running.domains) {
      is_there = is_there || domain.name == name;
      names += (names.empty() ? "'" : ", '") + domain.name + "'";
    }
    if (!is_there) return "there is no domain '" + name + "'; the daemon has " + names;
  }
  return key + " needs a restart: write it into " +
         (path.empty() ? "a file, which --config names" : path) +
         " and restart terraced; `terrace config get` says which keys a reload, or config set, "
         "changes";
}

// Keys of that name in any section; a domain's with its name, where there is one domain.
std::string KeysNamed(const DaemonConfig& running, const std::string& name) {
  const std::string domain = running.domains.size() == 1 ? running.domains[0].name : "NAME";
  std::string keys;
  for (const std::string& key : ConfigKeyNames()) {
    const size_t dot = key.find('.');
    if (key.substr(dot + 1) != name) continue;
    const std::string section = key.substr(0, dot);
    keys += (keys.empty() ? "" : ", ") + section + "." + (section == "domain" ? domain + "." : "") +
            name;
  }
  return keys;
}

std::string WhyNoKey(const std::string& name) {
  const std::string shown = ShownKey(name);
  return "'" + shown +
         "' is no key: they are called as daemon.log_level, nvme.admission and "
         "domain.NAME.allow_uids; `terrace config get` lists all";
}

// Of a change that is none: what it lacks.
std::string WhyNoChange(const DaemonConfig& running, const ConfigChange& change) {
  const std::string keys = KeysNamed(running, change.key);
  if (keys.empty() && change.value && !change.key.empty()) {
    return WhyNoKey(change.key);
  }
  if (keys.empty()) {
    std::string quoted = ShownKey(change.text);
    if (change.text.size() > kConfigKeyBytesMax) quoted.append("...");
    return "'" + quoted +
           "' is no KEY=VALUE, such as daemon.log_level=debug or domain.NAME.allow_uids=[1000]";
  }
  const bool has_several = keys.find(',') != keys.npos;
  std::string why = "'" + change.key + "' lacks its section";
  why += has_several ? ": there are " : ": write ";
  why += keys;
  if (has_several) return why;
  return why + "=" + change.value.value_or("VALUE");
}

// What the file says of the size of a tier that is not there until a restart, and nothing of one
// that only a restart takes away, is that restart's. `kept` is what a file said of them last.
void LeaveOtherTiers(const DaemonConfig& file, const DaemonConfig& kept, DaemonConfig* wanted) {
  const bool is_nvme_other = file.nvme.is_on() != kept.nvme.is_on();
  const bool is_redis_other = file.redis.is_on() != kept.redis.is_on();
  if (kept.hbm.is_on() && !file.hbm.is_on()) wanted->hbm = kept.hbm;
  if (is_nvme_other) wanted->nvme.capacity_bytes = kept.nvme.capacity_bytes;
  if (is_nvme_other && kept.nvme.is_on()) wanted->nvme = kept.nvme;
  if (is_redis_other) wanted->redis.capacity_bytes = kept.redis.capacity_bytes;
  if (is_redis_other && kept.redis.is_on()) wanted->redis = kept.redis;
  for (size_t i = 0; i < wanted->domains.size(); ++i) {
    DomainConfig& domain = wanted->domains[i];
    if (is_nvme_other) {
      domain.nvme_guaranteed_bytes = kept.domains[i].nvme_guaranteed_bytes;
      domain.nvme_max_bytes = kept.domains[i].nvme_max_bytes;
    }
    if (is_redis_other) {
      domain.redis_guaranteed_bytes = kept.domains[i].redis_guaranteed_bytes;
      domain.redis_max_bytes = kept.domains[i].redis_max_bytes;
    }
  }
}

// Why a file that a start would take is refused: what needs a restart is as it was, beside it.
std::string WhatStays(const DaemonConfig& running, const DaemonConfig& file) {
  std::string names;
  for (const DomainConfig& domain : running.domains) {
    const bool is_there = std::ranges::any_of(
        file.domains, [&domain](const DomainConfig& other) { return other.name == domain.name; });
    if (!is_there) names += (names.empty() ? "'" : ", '") + domain.name + "'";
  }
  return ". A restart takes this file: until then " +
         (names.empty() ? "keys that need one stay as they are"
                        : "what it has no more, domain " + names + ", keeps what it has");
}

std::string Quoted(const std::string& value) {
  std::string quoted = "\"";
  for (const char letter : value) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted + '"';
}

}  // namespace

Error LoadConfig(const ConfigSource& source, DaemonConfig* config) {
  TERRACE_RETURN_IF_REFUSED(Parse(source, config));
  TERRACE_RETURN_IF_REFUSED(Resolve(source, config));
  std::string why;
  const Status redis = CheckRedis(config->redis, &why);
  if (!redis.ok()) return {redis, std::move(why)};
  KeyRings unused;
  return LoadKeyRings(*config, &unused);
}

Error LoadKeyRings(const DaemonConfig& config, KeyRings* rings) {
  rings->assign(config.domains.size(), nullptr);
  for (size_t i = 0; i < config.domains.size(); ++i) {
    std::string why;
    const Status status = LoadKeyRing(config.domains[i], &(*rings)[i], &why);
    if (!status.ok()) return {status, std::move(why)};
  }
  return {};
}

LiveConfig::LiveConfig(ConfigSource source, DaemonConfig& config, Hooks hooks)
    : source_(std::move(source)),
      config_(config),
      rings_(std::move(source_.rings)),
      tls_files_(RedisTlsFiles(config_.redis)),
      hooks_(std::move(hooks)),
      dram_bytes_max_(config_.dram_bytes) {
  (void)Parse(source_, &wanted_);  // it has been read before
  TakeLines(wanted_);
  is_domain_unnamed_ = wanted_.domains.empty();
  NameDomains(config_, &wanted_);
  for (DomainConfig& domain : wanted_.domains) domain.place.clear();  // keys may be set by hand
  wanted_.dram_bytes = DramBytesOf(wanted_);
  file_slab_bytes_ = wanted_.nvme.slab_bytes;
  wanted_.nvme.slab_bytes = config_.nvme.slab_bytes;  // worked out of a capacity that may change
  filed_ = wanted_;
  DaemonConfig plain;
  for (const DomainConfig& domain : config_.domains) {
    plain.domains.emplace_back().name = domain.name;
  }
  defaults_ = ValuesOf(plain);
  (void)NotesOn(nullptr, config_);
}

void LiveConfig::TakeLines(const DaemonConfig& file) {
  lines_ = ConfigLines(source_.text);
  said_ = ValuesOf(file);
  for (const auto& [key, line] : lines_) told_keys_.insert(key);
}

LiveConfig::~LiveConfig() {
  if (reader_.joinable()) reader_.join();
}

bool LiveConfig::EndReading(std::chrono::milliseconds wait_at_most) {
  return !reader_.joinable() || reader_end_.wait_for(wait_at_most) == std::future_status::ready;
}

void LiveConfig::Ask(ConfigAction action, const std::string& text, const Done& done) {
  std::string document;
  switch (action) {
    case ConfigAction::kGet: {
      const Error error = Get(text, &document);
      return done(error, document);
    }
    case ConfigAction::kSet: {
      const Error error = Set(text, &document);
      return done(error, document);
    }
    case ConfigAction::kReload:
      return BeginReload(done);
    case ConfigAction::kQuota:
      break;  // Administration's
  }
  done(Invalid("config action " + std::to_string(static_cast<uint32_t>(action)) +
               "; there are 0 (get), 1 (set), 2 (reload) and 3 (quota)"),
       document);
}

Error LiveConfig::Get(const std::string& key, std::string* document) const {
  json rows = json::array();
  for (const ConfigEntry& entry : ConfigEntries(config_)) {
    if (!key.empty() && entry.key != key) continue;
    rows.push_back(
        {{"key", entry.key}, {"value", entry.value}, {"from", Origin(entry.key, entry.value)}});
    // What the command line says outranks whatever is set or reloaded.
    rows.back()["is_live"] = entry.is_live && rows.back()["from"] != kOnCommandLine &&
                             TierMissing(config_, entry.key).empty();
    if (!key.empty()) rows.back()["meaning"] = std::string(entry.meaning);
  }
  if (!rows.empty()) {
    *document = JsonText({{"file", source_.path}, {"keys", std::move(rows)}});
    return {};
  }
  // What a file with that key would be told.
  DaemonConfig nothing;
  std::string why;
  (void)ParseConfig(AsToml(key, "0"), "", &nothing, &why);
  if (const std::string keys = KeysNamed(config_, key); !keys.empty()) {
    return Invalid("'" + key + "' lacks its section: ask for " + keys);
  }
  return Invalid(why.empty() || key.find('.') == key.npos ? WhyNoKey(key) : why);
}

std::string LiveConfig::Origin(const std::string& key, const std::string& value) const {
  if (set_keys_.contains(key)) return "set";
  const bool is_overridden =
      (key == "daemon.dram_bytes" && !source_.overrides.dram_bytes.empty()) ||
      (key.starts_with("domain.") && key.ends_with(".socket") &&
       !source_.overrides.socket_path.empty());
  if (is_overridden) return kOnCommandLine;
  if (kept_keys_.contains(key)) return kKept;
  if (const auto line = lines_.find(key); line != lines_.end()) {
    const std::string place = source_.path + ":" + std::to_string(line->second);
    const auto said = said_.find(key);
    return said == said_.end() || said->second == value ? place : place + ", worked out";
  }
  const auto plain = defaults_.find(key);
  return plain != defaults_.end() && plain->second != value ? "default, worked out" : "default";
}

// What a file asks for, as far as it can be had: the command line outranks it.
uint64_t LiveConfig::DramBytesOf(const DaemonConfig& file) const {
  return source_.overrides.dram_bytes.empty() ? std::min(file.dram_bytes, dram_bytes_max_)
                                              : config_.dram_bytes;
}

Error LiveConfig::Set(const std::string& text, std::string* document) {
  DaemonConfig wanted = wanted_;
  std::set<std::string> keys;
  const std::vector<ConfigChange> changes = ConfigChangesOf(text);
  Error refused;
  for (size_t i = 0; i < changes.size() && refused.ok(); ++i) {
    refused = i == kConfigChangesMax
                  ? Invalid("more than " + std::to_string(kConfigChangesMax) +
                            " changes at once, the limit: write them into the file")
                  : SetOne(changes[i], &wanted);
    if (refused.ok() && !keys.insert(changes[i].key).second) {
      refused = Invalid(changes[i].key + " is given two values: name it once");
    }
  }
  const DaemonConfig before = config_;
  if (refused.ok()) refused = Take(std::move(wanted), file_slab_bytes_);
  if (!refused.ok()) {
    return {refused.status(),
            refused.sentence() + (changes.size() > 1 ? ". None of these keys has changed" : "")};
  }
  set_keys_.merge(keys);
  *document =
      JsonText({{"changed", Changes(before, config_)}, {"notes", NotesOn(&before, config_)}});
  return {};
}

Error LiveConfig::SetOne(const ConfigChange& change, DaemonConfig* wanted) const {
  const std::string& key = change.key;
  if (!change.value || key.find('.') == key.npos) return Invalid(WhyNoChange(config_, change));
  if (key.size() > kConfigKeyBytesMax) {
    return Invalid("a key of " + std::to_string(key.size()) + " bytes, '" + ShownKey(key) +
                   "...': the longest has no more than " + std::to_string(kConfigKeyBytesMax));
  }
  const std::string& value = *change.value;
  if (value.empty()) {
    return Invalid(key +
                   " is given no value: write a list as [1000, 1001] or [], a text as "
                   "word, a size as 16GiB; `terrace config get " +
                   key +
                   "` says what is in "
                   "effect, `terrace config reload` takes the file's again");
  }
  DaemonConfig said;  // of a text that is no file's: nobody wrote its lines
  std::string why;
  if (!ParseConfig(AsToml(key, value), "", &said, &why).ok()) {
    std::string why_as_text;
    if (!ParseConfig(AsToml(key, Quoted(value)), "", &said, &why_as_text).ok()) {
      return Invalid(why.find("this is no TOML") == why.npos ? why : why_as_text);
    }
  }
  if (!CopyLive(said, key, wanted).ok()) {
    return Invalid(WhyNotLive(config_, key, source_.path));
  }
  if (const std::string_view missing = TierMissing(config_, key); !missing.empty()) {
    return Invalid(key + " is of a tier that this daemon has not, since " + std::string(missing) +
                   " is not set: write both into " +
                   (source_.path.empty() ? "a file, which --config names," : source_.path) +
                   " and restart terraced");
  }
  if (key == "daemon.dram_bytes" && !source_.overrides.dram_bytes.empty()) {
    return Invalid("terraced was started with --dram-bytes " + source_.overrides.dram_bytes +
                   ", which outranks daemon.dram_bytes: restart it without");
  }
  if (wanted->dram_bytes > dram_bytes_max_) {
    return Invalid("daemon.dram_bytes is " + FormatBytes(wanted->dram_bytes) +
                   "; while terraced runs it can be lowered, and raised again up to " +
                   FormatBytes(dram_bytes_max_) +
                   ", what it was started with: write more into the file and restart");
  }
  return {};
}

void LiveConfig::BeginReload(const Done& done) {
  if (source_.path.empty()) {
    return done(Invalid("there is no file to reload: terraced was started without --config"), "");
  }
  if (awaiting_.size() == kReloadsAwaitingMax) {
    return done(
        {StatusCode::kBusy, "a reload is under way, and " + std::to_string(kReloadsAwaitingMax) +
                                " others wait for it: try again"},
        "");
  }
  // What the file says now may not be what is being read of it.
  awaiting_.push_back(done);
  if (!is_reading_) ReadForAll();
}

void LiveConfig::ReadForAll() {
  if (reader_.joinable()) reader_.join();
  is_reading_ = true;
  auto source = std::make_shared<ConfigSource>(source_);
  const auto asked = std::make_shared<const std::vector<Done>>(std::exchange(awaiting_, {}));
  // Where keys are needs a restart: what is read again is of the paths in effect.
  DaemonConfig running;
  running.domains = config_.domains;
  running.redis = config_.redis;
  std::promise<void> end;
  std::future<void> ended = end.get_future();
  auto read = [this, source, asked, running = std::move(running), rings = rings_,
               end = std::move(end)]() mutable {
    DaemonConfig whole;
    std::string why;
    const Status text = ReadConfigText(source->path, &source->text, &why);
    Error error = text.ok() ? LoadConfig(*source, &whole) : Error(text, std::move(why));
    if (error.ok()) error = LoadNamedRings(running, whole, &rings);
    hooks_.post([this, asked, error, source, whole = std::move(whole), rings = std::move(rings),
                 tls_files = RedisTlsFiles(running.redis)] {
      is_reading_ = false;
      std::string document;
      const Error taken = error.ok() ? Reload(*source, whole, &document) : error;
      if (taken.ok()) TellTlsFiles(tls_files, &document);
      if (taken.ok()) TakeRings(rings, &document);
      for (const Done& done : *asked) done(taken, document);
      if (!awaiting_.empty()) ReadForAll();
    });
    end.set_value();
  };
  try {
    reader_ = StartThread("terrace-config", std::move(read));
    reader_end_ = std::move(ended);
  } catch (const std::system_error&) {
    is_reading_ = false;
    const Error none(
        StatusCode::kBusy,
        "no thread to read " + source_.path +
            " with: raise terraced's limit of tasks (TasksMax=, ulimit -u), and reload");
    for (const Done& done : *asked) done(none, "");
  }
}

// What was read has been checked as a whole; `next` is what a start would make of it.
Error LiveConfig::Reload(const ConfigSource& source, const DaemonConfig& next,
                         std::string* document) {
  DaemonConfig file;
  TERRACE_RETURN_IF_REFUSED(Parse(source, &file));
  if (is_domain_unnamed_) NameDomains(config_, &file);
  const uint64_t file_slab_bytes = file.nvme.is_on() ? file.nvme.slab_bytes : file_slab_bytes_;
  DaemonConfig wanted = filed_;
  (void)CopyLive(file, "", &wanted);
  LeaveOtherTiers(file, filed_, &wanted);
  wanted.dram_bytes = DramBytesOf(wanted);
  const DaemonConfig before = config_;
  if (const Error refused = Take(wanted, file_slab_bytes); !refused.ok()) {
    if (refused.sentence().ends_with(kTakenByARestart)) return refused;
    return {refused.status(), refused.sentence() + WhatStays(config_, file)};
  }
  filed_ = std::move(wanted);
  source_ = source;
  file_slab_bytes_ = file_slab_bytes;
  TakeLines(file);
  json needs_restart = RestartRows(config_, next, told_keys_);
  set_keys_.clear();
  kept_keys_.clear();
  for (const json& row : needs_restart) kept_keys_.insert(row["key"]);
  *document = JsonText({{"file", source_.path},
                        {"changed", Changes(before, config_)},
                        {"needs_restart", std::move(needs_restart)},
                        {"notes", NotesOn(&before, config_)}});
  return {};
}

// The tiers read them for themselves, at this reload and for each new connection.
void LiveConfig::TellTlsFiles(std::vector<RedisTlsFile> files, std::string* document) {
  json rows = json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].stamp == tls_files_[i].stamp) continue;
    rows.push_back({{"key", files[i].key}, {"file", files[i].path}});
  }
  tls_files_ = std::move(files);
  json told = json::parse(*document);
  told["tls_files_taken"] = std::move(rows);
  *document = JsonText(told);
}

// Also those that are as they were: whatever could not be wrapped under them is tried again.
void LiveConfig::TakeRings(KeyRings rings, std::string* document) {
  json told = json::parse(*document);
  told["keys_taken"] = KeysTaken(config_, rings_, rings);
  *document = JsonText(told);
  rings_ = std::move(rings);
  if (hooks_.take_rings) hooks_.take_rings(rings_);
}

// What depends on other keys is worked out from those that are in effect.
Error LiveConfig::Take(DaemonConfig wanted, uint64_t file_slab_bytes) {
  DaemonConfig resolved = wanted;
  if (const Error refused = Resolve(source_, &resolved); !refused.ok()) {
    DaemonConfig restarted = wanted;
    restarted.nvme.slab_bytes = file_slab_bytes;
    if (!Resolve(source_, &restarted).ok()) return refused;
    return {refused.status(), refused.sentence() +
                                  ". Its files keep that size while terraced runs: with this in "
                                  "the file, " +
                                  kTakenByARestart};
  }
  wanted_ = std::move(wanted);
  (void)CopyLive(resolved, "", &config_);
  hooks_.apply();
  return {};
}

}  // namespace terrace
