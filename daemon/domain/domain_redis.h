// DomainRedis: one domain's Redis tier as the daemon runs it: made from the configuration at the
// start, answering to the store once there is one, and ended before the memory it reads and writes
// goes. The servers need not be there at any time.
//
// THREADING: store thread. OWNERSHIP: outlives the Store; the arena and the store thread's loop
// outlive it.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/persist/kept_generations.h"
#include "daemon/persist/missed_erasures.h"
#include "daemon/store/store.h"
#include "tiers/redis/redis_tier.h"
#include "tiers/redis/wire/file_stamp.h"
#include "tiers/tier_shares.h"

namespace terrace {

// What can be told without a server: addresses, and files that must be readable. kInvalid with one
// sentence in `*why`.
Status CheckRedis(const RedisConfig& config, std::string* why);

// A TLS file of the servers, by its key, as it is now.
struct RedisTlsFile {
  std::string key, path;
  FileStamp stamp;
};
std::vector<RedisTlsFile> RedisTlsFiles(const RedisConfig& config);

class DomainRedis final : public SharedTierListener {
 public:
  struct Options {
    std::string domain_name;
    DomainSecret secret{};
    RedisConfig redis;
    std::string generations_path;
    std::string place_path;               // see KeptGenerations
    bool has_missed_erasure = false;      // the same
    std::shared_ptr<const KeyRing> ring;  // none: blocks are stored as they are
    // Runs its argument as a turn of the store thread, later. Any thread.
    std::function<void(std::function<void()>)> post;
    std::function<uint64_t()> unix_us;  // the wall clock, any thread
  };
  explicit DomainRedis(Options options) : options_(std::move(options)) {}

  Status Open(std::string* why);
  // KeptGenerations' is_loaded_for_good. After Open.
  bool has_kept_place() const { return generations_->is_loaded_for_good(); }
  // Who is told of answers; before the first request.
  void Serve(SharedTierListener& listener) { listener_ = &listener; }
  // The configuration was read again. Null: nothing is encrypted.
  void OnReload(const std::shared_ptr<const KeyRing>& ring) {
    if (ring != nullptr) tier_->SetRing(ring);
    tier_->ReadTlsFiles();
  }
  void BeginStop() { tier_->BeginStop(); }
  // Waits no longer than until `end` for the tier's thread. False, and told in the log: it hangs,
  // and nothing of this may be destroyed. REQUIRES: BeginStop.
  [[nodiscard]] bool EndThreads(std::chrono::steady_clock::time_point end);
  // Says in the log when servers go and come back. Now and then.
  void LogHealth();

  // How the store uses it. `shares` are over all domains, and outlive the store.
  SharedUse use(TierShares* shares) const;

  void OnSharedFetched(TransferId transfer_id, Status status, const BlockRecord& record) override;
  void OnSharedStored(TransferId transfer_id, Status status) override;
  void OnSharedProbed(uint64_t probe_id, Status status,
                      const std::vector<bool>& is_present) override;
  void OnSharedForgotten(const GroupId& group) override;

 private:
  // Generations that the predecessor had forgotten.
  void LoadGenerations(RedisTier::Options* options);
  void LogOwed(const SharedTierStats& stats);
  void LogForgotten(const SharedTierStats& stats);
  void LogLocked();
  void LogTls(const SharedTierStats& stats);

  const Options options_;
  std::unique_ptr<RedisTier> tier_;
  SharedTierListener* listener_ = nullptr;
  std::unique_ptr<KeptGenerations> generations_;  // ends before the tier: it tells it
  uint64_t owed_told_ = 0;                        // groups
  uint64_t erasures_told_ = 0;
  uint64_t locked_told_ = 0;
  uint64_t lost_told_ = 0, elsewhere_told_ = 0;  // groups
  std::string tls_trouble_told_;
  bool is_left_behind_ = false;
  enum class Told : uint8_t {
    kNothing,
    kReady,
    kAway,
    kRefused,
    kOfAnotherKind,
    kAwayInPart,
    kRefusedInPart
  };
  Told told_ = Told::kNothing;
};

// A secret, as names of its files in state_dir say it: 16 hex digits.
std::string RedisSecretName(const DomainSecret& secret);
// Those under which the domain has ever had a server, as far as state_dir knows.
std::set<std::string> RedisSecretNamesOf(const DaemonConfig& config, size_t domain_index);

// One a domain, or none if the configuration names no server. What lies there under other secrets
// is told to `missed`, and what was erased meanwhile is asked of it.
Status OpenRedis(const DaemonConfig& config, const std::vector<DomainSecret>& secrets,
                 const std::vector<std::shared_ptr<const KeyRing>>& rings,
                 const std::function<void(std::function<void()>)>& post,
                 const std::function<uint64_t()>& unix_us, MissedErasures* missed,
                 std::vector<std::unique_ptr<DomainRedis>>* domains, std::string* why);

// Stops them all; waits a second for threads that hang, in all. False: some do, and the process may
// end by _Exit alone. Does nothing where they have been stopped.
bool StopRedis(std::span<const std::unique_ptr<DomainRedis>> domains);

// Runs the store thread's loop until what waits to be shared is given, drain_ms long at most, tells
// what did not go, and stops them all: another host may need at once what this one has stored last.
// False as StopRedis.
[[nodiscard]] bool CloseRedis(std::span<const std::unique_ptr<DomainRedis>> domains,
                              const Store& store, asio::io_context& loop, uint32_t drain_ms);

}  // namespace terrace
