// Copies between pages and leases against a daemon that is scripted, on a device that gets on only
// when the test says so.
#include "client/paged/paged_cache.h"

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "sim/sim_device.h"
#include "tests/sim/paged_world.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using client::kNoPage;
using client::PagedCache;
using client::PagedCacheOptions;
using client::PagedCopy;
using protocol::Verb;
using ::testing::HasSubstr;

constexpr CacheShape kShape = {
    .layer_count = 2, .page_tokens = 16, .head_count = 1, .head_bytes = 256, .page_count = 6};

// A ring that one block fills: large ones take the simulation seconds.
CopierOptions SmallRing() { return {.stage_bytes = 16 * kKiB, .stage_count = 2}; }

class PagedCopies : public ClientFixture {
 protected:
  PagedCopies()
      : sim_({.seed = 1, .steps_per_call_max = 0}), device_(SimDeviceOps(), sim_.handle()) {
    std::string why;
    cache_ = std::move(PagedCache::Create(device_,
                                          {.layout = pages_.layout,
                                           .space = TestGroup().members[0].spec,
                                           .copier = SmallRing()},
                                          &why))
                 .value();
  }
  // The cache goes before its device, and what it waits for has run.
  ~PagedCopies() override { sim_.Settle(); }

  std::unique_ptr<PagedCopy> Store(const WriteLease& lease, std::vector<uint64_t> pages) {
    auto copy = cache_->Store(lease, {.page_indexes = pages}, KvWritten::Already(), &why_);
    EXPECT_TRUE(copy.ok()) << why_;
    return copy.ok() ? std::move(copy).value() : nullptr;
  }
  std::unique_ptr<PagedCopy> Load(const ReadLease& lease, std::vector<uint64_t> pages) {
    auto copy = cache_->Load(lease, {.page_indexes = pages}, DestinationFree::Already(), &why_);
    EXPECT_TRUE(copy.ok()) << why_;
    return copy.ok() ? std::move(copy).value() : nullptr;
  }
  size_t EndCount() {
    EXPECT_TRUE(client_->Reset(group_).ok());  // what was sent before it has been read
    return daemon_.Received(Verb::kRelease).size() + daemon_.Received(Verb::kAbort).size();
  }
  uint32_t CommittedEntries() {
    uint32_t entry_count = 0;
    for (const PeerMessage& message : daemon_.Received(Verb::kCommit)) {
      entry_count += message.Head<protocol::CommitRequest>().entry_count;
    }
    return entry_count;
  }

  SimDevice sim_;
  Device device_;
  TestCache pages_ = MakeCache("nhd_packed", kShape);
  std::unique_ptr<PagedCache> cache_;
  std::string why_;
};

TEST_F(PagedCopies, NothingOfAStoreIsCommittedBeforeItsEndIsSeen) {
  WriteLease lease = Reserve(3);
  const auto copy = Store(lease, {4, 0, 2});
  EXPECT_EQ(copy->Poll().code(), StatusCode::kBusy);
  EXPECT_EQ(client_->Commit(lease).value(), 0u);
  EXPECT_EQ(client_->Commit(lease, {.flags = protocol::kCommitRelease}).code(), StatusCode::kBusy);
  EXPECT_TRUE(lease.is_valid()) << "the copy goes on, and so does its lease";
  sim_.Settle();  // done, and nobody has seen it
  EXPECT_EQ(client_->Commit(lease).value(), 0u);
  EXPECT_EQ(CommittedEntries(), 0u);
  EXPECT_TRUE(copy->Poll().ok());
  EXPECT_TRUE(client_->Commit(lease, {.flags = protocol::kCommitRelease}).ok());
  EXPECT_EQ(CommittedEntries(), 3u);  // a key's parts are one entry
}

TEST_F(PagedCopies, ARevokedLeaseKeepsItsSlotsToTheEndOfTheCopyWhichIsGone) {
  WriteLease written = Reserve(2);
  ReadLease read = Acquire(2);
  const auto store = Store(written, {0, 1});
  const auto load = Load(read, {2, 3});
  Revoke(written.token());
  Revoke(read.token());
  ASSERT_TRUE(Eventually([&] { return !written.is_valid() && !read.is_valid(); }));
  read.Release();
  EXPECT_EQ(EndCount(), 0u) << "the daemon was given slots that copies still touch";
  EXPECT_EQ(store->Poll().code(), StatusCode::kBusy);
  sim_.Settle();
  EXPECT_EQ(store->Poll().code(), StatusCode::kGone);
  EXPECT_EQ(load->Poll().code(), StatusCode::kGone);
  EXPECT_EQ(store->Poll().code(), StatusCode::kGone);
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 2));
  EXPECT_EQ(client_->Commit(written).code(), StatusCode::kGone);
  EXPECT_EQ(
      cache_
          ->Store(written, {.page_indexes = std::vector<uint64_t>{0}}, KvWritten::Already(), &why_)
          .code(),
      StatusCode::kGone);
}

// Nobody knows what a copy still does whose device says that it failed.
TEST_F(PagedCopies, ARevokedLeaseIsNotAcknowledgedBeforeACopyThatFailedIsDestroyed) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SimDevice failing(
        {.seed = seed, .steps_per_call_max = 0, .copy_failures_per_million = 300'000});
    const Device device(SimDeviceOps(), failing.handle());
    auto cache = PagedCache::Create(
        device,
        {.layout = pages_.layout, .space = TestGroup().members[0].spec, .copier = SmallRing()},
        &why_);
    if (!cache.ok()) continue;
    WriteLease lease = Reserve(2);
    const std::vector<uint64_t> pages = {0, 1};
    auto store = (*cache)->Store(lease, {.page_indexes = pages}, KvWritten::Already(), &why_);
    failing.Settle();
    if (!store.ok() || (*store)->Poll().code() != StatusCode::kIo) continue;
    const size_t ends_before = EndCount();
    Revoke(lease.token());
    ASSERT_TRUE(Eventually([&] { return !lease.is_valid(); }));
    EXPECT_EQ(EndCount(), ends_before) << "the daemon was given slots that a copy may still touch";
    store->reset();
    EXPECT_TRUE(Eventually([&] { return EndCount() > ends_before; }));
    return;
  }
  FAIL() << "no seed has a copy that fails";
}

TEST_F(PagedCopies, ACopyThatIsDroppedWaitsAndOnlyThenItsLeaseEnds) {
  WriteLease lease = Reserve(2);
  auto copy = Store(lease, {0, 1});
  lease = WriteLease();
  EXPECT_EQ(EndCount(), 0u);
  EXPECT_FALSE(copy == nullptr);
  const uint64_t steps_before = sim_.step_count();
  copy.reset();
  EXPECT_GT(sim_.step_count(), steps_before);
  EXPECT_TRUE(daemon_.WaitFor(Verb::kAbort, 1));
  EXPECT_EQ(cache_->events().taken_count(), 0u);
}

TEST_F(PagedCopies, ABlockThatIsWrittenAnewIsNotCommittedAsItWas) {
  WriteLease lease = Reserve(2);
  const auto first = Store(lease, {0, 1});
  sim_.Settle();
  EXPECT_TRUE(first->Poll().ok());
  const auto second = Store(lease, {3});  // the first block once more
  const std::byte before = daemon_.arena()[kSegmentBytesMin];
  EXPECT_EQ(lease.WritePart(0, 0, 0, part_).code(), StatusCode::kBusy);
  EXPECT_EQ(daemon_.arena()[kSegmentBytesMin], before) << "two copies into one part";
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(CommittedEntries(), 1u) << "the block that is being written was committed";
  sim_.Settle();
  EXPECT_TRUE(second->Poll().ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(CommittedEntries(), 2u);
  EXPECT_EQ(
      cache_->Store(lease, {.page_indexes = std::vector<uint64_t>{3}}, KvWritten::Already(), &why_)
          .code(),
      StatusCode::kExists);
}

// That thread is refused, and nobody else hears of it: "busy" would say that the copy goes on.
TEST_F(PagedCopies, OneThatHasEndedIsNotBusyWithAThreadThatMayNotWrite) {
  constexpr int kRounds = 20'000;
  WriteLease lease = Reserve(1);
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    while (!is_over) (void)lease.WritePart(0, 0, 0, part_);
  });
  int busy_count = 0;
  for (int round = 0; round < kRounds; ++round) {
    auto copy = cache_->Store(lease, {.page_indexes = std::vector<uint64_t>{3}},
                              KvWritten::Already(), &why_);
    while (copy.code() == StatusCode::kBusy) {  // it is writing
      copy = cache_->Store(lease, {.page_indexes = std::vector<uint64_t>{3}}, KvWritten::Already(),
                           &why_);
    }
    EXPECT_TRUE(copy.ok()) << why_;
    if (!copy.ok()) break;
    sim_.Settle();
    busy_count += (*copy)->Poll().code() == StatusCode::kBusy ? 1 : 0;
  }
  is_over = true;
  writer.join();
  EXPECT_EQ(busy_count, 0);
}

TEST_F(PagedCopies, SlotsThatTheDeviceDoesNotReachAreLeftToACpu) {
  SimDevice sim({.steps_per_call_max = 0, .needs_registration = true});
  const Device device(SimDeviceOps(), sim.handle());
  auto cache = PagedCache::Create(
      device,
      {.layout = pages_.layout, .space = TestGroup().members[0].spec, .copier = std::nullopt},
      &why_);
  ASSERT_TRUE(cache.ok()) << why_;
  const WriteLease lease = Reserve(1);
  const auto copy = cache.value()->Store(lease, {.page_indexes = std::vector<uint64_t>{2}},
                                         KvWritten::Already(), &why_);
  ASSERT_TRUE(copy.ok()) << why_;
  sim.Settle();
  EXPECT_TRUE(copy.value()->Poll().ok());
  EXPECT_EQ(sim.stray_count(), 0u);
}

TEST_F(PagedCopies, WhatACallCannotDoIsNamed) {
  WriteLease write = Reserve(2);
  ReadLease read = Acquire(2);
  const auto store = [&](const WriteLease& lease, uint32_t member, uint32_t first,
                         std::vector<uint64_t> pages) {
    return cache_
        ->Store(lease, {.member = member, .first_block = first, .page_indexes = pages},
                KvWritten::Already(), &why_)
        .code();
  };
  EXPECT_EQ(store(write, 0, 0, {0, 6}), StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("page_indexes[1] is 6, and page_count is 6"));
  EXPECT_EQ(store(write, 0, 1, {0, 1}), StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("first is 1 and count 2, and the lease has 2"));
  EXPECT_EQ(store(write, 1, 0, {0}), StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("member is 1"));
  EXPECT_EQ(store(write, 0, 0, {}), StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("1..4096"));
  EXPECT_EQ(store(WriteLease(), 0, 0, {0}), StatusCode::kInvalid);
  EXPECT_EQ(cache_
                ->Load(read, {.page_indexes = std::vector<uint64_t>{5, 5}},
                       DestinationFree::Already(), &why_)
                .code(),
            StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr("page 5 twice"));
  // Nothing to copy is no error, and done.
  EXPECT_TRUE(Store(write, {kNoPage, kNoPage})->Poll().ok());
  EXPECT_EQ(EndCount(), 0u);
}

TEST_F(PagedCopies, PagesOfAnotherSpaceAreRefused) {
  SpaceSpec other = TestGroup().members[0].spec;
  other.revision = "r2";
  const auto cache = PagedCache::Create(
      device_, {.layout = pages_.layout, .space = other, .copier = SmallRing()}, &why_);
  ASSERT_TRUE(cache.ok()) << why_;
  const WriteLease lease = Reserve(1);
  EXPECT_EQ(
      cache.value()
          ->Store(lease, {.page_indexes = std::vector<uint64_t>{0}}, KvWritten::Already(), &why_)
          .code(),
      StatusCode::kInvalid);
  EXPECT_THAT(why_, HasSubstr(ToHex(other.Id())));
}

struct Misfit {
  std::function<void(PagedCacheOptions*)> change;
  const char* sentence;
};

TEST(PagedCaches, ALayoutThatDoesNotFitItsSpaceIsRefusedWithBothValues) {
  SimDevice sim({});
  const Device device(SimDeviceOps(), sim.handle());
  TestCache cache = MakeCache("nhd_packed", kShape);
  const Misfit misfits[] = {
      {[](auto* o) { o->space.block_tokens = 32; },
       "page_tokens is 16, and the Space's block_tokens is 32"},
      {[](auto* o) { o->space.layers = 3; }, "layer_count is 2, and the Space's layers is 3"},
      {[](auto* o) { o->space.kv_heads = 2; }, "head_count is 1, and the Space's kv_heads is 2"},
      {[](auto* o) { o->space.part_bytes[1] = 4096; },
       "part_bytes[1] is 4096, and its layers take 8192"},
      {[](auto* o) { o->space.part_bytes.push_back(8192); }, "part_bytes are 3 parts"},
      {[](auto* o) { o->space.layout = "blocks"; }, "layout is 'blocks'"},
      {[](auto* o) { o->space.attention = AttentionKind::kMla; }, "plane_count is 2"},
      {[](auto* o) { o->layout.plane_count = 1; }, "plane_count is 1"},
      {[](auto* o) { o->layout.block_stride_bytes = 64; }, "block_stride_bytes is 64"},
      {[](auto* o) { o->layout.bases[1] = o->layout.bases[0] + 256; },
       "the distance between bases is 256"},
      {[](auto* o) { o->layout.bases.clear(); }, "bases are 0 addresses"},
      {[](auto* o) { o->is_opaque = true; }, "layout is 'nhd', and the pages are opaque"},
      {[](auto* o) {
         o->is_opaque = true;
         o->space.layout = "blocks";
       },
       "plane_count is 2 and head_count 1: opaque pages have neither"},
  };
  for (const Misfit& misfit : misfits) {
    PagedCacheOptions options{
        .layout = cache.layout, .space = TestGroup().members[0].spec, .copier = SmallRing()};
    misfit.change(&options);
    std::string why;
    EXPECT_FALSE(PagedCache::Create(device, options, &why).ok()) << misfit.sentence;
    EXPECT_THAT(why, HasSubstr(misfit.sentence));
  }
  PagedCacheOptions lossy{
      .layout = cache.layout, .space = TestGroup().members[0].spec, .copier = SmallRing()};
  lossy.space.quantisation = "terrace:int8";
  lossy.space.part_bytes.assign(2, 2240);
  std::string why;
  EXPECT_FALSE(PagedCache::Create(device, lossy, &why).ok());
  EXPECT_THAT(why, HasSubstr("head_bytes is 256, and the Space's head_size of 64 in its dtype"));
}

}  // namespace
}  // namespace terrace
