// Holds the daemon to its word about what outlives it: what it called persisted must be there after
// a restart, what it erased must not come back.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

constexpr uint64_t kPatienceUs = 10'000'000;
constexpr uint64_t kMeetUs = 4 * kPatienceUs;
constexpr useconds_t kTryAgainUs = 1'000;
constexpr uint32_t kTriesMax = 5;  // a daemon each
constexpr uint32_t kLostNamedMax = 3;

uint64_t NowUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Until the daemon there is now answers. The client may not know yet that the last one died: until
// its background thread has run, it is connected and every call answers "gone" at once.
void MeetDaemon(Client& client) {
  const uint64_t give_up_us = NowUs() + kMeetUs;
  while (NowUs() < give_up_us) {
    (void)client.WaitConnected(kPatienceUs);
    if (client.Stats(kPatienceUs).ok()) return;
    usleep(kTryAgainUs);
  }
}

class Archivist {
 public:
  explicit Archivist(Traffic& traffic) : traffic_(traffic) {}

  // Stores the prompts that are not there.
  void SayStore() {
    uint32_t resident_count = 0;
    for (uint32_t i = 0; i < traffic_.options().prompt_count; ++i) {
      resident_count += traffic_.Serve(Prompt(i), traffic_.options().blocks_max);
    }
    Say("{\"resident\": %u}", resident_count);
  }

  // Notes every block that is reported persisted now; earlier notes go.
  void SayRemember() {
    std::set<BlockKey> persisted;
    for (uint32_t i = 0; i < traffic_.options().prompt_count; ++i) {
      const auto keys = traffic_.Keys(Prompt(i), traffic_.options().blocks_max);
      std::vector<protocol::QueriedBlock> blocks;
      if (!Query(keys, &blocks)) return;
      for (size_t k = 0; k < blocks.size(); ++k) {
        if (blocks[k].flags & protocol::kQueriedPersisted) persisted.insert(keys[k]);
      }
    }
    persisted_ = std::move(persisted);
    Say("{\"persisted\": %zu}", persisted_.size());
  }

  // What is left of them. Every prompt is read, too, so that each block that comes is verified.
  void SaySurvivors() {
    size_t found_count = 0;
    uint32_t wrong_count = 0;
    uint32_t named_count = 0;
    std::set<BlockKey> seen;
    for (uint32_t i = 0; i < traffic_.options().prompt_count; ++i) {
      const auto keys = traffic_.Keys(Prompt(i), traffic_.options().blocks_max);
      auto lease = traffic_.Acquire(keys);
      if (!lease.ok()) {
        return Say("{\"error\": \"survivors: acquire: status %u\"}",
                   static_cast<unsigned>(lease.status().code()));
      }
      traffic_.WaitReady(*lease);
      wrong_count += traffic_.Verify(*lease, keys);
      seen.insert(keys.begin(), keys.begin() + lease->ready_count());
      lease->Release();
    }
    // One by one: a prefix may end before a block that is there.
    const std::vector<BlockKey> keys(persisted_.begin(), persisted_.end());
    std::vector<protocol::QueriedBlock> blocks;
    if (!Query(keys, &blocks)) return;
    for (size_t k = 0; k < blocks.size(); ++k) {
      if (blocks[k].state == protocol::BlockState::kSealed) {
        ++found_count;
      } else if (named_count++ < kLostNamedMax) {
        std::fprintf(stderr, "LOST block %s was reported persisted\n", ToHex(keys[k]).c_str());
      }
    }
    Say("{\"persisted\": %zu, \"found\": %zu, \"seen\": %zu, \"wrong\": %u}", persisted_.size(),
        found_count, seen.size(), wrong_count);
  }

  // Has the daemon erase one prompt and what hangs from it, and notes which of its blocks went.
  void SayErase(uint32_t prompt) {
    const auto keys = traffic_.Keys(Prompt(prompt), traffic_.options().blocks_max);
    ForgetFamily(prompt);  // whatever the answer
    const auto reply = traffic_.Erase(Prompt(prompt), 0, kPatienceUs);
    std::vector<protocol::QueriedBlock> blocks;
    if (!reply.ok()) {
      return Say("{\"error\": \"erase: status %u\"}", static_cast<unsigned>(reply.code()));
    }
    if (!Query(keys, &blocks)) return;
    for (size_t k = 0; k < blocks.size(); ++k) {
      if (blocks[k].state != protocol::BlockState::kAbsent) continue;
      erased_.insert(keys[k]);
    }
    Say("{\"erased\": %zu}", erased_.size());
  }

  void ForgetAll() {
    persisted_.clear();
    Forget();
  }

  void Forget() {
    erased_.clear();
    Say("{}");
  }

  void SayErased() {
    const std::vector<BlockKey> keys(erased_.begin(), erased_.end());
    std::vector<protocol::QueriedBlock> blocks;
    if (!Query(keys, &blocks)) return;
    const auto back = std::count_if(blocks.begin(), blocks.end(), [](const auto& block) {
      return block.state != protocol::BlockState::kAbsent;
    });
    Say("{\"erased\": %zu, \"back\": %zu}", keys.size(), static_cast<size_t>(back));
  }

 private:
  // Prompts that share blocks with this one may lose what hangs from those.
  void ForgetFamily(uint32_t prompt) {
    const uint32_t family = Prompt(prompt) / kPromptsPerFamily;
    for (uint32_t i = 0; i < traffic_.options().prompt_count; ++i) {
      if (Prompt(i) / kPromptsPerFamily != family) continue;
      for (const BlockKey& key : traffic_.Keys(Prompt(i), traffic_.options().blocks_max)) {
        persisted_.erase(key);
      }
    }
  }

  uint32_t Prompt(uint32_t index) const { return traffic_.options().prompt_first + index; }

  // False after having said why.
  bool Query(std::span<const BlockKey> keys, std::vector<protocol::QueriedBlock>* blocks) {
    Status status;
    for (uint32_t i = 0; i < kTriesMax; ++i) {
      blocks->clear();
      status =
          traffic_.client().Query(traffic_.group(), keys, blocks, {.deadline_us = kPatienceUs});
      if (status.code() != StatusCode::kGone) break;
      MeetDaemon(traffic_.client());
    }
    if (!status.ok()) {
      std::fprintf(stderr, "query: %s\n", traffic_.client().last_error().c_str());
      Say("{\"error\": \"query: status %u\"}", static_cast<unsigned>(status.code()));
    }
    return status.ok();
  }

  Traffic& traffic_;
  std::set<BlockKey> persisted_;
  std::set<BlockKey> erased_;
};

}  // namespace

int RunArchivist(const Arguments& arguments, Progress* progress) {
  Traffic::Options options = Traffic::ReadOptions(arguments);
  options.client_name = "archivist";
  options.deadline_us = kPatienceUs;
  Traffic traffic(options, progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Archivist archivist(traffic);
  Say("ready");
  std::string line;
  while (Listen(&line)) {
    MeetDaemon(traffic.client());
    if (line == "store") {
      archivist.SayStore();
    } else if (line == "remember") {
      archivist.SayRemember();
    } else if (line == "survivors") {
      archivist.SaySurvivors();
    } else if (line == "erased") {
      archivist.SayErased();
    } else if (line == "forget") {  // they may be stored again
      archivist.Forget();
    } else if (line == "forget all") {  // the disks were emptied
      archivist.ForgetAll();
    } else if (line.starts_with("erase ")) {
      archivist.SayErase(static_cast<uint32_t>(std::stoul(line.substr(6))));
    } else {
      break;
    }
  }
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
