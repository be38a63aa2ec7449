// What a start costs: decoding the entries of header tables, and the whole scan of an NvmeTier over
// tables in memory.
//
// usage: header_scan_bench [entries]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tiers/nvme/nvme_tier.h"

namespace {

using namespace terrace;

constexpr uint64_t kSlabBytes = kGiB;
constexpr SlabShape kShape{64 * kKiB, 1};

double SecondsOf(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

DomainSecret MakeSecret() {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(1 + i * 7);
  return secret;
}

// Tables of slabs that have no payload.
class TableDisk final : public Disk {
 public:
  explicit TableDisk(uint64_t entry_count) {
    const SlabGeometry geometry = SlabGeometry::Of(kShape, kSlabBytes).value();
    std::mt19937_64 random(1);
    uint64_t epoch = 0;
    while (epoch < entry_count) {
      const auto index = static_cast<uint32_t>(tables_.size());
      std::vector<std::byte>& table = tables_.emplace_back(geometry.payload_offset_bytes);
      const SlabUuid uuid{random(), random()};
      EncodeSuperblock({uuid, index, kShape, kSlabBytes}, secret_,
                       std::span(table).first(kSlabSectorBytes));
      for (uint32_t slot = 0; slot < geometry.slot_count && epoch < entry_count; ++slot) {
        SlabEntry entry{.state = SlabEntryState::kUsed, .slot = slot, .epoch = ++epoch};
        entry.length_bytes = kShape.slot_bytes;
        entry.key = {random(), random()};
        entry.part_checksums = {Checksum{random(), random()}};
        EncodeEntry(
            geometry, uuid, entry, secret_,
            std::span(table).subspan(geometry.EntryOffsetBytes(slot), geometry.entry_bytes));
      }
    }
  }
  uint64_t Decode() const {
    const SlabGeometry geometry = SlabGeometry::Of(kShape, kSlabBytes).value();
    uint64_t decoded = 0;
    SlabEntry entry;
    for (const std::vector<std::byte>& table : tables_) {
      const SlabUuid uuid =
          DecodeSuperblock(std::span(table).first(kSlabSectorBytes), secret_)->uuid;
      for (uint32_t slot = 0; slot < geometry.slot_count; ++slot) {
        decoded += DecodeEntry(geometry, uuid, slot,
                               std::span(table).subspan(geometry.EntryOffsetBytes(slot),
                                                        geometry.entry_bytes),
                               secret_, &entry)
                       .ok();
      }
    }
    return decoded;
  }
  const DomainSecret& secret() const { return secret_; }
  uint64_t slab_count() const { return tables_.size(); }

  void SetListener(DiskListener*) override {}
  Status Submit(const DiskRequest&) override { return Status(StatusCode::kBusy); }
  void Flush() override {}
  DiskFile NewFile() override { return kDiskFileNone; }
  Status ListNow(std::vector<std::string>* names) override {
    for (size_t i = 0; i < tables_.size(); ++i) {
      names->push_back("slab-" + std::to_string(i) + ".terrace");
    }
    return Status::Ok();
  }
  Status OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) override {
    *file = static_cast<DiskFile>(std::atoi(name.c_str() + 5));
    *length_bytes = kSlabBytes;
    return Status::Ok();
  }
  Status ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) override {
    std::copy_n(tables_[file].begin() + static_cast<ptrdiff_t>(offset_bytes), into.size(),
                into.begin());
    return Status::Ok();
  }
  uint32_t queue_max() const override { return 1; }
  DiskStats stats() const override { return {}; }
  std::string description() const override { return "tables in memory"; }

 private:
  const DomainSecret secret_ = MakeSecret();
  std::vector<std::vector<std::byte>> tables_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t entry_count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  TableDisk disk(entry_count);
  for (int round = 0; round < 3; ++round) {
    uint64_t decoded = 0;
    const double decode_s = SecondsOf([&] { decoded = disk.Decode(); });
    NvmeTier tier({.secret = disk.secret(),
                   .disks = {&disk},
                   .capacity_bytes = disk.slab_count() * kSlabBytes,
                   .slab_bytes = kSlabBytes,
                   .now_us = [] { return uint64_t{0}; },
                   .random = [] { return uint64_t{0}; }});
    std::vector<std::string> notes;
    uint64_t kept = 0;
    const double scan_s = SecondsOf([&] {
      if (!tier.restore().OpenSlabs(&notes).ok()) std::abort();
      if (!tier.restore()
               .Scan(
                   [&](const BlockRecord&, const Extent&) { return static_cast<uint32_t>(kept++); })
               .ok()) {
        std::abort();
      }
      tier.restore().Finish();
    });
    std::printf("%llu entries: decode %.3f s (%.0f ns each), scan %.3f s, %llu kept\n",
                static_cast<unsigned long long>(decoded), decode_s,
                decode_s * 1e9 / static_cast<double>(decoded), scan_s,
                static_cast<unsigned long long>(kept));
  }
  return 0;
}
