// RedisTier: one domain's share of a cache that many hosts have in common. Blocks are stored, read
// and looked for by name. It is no Tier: nothing in it is this host's, places are not allocated
// or freed, and what was there a moment ago may be gone.
//
// A server that is slow, full, wrong or away costs hits and nothing else: every call returns at
// once, every transfer ends by timeouts computed from its size, and while the server does not work
// nothing is sent at all.
//
// THREADING: every method on the store thread; none blocks but Stop. Sockets, checksums and timers
// live on the tier's own thread; answers come to the listener on the store thread, never from
// inside a call.
// OWNERSHIP: the memory of a transfer belongs to the tier until its answer, or until Stop returned.
// The listener outlives the tier.
// LIMITS: operations_max at a time, bytes_max of them; more is kBusy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "tiers/circuit_breaker.h"
#include "tiers/redis_endpoint.h"
#include "tiers/redis_format.h"
#include "tiers/redis_stream.h"
#include "tiers/tier.h"

namespace terrace {

class RedisTierListener {
 public:
  virtual ~RedisTierListener() = default;
  // kOk: the memory has exactly the bytes that were stored with `record` (valid during the call;
  // domain_index and owner mean nothing). kNotFound, kCorrupt: a miss. Else: the server did not
  // answer well. Unless kOk the memory has anything.
  virtual void OnRedisFetched(TransferId transfer_id, Status status, const BlockRecord& record) = 0;
  // kOk: stored. kExists: somebody has stored the block. kNoSpace: the server takes no writes now.
  virtual void OnRedisStored(TransferId transfer_id, Status status) = 0;
  // In the order asked; all false unless kOk. A hint: see docs/REDIS_FORMAT.md, Presence.
  virtual void OnRedisProbed(uint64_t probe_id, Status status,
                             const std::vector<bool>& is_present) = 0;
};

struct RedisTierStats {
  bool is_ready = false;    // commands can be sent
  bool is_refused = false;  // the server refuses us: login, permission or certificate
  std::string trouble;      // why it is not ready, for a person; never what the server sent
  uint64_t operations_in_flight = 0, bytes_in_flight = 0;
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t fetches_found = 0, fetches_missed = 0, fetches_broken = 0, fetches_failed = 0;
  uint64_t stores_done = 0, stores_existing = 0, stores_failed = 0;
  uint64_t probes = 0, probes_remembered = 0;  // names; of them answered without asking
  uint64_t repairs = 0;
  uint64_t connections = 0;  // logged in
  uint64_t connection_attempts = 0, connections_lost = 0, breaker_opened = 0;
};

class RedisTier {
 public:
  struct Options {
    DomainSecret secret{};
    RedisTopology topology = RedisTopology::kSingle;
    std::vector<RedisEndpoint> endpoints;  // the server; the Sentinels; some nodes of the Cluster
    std::string master_name;               // with Sentinels
    std::string credentials_file;          // empty: no login. Read again at every login.
    bool is_tls = false;
    RedisTlsOptions tls;
    RedisTimeouts timeouts;
    std::string prefix = "terrace";
    uint64_t ttl_ms = 24 * 3600 * uint64_t{1000};
    uint32_t connections = 5;
    CircuitBreaker::Options breaker;
    uint32_t operations_max = 256;
    uint64_t bytes_max = 512 * kMiB;
    uint32_t probe_names_max = 4096;     // of one probe
    uint64_t absence_us = kUsPerSecond;  // how long a "no" is remembered
    // Runs its argument on the store thread, later. Any thread.
    std::function<void(std::function<void()>)> post;
    std::function<uint64_t()> unix_seconds;  // any thread
    RedisTierListener* listener = nullptr;
  };
  // Starts the thread; the server need not be there. kInvalid: the options cannot work, `*why`
  // names which and the remedy.
  static Result<std::unique_ptr<RedisTier>> Open(Options options, std::string* why);
  ~RedisTier();

  // kOk: one answer follows. kBusy: too much is under way. kUnsupported: the server does not work
  // now. REQUIRES: into.size(), from.size() > 0.
  Status Fetch(TransferId transfer_id, const RedisBlockName& name, std::span<std::byte> into);
  // `run` as in RedisBlockName; expires_at_s shortens the TTL.
  Status Store(TransferId transfer_id, const BlockKey& run, const BlockRecord& record,
               std::span<const std::byte> from);
  // kInvalid: more than probe_names_max.
  Status Probe(uint64_t probe_id, std::span<const RedisBlockName> names);
  // Takes the block away, whoever stored it. No answer follows.
  Status Erase(const RedisBlockName& name);

  // Predicted microseconds until a fetch of `length_bytes` begun now is done. UINT64_MAX: never.
  uint64_t PredictReadUs(uint64_t length_bytes) const;
  RedisTierStats stats() const;

  // Abandons what is under way: no answer comes any more, no memory is touched any more. Blocks no
  // longer than the resolver of host names takes.
  void Stop();

 private:
  struct State;
  explicit RedisTier(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // also held by calls that were posted and did not run yet
};

}  // namespace terrace
