// SharedTier: one domain's share of a cache that many hosts have in common, as the daemon sees it:
// blocks are stored, fetched and looked for by name. It is no Tier: nothing in it is this host's,
// places are not allocated or freed, and what was there a moment ago may be gone.
//
// THREADING: every method on the store thread, none blocks; answers come later on the store thread,
// never from inside a call.
// OWNERSHIP: the memory of a transfer belongs to the tier until its answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiers/shared_name.h"
#include "tiers/tier.h"

namespace terrace {

class SharedTierListener {
 public:
  virtual ~SharedTierListener() = default;
  // kOk: the memory has exactly the bytes that were stored with `record` (valid during the call;
  // domain_index and owner mean nothing). kNotFound, kCorrupt: a miss. Else: the server did not
  // answer well. Unless kOk the memory has anything.
  virtual void OnSharedFetched(TransferId transfer_id, Status status,
                               const BlockRecord& record) = 0;
  // kOk: stored. kExists: somebody has stored the block. kNoSpace: the server takes no writes now.
  virtual void OnSharedStored(TransferId transfer_id, Status status) = 0;
  // In the order asked; all false unless kOk. A hint: see docs/REDIS_FORMAT.md, Presence.
  virtual void OnSharedProbed(uint64_t probe_id, Status status,
                              const std::vector<bool>& is_present) = 0;
  // Somebody has had the group's blocks forgotten: what this host has of it now is of before, and
  // must not be stored any more.
  virtual void OnSharedForgotten(const GroupId& group) = 0;
};

struct SharedTierStats {
  bool is_ready = false;        // commands can be sent
  bool is_refused = false;      // the server refuses us: login, permission or certificate
  bool is_tls_refused = false;  // a certificate, the server's or ours
  // What answers is no server of the kind that is configured, or knows no master of that name.
  bool is_of_another_kind = false;
  std::string tls_trouble;  // why TLS files that have changed are not in use; empty: they are
  std::string trouble;  // why it is not ready, for a person; of the server's text the first words
  // Why it takes no writes while it answers, for a person; empty: it does.
  std::string write_trouble;
  // Why not all that it has can be used while it is ready, for a person: a node of a Cluster is
  // away, or an ACL forbids what reads. Empty: it can.
  std::string part_trouble;
  bool is_full = false;  // for want of memory
  uint64_t operations_in_flight = 0, bytes_in_flight = 0;
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t fetches_found = 0, fetches_missed = 0, fetches_broken = 0, fetches_failed = 0;
  uint64_t stores_done = 0, stores_existing = 0, stores_failed = 0;
  uint64_t probes = 0, probes_remembered = 0;  // names; of them answered without asking
  uint64_t repairs = 0;
  uint64_t connections = 0;  // logged in
  uint64_t connection_attempts = 0, connections_lost = 0, breaker_opened = 0;
  uint64_t begun_anew = 0;  // groups that others have begun anew: what was given is not found there
  // Groups whose generation the server had lost, so that they were forgotten.
  uint64_t generations_lost = 0;
  uint64_t forgotten_elsewhere = 0;  // groups of which this host heard that others had them so
  uint64_t forgets = 0;        // groups that this host has had forgotten, and the server knows
  uint64_t forgets_owed = 0;   // groups of which the server does not know yet; not used until then
  uint64_t erasures_owed = 0;  // likewise, blocks
};

// What had been erased at some time; see SharedTier::IsDurable.
struct SharedErasureMark {
  uint64_t erasures = 0;
  uint64_t forgets = 0;
};

class SharedTier {
 public:
  virtual ~SharedTier() = default;

  // Names carry no generation: the tier knows which one a group is in.
  //
  // kOk: one answer follows. kBusy: too much is under way. kUnsupported: the server does not work
  // now, or does not know yet what was to be forgotten of the group, or that the block was erased.
  // REQUIRES: into.size(), from.size() > 0.
  virtual Status Fetch(TransferId transfer_id, const RedisBlockName& name,
                       std::span<std::byte> into) = 0;
  // `run` as in RedisBlockName; expires_at_s shortens the time to live.
  virtual Status Store(TransferId transfer_id, const BlockKey& run, const BlockRecord& record,
                       std::span<const std::byte> from) = 0;
  // kInvalid: more names than one probe takes.
  virtual Status Probe(uint64_t probe_id, std::span<const RedisBlockName> names) = 0;
  // Takes the block away, whoever stored it. Takes effect at once, as Forget does: it is not found
  // or fetched here any more, and a store of it is refused until the server has done it. Of more
  // than can be remembered a whole group is forgotten.
  virtual void Erase(const RedisBlockName& name) = 0;
  // The same of a block whose name is not known here: `run` and `position` are a guess. Under
  // whatever name the key is asked for, what was there until now is not found.
  virtual void EraseByKey(const RedisBlockName& name) = 0;
  // The same of whatever groups have blocks of these keys, those that nobody has named here yet
  // among them. All of them, or kNoSpace: more than can be remembered, and nothing was done.
  virtual Status EraseInAnyGroup(std::span<const BlockKey> keys) = 0;
  // Takes the block away if that can be done now: it is of no use to anybody.
  virtual void Drop(const RedisBlockName& name) = 0;
  // What was stored of the group before, by whatever host, is never found or fetched again, not
  // here and, once they have heard of it, nowhere. Takes effect at once; a server that is away is
  // told when it is back, and nothing of the group is asked from it or given to it before.
  virtual void Forget(const GroupId& group) = 0;
  // The same of all groups, those that nobody has named here yet among them.
  virtual void ForgetAll() = 0;
  virtual SharedErasureMark MarkErasures() const = 0;
  // Every Erase and Forget until the mark was made has been done by the server, or would be known
  // to a successor of this process.
  virtual bool IsDurable(const SharedErasureMark& mark) const = 0;
  // At least once a second: does what is owed.
  virtual void Tick() {}

  // Predicted microseconds until a fetch of `length_bytes` begun now is done. UINT64_MAX: never.
  virtual uint64_t PredictReadUs(uint64_t length_bytes) const = 0;
  virtual SharedTierStats stats() const = 0;

  // The server works now.
  bool is_ready() const { return PredictReadUs(1) != UINT64_MAX; }
};

}  // namespace terrace
