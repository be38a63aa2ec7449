// What a benchmark's process does to the cache: prompts of blocks with made-up keys, stored and
// loaded through libterrace as an engine would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/client.h"
#include "tools/terrace/bench/worker_pool.h"

namespace terrace::tools {

// Size of a benchmark's world.
struct BenchShape {
  uint64_t block_bytes = 0;
  uint32_t part_count = 1;
  uint32_t prompt_blocks = 0;
  uint32_t prompt_count = 0;

  uint64_t prompt_bytes() const { return block_bytes * prompt_blocks; }
  uint64_t part_bytes() const { return block_bytes / part_count; }
  uint64_t slot_bytes() const;  // what a block occupies in the arena
};

// One member whose blocks have this shape; other shapes are other groups.
SpaceGroupSpec BenchGroup(const BenchShape& shape);

struct BenchConnection {
  std::string socket_path;
  uint64_t deadline_us = 0;
  uint32_t reply_spin_us = ClientOptions{}.reply_spin_us;
};

class BenchClient {
 public:
  // Connected, with the shape's group open; nullptr with `*why`.
  static std::unique_ptr<BenchClient> Connect(const BenchConnection& connection,
                                              const BenchShape& shape, std::string* why);

  // Key of block `block` of a chain; equal arguments give equal keys in every process of the
  // domain.
  struct BlockName {
    uint64_t salt = 0;
    uint64_t chain = 0;
    uint64_t block = 0;
  };
  BlockKey Key(const BlockName& name) const;
  std::vector<BlockKey> PromptKeys(uint64_t salt, uint64_t prompt) const;

  // The resident part of the prompt, ready to be read. A miss is a lease of no blocks.
  Result<ReadLease> Acquire(std::span<const BlockKey> keys, const protocol::Hints& hints = {});
  // All parts of one block.
  Status CopyBlock(const ReadLease& lease, uint32_t block_index, std::span<std::byte> to) const;

  // Slots for keys[first_block …] of a prompt whose head is resident.
  Result<WriteLease> Reserve(std::span<const BlockKey> keys, uint32_t first_block = 0,
                             const protocol::Hints& hints = {});
  Status WriteBlock(WriteLease& lease, uint32_t key_index, std::span<const std::byte> from) const;
  Result<uint32_t> Commit(WriteLease& lease, const protocol::Hints& hints = {});

  // The first `block_count` blocks of a prompt and everything that continues them.
  Status EvictChain(std::span<const BlockKey> first_keys);

  Client& client() { return *client_; }
  GroupRef group() const { return group_; }
  const BenchShape& shape() const { return shape_; }

  // `what`, the status in words and the client's last sentence.
  std::string Explain(std::string_view what, Status status) const;

 private:
  BenchClient(std::unique_ptr<Client> client, const BenchShape& shape, uint64_t deadline_us);
  RequestOptions Options(const protocol::Hints& hints) const;

  std::unique_ptr<Client> client_;
  BenchShape shape_;
  uint64_t deadline_us_;
  GroupRef group_;
  std::unique_ptr<PrefixHasher> hasher_;
};

// Compares a loaded block with its key's pattern. False with a report of key and offset.
bool VerifyBlock(const BlockKey& key, std::span<const std::byte> block, PhaseReport* report);

}  // namespace terrace::tools
