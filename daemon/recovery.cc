#include "daemon/recovery.h"

#include <array>
#include <chrono>
#include <map>
#include <utility>

#include "daemon/group_shelf.h"
#include "daemon/slab_files.h"

namespace terrace {
namespace {

constexpr size_t kAheadRecords = 16;

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
  NvmeTier::RestoreSink Sink();

  const RecoveryOptions& options_;
  RecoverySummary& summary_;
  std::map<GroupId, SpaceGroupSpec> groups_;
};

void Recovery::RestoreGroup(const SpaceGroupSpec& spec) {
  if (!groups_.emplace(spec.Id(), spec).second) return;
  const Status status = options_.store->RestoreGroup(options_.domain_index, spec);
  if (status.ok()) {
    ++summary_.groups;
  } else {
    summary_.notes.push_back("group '" + spec.name +
                             "' is not restored, and its blocks are freed: " + status.what());
  }
}

void Recovery::RestoreGroups() {
  for (const SpaceGroupSpec& spec :
       LoadGroupFiles(options_.groups_directory, options_.secret, &summary_.notes)) {
    RestoreGroup(spec);
  }
}

void Recovery::RestoreGroupsOfCatalog() {
  const Status status = options_.catalog->db()->ForEachGroup([this](std::string_view,
                                                                    std::string_view content) {
    SpaceGroupSpec spec;
    std::string why;
    if (!ParseGroupFile(content, options_.secret, &spec, &why).ok()) return;
    if (groups_.contains(spec.Id())) return;
    summary_.notes.push_back("the file of group '" + spec.name + "' is made anew from the catalog");
    const Status written = WriteGroupFile(options_.groups_directory, spec.Id(), content);
    if (!written.ok()) summary_.notes.push_back(written.what());
    RestoreGroup(spec);
  });
  if (!status.ok()) summary_.notes.push_back(status.what());
}

NvmeTier::RestoreSink Recovery::Sink() {
  return [store = options_.store, domain = options_.domain_index, tier = options_.tier_index](
             const BlockRecord& record, const Extent& extent) {
    return store->RestoreCopy(domain, tier, record, extent);
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
  const NvmeTier::RestoreSink sink = Sink();
  const auto restore_one = [&] {
    const Record& record = queue[out_count++ % kAheadRecords];
    const Status status =
        options_.tier->RestoreEntry(record.name.slab, record.name.slot, record.entry, sink);
    if (!status.ok()) summary_.why = WhyDisproved(record.name, status);
    return status.ok();
  };
  const Status status =
      options_.catalog->db()->ForEachExtent([&](SlotName name, std::span<const std::byte> entry) {
        if (in_count - out_count == kAheadRecords && !restore_one()) return false;
        Record& record = queue[in_count++ % kAheadRecords];
        record.name = name;
        record.entry.assign(entry.begin(), entry.end());
        options_.store->PrefetchCopy(options_.domain_index, ClaimedKey(entry));
        return true;
      });
  if (!status.ok()) summary_.why = status.what();
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
  const Status opened = options_.tier->OpenSlabs(&summary_.notes);
  bool is_believed = false;
  if (options_.catalog != nullptr) {
    is_believed = options_.catalog->Open(&summary_.why);
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
    scanned = options_.tier->Scan(Sink(), [this](const BlockKey& key) {
      options_.store->PrefetchCopy(options_.domain_index, key);
    });
    if (is_believed) options_.catalog->Renew();
    if (options_.catalog != nullptr) RewriteCatalog();
  }
  options_.tier->FinishRestore();
  summary_.counts = options_.tier->restore_counts();
  if (summary_.counts.entries_unread > 0) {
    summary_.notes.push_back(std::to_string(summary_.counts.entries_unread) +
                             " entries of header tables could not be read, and their blocks are "
                             "given up; see whether the drive is failing");
  }
  summary_.restored = options_.store->FinishRestore(options_.domain_index);
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
