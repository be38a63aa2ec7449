// The KV of a tiny Llama, kept in Terrace: how a host puts libterrace under its own paged KV.
//
// One page is one block, one layer one part. Whatever Terrace cannot do within its deadline the
// model computes; the account says what happened and why.
//
// THREADING: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/client.h"
#include "terrace/prefix_hasher.h"
#include "terrace/protocol.h"
#include "terrace/space.h"
#include "tiny_llama/inference.h"
#include "tiny_llama/model.h"

namespace terrace::tiny_llama {

// The group a tiny Llama's blocks belong to. Its revision tells apart all that changes KV bits:
// shape, version of the weights, and the machine's matrix kernels.
SpaceGroupSpec GroupOf(const TinyLlama& model);

class TerracePrefixCache final : public PrefixCache {
 public:
  struct Options {
    std::string socket_path;
    uint64_t connect_deadline_us = 2 * kUsPerSecond;
    uint64_t restore_deadline_us = 5 * kUsPerSecond;  // beyond it, computing may be faster
    uint64_t store_deadline_us = 5 * kUsPerSecond;    // nobody waits for it
  };

  struct Account {
    std::array<uint32_t, protocol::kTierKindCount> restored_blocks_by_tier = {};
    uint32_t stored_blocks = 0;
    uint32_t existing_blocks = 0;       // somebody stored them meanwhile
    uint32_t refused_blocks = 0;        // no room, or another writer has them
    std::vector<std::string> troubles;  // for a person; empty when all went well

    // "dram", "dram+nvme", …; empty when nothing was restored.
    std::string RestoredTiers() const;
  };

  // Connects and opens the model's group, within connect_deadline_us. Without a daemon the cache is
  // there and empty.
  TerracePrefixCache(const TinyLlama& model, const Options& options);

  uint32_t Restore(std::span<const uint8_t> tokens, PagedKv& kv) override;
  void Store(std::span<const uint8_t> tokens, PagedKv& kv, uint32_t first_block,
             uint32_t block_count) override;

  const Account& account() const { return account_; }

 private:
  bool Connect();
  bool KeysOf(std::span<const uint8_t> tokens, std::vector<BlockKey>* keys);
  // Pages [0, n) of a lease's ready blocks; n.
  uint32_t CopyOut(const ReadLease& lease, PagedKv& kv);
  // The blocks of a lease that are reserved; the number written.
  uint32_t CopyIn(WriteLease& lease, PagedKv& kv, uint32_t first_block);
  // Adds a sentence to the account: what did not happen, and the library's words for why.
  void Trouble(const std::string& what, Status status);

  Options options_;
  SpaceGroupSpec group_spec_;
  uint64_t layer_bytes_;
  uint32_t layers_;
  std::unique_ptr<Client> client_;
  GroupRef group_;
  bool is_open_ = false;
  Account account_;
};

}  // namespace terrace::tiny_llama
