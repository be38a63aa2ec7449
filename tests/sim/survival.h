// Survival: what the end of a daemon must leave, and what must never come back, by what the daemon
// itself has said: a block that Query calls persisted is there after a kill, and after a loss of
// power once a sync had time to cover it; what an Evict or Reset that was answered had erased stays
// erased after both.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "daemon/store/store.h"
#include "sim/drive.h"

namespace terrace::sim {

class Survival {
 public:
  using Name = std::tuple<uint32_t, uint32_t, BlockKey>;  // domain, group, key
  struct Seen {
    CommitId commit_id = 0;
    bool is_persisted = false;
  };
  using Snapshot = std::map<Name, Seen>;  // of Sealed blocks
  // A sync begins once a second, looked at every half, and the world's clock jumps by up to one.
  static constexpr uint64_t kDurableAfterUs = 5'000'000;

  void Note(const Snapshot& now, uint64_t now_us) {
    std::map<Name, Persisted> next;
    for (const auto& [name, seen] : now) {
      if (!seen.is_persisted) continue;
      const auto known = persisted_.find(name);
      const bool is_same = known != persisted_.end() && known->second.commit_id == seen.commit_id;
      next[name] = is_same ? known->second : Persisted{seen.commit_id, now_us};
    }
    persisted_ = std::move(next);
  }

  // The drive has it since this moment. It may have given it up and been handed it again between
  // two looks, and a sync has to cover what was written last.
  void Written(CommitId commit_id, uint64_t now_us) {
    for (auto& [name, persisted] : persisted_) {
      if (persisted.commit_id == commit_id) persisted.since_us = now_us;
    }
  }

  // What was there before the request was read, and no longer after it.
  void ErasureAsked(SessionId session, uint64_t request_id, const Snapshot& before,
                    const Snapshot& after) {
    std::set<CommitId>& erased = asked_[{session, request_id}];
    for (const auto& [name, seen] : before) {
      const auto found = after.find(name);
      if (found == after.end() || found->second.commit_id != seen.commit_id) {
        erased.insert(seen.commit_id);
      }
    }
  }
  void ErasureAnswered(SessionId session, uint64_t request_id, StatusCode status) {
    const auto found = asked_.find({session, request_id});
    if (found == asked_.end()) return;
    if (status == StatusCode::kOk) erased_.merge(found->second);
    asked_.erase(found);
  }

  // A successor has found `now`. An empty string, or what it should have found, or should not.
  // kNothing: its drives may lose what they hold.
  enum class Promise : uint8_t { kSurvival, kNothing };
  std::string Judge(const Snapshot& now, Ending ending, Promise promise, uint64_t now_us) {
    asked_.clear();
    for (const auto& [name, seen] : now) {
      if (erased_.contains(seen.commit_id)) return Say(name) + " was erased, and is back";
    }
    erased_checked_ += erased_.size();
    for (const auto& [name, persisted] : std::exchange(persisted_, {})) {
      if (promise == Promise::kNothing) continue;
      if (ending == Ending::kPowerLoss && now_us - persisted.since_us < kDurableAfterUs) continue;
      const auto found = now.find(name);
      if (found == now.end() || found->second.commit_id != persisted.commit_id) {
        return Say(name) + " was persisted, and is gone";
      }
      if (!found->second.is_persisted) return Say(name) + " came back, but not persisted";
      ++survivors_checked_;
    }
    Note(now, now_us);
    return "";
  }

  uint64_t survivors_checked() const { return survivors_checked_; }
  uint64_t erased_checked() const { return erased_checked_; }

 private:
  struct Persisted {
    CommitId commit_id = 0;
    uint64_t since_us = 0;
  };
  static std::string Say(const Name& name) {
    return "domain " + std::to_string(std::get<0>(name)) + " group " +
           std::to_string(std::get<1>(name)) + " key " + ToHex(std::get<2>(name));
  }

  std::map<Name, Persisted> persisted_;
  std::map<std::pair<SessionId, uint64_t>, std::set<CommitId>> asked_;
  std::set<CommitId> erased_;
  uint64_t survivors_checked_ = 0;
  uint64_t erased_checked_ = 0;
};

}  // namespace terrace::sim
