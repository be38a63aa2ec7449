// RedisBlocks: blocks on the Redis servers as their users see them: stored whole or not at all,
// read exactly or not at all, looked for many at a time. The order of commands is that of
// docs/REDIS_FORMAT.md.
//
// THREADING: the Redis thread; `done` is called there, sometimes from inside the call.
// OWNERSHIP: memory belongs to the operation until `done`; every operation ends by the timeouts of
// its commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/crypto/group_key.h"
#include "tiers/redis/redis_format.h"
#include "tiers/redis/wire/redis_servers.h"

namespace terrace {

struct RedisBlocksCounts {
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t fetches_found = 0, fetches_missed = 0, fetches_broken = 0, fetches_failed = 0;
  uint64_t stores_done = 0, stores_existing = 0, stores_failed = 0;
  uint64_t fetches_locked = 0;  // of those missed: encrypted under a key that the ring has not
  uint64_t repairs = 0;         // broken manifests taken away
};

class RedisBlocks {
 public:
  struct Options {
    DomainSecret secret{};
    std::string prefix = "terrace";
    uint64_t ttl_ms = 24 * 3600 * uint64_t{1000};
    std::function<uint64_t()> unix_us;
    RedisServers* servers = nullptr;
    std::shared_ptr<const KeyRing> ring;  // none: blocks are stored as they are
    RandomFill random;                    // of salts
  };
  explicit RedisBlocks(Options options);
  // The ring's keys have changed. REQUIRES: there was a ring.
  void SetRing(std::shared_ptr<const KeyRing> ring) { options_.ring = std::move(ring); }

  using StoreDone = std::function<void(Status)>;
  // kOk: published. kExists: the block is there, perhaps with another commit's bytes. kNoSpace: the
  // server takes no writes now. Anything else: it may be there or not.
  void Store(const RedisBlockName& name, RedisManifest manifest, std::span<const std::byte> from,
             StoreDone done);

  // The manifest is valid with kOk only.
  using FetchDone = std::function<void(Status, RedisManifest)>;
  // kOk: `into` has exactly the bytes of the manifest's commit. kNotFound: there is none. kCorrupt:
  // it was broken, and is removed. Otherwise `into` has anything.
  void Fetch(const RedisBlockName& name, std::span<std::byte> into, FetchDone done);

  // One bit a name: it may be there. kOk only when every answer came.
  using ProbeDone = std::function<void(Status, const std::vector<bool>&)>;
  void Probe(std::vector<RedisBlockName> names, ProbeDone done);

  // Takes the block away, whoever wrote it.
  void Erase(const RedisBlockName& name, StoreDone done);

  const RedisBlocksCounts& counts() const { return counts_; }

 private:
  struct StoreJob;
  struct FetchJob;
  struct ProbeJob;

  using OnAnswer = std::function<void(const RedisAnswer&)>;
  void SendSmall(const std::string& key, RedisCommand command, OnAnswer on_answer);

  // The payload as it is to lie on the server; once a job. False: the job has ended.
  bool Encrypt(StoreJob& job);
  // With its checksum in the manifest.
  std::span<const std::byte> SealChunk(StoreJob& job, uint32_t index) const;
  void SendSmallBlock(const std::shared_ptr<StoreJob>& job);
  // Those of the keys that have no time to live yet get one.
  static RedisCommand FormatExpireScript(std::span<const std::string> keys, uint64_t ttl_ms);
  // The same, to be sent right after the keys were set.
  std::vector<RedisCommand> FormatExpireNew(std::span<const std::string> keys,
                                            uint64_t ttl_ms) const;
  void ExpireAnyway(const StoreJob& job);
  void OnSmallBlockSent(const std::shared_ptr<StoreJob>& job, const RedisAnswer& answer);
  RedisCommand FormatSmallRepair(const RedisBlockName& name, size_t chunk_count,
                                 const std::string& manifest_text) const;
  void SendChunks(const std::shared_ptr<StoreJob>& job);
  void Publish(const std::shared_ptr<StoreJob>& job);
  void EndStore(StoreJob& job, Status status);
  uint64_t TtlMs(const RedisManifest& manifest) const;
  static RedisCommand FormatMark(const std::string& key, const RedisBlockName& name);
  std::string PresenceTtl() const;
  void MarkPresent(const RedisBlockName& name);

  void FetchSmallBlock(const std::shared_ptr<FetchJob>& job);
  void OnSmallBlock(FetchJob& job, const RedisAnswer& answer);
  bool TakeManifest(FetchJob& job, const RedisAnswer& answer, RedisReply::Kind kind);
  void OnManifest(const std::shared_ptr<FetchJob>& job, const RedisAnswer& answer);
  void OnChunk(FetchJob& job, size_t index, std::span<const std::byte> bytes,
               const RedisAnswer& answer);
  void EndFetch(FetchJob& job, Status status);
  void Repair(const FetchJob& job);
  void ClearPresence(const RedisBlockName& name);
  void RepairPresence(const std::string& key);
  void UnlinkChunks(const RedisBlockName& name, const RedisManifest& manifest);

  Options options_;
  const RedisKeyNames names_;
  std::mt19937_64 random_;
  RedisBlocksCounts counts_;
  uint32_t looks_first_ = 0;
};

}  // namespace terrace
