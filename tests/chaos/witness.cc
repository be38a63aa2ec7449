// Remembers which blocks are in DRAM, commit by commit, and says later how many of them are still
// to be had, bytes and all. A block that was lost and stored again is another commit.
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

constexpr uint64_t kPatienceUs = 10'000'000;
constexpr int kTriesMax = 100;
constexpr std::chrono::milliseconds kPause{10};
constexpr uint8_t kInDram = 1 << static_cast<uint8_t>(protocol::TierKind::kDram);

class Witness {
 public:
  explicit Witness(Traffic& traffic) : traffic_(traffic) {}

  void SayNote() {
    noted_.clear();
    for (uint32_t i = 0; i < traffic_.options().prompt_count; ++i) {
      const auto keys = KeysOf(i);
      std::vector<protocol::QueriedBlock> blocks;
      if (!Query(keys, &blocks)) return;
      for (size_t k = 0; k < blocks.size(); ++k) {
        const bool is_there = blocks[k].state == protocol::BlockState::kSealed &&
                              (blocks[k].tier_mask & kInDram) != 0;
        if (is_there) noted_[keys[k]] = blocks[k].commit_id;
      }
    }
    Say("{\"noted\": %zu}", noted_.size());
  }

  // Reads every prompt.
  void SayCheck() {
    uint32_t wrong_count = 0;
    std::set<BlockKey> seen;
    for (uint32_t i = 0; i < traffic_.options().prompt_count; ++i) {
      const auto keys = KeysOf(i);
      auto lease = traffic_.Acquire(keys);
      // The client may not have seen yet that its daemon is another one.
      for (int tries = 0; tries < kTriesMax && lease.code() == StatusCode::kGone; ++tries) {
        (void)traffic_.client().WaitConnected(kPatienceUs);
        std::this_thread::sleep_for(kPause);
        lease = traffic_.Acquire(keys);
      }
      if (!lease.ok()) {
        return Say("{\"error\": \"check: acquire: status %u: %s\"}",
                   static_cast<unsigned>(lease.code()), traffic_.client().last_error().c_str());
      }
      traffic_.WaitReady(*lease);
      wrong_count += traffic_.Verify(*lease, keys);
      seen.insert(keys.begin(), keys.begin() + lease->ready_count());
      lease->Release();
    }
    const std::vector<BlockKey> keys(seen.begin(), seen.end());
    std::vector<protocol::QueriedBlock> blocks;
    if (!Query(keys, &blocks)) return;
    size_t hit_count = 0;
    for (size_t k = 0; k < keys.size(); ++k) {
      const auto noted = noted_.find(keys[k]);
      hit_count += noted != noted_.end() && noted->second == blocks[k].commit_id ? 1 : 0;
    }
    Say("{\"noted\": %zu, \"hit\": %zu, \"wrong\": %u}", noted_.size(), hit_count, wrong_count);
  }

  // Has the daemon erase a prompt and what hangs from it, so that there is something to store.
  void SayErase(uint32_t prompt) {
    const auto reply = traffic_.Erase(traffic_.options().prompt_first + prompt, 0, kPatienceUs);
    if (!reply.ok()) {
      return Say("{\"error\": \"erase: status %u\"}", static_cast<unsigned>(reply.code()));
    }
    Say("{\"erased\": %llu}", static_cast<unsigned long long>(reply->block_count));
  }

 private:
  std::span<const BlockKey> KeysOf(uint32_t prompt) {
    return traffic_.Keys(traffic_.options().prompt_first + prompt, traffic_.options().blocks_max);
  }
  // False after having said why.
  bool Query(std::span<const BlockKey> keys, std::vector<protocol::QueriedBlock>* blocks) {
    if (keys.empty()) return true;
    const Status status =
        traffic_.client().Query(traffic_.group(), keys, blocks, {.deadline_us = kPatienceUs});
    if (!status.ok())
      Say("{\"error\": \"query: status %u\"}", static_cast<unsigned>(status.code()));
    return status.ok();
  }

  Traffic& traffic_;
  std::map<BlockKey, CommitId> noted_;
};

}  // namespace

int RunWitness(const Arguments& arguments, Progress* progress) {
  Traffic::Options options = Traffic::ReadOptions(arguments);
  options.client_name = "witness";
  options.deadline_us = kPatienceUs;
  Traffic traffic(options, progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Witness witness(traffic);
  Say("ready");
  std::string line;
  while (Listen(&line)) {
    (void)traffic.client().WaitConnected(kPatienceUs);
    if (line == "note") {
      witness.SayNote();
    } else if (line == "check") {
      witness.SayCheck();
    } else if (line.starts_with("erase ")) {
      witness.SayErase(static_cast<uint32_t>(std::stoul(line.substr(6))));
    } else {
      break;
    }
  }
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
