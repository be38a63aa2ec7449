// The configuration of terraced, as values: every key with its default and its limits, units last
// in names. config_text.h reads and prints it; config_resolve.h fills in what depends on other keys
// and on who runs the daemon. docs/OPERATIONS.md documents each key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/arena_layout.h"
#include "terrace/prefix_hasher.h"
#include "terrace/protocol_device.h"
#include "terrace/units.h"

namespace terrace {

enum class LogLevel : uint8_t { kError, kWarn, kInfo, kDebug };
enum class LogFormat : uint8_t { kText, kJson };
enum class HugePages : uint8_t { kAuto, kOn, kOff };
enum class TraceAtStart : uint8_t { kOff, kOn };
// What the process gives up of what it never needs: all that the kernel lets it, all or no start,
// or nothing.
enum class Sandbox : uint8_t { kAuto, kOn, kOff };
enum class RequireMount : uint8_t { kOff, kOn };
enum class KvEventEncoding : uint8_t { kMap, kArray };
enum class KvEventsOfDomain : uint8_t { kAuto, kOn, kOff };
enum class DiskIo : uint8_t { kAuto, kUring, kThreads };
enum class RedisMode : uint8_t { kSingle, kSentinel, kCluster };
enum class RedisTlsUse : uint8_t { kOff, kOn };
// How a host uses the shared tier.
enum class RedisUse : uint8_t { kBoth, kStore, kFetch };
enum class RedisAdmission : uint8_t { kAll, kHit };
enum class MetricsRemote : uint8_t { kOff, kOn };
// What becomes of blocks that were written before a domain was encrypted.
enum class PlainBlocks : uint8_t { kGiveUp, kServe };

inline constexpr uint32_t kDomainsMax = 64;
inline constexpr uint32_t kAllowedIdsMax = 256;  // uids or gids of one domain
inline constexpr size_t kDomainNameBytesMax = 63;
inline constexpr uint32_t kNvmePathsMax = 16;
inline constexpr uint32_t kRedisEndpointsMax = 64;
inline constexpr uint64_t kHbmSlabsMax = protocol::kDeviceSlabsMax;  // of a domain
inline constexpr size_t kAllowModelsMax = 64;
inline constexpr size_t kModelPatternBytesMax = 256;
inline constexpr uint64_t kSlabBytesMin = 4 * kMiB;
inline constexpr uint64_t kSlabBytesMax = 16 * kGiB;
// Where none is set: so many files on a path and for a domain, between these sizes.
inline constexpr uint64_t kSlabBytesDefault = 1 * kGiB;
inline constexpr uint64_t kSlabBytesSmallest = 64 * kMiB;
inline constexpr uint64_t kSlabsOfAPath = 8;
inline constexpr uint64_t kSlabsOfADomain = 4;
// More than any drive takes: so much a day is no budget.
inline constexpr uint64_t kWriteBytesPerDayMax = uint64_t{1} << 50;

inline constexpr uint64_t kRedisBytesMax = uint64_t{1} << 50;  // no server has more
inline constexpr uint32_t kBorrowPriorityMax = 100;

// What a user namespace the daemon cannot see into shows instead of the real uid: never let in.
inline constexpr uint32_t kOverflowUid = 65534;
inline constexpr uint32_t kNoId = UINT32_MAX;  // no user's, and no group's

struct DomainConfig {
  std::string place;        // "FILE:LINE: ", where its table begins; empty: in no file
  std::string name;         // 1..63 of a-z 0-9 - _
  std::string socket_path;  // absolute
  uint32_t socket_mode = 0660;
  // Who may connect, beside what the socket's mode says. Absent: the mode alone decides. Present
  // and empty: nobody.
  std::optional<std::vector<uint32_t>> allow_uids;
  std::optional<std::vector<uint32_t>> allow_gids;
  // Who of them may store; everybody else is a reader, whose memory is handed over to be read only.
  // Absent: everybody. Present and empty: nobody.
  std::optional<std::vector<uint32_t>> writer_uids;
  std::vector<std::string> allow_models;  // patterns of what may be opened; empty: any model
  std::string secret_file;  // empty: <state_dir>/<name>.secret, drawn at the first start
  // Nobody named these paths: their directories may be made, the secret may be drawn.
  bool is_socket_default = false;
  bool is_secret_file_default = false;
  std::string encryption_keys_file;  // empty: drives and Redis get blocks as they are
  PlainBlocks encryption_plain_blocks = PlainBlocks::kGiveUp;
  KeyHash key_hash = KeyHash::kXxh3;
  uint64_t dram_guaranteed_bytes = 0;
  uint64_t dram_lent_bytes_max = 0;  // of its guarantee, that others may have until it is wanted
  uint64_t dram_max_bytes = 0;       // 0 before ResolveConfig: dram_bytes
  // kAuto before ResolveConfig: on where no other domain could overhear.
  KvEventsOfDomain kv_events = KvEventsOfDomain::kAuto;
  // Of NVMe. 0 before ResolveConfig: the guarantee as much as the limit, the limit of who has a
  // guarantee all there is; of neither an equal share of nvme.capacity_bytes.
  uint64_t nvme_guaranteed_bytes = 0;
  uint64_t nvme_max_bytes = 0;
  uint64_t redis_guaranteed_bytes = 0;  // of what this host has given within redis.ttl_s
  uint64_t redis_max_bytes = 0;         // 0 before ResolveConfig: redis.capacity_bytes
  uint32_t borrow_priority = 50;        // of borrowers the lower gives back first
  uint32_t ttl_default_s = 0;           // of blocks stored without one; 0: none

  bool admits_everybody() const { return !allow_uids && !allow_gids; }
  bool admits_nobody() const {
    const auto is_nobodys = [](uint32_t id) { return id == kNoId; };
    const auto is_refused = [](uint32_t uid) { return uid == kNoId || uid == kOverflowUid; };
    const bool no_uid = !allow_uids || std::ranges::all_of(*allow_uids, is_refused);
    const bool no_gid = !allow_gids || std::ranges::all_of(*allow_gids, is_nobodys);
    return !admits_everybody() && no_uid && no_gid;
  }
};

// The NVMe tier; off while no path is named.
struct NvmeConfig {
  std::vector<std::string> paths;  // absolute directories, one a drive
  uint64_t capacity_bytes = 0;     // over all paths and domains, whole slab files; > 0 with a path
  uint64_t slab_bytes = 0;  // 0 before ResolveConfig: kSlabBytesDefault, less of a small tier
  RequireMount require_mount = RequireMount::kOff;
  DiskIo io = DiskIo::kAuto;
  uint32_t queue_depth = 128;  // requests in flight on a path
  uint64_t catalog_memory_bytes = 64 * kMiB;
  uint64_t scrub_bytes_per_second = 32 * kMiB;          // 0: no scrub
  uint32_t scrub_interval_s = 24 * 3600;                // 0: pass after pass
  std::string eviction = "lru";                         // of EvictionPolicyNames()
  uint32_t read_ahead_blocks = 16;                      // 0: none
  std::string admission = "all";                        // one of AdmissionPolicyNames()
  uint64_t write_bytes_per_day = kWriteBytesPerDayMax;  // over all domains

  bool is_on() const { return !paths.empty(); }
};

// Events for routers; off while no endpoint is named.
struct KvEventsConfig {
  std::string endpoint;         // of the PUB socket: tcp://…, or ipc:///…
  std::string replay_endpoint;  // of the ROUTER socket that repeats; empty: none
  std::string topic = "kv@{host}@{model}";
  KvEventEncoding encoding = KvEventEncoding::kMap;
  uint32_t replay_batches = 10'000;
  uint32_t replay_requests_max = 4;  // of one peer, unanswered

  bool is_on() const { return !endpoint.empty(); }
};

// The tier that hosts share; off while no endpoint is named.
struct RedisConfig {
  std::vector<std::string> endpoints;  // "host:port", "[v6]:port", "unix:/path"
  RedisMode mode = RedisMode::kSingle;
  std::string master_name;       // with sentinel
  std::string credentials_file;  // empty: no login
  RedisTlsUse tls = RedisTlsUse::kOff;
  std::string tls_ca_file, tls_certificate_file, tls_key_file, tls_server_name;
  std::string prefix = "terrace";
  uint32_t ttl_s = 24 * 3600;
  uint64_t capacity_bytes = kRedisBytesMax;  // of this host's blocks on the server; the max: any
  RedisUse use = RedisUse::kBoth;
  RedisAdmission admission = RedisAdmission::kAll;
  uint64_t queue_bytes_max = 1 * kGiB;        // of a domain, waiting to be stored
  uint64_t in_flight_bytes_max = 512 * kMiB;  // of a domain, on their way
  uint32_t probe_timeout_us = 10'000;
  uint32_t absence_ms = 1'000;
  uint32_t connections = 5;
  uint32_t connect_timeout_ms = 200;
  uint32_t command_timeout_ms = 250;
  uint64_t bytes_per_second_min = 10 * kMiB;  // of one connection
  uint32_t drain_ms = 2'000;                  // at a stop, for what waits to be stored

  bool is_on() const { return !endpoints.empty(); }
  uint64_t fds_max() const { return endpoints.size() * connections; }
};

// The memory of one device that clients map; off while it has no capacity.
struct HbmConfig {
  uint64_t capacity_bytes = 0;  // over all domains, in equal shares of whole slabs
  std::string device = "host";  // ordinary memory; else as ParseDeviceChoice reads it
  std::string plugin_path;      // of any device but the host; empty before ResolveConfig
  uint64_t slab_bytes = kSegmentBytesDefault;
  uint32_t hits_min = 2;
  uint32_t order_timeout_ms = 2'000;

  bool is_on() const { return capacity_bytes > 0; }
  uint32_t slabs_of_domain(size_t domain_count) const {
    return static_cast<uint32_t>(capacity_bytes / slab_bytes / domain_count);
  }
};

// Figures for Prometheus, health for supervisors, and a page; off while nothing is listened on.
struct MetricsConfig {
  std::string listen;  // "address:port", "[v6 address]:port"
  MetricsRemote allow_remote = MetricsRemote::kOff;

  bool is_on() const { return !listen.empty(); }
};

struct DaemonConfig {
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  uint32_t log_queue_lines_max = 8192;
  std::string state_dir;  // empty before ResolveConfig
  Sandbox sandbox = Sandbox::kAuto;
  std::string keeper_socket;  // empty: systemd's descriptor store, if any, keeps the arenas
  uint64_t dram_bytes = 1 * kGiB;
  uint64_t memory_reserve_bytes = 0;  // available to others, else DRAM gives back; 0: all is kept
  uint64_t segment_bytes = kSegmentBytesDefault;
  uint32_t segments_spare = 1;
  HugePages hugepages = HugePages::kAuto;
  uint32_t lease_ttl_ms = 30'000;
  uint64_t fenced_bytes_max = 0;  // 0 before ResolveConfig: a quarter of dram_bytes
  uint32_t deadline_default_ms = 1'000;
  uint32_t deadline_ms_max = 600'000;
  uint32_t slow_request_ms = 100;  // from when on one is noted; 0: none
  uint32_t sessions_max = 1024;
  uint32_t sessions_per_uid_max = 0;      // 0 before ResolveConfig: three quarters of sessions_max
  uint32_t sessions_per_process_max = 0;  // 0 before ResolveConfig: a quarter of sessions_max
  // Who may rule over the daemon, beside root and the user that it runs as. Absent: nobody.
  std::optional<std::vector<uint32_t>> admin_uids;
  uint32_t groups_max = 256;
  uint32_t blocks_max = 1 << 22;
  uint32_t leases_per_session_max = 4096;
  uint32_t lease_blocks_per_session_max = 1 << 21;
  uint32_t lease_blocks_max = 1 << 24;  // of a domain
  uint32_t pending_per_session_max = 1024;
  uint64_t session_output_bytes_max = 32 * kMiB;
  uint64_t session_buffers_bytes_max = 512 * kMiB;
  std::string eviction = "hazard";  // of DRAM; some of EvictionPolicyNames()
  std::string trace_dir;            // where requests are recorded; empty: nowhere
  TraceAtStart trace = TraceAtStart::kOff;
  uint64_t trace_bytes_max = 256 * kMiB;  // of a domain
  uint32_t offload_threads = 2;
  uint32_t offload_jobs_max = 4096;
  NvmeConfig nvme;
  HbmConfig hbm;
  KvEventsConfig kv_events;
  RedisConfig redis;
  MetricsConfig metrics;
  std::vector<DomainConfig> domains;
};

}  // namespace terrace
