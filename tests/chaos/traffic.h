// One chaos client's dealings with terraced: prompts that several processes share, blocks written
// with self-describing bytes, and every byte that is read checked. The roles (worker, frozen, …)
// are programs over these steps.
//
// THREADING: one thread, except that the client's background thread is its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chaos/arguments.h"
#include "chaos/history.h"
#include "chaos/pattern.h"
#include "chaos/progress.h"
#include "terrace/client.h"

namespace terrace::chaos {

// Two ranks, two parts of odd size each: a block is two slots of 68 KiB.
inline constexpr uint32_t kMembers = 2;
inline constexpr uint32_t kPartBytes[] = {30'000, 33'001};
inline constexpr uint32_t kPartsPerSlot = 2;
inline constexpr uint32_t kBlockTokens = 16;
// Prompts come in families with this many leading blocks in common.
inline constexpr uint32_t kPromptsPerFamily = 4;
inline constexpr uint32_t kFamilyBlocks = 3;

// `small_bytes`: of parts that are to cost little; 0: kPartBytes.
SpaceGroupSpec ChaosGroup(uint64_t small_bytes = 0);

class Traffic {
 public:
  struct Options {
    std::string socket_path;
    std::string client_name = "chaos";
    uint32_t prompt_first = 0;  // prompts [prompt_first, prompt_first + prompt_count)
    uint32_t prompt_count = 24;
    uint32_t blocks_max = 12;  // of one prompt
    uint64_t deadline_us = 200'000;
    uint64_t seed = 1;
    // SIGKILL, sent by itself, this long after it first enters this Phase; 0 is no call's phase.
    uint64_t die_in = 0;
    uint64_t die_after_us = 1;
    std::string history_path;  // of Serve, Peek and Erase; empty: none
    uint64_t small_bytes = 0;  // see ChaosGroup
  };
  static Options ReadOptions(const Arguments& arguments);
  Traffic(const Options& options, Progress* progress);

  // Connects and opens the group, for at most `deadline_us`. False with a message on stderr.
  bool Connect(uint64_t deadline_us);

  Client& client() { return *client_; }
  GroupRef group() const { return group_; }
  Progress& progress() { return *progress_; }
  const Options& options() const { return options_; }
  bool has_full_history() const { return history_.is_full(); }
  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t Draw(uint64_t bound);

  // The first `block_count` keys of a prompt. Empty before the first connection.
  std::span<const BlockKey> Keys(uint32_t prompt, uint32_t block_count);

  // The verbs, timed and counted.
  Result<ReadLease> Acquire(std::span<const BlockKey> keys);
  // For blocks that come from below: until all are ready, will not come, or the deadline.
  void WaitReady(const ReadLease& lease);
  Result<WriteLease> Reserve(std::span<const BlockKey> keys, const BlockKey& parent,
                             uint32_t first_position);
  Result<uint32_t> Commit(WriteLease& lease);

  // Checks every byte of blocks [0, ready_count()). Returns the wrong blocks, each told on stderr;
  // in `*ids`, if given, which commit each is, up to the first that is wrong or gone.
  uint32_t Verify(const ReadLease& lease, std::span<const BlockKey> keys,
                  std::vector<CommitId>* ids = nullptr);
  // Fills every reserved slot of keys [from, to), of members from `first_member` on. Returns the
  // blocks written.
  uint32_t Write(WriteLease& lease, std::span<const BlockKey> keys, size_t from, size_t to,
                 uint32_t first_member = 0);
  // Makes a prompt resident: acquire, check what is there, store the rest. Returns the blocks that
  // were there.
  uint32_t Serve(uint32_t prompt, uint32_t block_count);
  // Makes a whole prompt resident and leases it. Others compete for memory, and not all of it may
  // be populated yet: it tries for half a minute. False with a message on stderr.
  bool Hold(uint32_t prompt, std::vector<ReadLease>* leases);
  // Reads blocks [first, block_count) of a prompt, as the child of the block before them.
  void Peek(uint32_t prompt, uint32_t first, uint32_t block_count);
  // Has the daemon erase blocks [first, blocks_max) of a prompt, and all that hangs from them.
  Result<protocol::EvictReply> Erase(uint32_t prompt, uint32_t first, uint64_t deadline_us = 0);
  // Releases the leases that Serve held on to.
  void ReleaseKept();

 private:
  template <typename Call>
  auto Timed(Phase phase, Call call);
  // A lease that Serve keeps for a while, as engines do, and where its read stands.
  struct Kept {
    Result<ReadLease> lease;
    uint32_t prompt = 0;
    uint32_t first = 0;
    size_t read_at = 0;
  };
  // Which commit a block is; 0 if it is none, or gone. `*is_wrong` says which.
  CommitId ReadBlock(const ReadLease& lease, uint32_t block_index, const BlockKey& key,
                     bool* is_wrong);
  // The bytes of one part, where they lie or in part_buffer_. Empty if there are none to be had.
  std::span<const std::byte> PartInPlace(const ReadLease& lease, uint32_t block_index,
                                         uint32_t member, uint32_t part) const;
  std::span<const std::byte> CopyOfPart(const ReadLease& lease, uint32_t block_index,
                                        uint32_t member, uint32_t part);
  void Enter(Phase phase);
  void NoteBoot();
  // One Acquire of keys [first, size) and what it gave, written down.
  Kept Read(uint32_t prompt, std::span<const BlockKey> keys, uint32_t first);
  void Store(uint32_t prompt, std::span<const BlockKey> keys, uint32_t resident_count);
  void CommitRange(WriteLease& lease, Event place, size_t from, size_t to);
  void Keep(Kept kept);
  void LetGo(Kept& kept);

  Options options_;
  Progress* progress_;
  std::unique_ptr<Client> client_;
  GroupRef group_;
  SpaceGroupSpec spec_;
  uint64_t random_state_;
  std::map<uint32_t, std::vector<BlockKey>> keys_by_prompt_;
  std::vector<uint64_t> part_bytes_;
  std::vector<std::byte> part_buffer_;
  std::vector<Kept> kept_;
  History history_;
  std::vector<CommitId> ids_;  // of the call under way
};

}  // namespace terrace::chaos
