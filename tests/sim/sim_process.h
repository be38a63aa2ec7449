// One simulated inference process: a session, its leases, and what a well-behaved (or dying,
// stopped, lying) client does with them, one action at a time. It speaks frames only; every byte it
// reads goes to the oracle. With a device it makes the daemon's copies, too: at once or late, whole
// or wrong, twice or never.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/block/seams.h"
#include "sim/frame_writer.h"
#include "sim/oracle.h"
#include "sim/swarm.h"
#include "terrace/protocol.h"
#include "terrace/protocol_device.h"
#include "terrace/space.h"

namespace terrace::sim {

// What a process can do to the world around it.
class SimHost {
 public:
  virtual ~SimHost() = default;
  virtual void SendToDaemon(uint32_t process, std::vector<std::byte> frame) = 0;
  virtual std::byte* SlotMemory(uint32_t domain_index, const SlotAddress& address) = 0;
  // Whether the slot is in the very use in which its generation was told.
  virtual bool IsInThatUse(uint32_t domain_index, const SlotRef& slot) = 0;
  virtual void Fail(const std::string& what) = 0;
  virtual Oracle& oracle() = 0;
  virtual Random& random() = 0;  // of what processes choose in this step
  virtual Dice& dice() = 0;
  // Lease tokens that processes tell each other, of every domain; of a read lease what it is of.
  struct Token {
    LeaseToken token;
    uint32_t domain_index = 0;
    uint32_t group_number = 0;
    bool is_write = false;
    std::vector<BlockKey> keys;
    uint64_t asked_us = 0;
  };
  virtual std::vector<Token>& token_board() = 0;
  // What the ranks of one engine tell each other about a write lease: its keys, and who writes
  // which part. No two processes write the same part, as no two ranks of an engine do.
  struct SharedWrite {
    std::vector<BlockKey> keys;
    std::map<uint64_t, uint32_t> writer_of_part;
    bool is_joined = false;
    std::set<uint64_t> committed;
    uint32_t uid = 0;  // of who reserved
  };
  virtual std::map<LeaseToken, SharedWrite>& shared_writes() = 0;
  // Two domains that are hosts of one are one to the oracle.
  virtual uint32_t TrustOf(uint32_t domain_index) const = 0;
  virtual uint64_t now_us() const = 0;
  // Commits of the group that anybody has; those are not to be found by whoever asks for them in
  // that domain from now on; whether one was.
  virtual std::set<CommitId> KnownCommits(uint32_t group_number) = 0;
  virtual void Forgotten(uint32_t domain_index, const std::set<CommitId>& commits) = 0;
  virtual bool WasForgotten(uint32_t domain_index, CommitId commit_id, uint64_t asked_us) const = 0;
  // The key universe: chain `chain` of a group, block by block.
  virtual const std::vector<BlockKey>& Chain(uint32_t chain) const = 0;
  virtual const SpaceGroupSpec& GroupSpec(uint32_t group_number) const = 0;
  virtual SpaceId MemberSpace(uint32_t group_number, uint32_t member) const = 0;
  virtual const DomainSecret& Secret(uint32_t domain_index) const = 0;
};
inline constexpr uint32_t kSimGroups = 3;
inline constexpr uint32_t kSimChains = 12;
inline constexpr char kSimDevice[] = "sim";

class SimProcess {
 public:
  enum class Life { kRunning, kStopped, kDying, kGone };
  struct Options {
    uint32_t number = 0;  // of this process
    uint32_t uid = 0;
    uint32_t domain_index = 0;
    uint64_t self_mask = 1;      // members it reads and writes, of groups that have them
    bool never_expires = false;  // gives no block a time to live
    bool keeps_worth = false;    // and says nothing else that changes a record already written
    bool has_device = false;     // maps the device's memory, and copies for the daemon
    SimHost* host = nullptr;
  };
  explicit SimProcess(const Options& options) : options_(options) {}

  // The daemon accepted the connection: say hello and open the groups.
  void Begin();
  // One random action. REQUIRES: running.
  void Act();
  // A stopped or dying process may still be in the middle of a copy (or its DMA is).
  void StrayWrite();
  // Every byte under a lease that it has not released is right, or the host hears of it.
  void JudgeReads();
  // A whole message of the daemon; kept while stopped.
  void OnMessage(std::vector<std::byte> message);
  void DrainInbox();
  // Ends every lease in an orderly way.
  void ReleaseAll();

  Life life = Life::kRunning;
  bool is_connected = false;
  uint64_t session_id = 0;
  const Options& options() const { return options_; }

 private:
  struct ReadLease {
    LeaseToken token;
    uint32_t group_number = 0;
    uint64_t member_mask = 0;
    std::vector<BlockKey> keys;
    std::vector<SlotAddress> slots;          // [block][member of mask]
    std::vector<bool> is_ready;              // [block]
    std::vector<bool> is_lost;               // [block]: left the lease
    std::vector<bool> is_followed;           // [block]
    std::map<uint64_t, bool> part_ready;     // of blocks told part by part, see PartIndex
    std::map<uint32_t, uint32_t> next_part;  // of a member, in the order of layers
    uint64_t asked_us = 0;
    bool is_revoked = false;
  };
  struct WriteLease {
    LeaseToken token;
    uint32_t group_number = 0;
    uint64_t member_mask = 0;
    std::vector<BlockKey> keys;
    std::vector<protocol::ReservedKey> reserved;
    std::vector<SlotRef> slots;          // [reserved key][member of mask]
    std::map<uint64_t, int> part_state;  // PartIndex → 1 written, 2 commit sent
    bool is_revoked = false;
  };
  struct Pending {
    protocol::Verb verb = protocol::Verb::kHello;
    uint32_t group_number = 0;
    uint64_t member_mask = 0;
    std::vector<BlockKey> keys;
    LeaseToken token;
    std::vector<bool> must_fail;  // Commit: entries that lied about their generation
    bool is_foreign = false;      // Join by another domain's token
    bool is_join = false;
    bool is_by_parts = false;
    uint64_t asked_us = 0;
    std::set<CommitId> known;   // Reset: when it was asked for
    bool wants_device = false;  // may be answered with slots there
  };
  // A work order that is not answered yet, nor ever may be.
  struct Order {
    protocol::WorkOrder told;
    std::vector<uint64_t> part_bytes;
    bool is_copied = false;
    bool is_forgotten = false;  // never answered, though its copy may still happen
  };

  static uint64_t PartIndex(uint32_t block, uint32_t member, uint32_t part) {
    return uint64_t{block} << 16 | member << 8 | part;
  }
  uint64_t Pick(uint64_t count) { return options_.host->random().Next() % count; }
  bool Chance(uint32_t percent) { return Pick(100) < percent; }
  const Swarm& swarm() { return options_.host->dice().swarm(); }
  bool Happens(Kind kind, uint32_t plain_ppm) {
    return options_.host->dice().Happens(kind, plain_ppm);
  }
  uint64_t SelfMask(uint32_t group_number) const;
  std::span<std::byte> PartMemory(uint32_t group_number, uint32_t member, uint32_t part,
                                  const SlotAddress& address);

  protocol::KeysRequest KeysOf(protocol::Verb verb, uint32_t group_number,
                               std::vector<BlockKey>* keys);
  uint64_t Send(FrameWriter& frame, uint64_t request_id, Pending pending);
  void SendKeys(protocol::Verb verb, uint32_t flags);
  void SendReserve();
  void SendJoin();
  struct CommitDraft {
    std::vector<protocol::CommitEntry> entries;
    std::vector<Checksum> checksums;
    std::vector<bool> must_fail;
  };
  static uint32_t KeyIndexOf(const WriteLease& lease, const BlockKey& key);
  protocol::CommitEntry CommitPart(WriteLease& lease, const PartName& name,
                                   const SlotAddress& address, std::vector<Checksum>* checksums);
  bool DeclareAbsent(WriteLease& lease, uint32_t key_index, uint32_t member);
  void CommitMember(WriteLease& lease, const PartName& member, const SlotRef& slot,
                    CommitDraft* draft);
  void SendCommit(WriteLease& lease);
  void SendAcquire();
  void SendSmall(Kind verb);
  void WriteSomePart(WriteLease& lease, bool is_stray);
  void EndWrite(size_t index);
  void EndRead(size_t index);
  void JudgeRead(const ReadLease& lease);
  void ActOnLease();

  void Handle(std::span<const std::byte> message);
  void HandleReply(const protocol::FrameHeader& header, const protocol::ReplyPrefix& prefix,
                   BodyReader& body);
  void HandleAcquired(const Pending& pending, uint64_t request_id, BodyReader& body);
  void HandleReserved(const Pending& pending, BodyReader& body);
  void HandleCommitted(const Pending& pending, BodyReader& body);
  void AllPartsReady(ReadLease& lease, uint32_t block);
  void PartsTold(ReadLease& lease, uint32_t block, const protocol::Completion& completion);
  void BlocksLost(ReadLease& lease, uint32_t first_block);
  void HandleCompletion(uint64_t request_id, const protocol::ReplyPrefix& prefix, BodyReader& body);
  void HandleRevoked(const LeaseToken& token);

  void AttachDevice();
  void HandleOrder(BodyReader& body);
  void ActOnOrder();
  void CopyOrder(Order& order);
  enum class Answer : uint8_t { kHonest, kWrongSums, kWrongGeneration, kAgain, kRefusal };
  void AnswerOrder(const Order& order, Answer answer);

  Options options_;
  uint64_t next_request_id_ = 1;
  std::map<uint64_t, Pending> pending_;
  std::map<uint64_t, LeaseToken> lease_of_request_;
  uint32_t group_handles_[kSimGroups] = {};
  std::vector<ReadLease> reads_;
  std::vector<WriteLease> writes_;
  std::vector<Order> orders_;
  bool is_attached_ = false;
  std::deque<std::vector<std::byte>> inbox_;
};

}  // namespace terrace::sim
