#include "tiers/nvme/slab_restore.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "terrace/check.h"
#include "tiers/nvme/entry_writer.h"
#include "tiers/nvme/erasure_log.h"
#include "tiers/nvme/left_entries.h"
#include "tiers/nvme/shape_classes.h"

namespace terrace {
namespace {

constexpr uint32_t kClearAttemptsMax = 3;

// The number in slab-<number>.terrace.
std::optional<uint32_t> SlabIndexOf(std::string_view name) {
  constexpr std::string_view kPrefix = "slab-";
  constexpr std::string_view kSuffix = ".terrace";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(std::min(kSuffix.size(), name.size()));
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool is_whole = error == std::errc{} && end == name.data() + name.size();
  if (!is_whole || index > kSlabIndexMax || std::to_string(index) != name) return std::nullopt;
  return index;
}

uint64_t FingerprintOf(const SlabEntry& entry) {
  uint64_t mixed = entry.key.low ^ (entry.key.high * 0x9E3779B97F4A7C15);
  mixed ^= (entry.group.low + entry.member) * 0xD6E8FEB86659FD93;
  mixed ^= mixed >> 32;
  return mixed * 0xD6E8FEB86659FD93;
}

BlockRecord RecordOf(const SlabEntry& entry, uint32_t domain_index) {
  BlockRecord record{entry};
  record.domain_index = domain_index;
  record.epoch = entry.epoch;
  record.part_checksums = entry.part_checksums;
  return record;
}

bool IsAllZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

// A file of a slab's name.
struct SlabRestore::Found {
  DiskFile file = kDiskFileNone;
  uint64_t length_bytes = 0;
  std::optional<SlabSuperblock> superblock;  // none: its maker died before it held anything
};

struct SlabRestore::UsedEntry {
  uint64_t fingerprint = 0;  // of group, key and member
  uint64_t epoch = 0;
  uint64_t place = 0;
};

SlabRestore::SlabRestore(const Options& options, const Neighbours& neighbours)
    : options_(options),
      disks_(neighbours.disks),
      slabs_(neighbours.slabs),
      classes_(neighbours.classes),
      entries_(neighbours.entries),
      erasures_(neighbours.erasures),
      left_(neighbours.left) {}

// ---- slabs ----

Status SlabRestore::OpenSlabs(std::vector<std::string>* notes) {
  Status worst;
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    const Status opened = OpenSlabsOf(disk, notes);
    if (opened.ok()) continue;
    worst = opened;
    unlisted_disks_.push_back(disk);
  }
  RetireAboveCapacity(notes);
  return worst;
}

Status SlabRestore::OpenSlabsOf(uint32_t disk, std::vector<std::string>* notes) {
  std::vector<std::string> names;
  TERRACE_RETURN_IF_ERROR(disks_.disk(disk).ListNow(&names));
  std::ranges::sort(names);
  for (const std::string& name : names) {
    const std::optional<uint32_t> index = SlabIndexOf(name);
    if (!index) continue;
    Found found;
    if (const std::string why = Open(disk, name, *index, &found); !why.empty()) {
      slabs_.LeaveAlone(*index, disk, found.length_bytes);
      left_files_.push_back(disks_.disk(disk).directory() + "/" + name);
      ++counts_.slabs_left;
      notes->push_back("slab file " + name + " on disk " + std::to_string(disk) +
                       " is left alone: " + why);
      continue;
    }
    AddSlab(disk, *index, found);
    if (!found.superblock) {
      notes->push_back("slab file " + name + " was never finished and is removed");
    }
  }
  return Status::Ok();
}

std::string SlabRestore::Open(uint32_t disk, const std::string& name, uint32_t index,
                              Found* found) {
  Disk& the_disk = disks_.disk(disk);
  if (const Status status = the_disk.OpenNow(name, &found->file, &found->length_bytes);
      !status.ok()) {
    counts_.slabs_unopened += status.code() == StatusCode::kNoSpace;
    return std::string("it cannot be opened: ") + status.what();
  }
  if (slabs_.At(index) != nullptr) {
    return "another disk has a slab of this number; remove one of them";
  }
  if (options_.outdated_files.contains(the_disk.directory() + "/" + name)) {
    return "something was erased while it could not be read, nor could it be when it was to be "
           "removed for that; the next start that can read it removes it";
  }
  if (found->length_bytes < kSlabSectorBytes) return {};  // not even a superblock: unfinished
  std::vector<std::byte> sector(kSlabSectorBytes);
  const Status status = the_disk.ReadNow(found->file, 0, sector);
  if (status.ok() && IsAllZero(sector)) return {};
  const Result<SlabSuperblock> superblock =
      status.ok() ? DecodeSuperblock(sector, options_.secret) : Result<SlabSuperblock>(status);
  if (!superblock.ok()) {
    return std::string(superblock.status().what()) +
           ". If all slabs are, secret_file is not the one that they were written under. Remove it "
           "only if nobody needs it";
  }
  if (superblock->slab_index != index) {
    return "it is slab " + std::to_string(superblock->slab_index) + ", renamed";
  }
  if (superblock->slab_bytes > found->length_bytes) {
    return "it has " + std::to_string(found->length_bytes) + " bytes of " +
           std::to_string(superblock->slab_bytes);
  }
  found->superblock = *superblock;
  return {};
}

void SlabRestore::AddSlab(uint32_t disk, uint32_t index, const Found& found) {
  if (!found.superblock) {
    slabs_.Add(index, disk, found.file, found.length_bytes).phase = SlabPhase::kRemoving;
    return;
  }
  const SlabSuperblock& superblock = *found.superblock;
  NvmeSlab& slab = slabs_.Add(index, disk, found.file, superblock.slab_bytes);
  slab.TakeShape(SlabGeometry::Of(superblock.shape, superblock.slab_bytes).value(),
                 superblock.uuid);
  slab.phase = SlabPhase::kRestoring;
  slabs_.Publish(slab);
  ++counts_.slabs;
}

// The cap is hard: what is above it goes, from the highest number down.
void SlabRestore::RetireAboveCapacity(std::vector<std::string>* notes) {
  uint64_t total_bytes = slabs_.file_bytes_total();
  for (size_t index = slabs_.all().size(); index-- > 0 && total_bytes > options_.capacity_bytes;) {
    NvmeSlab* const slab = slabs_.At(static_cast<uint32_t>(index));
    if (slab == nullptr) continue;
    total_bytes -= slab->geometry.slab_bytes;
    if (slab->phase != SlabPhase::kRestoring) continue;
    slab->phase = SlabPhase::kRetiring;
    notes->push_back("slab " + std::to_string(index) +
                     " is emptied and removed: the slabs take more than the " +
                     std::to_string(options_.capacity_bytes) + " bytes that are configured");
  }
}

// ---- entries ----

TableReader SlabRestore::ReaderOf(const NvmeSlab& slab) const {
  return {disks_.disk(slab.disk),
          {.disk = slab.disk, .file = slab.file, .geometry = slab.geometry, .uuid = slab.uuid},
          options_.secret};
}

// What memory keeps of an entry, whoever owns it later.
void SlabRestore::NoteEntry(NvmeSlab& slab, uint32_t slot, Status status, const SlabEntry& entry) {
  if (status.code() == StatusCode::kNotFound) return;
  if (status.ok()) entries_.RaiseEpoch(entry.epoch);
  // The catalog has given it already: to a block, whose bytes are verified when they are read.
  if (slab.slots[slot].state != SlabSlotState::kFree) return;
  if (!status.ok()) {
    ++counts_.entries_corrupt;
    if (status.code() == StatusCode::kIo) {
      ++counts_.entries_unread;
      slab.NoteUnread(slot);
    }
  } else {
    slab.slots.RestoreGeneration(slot, entry.generation);
    if (entry.state != SlabEntryState::kQuarantined) return;
  }
  slab.slots.SetState(slot, SlabSlotState::kQuarantined);
}

void SlabRestore::RestoreUsed(NvmeSlab& slab, const SlabEntry& entry, bool is_wanted,
                              const Sink& sink) {
  slab.slots.SetState(entry.slot, SlabSlotState::kUsed);
  slab.slots.SetFlags(entry.slot, kEntryNamed, 0);
  const Extent extent{.position = entry.slot,
                      .length_bytes = entry.length_bytes,
                      .shard = slab.index,
                      .generation = entry.generation};
  uint32_t owner = kOwnerNone;
  is_wanted &= slab.phase == SlabPhase::kRestoring;
  if (is_wanted && !entry.seal && options_.encryption.is_on() &&
      !options_.encryption.is_plain_served) {
    ++counts_.entries_plain;
    is_wanted = false;
  }
  if (is_wanted && entry.seal) {
    const Status found = FindCipher(slab, entry);
    if (found.code() == StatusCode::kNotFound) return Leave(slab, entry, /*is_locked=*/true);
    is_wanted = found.ok();
    counts_.entries_dead += found.ok() ? 0 : 1;
  }
  if (is_wanted) {
    owner = sink(RecordOf(entry, options_.domain_index), extent);
  }
  if (owner == kOwnerNone) return Discard(slab, entry.slot);
  if (owner == kOwnerUnknown) return Leave(slab, entry, /*is_locked=*/false);
  slab.slots.SetOwner(entry.slot, owner);
  ++counts_.entries_kept;
}

Status SlabRestore::FindCipher(NvmeSlab& slab, const SlabEntry& entry) {
  const Status locked(StatusCode::kNotFound, "nobody has the key");
  if (!options_.encryption.is_on()) return locked;
  std::shared_ptr<const GroupKey> key = options_.encryption.keys->Find(entry.group);
  if (key == nullptr) return locked;
  if (key->id() != entry.seal->key_id) {
    return Status(StatusCode::kGone, "the group has another key since");
  }
  slab.SetCipher(entry.slot, {.key = std::move(key),
                              .name = NamePayload(entry, entry.length_bytes, entry.part_checksums),
                              .seal = *entry.seal});
  return Status::Ok();
}

// It stays, its slot out of use.
void SlabRestore::Leave(NvmeSlab& slab, const SlabEntry& entry, bool is_locked) {
  slab.slots.SetState(entry.slot, SlabSlotState::kQuarantined);
  ++(is_locked ? counts_.entries_locked : counts_.entries_left);
  left_.Add(slab, entry, is_locked);
}

void SlabRestore::Discard(NvmeSlab& slab, uint32_t slot) {
  slab.slots.EndGeneration(slot);
  erasures_.Begin(slab, slot);
  classes_.Erase(slab, slot);
  entries_.MarkDirty(slab, slot);
}

// Places of used entries that a later write of the same key has overtaken. 24 bytes an entry are
// kept meanwhile, not the entries.
std::unordered_set<uint64_t> SlabRestore::NoteAll() {
  std::vector<UsedEntry> used;
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || !slab->is_readable()) continue;
    ReaderOf(*slab).VisitAll([&](uint32_t slot, Status status, const SlabEntry& entry) {
      NoteEntry(*slab, slot, status, entry);
      if (!status.ok() || entry.state != SlabEntryState::kUsed) return;
      used.push_back({FingerprintOf(entry), entry.epoch, PlaceOf(slab->index, slot)});
    });
  }
  counts_.entries_used += used.size();
  std::ranges::sort(used, [](const UsedEntry& a, const UsedEntry& b) {
    return a.fingerprint != b.fingerprint ? a.fingerprint < b.fingerprint : a.epoch > b.epoch;
  });
  std::unordered_set<uint64_t> losers;
  for (size_t i = 1; i < used.size(); ++i) {
    if (used[i].fingerprint == used[i - 1].fingerprint) losers.insert(used[i].place);
  }
  return losers;
}

// Two passes: who wrote a key last is known when all tables have been read. What only the first
// could read is as unknown as what neither could.
Status SlabRestore::Scan(const Sink& sink, const Ahead& ahead) {
  const std::unordered_set<uint64_t> losers = NoteAll();
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || !slab->is_readable()) continue;
    const auto visit = [&](uint32_t slot, Status status, const SlabEntry& entry) {
      if (slab->slots[slot].state != SlabSlotState::kFree) return;  // it has had its answer
      if (!status.ok()) return NoteEntry(*slab, slot, status, entry);
      if (entry.state != SlabEntryState::kUsed) return;
      RestoreUsed(*slab, entry, !losers.contains(PlaceOf(slab->index, slot)), sink);
    };
    ReaderOf(*slab).VisitAll(visit, ahead);
  }
  return Status::Ok();
}

Status SlabRestore::RestoreEntry(uint32_t slab_index, uint32_t slot,
                                 std::span<const std::byte> bytes, const Sink& sink) {
  NvmeSlab* const slab = slabs_.At(slab_index);
  if (slab == nullptr || !slab->is_readable() || slot >= slab->slots.count()) {
    return Status(StatusCode::kNotFound, "no such slot");
  }
  if (slab->slots[slot].state != SlabSlotState::kFree) return Status::Ok();
  SlabEntry entry;
  const Status status =
      DecodeEntry(slab->geometry, slab->uuid, slot, bytes, options_.secret, &entry);
  if (!status.ok() && !ReaderOf(*slab).Has(slot, bytes)) {
    return Status(StatusCode::kCorrupt, "not the entry of that slot");
  }
  NoteEntry(*slab, slot, status, entry);
  if (!status.ok() || entry.state != SlabEntryState::kUsed) return Status::Ok();
  ++counts_.entries_used;
  RestoreUsed(*slab, entry, /*is_wanted=*/true, sink);
  return Status::Ok();
}

void SlabRestore::Finish() {
  left_.EndRestore();
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || !slab->is_readable()) continue;
    slab->slots.RaiseUnseenGenerations();
    // One that is retiring goes instead, and until it has gone its erasures have not ended.
    if (slab->unread_sectors.size() <= kUnreadSectorsMax) {
      slab->clear_attempts_left = kClearAttemptsMax;
    }
    if (slab->phase != SlabPhase::kRestoring) continue;
    classes_.AddFound(slab->geometry);
    classes_.Open(*slab);
  }
  // What the last daemon wrote may still be in the page cache alone, its erasures among it: until
  // the slabs have been synced once, a loss of power may bring back what it had freed.
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || !slab->is_readable() || erasures_.IsInherited(*slab)) continue;
    slab->unsynced.Require();
    erasures_.BeginInherited(*slab);
  }
}

}  // namespace terrace
