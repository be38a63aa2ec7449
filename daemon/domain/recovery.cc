#include "daemon/domain/recovery.h"

#include <array>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "daemon/persist/group_files.h"
#include "daemon/persist/slab_files.h"

namespace terrace {
namespace {

constexpr size_t kAheadRecords = 16;
constexpr size_t kLeftGroupsNamedMax = 8;  // in one sentence

std::string WhyDisproved(SlotName name, Status status) {
  return "its record of slot " + std::to_string(name.slot) + " of slab " +
         std::to_string(name.slab) +
         (status.code() == StatusCode::kNotFound ? " names a place that is not there"
                                                 : " is not the entry of that slot");
}

class Recovery {
 public:
  Recovery(const RecoveryOptions& options, RecoverySummary* summary)
      : options_(options), summary_(*summary) {}

  void RestoreGroups();
  Status RestoreBlocks();

 private:
  void RestoreGroup(const SpaceGroupSpec& spec);
  void RestoreGroupsOfCatalog();
  // True if every record named a whole entry.
  bool RestoreFromCatalog();
  void RewriteCatalog();
  SlabRestore::Sink Sink();
  void SayWhatIsLeft();

  const RecoveryOptions& options_;
  RecoverySummary& summary_;
  std::map<GroupId, SpaceGroupSpec> groups_;
  std::set<GroupId> known_;       // restored
  std::set<GroupId> superseded_;  // by another of their name
  std::set<GroupId> left_;        // some of those with blocks and without a file
  GroupId last_group_;
  bool is_last_left_ = false;
  bool is_disproved_ = false;  // the catalog says what is not so
};

void Recovery::RestoreGroup(const SpaceGroupSpec& spec) {
  if (!groups_.emplace(spec.Id(), spec).second) return;
  const Status status = options_.restoration->RestoreGroup(options_.domain_index, spec);
  if (status.ok()) {
    ++summary_.groups;
    known_.insert(spec.Id());
  } else if (status.code() == StatusCode::kNoSpace) {
    ++summary_.groups_refused;
  } else {
    // The group of that name that was opened last is the one in use.
    if (status.code() == StatusCode::kExists) superseded_.insert(spec.Id());
    summary_.notes.push_back("group '" + spec.name + "' is not restored, and its blocks are " +
                             (status.code() == StatusCode::kExists ? "freed: " : "left: ") +
                             status.what());
  }
}

// The first path's drive may be new, or one that was away for a while.
void Recovery::RestoreGroups() {
  std::vector<std::string> directories{options_.groups_directory};
  directories.insert(directories.end(), options_.other_groups_directories.begin(),
                     options_.other_groups_directories.end());
  const std::vector<FoundGroup> found =
      FindGroupFiles(directories, options_.secret, &summary_.notes);
  std::set<GroupId> in_first;
  for (const FoundGroup& group : found) {
    if (group.directory == options_.groups_directory) in_first.insert(group.spec.Id());
    RestoreGroup(group.spec);
  }
  for (const FoundGroup& group : found) {
    const GroupId id = group.spec.Id();
    if (!known_.contains(id) || !in_first.insert(id).second) continue;
    const Status written = WriteGroupFile(options_.groups_directory, group.spec, options_.secret);
    summary_.notes.push_back("the file of group '" + group.spec.name + "' is copied from " +
                             group.directory +
                             (written.ok() ? "" : std::string(", in vain: ") + written.what()));
  }
}

void Recovery::SayWhatIsLeft() {
  if (summary_.groups_refused > 0) {
    summary_.notes.push_back(
        std::to_string(summary_.groups_refused) + " groups are not restored beside " +
        std::to_string(summary_.groups) +
        ", the limit is groups_max: raise it and start again to have their blocks back");
  }
  if (summary_.counts.entries_left == 0) return;
  std::string names;
  for (const GroupId& id : left_) names += (names.empty() ? "" : ", ") + ToHex(id);
  summary_.notes.push_back(
      std::to_string(summary_.counts.entries_left) +
      " copies are left on disk, out of use, because no file says what their groups are (" + names +
      "): bring those files, or the path that they lay on, back to " + options_.groups_directory +
      " and start again; or, if nobody needs them, free them with `terrace fsck --repair "
      "--free-unknown-groups`");
}

void Recovery::RestoreGroupsOfCatalog() {
  const Status status = options_.catalog->db()->ForEachGroup([this](std::string_view,
                                                                    std::string_view content) {
    SpaceGroupSpec spec;
    std::string why;
    if (!ParseGroupFile(content, options_.secret, &spec, &why).ok()) return;
    if (groups_.contains(spec.Id())) return;
    RestoreGroup(spec);
    if (!known_.contains(spec.Id())) return;
    summary_.notes.push_back("the file of group '" + spec.name + "' is made anew from the catalog");
    const Status written = WriteGroupFile(options_.groups_directory, spec, options_.secret);
    if (!written.ok()) summary_.notes.push_back(written.what());
  });
  if (!status.ok()) summary_.notes.push_back(status.what());
}

SlabRestore::Sink Recovery::Sink() {
  return [this](const BlockRecord& record, const Extent& extent) {
    // Entries of one group come together, mostly.
    if (record.group != last_group_) {
      last_group_ = record.group;
      is_last_left_ = !known_.contains(record.group) && !superseded_.contains(record.group);
    }
    if (is_last_left_) {
      if (left_.size() < kLeftGroupsNamedMax) left_.insert(record.group);
      return kOwnerUnknown;
    }
    return options_.restoration->RestoreCopy(options_.domain_index, options_.tier_index, record,
                                             extent);
  };
}

// Records pass through a short queue, so that the store knows their keys ahead.
bool Recovery::RestoreFromCatalog() {
  struct Record {
    SlotName name;
    std::vector<std::byte> entry;
  };
  std::array<Record, kAheadRecords> queue;
  uint64_t in_count = 0, out_count = 0;
  const SlabRestore::Sink sink = Sink();
  const auto restore_one = [&] {
    const Record& record = queue[out_count++ % kAheadRecords];
    const Status status = options_.tier->restore().RestoreEntry(record.name.slab, record.name.slot,
                                                                record.entry, sink);
    if (status.ok()) return true;
    summary_.why = WhyDisproved(record.name, status);
    // Of a path that is not there, or a slab that is gone, it is right about all others.
    is_disproved_ = status.code() != StatusCode::kNotFound;
    return false;
  };
  const Status status =
      options_.catalog->db()->ForEachExtent([&](SlotName name, std::span<const std::byte> entry) {
        if (in_count - out_count == kAheadRecords && !restore_one()) return false;
        Record& record = queue[in_count++ % kAheadRecords];
        record.name = name;
        record.entry.assign(entry.begin(), entry.end());
        options_.restoration->PrefetchCopy(options_.domain_index, ClaimedKey(entry));
        return true;
      });
  if (!status.ok()) summary_.why = status.what();
  is_disproved_ = is_disproved_ || status.code() == StatusCode::kCorrupt;
  while (summary_.why.empty() && out_count < in_count) restore_one();
  return summary_.why.empty();
}

// Behind READY the catalog takes over what the tables say.
void Recovery::RewriteCatalog() {
  std::vector<Catalog::SlabSlots> slabs;
  for (const std::string& directory : options_.slab_directories) {
    for (const SlabFile& file : ListSlabFiles(directory, options_.secret)) {
      if (!file.status.ok()) continue;
      slabs.push_back({.slab = file.index, .slot_count = file.geometry.slot_count});
    }
  }
  for (const auto& [id, spec] : groups_) {
    options_.catalog->KeepGroup(id, FormatGroupFile(spec, options_.secret));
  }
  options_.catalog->Rewrite(std::move(slabs));
}

Status Recovery::RestoreBlocks() {
  const Status opened = options_.tier->restore().OpenSlabs(&summary_.notes);
  bool is_believed = false;
  if (options_.catalog != nullptr) {
    is_believed = options_.catalog->Open(&summary_.why);
    // Another start may find them whole: the right secret, a drive that is read again.
    if (!opened.ok() || options_.tier->restore().counts().slabs_left > 0) {
      options_.catalog->LeavePartial();
    }
    if (options_.catalog->db() != nullptr) RestoreGroupsOfCatalog();
  } else {
    summary_.why = "there is no catalog";
  }
  Status scanned;
  if (is_believed && RestoreFromCatalog()) {
    summary_.source = RecoverySource::kCatalog;
  } else {
    // What the catalog has given so far is kept: each of its records was a whole entry.
    summary_.source = RecoverySource::kTables;
    scanned = options_.tier->restore().Scan(Sink(), [this](const BlockKey& key) {
      options_.restoration->PrefetchCopy(options_.domain_index, key);
    });
    if (is_disproved_) options_.catalog->Renew(summary_.why);
    if (options_.catalog != nullptr) RewriteCatalog();
  }
  options_.tier->restore().Finish();
  summary_.counts = options_.tier->restore().counts();
  if (summary_.counts.entries_unread > 0) {
    summary_.notes.push_back(std::to_string(summary_.counts.entries_unread) +
                             " entries of header tables could not be read, and their blocks are "
                             "given up; see whether the drive is failing");
  }
  SayWhatIsLeft();
  summary_.restored = options_.restoration->FinishRestore(options_.domain_index);
  return opened.ok() ? scanned : opened;
}

}  // namespace

const char* RecoverySourceName(RecoverySource source) {
  switch (source) {
    case RecoverySource::kNone:
      return "none";
    case RecoverySource::kCatalog:
      return "catalog";
    case RecoverySource::kTables:
      return "tables";
  }
  return "unknown";
}

Status RestoreDomain(const RecoveryOptions& options, RecoverySummary* summary) {
  const auto begin = std::chrono::steady_clock::now();
  Recovery recovery(options, summary);
  recovery.RestoreGroups();
  const Status status = options.tier != nullptr ? recovery.RestoreBlocks() : Status::Ok();
  summary->duration_us =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::steady_clock::now() - begin)
                                .count());
  return status;
}

}  // namespace terrace
