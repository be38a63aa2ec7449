#include "daemon/recovery.h"

#include <chrono>
#include <set>
#include <unordered_map>
#include <utility>

#include "daemon/group_shelf.h"
#include "daemon/slab_files.h"

namespace terrace {
namespace {

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
  void ListSlabs();
  NvmeTier::RestoreSink Sink();

  const RecoveryOptions& options_;
  RecoverySummary& summary_;
  std::set<GroupId> groups_;
  std::vector<Catalog::SlabSlots> slabs_;
  std::unordered_map<uint32_t, uint32_t> slot_counts_;  // by slab
};

void Recovery::RestoreGroup(const SpaceGroupSpec& spec) {
  if (!groups_.insert(spec.Id()).second) return;
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

void Recovery::ListSlabs() {
  for (const std::string& directory : options_.slab_directories) {
    for (const SlabFile& file : ListSlabFiles(directory, options_.secret)) {
      if (!file.status.ok()) continue;
      if (!slot_counts_.emplace(file.index, file.geometry.slot_count).second) continue;
      slabs_.push_back({.slab = file.index, .slot_count = file.geometry.slot_count});
    }
  }
}

NvmeTier::RestoreSink Recovery::Sink() {
  return [store = options_.store, domain = options_.domain_index, tier = options_.tier_index](
             const BlockRecord& record, const Extent& extent) {
    return store->RestoreCopy(domain, tier, record, extent);
  };
}

bool Recovery::RestoreFromCatalog() {
  const NvmeTier::RestoreSink sink = Sink();
  const uint64_t corrupt_before = options_.tier->restore_counts().entries_corrupt;
  const Status status =
      options_.catalog->db()->ForEachExtent([&](SlotName name, std::span<const std::byte> entry) {
        const auto slab = slot_counts_.find(name.slab);
        if (slab == slot_counts_.end() || name.slot >= slab->second) {
          summary_.why = "it names slot " + std::to_string(name.slot) + " of slab " +
                         std::to_string(name.slab) + ", which is not there";
          return false;
        }
        options_.tier->RestoreEntry(name.slab, name.slot, entry, sink);
        if (options_.tier->restore_counts().entries_corrupt == corrupt_before) return true;
        summary_.why = "its record of slot " + std::to_string(name.slot) + " of slab " +
                       std::to_string(name.slab) + " is not the entry of that slot";
        return false;
      });
  if (!status.ok()) summary_.why = status.what();
  return summary_.why.empty();
}

Status Recovery::RestoreBlocks() {
  const Status opened = options_.tier->OpenSlabs(&summary_.notes);
  ListSlabs();
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
    scanned = options_.tier->Scan(Sink());
    if (options_.catalog != nullptr) options_.catalog->Rewrite(std::move(slabs_));
  }
  options_.tier->FinishRestore();
  summary_.counts = options_.tier->restore_counts();
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
