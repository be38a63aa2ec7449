// OnlineFsck: holds the persistent tier of a running domain against itself: what memory has of each
// slot, the entry in its header table and the catalog's record of it must agree, and on demand the
// bytes must verify. Repair gives up what differs: a miss, as everywhere.
//
// One question is about a few slots of one slab, so nothing here holds the store thread for long,
// and who goes away asks no more. Slots change meanwhile: they are looked at before and after their
// entries are read, and only what stayed as it was, with nothing on its way, is judged. What is
// wrong is looked at once more before it is called so.
//
//   Begin ─► slots ─► entries and records, on the catalog's thread ─► slots again ─► judge
//                ▲──────────────── what differs, once more ◄──────────────────────────┘
//                                  ─► bytes, by the store's Scrubber ─► repair ─► answer
//
// A quarantined slot is tried: written, and read back. What the drive keeps is free again. Entries
// of groups without a file stay: they may be whole, and the file come back.
//
// THREADING: store thread. LIMITS: one question at a time; kFsckSlotsMax slots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/persist/catalog.h"
#include "daemon/persist/fsck.h"
#include "daemon/store/copy_checks.h"
#include "terrace/protocol_introspection.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {

class OnlineFsck {
 public:
  struct Options {
    uint32_t domain_index = 0;
    DomainSecret secret{};
    std::vector<std::string> directories;  // of slabs, one a disk, and of groups' files
    CopyChecks* copies = nullptr;
    NvmeTier* tier = nullptr;
    Catalog* catalog = nullptr;
    // Runs its argument as a turn of the store thread, later. Any thread.
    std::function<void(std::function<void()>)> post;
  };
  // kOk and a document, or a sentence.
  using Done = std::function<void(Status status, std::string text)>;

  explicit OnlineFsck(Options options);
  ~OnlineFsck();

  // `done` is called once, in a later turn, unless `who` is cancelled.
  void Begin(uint64_t who, const protocol::FsckRequest& request, Done done);
  void Cancel(uint64_t who);

 private:
  struct Question;
  struct Slot;
  class GroupFiles;

  void Answer(Status status, std::string text);
  void TellAudit();
  void Look();
  void OnLooked(const Catalog::Look& look, std::span<const uint8_t> has_files);
  bool IsSteady(const Slot& slot) const;
  bool HasLeft(const Slot& slot) const;
  void CheckSlot(const Catalog::Looked& looked, bool has_records, Slot* slot);
  void CheckEntry(const Catalog::Looked& looked, Slot* slot);
  void CheckUsed(const SlabEntry& entry, Slot* slot);
  void CheckRecord(const Catalog::Looked& looked, bool is_recorded, Slot* slot);
  void Verify();
  void OnVerified(const CopyFindings& found);
  void Finish();
  void TryQuarantined(uint32_t index);
  void EndTrial();
  bool Repair(const Slot& slot);
  std::string PathOf(const SlabView& slab) const;
  std::string NameOf(uint32_t slot) const;
  std::string DocumentOf() const;

  const Options options_;
  std::unique_ptr<Question> question_;
  uint64_t question_count_ = 0;
};

}  // namespace terrace
