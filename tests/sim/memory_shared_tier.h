// MemorySharedTier: one host's way to a server in plain memory that several hosts share. Nothing is
// answered before RunOne() says so; bytes move then, not at the call, so that a caller who lets go
// of a buffer too early is found out.
//
// THREADING: one thread. OWNERSHIP: the server outlives the tiers; the listener outlives the tier.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tiers/shared_tier.h"

namespace terrace::sim {

struct SharedServer {
  struct Stored {
    BlockRecord record;
    std::vector<Checksum> roots;
    std::vector<std::byte> bytes;
  };
  // By space, run, key and the group's generation.
  std::map<std::tuple<SpaceId, BlockKey, BlockKey, uint64_t>, Stored> blocks;
  std::map<GroupId, uint64_t> generations;

  auto PlaceOf(const RedisBlockName& name) {
    return std::tuple(name.space, name.run, name.key, generations[name.group]);
  }
};

class MemorySharedTier final : public SharedTier {
 public:
  explicit MemorySharedTier(SharedServer& server) : server_(server) {}
  void SetListener(SharedTierListener* listener) { listener_ = listener; }

  // The oldest question is answered. False if there is none.
  bool RunOne() {
    if (waiting_.empty()) return false;
    const std::function<void()> answer = std::move(waiting_.front());
    waiting_.pop_front();
    answer();
    return true;
  }

  Status Fetch(TransferId transfer_id, const RedisBlockName& name,
               std::span<std::byte> into) override {
    TERRACE_RETURN_IF_ERROR(Admit(name.group));
    if (IsOwed(name)) return Status(StatusCode::kUnsupported, "it is to be erased");
    ++fetch_count;
    // It asks for the generation once, and does not hear of another one by fetching.
    if (!known_.contains(name.group)) Learn(name.group);
    waiting_.push_back([this, transfer_id, name, into, known = known_[name.group]] {
      const auto found = server_.blocks.find(std::tuple(name.space, name.run, name.key, known));
      const bool is_of_before = owed_.contains(name.group) || known_[name.group] != known;
      if (found == server_.blocks.end() || is_of_before || IsOwed(name)) {
        return listener_->OnSharedFetched(transfer_id, Status(StatusCode::kNotFound), {});
      }
      std::memcpy(into.data(), found->second.bytes.data(), into.size());
      BlockRecord record = found->second.record;
      record.part_checksums = found->second.roots;
      listener_->OnSharedFetched(transfer_id, Status::Ok(), record);
    });
    return Status::Ok();
  }
  Status Store(TransferId transfer_id, const BlockKey& run, const BlockRecord& record,
               std::span<const std::byte> from) override {
    TERRACE_RETURN_IF_ERROR(Admit(record.group));
    const RedisBlockName name{
        .group = record.group, .space = record.space, .key = record.key, .run = run};
    if (IsOwed(name)) return Status(StatusCode::kUnsupported, "it is to be erased");
    const std::vector<Checksum> roots(record.part_checksums.begin(), record.part_checksums.end());
    waiting_.push_back([this, transfer_id, name, record, roots, from,
                        known = known_[record.group]] {
      if (Learn(record.group) || known_[record.group] != known) {
        return listener_->OnSharedStored(transfer_id, Status(StatusCode::kGone));
      }
      SharedServer::Stored stored{record, roots, {from.begin(), from.end()}};
      const bool is_new =
          server_.blocks.try_emplace(server_.PlaceOf(name), std::move(stored)).second;
      listener_->OnSharedStored(transfer_id, is_new ? Status::Ok() : Status(StatusCode::kExists));
    });
    return Status::Ok();
  }
  Status Probe(uint64_t probe_id, std::span<const RedisBlockName> names) override {
    TERRACE_RETURN_IF_ERROR(Admit(names.front().group));
    const std::vector<RedisBlockName> asked(names.begin(), names.end());
    waiting_.push_back([this, probe_id, asked] {
      Learn(asked.front().group);
      std::vector<bool> is_present;
      for (const RedisBlockName& name : asked) {
        is_present.push_back(server_.blocks.contains(server_.PlaceOf(name)) && !IsOwed(name));
      }
      listener_->OnSharedProbed(probe_id, Status::Ok(), is_present);
    });
    return Status::Ok();
  }
  // Behind what was asked before: a store under way, too.
  void Erase(const RedisBlockName& name) override {
    if (owed_.contains(name.group)) return;
    erased_.push_back(name);
    if (!is_away) waiting_.push_back([this] { EraseOwed(); });
  }
  void EraseByKey(const RedisBlockName& name) override {
    RedisBlockName whatever = name;
    whatever.run = {};
    Erase(whatever);
  }
  Status EraseInAnyGroup(std::span<const BlockKey> keys) override {
    for (const BlockKey& key : keys) EraseByKey({.key = key});
    return Status::Ok();
  }
  void Drop(const RedisBlockName& name) override {
    if (Admit(name.group).ok()) server_.blocks.erase(server_.PlaceOf(name));
  }
  void Forget(const GroupId& group) override {
    owed_.insert(group);
    Tick();
  }
  void ForgetAll() override {
    for (const auto& [group, generation] : server_.generations) owed_.insert(group);
    Tick();
  }
  SharedErasureMark MarkErasures() const override { return {}; }
  bool IsDurable(const SharedErasureMark& /*mark*/) const override { return is_kept; }
  void Tick() override {
    if (!is_away && !erased_.empty()) waiting_.push_back([this] { EraseOwed(); });
    for (const GroupId& group : is_away ? std::set<GroupId>() : std::exchange(owed_, {})) {
      Learn(group);  // others' orders, between this host's and now
      known_[group] = ++server_.generations[group];
    }
  }
  uint64_t PredictReadUs(uint64_t length_bytes) const override {
    return is_away ? UINT64_MAX : length_bytes / 1000;
  }
  SharedTierStats stats() const override { return {.is_ready = !is_away}; }

  bool is_away = false;
  bool is_full = false;
  bool is_kept = true;
  uint32_t fetch_count = 0;

 private:
  static bool IsSame(const RedisBlockName& erased, const SpaceId& space, const BlockKey& run,
                     const BlockKey& key) {
    const bool is_run = erased.run == run || erased.run.is_zero();
    const bool is_space = erased.space == space || erased.group.is_zero();
    return is_space && erased.key == key && is_run;
  }
  bool IsOwed(const RedisBlockName& name) const {
    return std::ranges::any_of(erased_, [&](const RedisBlockName& erased) {
      return IsSame(erased, name.space, name.run, name.key);
    });
  }
  void EraseOwed() {
    for (const RedisBlockName& erased : std::exchange(erased_, {})) {
      std::erase_if(server_.blocks, [&](const auto& block) {
        const auto& [space, run, key, generation] = block.first;
        return IsSame(erased, space, run, key);
      });
    }
  }
  // Whether others have had the group forgotten.
  bool Learn(const GroupId& group) {
    if (known_[group] == server_.generations[group]) return false;
    known_[group] = server_.generations[group];
    listener_->OnSharedForgotten(group);
    return true;
  }
  Status Admit(const GroupId& group) const {
    if (owed_.contains(group)) return Status(StatusCode::kUnsupported, "it is to be forgotten");
    if (is_away) return Status(StatusCode::kUnsupported, "the server is away");
    return is_full ? Status(StatusCode::kBusy, "enough is under way") : Status::Ok();
  }

  SharedServer& server_;
  SharedTierListener* listener_ = nullptr;
  std::deque<std::function<void()>> waiting_;
  std::map<GroupId, uint64_t> known_;
  std::set<GroupId> owed_;
  std::vector<RedisBlockName> erased_;  // the server does not know yet; without a run: by key
};

}  // namespace terrace::sim
