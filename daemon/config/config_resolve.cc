#include "daemon/config/config_resolve.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "cuda/host/device_loader.h"
#include "cuda/host/device_name.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/config_text.h"
#include "daemon/config/fd_needs.h"
#include "daemon/config/listen_address.h"
#include "src/masked_address.h"

namespace terrace {
namespace {

Status Refuse(std::string* why, std::string sentence) {
  *why = std::move(sentence);
  return Status(StatusCode::kInvalid, "the configuration is not valid");
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == path.npos ? "/" : path.substr(0, slash);
}

Status DefaultSocket(const ConfigEnvironment& environment, std::string* path, std::string* why) {
  if (environment.uid == 0) {
    *path = "/run/terrace/default.sock";
  } else if (!environment.runtime_dir.empty()) {
    *path = environment.runtime_dir + "/terrace/default.sock";
  } else {
    return Refuse(why,
                  "no place for the socket: XDG_RUNTIME_DIR is not set and the daemon is not root; "
                  "name one with --socket or [[domain]] socket");
  }
  return Status::Ok();
}

std::string DefaultStateDir(const ConfigOverrides& overrides,
                            const ConfigEnvironment& environment) {
  if (!environment.state_directory.empty()) {
    return environment.state_directory.substr(0, environment.state_directory.find(':'));
  }
  // A socket named on the command line is a private daemon: its state stays with it.
  if (!overrides.socket_path.empty()) return DirectoryOf(overrides.socket_path);
  if (environment.uid == 0) return "/var/lib/terrace";
  if (!environment.state_home.empty()) return environment.state_home + "/terrace";
  return environment.home.empty() ? "" : environment.home + "/.local/state/terrace";
}

Status ApplyOverrides(const ConfigOverrides& overrides, DaemonConfig* config, std::string* why) {
  if (!overrides.dram_bytes.empty()) {
    const auto key = std::ranges::find(DaemonKeys(), "dram_bytes", &ConfigKey<DaemonConfig>::name);
    const auto& field = std::get<BytesField<DaemonConfig>>(key->field);
    const Result<uint64_t> bytes = ParseBytes(overrides.dram_bytes);
    if (!bytes.ok() || *bytes < field.min || *bytes > field.max) {
      return Refuse(why, "--dram-bytes is '" + overrides.dram_bytes + "'; write " +
                             WantedBytes(field.min, field.max));
    }
    config->dram_bytes = *bytes;
  }
  if (overrides.socket_path.empty()) return Status::Ok();
  if (config->domains.size() != 1) {
    return Refuse(why, "--socket names the socket of one domain, but the configuration has " +
                           std::to_string(config->domains.size()) +
                           ": set socket in each [[domain]] instead");
  }
  config->domains[0].socket_path = overrides.socket_path;
  return Status::Ok();
}

Status CheckMemory(const DaemonConfig& config, std::string* why) {
  const std::string dram = "daemon.dram_bytes is " + FormatBytes(config.dram_bytes);
  const std::string segment = "daemon.segment_bytes is " + FormatBytes(config.segment_bytes);
  if (!IsPowerOfTwo(config.segment_bytes)) {
    return Refuse(why, segment + "; it must be a power of two from " +
                           FormatBytes(kSegmentBytesMin) + " to " + FormatBytes(kSegmentBytesMax));
  }
  const uint64_t segments = config.dram_bytes / config.segment_bytes;
  if (segments < config.domains.size()) {
    return Refuse(
        why, dram + " and " + segment + ": that is " + std::to_string(segments) +
                 " segments, and each domain (there are " + std::to_string(config.domains.size()) +
                 ") needs one at least: raise dram_bytes, or write a smaller "
                 "segment_bytes (not below " +
                 FormatBytes(kSegmentBytesMin) + ") under [daemon] of a file that --config names");
  }
  uint64_t guaranteed_bytes = 0;
  for (const DomainConfig& domain : config.domains) {
    // A domain has one segment, whatever it is guaranteed.
    guaranteed_bytes +=
        RoundUp(std::max<uint64_t>(domain.dram_guaranteed_bytes, 1), config.segment_bytes);
    if (domain.dram_lent_bytes_max > domain.dram_guaranteed_bytes) {
      return Refuse(why, domain.place + "domain " + domain.name + ": dram_lent_bytes_max is " +
                             FormatBytes(domain.dram_lent_bytes_max) +
                             ", more than its dram_guaranteed_bytes of " +
                             FormatBytes(domain.dram_guaranteed_bytes) +
                             ": it can lend what it is guaranteed");
    }
    if (domain.dram_guaranteed_bytes > domain.dram_max_bytes) {
      return Refuse(why, domain.place + "domain " + domain.name + ": dram_guaranteed_bytes is " +
                             FormatBytes(domain.dram_guaranteed_bytes) +
                             ", more than its dram_max_bytes of " +
                             FormatBytes(domain.dram_max_bytes) + ": lower one or raise the other");
    }
    if (domain.dram_max_bytes < config.segment_bytes) {
      return Refuse(why, domain.place + "domain " + domain.name + ": dram_max_bytes is " +
                             FormatBytes(domain.dram_max_bytes) + " and " + segment +
                             ": a domain needs one segment at least");
    }
  }
  if (guaranteed_bytes > config.dram_bytes) {
    return Refuse(
        why,
        "the domains' dram_guaranteed_bytes, rounded up to segments and one for each that "
        "is guaranteed none, sum to " +
            FormatBytes(guaranteed_bytes) + ", but " + dram +
            ": lower the guarantees or raise dram_bytes");
  }
  return Status::Ok();
}

// Keys of a domain that say what it has of a tier, where that tier is not configured: they were
// meant to do something. `needs` is the key that would make the tier.
struct IdleKey {
  const char* name;
  uint64_t value_bytes;
};

Status RefuseIdle(const DomainConfig& domain, std::initializer_list<IdleKey> keys, const char* tier,
                  const char* needs, std::string* why) {
  for (const IdleKey& key : keys) {
    if (key.value_bytes == 0) continue;
    return Refuse(why, domain.place + "domain " + domain.name + ": " + key.name + " is " +
                           FormatBytes(key.value_bytes) + ", and there is no " + tier +
                           " tier, of which it would be a part: set " + needs + ", or remove " +
                           key.name);
  }
  return Status::Ok();
}

// What a domain is guaranteed of a tier and its limit there, by the keys that say so.
struct NamedShare {
  const DomainConfig& domain;
  const char* tier;
  uint64_t guaranteed_bytes, max_bytes;
};

Status CheckShare(const NamedShare& share, std::string* why) {
  if (share.guaranteed_bytes <= share.max_bytes) return Status::Ok();
  const std::string tier = share.tier;
  return Refuse(why, share.domain.place + "domain " + share.domain.name + ": " + tier +
                         "_guaranteed_bytes is " + FormatBytes(share.guaranteed_bytes) +
                         ", more than its " + tier + "_max_bytes of " +
                         FormatBytes(share.max_bytes) + ": lower one or raise the other");
}

// What is said of `key`, which is a domain's limit, or the tier's size.
struct FilesOfDomain {
  std::string key;
  std::string place;  // of the domain's table; empty: the key is the tier's
  uint64_t key_bytes = 0;
  uint64_t per_key = 1;  // domains that have equal shares of it
  uint64_t max_bytes = 0;
};

Status CheckFileCount(const NvmeConfig& nvme, const FilesOfDomain& domain, std::string* why) {
  const uint64_t files_max = kSlabFilesOfAPath * nvme.paths.size();
  if (domain.max_bytes / nvme.slab_bytes <= files_max) return Status::Ok();
  const uint64_t slab_bytes = std::bit_ceil(RoundUp(domain.max_bytes, files_max) / files_max);
  const std::string remedy = slab_bytes <= kSlabBytesMax
                                 ? "raise slab_bytes to " + FormatBytes(slab_bytes)
                                 : std::string("name more paths");
  return Refuse(why, domain.place + domain.key + " is " + FormatBytes(domain.key_bytes) +
                         ", nvme.slab_bytes is " + FormatBytes(nvme.slab_bytes) +
                         " and nvme.paths names " + std::to_string(nvme.paths.size()) +
                         ": a path has " + std::to_string(kSlabFilesOfAPath) +
                         " files of a domain at most; " + remedy + ", or lower " + domain.key +
                         " to " + FormatBytes(files_max * nvme.slab_bytes * domain.per_key));
}

Status ResolveNvmeShares(DaemonConfig* config, std::string* why) {
  const NvmeConfig& nvme = config->nvme;
  uint64_t guaranteed_bytes = 0;
  for (DomainConfig& domain : config->domains) {
    uint64_t& guaranteed = domain.nvme_guaranteed_bytes;
    uint64_t& most = domain.nvme_max_bytes;
    const char* limit = "nvme_max_bytes";
    FilesOfDomain files{.key = "domain " + domain.name + ": nvme_max_bytes", .place = domain.place};
    if (most == 0) {
      files.key = "nvme.capacity_bytes";
      files.place.clear();
      if (guaranteed == 0) files.per_key = config->domains.size();
      if (guaranteed == 0) limit = "its equal share of nvme.capacity_bytes";
      most = guaranteed == 0 ? nvme.capacity_bytes / config->domains.size() : nvme.capacity_bytes;
    }
    if (guaranteed == 0) {
      guaranteed = most;
    } else {
      most = std::min(most, nvme.capacity_bytes);
    }
    const bool is_small = guaranteed < nvme.slab_bytes && guaranteed <= most;
    if (is_small || most < nvme.slab_bytes) {
      return Refuse(why, domain.place + "domain " + domain.name + ": " +
                             (most < nvme.slab_bytes ? limit : "nvme_guaranteed_bytes") + " is " +
                             FormatBytes(std::min(guaranteed, most)) + " and nvme.slab_bytes is " +
                             FormatBytes(nvme.slab_bytes) +
                             ": a domain needs one slab at least; raise the one or lower the "
                             "other (not below " +
                             FormatBytes(kSlabBytesMin) + ")");
    }
    TERRACE_RETURN_IF_ERROR(CheckShare({domain, "nvme", guaranteed, most}, why));
    files.max_bytes = most;
    files.key_bytes = files.per_key == 1 ? most : nvme.capacity_bytes;
    TERRACE_RETURN_IF_ERROR(CheckFileCount(nvme, files, why));
    guaranteed_bytes += guaranteed;
  }
  if (guaranteed_bytes <= nvme.capacity_bytes) return Status::Ok();
  return Refuse(why, "the domains' nvme_guaranteed_bytes (absent: their nvme_max_bytes) sum to " +
                         FormatBytes(guaranteed_bytes) + ", more than nvme.capacity_bytes of " +
                         FormatBytes(nvme.capacity_bytes) + ": lower them or raise it");
}

// nvme.slab_bytes where none is set. A file holds blocks of one size: where there are few files,
// each size that comes drives another one off the drive. Of a large tier they are so large that a
// path has kSlabFilesOfAPath at most.
uint64_t SlabBytesByDefault(const NvmeConfig& nvme, uint64_t domain_count) {
  if (!nvme.is_on()) return kSlabBytesDefault;
  const uint64_t slab_count =
      std::max(kSlabsOfAPath * nvme.paths.size(), kSlabsOfADomain * domain_count);
  const uint64_t slab_bytes = std::bit_floor(nvme.capacity_bytes / slab_count);
  const uint64_t files_max = kSlabFilesOfAPath * nvme.paths.size();
  const uint64_t that_fit = std::bit_ceil(RoundUp(nvme.capacity_bytes, files_max) / files_max);
  return std::max(std::clamp(slab_bytes, kSlabBytesSmallest, kSlabBytesDefault),
                  std::min(that_fit, kSlabBytesMax));
}

Status ResolveNvme(DaemonConfig* config, std::string* why) {
  NvmeConfig& nvme = config->nvme;
  if (nvme.slab_bytes == 0) nvme.slab_bytes = SlabBytesByDefault(nvme, config->domains.size());
  std::set<std::string> paths;
  for (const std::string& path : nvme.paths) {
    if (!path.starts_with('/')) {
      return Refuse(why, "nvme.paths holds '" + path + "', which is no absolute path: write one");
    }
    // "/a/./b/" is "/a/b". What links say FindDrives sees.
    std::filesystem::path plain = std::filesystem::path(path).lexically_normal();
    if (!plain.has_filename()) plain = plain.parent_path();
    if (!paths.insert(plain.string()).second) {
      return Refuse(why, "nvme.paths holds '" + path + "' twice: name each drive once");
    }
  }
  const std::string slab = "nvme.slab_bytes is " + FormatBytes(nvme.slab_bytes);
  if (nvme.slab_bytes % kMiB != 0) return Refuse(why, slab + "; it must be a multiple of 1 MiB");
  if (!nvme.is_on()) {
    for (const DomainConfig& domain : config->domains) {
      TERRACE_RETURN_IF_ERROR(RefuseIdle(domain,
                                         {{"nvme_guaranteed_bytes", domain.nvme_guaranteed_bytes},
                                          {"nvme_max_bytes", domain.nvme_max_bytes}},
                                         "NVMe", "nvme.paths and nvme.capacity_bytes", why));
    }
    if (nvme.capacity_bytes == 0) return Status::Ok();
    return Refuse(why, "nvme.capacity_bytes is " + FormatBytes(nvme.capacity_bytes) +
                           " and nvme.paths names no directory: name one, or remove the section");
  }
  if (nvme.capacity_bytes == 0) {
    return Refuse(why,
                  "nvme.paths is set and nvme.capacity_bytes is not: say how much space the "
                  "tier may take, such as \"500GiB\"");
  }
  if (nvme.capacity_bytes < nvme.slab_bytes * nvme.paths.size()) {
    return Refuse(why, "nvme.capacity_bytes is " + FormatBytes(nvme.capacity_bytes) + ", " + slab +
                           " and nvme.paths names " + std::to_string(nvme.paths.size()) +
                           ": a path needs one slab at least; raise capacity_bytes to " +
                           FormatBytes(nvme.slab_bytes * nvme.paths.size()) +
                           ", or lower slab_bytes (not below " + FormatBytes(kSlabBytesMin) + ")");
  }
  return ResolveNvmeShares(config, why);
}

Status ResolveHbm(DaemonConfig* config, std::string* why) {
  HbmConfig& hbm = config->hbm;
  if (!ParseDeviceChoice(hbm.device).ok()) {
    return Refuse(why, "hbm.device is '" + hbm.device +
                           "'; write \"host\" (ordinary memory), \"cuda:<index>\" or "
                           "\"cuda:GPU-<UUID>\", as nvidia-smi -L prints them");
  }
  if (hbm.plugin_path.empty()) hbm.plugin_path = InstalledPluginPath();
  if (!hbm.plugin_path.starts_with('/')) {
    return Refuse(why, "hbm.plugin_path is '" + hbm.plugin_path +
                           "', which is no absolute path: name libterrace_cuda.so by one");
  }
  if (!hbm.is_on()) return Status::Ok();
  const std::string slab = "hbm.slab_bytes is " + FormatBytes(hbm.slab_bytes);
  if (!IsPowerOfTwo(hbm.slab_bytes)) return Refuse(why, slab + "; it must be a power of two");
  const uint64_t share_bytes = hbm.capacity_bytes / config->domains.size();
  const uint64_t slabs = share_bytes / hbm.slab_bytes;
  if (slabs >= 1 && slabs <= kHbmSlabsMax) return Status::Ok();
  return Refuse(why, "hbm.capacity_bytes is " + FormatBytes(hbm.capacity_bytes) + " and " + slab +
                         ": that is " + std::to_string(slabs) + " slabs for each of " +
                         std::to_string(config->domains.size()) +
                         " domains, and there may be 1 to " + std::to_string(kHbmSlabsMax) +
                         ": change one of them");
}

Status ResolveMetrics(const MetricsConfig& metrics, std::string* why) {
  if (!metrics.is_on()) return Status::Ok();
  ListenAddress address;
  if (!ParseListenAddress(metrics.listen, &address)) {
    return Refuse(why, "metrics.listen is '" + metrics.listen +
                           "'; write an address and a port from 1 to 65535, such as "
                           "127.0.0.1:9464 or [::1]:9464");
  }
  if (!address.is_loopback && metrics.allow_remote == MetricsRemote::kOff) {
    return Refuse(why, "metrics.listen is '" + metrics.listen +
                           "', which other hosts may reach, and whoever does sees the names and "
                           "figures of all domains: write 127.0.0.1:" +
                           std::to_string(address.port) + ", or metrics.allow_remote = \"on\"");
  }
  return Status::Ok();
}

// Or any that is free. ZeroMQ would take a number above modulo 65536.
bool IsPort(std::string_view text) {
  uint16_t unused = 0;
  return text == "*" || ParsePort(text, &unused);
}

// ZeroMQ puts its socket in the place of whatever is there.
Status CheckIpcPath(const DaemonConfig& config, const std::string& key, std::string_view path,
                    std::string* why) {
  constexpr size_t kPathBytesMax = 107;  // sun_path
  const std::string shown = "kv_events." + key + " is 'ipc://" + std::string(path) + "'";
  if (path.size() > kPathBytesMax || path.ends_with('/')) {
    return Refuse(why, shown + ", a path of " + std::to_string(path.size()) +
                           " bytes; name a file by an absolute path of at most 107 bytes");
  }
  const auto is_of = [path](const std::string& socket) {
    return !socket.empty() && path.starts_with(socket) &&
           (path.size() == socket.size() || path.substr(socket.size()) == ".lock" ||
            path.substr(socket.size()) == ".bypass");
  };
  for (const DomainConfig& domain : config.domains) {
    if (!is_of(domain.socket_path)) continue;
    return Refuse(why, shown + ", which is domain " + domain.name + "'s: name another path");
  }
  if (!is_of(config.keeper_socket)) return Status::Ok();
  return Refuse(why, shown + ", which is daemon.keeper_socket's: name another path");
}

Status ResolveKvEvents(DaemonConfig* config, std::string* why) {
  const KvEventsConfig& events = config->kv_events;
  if (!events.is_on() && !events.replay_endpoint.empty()) {
    return Refuse(why, "kv_events.replay_endpoint is '" + events.replay_endpoint +
                           "' and kv_events.endpoint is not set: name where routers subscribe");
  }
  if (events.is_on() && events.endpoint == events.replay_endpoint) {
    return Refuse(why, "kv_events.endpoint and kv_events.replay_endpoint are both '" +
                           events.endpoint + "': give them a port, or a path, each");
  }
  for (const auto& [key, endpoint] : {std::pair("endpoint", events.endpoint),
                                      std::pair("replay_endpoint", events.replay_endpoint)}) {
    if (endpoint.empty()) continue;
    if (endpoint.starts_with("ipc:///")) {
      const std::string_view path = std::string_view(endpoint).substr(std::strlen("ipc://"));
      TERRACE_RETURN_IF_ERROR(CheckIpcPath(*config, key, path, why));
      continue;
    }
    if (endpoint.starts_with("tcp://") && IsPort(endpoint.substr(endpoint.rfind(':') + 1)))
      continue;
    return Refuse(why, std::string("kv_events.") + key + " is '" + endpoint +
                           "'; write tcp://*:PORT with a port from 1 to 65535, or ipc:// and an "
                           "absolute path");
  }
  std::string rest = events.topic;
  for (const std::string_view name : {"{host}", "{domain}", "{model}"}) {
    for (size_t at = 0; (at = rest.find(name)) != rest.npos;) rest.erase(at, name.size());
  }
  if (rest.find_first_of("{}") != rest.npos) {
    return Refuse(why, "kv_events.topic is '" + events.topic +
                           "'; in braces it may hold host, domain and model only");
  }
  for (DomainConfig& domain : config->domains) {
    if (domain.kv_events != KvEventsOfDomain::kAuto) continue;
    domain.kv_events = config->domains.size() == 1 ? KvEventsOfDomain::kOn : KvEventsOfDomain::kOff;
  }
  return Status::Ok();
}

// A key that would mean nothing is refused: it was meant to do something.
Status ResolveRedis(const RedisConfig& redis, std::string* why) {
  const auto is_idle = [&](const char* name, const std::string& value, const char* needs) {
    if (value.empty()) return false;
    *why = "redis." + std::string(name) + " is '" + value + "', which means nothing without " +
           needs + ": set that, or remove it";
    return true;
  };
  const Status invalid(StatusCode::kInvalid, "the configuration is not valid");
  const char* const an_endpoint = "redis.endpoints";
  if (!redis.is_on() && (is_idle("master_name", redis.master_name, an_endpoint) ||
                         is_idle("credentials_file", redis.credentials_file, an_endpoint) ||
                         is_idle("tls_ca_file", redis.tls_ca_file, an_endpoint))) {
    return invalid;
  }
  const bool is_sentinel = redis.mode == RedisMode::kSentinel;
  if (!is_sentinel && is_idle("master_name", redis.master_name, "mode = \"sentinel\"")) {
    return invalid;
  }
  if (is_sentinel && redis.master_name.empty()) {
    return Refuse(why,
                  "redis.mode is \"sentinel\" and redis.master_name is not set: write the name "
                  "that the Sentinels monitor");
  }
  const char* const with_tls = "tls = \"on\"";
  if (redis.tls == RedisTlsUse::kOff &&
      (is_idle("tls_ca_file", redis.tls_ca_file, with_tls) ||
       is_idle("tls_certificate_file", redis.tls_certificate_file, with_tls) ||
       is_idle("tls_key_file", redis.tls_key_file, with_tls) ||
       is_idle("tls_server_name", redis.tls_server_name, with_tls))) {
    return invalid;
  }
  if (redis.tls_certificate_file.empty() != redis.tls_key_file.empty()) {
    return Refuse(why,
                  "redis.tls_certificate_file and redis.tls_key_file belong together: set both, or "
                  "neither");
  }
  for (const std::string& endpoint : redis.endpoints) {
    const bool is_path = endpoint.starts_with("unix:") &&
                         (!endpoint.starts_with("unix://") || endpoint.find('@') == endpoint.npos);
    const bool is_url = endpoint.find("://") != endpoint.npos;
    if (is_path || !(is_url || endpoint.find_first_of("@?,") != endpoint.npos)) continue;
    return Refuse(why,
                  "redis.endpoints has '" + MaskedAddress(endpoint) +
                      "'; write host:port or unix:/path, without a login or options: a user and a "
                      "password are written into a file that redis.credentials_file names");
  }
  if (redis.mode == RedisMode::kSingle && redis.endpoints.size() > 1) {
    return Refuse(why, "redis.endpoints names " + std::to_string(redis.endpoints.size()) +
                           " servers and redis.mode is \"single\": name one, or write the mode");
  }
  if (redis.prefix.find_first_of("{}") != std::string::npos) {
    return Refuse(why, "redis.prefix is '" + redis.prefix +
                           "'; braces would change where a Cluster keeps the keys: leave them out");
  }
  return Status::Ok();
}

Status ResolveRedisShares(DaemonConfig* config, std::string* why) {
  const RedisConfig& redis = config->redis;
  uint64_t guaranteed_bytes = 0;
  for (DomainConfig& domain : config->domains) {
    if (!redis.is_on()) {
      // No limit at all is what a limit of 1024TiB says.
      const bool has_limit = domain.redis_max_bytes < kRedisBytesMax;
      TERRACE_RETURN_IF_ERROR(
          RefuseIdle(domain,
                     {{"redis_guaranteed_bytes", domain.redis_guaranteed_bytes},
                      {"redis_max_bytes", has_limit ? domain.redis_max_bytes : 0}},
                     "Redis", "redis.endpoints", why));
      continue;
    }
    if (domain.redis_guaranteed_bytes > 0 && redis.capacity_bytes == kRedisBytesMax) {
      return Refuse(why, domain.place + "domain " + domain.name + ": redis_guaranteed_bytes is " +
                             FormatBytes(domain.redis_guaranteed_bytes) +
                             ", which means nothing without redis.capacity_bytes, of which it is a "
                             "part: set that, or remove it");
    }
    if (domain.redis_max_bytes == 0) domain.redis_max_bytes = redis.capacity_bytes;
    TERRACE_RETURN_IF_ERROR(
        CheckShare({domain, "redis", domain.redis_guaranteed_bytes, domain.redis_max_bytes}, why));
    guaranteed_bytes += domain.redis_guaranteed_bytes;
  }
  if (guaranteed_bytes <= redis.capacity_bytes) return Status::Ok();
  return Refuse(why, "the domains' redis_guaranteed_bytes sum to " + FormatBytes(guaranteed_bytes) +
                         ", more than redis.capacity_bytes of " +
                         FormatBytes(redis.capacity_bytes) + ": lower them or raise it");
}

Status CheckDomains(const DaemonConfig& config, std::string* why) {
  if (config.domains.size() > kDomainsMax) {
    return Refuse(why, std::to_string(config.domains.size()) + " domains; the limit is " +
                           std::to_string(kDomainsMax) + ": run a second daemon");
  }
  std::set<std::string> names, sockets;
  for (const DomainConfig& domain : config.domains) {
    const std::string shown = domain.place + "domain '" + domain.name + "'";
    constexpr std::string_view kNameBytes = "abcdefghijklmnopqrstuvwxyz0123456789-_";
    if (domain.name.empty() || domain.name.find_first_not_of(kNameBytes) != std::string::npos) {
      return Refuse(why, shown + ": a domain's name is 1 to 63 of a-z, 0-9, - and _");
    }
    if (!names.insert(domain.name).second) {
      return Refuse(why, shown + " is there twice: names are unique");
    }
    if (!domain.socket_path.starts_with('/')) {
      const std::string is =
          domain.socket_path.empty() ? "not set" : "'" + domain.socket_path + "'";
      return Refuse(why,
                    shown + ": socket is " + is + "; write an absolute path of at most 107 bytes");
    }
    const auto path = std::filesystem::path(domain.socket_path).lexically_normal();
    if (!sockets.insert(path.string()).second) {
      return Refuse(why, shown + ": socket " + domain.socket_path +
                             " is another domain's: a domain is its socket, name another path");
    }
  }
  return Status::Ok();
}

}  // namespace

ConfigEnvironment ConfigEnvironment::OfProcess() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  return {.uid = geteuid(),
          .runtime_dir = variable("XDG_RUNTIME_DIR"),
          .state_directory = variable("STATE_DIRECTORY"),
          .state_home = variable("XDG_STATE_HOME"),
          .home = variable("HOME")};
}

Status ResolveConfig(const ConfigOverrides& overrides, const ConfigEnvironment& environment,
                     DaemonConfig* config, std::string* why) {
  if (config->domains.empty()) {
    config->domains.emplace_back();
    config->domains[0].name = "default";
    if (overrides.socket_path.empty()) {
      TERRACE_RETURN_IF_ERROR(DefaultSocket(environment, &config->domains[0].socket_path, why));
      config->domains[0].is_socket_default = true;
    }
  }
  TERRACE_RETURN_IF_ERROR(ApplyOverrides(overrides, config, why));
  if (config->state_dir.empty()) config->state_dir = DefaultStateDir(overrides, environment);
  if (!config->state_dir.starts_with('/')) {
    return Refuse(why, "daemon.state_dir is '" + config->state_dir +
                           "', which is no absolute path: set it, or HOME");
  }
  if (!config->keeper_socket.empty() && !config->keeper_socket.starts_with('/')) {
    return Refuse(why, "daemon.keeper_socket is '" + config->keeper_socket +
                           "', which is no absolute path: name where terraced --keeper listens");
  }
  if (!config->trace_dir.empty() && !config->trace_dir.starts_with('/')) {
    return Refuse(why, "daemon.trace_dir is '" + config->trace_dir +
                           "', which is no absolute path: name a directory");
  }
  if (config->trace_dir.empty() && config->trace == TraceAtStart::kOn) {
    return Refuse(why, "daemon.trace is on and daemon.trace_dir names no directory: name one");
  }
  TERRACE_RETURN_IF_ERROR(CheckDomains(*config, why));
  for (DomainConfig& domain : config->domains) {
    const std::string by_default = config->state_dir + "/" + domain.name + ".secret";
    if (domain.secret_file.empty()) domain.secret_file = by_default;
    domain.is_secret_file_default = domain.secret_file == by_default;
    if (domain.dram_max_bytes == 0) domain.dram_max_bytes = config->dram_bytes;
    domain.dram_max_bytes = std::min(domain.dram_max_bytes, config->dram_bytes);
  }
  if (config->fenced_bytes_max == 0) {
    config->fenced_bytes_max = std::max(config->dram_bytes / 4, kArenaPageBytes);
  }
  // Of few sessions a share may be none: everybody may have one.
  if (config->sessions_per_uid_max == 0) {
    config->sessions_per_uid_max = std::max(config->sessions_max / 4 * 3, 1u);
  }
  if (config->sessions_per_process_max == 0) {
    config->sessions_per_process_max = std::max(config->sessions_max / 4, 1u);
  }
  if (config->deadline_default_ms > config->deadline_ms_max) {
    return Refuse(why, "daemon.deadline_default_ms is " +
                           std::to_string(config->deadline_default_ms) +
                           ", more than daemon.deadline_ms_max of " +
                           std::to_string(config->deadline_ms_max) + ": lower it");
  }
  TERRACE_RETURN_IF_ERROR(ResolveNvme(config, why));
  TERRACE_RETURN_IF_ERROR(ResolveHbm(config, why));
  TERRACE_RETURN_IF_ERROR(ResolveKvEvents(config, why));
  TERRACE_RETURN_IF_ERROR(ResolveRedis(config->redis, why));
  TERRACE_RETURN_IF_ERROR(ResolveRedisShares(config, why));
  TERRACE_RETURN_IF_ERROR(ResolveMetrics(config->metrics, why));
  return CheckMemory(*config, why);
}

}  // namespace terrace
