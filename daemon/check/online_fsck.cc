#include "daemon/check/online_fsck.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/log/json_text.h"
#include "daemon/persist/group_files.h"

namespace terrace {
namespace {

using nlohmann::json;
using protocol::FsckRequest;

constexpr uint32_t kLooksMax = 3;  // at one slot
// Of slots of one answer that asks for repair: as many may be quarantined, and are tried.
constexpr uint64_t kTrialBytesMax = 128 * kMiB;
constexpr uint32_t kFlags = protocol::kFsckVerify | protocol::kFsckRepair | protocol::kFsckAudit;

constexpr std::string_view kCatalogAnswersNobody =
    "the catalog of this domain answers nobody just now (it is off, or still busy with an fsck "
    "that "
    "was given up): try again, or stop the daemon and run fsck without --online";

uint64_t CursorOf(uint32_t slab, uint32_t slot) { return uint64_t{slab} << 32 | slot; }

bool IsSame(const SlabEntry& entry, const BlockRecord& record) {
  return entry.group == record.group && entry.space == record.space && entry.key == record.key &&
         entry.commit_id == record.commit_id && entry.member == record.member &&
         std::ranges::equal(entry.part_checksums, record.part_checksums);
}

}  // namespace

// Of the entries of slots that nobody has: whether the group of each has a file, on any path. Reads
// directories.
class OnlineFsck::GroupFiles {
 public:
  GroupFiles(SlabView slab, DomainSecret secret, std::vector<std::string> directories)
      : slab_(slab), secret_(secret), directories_(std::move(directories)) {}
  bool HasOne(const Catalog::Looked& looked) const {
    SlabEntry entry;
    const Status decoded =
        DecodeEntry(slab_.geometry, slab_.uuid, looked.name.slot, looked.entry, secret_, &entry);
    if (!decoded.ok() || entry.state != SlabEntryState::kUsed) return false;
    const std::string name = ToHex(entry.group) + std::string(kGroupFileSuffix);
    return std::ranges::any_of(directories_, [&](const std::string& directory) {
      std::error_code error;
      return std::filesystem::exists(std::filesystem::path(directory) / "groups" / name, error);
    });
  }

 private:
  const SlabView slab_;
  const DomainSecret secret_;
  const std::vector<std::string> directories_;
};

struct OnlineFsck::Slot {
  struct Difference {
    FsckProblemKind kind = FsckProblemKind::kEntryCorrupt;
    std::string what;
    bool is_repaired = false;
  };
  uint32_t number = 0;
  SlabSlotView before;  // as it was when its entry was asked for
  bool is_judged = false;
  SlabEntryState in_table = SlabEntryState::kFree;
  bool is_corrupt = false;
  bool has_record = false;
  bool has_group_file = false;  // of a quarantined slot
  CopyName copy;                // of a used slot that is as it should be
  CopyFinding finding = CopyFinding::kGood;
  std::vector<Difference> differences;

  bool is_quarantined() const {
    return std::ranges::any_of(differences, [](const Difference& difference) {
      return difference.kind == FsckProblemKind::kEntryQuarantined;
    });
  }
};

struct OnlineFsck::Question {
  uint64_t number = 0;
  uint64_t who = 0;
  FsckRequest request;
  Done done;
  SlabView slab;
  uint64_t next_cursor = 0;
  bool is_done = false;
  uint32_t looks = 0;
  bool has_records = true;
  std::vector<Slot> slots;
  std::vector<uint32_t> looked_at;  // of `slots`, in the look under way
  std::vector<uint32_t> verified;   // of `slots`, whose bytes are being read
  CopyFindings found;
  uint32_t trials_left = 0;  // of quarantined slots
};

OnlineFsck::OnlineFsck(Options options) : options_(std::move(options)) {}

OnlineFsck::~OnlineFsck() = default;

std::string OnlineFsck::PathOf(const SlabView& slab) const {
  return options_.directories[slab.disk] + "/slab-" + std::to_string(slab.index) + ".terrace";
}

std::string OnlineFsck::NameOf(uint32_t slot) const {
  return "slot " + std::to_string(slot) + " of " + PathOf(question_->slab);
}

void OnlineFsck::Begin(uint64_t who, const FsckRequest& request, Done done) {
  const auto refuse = [&](StatusCode code, std::string why) {
    options_.post(
        [done = std::move(done), code, why = std::move(why)] { done(Status(code), why); });
  };
  if (question_ != nullptr) {
    return refuse(StatusCode::kBusy,
                  "another online fsck of this domain is under way: wait for it");
  }
  if ((request.flags & ~kFlags) != 0) {
    return refuse(StatusCode::kInvalid, "fsck flags " + std::to_string(request.flags) +
                                            "; there are 1 (verify), 2 (repair) and 4 (audit)");
  }
  if ((request.flags & protocol::kFsckVerify) != 0 && request.verify_bytes_per_second == 0) {
    return refuse(StatusCode::kInvalid, "verifying at 0 bytes a second never ends; name a rate");
  }
  if (request.verify_bytes_per_second > protocol::kFsckBytesPerSecondMax) {
    return refuse(StatusCode::kInvalid,
                  "verifying at " + std::to_string(request.verify_bytes_per_second) +
                      " bytes a second; at most " +
                      std::to_string(protocol::kFsckBytesPerSecondMax) + " may be asked for");
  }
  question_ = std::make_unique<Question>();
  Question& q = *question_;
  q.number = ++question_count_;
  q.who = who;
  q.request = request;
  q.done = std::move(done);
  if ((request.flags & protocol::kFsckAudit) != 0) return TellAudit();
  auto first = static_cast<uint32_t>(request.cursor);
  const auto index = static_cast<uint32_t>(request.cursor >> 32);
  std::optional<SlabView> slab = options_.tier->inspector().NextSlab(index);
  if (slab && (slab->index != index || first >= slab->geometry.slot_count)) {
    if (slab->index == index) slab = options_.tier->inspector().NextSlab(index + 1);
    first = 0;
  }
  q.is_done = !slab.has_value();
  if (q.is_done) return Finish();
  q.slab = *slab;
  uint32_t count = std::min(protocol::kFsckSlotsMax, slab->geometry.slot_count - first);
  if ((request.flags & protocol::kFsckVerify) != 0) {  // an answer about once a second
    const uint64_t affordable =
        request.verify_bytes_per_second / std::max<uint64_t>(slab->geometry.shape.slot_bytes, 1);
    count = static_cast<uint32_t>(std::clamp<uint64_t>(affordable, 1, count));
  }
  if ((request.flags & protocol::kFsckRepair) != 0) {
    const uint64_t tried = kTrialBytesMax / std::max<uint64_t>(slab->geometry.shape.slot_bytes, 1);
    count = static_cast<uint32_t>(std::clamp<uint64_t>(tried, 1, count));
  }
  q.next_cursor = CursorOf(slab->index, first + count);
  for (uint32_t i = 0; i < count; ++i) q.slots.push_back({.number = first + i});
  Look();
}

void OnlineFsck::Cancel(uint64_t who) {
  if (question_ == nullptr || question_->who != who) return;
  if (!question_->verified.empty()) options_.copies->CancelCheck(options_.domain_index);
  question_.reset();
}

void OnlineFsck::Answer(Status status, std::string text) {
  const std::unique_ptr<Question> q = std::exchange(question_, nullptr);
  TERRACE_CHECK(q != nullptr, "a question is answered once");
  options_.post([done = std::move(q->done), status, text = std::move(text)]() mutable {
    done(status, std::move(text));
  });
}

void OnlineFsck::TellAudit() {
  const auto read = [this, number = question_->number,
                     post = options_.post](std::vector<std::string> lines) {
    post([this, number, lines = std::move(lines)] {
      if (question_ == nullptr || question_->number != number) return;
      Answer(Status::Ok(), JsonText({{"audit", lines}}));
    });
  };
  if (options_.catalog->ReadAudit(protocol::kFsckAuditLinesMax, read)) return;
  Answer(Status(StatusCode::kBusy), std::string(kCatalogAnswersNobody));
}

// At the slots that have not been judged yet, or were found wanting.
void OnlineFsck::Look() {
  Question& q = *question_;
  ++q.looks;
  q.looked_at.clear();
  std::vector<SlotName> names;
  for (uint32_t i = 0; i < q.slots.size(); ++i) {
    Slot& slot = q.slots[i];
    if (slot.is_judged && slot.differences.empty()) continue;
    slot.is_judged = false;
    if (!options_.tier->inspector().LookAtSlots(q.slab.index, slot.number, {&slot.before, 1}))
      continue;
    q.looked_at.push_back(i);
    names.push_back({.slab = q.slab.index, .slot = slot.number});
  }
  if (names.empty()) return Verify();
  std::vector<uint8_t> is_quarantined;
  for (const uint32_t i : q.looked_at) {
    is_quarantined.push_back(q.slots[i].before.state == SlabEntryState::kQuarantined ? 1 : 0);
  }
  const GroupFiles files(q.slab, options_.secret, options_.directories);
  const auto looked = [this, number = q.number, post = options_.post, files,
                       is_quarantined = std::move(is_quarantined)](Catalog::Look look) {
    std::vector<uint8_t> has_files(look.slots.size());
    for (size_t i = 0; i < has_files.size(); ++i) {
      has_files[i] = is_quarantined[i] != 0 && files.HasOne(look.slots[i]) ? 1 : 0;
    }
    post([this, number, look = std::move(look), has_files = std::move(has_files)] {
      if (question_ != nullptr && question_->number == number) OnLooked(look, has_files);
    });
  };
  if (options_.catalog->LookUp(std::move(names), looked)) return;
  Answer(Status(StatusCode::kBusy), std::string(kCatalogAnswersNobody));
}

bool OnlineFsck::IsSteady(const Slot& slot) const {
  SlabSlotView now;
  return options_.tier->inspector().LookAtSlots(question_->slab.index, slot.number, {&now, 1}) &&
         now.is_settled && now == slot.before;
}

bool OnlineFsck::HasLeft(const Slot& slot) const {
  SlabSlotView now;
  return slot.before.state == SlabEntryState::kUsed &&
         options_.tier->inspector().LookAtSlots(question_->slab.index, slot.number, {&now, 1}) &&
         now.generation != slot.before.generation;
}

void OnlineFsck::OnLooked(const Catalog::Look& look, std::span<const uint8_t> has_files) {
  Question& q = *question_;
  const bool is_last = q.looks == kLooksMax;
  bool is_enough = true;
  for (size_t i = 0; i < q.looked_at.size(); ++i) {
    Slot& slot = q.slots[q.looked_at[i]];
    slot.differences.clear();
    slot.has_group_file = has_files[i] != 0;
    if (IsSteady(slot)) CheckSlot(look.slots[i], look.has_records, &slot);
    is_enough &= slot.is_judged && slot.differences.empty();
  }
  q.has_records &= look.has_records;
  if (is_enough || is_last) return Verify();
  Look();
}

void OnlineFsck::CheckSlot(const Catalog::Looked& looked, bool has_records, Slot* slot) {
  slot->is_judged = true;
  slot->copy = {};
  slot->is_corrupt = false;
  slot->has_record = looked.has_record;
  slot->in_table = SlabEntryState::kFree;
  if (looked.status.code() == StatusCode::kIo) {
    slot->differences.push_back(
        {.kind = FsckProblemKind::kTableUnreadable,
         .what = "the entry of " + NameOf(slot->number) + " cannot be read: check the drive"});
    return;
  }
  CheckEntry(looked, slot);
  const bool is_recorded = slot->is_corrupt || slot->in_table != SlabEntryState::kFree;
  if (has_records) CheckRecord(looked, is_recorded, slot);
}

void OnlineFsck::CheckEntry(const Catalog::Looked& looked, Slot* slot) {
  const SlabView& slab = question_->slab;
  const auto differs = [&](FsckProblemKind kind, std::string what) {
    slot->differences.push_back({.kind = kind, .what = std::move(what)});
  };
  SlabEntry entry;
  const Status decoded =
      DecodeEntry(slab.geometry, slab.uuid, slot->number, looked.entry, options_.secret, &entry);
  if (decoded.code() == StatusCode::kCorrupt) {
    slot->is_corrupt = true;
    differs(FsckProblemKind::kEntryCorrupt,
            "the entry of " + NameOf(slot->number) + " is " + decoded.what());
    return;
  }
  if (decoded.ok()) slot->in_table = entry.state;
  const bool is_used = slot->in_table == SlabEntryState::kUsed;
  switch (slot->before.state) {
    case SlabEntryState::kUsed:
      if (is_used) return CheckUsed(entry, slot);
      return differs(
          FsckProblemKind::kEntryLacks,
          "the entry of " + NameOf(slot->number) + " names no block, and the daemon has one there");
    case SlabEntryState::kFree:
      if (slot->in_table == SlabEntryState::kFree) return;
      return differs(
          FsckProblemKind::kEntryStray,
          "the entry of " + NameOf(slot->number) + " is in use, and the daemon has nothing there");
    case SlabEntryState::kQuarantined:
      if (slot->in_table == SlabEntryState::kQuarantined) {
        return differs(FsckProblemKind::kEntryQuarantined,
                       NameOf(slot->number) +
                           " is quarantined: its bytes did not verify; --repair tries the drive");
      }
      if (!is_used || slot->has_group_file) return;  // above groups_max, or to be cleared
      return differs(
          FsckProblemKind::kEntryUnknownGroup,
          NameOf(slot->number) + " is of group " + ToHex(entry.group) + ", which has no file");
  }
}

void OnlineFsck::CheckUsed(const SlabEntry& entry, Slot* slot) {
  const SlabView& slab = question_->slab;
  const Extent extent{.position = slot->number,
                      .length_bytes = slab.geometry.shape.slot_bytes,
                      .shard = slab.index,
                      .generation = slot->before.generation};
  const Result<BlockRecord> record =
      options_.copies->DescribeCopy(options_.domain_index, slot->before.owner, extent);
  if (!record.ok()) {  // it is about to leave
    slot->is_judged = false;
    return;
  }
  if (entry.generation != extent.generation || entry.length_bytes != extent.length_bytes ||
      !IsSame(entry, *record)) {
    slot->differences.push_back({.kind = FsckProblemKind::kEntryDiffers,
                                 .what = "the entry of " + NameOf(slot->number) +
                                         " is of another block than the daemon has there"});
  }
  slot->copy = {
      .owner = slot->before.owner, .commit_id = record->commit_id, .member = record->member};
}

void OnlineFsck::CheckRecord(const Catalog::Looked& looked, bool is_recorded, Slot* slot) {
  const std::string where =
      "slot " + std::to_string(slot->number) + " of slab " + std::to_string(question_->slab.index);
  if (looked.has_record && !is_recorded) {
    slot->differences.push_back(
        {.kind = FsckProblemKind::kCatalogStray,
         .what = "the catalog has a record of " + where + ", which is free"});
  } else if (looked.has_record && !looked.is_same) {
    slot->differences.push_back(
        {.kind = FsckProblemKind::kCatalogDiffers,
         .what = "the catalog's record of " + where + " is not the table's entry"});
  } else if (!looked.has_record && is_recorded) {
    slot->differences.push_back({.kind = FsckProblemKind::kCatalogLacks,
                                 .what = "the catalog has no record of " + NameOf(slot->number)});
  }
}

void OnlineFsck::Verify() {
  Question& q = *question_;
  if ((q.request.flags & protocol::kFsckVerify) == 0) return Finish();
  std::vector<CopyName> copies;
  for (uint32_t i = 0; i < q.slots.size(); ++i) {
    if (q.slots[i].copy.owner == kOwnerNone || !q.slots[i].is_judged) continue;
    q.verified.push_back(i);
    copies.push_back(q.slots[i].copy);
  }
  if (copies.empty()) return Finish();
  const auto found = [this, number = q.number](CopyFindings findings) {
    options_.post([this, number, findings = std::move(findings)] {
      if (question_ != nullptr && question_->number == number) OnVerified(findings);
    });
  };
  const Status status = options_.copies->CheckCopies(options_.domain_index, std::move(copies),
                                                     q.request.verify_bytes_per_second, found);
  TERRACE_CHECK(status.ok(), "one question at a time");
}

void OnlineFsck::OnVerified(const CopyFindings& found) {
  Question& q = *question_;
  TERRACE_CHECK(found.findings.size() == q.verified.size(), "a finding for every copy");
  q.found = found;
  for (size_t i = 0; i < q.verified.size(); ++i) {
    Slot& slot = q.slots[q.verified[i]];
    slot.finding = found.findings[i];
    const std::string block = "the block in " + NameOf(slot.number);
    if (slot.finding == CopyFinding::kMismatch) {
      slot.differences.push_back(
          {.kind = FsckProblemKind::kPayloadMismatch, .what = block + " does not verify"});
    } else if (slot.finding == CopyFinding::kUnreadable) {
      slot.differences.push_back(
          {.kind = FsckProblemKind::kPayloadUnreadable, .what = block + " cannot be read"});
    }
  }
  Finish();
}

// True if what differs is given up, and with it goes whatever the catalog says of it.
bool OnlineFsck::Repair(const Slot& slot) {
  const SlotName name{.slab = question_->slab.index, .slot = slot.number};
  bool is_of_catalog_only = true;
  for (const Slot::Difference& difference : slot.differences) {
    if (difference.kind == FsckProblemKind::kTableUnreadable) return false;
    is_of_catalog_only &= difference.kind == FsckProblemKind::kCatalogDiffers ||
                          difference.kind == FsckProblemKind::kCatalogLacks ||
                          difference.kind == FsckProblemKind::kEntryUnknownGroup ||
                          difference.kind == FsckProblemKind::kCatalogStray;
  }
  if (HasLeft(slot)) return true;  // with another member's bytes
  if (!IsSteady(slot)) return false;
  if (is_of_catalog_only) {
    options_.catalog->OnEntryWritten(name.slab, name.slot);
    return true;
  }
  if (slot.before.state != SlabEntryState::kUsed) {
    options_.tier->inspector().RewriteAsFree(name.slab, name.slot);
    return true;
  }
  const Extent extent{.position = slot.number,
                      .length_bytes = question_->slab.geometry.shape.slot_bytes,
                      .shard = name.slab,
                      .generation = slot.before.generation};
  const Result<BlockRecord> record =
      options_.copies->DescribeCopy(options_.domain_index, slot.before.owner, extent);
  if (!record.ok()) return false;
  const bool is_suspect =
      slot.finding == CopyFinding::kUnreadable || slot.finding == CopyFinding::kMismatch;
  const CopyFault fault = is_suspect ? CopyFault::kUnreadable : CopyFault::kUseless;
  return options_.copies
      ->DropCopy(options_.domain_index,
                 {.owner = slot.before.owner, .commit_id = record->commit_id}, fault)
      .ok();
}

void OnlineFsck::Finish() {
  Question& q = *question_;
  q.trials_left = 1;
  for (uint32_t i = 0; i < q.slots.size(); ++i) {
    if ((q.request.flags & protocol::kFsckRepair) != 0 && q.slots[i].is_quarantined()) {
      ++q.trials_left;
      TryQuarantined(i);
    }
  }
  EndTrial();
}

void OnlineFsck::TryQuarantined(uint32_t index) {
  Question& q = *question_;
  const auto done = [this, index, number = q.number](bool is_free) {
    if (question_ == nullptr || question_->number != number) return;
    for (Slot::Difference& difference : question_->slots[index].differences) {
      difference.is_repaired = is_free;
    }
    EndTrial();
  };
  if (!IsSteady(q.slots[index])) return done(false);
  options_.tier->inspector().TryQuarantined(q.slab.index, q.slots[index].number, done);
}

void OnlineFsck::EndTrial() {
  Question& q = *question_;
  TERRACE_CHECK(q.trials_left > 0, "a trial ends once");
  if (--q.trials_left > 0) return;
  for (Slot& slot : q.slots) {
    if (slot.differences.empty() || slot.is_quarantined() ||
        (q.request.flags & protocol::kFsckRepair) == 0) {
      continue;
    }
    const bool is_repaired = Repair(slot);
    for (Slot::Difference& difference : slot.differences) {
      const bool is_left = difference.kind == FsckProblemKind::kEntryUnknownGroup;
      difference.is_repaired = is_repaired && !is_left;
    }
  }
  std::string text = DocumentOf();
  Answer(Status::Ok(), std::move(text));
}

std::string OnlineFsck::DocumentOf() const {
  const Question& q = *question_;
  json document = {{"is_done", q.is_done}};
  if (q.request.cursor == 0) {
    document["group_count"] = options_.copies->group_count(options_.domain_index);
  }
  if (q.is_done) return JsonText(document);
  uint64_t used = 0, quarantined = 0, corrupt = 0, busy = 0, records = 0;
  json problems = json::array();
  for (const Slot& slot : q.slots) {
    used += slot.in_table == SlabEntryState::kUsed ? 1 : 0;
    quarantined += slot.in_table == SlabEntryState::kQuarantined ? 1 : 0;
    corrupt += slot.is_corrupt ? 1 : 0;
    busy += slot.is_judged && slot.finding != CopyFinding::kNotLooked ? 0 : 1;
    records += slot.has_record ? 1 : 0;
    for (const Slot::Difference& difference : slot.differences) {
      problems.push_back({{"kind", FsckProblemName(difference.kind)},
                          {"what", difference.what},
                          {"is_repaired", difference.is_repaired}});
    }
  }
  document.update({{"next_cursor", q.next_cursor},
                   {"slab",
                    {{"path", PathOf(q.slab)},
                     {"slot_bytes", q.slab.geometry.shape.slot_bytes},
                     {"part_count", q.slab.geometry.shape.part_count},
                     {"slot_count", q.slab.geometry.slot_count},
                     {"used_count", used},
                     {"quarantined_count", quarantined},
                     {"corrupt_count", corrupt}}},
                   {"busy_count", busy},
                   {"has_catalog", q.has_records},
                   {"catalog_record_count", records},
                   {"verified_count", q.found.member_count},
                   {"verified_bytes", q.found.read_bytes},
                   {"problems", std::move(problems)}});
  return JsonText(document);
}

}  // namespace terrace
