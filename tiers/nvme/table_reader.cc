#include "tiers/nvme/table_reader.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr uint64_t kTableReadBytes = 4 * kMiB;
constexpr uint32_t kAheadSlots = 12;  // a few hundred nanoseconds of work

}  // namespace

std::vector<Status> TableReader::ReadBySector(uint64_t begin_bytes,
                                              std::span<std::byte> into) const {
  std::vector<Status> statuses;
  for (size_t at = 0; at < into.size(); at += kSlabSectorBytes) {
    const std::span<std::byte> sector =
        into.subspan(at, std::min<size_t>(kSlabSectorBytes, into.size() - at));
    // A drive that is gone takes its time over each.
    const bool is_hopeless = static_cast<size_t>(std::ranges::count_if(
                                 statuses, [](Status s) { return !s.ok(); })) > kUnreadSectorsMax;
    statuses.push_back(is_hopeless ? statuses.back()
                                   : disk_.ReadNow(place_.file, begin_bytes + at, sector));
  }
  return statuses;
}

void TableReader::VisitChunk(uint32_t first, uint32_t end, std::vector<std::byte>* chunk,
                             const Visitor& visit, const Ahead& ahead) const {
  const SlabGeometry& geometry = place_.geometry;
  const uint64_t begin_bytes = geometry.EntryOffsetBytes(first);
  const uint64_t end_bytes = geometry.EntryOffsetBytes(end - 1) + geometry.entry_bytes;
  chunk->resize(end_bytes - begin_bytes);
  const Status read = disk_.ReadNow(place_.file, begin_bytes, *chunk);
  const std::vector<Status> by_sector =
      read.ok() ? std::vector<Status>() : ReadBySector(begin_bytes, *chunk);
  const auto entry_at = [&](uint32_t slot) {
    return std::span(*chunk).subspan(geometry.EntryOffsetBytes(slot) - begin_bytes,
                                     geometry.entry_bytes);
  };
  SlabEntry entry;
  for (uint32_t slot = first; slot < end; ++slot) {
    Status status = read.ok() ? read : by_sector[(slot - first) / geometry.entries_per_sector];
    if (status.ok()) {
      if (ahead && slot + kAheadSlots < end) ahead(ClaimedKey(entry_at(slot + kAheadSlots)));
      status = DecodeEntry(geometry, place_.uuid, slot, entry_at(slot), secret_, &entry);
    }
    visit(slot, status, entry);
  }
}

void TableReader::VisitAll(const Visitor& visit, const Ahead& ahead) const {
  const uint64_t per_chunk =
      kTableReadBytes / kSlabSectorBytes * place_.geometry.entries_per_sector;
  std::vector<std::byte> chunk;
  for (uint64_t first = 0; first < place_.geometry.slot_count; first += per_chunk) {
    const uint64_t end = std::min<uint64_t>(first + per_chunk, place_.geometry.slot_count);
    VisitChunk(static_cast<uint32_t>(first), static_cast<uint32_t>(end), &chunk, visit, ahead);
  }
}

Status TableReader::ReadEntry(uint32_t slot, std::vector<std::byte>* bytes) const {
  if (slot >= place_.geometry.slot_count) return Status(StatusCode::kNotFound, "no such slot");
  bytes->resize(place_.geometry.entry_bytes);
  TERRACE_RETURN_IF_ERROR(
      disk_.ReadNow(place_.file, place_.geometry.EntryOffsetBytes(slot), *bytes));
  SlabEntry decoded;
  return DecodeEntry(place_.geometry, place_.uuid, slot, *bytes, secret_, &decoded);
}

bool TableReader::Has(uint32_t slot, std::span<const std::byte> bytes) const {
  std::vector<std::byte> found(place_.geometry.entry_bytes);
  return disk_.ReadNow(place_.file, place_.geometry.EntryOffsetBytes(slot), found).ok() &&
         std::ranges::equal(bytes, found);
}

}  // namespace terrace
