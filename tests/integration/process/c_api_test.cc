// The C ABI against a real daemon: what an engine in any language does with it, and what it gets
// for calls that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "integration/process/daemon_process.h"
#include "terrace/terrace.h"
#include "test_paths.h"

namespace terrace::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kBlockTokens = 16;
constexpr std::array<uint64_t, 2> kPartBytes = {50'000, 20'000};

using Blocks = std::vector<std::array<std::vector<uint8_t>, 2>>;

Blocks BlocksOf(uint32_t block_count, uint8_t seed) {
  Blocks blocks(block_count);
  for (uint32_t b = 0; b < block_count; ++b) {
    for (uint32_t p = 0; p < 2; ++p) {
      blocks[b][p].resize(kPartBytes[p]);
      for (size_t i = 0; i < kPartBytes[p]; ++i) {
        blocks[b][p][i] = static_cast<uint8_t>(i * 31 + b * 7 + p * 3 + seed);
      }
    }
  }
  return blocks;
}

template <typename Pointer>
std::vector<Pointer> PointersTo(Blocks* blocks) {
  std::vector<Pointer> pointers;
  for (auto& block : *blocks) {
    for (auto& part : block) pointers.push_back(part.data());
  }
  return pointers;
}

terrace_space SpaceOf() {
  terrace_space space = TERRACE_SPACE_INIT;
  space.model = "tiny";
  space.revision = "r1";
  space.dtype = "bf16";
  space.layout = "nhd";
  space.part_bytes = kPartBytes.data();
  space.part_count = kPartBytes.size();
  space.layers = 2;
  space.kv_heads = 1;
  space.head_size = 64;
  space.block_tokens = kBlockTokens;
  return space;
}

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.StartReady()) << daemon_.Errors();
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
    group_ = Open(client_, SpaceOf());
    request_.deadline_us = kLongUs;
  }
  void TearDown() override { terrace_client_destroy(client_); }

  terrace_client* Connect() {
    const std::string path = daemon_.socket_path();
    terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
    options.socket_path = path.c_str();
    options.default_deadline_us = kLongUs;
    terrace_client* client = nullptr;
    EXPECT_EQ(terrace_client_create(&options, &client, why_, sizeof(why_)), TERRACE_OK) << why_;
    EXPECT_EQ(terrace_client_wait_connected(client, kLongUs), TERRACE_OK);
    EXPECT_NE(terrace_client_boot_id(client), 0u);
    return client;
  }

  terrace_group Open(terrace_client* client, const terrace_space& space) {
    const terrace_space* members[] = {&space};
    terrace_group_spec spec = TERRACE_GROUP_SPEC_INIT;
    spec.name = "tiny";
    spec.member_count = 1;
    spec.members = members;
    terrace_group group = TERRACE_GROUP_NONE;
    status_ = terrace_open(client, &spec, 1, kLongUs, &group, why_, sizeof(why_));
    return group;
  }

  std::vector<terrace_id> KeysOf(uint32_t block_count, uint32_t prompt) {
    std::vector<uint32_t> tokens(block_count * kBlockTokens + 5);  // the last block is not full
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i) + prompt * 1000;
    std::vector<terrace_id> keys(block_count + 1);
    size_t key_count = 0;
    EXPECT_EQ(terrace_hash_tokens(client_, group_, nullptr, tokens.data(), tokens.size(),
                                  keys.data(), keys.size(), &key_count),
              TERRACE_OK);
    EXPECT_EQ(key_count, block_count);
    keys.resize(key_count);
    return keys;
  }

  void Store(const std::vector<terrace_id>& keys, uint8_t seed) {
    Blocks blocks = BlocksOf(static_cast<uint32_t>(keys.size()), seed);
    terrace_write_lease lease = {};
    ASSERT_EQ(terrace_reserve(client_, group_, keys.data(), keys.size(), &request_, &lease),
              TERRACE_OK);
    ASSERT_EQ(terrace_write_lease_key_count(&lease), keys.size());
    ASSERT_EQ(terrace_write_lease_write_blocks(&lease, 0, 0, static_cast<uint32_t>(keys.size()),
                                               PointersTo<const void*>(&blocks).data()),
              TERRACE_OK);
    uint32_t sealed_count = 0;
    ASSERT_EQ(terrace_commit(client_, &lease, &request_, &sealed_count), TERRACE_OK);
    EXPECT_EQ(sealed_count, keys.size());
    terrace_write_lease_abort(&lease);
    EXPECT_EQ(lease.opaque[3], 0u);
  }

  void ExpectHolds(const terrace_read_lease& lease, uint32_t block_count, uint8_t seed) {
    ASSERT_EQ(terrace_read_lease_block_count(&lease), block_count);
    Blocks loaded = BlocksOf(block_count, 200);
    ASSERT_EQ(terrace_read_lease_copy_blocks(&lease, 0, 0, block_count,
                                             PointersTo<void*>(&loaded).data()),
              TERRACE_OK);
    EXPECT_TRUE(loaded == BlocksOf(block_count, seed));
  }

  uint32_t LeasesOf(const terrace_id& key) {
    terrace_queried_block block = {};
    EXPECT_EQ(terrace_query(client_, group_, &key, 1, nullptr, &block), TERRACE_OK);
    return block.lease_count;
  }

  // A release is sent, not awaited.
  void ExpectLeases(const terrace_id& key, uint32_t lease_count) {
    for (int i = 0; i < 2000 && LeasesOf(key) != lease_count; ++i) poll(nullptr, 0, 5);
    EXPECT_EQ(LeasesOf(key), lease_count);
  }

  DaemonProcess daemon_;
  terrace_client* client_ = nullptr;
  terrace_group group_ = TERRACE_GROUP_NONE;
  terrace_request request_ = TERRACE_REQUEST_INIT;
  terrace_status status_ = TERRACE_OK;
  char why_[1024] = "";
};

TEST_F(CApi, WhatOneClientStoresAnotherLoads) {
  const std::vector<terrace_id> keys = KeysOf(6, 1);
  Store(keys, 9);
  terrace_client* other = Connect();
  const terrace_group group = Open(other, SpaceOf());
  terrace_match_result match = {.struct_bytes = sizeof(match)};
  ASSERT_EQ(terrace_match(other, group, keys.data(), keys.size(), nullptr, &match), TERRACE_OK);
  EXPECT_EQ(match.block_count, 6u);
  EXPECT_EQ(match.token_count, 6 * kBlockTokens);
  terrace_read_lease lease = {};
  ASSERT_EQ(terrace_acquire(other, group, keys.data(), keys.size(), &request_, &lease), TERRACE_OK);
  ASSERT_EQ(terrace_wait_ready(other, &lease, 6, kLongUs), TERRACE_OK);
  ExpectHolds(lease, 6, 9);
  EXPECT_EQ(terrace_read_lease_is_part_ready(&lease, 5, 0, 1), 1);
  uint64_t slot_bytes = 0;
  uint64_t part_offset_bytes = 0;
  const terrace_space space = SpaceOf();
  ASSERT_EQ(terrace_space_layout(&space, 1, &part_offset_bytes, nullptr), TERRACE_OK);
  const void* slot = terrace_read_lease_slot(&lease, 3, 0, &slot_bytes);
  ASSERT_NE(slot, nullptr);
  ASSERT_GE(slot_bytes, part_offset_bytes + kPartBytes[1]);
  EXPECT_EQ(std::memcmp(static_cast<const uint8_t*>(slot) + part_offset_bytes,
                        BlocksOf(6, 9)[3][1].data(), kPartBytes[1]),
            0);
  // A worker joins its scheduler's lease.
  terrace_read_lease joined = {};
  ASSERT_EQ(terrace_join_read(client_, group_, terrace_read_lease_token(&lease), 1, &joined),
            TERRACE_OK);
  terrace_read_lease_release(&lease, TERRACE_END_OF_TURN);
  terrace_client_destroy(other);
  ExpectHolds(joined, 6, 9);
  terrace_read_lease_release(&joined, TERRACE_END_OF_TURN);
  EXPECT_EQ(terrace_read_lease_is_valid(&joined), 0);
}

TEST_F(CApi, ASecondWriterIsToldThatTheBlockExists) {
  const std::vector<terrace_id> keys = KeysOf(2, 1);
  Store(keys, 1);
  terrace_write_lease lease = {};
  ASSERT_EQ(terrace_reserve(client_, group_, keys.data(), 2, &request_, &lease), TERRACE_OK);
  terrace_reserved_key key = {};
  ASSERT_EQ(terrace_write_lease_key(&lease, 1, &key), TERRACE_OK);
  EXPECT_EQ(key.status, TERRACE_EXISTS);
  EXPECT_EQ(terrace_write_lease_key(&lease, 2, &key), TERRACE_INVALID);
  EXPECT_EQ(terrace_write_lease_slot(&lease, 0, 0, nullptr), nullptr);
  terrace_write_lease_abort(&lease);
  EXPECT_EQ(terrace_write_lease_keys(&lease, &key, 1), 0u);
}

TEST_F(CApi, AllReservedKeysAreToldAtOnceAsEachAlone) {
  const std::vector<terrace_id> keys = KeysOf(41, 3);
  Store({keys[0]}, 41);
  terrace_write_lease lease = {};
  ASSERT_EQ(terrace_reserve(client_, group_, keys.data(), 3, &request_, &lease), TERRACE_OK);
  terrace_reserved_key all[4] = {};
  EXPECT_EQ(terrace_write_lease_keys(&lease, nullptr, 0), 3u);
  EXPECT_EQ(terrace_write_lease_keys(&lease, nullptr, 4), 3u);
  EXPECT_EQ(terrace_write_lease_keys(&lease, all, 2), 3u);
  EXPECT_EQ(all[2].commit_id, 0u);
  EXPECT_EQ(terrace_write_lease_keys(&lease, all, 4), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    terrace_reserved_key one = {};
    ASSERT_EQ(terrace_write_lease_key(&lease, i, &one), TERRACE_OK);
    EXPECT_EQ(all[i].status, i == 0 ? TERRACE_EXISTS : TERRACE_OK);
    EXPECT_EQ(all[i].status, one.status);
    EXPECT_EQ(all[i].writer_age_ms, one.writer_age_ms);
    EXPECT_EQ(all[i].commit_id, one.commit_id);
  }
  EXPECT_EQ(all[3].commit_id, 0u);
  terrace_write_lease_abort(&lease);
}

TEST_F(CApi, CompletionsComeByPollAndByCallback) {
  const std::vector<terrace_id> keys = KeysOf(4, 2);
  Store(keys, 5);
  ASSERT_EQ(terrace_acquire_async(client_, group_, keys.data(), 4, &request_, 77, nullptr, nullptr),
            TERRACE_OK);
  pollfd waits{.fd = terrace_event_fd(client_), .events = POLLIN};
  ASSERT_EQ(poll(&waits, 1, 30'000), 1);
  terrace_completion completion = TERRACE_COMPLETION_INIT;
  ASSERT_EQ(terrace_poll(client_, &completion), TERRACE_OK);
  EXPECT_EQ(completion.kind, uint32_t{TERRACE_ACQUIRED});
  EXPECT_EQ(completion.user_data, 77u);
  EXPECT_EQ(completion.status, TERRACE_OK);
  ExpectHolds(completion.read_lease, 4, 5);
  // The next poll gives back what the last one gave.
  EXPECT_EQ(terrace_poll(client_, &completion), TERRACE_NOT_FOUND);
  EXPECT_EQ(terrace_read_lease_is_valid(&completion.read_lease), 0);

  // Who waits for it reads it himself; nothing on its way is not waited for.
  EXPECT_EQ(terrace_poll_until(client_, 3'600'000'000, &completion), TERRACE_NOT_FOUND);
  ASSERT_EQ(terrace_acquire_async(client_, group_, keys.data(), 4, &request_, 79, nullptr, nullptr),
            TERRACE_OK);
  ASSERT_EQ(terrace_poll_until(client_, 30'000'000, &completion), TERRACE_OK);
  EXPECT_EQ(completion.user_data, 79u);
  ExpectHolds(completion.read_lease, 4, 5);
  EXPECT_EQ(terrace_poll(client_, &completion), TERRACE_NOT_FOUND);

  struct Seen {
    std::atomic<uint32_t> blocks = 0;
    std::atomic<bool> is_done = false;
  } seen;
  ASSERT_EQ(terrace_acquire_async(
                client_, group_, keys.data(), 4, &request_, 78,
                [](void* context, terrace_completion* done) {
                  Seen* into = static_cast<Seen*>(context);
                  into->blocks = terrace_read_lease_block_count(&done->read_lease);
                  into->is_done = true;
                  into->is_done.notify_all();
                },
                &seen),
            TERRACE_OK);
  seen.is_done.wait(false);
  EXPECT_EQ(seen.blocks, 4u);
  ExpectLeases(keys[0], 0);
}

TEST_F(CApi, ATouchSaysWhatItsHintsSay) {
  const std::vector<terrace_id> keys = KeysOf(4, 6);
  Store(keys, 5);
  terrace_request hints = TERRACE_REQUEST_INIT;
  hints.priority = 80;
  hints.hint_flags = TERRACE_HINT_PIN | TERRACE_HINT_NO_STORE;
  hints.end_reason = TERRACE_END_TOOL_CALL;
  ASSERT_EQ(terrace_touch(client_, group_, keys.data() + 1, 3, &hints), TERRACE_OK);
  terrace_queried_block queried[4] = {};
  ASSERT_EQ(terrace_query(client_, group_, keys.data(), 4, nullptr, queried), TERRACE_OK);
  EXPECT_EQ(queried[0].flags, 0);
  EXPECT_NE(queried[0].priority, 80);
  EXPECT_EQ(queried[1].flags, 2 | 4);
  EXPECT_EQ(queried[3].priority, 80);
}

TEST_F(CApi, SpansSayWhereBlocksWereFound) {
  const std::vector<terrace_id> keys = KeysOf(4, 7);
  Store(keys, 5);
  terrace_read_lease lease = {};
  EXPECT_EQ(terrace_read_lease_spans(&lease, nullptr, 0), 0u);
  ASSERT_EQ(terrace_acquire(client_, group_, keys.data(), 4, &request_, &lease), TERRACE_OK);
  EXPECT_EQ(terrace_read_lease_spans(&lease, nullptr, 0), 1u);
  terrace_span spans[2] = {};
  spans[1].block_count = 77;
  EXPECT_EQ(terrace_read_lease_spans(&lease, spans, 2), 1u);
  EXPECT_EQ(spans[0].first_block, 0u);
  EXPECT_EQ(spans[0].block_count, 4u);
  EXPECT_EQ(spans[0].state, TERRACE_SPAN_READY);
  EXPECT_EQ(spans[0].tier, TERRACE_TIER_DRAM);
  EXPECT_EQ(spans[0].eta_us, 0u);
  EXPECT_EQ(spans[1].block_count, 77u) << "nothing beyond what there is";
  spans[0].block_count = 77;
  EXPECT_EQ(terrace_read_lease_spans(&lease, spans, 0), 1u);
  EXPECT_EQ(spans[0].block_count, 77u) << "nor beyond the room";
  terrace_read_lease_release(&lease, TERRACE_END_UNKNOWN);
}

TEST_F(CApi, FillingALeaseAgainGivesBackWhatItHeld) {
  const std::vector<terrace_id> keys = KeysOf(3, 3);
  Store(keys, 2);
  terrace_read_lease lease = {};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(terrace_acquire(client_, group_, keys.data(), 3, &request_, &lease), TERRACE_OK);
  }
  ExpectLeases(keys[2], 1);
  terrace_read_lease_release(&lease, TERRACE_END_LENGTH);
  terrace_read_lease_release(&lease, TERRACE_END_LENGTH);
  ExpectLeases(keys[2], 0);
}

TEST_F(CApi, TheOtherVerbsAnswer) {
  const std::vector<terrace_id> keys = KeysOf(3, 4);
  Store(keys, 2);
  uint32_t block_count = 0;
  EXPECT_EQ(terrace_pin(client_, group_, keys.data(), 3, nullptr, &block_count), TERRACE_OK);
  EXPECT_EQ(block_count, 3u);
  terrace_queried_block queried[3] = {};
  ASSERT_EQ(terrace_query(client_, group_, keys.data(), 3, nullptr, queried), TERRACE_OK);
  EXPECT_EQ(queried[2].state, TERRACE_BLOCK_SEALED);
  EXPECT_EQ(queried[2].tier_mask, 1 << TERRACE_TIER_DRAM);
  EXPECT_EQ(queried[2].flags & 2, 2);
  EXPECT_EQ(terrace_touch(client_, group_, keys.data(), 3, nullptr), TERRACE_OK);
  terrace_request clear = TERRACE_REQUEST_INIT;
  clear.flags = TERRACE_PIN_CLEAR;
  EXPECT_EQ(terrace_pin(client_, group_, keys.data(), 3, &clear, nullptr), TERRACE_OK);
  EXPECT_EQ(terrace_prefetch(client_, group_, keys.data(), 3, nullptr, &block_count), TERRACE_OK);
  EXPECT_EQ(block_count, 3u);
  terrace_evict_result evicted = {.struct_bytes = sizeof(evicted)};
  terrace_request subtree = TERRACE_REQUEST_INIT;
  subtree.flags = TERRACE_EVICT_SUBTREE;
  EXPECT_EQ(terrace_evict(client_, group_, &keys[1], 1, &subtree, &evicted), TERRACE_OK);
  EXPECT_EQ(evicted.block_count, 2u);
  EXPECT_EQ(terrace_reset(client_, group_), TERRACE_OK);
  size_t needed_bytes = 0;
  char cut[16];
  EXPECT_EQ(terrace_stats(client_, 0, cut, sizeof(cut), &needed_bytes), TERRACE_NO_SPACE);
  ASSERT_GT(needed_bytes, sizeof(cut));
  std::string json(2 * needed_bytes, '\0');
  ASSERT_EQ(terrace_stats(client_, 0, json.data(), json.size(), &needed_bytes), TERRACE_OK);
  EXPECT_EQ(nlohmann::json::parse(json.c_str())["domain"]["block_count"], 0);
}

TEST_F(CApi, KeysOfDigestsDependOnEveryByte) {
  std::vector<uint8_t> digests(3 * 20);
  digests[20] = 1;
  digests[59] = 1;
  terrace_id keys[3] = {};
  ASSERT_EQ(terrace_hash_digests(client_, group_, digests.data(), 20, 3, keys), TERRACE_OK);
  EXPECT_TRUE(keys[0].low != keys[1].low && keys[1].low != keys[2].low);
  EXPECT_EQ(terrace_hash_digests(client_, group_, digests.data(), 15, 3, keys), TERRACE_INVALID);
  EXPECT_EQ(terrace_hash_digests(client_, group_, digests.data(), 33, 1, keys), TERRACE_INVALID);
}

TEST_F(CApi, KeysGoOnFromAParent) {
  const std::vector<terrace_id> all = KeysOf(4, 0);
  std::vector<uint32_t> tokens(2 * kBlockTokens);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint32_t>(i) + 2 * kBlockTokens;
  terrace_id keys[2] = {};
  size_t key_count = 0;
  ASSERT_EQ(terrace_hash_tokens(client_, group_, &all[1], tokens.data(), tokens.size(), keys, 2,
                                &key_count),
            TERRACE_OK);
  ASSERT_EQ(key_count, 2u);
  EXPECT_EQ(keys[1].low, all[3].low);
  EXPECT_EQ(keys[1].high, all[3].high);
}

TEST_F(CApi, AnotherSpecOfTheSameNameIsRefusedWithTheField) {
  terrace_space other = SpaceOf();
  other.dtype = "fp8_e4m3";
  EXPECT_EQ(Open(client_, other), TERRACE_GROUP_NONE);
  EXPECT_EQ(status_, TERRACE_INVALID);
  EXPECT_THAT(why_, AllOf(HasSubstr("dtype"), HasSubstr("bf16"), HasSubstr("fp8_e4m3")));
}

TEST(CApiWithoutDaemon, WrongStructsAreRefused) {
  char why[256] = "x";
  terrace_client* client = nullptr;
  terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
  options.socket_path = "/nonexistent/terrace.sock";
  options.struct_bytes = 8;
  EXPECT_EQ(terrace_client_create(&options, &client, why, sizeof(why)), TERRACE_INVALID);
  EXPECT_THAT(why, HasSubstr("TERRACE_CLIENT_OPTIONS_INIT"));
  EXPECT_EQ(terrace_client_create(nullptr, &client, nullptr, 0), TERRACE_INVALID);
  // An older caller's: what it does not know has its default.
  options.struct_bytes = offsetof(terrace_client_options, pinned_bytes_max);
  EXPECT_EQ(terrace_client_create(&options, &client, why, sizeof(why)), TERRACE_OK) << why;
  terrace_client_destroy(client);
  // A newer caller's struct: what it says beyond ours must be nothing.
  struct {
    terrace_client_options known = TERRACE_CLIENT_OPTIONS_INIT;
    uint64_t later = 0;
  } longer;
  longer.known.socket_path = "/nonexistent/terrace.sock";
  longer.known.struct_bytes = sizeof(longer);
  longer.later = 1;
  EXPECT_EQ(terrace_client_create(&longer.known, &client, why, sizeof(why)), TERRACE_UNSUPPORTED);
  longer.later = 0;
  ASSERT_EQ(terrace_client_create(&longer.known, &client, why, sizeof(why)), TERRACE_OK) << why;
  EXPECT_EQ(terrace_client_is_connected(client), 0);
  char cut[12];
  for (int i = 0; i < 2000 && terrace_client_last_error(client, nullptr, 0) == 0; ++i) {
    EXPECT_EQ(terrace_client_wait_connected(client, 5000), TERRACE_BUSY);
  }
  EXPECT_GT(terrace_client_last_error(client, cut, sizeof(cut)), sizeof(cut));
  EXPECT_EQ(std::strlen(cut), sizeof(cut) - 1);
  terrace_request request = TERRACE_REQUEST_INIT;
  request.priority = 101;
  terrace_id key = {};
  terrace_read_lease lease = {};
  EXPECT_EQ(terrace_acquire(client, 0, &key, 1, &request, &lease), TERRACE_INVALID);
  request.priority = 100;
  request.deadline_us = 1000;
  EXPECT_NE(terrace_acquire(client, 0, &key, 1, &request, &lease), TERRACE_OK);
  EXPECT_EQ(terrace_acquire(client, 0, nullptr, 1, nullptr, &lease), TERRACE_INVALID);
  EXPECT_EQ(terrace_acquire(nullptr, 0, &key, 1, nullptr, &lease), TERRACE_INVALID);
  EXPECT_EQ(terrace_read_lease_copy_part(&lease, 0, 0, 0, cut, sizeof(cut)), TERRACE_INVALID);
  uint32_t count = 7;
  terrace_write_lease none = {};
  EXPECT_EQ(terrace_commit(client, &none, nullptr, &count), TERRACE_INVALID);
  EXPECT_EQ(count, 0u);
  terrace_client_destroy(client);
  terrace_client_destroy(nullptr);
}

TEST(CApiWithoutDaemon, ASpecIsCheckedFieldByField) {
  char why[512] = "";
  terrace_space space = SpaceOf();
  const terrace_space* members[] = {&space};
  terrace_group_spec spec = TERRACE_GROUP_SPEC_INIT;
  spec.name = "tiny";
  spec.member_count = 1;
  spec.members = members;
  terrace_id one = {}, two = {};
  EXPECT_EQ(terrace_group_spec_check(&spec, &one, why, sizeof(why)), TERRACE_OK) << why;
  space.salt = "pepper";
  EXPECT_EQ(terrace_group_spec_check(&spec, &two, why, sizeof(why)), TERRACE_OK) << why;
  EXPECT_NE(one.low, two.low);
  space.layout = nullptr;
  EXPECT_EQ(terrace_group_spec_check(&spec, nullptr, why, sizeof(why)), TERRACE_INVALID);
  EXPECT_THAT(why, HasSubstr("layout"));
  space.part_count = 129;
  EXPECT_EQ(terrace_group_spec_check(&spec, nullptr, why, sizeof(why)), TERRACE_INVALID);
  EXPECT_THAT(why, AllOf(HasSubstr("129"), HasSubstr("128")));
  EXPECT_STREQ(terrace_status_name(TERRACE_GONE), "gone");
  EXPECT_STREQ(terrace_status_name(99), "unknown");
  EXPECT_EQ(terrace_abi_version(), TERRACE_ABI_VERSION);
}

TEST_F(CApi, TheExampleIsServedWhatItStored) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a C program lacks what a sanitized C++ library wants of its runtime";
#endif
  const std::string command =
      std::string(TERRACE_PREFIX_EXAMPLE_PATH) + " " + daemon_.socket_path() + " 2>&1";
  for (const char* expected : {"stored 4 blocks\n", "loaded 4 blocks, all bytes right\n"}) {
    FILE* out = popen(command.c_str(), "r");
    ASSERT_NE(out, nullptr);
    char line[256] = "";
    (void)!std::fgets(line, sizeof(line), out);
    EXPECT_EQ(pclose(out), 0);
    EXPECT_STREQ(line, expected);
  }
}

}  // namespace
}  // namespace terrace::test
