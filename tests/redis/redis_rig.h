// RedisRig: a RedisTier whose store thread is the test's: calls wait until their answer was
// delivered. And blocks to store in it: the bytes of a block follow from its key and commit.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tiers/redis/redis_tier.h"

namespace terrace::testing {

DomainSecret RedisTestSecret();
// Position `position` of chain `chain`.
RedisBlockName RedisTestName(uint64_t chain, uint32_t position);
// Of a group, on the server: its key, and what is there.
std::string RedisTestGenerationKey(const GroupId& group);
std::string RedisTestGeneration(const GroupId& group, uint64_t generation);
BlockRecord RedisTestRecord(const RedisBlockName& name, CommitId commit_id);
// What is stored under that key by that commit: a read that gives anything else is wrong.
std::vector<std::byte> RedisTestBytes(const BlockKey& key, CommitId commit_id, size_t length_bytes);

class RedisRig final : public SharedTierListener {
 public:
  // Patient: what a loaded machine does to a server is not what is tested.
  static RedisTier::Options Options(const RedisEndpoint& endpoint);

  explicit RedisRig(RedisTier::Options options);
  ~RedisRig() override;

  RedisTier& tier() { return *tier_; }
  void WaitUntilReady();
  // Runs posted calls until `is_true`; false after a minute.
  bool RunUntil(const std::function<bool()>& is_true);
  // The same beside ticks, as a store has them.
  bool RunTicking(const std::function<bool()>& is_true);
  // Servers have been told of all that was erased.
  bool RunUntilErased() {
    return RunTicking([this] { return tier_->stats().erasures_owed == 0; });
  }

  Status StoreNow(const RedisBlockName& name, CommitId commit_id, size_t length_bytes);
  struct Fetched {
    Status status;
    CommitId commit_id = 0;
    std::vector<std::byte> bytes;
    BlockRecord record;  // without the checksums' memory
    std::vector<Checksum> part_checksums;
  };
  Fetched FetchNow(const RedisBlockName& name, size_t length_bytes);
  std::pair<Status, std::vector<bool>> ProbeNow(const std::vector<RedisBlockName>& names);
  // kOk and exactly the bytes of the commit that is said, or a miss. Anything else is a lie.
  static bool IsTrue(const Fetched& fetched, const RedisBlockName& name, size_t length_bytes);

  // SharedTierListener
  void OnSharedFetched(TransferId transfer_id, Status status, const BlockRecord& record) override;
  void OnSharedStored(TransferId transfer_id, Status status) override;
  void OnSharedProbed(uint64_t probe_id, Status status,
                      const std::vector<bool>& is_present) override;
  void OnSharedForgotten(const GroupId& group) override { forgotten.push_back(group); }

  std::vector<GroupId> forgotten;  // by other hosts
  // Answers that came, by the caller's id.
  std::map<TransferId, Fetched> fetched;
  std::map<TransferId, Status> stored;
  std::map<uint64_t, std::pair<Status, std::vector<bool>>> probed;

 private:
  struct Posted;
  const std::shared_ptr<Posted> posted_;
  std::unique_ptr<RedisTier> tier_;
  TransferId next_id_ = 1;
};

}  // namespace terrace::testing
