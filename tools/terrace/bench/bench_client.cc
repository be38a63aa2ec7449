#include "tools/terrace/bench/bench_client.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "terrace/units.h"
#include "tools/terrace/bench/block_pattern.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kBlockTokens = 16;

}  // namespace

uint64_t BenchShape::slot_bytes() const {
  return RoundUp(part_bytes(), kPartAlignmentBytes) * part_count;
}

SpaceGroupSpec BenchGroup(const BenchShape& shape) {
  SpaceSpec spec;
  spec.model = "terrace-bench";
  spec.revision = "1";
  spec.dtype = "u8";
  spec.layers = shape.part_count;
  spec.kv_heads = 1;
  spec.head_size = 1;
  spec.layout = fmt::format("opaque-{}", shape.block_bytes);
  spec.block_tokens = kBlockTokens;
  spec.part_bytes.assign(shape.part_count, shape.part_bytes());
  SpaceGroupSpec group;
  group.name = fmt::format("bench-{}x{}", shape.block_bytes, shape.part_count);
  group.members.push_back({.spec = spec});
  return group;
}

BenchClient::BenchClient(std::unique_ptr<Client> client, const BenchShape& shape,
                         uint64_t deadline_us)
    : client_(std::move(client)), shape_(shape), deadline_us_(deadline_us) {}

std::unique_ptr<BenchClient> BenchClient::Connect(const BenchConnection& connection,
                                                  const BenchShape& shape, std::string* why) {
  ClientOptions options;
  options.socket_path = connection.socket_path;
  options.client_name = "terrace bench";
  options.reply_spin_us = connection.reply_spin_us;
  Result<std::unique_ptr<Client>> client = Client::Create(options, why);
  if (!client.ok()) return nullptr;
  std::unique_ptr<BenchClient> bench(
      new BenchClient(std::move(*client), shape, connection.deadline_us));
  if (Status status = bench->client_->WaitConnected(connection.deadline_us); !status.ok()) {
    *why = bench->Explain(fmt::format("no handshake on {}", connection.socket_path), status);
    return nullptr;
  }
  Result<GroupRef> group = bench->client_->Open(BenchGroup(shape), 1, connection.deadline_us);
  if (!group.ok()) {
    *why = bench->Explain("cannot open the benchmark's group", group.status());
    return nullptr;
  }
  bench->group_ = *group;
  Result<PrefixHasher> hasher = bench->client_->Hasher(*group);
  if (!hasher.ok()) {
    *why = bench->Explain("cannot make keys", hasher.status());
    return nullptr;
  }
  bench->hasher_ = std::make_unique<PrefixHasher>(*hasher);
  return bench;
}

BlockKey BenchClient::Key(const BlockName& name) const {
  const std::array<uint64_t, 3> digest = {name.salt, name.chain, name.block};
  return hasher_->FromDigest(std::as_bytes(std::span(digest))).value();
}

std::vector<BlockKey> BenchClient::PromptKeys(uint64_t salt, uint64_t prompt) const {
  std::vector<BlockKey> keys(shape_.prompt_blocks);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    keys[i] = Key({.salt = salt, .chain = prompt, .block = i});
  }
  return keys;
}

RequestOptions BenchClient::Options(const protocol::Hints& hints) const {
  RequestOptions options;
  options.deadline_us = deadline_us_;
  options.hints = hints;
  return options;
}

Result<ReadLease> BenchClient::Acquire(std::span<const BlockKey> keys,
                                       const protocol::Hints& hints) {
  Result<ReadLease> lease = client_->Acquire(group_, keys, Options(hints));
  if (lease.ok() && lease->ready_count() < lease->block_count()) {
    // What does not come in time has left the lease; what is ready is a shorter prefix.
    (void)client_->WaitReady(*lease, lease->block_count(), deadline_us_);
  }
  return lease;
}

Status BenchClient::CopyBlock(const ReadLease& lease, uint32_t block_index,
                              std::span<std::byte> to) const {
  const uint64_t part_bytes = shape_.part_bytes();
  for (uint32_t part = 0; part < shape_.part_count; ++part) {
    TERRACE_RETURN_IF_ERROR(
        lease.CopyPart(block_index, 0, part, to.subspan(part * part_bytes, part_bytes)));
  }
  return Status::Ok();
}

Result<WriteLease> BenchClient::Reserve(std::span<const BlockKey> keys, uint32_t first_block,
                                        const protocol::Hints& hints) {
  RequestOptions options = Options(hints);
  options.first_position = first_block;
  if (first_block > 0) options.parent = keys[first_block - 1];
  return client_->Reserve(group_, keys.subspan(first_block), options);
}

Status BenchClient::WriteBlock(WriteLease& lease, uint32_t key_index,
                               std::span<const std::byte> from) const {
  const uint64_t part_bytes = shape_.part_bytes();
  for (uint32_t part = 0; part < shape_.part_count; ++part) {
    TERRACE_RETURN_IF_ERROR(
        lease.WritePart(key_index, 0, part, from.subspan(part * part_bytes, part_bytes)));
  }
  return Status::Ok();
}

Result<uint32_t> BenchClient::Commit(WriteLease& lease, const protocol::Hints& hints) {
  return client_->Commit(lease, Options(hints));
}

Status BenchClient::EvictChain(std::span<const BlockKey> first_keys) {
  RequestOptions options = Options({});
  options.flags = protocol::kKeysFlat | protocol::kEvictSubtree;
  return client_->Evict(group_, first_keys, options).status();
}

std::string BenchClient::Explain(std::string_view what, Status status) const {
  const std::string words = client_->last_error();
  return fmt::format("{}: {}{}{}", what, DescribeStatus(status), words.empty() ? "" : ": ", words);
}

bool VerifyBlock(const BlockKey& key, std::span<const std::byte> block, PhaseReport* report) {
  const std::optional<uint64_t> offset = FirstMismatch(key, block);
  if (!offset) {
    ++report->blocks_verified;
    return true;
  }
  report->Fail(
      fmt::format("block {} is not what was stored under its key: byte {} of {} is {:#04x}, "
                  "expected {:#04x}",
                  ToHex(key), *offset, block.size(), std::to_integer<unsigned>(block[*offset]),
                  std::to_integer<unsigned>(PatternByte(key, *offset))));
  return false;
}

}  // namespace terrace::tools
