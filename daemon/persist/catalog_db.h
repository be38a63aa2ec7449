// CatalogDb: the RocksDB directory of a domain's catalog: what is in it, when it may be believed,
// and how it opens whatever has happened to it. docs/DISK_FORMAT.md has keys and values.
//
// A catalog is believed only after a clean stop, and a clean stop leaves two halves of one word: a
// random number as the last record, and the same in the file `clean` beside the database, with
// digests of the database's files. The file goes before the first change. So neither a flipped bit
// nor a lost end of the log nor an old copy of the directory passes for a catalog that was closed
// in order.
//
// It says what lies in slabs, which are elsewhere, and may be exchanged for others or for an older
// copy. So the word of the clean stop is in each directory of slabs, too; every start puts another
// in its place before anything changes there.
//
// THREADING: one thread at a time. Every call may block.
// LIMITS: memory_bytes bounds block cache and write buffers together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/persist/dirty_slots.h"
#include "terrace/block_key.h"
#include "terrace/status.h"
#include "terrace/units.h"

namespace rocksdb {
class Env;
}

namespace terrace {

inline constexpr uint64_t kCatalogMemoryBytesMin = 4 * kMiB;
inline constexpr uint64_t kCatalogMemoryBytesDefault = 64 * kMiB;
inline constexpr uint32_t kCatalogFormatVersion = 1;
inline constexpr uint64_t kAuditRecordsMax = 10'000;
inline constexpr size_t kAuditRecordBytesMax = 512;
inline constexpr size_t kPriorBytesMax = 64 * kKiB;  // one key and its value

// Changes that arrive together.
struct CatalogChanges {
  struct Extent {
    SlotName name;
    size_t offset_bytes = 0;  // into entry_bytes
    size_t length_bytes = 0;  // 0: the slot holds nothing, the record goes
  };
  struct Record {
    std::string key;
    std::string value;
  };
  bool is_anew = false;  // the records of all extents go first
  std::vector<Extent> extents;
  std::vector<std::byte> entry_bytes;  // of all extents, one after the other
  std::vector<Record> groups;          // key: GroupId in hex; no value: the record goes
  std::vector<Record> priors;
  std::vector<std::string> audit;

  bool is_empty() const {
    return !is_anew && extents.empty() && groups.empty() && priors.empty() && audit.empty();
  }
  void Clear();
};

class CatalogDb {
 public:
  struct Options {
    std::string directory;
    std::vector<std::string> slab_directories;  // what it is a catalog of; none: of nothing on disk
    uint64_t memory_bytes = kCatalogMemoryBytesDefault;
    rocksdb::Env* env = nullptr;  // none: the operating system's
  };
  struct Opened {
    std::unique_ptr<CatalogDb> db;  // nullptr: no catalog can be had here
    bool is_believed = false;       // the table need not be scanned
    bool is_damaged = false;        // OpenToLook: there is one, and it cannot be read
    std::string why;                // it is not believed, or not there
    std::string set_aside;          // where what was here is now; empty: nothing was moved
  };

  // Opens for writing. What is damaged is renamed to `<directory>.old`, what that was before to
  // `<directory>.older`, and an empty catalog takes its place. What cannot be opened just now (a
  // full drive, a read error, no descriptors, somebody else has it open) stays as it is. From here
  // on the next Open is unbelieved unless CloseClean is reached.
  static Opened Open(const Options& options);
  // For looking only: changes nothing on disk. `db` takes no changes.
  static Opened OpenToLook(const Options& options);
  ~CatalogDb();  // as after kill -9

  // It opened and could be read. Until this is said, the next Open moves it away unseen: a catalog
  // that ends the process that reads it does so once.
  Status MarkProven();
  // All or nothing. kBusy: it cannot keep up, try again later. kIo, kCorrupt: it failed; do nothing
  // but close it.
  Status Apply(const CatalogChanges& changes);
  // What has been applied is on the drive. A failure is as of Apply.
  Status Sync();
  // Syncs, closes, and marks the catalog as complete.
  Status CloseClean();

  // In order of slab and slot, until `visit` says false. kCorrupt: not all could be read. The entry
  // is valid during the call.
  using ExtentVisitor = std::function<bool(SlotName name, std::span<const std::byte> entry)>;
  Status ForEachExtent(const ExtentVisitor& visit) const;
  // The record of one slot. kNotFound: there is none.
  Status GetExtent(SlotName name, std::string* entry) const;
  using RecordVisitor = std::function<void(std::string_view key, std::string_view value)>;
  Status ForEachGroup(const RecordVisitor& visit) const;
  // Oldest first; keys are numbers that only grow.
  Status ForEachAudit(const RecordVisitor& visit) const;
  Result<std::string> GetPrior(std::string_view key) const;

  // Held by caches and write buffers now.
  uint64_t memory_bytes_used() const;

 private:
  struct State;
  explicit CatalogDb(std::unique_ptr<State> state);
  static Status MoveAside(const std::string& directory);
  static void TakeItsPlace(const Options& options, Opened* opened);
  Status ForEachRecord(char kind, const RecordVisitor& visit) const;
  static Status TryOpen(const Options& options, std::unique_ptr<CatalogDb>* db, std::string* why);
  std::unique_ptr<State> state_;
};

}  // namespace terrace
