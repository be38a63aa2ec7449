#include "redis/redis_rig.h"

#include <chrono>
#include <cstdio>
#include <random>
#include <utility>

#include "terrace/check.h"

namespace terrace::testing {
namespace {

uint64_t Mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

}  // namespace

// Outlives the rig: the tier's thread may still post while it ends.
struct RedisRig::Posted {
  std::mutex mutex;
  std::condition_variable has_more;
  std::deque<std::function<void()>> calls;
};

DomainSecret RedisTestSecret() {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(Mix(i + 77));
  return secret;
}

RedisBlockName RedisTestName(uint64_t chain, uint32_t position) {
  const auto key_at = [chain](uint32_t at) {
    return BlockKey{Mix(chain * 1'000'003 + at + 1), Mix(chain + at * 7'919 + 5)};
  };
  return {.group = {11, 12},
          .space = {21, 22},
          .key = key_at(position),
          .run = key_at(position / kRedisRunBlocks * kRedisRunBlocks),
          .position = position};
}

std::string RedisTestGenerationKey(const GroupId& group) {
  return RedisKeyNames("terrace", RedisTestSecret()).Generation(group);
}

std::string RedisTestGeneration(const GroupId& group, uint64_t generation) {
  return EncodeGeneration(group, generation, RedisTestSecret());
}

BlockRecord RedisTestRecord(const RedisBlockName& name, CommitId commit_id) {
  BlockRecord record;
  record.group = name.group;
  record.space = name.space;
  record.key = name.key;
  record.parent = {name.key.high, name.key.low};
  record.commit_id = commit_id;
  record.event_hash = commit_id + 1;
  record.position = name.position;
  record.recompute_ns_per_token = 1234;
  record.member = 3;
  record.priority = 42;
  return record;
}

std::vector<std::byte> RedisTestBytes(const BlockKey& key, CommitId commit_id,
                                      size_t length_bytes) {
  std::vector<std::byte> bytes(length_bytes);
  uint64_t state = Mix(key.low ^ Mix(commit_id));
  for (size_t i = 0; i < length_bytes; ++i) {
    if (i % 8 == 0) state += 0x9E3779B97F4A7C15;
    bytes[i] = static_cast<std::byte>(Mix(state) >> i % 8 * 8);
  }
  return bytes;
}

RedisTier::Options RedisRig::Options(const RedisEndpoint& endpoint) {
  return {.secret = RedisTestSecret(),
          .endpoints = {endpoint},
          .timeouts = {.connect_us = 20'000'000, .command_us = 20'000'000},
          .absence_us = 1};
}

RedisRig::RedisRig(RedisTier::Options options) : posted_(std::make_shared<Posted>()) {
  options.post = [posted = posted_](std::function<void()> call) {
    std::lock_guard lock(posted->mutex);
    posted->calls.push_back(std::move(call));
    posted->has_more.notify_one();
  };
  options.unix_us = [] {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count());
  };
  options.listener = this;
  std::string why;
  Result<std::unique_ptr<RedisTier>> tier = RedisTier::Open(std::move(options), &why);
  if (!tier.ok()) std::fprintf(stderr, "%s\n", why.c_str());
  tier_ = std::move(*tier);
}

// What was posted and never ran holds the tier, which holds where it was posted to.
RedisRig::~RedisRig() {
  tier_.reset();
  posted_->calls.clear();
}

bool RedisRig::RunUntil(const std::function<bool()>& is_true) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!is_true()) {
    std::deque<std::function<void()>> calls;
    {
      std::unique_lock lock(posted_->mutex);
      posted_->has_more.wait_for(lock, std::chrono::milliseconds(20),
                                 [this] { return !posted_->calls.empty(); });
      calls.swap(posted_->calls);
    }
    for (const std::function<void()>& call : calls) call();
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

bool RedisRig::RunTicking(const std::function<bool()>& is_true) {
  constexpr auto kEvery = std::chrono::milliseconds(100);
  auto next = std::chrono::steady_clock::now();
  return RunUntil([&] {
    if (std::chrono::steady_clock::now() >= next) {
      next = std::chrono::steady_clock::now() + kEvery;
      tier_->Tick();
    }
    return is_true();
  });
}

void RedisRig::WaitUntilReady() {
  TERRACE_CHECK(RunUntil([this] { return tier_->stats().is_ready; }), "the tier is never ready");
}

Status RedisRig::StoreNow(const RedisBlockName& name, CommitId commit_id, size_t length_bytes) {
  const std::vector<std::byte> bytes = RedisTestBytes(name.key, commit_id, length_bytes);
  const std::vector<Checksum> parts = {{commit_id, 1}, {commit_id, 2}};
  BlockRecord record = RedisTestRecord(name, commit_id);
  record.part_checksums = parts;
  const TransferId id = next_id_++;
  TERRACE_RETURN_IF_ERROR(tier_->Store(id, name.run, record, bytes));
  TERRACE_CHECK(RunUntil([&] { return stored.contains(id); }), "a store without an end");
  return stored.extract(id).mapped();
}

RedisRig::Fetched RedisRig::FetchNow(const RedisBlockName& name, size_t length_bytes) {
  std::vector<std::byte> into(length_bytes, std::byte{0xEE});
  const TransferId id = next_id_++;
  if (const Status status = tier_->Fetch(id, name, into); !status.ok()) {
    return {.status = status};
  }
  TERRACE_CHECK(RunUntil([&] { return fetched.contains(id); }), "a fetch without an end");
  Fetched result = std::move(fetched.extract(id).mapped());
  result.bytes = std::move(into);
  return result;
}

std::pair<Status, std::vector<bool>> RedisRig::ProbeNow(const std::vector<RedisBlockName>& names) {
  const uint64_t id = next_id_++;
  if (const Status status = tier_->Probe(id, names); !status.ok()) return {status, {}};
  TERRACE_CHECK(RunUntil([&] { return probed.contains(id); }), "a probe without an end");
  return std::move(probed.extract(id).mapped());
}

bool RedisRig::IsTrue(const Fetched& fetched, const RedisBlockName& name, size_t length_bytes) {
  if (!fetched.status.ok()) return true;
  return fetched.bytes == RedisTestBytes(name.key, fetched.commit_id, length_bytes);
}

void RedisRig::OnSharedFetched(TransferId transfer_id, Status status, const BlockRecord& record) {
  Fetched& one = fetched[transfer_id];
  one.status = status;
  one.commit_id = record.commit_id;
  one.part_checksums.assign(record.part_checksums.begin(), record.part_checksums.end());
  one.record = record;
  one.record.part_checksums = {};
}

void RedisRig::OnSharedStored(TransferId transfer_id, Status status) {
  stored[transfer_id] = status;
}

void RedisRig::OnSharedProbed(uint64_t probe_id, Status status,
                              const std::vector<bool>& is_present) {
  probed[probe_id] = {status, is_present};
}

}  // namespace terrace::testing
