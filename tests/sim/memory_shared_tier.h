// MemorySharedTier: one host's way to a shelf in plain memory that several hosts share. Nothing is
// answered before RunOne() says so; bytes move then, not at the call, so that a caller who lets go
// of a buffer too early is found out.
//
// THREADING: one thread. OWNERSHIP: the shelf outlives the tiers; the listener outlives the tier.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tiers/shared_tier.h"

namespace terrace::sim {

struct SharedShelf {
  struct Stored {
    BlockRecord record;
    std::vector<Checksum> roots;
    std::vector<std::byte> bytes;
  };
  // By space, run and key.
  std::map<std::tuple<SpaceId, BlockKey, BlockKey>, Stored> blocks;

  static auto PlaceOf(const RedisBlockName& name) {
    return std::tuple(name.space, name.run, name.key);
  }
};

class MemorySharedTier final : public SharedTier {
 public:
  explicit MemorySharedTier(SharedShelf& shelf) : shelf_(shelf) {}
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
    TERRACE_RETURN_IF_ERROR(Admit());
    ++fetch_count;
    waiting_.push_back([this, transfer_id, name, into] {
      const auto found = shelf_.blocks.find(SharedShelf::PlaceOf(name));
      if (found == shelf_.blocks.end()) {
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
    TERRACE_RETURN_IF_ERROR(Admit());
    const std::vector<Checksum> roots(record.part_checksums.begin(), record.part_checksums.end());
    waiting_.push_back([this, transfer_id, run, record, roots, from] {
      SharedShelf::Stored stored{record, roots, {from.begin(), from.end()}};
      const bool is_new =
          shelf_.blocks.try_emplace({record.space, run, record.key}, std::move(stored)).second;
      listener_->OnSharedStored(transfer_id, is_new ? Status::Ok() : Status(StatusCode::kExists));
    });
    return Status::Ok();
  }
  Status Probe(uint64_t probe_id, std::span<const RedisBlockName> names) override {
    TERRACE_RETURN_IF_ERROR(Admit());
    const std::vector<RedisBlockName> asked(names.begin(), names.end());
    waiting_.push_back([this, probe_id, asked] {
      std::vector<bool> is_present;
      for (const RedisBlockName& name : asked) {
        is_present.push_back(shelf_.blocks.contains(SharedShelf::PlaceOf(name)));
      }
      listener_->OnSharedProbed(probe_id, Status::Ok(), is_present);
    });
    return Status::Ok();
  }
  Status Erase(const RedisBlockName& name) override {
    shelf_.blocks.erase(SharedShelf::PlaceOf(name));
    return Status::Ok();
  }
  uint64_t PredictReadUs(uint64_t length_bytes) const override {
    return is_away ? UINT64_MAX : length_bytes / 1000;
  }
  SharedTierStats stats() const override { return {.is_ready = !is_away}; }

  bool is_away = false;
  bool is_full = false;
  uint32_t fetch_count = 0;

 private:
  Status Admit() const {
    if (is_away) return Status(StatusCode::kUnsupported, "the shelf is away");
    return is_full ? Status(StatusCode::kBusy, "enough is under way") : Status::Ok();
  }

  SharedShelf& shelf_;
  SharedTierListener* listener_ = nullptr;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace terrace::sim
