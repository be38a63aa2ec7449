// Random verbs of several sessions against plain maps. In a roomy arena the store must agree with
// the model exactly; in a tight one it may forget, but never more than it admits, and never lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

constexpr uint32_t kChains = 6;
constexpr uint32_t kChainBlocks = 5;

struct ModelLease {
  SessionId session = 0;
  LeaseToken token;
  std::vector<BlockKey> keys;
  ReserveResult reserved;              // write
  std::set<uint32_t> open_indexes;     // write: reserved, neither committed nor aborted
  std::vector<SlotAddress> addresses;  // read
};

class Model {
 public:
  Model(uint64_t seed, bool is_roomy)
      : random_(seed),
        is_roomy_(is_roomy),
        w_({.segments_max = is_roomy ? 12u : 2u,
            .lower_tier_count = is_roomy ? 0u : static_cast<uint32_t>(seed % 3),
            .lower_capacity_bytes = 20 * kSlotBytes}) {
    for (int i = 0; i < 3; ++i) OpenSession();
    group_ = w_.OpenSimple(sessions_[0]);
    // Room for everything, always.
    const auto all = World::Keys(80, 999);
    for (int i = 0; is_roomy && i < 12; ++i) {
      const ReserveResult warm = w_.Reserve(sessions_[0], group_, all);
      EXPECT_TRUE(w_.store->storing().Abort(sessions_[0], warm.reply.token, {}).ok());
      w_.Run();
    }
  }

  void Step() {
    switch (random_() % 12) {
      case 0:
      case 1:
      case 2:
        Reserve();
        break;
      case 3:
      case 4:
      case 5:
        CommitSome();
        break;
      case 6:
      case 7:
        Acquire();
        break;
      case 8:
        ReleaseOne();
        break;
      case 9:
        AbortSome();
        break;
      case 10:
        if (random_() % 4 == 0) Die();
        break;
      default:
        w_.Advance(random_() % 2000);
        for (const SessionId session : sessions_) w_.store->sessions().SignOfLife(session);
        break;
    }
    w_.Check();
    CheckMatches();
  }

 private:
  void OpenSession() { sessions_.push_back(w_.Open()); }
  SessionId AnySession() { return sessions_[random_() % sessions_.size()]; }
  std::vector<BlockKey> AnyChain() {
    return World::Keys(1 + random_() % kChainBlocks, 1 + random_() % kChains);
  }

  void Reserve() {
    ModelLease lease{.session = AnySession(), .keys = AnyChain()};
    w_.OpenSimple(lease.session);
    lease.reserved = w_.Reserve(lease.session, group_, lease.keys);
    lease.token = lease.reserved.reply.token;
    for (uint32_t i = 0; i < lease.keys.size(); ++i) {
      const StatusCode code = World::CodeOf(lease.reserved.keys[i]);
      const uint64_t key = lease.keys[i].low;
      if (is_roomy_) {
        EXPECT_EQ(code, sealed_.contains(key)     ? StatusCode::kExists
                        : reserved_.contains(key) ? StatusCode::kBusy
                                                  : StatusCode::kOk);
      }
      if (code == StatusCode::kExists) {
        EXPECT_TRUE(sealed_.contains(key));
      }
      if (code == StatusCode::kBusy) {
        EXPECT_TRUE(reserved_.contains(key));
      }
      if (code != StatusCode::kOk) continue;
      EXPECT_FALSE(reserved_.contains(key));
      sealed_.erase(key);  // it was forgotten, or there would be no new slot
      reserved_.insert(key);
      lease.open_indexes.insert(i);
    }
    if (lease.open_indexes.empty()) {
      EXPECT_TRUE(lease.token.is_zero());
    } else {
      writes_.push_back(std::move(lease));
    }
  }

  void CommitSome() {
    if (writes_.empty()) return;
    ModelLease& lease = writes_[random_() % writes_.size()];
    size_t slot = 0;
    for (uint32_t i = 0; i < lease.keys.size(); ++i) {
      if (World::CodeOf(lease.reserved.keys[i]) != StatusCode::kOk) continue;
      const SlotRef ref = lease.reserved.slots[slot++];
      if (!lease.open_indexes.contains(i) || random_() % 2 == 0) continue;
      auto written = w_.Write(lease.session, group_, lease.keys[i], i, 0,
                              lease.reserved.keys[i].commit_id, ref);
      const bool has_checksums = random_() % 2 == 0;
      if (has_checksums) written.entry.flags |= protocol::kCommitHasChecksums;
      const CommitResult result =
          w_.Commit(lease.session, {.token = lease.token}, {written.entry},
                    has_checksums ? written.checksums : std::vector<Checksum>{});
      EXPECT_EQ(result.entries[0], StatusCode::kOk);
      EXPECT_EQ(result.reply.sealed_count, 1u);
      lease.open_indexes.erase(i);
      reserved_.erase(lease.keys[i].low);
      sealed_.insert(lease.keys[i].low);
    }
  }

  void Acquire() {
    ModelLease lease{.session = AnySession(), .keys = AnyChain()};
    const AcquireResult got =
        random_() % 2 == 0 ? HoldAndJoin(lease) : w_.Acquire(lease.session, group_, lease.keys);
    uint32_t expected = 0;
    while (expected < lease.keys.size() && sealed_.contains(lease.keys[expected].low)) ++expected;
    EXPECT_LE(got.reply.block_count, expected);
    if (is_roomy_) {
      EXPECT_EQ(got.reply.block_count, expected);
    }
    if (got.reply.block_count == 0) return;
    lease.token = got.reply.token;
    // Blocks that are coming may fail to come: only what is Ready is looked at.
    const protocol::BlockSpan& first = got.spans[0];
    const uint32_t ready_count = first.state == protocol::SpanState::kReady ? first.block_count : 0;
    lease.addresses.assign(got.slots.begin(), got.slots.begin() + ready_count);
    reads_.push_back(std::move(lease));
    CheckRead(reads_.back());
  }

  // A scheduler that reads nothing holds the blocks, and its worker joins.
  AcquireResult HoldAndJoin(const ModelLease& lease) {
    const SessionId scheduler = sessions_[random_() % sessions_.size()];
    if (scheduler == lease.session) return w_.Acquire(lease.session, group_, lease.keys);
    w_.OpenSimple(lease.session);
    AcquireResult held = w_.AcquireUnread(scheduler, group_, lease.keys);
    EXPECT_TRUE(held.slots.empty());
    if (held.reply.block_count == 0) return held;
    if (random_() % 2 == 0) w_.Run();
    const AcquireResult joined = w_.JoinRead(lease.session, group_, held.reply.token);
    EXPECT_EQ(joined.reply.block_count, held.reply.block_count);
    EXPECT_EQ(w_.Release(scheduler, held.reply.token), StatusCode::kOk);
    return joined;
  }

  // Pinned bytes stay what they were, whatever happened since.
  void CheckRead(const ModelLease& lease) {
    for (size_t i = 0; i < lease.addresses.size(); ++i) {
      EXPECT_TRUE(w_.Holds(lease.session, group_, lease.keys[i], 0, lease.addresses[i]));
    }
  }

  void ReleaseOne() {
    std::vector<ModelLease>& leases = random_() % 2 ? reads_ : writes_;
    if (leases.empty()) return;
    const size_t i = random_() % leases.size();
    CheckRead(leases[i]);
    EXPECT_EQ(w_.Release(leases[i].session, leases[i].token), StatusCode::kOk);
    Forget(leases[i]);
    leases.erase(leases.begin() + static_cast<ptrdiff_t>(i));
  }

  void AbortSome() {
    if (writes_.empty()) return;
    ModelLease& lease = writes_[random_() % writes_.size()];
    if (lease.open_indexes.empty()) return;
    const uint32_t index = *lease.open_indexes.begin();
    const std::vector<uint32_t> indexes = {index};
    EXPECT_TRUE(w_.store->storing().Abort(lease.session, lease.token, indexes).ok());
    lease.open_indexes.erase(index);
    reserved_.erase(lease.keys[index].low);
  }

  void Die() {
    const size_t i = random_() % sessions_.size();
    const SessionId session = sessions_[i];
    if (random_() % 2) w_.store->sessions().HangUp(session);
    for (std::vector<ModelLease>* leases : {&reads_, &writes_}) {
      std::erase_if(*leases, [&](const ModelLease& lease) {
        if (lease.session != session) return false;
        CheckRead(lease);
        Forget(lease);
        return true;
      });
    }
    w_.store->sessions().ProofOfDeath(session);
    w_.Run();
    EXPECT_EQ(w_.Stats().fenced_bytes, 0u);
    sessions_.erase(sessions_.begin() + static_cast<ptrdiff_t>(i));
    OpenSession();
    w_.OpenSimple(sessions_.back());
  }

  void Forget(const ModelLease& lease) {
    for (const uint32_t index : lease.open_indexes) reserved_.erase(lease.keys[index].low);
  }

  void CheckMatches() {
    for (uint32_t chain = 1; chain <= kChains; ++chain) {
      const auto keys = World::Keys(kChainBlocks, chain);
      uint32_t expected = 0;
      while (expected < keys.size() && sealed_.contains(keys[expected].low)) ++expected;
      const uint32_t matched = w_.MatchCount(sessions_[0], group_, keys);
      EXPECT_LE(matched, expected);
      if (is_roomy_) {
        EXPECT_EQ(matched, expected);
      }
    }
    EXPECT_EQ(w_.Stats().reserved_count, reserved_.size());
  }

  std::mt19937_64 random_;
  const bool is_roomy_;
  World w_;
  std::vector<SessionId> sessions_;
  uint32_t group_ = 0;
  std::set<uint64_t> sealed_;    // committed; in a tight arena perhaps forgotten since
  std::set<uint64_t> reserved_;  // exactly
  std::vector<ModelLease> reads_, writes_;
};

void RunSeeds(bool is_roomy, uint64_t seeds, int steps) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Model model(seed, is_roomy);
    for (int step = 0; step < steps; ++step) {
      model.Step();
      if (::testing::Test::HasFailure()) FAIL() << "at step " << step;
    }
  }
}

TEST(StoreModel, WithRoomForAllItAgreesExactly) { RunSeeds(/*is_roomy=*/true, 12, 300); }

// PROMISE: T02 the store against a map
TEST(StoreModel, WithoutRoomItForgetsButNeverLies) { RunSeeds(/*is_roomy=*/false, 40, 300); }

}  // namespace
}  // namespace terrace
