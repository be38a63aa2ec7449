#include "tiers/nvme/entry_writer.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

std::optional<SlabSeal> SealOf(const NvmeSlab& slab, uint32_t slot) {
  if (!slab.is_encrypted(slot)) return std::nullopt;
  const PayloadCipher& cipher = slab.ciphers[slot];
  return SlabSeal{cipher.seal, cipher.key->id()};
}

}  // namespace

EntryWriter::EntryWriter(const Options& options, NvmeDisks& disks, const SlabSet& slabs,
                         EntryListener& listener)
    : options_(options),
      disks_(disks),
      slabs_(slabs),
      listener_(listener),
      dirty_(disks.count()),
      is_resting_(disks.count()) {}

SlabEntry EntryWriter::Describe(const NvmeSlab& slab, const Extent& extent,
                                const BlockRecord& record) {
  const SlabShape& shape = slab.geometry.shape;
  TERRACE_CHECK(record.part_checksums.size() <= shape.part_count, "a checksum a part");
  SlabEntry entry{record};
  entry.state = SlabEntryState::kUsed;
  entry.slot = static_cast<uint32_t>(extent.position);
  entry.generation = extent.generation;
  entry.epoch = ++epoch_;
  entry.length_bytes = extent.length_bytes;
  entry.part_checksums.assign(record.part_checksums.begin(), record.part_checksums.end());
  entry.part_checksums.resize(shape.part_count);  // none: such bytes never verify
  entry.seal = SealOf(slab, entry.slot);
  return entry;
}

void EntryWriter::Hold(NvmeSlab& slab, uint32_t slot, const Extent& extent,
                       const BlockRecord& record) {
  TERRACE_CHECK(slab.slots[slot].is_owned() && slab.slots[slot].generation == extent.generation,
                "an entry names the block that has the slot");
  const SlabEntry entry = Describe(slab, extent, record);
  HeldEntry& kept = held_[PlaceOf(slab.index, slot)];
  if (kept.bytes.empty()) ++held_with_bytes_;
  kept.bytes.resize(slab.geometry.entry_bytes);
  EncodeEntry(slab.geometry, slab.uuid, entry, options_.secret, kept.bytes);
  kept.block = {.commit_id = entry.commit_id, .member = entry.member};
}

void EntryWriter::HoldNew(NvmeSlab& slab, uint32_t slot, const Extent& extent,
                          const BlockRecord& record) {
  Hold(slab, slot, extent, record);
  held_.at(PlaceOf(slab.index, slot)).is_announcing = true;
}

void EntryWriter::Seal(const NvmeSlab& slab, uint32_t slot) {
  HeldEntry& kept = held_.at(PlaceOf(slab.index, slot));
  SlabEntry entry;
  const Status status =
      DecodeEntry(slab.geometry, slab.uuid, slot, kept.bytes, options_.secret, &entry);
  TERRACE_CHECK(status.ok(), "what is held is a whole entry");
  entry.seal = SealOf(slab, slot);
  EncodeEntry(slab.geometry, slab.uuid, entry, options_.secret, kept.bytes);
}

void EntryWriter::Drop(uint64_t place) {
  const auto found = held_.find(place);
  if (found == held_.end()) return;
  if (!found->second.bytes.empty()) --held_with_bytes_;
  held_.erase(found);
}

void EntryWriter::MarkDirty(NvmeSlab& slab, uint32_t slot) {
  const SlabSlot& row = slab.slots[slot];
  if (row.has(kEntryDirty)) return;
  const bool is_in_flight = row.has(kEntryInFlight);
  slab.slots.SetFlags(slot, kEntryDirty, 0);
  // What is in flight comes back to the queue by itself.
  if (!is_in_flight) dirty_[slab.disk].push_back(PlaceOf(slab.index, slot));
}

void EntryWriter::Write() {
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    std::deque<uint64_t>& dirty = dirty_[disk];
    while (disks_.is_on(disk) && !is_resting_[disk] && !dirty.empty()) {
      const uint64_t place = dirty.front();
      if (!WriteOne(slabs_[SlabOf(place)], SlotOf(place)).ok()) break;
      dirty.pop_front();
    }
  }
}

Status EntryWriter::WriteOne(NvmeSlab& slab, uint32_t slot) {
  const SlabSlot& row = slab.slots[slot];
  TERRACE_CHECK(row.has(kEntryDirty) && !row.has(kEntryInFlight), "one write an entry at a time");
  std::vector<std::byte> plain;
  std::span<const std::byte> bytes;
  const bool names_block = row.state == SlabSlotState::kUsed;
  if (names_block) {
    bytes = held_.at(PlaceOf(slab.index, slot)).bytes;
    TERRACE_CHECK(!bytes.empty(), "what a used slot holds is known until it is written");
  } else {
    SlabEntry entry;
    entry.state = row.state == SlabSlotState::kLost || row.state == SlabSlotState::kQuarantined
                      ? SlabEntryState::kQuarantined
                      : SlabEntryState::kFree;
    entry.slot = slot;
    entry.generation = row.generation;
    plain.resize(slab.geometry.entry_bytes);
    EncodeEntry(slab.geometry, slab.uuid, entry, options_.secret, plain);
    bytes = plain;
  }
  TERRACE_RETURN_IF_ERROR(disks_.Submit(
      {.kind = NvmeRequestKind::kEntry, .disk = slab.disk, .slab = slab.index, .slot = slot},
      {.op = DiskOp::kWriteTable,
       .file = slab.file,
       .offset_bytes = slab.geometry.EntryOffsetBytes(slot),
       .from = bytes}));
  slab.slots.SetFlags(slot, kEntryInFlight | (names_block ? kEntryNamed : 0), kEntryDirty);
  return Status::Ok();
}

void EntryWriter::OnWritten(const NvmeRequest& request, Status status) {
  NvmeSlab& slab = slabs_[request.slab];
  TERRACE_CHECK(slab.slots[request.slot].has(kEntryInFlight), "an entry is written once at a time");
  slab.slots.SetFlags(request.slot, status.ok() ? 0 : kEntryDirty, 0);
  slab.slots.SetFlags(request.slot, 0, kEntryInFlight);
  if (status.code() == StatusCode::kIo) is_resting_[slab.disk] = true;
  if (status.ok()) slab.unsynced.Add(slab.slots, request.slot);
  if (slab.slots[request.slot].has(kEntryDirty)) {
    dirty_[slab.disk].push_back(PlaceOf(slab.index, request.slot));
    return;
  }
  Settle(slab, request.slot);
}

void EntryWriter::Settle(NvmeSlab& slab, uint32_t slot) {
  if (slab.slots[slot].state == SlabSlotState::kUsed) {
    held_.at(PlaceOf(slab.index, slot)).bytes = {};
    --held_with_bytes_;
  } else {
    slab.slots.SetFlags(slot, 0, kEntryNamed);
  }
  // With a catalog to be told, the slab is not let go before the catalog has answered.
  slab.slots.SetFlags(slot, kEntryToCatalog, kEntryDoubted);
  listener_.OnEntrySettled(slab, slot);
  if (options_.catalog != nullptr) {
    options_.catalog->OnEntryWritten(slab.index, slot);
  } else {
    OnCataloged(slab.index, slot);
  }
}

void EntryWriter::OnCataloged(uint32_t slab_index, uint32_t slot) {
  NvmeSlab* const slab = slabs_.At(slab_index);
  if (slab == nullptr || slot >= slab->slots.count()) return;
  const SlabSlot& row = slab->slots[slot];
  if (!row.has(kEntryToCatalog)) return;
  slab->slots.SetFlags(slot, 0, kEntryToCatalog);
  if (row.has(kEntryDirty | kEntryInFlight)) return;  // what comes next will be answered
  std::optional<WrittenBlock> persisted;
  const auto kept = held_.find(PlaceOf(slab_index, slot));
  if (kept != held_.end() && row.state == SlabSlotState::kUsed) {
    if (kept->second.is_announcing) persisted = kept->second.block;
    Drop(kept->first);
  }
  listener_.OnEntryCataloged(*slab, slot, persisted);
}

void EntryWriter::TellCatalog(const NvmeSlab& slab, uint32_t slot) {
  if (options_.catalog != nullptr) options_.catalog->OnEntryWritten(slab.index, slot);
}

void EntryWriter::RaiseEpoch(uint64_t seen_epoch) { epoch_ = std::max(epoch_, seen_epoch); }

}  // namespace terrace
