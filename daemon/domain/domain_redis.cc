#include "daemon/domain/domain_redis.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/persist/drive_directory.h"
#include "daemon/persist/kept_file.h"
#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kDrainStep{5};
// For the threads of all domains together: drives are closed after them.
constexpr std::chrono::seconds kRedisStop{1};

RedisTopology TopologyOf(RedisMode mode) {
  switch (mode) {
    case RedisMode::kSingle:
      return RedisTopology::kSingle;
    case RedisMode::kSentinel:
      return RedisTopology::kSentinel;
    case RedisMode::kCluster:
      return RedisTopology::kCluster;
  }
  return RedisTopology::kSingle;
}

Status ParseEndpoints(const RedisConfig& config, std::vector<RedisEndpoint>* endpoints,
                      std::string* why) {
  for (const std::string& text : config.endpoints) {
    Result<RedisEndpoint> endpoint = ParseRedisEndpoint(text, why);
    if (!endpoint.ok()) {
      *why = "redis.endpoints: " + *why;
      return endpoint.status();
    }
    endpoints->push_back(std::move(*endpoint));
  }
  return Status::Ok();
}

RedisTlsOptions TlsOf(const RedisConfig& config) {
  return {.ca_file = config.tls_ca_file,
          .certificate_file = config.tls_certificate_file,
          .key_file = config.tls_key_file,
          .server_name = config.tls_server_name};
}

const char* RemedyOf(const SharedTierStats& stats) {
  if (stats.is_tls_refused) {
    return "redis.tls_ca_file, redis.tls_certificate_file and redis.tls_key_file, read again once "
           "they change, or the server's certificate";
  }
  if (stats.is_of_another_kind) {
    return "redis.mode, redis.endpoints and redis.master_name, which a restart takes";
  }
  return stats.is_refused ? "redis.credentials_file, read again at each login, or the server's ACL"
                          : "the server, the network, or IPAddressAllow= of the unit";
}

// One a secret: names under another are others anyway.
std::string StemOf(const DomainConfig& domain, const std::string& secret_name) {
  return domain.name + '-' + secret_name;
}
std::string FileOf(const DaemonConfig& config, const std::string& stem, std::string_view suffix) {
  return config.state_dir + "/" + stem + std::string(suffix);
}
constexpr std::string_view kGenerations = ".redis-generations", kPlace = ".redis-place";
constexpr size_t kSecretNameBytes = 16;

// "<domain>-<secret>" of each such file.
template <typename Visit>
std::error_code ForEachStem(const std::string& state_dir, const Visit& visit) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator at(state_dir, error), end; !error && at != end; at.increment(error)) {
    const fs::path& file = at->path();
    if (file.extension() == kGenerations || file.extension() == kPlace) visit(file.stem());
  }
  return error;
}

// Who else has had a server under the secret, whose names of blocks have no domain's in them.
struct OldNames {
  std::set<std::string> stems;  // of the files of those that are not there any more
  bool is_new = false;          // others have files, and the domain has none
};
OldNames OldNamesOf(const DaemonConfig& config, const std::vector<DomainSecret>& secrets,
                    size_t domain_index) {
  const std::string secret_name = RedisSecretName(secrets[domain_index]);
  OldNames names;
  (void)ForEachStem(config.state_dir, [&](const std::string& stem) {
    if (stem.ends_with('-' + secret_name)) names.stems.insert(stem);
  });
  names.is_new = !names.stems.empty() &&
                 !names.stems.contains(StemOf(config.domains[domain_index], secret_name));
  for (size_t i = 0; i < secrets.size(); ++i) {
    if (secrets[i] != secrets[domain_index]) continue;
    names.stems.erase(StemOf(config.domains[i], secret_name));
  }
  return names;
}

// What the domain has written down by its own name says it all from now on: were the old one to
// come back, it would know nothing of this one.
void ForgetOldNames(const DaemonConfig& config, const OldNames& names) {
  for (const std::string& stem : names.stems) {
    for (const std::string_view suffix : {kGenerations, kPlace}) {
      const std::string path = FileOf(config, stem, suffix);
      if (const Status gone = RemoveSynced(path); !gone.ok()) {
        Log(LogLevel::kWarn, "a file of a domain that had another name cannot be removed",
            {{"path", path}, {"why", gone.what()}, {"remedy", "remove it"}});
      }
    }
  }
}

// The files of such a stem: whoever had a server there is nowhere now.
// False, and told in the log: that is not written down.
bool LeaveRedis(const DaemonConfig& config, const std::string& stem, const DomainSecret& secret) {
  const std::string path = FileOf(config, stem, kPlace);
  const Status left = LeaveRedis(FileOf(config, stem, kGenerations), path, secret);
  if (left.ok()) return true;
  Log(LogLevel::kWarn,
      "redis place cannot be written: the first erasure says that nothing there is believed; make "
      "the file writable, or remove it",
      {{"path", path}, {"why", left.what()}});
  return false;
}

uint64_t DigestOf(const DomainSecret& secret, const std::string& text) {
  return KeyedHash64(secret, std::as_bytes(std::span(text)));
}

// What is called alike there: of Sentinels the master's name says which servers, of the others the
// endpoints do.
RedisPlace PlaceOf(const RedisConfig& config, const RedisTier::Options& options) {
  const std::string names = std::to_string(static_cast<int>(options.topology)) + '\0' +
                            config.master_name + '\0' + config.prefix + '\0' +
                            std::to_string(options.version());
  RedisPlace place{.names = DigestOf(options.secret, names), .ttl_s = config.ttl_s};
  for (const std::string& endpoint : config.endpoints) {
    place.endpoints.push_back(DigestOf(options.secret, endpoint));
  }
  return place;
}

}  // namespace

Status CheckRedis(const RedisConfig& config, std::string* why) {
  std::vector<RedisEndpoint> endpoints;
  TERRACE_RETURN_IF_ERROR(ParseEndpoints(config, &endpoints, why));
  if (!config.credentials_file.empty()) {
    RedisCredentials unused;
    const Status status = ReadRedisCredentials(config.credentials_file, &unused, why);
    if (!status.ok()) {
      *why = "redis.credentials_file: " + *why;
      return status;
    }
  }
  if (config.tls == RedisTlsUse::kOff) return Status::Ok();
  const Result<std::unique_ptr<RedisTls>> tls = RedisTls::Open(TlsOf(config), why);
  if (tls.ok()) return Status::Ok();
  *why = "redis." + *why;
  return tls.status();
}

std::vector<RedisTlsFile> RedisTlsFiles(const RedisConfig& config) {
  std::vector<RedisTlsFile> files;
  if (!config.is_on() || config.tls == RedisTlsUse::kOff) return files;
  for (const auto& [key, path] : RedisTlsFilesOf(TlsOf(config))) {
    files.push_back({.key = "redis." + key, .path = path, .stamp = StampOf(path)});
  }
  return files;
}

Status DomainRedis::Open(std::string* why) {
  const RedisConfig& config = options_.redis;
  TERRACE_RETURN_IF_ERROR(CheckRedis(config, why));
  RedisTier::Options options;
  TERRACE_RETURN_IF_ERROR(ParseEndpoints(config, &options.endpoints, why));
  options.secret = options_.secret;
  options.topology = TopologyOf(config.mode);
  options.master_name = config.master_name;
  options.credentials_file = config.credentials_file;
  options.is_tls = config.tls == RedisTlsUse::kOn;
  options.tls = TlsOf(config);
  options.timeouts = {.connect_us = config.connect_timeout_ms * kUsPerMs,
                      .command_us = config.command_timeout_ms * kUsPerMs,
                      .bytes_per_second = config.bytes_per_second_min};
  options.prefix = config.prefix;
  options.ring = options_.ring;
  options.ttl_ms = config.ttl_s * uint64_t{1000};
  options.connections = config.connections;
  options.bytes_max = config.in_flight_bytes_max;
  options.absence_us = config.absence_ms * kUsPerMs;
  options.post = options_.post;
  options.unix_us = options_.unix_us;
  options.listener = this;
  LoadGenerations(&options);
  Result<std::unique_ptr<RedisTier>> tier = RedisTier::Open(std::move(options), why);
  if (!tier.ok()) return tier.status();
  tier_ = std::move(*tier);
  return Status::Ok();
}

void DomainRedis::LoadGenerations(RedisTier::Options* options) {
  generations_ = std::make_unique<KeptGenerations>(KeptGenerations::Options{
      .path = options_.generations_path,
      .place_path = options_.place_path,
      .secret = options_.secret,
      .place = PlaceOf(options_.redis, *options),
      .unix_s = options_.unix_us() / kUsPerSecond,
      .has_missed_erasure = options_.has_missed_erasure,
      .kept = [this, post = options_.post](
                  uint64_t revision) { post([this, revision] { tier_->Kept(revision); }); },
      .trouble =
          [name = options_.domain_name](const std::string& sentence) {
            Log(LogLevel::kWarn, "redis generations", {{"domain", name}, {"why", sentence}});
          }});
  options->keep = [this](uint64_t revision, RedisMemory memory) {
    generations_->Save(revision, std::move(memory));
  };
  Result<RedisMemory> kept = generations_->Load();
  if (kept.ok()) {
    options->memory = std::move(*kept);
    return;
  }
  options->is_memory_lost = true;
  Log(LogLevel::kWarn,
      "redis generations cannot be read: nothing that is on the redis server now is used, since "
      "nobody can tell what of it was to be forgotten",
      {{"domain", options_.domain_name},
       {"path", options_.generations_path},
       {"why", kept.status().what()}});
}

bool DomainRedis::EndThreads(std::chrono::steady_clock::time_point end) {
  if (generations_ == nullptr) return !is_left_behind_;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(std::max(
      end - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero()));
  const RedisEnd how = tier_->EndThread(static_cast<uint64_t>(left.count()));
  generations_.reset();
  is_left_behind_ = how != RedisEnd::kEnded;
  if (!is_left_behind_) return true;
  const bool is_resolver = how == RedisEnd::kResolverHangs;
  Log(LogLevel::kWarn, "redis is left behind: its thread hangs",
      {{"domain", options_.domain_name},
       {"why", is_resolver ? "the resolver of host names does not answer"
                           : "a file that logins read does not answer"},
       {"remedy", is_resolver ? "the name servers of /etc/resolv.conf, or addresses in place of "
                                "names in redis.endpoints"
                              : "the file system of redis.credentials_file and redis.tls_*_file"}});
  return false;
}

SharedUse DomainRedis::use(TierShares* shares) const {
  const RedisConfig& config = options_.redis;
  return {.tier = tier_.get(),
          .shares = shares,
          .window_us = config.ttl_s * kUsPerSecond,
          .is_storing = config.use != RedisUse::kFetch,
          .is_fetching = config.use != RedisUse::kStore,
          .is_storing_hits_only = config.admission == RedisAdmission::kHit,
          .queue_bytes_max = config.queue_bytes_max,
          .seek_us = config.probe_timeout_us};
}

std::string RedisSecretName(const DomainSecret& secret) {
  constexpr std::string_view kTitle = "redis-generations";
  return Hex16(KeyedHash64(secret, std::as_bytes(std::span(kTitle))));
}

std::set<std::string> RedisSecretNamesOf(const DaemonConfig& config, size_t domain_index) {
  const std::string begin = config.domains[domain_index].name + "-";
  std::set<std::string> names;
  const std::error_code error = ForEachStem(config.state_dir, [&](const std::string& stem) {
    if (stem.size() != begin.size() + kSecretNameBytes || !stem.starts_with(begin)) return;
    names.insert(stem.substr(begin.size()));
  });
  if (error && error != std::errc::no_such_file_or_directory) {
    Log(LogLevel::kWarn,
        "state_dir cannot be listed: what redis has under another secret is found again with it, "
        "even if it is erased now",
        {{"domain", config.domains[domain_index].name}, {"why", error.message()}});
  }
  return names;
}

Status OpenRedis(const DaemonConfig& config, const std::vector<DomainSecret>& secrets,
                 const std::vector<std::shared_ptr<const KeyRing>>& rings,
                 const std::function<void(std::function<void()>)>& post,
                 const std::function<uint64_t()>& unix_us, MissedErasures* missed,
                 std::vector<std::unique_ptr<DomainRedis>>* domains, std::string* why) {
  TERRACE_CHECK(secrets.size() == config.domains.size() && domains->empty(),
                "blocks are shared under their own domain's secret: both are found by its index");
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    const std::string name = RedisSecretName(secrets[i]);
    const std::string stem = StemOf(config.domains[i], name);
    Missed absent{.redis = missed->all_redis(i)};
    absent.redis.erase(name);
    const OldNames old = OldNamesOf(config, secrets, i);
    if (!config.redis.is_on()) {
      bool has_left = LeaveRedis(config, stem, secrets[i]);
      for (const std::string& other : old.stems) {
        has_left = LeaveRedis(config, other, secrets[i]) && has_left;
      }
      if (!has_left) absent.redis.insert(name);
      missed->AddAbsent(i, absent);
      continue;
    }
    missed->AddAbsent(i, absent);
    const bool is_called_otherwise = old.is_new || !old.stems.empty();
    const bool has_missed = is_called_otherwise || missed->missed(i).redis.contains(name);
    if (is_called_otherwise) {
      Log(LogLevel::kWarn,
          "a domain of this secret had another name, and nothing of before is used on redis: what "
          "it owed the server is not known by this one",
          {{"domain", config.domains[i].name}});
    } else if (has_missed) {
      Log(LogLevel::kWarn,
          "a secret is back, and nothing of before is used on redis: something was erased under "
          "another one",
          {{"domain", config.domains[i].name}});
    }
    auto domain = std::make_unique<DomainRedis>(
        DomainRedis::Options{.domain_name = config.domains[i].name,
                             .secret = secrets[i],
                             .redis = config.redis,
                             .generations_path = FileOf(config, stem, kGenerations),
                             .place_path = FileOf(config, stem, kPlace),
                             .has_missed_erasure = has_missed,
                             .ring = rings[i],
                             .post = post,
                             .unix_us = unix_us});
    TERRACE_RETURN_IF_ERROR(domain->Open(why));
    if (domain->has_kept_place()) {
      missed->StrikeRedis(i, name);
      ForgetOldNames(config, old);
    }
    domains->push_back(std::move(domain));
  }
  return Status::Ok();
}

bool StopRedis(std::span<const std::unique_ptr<DomainRedis>> domains) {
  for (const std::unique_ptr<DomainRedis>& domain : domains) domain->BeginStop();
  const auto end = std::chrono::steady_clock::now() + kRedisStop;
  bool have_ended = true;
  for (const std::unique_ptr<DomainRedis>& domain : domains) {
    have_ended = domain->EndThreads(end) && have_ended;
  }
  return have_ended;
}

bool CloseRedis(std::span<const std::unique_ptr<DomainRedis>> domains, const Store& store,
                asio::io_context& loop, uint32_t drain_ms) {
  if (domains.empty()) return true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(drain_ms);
  while (!store.is_shared_idle() && std::chrono::steady_clock::now() < end) {
    loop.restart();
    loop.run_for(kDrainStep);
  }
  for (const DomainStats& domain : store.Stats()) {
    if (!domain.shared.has_value()) continue;
    const uint64_t lost = domain.shared->queued_blocks + domain.shared->stores_under_way;
    if (lost == 0) continue;
    Log(LogLevel::kWarn, "blocks are not on the redis server: this host stopped before their turn",
        {{"domain", domain.name}, {"blocks", lost}, {"is_ready", domain.shared->tier.is_ready}});
  }
  if (StopRedis(domains)) return true;
  Log(LogLevel::kWarn, "redis hangs: drives are closed, then this ends as after a kill", {});
  return false;
}

void DomainRedis::LogHealth() {
  const SharedTierStats stats = tier_->stats();
  // A server that was restarted is away before it refuses us, for which others must act.
  const Told away = stats.is_of_another_kind ? Told::kOfAnotherKind
                    : stats.is_refused       ? Told::kRefused
                                             : Told::kAway;
  const Told part = stats.is_refused ? Told::kRefusedInPart : Told::kAwayInPart;
  if (stats.is_ready && !stats.part_trouble.empty()) {
    if (std::exchange(told_, part) != part) {
      Log(LogLevel::kWarn,
          "redis is away in part: what it would give are misses, all else is served",
          {{"domain", options_.domain_name},
           {"why", stats.part_trouble},
           {"remedy", RemedyOf(stats)}});
    }
  } else if (stats.is_ready && told_ != Told::kReady) {
    told_ = Told::kReady;
    Log(LogLevel::kInfo, "redis is there", {{"domain", options_.domain_name}});
  } else if (!stats.is_ready && !stats.trouble.empty() && told_ != away) {
    told_ = away;
    Log(LogLevel::kWarn, "redis is away: what it has are misses until it is back",
        {{"domain", options_.domain_name}, {"why", stats.trouble}, {"remedy", RemedyOf(stats)}});
  }
  LogTls(stats);
  LogOwed(stats);
  LogForgotten(stats);
  LogLocked();
}

void DomainRedis::LogTls(const SharedTierStats& stats) {
  if (stats.tls_trouble == tls_trouble_told_) return;
  tls_trouble_told_ = stats.tls_trouble;
  if (stats.tls_trouble.empty()) {
    Log(LogLevel::kInfo, "redis tls files can be used again", {{"domain", options_.domain_name}});
    return;
  }
  Log(LogLevel::kWarn, "redis tls files have changed and cannot be used: those of before stay",
      {{"domain", options_.domain_name}, {"why", "redis." + stats.tls_trouble}});
}

void DomainRedis::LogLocked() {
  const uint64_t locked = tier_->fetches_locked();
  if (locked == locked_told_) return;
  Log(LogLevel::kWarn,
      "redis has blocks that are encrypted under a key which is not here: they are misses, and "
      "stay for hosts that have it",
      {{"domain", options_.domain_name},
       {"blocks", locked - locked_told_},
       {"remedy", "put that host's key into encryption_keys_file, and reload"}});
  locked_told_ = locked;
}

void DomainRedis::LogOwed(const SharedTierStats& stats) {
  if (stats.forgets_owed > owed_told_) {
    Log(LogLevel::kWarn,
        "redis has not been told yet of groups whose blocks are erased: it is asked for none of "
        "them, and given none, until it has",
        {{"domain", options_.domain_name}, {"groups", stats.forgets_owed}});
  } else if (stats.forgets_owed == 0 && owed_told_ > 0) {
    Log(LogLevel::kInfo, "redis has forgotten what was erased",
        {{"domain", options_.domain_name}, {"groups", owed_told_}});
  }
  owed_told_ = stats.forgets_owed;
  if (stats.erasures_owed > erasures_told_) {
    Log(LogLevel::kWarn,
        "redis has not been told yet of blocks that are erased: they are not taken from it here; "
        "other hosts may be given them until it has",
        {{"domain", options_.domain_name}, {"blocks", stats.erasures_owed}});
  } else if (stats.erasures_owed == 0 && stats.forgets_owed == 0 && erasures_told_ > 0) {
    Log(LogLevel::kInfo, "redis has erased what was owed",
        {{"domain", options_.domain_name}, {"blocks", erasures_told_}});
  }
  // Blocks that a group's own debt has taken in are told of with it.
  erasures_told_ = stats.erasures_owed == 0 ? 0 : std::max(erasures_told_, stats.erasures_owed);
}

void DomainRedis::LogForgotten(const SharedTierStats& stats) {
  if (stats.generations_lost > lost_told_) {
    Log(LogLevel::kWarn,
        "redis has lost which blocks of these groups were forgotten: what it has of them is not "
        "believed, and what hosts have of them now they serve, and give to it no more",
        {{"domain", options_.domain_name},
         {"groups", stats.generations_lost - lost_told_},
         {"remedy",
          "nothing, once: what is computed from now on is shared; often: see the "
          "server's memory, its maxmemory-policy and what it saves"}});
  }
  lost_told_ = stats.generations_lost;
  if (stats.forgotten_elsewhere > elsewhere_told_) {
    Log(LogLevel::kInfo,
        "another host has had groups forgotten on redis: what this host has of them it serves, "
        "and gives to redis no more",
        {{"domain", options_.domain_name},
         {"groups", stats.forgotten_elsewhere - elsewhere_told_}});
  }
  elsewhere_told_ = stats.forgotten_elsewhere;
}

void DomainRedis::OnSharedFetched(TransferId transfer_id, Status status,
                                  const BlockRecord& record) {
  listener_->OnSharedFetched(transfer_id, status, record);
}

void DomainRedis::OnSharedStored(TransferId transfer_id, Status status) {
  listener_->OnSharedStored(transfer_id, status);
}

void DomainRedis::OnSharedProbed(uint64_t probe_id, Status status,
                                 const std::vector<bool>& is_present) {
  listener_->OnSharedProbed(probe_id, status, is_present);
}

void DomainRedis::OnSharedForgotten(const GroupId& group) { listener_->OnSharedForgotten(group); }

}  // namespace terrace
