#include "tiers/crypto/group_key.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "sim/group_keys.h"

namespace terrace {
namespace {

using sim::KeyFrom;

constexpr GroupId kGroup{1, 2};

BlockDescription Block() {
  BlockDescription block;
  block.group = kGroup;
  block.space = {3, 4};
  block.key = {5, 6};
  block.commit_id = 7;
  block.member = 8;
  return block;
}

// Each field that names a payload, changed alone.
TEST(PayloadName, EveryFieldCounts) {
  const std::vector<Checksum> sums = {{1, 2}, {3, 4}};
  std::set<PayloadName> names = {NamePayload(Block(), 4096, sums)};
  const std::vector<std::function<void(BlockDescription*)>> changes = {
      [](BlockDescription* b) { ++b->group.low; }, [](BlockDescription* b) { ++b->group.high; },
      [](BlockDescription* b) { ++b->space.low; }, [](BlockDescription* b) { ++b->space.high; },
      [](BlockDescription* b) { ++b->key.low; },   [](BlockDescription* b) { ++b->key.high; },
      [](BlockDescription* b) { ++b->commit_id; }, [](BlockDescription* b) { ++b->member; }};
  for (const auto& change : changes) {
    BlockDescription block = Block();
    change(&block);
    EXPECT_TRUE(names.insert(NamePayload(block, 4096, sums)).second);
  }
  EXPECT_TRUE(names.insert(NamePayload(Block(), 8192, sums)).second);
  EXPECT_TRUE(names.insert(NamePayload(Block(), 4096, std::span(sums).first(1))).second);
  EXPECT_TRUE(
      names.insert(NamePayload(Block(), 4096, std::vector<Checksum>{{1, 2}, {3, 5}})).second);
  // What changes while the payload stays is not part of it.
  BlockDescription amended = Block();
  amended.priority = 99;
  amended.is_pinned = true;
  amended.expires_at_s = 5;
  EXPECT_EQ(NamePayload(amended, 4096, sums), NamePayload(Block(), 4096, sums));
}

TEST(PayloadCipher, AnyOtherNameSaltTagOrKeyIsCorrupt) {
  PayloadCipher cipher{.key = std::make_shared<GroupKey>(KeyFrom(1)),
                       .name = NamePayload(Block(), 4096, {}),
                       .seal = {.salt = {std::byte{9}}}};
  const std::vector<std::byte> plain(4096, std::byte{42});
  std::vector<std::byte> sealed(4096);
  ASSERT_TRUE(cipher.EncryptInto(plain, sealed).ok());
  const auto expect_corrupt = [&](const PayloadCipher& other) {
    std::vector<std::byte> bytes = sealed;
    EXPECT_EQ(other.DecryptInPlace(bytes).code(), StatusCode::kCorrupt);
    EXPECT_EQ(bytes, std::vector<std::byte>(4096));
  };
  PayloadCipher other = cipher;
  other.name[0] ^= std::byte{1};
  expect_corrupt(other);
  other = cipher;
  other.seal.salt[31] ^= std::byte{1};
  expect_corrupt(other);
  other = cipher;
  other.seal.tag[0] ^= std::byte{1};
  expect_corrupt(other);
  other = cipher;
  other.key = std::make_shared<GroupKey>(KeyFrom(2));
  expect_corrupt(other);
  std::vector<std::byte> bytes = sealed;
  EXPECT_TRUE(cipher.DecryptInPlace(bytes).ok());
  EXPECT_EQ(bytes, plain);
}

TEST(GroupKey, WhatIsDestroyedDecryptsNothingForWhoeverStillHasIt) {
  const auto key = std::make_shared<GroupKey>(KeyFrom(1));
  PayloadCipher cipher{.key = key};
  std::vector<std::byte> bytes(4096, std::byte{42});
  ASSERT_TRUE(cipher.EncryptInto(bytes, bytes).ok());
  key->Destroy();
  EXPECT_TRUE(key->is_destroyed());
  EXPECT_EQ(cipher.DecryptInPlace(bytes).code(), StatusCode::kGone);
  EXPECT_EQ(bytes, std::vector<std::byte>(4096));
  EXPECT_EQ(cipher.EncryptInto(bytes, bytes).code(), StatusCode::kGone);
  GroupKey::Record record;
  EXPECT_EQ(key->Wrap(kGroup, KeyRing({KeyFrom(5)}), KernelRandom, &record).code(),
            StatusCode::kGone);
}

TEST(GroupKey, IsUnwrappedByAnyRingThatHasTheKeyItIsUnder) {
  const KeyRing old_ring({KeyFrom(5)}), both({KeyFrom(6), KeyFrom(5)}), fresh({KeyFrom(6)});
  const GroupKey key(KeyFrom(1));
  GroupKey::Record record;
  ASSERT_TRUE(key.Wrap(kGroup, old_ring, KernelRandom, &record).ok());
  EXPECT_EQ(WrappedUnder(record, kGroup), old_ring.first());
  EXPECT_EQ(WrappedUnder(record, GroupId{1, 3}), std::nullopt);
  EXPECT_EQ(Unwrap(record, kGroup, fresh).code(), StatusCode::kNotFound);
  EXPECT_EQ(Unwrap(record, GroupId{1, 3}, both).code(), StatusCode::kCorrupt);
  const auto found = Unwrap(record, kGroup, both);
  ASSERT_TRUE(found.ok());
  CipherKey a, b;
  ASSERT_TRUE(key.Derive({}, {}, &a).ok());
  ASSERT_TRUE((*found)->Derive({}, {}, &b).ok());
  EXPECT_TRUE(std::ranges::equal(a.bytes(), b.bytes()));
  // The same key under the next one.
  ASSERT_TRUE((*found)->Wrap(kGroup, both, KernelRandom, &record).ok());
  EXPECT_EQ(WrappedUnder(record, kGroup), fresh.first());
  EXPECT_TRUE(Unwrap(record, kGroup, fresh).ok());
}

TEST(GroupKey, ARecordThatWasChangedAnywhereIsNone) {
  const KeyRing ring({KeyFrom(5)});
  GroupKey::Record record;
  ASSERT_TRUE(GroupKey(KeyFrom(1)).Wrap(kGroup, ring, KernelRandom, &record).ok());
  for (size_t at = 0; at < record.size(); ++at) {
    GroupKey::Record changed = record;
    changed[at] ^= std::byte{1};
    EXPECT_FALSE(Unwrap(changed, kGroup, ring).ok()) << at;
  }
  EXPECT_FALSE(Unwrap(std::span(record).first(100), kGroup, ring).ok());
}

}  // namespace
}  // namespace terrace
