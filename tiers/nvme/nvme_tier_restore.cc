// Restoring: what the tables say a predecessor stored. Payloads are not read; who reads a block
// verifies it.
#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "terrace/check.h"
#include "tiers/nvme/nvme_tier_state.h"

namespace terrace {
namespace {

constexpr uint64_t kTableReadBytes = 4 * kMiB;
constexpr uint64_t kAheadSlots = 12;  // a few hundred nanoseconds of work

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

}  // namespace

Status NvmeTier::State::OpenSlabsOf(uint32_t disk, std::vector<std::string>* notes) {
  std::vector<std::string> names;
  TERRACE_RETURN_IF_ERROR(disks[disk].disk->ListNow(&names));
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (const std::optional<uint32_t> index = SlabIndexOf(name)) {
      OpenSlab(disk, name, *index, notes);
    }
  }
  return Status::Ok();
}

void NvmeTier::State::OpenSlab(uint32_t disk, const std::string& name, uint32_t index,
                               std::vector<std::string>* notes) {
  DiskFile file = kDiskFileNone;
  uint64_t length_bytes = 0;
  const auto leave_alone = [&](const std::string& why) {
    foreign_indices.insert(index);
    disks[disk].slab_bytes += length_bytes;
    notes->push_back("slab file " + name + " on disk " + std::to_string(disk) +
                     " is left alone: " + why);
  };
  if (const Status status = disks[disk].disk->OpenNow(name, &file, &length_bytes); !status.ok()) {
    return leave_alone(std::string("it cannot be opened: ") + status.what());
  }
  if (SlabAt(index) != nullptr) {
    return leave_alone("another disk has a slab of this number; remove one of them");
  }
  std::vector<std::byte> sector(kSlabSectorBytes);
  Status status = length_bytes < kSlabSectorBytes
                      ? Status(StatusCode::kCorrupt, "it is shorter than a superblock")
                      : disks[disk].disk->ReadNow(file, 0, sector);
  const bool is_unfinished =
      length_bytes < kSlabSectorBytes ||
      (status.ok() && std::ranges::all_of(sector, [](std::byte b) { return b == std::byte{0}; }));
  const Result<SlabSuperblock> superblock =
      status.ok() ? DecodeSuperblock(sector, options.secret) : Result<SlabSuperblock>(status);
  if (!superblock.ok() && !is_unfinished) {
    return leave_alone(std::string(superblock.status().what()) +
                       "; remove it if nobody else needs it");
  }
  if (superblock.ok() && superblock->slab_index != index) {
    return leave_alone("it is slab " + std::to_string(superblock->slab_index) + ", renamed");
  }
  if (superblock.ok() && superblock->slab_bytes > length_bytes) {
    return leave_alone("it has " + std::to_string(length_bytes) + " bytes of " +
                       std::to_string(superblock->slab_bytes));
  }
  if (index >= slabs.size()) slabs.resize(index + 1);
  slabs[index] = std::make_unique<NvmeSlab>(index, disk);
  NvmeSlab& slab = *slabs[index];
  slab.file = file;
  if (is_unfinished) {  // its maker died before it held anything
    slab.geometry.slab_bytes = length_bytes;
    slab.phase = SlabPhase::kRemoving;
    notes->push_back("slab file " + name + " was never finished and is removed");
  } else {
    slab.TakeShape(SlabGeometry::Of(superblock->shape, superblock->slab_bytes).value(),
                   superblock->uuid);
    slab.phase = SlabPhase::kRestoring;
    PublishPlace(slab);
    ++restored.slabs;
  }
  disks[disk].slab_bytes += slab.geometry.slab_bytes;
}

// The cap is hard: what is above it goes, from the highest number down.
void NvmeTier::State::RetireAboveCapacity(std::vector<std::string>* notes) {
  uint64_t total_bytes = SlabBytesTotal();
  for (size_t index = slabs.size(); index-- > 0 && total_bytes > options.capacity_bytes;) {
    NvmeSlab* slab = slabs[index].get();
    if (slab == nullptr) continue;
    total_bytes -= slab->geometry.slab_bytes;
    if (slab->phase != SlabPhase::kRestoring) continue;
    slab->phase = SlabPhase::kRetiring;
    notes->push_back("slab " + std::to_string(index) +
                     " is emptied and removed: the slabs take more than the " +
                     std::to_string(options.capacity_bytes) + " bytes that are configured");
  }
}

std::vector<Status> NvmeTier::State::ReadSectors(const NvmeSlab& slab, uint64_t begin_bytes,
                                                 std::span<std::byte> into) const {
  std::vector<Status> statuses;
  for (size_t at = 0; at < into.size(); at += kSlabSectorBytes) {
    const std::span<std::byte> sector =
        into.subspan(at, std::min<size_t>(kSlabSectorBytes, into.size() - at));
    // A drive that is gone takes its time over each.
    const bool is_hopeless = static_cast<size_t>(std::ranges::count_if(
                                 statuses, [](Status s) { return !s.ok(); })) > kUnreadSectorsMax;
    statuses.push_back(is_hopeless
                           ? statuses.back()
                           : disks[slab.disk].disk->ReadNow(slab.file, begin_bytes + at, sector));
  }
  return statuses;
}

void NvmeTier::State::VisitTable(const NvmeSlab& slab, const EntryVisitor& visit,
                                 const RestoreAhead& ahead) const {
  const SlabGeometry& geometry = slab.geometry;
  const uint64_t per_chunk = kTableReadBytes / kSlabSectorBytes * geometry.entries_per_sector;
  std::vector<std::byte> chunk;
  SlabEntry entry;
  for (uint64_t first = 0; first < geometry.slot_count; first += per_chunk) {
    const uint64_t end = std::min<uint64_t>(first + per_chunk, geometry.slot_count);
    const uint64_t begin_bytes = geometry.EntryOffsetBytes(static_cast<uint32_t>(first));
    const uint64_t end_bytes =
        geometry.EntryOffsetBytes(static_cast<uint32_t>(end - 1)) + geometry.entry_bytes;
    chunk.resize(end_bytes - begin_bytes);
    const Status read = disks[slab.disk].disk->ReadNow(slab.file, begin_bytes, chunk);
    const std::vector<Status> by_sector =
        read.ok() ? std::vector<Status>() : ReadSectors(slab, begin_bytes, chunk);
    const auto entry_at = [&](uint64_t at) {
      const uint64_t offset_bytes = geometry.EntryOffsetBytes(static_cast<uint32_t>(at));
      return std::span(chunk).subspan(offset_bytes - begin_bytes, geometry.entry_bytes);
    };
    for (uint64_t at = first; at < end; ++at) {
      const auto slot = static_cast<uint32_t>(at);
      Status status = read.ok() ? read : by_sector[(at - first) / geometry.entries_per_sector];
      if (status.ok()) {
        if (ahead && at + kAheadSlots < end) ahead(ClaimedKey(entry_at(at + kAheadSlots)));
        status = DecodeEntry(geometry, slab.uuid, slot, entry_at(at), options.secret, &entry);
      }
      visit(slot, status, entry);
    }
  }
}

// What memory keeps of an entry, whoever owns it later.
void NvmeTier::State::NoteEntry(NvmeSlab& slab, uint32_t slot, Status status,
                                const SlabEntry& entry) {
  if (status.code() == StatusCode::kNotFound) return;
  if (status.ok()) epoch = std::max(epoch, entry.epoch);
  // The catalog has given it already: to a block, whose bytes are verified when they are read.
  if (slab.slots[slot].state != SlabSlotState::kFree) return;
  if (!status.ok()) {
    ++totals.corrupt_entries;
    ++restored.entries_corrupt;
    if (status.code() == StatusCode::kIo) {
      ++restored.entries_unread;
      if (!slab.IsUnread(slot)) {
        slab.unread_sectors.push_back(slot / slab.geometry.entries_per_sector);
      }
    }
  } else {
    slab.slots[slot].generation = entry.generation;
    if (entry.state != SlabEntryState::kQuarantined) return;
  }
  slab.SetState(slot, SlabSlotState::kQuarantined);
  totals.quarantined_bytes += slab.geometry.shape.slot_bytes;
}

bool NvmeTier::State::IsInTable(const NvmeSlab& slab, uint32_t slot,
                                std::span<const std::byte> entry) const {
  std::vector<std::byte> found(slab.geometry.entry_bytes);
  return disks[slab.disk]
             .disk->ReadNow(slab.file, slab.geometry.EntryOffsetBytes(slot), found)
             .ok() &&
         std::ranges::equal(entry, found);
}

void NvmeTier::State::RestoreUsed(NvmeSlab& slab, const SlabEntry& entry, bool is_wanted,
                                  const RestoreSink& sink) {
  slab.SetState(entry.slot, SlabSlotState::kUsed);
  slab.SetFlags(entry.slot, kEntryNamed, 0);
  totals.used_bytes += slab.geometry.shape.slot_bytes;
  const Extent extent{.position = entry.slot,
                      .length_bytes = entry.length_bytes,
                      .shard = slab.index,
                      .generation = entry.generation};
  uint32_t owner = kOwnerNone;
  if (is_wanted && slab.phase == SlabPhase::kRestoring) {
    owner = sink(RecordOf(entry, options.domain_index), extent);
  }
  if (owner == kOwnerNone) return Release(extent, SlabSlotState::kFree);
  if (owner == kOwnerUnknown) {
    slab.SetState(entry.slot, SlabSlotState::kQuarantined);
    totals.used_bytes -= slab.geometry.shape.slot_bytes;
    totals.quarantined_bytes += slab.geometry.shape.slot_bytes;
    ++restored.entries_left;
    return;
  }
  slab.slots[entry.slot].owner = owner;
  ++restored.entries_kept;
}

// What the last daemon wrote may still be in the page cache alone, its erasures among it: until the
// slabs have been synced once, a loss of power may bring back what it had freed.
void NvmeTier::State::SyncInherited() {
  for (const auto& slab : slabs) {
    if (slab == nullptr || !slab->is_readable() || slab->inherited_erasure) continue;
    slab->is_sync_due = true;
    slab->inherited_erasure = erasures_begun;
    erasure_numbers.insert(erasures_begun++);
  }
}

// ---- the interface ----

Status NvmeTier::OpenSlabs(std::vector<std::string>* notes) {
  State& s = *state_;
  for (uint32_t disk = 0; disk < s.disks.size(); ++disk) {
    TERRACE_RETURN_IF_ERROR(s.OpenSlabsOf(disk, notes));
  }
  s.RetireAboveCapacity(notes);
  return Status::Ok();
}

// Two passes: who wrote a key last is known when all tables have been read. Between them 24 bytes
// an entry are kept, not the entries.
Status NvmeTier::Scan(const RestoreSink& sink, const RestoreAhead& ahead) {
  State& s = *state_;
  std::vector<State::UsedEntry> used;
  for (const auto& slab : s.slabs) {
    if (slab == nullptr || !slab->is_readable()) continue;
    s.VisitTable(*slab, [&](uint32_t slot, Status status, const SlabEntry& entry) {
      s.NoteEntry(*slab, slot, status, entry);
      if (!status.ok() || entry.state != SlabEntryState::kUsed) return;
      used.push_back({FingerprintOf(entry), entry.epoch, State::PlaceOf(slab->index, slot)});
    });
  }
  s.restored.entries_used += used.size();
  std::ranges::sort(used, [](const State::UsedEntry& a, const State::UsedEntry& b) {
    return a.fingerprint != b.fingerprint ? a.fingerprint < b.fingerprint : a.epoch > b.epoch;
  });
  std::unordered_set<uint64_t> losers;  // places
  for (size_t i = 1; i < used.size(); ++i) {
    if (used[i].fingerprint == used[i - 1].fingerprint) losers.insert(used[i].place);
  }
  used = {};
  for (const auto& slab : s.slabs) {
    if (slab == nullptr || !slab->is_readable()) continue;
    const auto visit = [&](uint32_t slot, Status status, const SlabEntry& entry) {
      if (!status.ok() || entry.state != SlabEntryState::kUsed) return;
      if (slab->slots[slot].state != SlabSlotState::kFree) return;  // another answer than before
      s.RestoreUsed(*slab, entry, !losers.contains(State::PlaceOf(slab->index, slot)), sink);
    };
    s.VisitTable(*slab, visit, ahead);
  }
  return Status::Ok();
}

Status NvmeTier::RestoreEntry(uint32_t slab_index, uint32_t slot, std::span<const std::byte> bytes,
                              const RestoreSink& sink) {
  State& s = *state_;
  NvmeSlab* slab = s.SlabAt(slab_index);
  if (slab == nullptr || !slab->is_readable() || slot >= slab->slots.size()) {
    return Status(StatusCode::kNotFound, "no such slot");
  }
  if (slab->slots[slot].state != SlabSlotState::kFree) return Status::Ok();
  SlabEntry entry;
  const Status status =
      DecodeEntry(slab->geometry, slab->uuid, slot, bytes, s.options.secret, &entry);
  if (!status.ok() && !s.IsInTable(*slab, slot, bytes)) {
    return Status(StatusCode::kCorrupt, "not the entry of that slot");
  }
  s.NoteEntry(*slab, slot, status, entry);
  if (!status.ok() || entry.state != SlabEntryState::kUsed) return Status::Ok();
  ++s.restored.entries_used;
  s.RestoreUsed(*slab, entry, /*is_wanted=*/true, sink);
  return Status::Ok();
}

void NvmeTier::FinishRestore() {
  State& s = *state_;
  for (const auto& slab : s.slabs) {
    if (slab == nullptr || !slab->is_readable()) continue;
    // Slots whose entries were not seen go on above all that were: extents stay unique.
    uint32_t generation = 0;
    for (const SlabSlot& slot : slab->slots) generation = std::max(generation, slot.generation + 1);
    for (SlabSlot& slot : slab->slots) {
      if (slot.generation == 0 && slot.state == SlabSlotState::kFree) slot.generation = generation;
    }
    if (slab->phase != SlabPhase::kRestoring) continue;
    if (slab->unread_sectors.size() <= kUnreadSectorsMax) {
      slab->clear_attempts_left = kClearAttemptsMax;
    }
    State::ShapeClass& shape_class = s.classes[slab->geometry.shape];
    if (shape_class.on_disk.empty()) {
      shape_class.on_disk.resize(s.disks.size());
      shape_class.geometry =
          SlabGeometry::Of(slab->geometry.shape, s.options.slab_bytes).ok()
              ? SlabGeometry::Of(slab->geometry.shape, s.options.slab_bytes).value()
              : slab->geometry;
    }
    s.OpenForBlocks(*slab);
  }
  s.SyncInherited();
}

NvmeTier::RestoreCounts NvmeTier::restore_counts() const { return state_->restored; }

Status NvmeTier::ReadEntryNow(uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) const {
  const std::optional<State::SlabPlace> place = state_->FindPlace(slab);
  if (!place || slot >= place->geometry.slot_count) {
    return Status(StatusCode::kNotFound, "no such slot");
  }
  entry->resize(place->geometry.entry_bytes);
  TERRACE_RETURN_IF_ERROR(
      place->disk->ReadNow(place->file, place->geometry.EntryOffsetBytes(slot), *entry));
  SlabEntry decoded;
  return DecodeEntry(place->geometry, place->uuid, slot, *entry, state_->options.secret, &decoded);
}

}  // namespace terrace
