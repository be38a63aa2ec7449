// Fsck: what a stopped domain left on its drives, held against itself: header tables, groups and
// catalog must agree, and on demand every payload must verify. Repair gives back slots whose
// entries are of no use, and writes the catalog anew from the tables.
//
// It looks with the daemon's own readers, under the daemon's own lock. Whatever it finds, the
// daemon would have found too, and taken for a miss: repair brings back room, not bytes.
//
// THREADING: one thread; blocks. LIMITS: 32 bytes a slot; problems_listed_max.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/status.h"

namespace terrace {

enum class FsckPayloads : uint8_t { kLeave, kVerify };
enum class FsckMode : uint8_t { kLook, kRepair };
// What repair does with entries of groups that have no file: they may be whole, and the file come
// back.
enum class FsckUnknownGroups : uint8_t { kLeave, kFree };

struct FsckOptions {
  DomainSecret secret{};
  std::vector<std::string> directories;  // the domain's, one a drive; the first has the catalog
  FsckPayloads payloads = FsckPayloads::kLeave;
  FsckMode mode = FsckMode::kLook;
  FsckUnknownGroups unknown_groups = FsckUnknownGroups::kLeave;
  uint64_t problems_listed_max = 1000;  // more are counted only
  // Now and then while payloads are verified.
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
};

enum class FsckProblemKind : uint8_t {
  kSlabUnreadable,     // the daemon leaves the file alone
  kTableUnreadable,    // part of a table cannot be read
  kEntryCorrupt,       // not an entry: its slot is not used
  kEntryQuarantined,   // the slot's bytes did not verify once: it is not used
  kEntryUnknownGroup,  // its group has no file: nobody knows what its bytes mean
  kEntryUnfit,         // not what its group says of its member
  kPayloadMismatch,    // the bytes do not verify
  kPayloadUnreadable,
  kGroupUnreadable,
  kCatalogDamaged,
  kCatalogDiffers,  // its record of a slot is not the table's entry
  kCatalogLacks,    // it has no record of a slot in use
  kCatalogStray,    // it has a record of a slot not in use
  // Found beside a running daemon only (online_fsck.h).
  kEntryDiffers,  // of another block than the daemon has there
  kEntryStray,    // of a block where the daemon has none
  kEntryLacks,    // free where the daemon has a block
};
inline constexpr size_t kFsckProblemKinds = 16;
const char* FsckProblemName(FsckProblemKind kind);  // "entry_corrupt"
// What to do about that many entries of groups without a file, for a person.
std::string UnknownGroupsNote(uint64_t entry_count);

struct FsckProblem {
  FsckProblemKind kind = FsckProblemKind::kSlabUnreadable;
  std::string what;  // a sentence that names file and slot
  bool is_repaired = false;
  uint64_t count = 1;  // of problems that the sentence tells of
};

struct FsckSlab {
  std::string path;
  uint64_t slot_bytes = 0;
  uint32_t part_count = 0;
  uint64_t slots = 0, used = 0, quarantined = 0, corrupt = 0;
};

enum class FsckCatalog : uint8_t {
  kNone,    // the next start reads the tables, and writes one
  kOpen,    // likewise: it was not closed by a clean stop
  kClosed,  // the next start believes it
  kDamaged,
  kRewritten,  // by repair; believed
  kInUse,      // by a running daemon
};
const char* FsckCatalogName(FsckCatalog catalog);

struct FsckReport {
  std::vector<FsckSlab> slabs;
  FsckCatalog catalog = FsckCatalog::kNone;
  uint64_t groups = 0;
  uint64_t entries_used = 0;
  uint64_t entries_outdated = 0;  // of the used: a later entry has the same block
  uint64_t catalog_records = 0;   // of the closed catalog
  uint64_t payloads_verified = 0, payload_bytes_verified = 0;
  uint64_t payloads_encrypted = 0;  // of those, not verified: `fsck --online` asks who has the key
  std::array<uint64_t, kFsckProblemKinds> counts{};  // of problems, by kind
  std::vector<FsckProblem> problems;
  uint64_t repaired = 0;
  std::vector<std::string> notes;  // worth knowing, and no problem

  uint64_t problem_count() const;
};

// kOk: it looked, whatever it found. Otherwise it could not, and `*why` is a sentence: kBusy (a
// process, named, uses the domain), kNotFound (no such directory), kInvalid (repair would leave
// files of another owner), kIo.
Status RunFsck(const FsckOptions& options, FsckReport* report, std::string* why);

}  // namespace terrace
