// Catalog: RocksDB's copy of what the header tables say, so that a start need not read the tables;
// beside it what has no place in a table: groups, learned priors, an audit of erasures.
//
// It is derived. The store thread only names slots whose entries changed; the catalog's own thread
// reads those entries back from the table and puts or deletes them, whatever they say by then. So a
// write stall costs time and no memory, and nobody waits. When the database fails for long the
// catalog switches itself off: entries alone then make blocks persisted, and the next start scans.
// It tries to come back now and then, and asks for a Rewrite when it has.
//
// THREADING: one thread of its own between Start and StopClean. OnEntryWritten and TakeAnswers on
// the store thread; Rewrite, Keep… and stats on any; none waits for the database. db() before
// Start.
// OWNERSHIP: what the callables of Start reach outlives the catalog's thread.
// LIMITS: waiting changes: one a slot, kRecordsWaitingMax other records. Options::memory_bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/persist/catalog_db.h"
#include "daemon/persist/dirty_slots.h"
#include "terrace/status.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {

inline constexpr size_t kRecordsWaitingMax = 4096;  // groups, priors and audit lines; more are lost

struct CatalogStats {
  bool is_on = false;        // false: entries alone make blocks persisted
  bool is_complete = false;  // false: a record may be missing, the next start scans
  bool is_rewriting = false;
  uint64_t slots_waiting = 0;
  uint64_t puts = 0, deletes = 0, batches = 0;
  uint64_t stalls = 0;        // batches that had to wait for the database
  uint64_t records_lost = 0;  // groups, priors and audit lines beyond kRecordsWaitingMax
  uint64_t memory_bytes = 0;
};

class Catalog final : public ExtentCatalog {
 public:
  struct Options {
    CatalogDb::Options db;
    uint32_t batch_slots_max = 1024;
    uint64_t gather_us = 10'000;  // how long the first slot of a batch waits for others
    uint64_t sync_interval_us = 1'000'000;
    uint32_t reopen_attempts_max = 3;
    uint64_t reopen_interval_us = 1'000'000;
    // Once it is off: the first time, and twice as long after each failure, up to the last.
    uint64_t retry_first_us = 5'000'000;
    uint64_t retry_max_us = 60'000'000;
  };
  // How its thread meets the world.
  struct Links {
    // NvmeTier::ReadEntryNow.
    std::function<Status(uint32_t slab, uint32_t slot, std::vector<std::byte>* entry)> read_entry;
    // Records are in, or the catalog is off: posts a call of TakeAnswers to the store thread.
    // Called on the catalog's thread, or inside OnEntryWritten and Start; not again before
    // TakeAnswers has emptied what there is.
    std::function<void()> has_answers;
    // Something a person should read, at most once for the same thing.
    std::function<void(const std::string& sentence)> trouble;
    // It was off and works again, with extents of before: posts a call of Rewrite to the store
    // thread. Called on the catalog's thread.
    std::function<void()> is_back = nullptr;
  };
  // The slots of one slab, for Rewrite.
  struct SlabSlots {
    uint32_t slab = 0;
    uint32_t slot_count = 0;
  };

  explicit Catalog(Options options);
  ~Catalog() override;  // as after kill -9, unless StopClean came first

  // Blocking. True: every extent is in it, and the table need not be scanned. `*why` otherwise.
  bool Open(std::string* why);
  // After Open: an empty catalog takes its place, because what it holds turned out to be wrong.
  void Renew(std::string why);
  // After Open: there are slabs that it cannot know. It is written all the same, and the next start
  // scans.
  void LeavePartial();
  // What it holds; nullptr if it could not be opened. Not after Start.
  const CatalogDb* db() const;
  void Start(Links links);

  void OnEntryWritten(uint32_t slab, uint32_t slot) override;
  uint64_t memory_bytes() const override { return stats().memory_bytes; }
  std::string trouble() const override;
  // Appends some slots for NvmeTier::OnCataloged: none that has been named again since. True if
  // there are more: post another call.
  bool TakeAnswers(std::vector<SlotName>* slots);
  // After a scan: forgets all extents and reads every slot again, behind what changes meanwhile.
  void Rewrite(std::vector<SlabSlots> slabs);
  // For whoever compares: the slots' entries as the table has them, and their records. On the
  // catalog's thread, between batches; `done` is called there. False: there is no such thread, or
  // another look is under way.
  struct Looked {
    SlotName name;
    Status status;                 // of the entry, as NvmeTier::ReadEntryNow says
    std::vector<std::byte> entry;  // as the table has it
    bool has_record = false;
    bool is_same = false;  // the record is the entry, byte for byte
  };
  struct Look {
    std::vector<Looked> slots;
    bool has_records = false;  // false: the catalog is off or being written anew
  };
  bool LookUp(std::vector<SlotName> names, std::function<void(Look look)> done);
  // The newest lines of the audit that are written, the last one first. As LookUp; false as well
  // while the catalog is off.
  bool ReadAudit(size_t lines_max, std::function<void(std::vector<std::string> lines)> done);
  void KeepGroup(const GroupId& id, std::string content);  // of no content: forgets it
  void KeepPrior(std::string key, std::string value);
  void KeepAudit(std::string line);

  // Catches up, marks the catalog complete, and ends the thread. kBusy: not by then; kGone: it is
  // off or incomplete. Either way no mark is left and the next start scans.
  Status StopClean(uint64_t timeout_us);
  // Ends the thread as after kill -9. False if it has not ended by then: something it waits for
  // hangs, and neither the catalog nor what its callables reach can be destroyed.
  bool Abandon(uint64_t timeout_us);
  CatalogStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
