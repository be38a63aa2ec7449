#include "daemon/config/config_keys.h"

#include <algorithm>
#include <string>

#include "daemon/config/config_text.h"
#include "daemon/policy/admission.h"
#include "daemon/policy/eviction/policies.h"
#include "src/masked_address.h"
#include "src/printable_text.h"

namespace terrace {
namespace {

using Daemon = DaemonConfig;
using Nvme = NvmeConfig;
using Hbm = HbmConfig;
using KvEvents = KvEventsConfig;
using Redis = RedisConfig;
using Metrics = MetricsConfig;
using Domain = DomainConfig;

constexpr KeyChange kLive = KeyChange::kLive;
constexpr uint64_t kDramBytesMax = uint64_t{64} << 40;
constexpr uint64_t kNvmeBytesMax = uint64_t{1} << 50;
constexpr uint32_t kTtlDefaultSecondsMax = 365 * 24 * 3600;
constexpr size_t kPathBytesMax = 4096;
constexpr size_t kSocketPathBytesMax = 107;  // sun_path
constexpr size_t kEndpointBytesMax = 512;
constexpr size_t kTopicBytesMax = 256;

constexpr std::string_view kLogLevels[] = {"error", "warn", "info", "debug"};
constexpr std::string_view kLogFormats[] = {"text", "json"};
constexpr std::string_view kHugePages[] = {"auto", "on", "off"};
constexpr std::string_view kDiskIos[] = {"auto", "io_uring", "threads"};
constexpr std::string_view kOffOn[] = {"off", "on"};
constexpr std::string_view kEncodings[] = {"map", "array"};
constexpr std::string_view kPlainBlocks[] = {"give_up", "serve"};
constexpr std::string_view kAutoOnOff[] = {"auto", "on", "off"};
constexpr std::string_view kRedisModes[] = {"single", "sentinel", "cluster"};
constexpr std::string_view kRedisUses[] = {"both", "store", "fetch"};
constexpr std::string_view kRedisAdmissions[] = {"all", "hit"};
constexpr std::string_view kKeyHashes[] = {"xxh3", "sha256"};

template <typename Section, typename Enum, Enum Section::*member>
constexpr ChoiceField<Section> Choice(std::span<const std::string_view> names) {
  return {names, [](Section& section, size_t index) { section.*member = static_cast<Enum>(index); },
          [](const Section& section) { return static_cast<size_t>(section.*member); }};
}

// Kept by name.
template <typename Section, std::string Section::*member, auto names>
ChoiceField<Section> NamedChoice() {
  return {names(),
          [](Section& section, size_t index) { section.*member = std::string(names()[index]); },
          [](const Section& section) {
            const std::span<const std::string_view> all = names();
            return static_cast<size_t>(std::find(all.begin(), all.end(), section.*member) -
                                       all.begin());
          }};
}

const ConfigKey<Daemon> kDaemonKeys[] = {
    {"log_level", Choice<Daemon, LogLevel, &Daemon::log_level>(kLogLevels),
     "error, warn, info or debug", kLive},
    {"log_format", Choice<Daemon, LogFormat, &Daemon::log_format>(kLogFormats),
     "text (key=value) or json, one object a line", kLive},
    {"log_queue_lines_max", CountField<Daemon>{&Daemon::log_queue_lines_max, 64, 1 << 20},
     "lines waiting for the log thread; beyond, the oldest are dropped and counted"},
    {"state_dir", TextField<Daemon>{&Daemon::state_dir, kPathBytesMax},
     "where drawn secrets are kept"},
    {"sandbox", Choice<Daemon, Sandbox, &Daemon::sandbox>(kAutoOnOff),
     "gives up what it never needs (Landlock, seccomp): auto, what it may; on, all, or no start"},
    {"keeper_socket", TextField<Daemon>{&Daemon::keeper_socket, kSocketPathBytesMax},
     "of the terraced --keeper that holds DRAM across crashes; empty: systemd does, if it may"},
    {"dram_bytes", BytesField<Daemon>{&Daemon::dram_bytes, kSegmentBytesMin, kDramBytesMax},
     "shared memory over all domains; live, if no command line names it: down, and up again to "
     "what "
     "it was at the start",
     kLive},
    {"memory_reserve_bytes", BytesField<Daemon>{&Daemon::memory_reserve_bytes, 0, kDramBytesMax},
     "while less than this is available to others, DRAM gives memory back; 0: it keeps what it has",
     kLive},
    {"segment_bytes",
     BytesField<Daemon>{&Daemon::segment_bytes, kSegmentBytesMin, kSegmentBytesMax},
     "unit in which memory grows and moves between domains; a power of two"},
    {"segments_spare", CountField<Daemon>{&Daemon::segments_spare, 1, 1024},
     "segments populated ahead of need, per domain", kLive},
    {"hugepages", Choice<Daemon, HugePages, &Daemon::hugepages>(kHugePages),
     "auto (when there are any), on (refuse to start without) or off"},
    {"lease_ttl_ms", CountField<Daemon>{&Daemon::lease_ttl_ms, 100, 3'600'000},
     "a lease without a sign of life for this long is revoked"},
    {"fenced_bytes_max",
     BytesField<Daemon>{&Daemon::fenced_bytes_max, kArenaPageBytes, kDramBytesMax},
     "fenced bytes of a domain above which Reserve answers no space", kLive},
    {"deadline_default_ms", CountField<Daemon>{&Daemon::deadline_default_ms, 1, 3'600'000},
     "for requests that name no deadline", kLive},
    {"deadline_ms_max", CountField<Daemon>{&Daemon::deadline_ms_max, 1, 3'600'000},
     "longer deadlines are cut to this", kLive},
    {"slow_request_ms", CountField<Daemon>{&Daemon::slow_request_ms, 0, 3'600'000},
     "requests that took so long are noted: terrace slow; 0: none", kLive},
    {"sessions_max", CountField<Daemon>{&Daemon::sessions_max, 1, 65'536},
     "sessions over all domains; half are the domains' own, in equal shares"},
    {"sessions_per_uid_max", CountField<Daemon>{&Daemon::sessions_per_uid_max, 1, 65'536},
     "sessions of a user in a domain; absent: three quarters of sessions_max", kLive},
    {"sessions_per_process_max", CountField<Daemon>{&Daemon::sessions_per_process_max, 1, 65'536},
     "sessions of a process in a domain; absent: a quarter of sessions_max", kLive},
    {"admin_uids", IdsField<Daemon>{&Daemon::admin_uids},
     "users that may drain, change the configuration and erase everything; root always may", kLive},
    {"groups_max", CountField<Daemon>{&Daemon::groups_max, 1, 65'536}, "SpaceGroups of a domain"},
    {"blocks_max", CountField<Daemon>{&Daemon::blocks_max, 1024, 1u << 30},
     "blocks of a domain, in all tiers"},
    {"leases_per_session_max", CountField<Daemon>{&Daemon::leases_per_session_max, 1, 1 << 20},
     "leases a session may hold", kLive},
    {"lease_blocks_per_session_max",
     CountField<Daemon>{&Daemon::lease_blocks_per_session_max, 1024, 1u << 30},
     "blocks in a session's leases; beyond, prefixes are cut", kLive},
    {"lease_blocks_max", CountField<Daemon>{&Daemon::lease_blocks_max, 1 << 16, 1u << 30},
     "blocks in a domain's leases; an equal share of it is each session's own", kLive},
    {"pending_per_session_max", CountField<Daemon>{&Daemon::pending_per_session_max, 1, 65'536},
     "requests of a session with blocks still coming, and Waits", kLive},
    {"session_output_bytes_max",
     BytesField<Daemon>{&Daemon::session_output_bytes_max, 20 * kMiB, 1 * kGiB},
     "unsent bytes kept for a session; a client that does not read beyond it is closed", kLive},
    {"session_buffers_bytes_max",
     BytesField<Daemon>{&Daemon::session_buffers_bytes_max, 64 * kMiB, 64 * kGiB},
     "begun messages and unsent bytes of all sessions together", kLive},
    {"eviction", NamedChoice<Daemon, &Daemon::eviction, EvictionPolicyNames>(),
     "what leaves DRAM when it is full: hazard, lru, arc or s3fifo"},
    {"trace_dir", TextField<Daemon>{&Daemon::trace_dir, kPathBytesMax},
     "an absolute directory where requests can be recorded; absent: nowhere"},
    {"trace", Choice<Daemon, TraceAtStart, &Daemon::trace>(kOffOn),
     "on: record from the start on; off: when terrace trace record start says so"},
    {"trace_bytes_max", BytesField<Daemon>{&Daemon::trace_bytes_max, 1 * kMiB, 1024 * kGiB},
     "of the two files of a domain's recording"},
    {"offload_threads", CountField<Daemon>{&Daemon::offload_threads, 1, 256},
     "threads that compute checksums"},
    {"offload_jobs_max", CountField<Daemon>{&Daemon::offload_jobs_max, 16, 1 << 20},
     "checksum jobs waiting; beyond, they are tried again later"},
};

const ConfigKey<Nvme> kNvmeKeys[] = {
    {"paths", TextsField<Nvme>{&Nvme::paths, kNvmePathsMax, kPathBytesMax},
     "directories that hold the NVMe tier, one a drive; absent: no NVMe tier"},
    {"capacity_bytes", BytesField<Nvme>{&Nvme::capacity_bytes, kSlabBytesMin, kNvmeBytesMax},
     "space over all paths and domains; leave a tenth of each drive unwritten", kLive},
    {"slab_bytes", BytesField<Nvme>{&Nvme::slab_bytes, kSlabBytesMin, kSlabBytesMax},
     "size of one file; a multiple of 1 MiB, with room for the largest block; absent: 1GiB, less "
     "of a small tier, more above 4TiB a path"},
    {"require_mount", Choice<Nvme, RequireMount, &Nvme::require_mount>(kOffOn),
     "on: refuse to start where a path lies on the root file system, or not where it lay"},
    {"io", Choice<Nvme, DiskIo, &Nvme::io>(kDiskIos),
     "auto (io_uring where it is allowed), io_uring (refuse to start without) or threads"},
    {"queue_depth", CountField<Nvme>{&Nvme::queue_depth, 1, 4096}, "requests in flight on a path"},
    {"catalog_memory_bytes",
     BytesField<Nvme>{&Nvme::catalog_memory_bytes, 8 * kMiB, uint64_t{16} * kGiB},
     "memory of one domain's catalog"},
    {"scrub_bytes_per_second", BytesField<Nvme>{&Nvme::scrub_bytes_per_second, 0, 64 * kGiB},
     "how fast blocks at rest are verified in the background; 0: not at all", kLive},
    {"scrub_interval_s", CountField<Nvme>{&Nvme::scrub_interval_s, 0, 365 * 24 * 3600},
     "blocks at rest are not all verified again before so long; 0: pass after pass", kLive},
    {"read_ahead_blocks", CountField<Nvme>{&Nvme::read_ahead_blocks, 0, 4096},
     "blocks promoted unasked behind a chain that is being promoted; 0: none", kLive},
    {"eviction", NamedChoice<Nvme, &Nvme::eviction, EvictionPolicyNames>(),
     "what leaves the NVMe tier when it is full: lru, hazard, arc or s3fifo"},
    {"admission", NamedChoice<Nvme, &Nvme::admission, AdmissionPolicyNames>(),
     "what is written: all, predicted (what is likely to be used again), second_use, hit or random",
     kLive},
    {"write_bytes_per_day",
     BytesField<Nvme>{&Nvme::write_bytes_per_day, kSlabBytesMin, kWriteBytesPerDayMax},
     "budget over all domains, spent on what is likeliest to be used again; 1024TiB: none", kLive},
};

const ConfigKey<Hbm> kHbmKeys[] = {
    {"capacity_bytes", BytesField<Hbm>{&Hbm::capacity_bytes, 0, kDramBytesMax},
     "device memory over all domains, in equal shares of whole slabs; 0: no HBM tier"},
    {"device", TextField<Hbm>{&Hbm::device, 63},
     "whose memory; host: ordinary memory; cuda:<index> or cuda:GPU-<UUID>: that of a GPU"},
    {"plugin_path", TextField<Hbm>{&Hbm::plugin_path, kPathBytesMax},
     "the device plugin, libterrace_cuda.so, where device is a GPU; absent: where it is installed"},
    {"slab_bytes", BytesField<Hbm>{&Hbm::slab_bytes, kSegmentBytesMin, kSegmentBytesMax},
     "unit in which clients map it; a power of two, with room for the largest block"},
    {"hits_min", CountField<Hbm>{&Hbm::hits_min, 1, 1'000'000},
     "a block goes there when clients of the device have been answered with it so often", kLive},
    {"order_timeout_ms", CountField<Hbm>{&Hbm::order_timeout_ms, 10, 600'000},
     "a copy that a client has not reported by then counts for nothing"},
};

const ConfigKey<KvEvents> kKvEventsKeys[] = {
    {"endpoint", TextField<KvEvents>{&KvEvents::endpoint, kEndpointBytesMax},
     "where routers subscribe: tcp://*:5557, or ipc:// and a path; absent: no events"},
    {"replay_endpoint", TextField<KvEvents>{&KvEvents::replay_endpoint, kEndpointBytesMax},
     "where they ask for what they missed; absent: nowhere"},
    {"topic", TextField<KvEvents>{&KvEvents::topic, kTopicBytesMax},
     "of each message; {host}, {domain} and {model} are replaced. llm-d: kv@POD@MODEL"},
    {"encoding", Choice<KvEvents, KvEventEncoding, &KvEvents::encoding>(kEncodings),
     "map (vLLM from 0.24 on) or array (before, and SGLang)"},
    {"replay_batches", CountField<KvEvents>{&KvEvents::replay_batches, 1, 1'000'000},
     "messages kept for replay; who asks for older ones is told of every block anew"},
    {"replay_requests_max", CountField<KvEvents>{&KvEvents::replay_requests_max, 1, 64},
     "of one peer that are not answered yet; more are not answered, and counted"},
};

const ConfigKey<Redis> kRedisKeys[] = {
    {"endpoints", TextsField<Redis>{&Redis::endpoints, kRedisEndpointsMax, kEndpointBytesMax},
     "\"host:port\" or \"unix:/path\": the server, the Sentinels or some Cluster nodes; absent: no "
     "Redis tier"},
    {"mode", Choice<Redis, RedisMode, &Redis::mode>(kRedisModes), "single, sentinel or cluster"},
    {"master_name", TextField<Redis>{&Redis::master_name, 256},
     "what the Sentinels call the master"},
    {"credentials_file", TextField<Redis>{&Redis::credentials_file, kPathBytesMax},
     "mode 0600; one line, the password, or two, the user and the password; absent: no login"},
    {"tls", Choice<Redis, RedisTlsUse, &Redis::tls>(kOffOn),
     "on: TLS 1.2 at least, the server's certificate verified"},
    {"tls_ca_file", TextField<Redis>{&Redis::tls_ca_file, kPathBytesMax},
     "PEM; absent: the system's authorities"},
    {"tls_certificate_file", TextField<Redis>{&Redis::tls_certificate_file, kPathBytesMax},
     "PEM, with tls_key_file: who we are"},
    {"tls_key_file", TextField<Redis>{&Redis::tls_key_file, kPathBytesMax},
     "PEM, of tls_certificate_file"},
    {"tls_server_name", TextField<Redis>{&Redis::tls_server_name, 256},
     "what the server's certificate must name; absent: the endpoint's host"},
    {"prefix", TextField<Redis>{&Redis::prefix, 64}, "with which all keys on the server begin"},
    {"ttl_s", CountField<Redis>{&Redis::ttl_s, 10, 365 * 24 * 3600},
     "how long a block stays on the server at most"},
    {"capacity_bytes", BytesField<Redis>{&Redis::capacity_bytes, kMiB, kRedisBytesMax},
     "what this host gives the server within ttl_s, over all domains; 1024TiB: any", kLive},
    {"use", Choice<Redis, RedisUse, &Redis::use>(kRedisUses),
     "both, store (give, never take) or fetch (take, never give)", kLive},
    {"admission", Choice<Redis, RedisAdmission, &Redis::admission>(kRedisAdmissions),
     "what is stored: all, or hit (what was asked for once more)", kLive},
    {"queue_bytes_max", BytesField<Redis>{&Redis::queue_bytes_max, 1 * kMiB, kDramBytesMax},
     "blocks of a domain that wait to be stored; beyond, the least wanted are dropped and counted",
     kLive},
    {"in_flight_bytes_max", BytesField<Redis>{&Redis::in_flight_bytes_max, 1 * kMiB, 64 * kGiB},
     "of a domain, to and from the server"},
    {"probe_timeout_us", CountField<Redis>{&Redis::probe_timeout_us, 100, 10'000'000},
     "an Acquire waits at most so long to learn what the server has", kLive},
    {"absence_ms", CountField<Redis>{&Redis::absence_ms, 1, 3'600'000},
     "what was not there is not looked for again so long"},
    {"connections", CountField<Redis>{&Redis::connections, 2, 64}, "to each server, per domain"},
    {"connect_timeout_ms", CountField<Redis>{&Redis::connect_timeout_ms, 1, 60'000},
     "for a connection and its login"},
    {"command_timeout_ms", CountField<Redis>{&Redis::command_timeout_ms, 1, 60'000},
     "for an answer, beside what its bytes need"},
    {"bytes_per_second_min",
     BytesField<Redis>{&Redis::bytes_per_second_min, 64 * kKiB, 1024 * kGiB},
     "of one connection; slower than this counts as failing"},
    {"drain_ms", CountField<Redis>{&Redis::drain_ms, 0, 20'000},
     "a stop waits at most so long for what waits to be stored; 0: not at all"},
};

const ConfigKey<Metrics> kMetricsKeys[] = {
    {"listen", TextField<Metrics>{&Metrics::listen, kEndpointBytesMax},
     "where Prometheus asks, over HTTP: 127.0.0.1:9464; absent: nowhere"},
    {"allow_remote", Choice<Metrics, MetricsRemote, &Metrics::allow_remote>(kOffOn),
     "on: listen may name an address that other hosts reach"},
};

const ConfigKey<Domain> kDomainKeys[] = {
    {"name", TextField<Domain>{&Domain::name, kDomainNameBytesMax},
     "unique; 1 to 63 of a-z, 0-9, - and _"},
    {"socket", TextField<Domain>{&Domain::socket_path, kSocketPathBytesMax},
     "absolute path of the listening socket"},
    {"socket_mode", ModeField<Domain>{&Domain::socket_mode}, "permissions of the socket, octal"},
    {"allow_uids", IdsField<Domain>{&Domain::allow_uids},
     "users that may connect; absent: whoever the socket's mode lets in", kLive},
    {"allow_gids", IdsField<Domain>{&Domain::allow_gids},
     "primary groups that may connect, beside allow_uids", kLive},
    {"writer_uids", IdsField<Domain>{&Domain::writer_uids},
     "users that may store; others that connect can only read its memory; absent: all may", kLive},
    {"allow_models",
     TextsField<Domain>{&Domain::allow_models, kAllowModelsMax, kModelPatternBytesMax},
     "models that engines may open, * for any part of a name; absent: all", kLive},
    {"secret_file", TextField<Domain>{&Domain::secret_file, kPathBytesMax},
     "the domain's secret, equal on all its hosts; see terrace domain new"},
    {"encryption_keys_file", TextField<Domain>{&Domain::encryption_keys_file, kPathBytesMax},
     "keys that encrypt what lies on drives and Redis, read again at each reload; absent: none"},
    {"encryption_plain_blocks",
     Choice<Domain, PlainBlocks, &Domain::encryption_plain_blocks>(kPlainBlocks),
     "with keys: blocks that lie on drives unencrypted are given up at the start, or served"},
    {"key_hash", Choice<Domain, KeyHash, &Domain::key_hash>(kKeyHashes),
     "xxh3, or sha256 where tenants that do not trust each other share the domain"},
    {"dram_guaranteed_bytes", BytesField<Domain>{&Domain::dram_guaranteed_bytes, 0, kDramBytesMax},
     "memory no other domain can take", kLive},
    {"dram_lent_bytes_max", BytesField<Domain>{&Domain::dram_lent_bytes_max, 0, kDramBytesMax},
     "of its guarantee, that others may have until it is wanted; may come back late", kLive},
    {"dram_max_bytes", BytesField<Domain>{&Domain::dram_max_bytes, kSegmentBytesMin, kDramBytesMax},
     "memory this domain never exceeds"},
    {"kv_events", Choice<Domain, KvEventsOfDomain, &Domain::kv_events>(kAutoOnOff),
     "on: routers hear of its blocks; auto: if it is the only domain"},
    {"nvme_guaranteed_bytes",
     BytesField<Domain>{&Domain::nvme_guaranteed_bytes, kSlabBytesMin, kNvmeBytesMax},
     "NVMe space others give back when it is wanted; absent: as much as nvme_max_bytes", kLive},
    {"nvme_max_bytes", BytesField<Domain>{&Domain::nvme_max_bytes, kSlabBytesMin, kNvmeBytesMax},
     "NVMe space this domain never exceeds; absent: with a guarantee all there is, else an equal "
     "share of nvme.capacity_bytes",
     kLive},
    {"redis_guaranteed_bytes",
     BytesField<Domain>{&Domain::redis_guaranteed_bytes, 0, kRedisBytesMax},
     "of redis.capacity_bytes, what no other domain can use up", kLive},
    {"redis_max_bytes", BytesField<Domain>{&Domain::redis_max_bytes, kMiB, kRedisBytesMax},
     "what this host gives the server of it within redis.ttl_s; absent: redis.capacity_bytes",
     kLive},
    {"borrow_priority", CountField<Domain>{&Domain::borrow_priority, 0, kBorrowPriorityMax},
     "of domains that use more than their guarantee the lower gives back first", kLive},
    {"ttl_default_s", CountField<Domain>{&Domain::ttl_default_s, 0, kTtlDefaultSecondsMax},
     "how long blocks live that are stored without a time to live; 0: until room is needed", kLive},
};

}  // namespace

std::span<const ConfigKey<DaemonConfig>> DaemonKeys() { return kDaemonKeys; }
std::span<const ConfigKey<NvmeConfig>> NvmeKeys() { return kNvmeKeys; }
std::span<const ConfigKey<HbmConfig>> HbmKeys() { return kHbmKeys; }
std::span<const ConfigKey<KvEventsConfig>> KvEventsKeys() { return kKvEventsKeys; }
std::span<const ConfigKey<RedisConfig>> RedisKeys() { return kRedisKeys; }
std::span<const ConfigKey<MetricsConfig>> MetricsKeys() { return kMetricsKeys; }
std::span<const ConfigKey<DomainConfig>> DomainKeys() { return kDomainKeys; }

std::string ShownKey(std::string_view given) {
  return MaskedAddress(given).substr(0, kConfigKeyBytesMax);
}

std::string ShownKeys(std::string_view lines) {
  std::string keys;
  for (const ConfigChange& change : ConfigChangesOf(lines)) {
    keys += (keys.empty() ? "" : ", ") + ShownKey(change.key);
  }
  return PrintableText(keys);
}

}  // namespace terrace
