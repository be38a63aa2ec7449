#include "daemon/persist/fsck.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "daemon/persist/catalog_db.h"
#include "daemon/persist/group_files.h"
#include "daemon/persist/slab_files.h"
#include "terrace/lock_holder.h"
#include "terrace/space.h"
#include "terrace/units.h"
#include "tiers/disk/disk_lock.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBatchSlots = 1024;
constexpr uint64_t kProgressBytes = 256 * kMiB;
constexpr size_t kNotListed = SIZE_MAX;
constexpr uint64_t kLockWaitUs = 30 * kUsPerSecond;  // of a daemon that was killed just now

// The lock of a domain's directory, as the daemon takes it.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  ~DirectoryLock() {
    if (fd_ >= 0) close(fd_);
  }
  DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  Status Take(const std::string& directory, std::string* why);

 private:
  int fd_ = -1;
};

Status DirectoryLock::Take(const std::string& directory, std::string* why) {
  const std::string path = directory + "/lock";
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  const bool is_writable = fd_ >= 0;
  if (!is_writable) fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd_ < 0 && errno == ENOENT) return Status::Ok();  // no daemon ever used it
  if (fd_ < 0) {
    *why = "cannot open " + path + ": " + std::strerror(errno) + ". Run it as the daemon's user";
    return Status(StatusCode::kIo, "cannot open a lock", errno);
  }
  const LockRefusal refusal = TakeLock(fd_, kLockWaitUs);
  if (refusal.error == EWOULDBLOCK) {
    *why = directory + " is in use by " + refusal.holder.Text() +
           (refusal.is_alive ? ": stop the daemon first, or ask it with --online"
                             : ", which is not seen here. If it has ended, the drive has not "
                               "answered its requests yet: see dmesg, and try again. If it runs in "
                               "another container, stop it there");
    return Status(StatusCode::kBusy, "the domain is in use");
  }
  if (refusal.error != 0) {
    *why = "cannot lock " + path + ": " + std::strerror(refusal.error) +
           ". The file system must support flock";
    return Status(StatusCode::kIo, "cannot take a lock", refusal.error);
  }
  if (is_writable) LockHolder::NameMyself(fd_);
  return Status::Ok();
}

// A digest of group, key and member.
uint64_t FingerprintOf(const SlabEntry& entry, const DomainSecret& secret) {
  std::array<std::byte, sizeof entry.group + sizeof entry.key + sizeof entry.member> bytes;
  std::memcpy(bytes.data(), &entry.group, sizeof entry.group);
  std::memcpy(bytes.data() + sizeof entry.group, &entry.key, sizeof entry.key);
  std::memcpy(bytes.data() + sizeof entry.group + sizeof entry.key, &entry.member,
              sizeof entry.member);
  return KeyedHash64(secret, bytes);
}

class Fsck {
 public:
  Fsck(const FsckOptions& options, FsckReport* report) : options_(options), report_(*report) {}

  Status Lock(std::string* why);
  void LookAtGroups();
  void LookAtTables();
  void VerifyPayloads();
  void LookAtCatalog();
  void Repair();

 private:
  struct Cure {
    uint32_t slot = 0;
    SlabEntryState to = SlabEntryState::kFree;
    size_t problem = kNotListed;
    bool is_if_readable = false;  // not if the drive cannot read the slot
    bool is_outdated = false;     // no problem: the next start frees it, if it reads the tables
  };
  struct Slab {
    SlabFile file;
    uint32_t generation_max = 0;
    // A hash of each entry that the catalog has to hold; 0: none, or met in the catalog.
    std::vector<uint64_t> hashes;
    std::vector<Cure> cures;
  };
  struct Used {
    uint64_t fingerprint = 0;
    uint64_t epoch = 0;
    SlotName name;
  };

  size_t Note(FsckProblemKind kind, std::string what);
  void MarkRepaired(size_t problem);
  std::string NameOf(const Slab& slab, uint32_t slot) const;
  void LookAtTable(Slab& slab);
  void LookAtEntry(Slab& slab, FsckSlab& about, Status status, const SlabEntry& entry,
                   uint32_t slot);
  // Null, or the member the entry is of; what is wrong is noted.
  const SpaceSpec* FitOf(const SlabEntry& entry, std::string* why, FsckProblemKind* kind) const;
  // A catalog does not say which entry of a block is the last: the others are not to be in one.
  void FindOutdated();
  // Empty, or why the bytes are not what was stored.
  std::string VerifyPayload(const SlabReader& reader, const SlabEntry& entry, const SpaceSpec& spec,
                            FsckProblemKind* kind);
  void CompareRecord(SlotName name, std::span<const std::byte> entry);
  void NoteRecordsOfNoSlab();
  void ApplyCures(Slab& slab);
  void DisbelieveCatalog();
  bool RewriteCatalog(std::string* why);
  bool is_all_read() const {
    return report_.counts[static_cast<size_t>(FsckProblemKind::kSlabUnreadable)] == 0 &&
           report_.counts[static_cast<size_t>(FsckProblemKind::kTableUnreadable)] == 0;
  }
  CatalogDb::Options catalog_options() const {
    return {.directory = options_.directories[0] + "/catalog",
            .slab_directories = options_.directories};
  }

  const FsckOptions& options_;
  FsckReport& report_;
  std::vector<DirectoryLock> locks_;
  std::map<GroupId, SpaceGroupSpec> groups_;
  std::map<uint32_t, Slab> slabs_;                   // by index
  std::map<uint32_t, uint64_t> records_of_no_slab_;  // of the catalog, by index: not in slabs_
  std::vector<Used> used_;
  uint64_t used_bytes_ = 0;
  bool is_catalog_unreadable_ = false;  // though it could be opened
};

size_t Fsck::Note(FsckProblemKind kind, std::string what) {
  ++report_.counts[static_cast<size_t>(kind)];
  if (report_.problems.size() >= options_.problems_listed_max) return kNotListed;
  report_.problems.push_back({.kind = kind, .what = std::move(what)});
  return report_.problems.size() - 1;
}

void Fsck::MarkRepaired(size_t problem) {
  ++report_.repaired;
  if (problem != kNotListed) report_.problems[problem].is_repaired = true;
}

std::string Fsck::NameOf(const Slab& slab, uint32_t slot) const {
  return "slot " + std::to_string(slot) + " of " + slab.file.path;
}

Status Fsck::Lock(std::string* why) {
  for (const std::string& directory : options_.directories) {
    struct stat about {};
    if (stat(directory.c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) {
      *why = "there is no directory " + directory +
             ": mount its drive, or take the path out of the configuration";
      return Status(StatusCode::kNotFound, "a directory is not there");
    }
    if (options_.mode == FsckMode::kRepair && about.st_uid != geteuid()) {
      *why = directory + " belongs to uid " + std::to_string(about.st_uid) + ", and this is uid " +
             std::to_string(geteuid()) +
             ": repair as its owner, or the daemon could not open what is written";
      return Status(StatusCode::kInvalid, "another owner");
    }
    TERRACE_RETURN_IF_ERROR(locks_.emplace_back().Take(directory, why));
  }
  return Status::Ok();
}

void Fsck::LookAtGroups() {
  std::vector<std::string> notes;
  // Of all paths, as the daemon does: they may have come in another order.
  for (const std::string& directory : options_.directories) {
    for (SpaceGroupSpec& spec : LoadGroupFiles(directory + "/groups", options_.secret, &notes)) {
      groups_.emplace(spec.Id(), std::move(spec));
    }
  }
  for (std::string& note : notes) Note(FsckProblemKind::kGroupUnreadable, std::move(note));
  const CatalogDb::Opened opened = CatalogDb::OpenToLook(catalog_options());
  if (opened.db != nullptr) {
    const Status status =
        opened.db->ForEachGroup([this](std::string_view, std::string_view content) {
          SpaceGroupSpec spec;
          std::string why;
          if (!ParseGroupFile(content, options_.secret, &spec, &why).ok()) return;
          const GroupId id = spec.Id();
          if (!groups_.emplace(id, std::move(spec)).second) return;
          report_.notes.push_back("the file of group " + ToHex(id) +
                                  " is missing: the next start makes it anew from the catalog");
        });
    if (!status.ok()) report_.notes.push_back("the groups in the catalog cannot be read");
  }
  report_.groups = groups_.size();
}

void Fsck::LookAtTables() {
  for (const std::string& directory : options_.directories) {
    for (SlabFile& file : ListSlabFiles(directory, options_.secret)) {
      if (file.status.code() == StatusCode::kNotFound) {
        report_.notes.push_back(file.path + " was never finished: the next start removes it");
      } else if (!file.status.ok()) {
        Note(FsckProblemKind::kSlabUnreadable,
             file.path + " is no slab of this domain (" + file.status.what() +
                 "): the daemon leaves it alone. If all slabs are, secret_file is not the one that "
                 "they were written under. Remove it only if nobody needs it");
      } else if (const auto known = slabs_.find(file.index); known != slabs_.end()) {
        Note(FsckProblemKind::kSlabUnreadable,
             file.path + " has the number of " + known->second.file.path +
                 ": the daemon leaves it alone. Remove one of them");
      } else {
        slabs_[file.index].file = std::move(file);
      }
    }
  }
  for (auto& [index, slab] : slabs_) LookAtTable(slab);
  const uint64_t unknown = report_.counts[static_cast<size_t>(FsckProblemKind::kEntryUnknownGroup)];
  const bool is_freeing =
      options_.mode == FsckMode::kRepair && options_.unknown_groups == FsckUnknownGroups::kFree;
  if (unknown > 0 && !is_freeing) report_.notes.push_back(UnknownGroupsNote(unknown));
  FindOutdated();
}

void Fsck::LookAtTable(Slab& slab) {
  const SlabGeometry& geometry = slab.file.geometry;
  FsckSlab about{.path = slab.file.path,
                 .slot_bytes = geometry.shape.slot_bytes,
                 .part_count = geometry.shape.part_count,
                 .slots = geometry.slot_count};
  slab.hashes.assign(geometry.slot_count, 0);
  const SlabReader reader(slab.file, options_.secret, SlabReader::Access::kRead);
  uint64_t unread = 0;
  const Status status =
      reader.VisitTable([&](uint32_t slot, Status of_entry, const SlabEntry& entry,
                            std::span<const std::byte> bytes) {
        if (of_entry.code() == StatusCode::kIo) {
          ++unread;
          return;
        }
        const bool is_recorded = of_entry.code() == StatusCode::kCorrupt ||
                                 (of_entry.ok() && entry.state != SlabEntryState::kFree);
        if (is_recorded) slab.hashes[slot] = KeyedHash64(options_.secret, bytes) | 1;
        LookAtEntry(slab, about, of_entry, entry, slot);
      });
  if (!status.ok()) {
    Note(FsckProblemKind::kTableUnreadable, "the entries of " + std::to_string(unread) +
                                                " slots of " + slab.file.path +
                                                " cannot be read: check the drive");
  }
  report_.slabs.push_back(std::move(about));
}

void Fsck::LookAtEntry(Slab& slab, FsckSlab& about, Status status, const SlabEntry& entry,
                       uint32_t slot) {
  if (status.code() == StatusCode::kNotFound) return;
  if (!status.ok()) {
    ++about.corrupt;
    slab.cures.push_back(
        {.slot = slot,
         .problem = Note(FsckProblemKind::kEntryCorrupt,
                         "the entry of " + NameOf(slab, slot) + " is " + status.what())});
    return;
  }
  slab.generation_max = std::max(slab.generation_max, entry.generation);
  if (entry.state == SlabEntryState::kFree) return;
  if (entry.state == SlabEntryState::kQuarantined) {
    ++about.quarantined;
    slab.cures.push_back(
        {.slot = slot,
         .problem = Note(FsckProblemKind::kEntryQuarantined,
                         NameOf(slab, slot) + " is quarantined: its bytes did not verify"),
         .is_if_readable = true});
    return;
  }
  ++about.used;
  ++report_.entries_used;
  used_bytes_ += entry.length_bytes;
  used_.push_back({FingerprintOf(entry, options_.secret), entry.epoch, {slab.file.index, slot}});
  std::string why;
  FsckProblemKind kind = FsckProblemKind::kEntryUnfit;
  if (FitOf(entry, &why, &kind) != nullptr) return;
  const size_t problem = Note(kind, NameOf(slab, slot) + ' ' + why);
  const bool is_left = kind == FsckProblemKind::kEntryUnknownGroup &&
                       options_.unknown_groups == FsckUnknownGroups::kLeave;
  if (!is_left) slab.cures.push_back({.slot = slot, .problem = problem});
}

const SpaceSpec* Fsck::FitOf(const SlabEntry& entry, std::string* why,
                             FsckProblemKind* kind) const {
  const auto group = groups_.find(entry.group);
  if (group == groups_.end()) {
    *kind = FsckProblemKind::kEntryUnknownGroup;
    *why = "is of group " + ToHex(entry.group) + ", which has no file";
    return nullptr;
  }
  *kind = FsckProblemKind::kEntryUnfit;
  const std::vector<SpaceGroupMember>& members = group->second.members;
  if (entry.member >= members.size()) {
    *why = "is of member " + std::to_string(entry.member) + " of group '" + group->second.name +
           "', which has " + std::to_string(members.size());
    return nullptr;
  }
  const SpaceSpec& spec = members[entry.member].spec;
  if (entry.space != spec.Id() || entry.length_bytes != spec.slot_bytes() ||
      entry.part_checksums.size() != spec.part_bytes.size()) {
    *why = "is not what group '" + group->second.name + "' says of its member " +
           std::to_string(entry.member);
    return nullptr;
  }
  return &spec;
}

void Fsck::FindOutdated() {
  std::ranges::sort(used_, [](const Used& a, const Used& b) {
    return a.fingerprint != b.fingerprint ? a.fingerprint < b.fingerprint : a.epoch > b.epoch;
  });
  for (size_t i = 1; i < used_.size(); ++i) {
    if (used_[i].fingerprint != used_[i - 1].fingerprint) continue;
    ++report_.entries_outdated;
    const SlotName& name = used_[i].name;
    slabs_.at(name.slab).cures.push_back({.slot = name.slot, .is_outdated = true});
  }
  used_ = {};
}

std::string Fsck::VerifyPayload(const SlabReader& reader, const SlabEntry& entry,
                                const SpaceSpec& spec, FsckProblemKind* kind) {
  std::vector<std::byte> bytes(entry.length_bytes);
  const Status read = reader.ReadPayload(entry.slot, bytes);
  if (!read.ok()) {
    *kind = FsckProblemKind::kPayloadUnreadable;
    return std::string("cannot be read: ") + std::strerror(static_cast<int>(read.detail()));
  }
  *kind = FsckProblemKind::kPayloadMismatch;
  for (uint32_t part = 0; part < spec.part_bytes.size(); ++part) {
    const uint64_t seed = ChecksumSeed(
        options_.secret,
        {.space = entry.space, .key = entry.key, .commit_id = entry.commit_id, .part_index = part});
    const auto of_part =
        std::span(bytes).subspan(spec.part_offset_bytes(part), spec.part_bytes[part]);
    if (ChecksumPart(of_part, seed) != entry.part_checksums[part]) {
      return "does not verify in part " + std::to_string(part);
    }
  }
  ++report_.payloads_verified;
  return "";
}

void Fsck::VerifyPayloads() {
  uint64_t told_bytes = 0;
  for (auto& [index, slab] : slabs_) {
    const SlabReader reader(slab.file, options_.secret, SlabReader::Access::kRead);
    const Status status = reader.VisitTable(
        [&, &slab = slab](uint32_t slot, Status of_entry, const SlabEntry& entry, auto) {
          if (!of_entry.ok() || entry.state != SlabEntryState::kUsed) return;
          if (entry.seal) {  // its key is the daemon's
            ++report_.payloads_encrypted;
            return;
          }
          std::string why;
          FsckProblemKind kind = FsckProblemKind::kPayloadMismatch;
          const SpaceSpec* spec = FitOf(entry, &why, &kind);
          if (spec == nullptr) return;  // noted before
          report_.payload_bytes_verified += entry.length_bytes;
          why = VerifyPayload(reader, entry, *spec, &kind);
          if (!why.empty()) {
            const bool is_drive = kind == FsckProblemKind::kPayloadUnreadable;
            slab.cures.push_back(
                {.slot = slot,
                 .to = is_drive ? SlabEntryState::kQuarantined : SlabEntryState::kFree,
                 .problem = Note(kind, "the block in " + NameOf(slab, slot) + ' ' + why)});
          }
          if (options_.progress != nullptr &&
              report_.payload_bytes_verified - told_bytes >= kProgressBytes) {
            told_bytes = report_.payload_bytes_verified;
            options_.progress(told_bytes, used_bytes_);
          }
        });
    if (!status.ok()) report_.notes.push_back("not all of " + slab.file.path + " was verified");
  }
  if (report_.payloads_encrypted == 0) return;
  report_.notes.push_back(std::to_string(report_.payloads_encrypted) +
                          " payloads are encrypted and were not verified: whoever has their keys "
                          "is the daemon, which `terrace fsck --online --verify` asks");
}

void Fsck::CompareRecord(SlotName name, std::span<const std::byte> entry) {
  ++report_.catalog_records;
  const auto slab = slabs_.find(name.slab);
  if (slab == slabs_.end()) {
    ++records_of_no_slab_[name.slab];
    return;
  }
  const bool is_there = name.slot < slab->second.hashes.size();
  const std::string where =
      "slot " + std::to_string(name.slot) + " of slab " + std::to_string(name.slab);
  uint64_t* hash = is_there ? &slab->second.hashes[name.slot] : nullptr;
  if (hash == nullptr || *hash == 0) {
    Note(FsckProblemKind::kCatalogStray,
         "the catalog has a record of " + where + (is_there ? ", which is free" : ", not there"));
  } else if (*hash != (KeyedHash64(options_.secret, entry) | 1)) {
    Note(FsckProblemKind::kCatalogDiffers,
         "the catalog's record of " + where + " is not the table's entry");
  }
  if (hash != nullptr) *hash = 0;
}

// A slab has many records: told one by one they would hide what else is wrong.
void Fsck::NoteRecordsOfNoSlab() {
  for (const auto& [slab, count] : records_of_no_slab_) {
    const size_t problem = Note(FsckProblemKind::kCatalogStray,
                                "the catalog has " + std::to_string(count) + " records of slab " +
                                    std::to_string(slab) + ", which is not there or was not read");
    report_.counts[static_cast<size_t>(FsckProblemKind::kCatalogStray)] += count - 1;
    if (problem != kNotListed) report_.problems[problem].count = count;
  }
}

void Fsck::LookAtCatalog() {
  const CatalogDb::Options options = catalog_options();
  const CatalogDb::Opened opened = CatalogDb::OpenToLook(options);
  if (opened.db == nullptr) {
    if (!opened.is_damaged) return;  // there is none
    report_.catalog = FsckCatalog::kDamaged;
    Note(FsckProblemKind::kCatalogDamaged,
         "the catalog " + options.directory + " is damaged: " + opened.why);
    return;
  }
  if (!opened.is_believed) {
    report_.catalog = FsckCatalog::kOpen;
    return;
  }
  report_.catalog = FsckCatalog::kClosed;
  const Status status =
      opened.db->ForEachExtent([this](SlotName name, std::span<const std::byte> entry) {
        CompareRecord(name, entry);
        return true;
      });
  NoteRecordsOfNoSlab();
  if (!status.ok()) {
    is_catalog_unreadable_ = true;
    report_.catalog = FsckCatalog::kDamaged;
    Note(FsckProblemKind::kCatalogDamaged,
         "the catalog " + options.directory + " cannot be read to its end");
    return;
  }
  for (const auto& [index, slab] : slabs_) {
    for (uint32_t slot = 0; slot < slab.hashes.size(); ++slot) {
      if (slab.hashes[slot] == 0) continue;
      Note(FsckProblemKind::kCatalogLacks, "the catalog has no record of " + NameOf(slab, slot));
    }
  }
}

void Fsck::ApplyCures(Slab& slab) {
  const SlabReader writer(slab.file, options_.secret, SlabReader::Access::kReadWrite);
  // Above all generations there were: extents stay unique.
  const uint32_t generation = slab.generation_max + 1;
  std::vector<const Cure*> written;
  std::vector<std::byte> payload(slab.file.geometry.shape.slot_bytes);
  for (const Cure& cure : slab.cures) {
    if (cure.is_if_readable && !writer.ReadPayload(cure.slot, payload).ok()) continue;
    const Status status =
        writer.WriteEntry({.state = cure.to, .slot = cure.slot, .generation = generation});
    if (status.ok()) written.push_back(&cure);
  }
  if (!writer.Sync().ok()) written.clear();
  for (const Cure* const cure : written) {
    if (!cure->is_outdated) MarkRepaired(cure->problem);
  }
  if (written.size() < slab.cures.size()) {
    report_.notes.push_back("not all entries of " + slab.file.path +
                            " could be repaired: check the drive");
  }
}

// Without every slab a catalog would be incomplete, and lose what it does not name.
void Fsck::DisbelieveCatalog() {
  const CatalogDb::Opened opened = CatalogDb::Open(catalog_options());
  if (opened.db != nullptr && opened.db->MarkProven().ok()) report_.catalog = FsckCatalog::kOpen;
  report_.notes.push_back(
      "the catalog is not written anew, because not all slabs could be read: the next start reads "
      "the tables");
}

bool Fsck::RewriteCatalog(std::string* why) {
  const CatalogDb::Options options = catalog_options();
  CatalogDb::Opened opened = CatalogDb::Open(options);
  // What opens and cannot be read is opened twice without being proven, which moves it away.
  if (is_catalog_unreadable_ && opened.db != nullptr) {
    opened.db.reset();
    opened = CatalogDb::Open(options);
  }
  *why = opened.why;
  if (opened.db == nullptr) return false;
  CatalogChanges changes;
  changes.is_anew = true;
  for (const auto& [id, spec] : groups_) {
    changes.groups.push_back({ToHex(id), FormatGroupFile(spec, options_.secret)});
  }
  Status status;
  const auto apply = [&] {
    while (status.ok()) {
      const Status applied = opened.db->Apply(changes);
      if (applied.code() == StatusCode::kBusy) {
        usleep(2'000);
        continue;
      }
      status = applied;
      break;
    }
    changes.Clear();
  };
  for (const auto& [index, slab] : slabs_) {
    const SlabReader reader(slab.file, options_.secret, SlabReader::Access::kRead);
    const Status read =
        reader.VisitTable([&, slab_index = index](uint32_t slot, Status of_entry,
                                                  const SlabEntry& entry, auto bytes) {
          const bool is_recorded = of_entry.code() == StatusCode::kCorrupt ||
                                   (of_entry.ok() && entry.state != SlabEntryState::kFree);
          if (!is_recorded) return;
          changes.extents.push_back({{slab_index, slot}, changes.entry_bytes.size(), bytes.size()});
          changes.entry_bytes.insert(changes.entry_bytes.end(), bytes.begin(), bytes.end());
          if (changes.extents.size() >= kBatchSlots) apply();
        });
    if (!read.ok()) status = read;  // it must not be believed
  }
  apply();
  if (status.ok()) status = opened.db->MarkProven();
  if (status.ok()) status = opened.db->CloseClean();
  *why = status.what();
  return status.ok();
}

void Fsck::Repair() {
  bool is_changed = false;
  for (auto& [index, slab] : slabs_) {
    if (slab.cures.empty()) continue;
    ApplyCures(slab);
    is_changed = true;
  }
  constexpr FsckProblemKind kOfCatalog[] = {
      FsckProblemKind::kCatalogDamaged, FsckProblemKind::kCatalogDiffers,
      FsckProblemKind::kCatalogLacks, FsckProblemKind::kCatalogStray};
  const auto is_of_catalog = [&](FsckProblemKind kind) {
    return std::ranges::find(kOfCatalog, kind) != std::end(kOfCatalog);
  };
  uint64_t of_catalog = 0;
  for (const FsckProblemKind kind : kOfCatalog) {
    of_catalog += report_.counts[static_cast<size_t>(kind)];
  }
  if (!is_changed && of_catalog == 0 && report_.catalog == FsckCatalog::kClosed) return;
  if (slabs_.empty() && of_catalog == 0) return;
  if (!is_all_read()) {
    DisbelieveCatalog();
    return;
  }
  std::string why;
  if (!RewriteCatalog(&why)) {
    report_.notes.push_back("the catalog could not be written anew: " + why);
    return;
  }
  report_.catalog = FsckCatalog::kRewritten;
  report_.repaired += of_catalog;
  for (FsckProblem& problem : report_.problems) {
    if (is_of_catalog(problem.kind)) problem.is_repaired = true;
  }
}

}  // namespace

const char* FsckProblemName(FsckProblemKind kind) {
  constexpr std::array<const char*, kFsckProblemKinds> kNames = {
      "slab_unreadable",     "table_unreadable", "entry_corrupt",    "entry_quarantined",
      "entry_unknown_group", "entry_unfit",      "payload_mismatch", "payload_unreadable",
      "group_unreadable",    "catalog_damaged",  "catalog_differs",  "catalog_lacks",
      "catalog_stray",       "entry_differs",    "entry_stray",      "entry_lacks"};
  return kNames[static_cast<size_t>(kind)];
}

std::string UnknownGroupsNote(uint64_t entry_count) {
  return std::to_string(entry_count) +
         " entries are left as they are, since the files of their groups are missing: they may be "
         "whole. Bring back the path of nvme.paths, or the directory groups/, that those files lay "
         "in, and the next start finds the blocks; if nobody needs them, `terrace fsck --repair "
         "--free-unknown-groups` frees their slots while terraced is stopped";
}

const char* FsckCatalogName(FsckCatalog catalog) {
  constexpr std::array<const char*, 6> kNames = {"none",    "open",      "closed",
                                                 "damaged", "rewritten", "in_use"};
  return kNames[static_cast<size_t>(catalog)];
}

uint64_t FsckReport::problem_count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

Status RunFsck(const FsckOptions& options, FsckReport* report, std::string* why) {
  Fsck fsck(options, report);
  TERRACE_RETURN_IF_ERROR(fsck.Lock(why));
  fsck.LookAtGroups();
  fsck.LookAtTables();
  if (options.payloads == FsckPayloads::kVerify) fsck.VerifyPayloads();
  fsck.LookAtCatalog();
  if (options.mode == FsckMode::kRepair) fsck.Repair();
  return Status::Ok();
}

}  // namespace terrace
