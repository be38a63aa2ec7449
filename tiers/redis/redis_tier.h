// RedisTier: the SharedTier on Redis servers.
//
// A server that is slow, full, wrong or away costs hits and nothing else: every call returns at
// once, every transfer ends by timeouts computed from its size, and while the server does not work
// nothing is sent at all.
//
// THREADING: every method on the store thread; none blocks but EndThread. Sockets, checksums and
// timers live on the tier's own thread; answers come to the listener on the store thread, never
// from inside a call.
// OWNERSHIP: the memory of a transfer belongs to the tier until its answer, or its end (RedisEnd).
// The listener outlives the tier.
// LIMITS: operations_max at a time, bytes_max of them; more is kBusy. kRedisGroupsMax groups whose
// generation is remembered; of more the server is asked again. OwedErasures::kBlocksMax blocks
// whose erasure is owed; of more the group of which most are is forgotten as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/units.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/disk/circuit_breaker.h"
#include "tiers/redis/owed_erasures.h"
#include "tiers/redis/redis_format.h"
#include "tiers/redis/wire/redis_endpoint.h"
#include "tiers/redis/wire/redis_stream.h"
#include "tiers/shared_tier.h"

namespace terrace {

inline constexpr size_t kRedisGroupsMax = 4096;
// So often a host hears of what others had forgotten, of a group that it uses.
inline constexpr uint64_t kRedisAskAgainUs = 5 * kUsPerSecond;
// A server that has lost a generation is told again which it was by who heard it that long ago.
inline constexpr uint64_t kRedisBelievedUs = 60 * kUsPerSecond;

// What has become of a tier's thread.
enum class RedisEnd : uint8_t {
  kEnded,
  kResolverHangs,  // of host names: all else is over, and no transfer's memory is touched any more
  kFileHangs,      // one that a login reads: memory may still be touched
};

// Which generation of a group's blocks a host uses. is_owed: it is to rise, and no server knows
// yet.
struct GroupGeneration {
  GroupId group;
  uint64_t generation = 0;
  bool is_owed = false;

  friend bool operator==(const GroupGeneration&, const GroupGeneration&) = default;
};

// What a successor of this process must know.
struct RedisMemory {
  std::vector<GroupGeneration> generations;
  std::vector<KeptErasure> erasures;

  friend bool operator==(const RedisMemory&, const RedisMemory&) = default;
};

class RedisTier final : public SharedTier {
 public:
  struct Options {
    DomainSecret secret{};
    RedisTopology topology = RedisTopology::kSingle;
    std::vector<RedisEndpoint> endpoints;  // the server; the Sentinels; some nodes of the Cluster
    std::string master_name;               // with Sentinels
    std::string credentials_file;          // empty: no login. Read again at every login.
    bool is_tls = false;
    RedisTlsOptions tls;  // the files are read again where they change
    RedisTimeouts timeouts;
    std::string prefix = "terrace";
    std::shared_ptr<const KeyRing> ring;  // none: blocks are stored as they are
    RandomFill random = KernelRandom;     // of salts
    uint32_t version() const {
      return ring == nullptr ? kRedisFormatVersion : kRedisEncryptedVersion;
    }
    std::string permission_key() const { return RedisKeyNames::Permission(prefix, version()); }
    std::string look_key() const { return RedisKeyNames::Look(prefix, version()); }
    uint64_t ttl_ms = 24 * 3600 * uint64_t{1000};
    uint32_t connections = 5;
    CircuitBreaker::Options breaker;
    uint32_t operations_max = 256;
    uint64_t bytes_max = 512 * kMiB;
    uint32_t probe_names_max = 4096;     // of one probe
    uint64_t absence_us = kUsPerSecond;  // how long a "no" is remembered
    // Runs its argument on the store thread, later. Any thread.
    std::function<void(std::function<void()>)> post;
    std::function<uint64_t()> unix_us;  // the wall clock, any thread
    SharedTierListener* listener = nullptr;
    // What a predecessor had kept, and who keeps it for a successor: all of it, whenever something
    // changes; then Kept(revision) is due. None: it ends with the process. Store thread.
    RedisMemory memory;
    bool is_memory_lost = false;  // nobody can tell: of no group anything of before is used
    std::function<void(uint64_t revision, RedisMemory)> keep;
  };
  // Starts the thread; the server need not be there. kInvalid: the options cannot work, `*why`
  // names which and the remedy.
  static Result<std::unique_ptr<RedisTier>> Open(Options options, std::string* why);
  ~RedisTier() override;

  Status Fetch(TransferId transfer_id, const RedisBlockName& name,
               std::span<std::byte> into) override;
  Status Store(TransferId transfer_id, const BlockKey& run, const BlockRecord& record,
               std::span<const std::byte> from) override;
  // kInvalid: more than probe_names_max.
  Status Probe(uint64_t probe_id, std::span<const RedisBlockName> names) override;
  void Erase(const RedisBlockName& name) override;
  void EraseByKey(const RedisBlockName& name) override;
  Status EraseInAnyGroup(std::span<const BlockKey> keys) override;
  void Drop(const RedisBlockName& name) override;
  void Forget(const GroupId& group) override;
  void ForgetAll() override;
  SharedErasureMark MarkErasures() const override;
  bool IsDurable(const SharedErasureMark& mark) const override;
  void Tick() override;
  // From now on its first key encrypts, and all of its keys decrypt. REQUIRES: Options::ring.
  void SetRing(std::shared_ptr<const KeyRing> ring);
  // TLS files that have changed are read again now, as they are for each new connection.
  void ReadTlsFiles();
  // Of those that were missed: encrypted under a key that the ring has not.
  uint64_t fetches_locked() const;
  // What was given to Options::keep is safe.
  void Kept(uint64_t revision);
  uint64_t PredictReadUs(uint64_t length_bytes) const override;
  SharedTierStats stats() const override;

  // Abandons what is under way: no answer comes any more.
  void BeginStop();
  // Waits for the thread. Of one that hangs for within_us everything that the tier owns is left
  // behind (LeaveBehind); asked again, it says how far that one has come. REQUIRES: BeginStop.
  [[nodiscard]] RedisEnd EndThread(uint64_t within_us);

 private:
  struct State;
  explicit RedisTier(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // also held by calls that were posted and did not run yet
};

}  // namespace terrace
