#include "daemon/domain/domain_nvme.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "daemon/config/fd_needs.h"
#include "daemon/log/log.h"
#include "daemon/persist/drive_directory.h"
#include "daemon/persist/slab_files.h"
#include "daemon/process/fd_limit.h"
#include "tiers/nvme/slot_inspector.h"

namespace terrace {
namespace {

constexpr uint64_t kCatalogStopUs = 5'000'000;
constexpr uint64_t kCatalogEndUs = 2'000'000;
constexpr uint64_t kKeepLearnedUs = 60'000'000;
// Drives slow down and wear when they are full.
constexpr uint64_t kUnwrittenDivisor = 10;
static_assert(FileBudget::kFdsPerFile == kFdsPerSlabFile, "what disks open is what is counted");

DiskEngineChoice EngineOf(DiskIo io) {
  switch (io) {
    case DiskIo::kAuto:
      return DiskEngineChoice::kAuto;
    case DiskIo::kUring:
      return DiskEngineChoice::kUring;
    case DiskIo::kThreads:
      return DiskEngineChoice::kThreads;
  }
  return DiskEngineChoice::kAuto;
}

Status MakeDirectory(const std::string& path, std::string* why) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return Status::Ok();
  const int error = errno;
  *why = "nvme.paths: cannot make the directory " + path + ": " + std::strerror(error) +
         "; make it, or name another";
  return Status(StatusCode::kIo, "a directory of the NVMe tier cannot be made", error);
}

void NoteFilesOf(const DaemonConfig& config, FileBudget& files) {
  const FdNeeds needs = FdNeedsOf(config);
  files.SetFdsWanted(needs.all());
  if (needs.slab_files <= files.files_max()) return;
  Log(LogLevel::kWarn, "the limit of open files is too low for nvme.capacity_bytes",
      {{"fds_max", files.fds_max()},
       {"fds_wanted", needs.all()},
       {"slab_files_max", files.files_max()},
       {"slab_files_wanted", needs.slab_files},
       {"remedy",
        "raise it (LimitNOFILE=, ulimit -Hn) and restart, or lower nvme.capacity_bytes"}});
}

}  // namespace

Status OpenFileBudget(const DaemonConfig& config, std::shared_ptr<FileBudget>* files,
                      std::string* why) {
  uint64_t fds_max = 0;
  TERRACE_RETURN_IF_ERROR(RaiseFdLimit(config, &fds_max, why));
  TERRACE_RETURN_IF_ERROR(CheckFileSizeLimit(config, why));
  const FdNeeds needs = FdNeedsOf(config);
  const uint64_t spare = fds_max - std::min(fds_max, needs.all());
  *files = std::make_shared<FileBudget>(FileBudget::Options{
      .fds_max = fds_max, .fds_kept = needs.without_slab_files() + std::min(needs.left, spare)});
  NoteFilesOf(config, **files);
  return Status::Ok();
}

DomainNvme::DomainNvme(Options options) : options_(std::move(options)) {}

DomainNvme::~DomainNvme() {
  catalog_.reset();  // its thread reads through the tier
}

std::string DomainNvme::DirectoryOn(size_t path) const {
  return options_.nvme.paths[path] + "/" + options_.domain_name;
}

std::vector<std::string> DomainNvme::slab_directories() const {
  std::vector<std::string> directories;
  for (size_t i = 0; i < options_.nvme.paths.size(); ++i) directories.push_back(DirectoryOn(i));
  return directories;
}

std::string DomainNvme::groups_directory(size_t path) const {
  return DirectoryOn(path) + "/groups";
}

Status DomainNvme::Open(const MissedErasures& missed, std::string* why) {
  for (size_t i = 0; i < options_.nvme.paths.size(); ++i) {
    ids_found_.push_back(ReadDriveId(DirectoryOn(i), options_.domain_name));
  }
  for (size_t i = 0; i < options_.nvme.paths.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(MakeDirectory(options_.nvme.paths[i], why));
    Result<std::unique_ptr<Disk>> disk = OpenDisk({.directory = DirectoryOn(i),
                                                   .post = options_.post,
                                                   .engine = EngineOf(options_.nvme.io),
                                                   .queue_max = options_.nvme.queue_depth,
                                                   .files_max = kSlabFilesOpenOfAPath,
                                                   .budget = options_.files},
                                                  why);
    if (!disk.ok()) return disk.status();
    const DiskStats stats = (*disk)->stats();
    Log(LogLevel::kInfo, "nvme path",
        {{"domain", options_.domain_name},
         {"path", options_.nvme.paths[i]},
         {"io", (*disk)->description()},
         {"filesystem_bytes", stats.filesystem_bytes}});
    TERRACE_RETURN_IF_ERROR(Identify(i, missed, why));
    disk_views_.push_back(disk->get());
    disks_.push_back(std::move(*disk));
  }
  NoteCapacity(options_.nvme.capacity_bytes);
  OpenKeys();
  if (options_.ring != nullptr) OpenCiphers();
  Catalog::Options catalog;
  catalog.db.directory = DirectoryOn(0) + "/catalog";
  catalog.db.memory_bytes = options_.nvme.catalog_memory_bytes;
  for (size_t i = 0; i < disks_.size(); ++i) catalog.db.slab_directories.push_back(DirectoryOn(i));
  catalog_ = std::make_unique<Catalog>(std::move(catalog));
  tier_ = std::make_unique<NvmeTier>(
      NvmeTier::Options{.domain_index = options_.domain_index,
                        .domain_name = options_.domain_name,
                        .secret = options_.secret,
                        .disks = disk_views_,
                        .lost_mounts = options_.lost_mounts,
                        .not_opened = options_.not_opened,
                        .outdated_files = slabs_outdated_,
                        .shares = options_.shares,
                        .slab_bytes = options_.nvme.slab_bytes,
                        .encryption = {.keys = options_.ring != nullptr ? keys_.get() : nullptr,
                                       .random = KernelRandom,
                                       .is_plain_served = options_.is_plain_served},
                        .catalog = catalog_.get(),
                        .now_us = options_.now_us,
                        .random = options_.random});
  return Status::Ok();
}

// Whose the directory is, wherever it lay before, and what of it missed an erasure. REQUIRES: the
// disk is open, and so nobody else's.
Status DomainNvme::Identify(size_t path, const MissedErasures& missed, std::string* why) {
  const Result<uint64_t>& found = ids_found_[path];
  drive_ids_.push_back(found.ok() ? *found : Missed::kNobody);
  const uint64_t id = drive_ids_.back();
  // Of a copy and its original nobody can tell which of them was there.
  const bool is_twin = id != Missed::kNobody &&
                       std::ranges::count_if(ids_found_, [id](const Result<uint64_t>& other) {
                         return other.ok() && *other == id;
                       }) > 1;
  const bool is_damaged = found.status().code() == StatusCode::kCorrupt;
  const bool has_been_erased = !missed.MayServe(options_.domain_index, Missed::kNobody);
  const char* cause = nullptr;
  if (is_damaged) {
    cause = "its drive-id is damaged, or another domain's";
  } else if (is_twin && has_been_erased) {
    cause = "another path has a copy of it, and something was erased";
  } else if (!missed.MayServe(options_.domain_index, id)) {
    cause = "it was not there when something was erased";
  }
  if (cause != nullptr) TERRACE_RETURN_IF_ERROR(Empty(path, cause, why));
  if (id == Missed::kNobody || is_twin) NameAnew(path);
  return RemoveOutdated(path, missed.missed(options_.domain_index).slabs, why);
}

void DomainNvme::NameAnew(size_t path) {
  uint64_t& id = drive_ids_[path];
  do {
    id = options_.random();
  } while (id == Missed::kNobody);
  const std::string directory = DirectoryOn(path);
  const Status written = WriteDriveId(directory, options_.domain_name, id);
  if (written.ok()) return;
  Log(LogLevel::kWarn, "a drive cannot be told from others",
      {{"domain", options_.domain_name},
       {"path", directory + "/" + kDriveIdName},
       {"why", std::string(written.what()) + ": " + std::strerror(written.detail())},
       {"remedy",
        "make room for it, or make it writable, and restart: else the drive begins empty at the "
        "start after an erasure"}});
  id = Missed::kNobody;
}

Status DomainNvme::Empty(size_t path, const char* cause, std::string* why) const {
  uint64_t slab_count = 0;
  const Status emptied = EmptyDrive(DirectoryOn(path), &slab_count);
  if (!emptied.ok()) {
    *why = "nvme.paths: " + DirectoryOn(path) + " has to begin empty, since " + cause +
           ", and cannot be emptied: " + emptied.what() + " (" + std::strerror(emptied.detail()) +
           "). Remove its files slab-* and keys/, or take the path out";
    return emptied;
  }
  if (slab_count == 0) return emptied;  // it is new
  Log(LogLevel::kWarn, "a drive is back, and begins empty",
      {{"domain", options_.domain_name},
       {"path", options_.nvme.paths[path]},
       {"why", cause},
       {"slabs_removed", slab_count}});
  return Status::Ok();
}

// Files that can be read now, and could not when something was erased, or hold nothing. Those that
// still cannot be stay as they are, and named; the tier leaves them alone, whatever it reads.
Status DomainNvme::RemoveOutdated(size_t path, const std::set<std::string>& outdated,
                                  std::string* why) {
  const std::string directory = DirectoryOn(path);
  const uint64_t id = drive_ids_[path];
  if (outdated.empty()) return Status::Ok();
  std::set<std::string> there;
  Status listed;
  for (const SlabFile& file : ListSlabFiles(directory, options_.secret, &listed)) {
    const std::string name = SlabNameOf(id, std::filesystem::path(file.path).filename());
    if (!outdated.contains(name)) continue;
    there.insert(name);
    if (!file.status.ok() && file.status.code() != StatusCode::kNotFound) continue;
    if (const Status removed = RemoveSynced(file.path); !removed.ok()) {
      *why = "nvme.paths: " + file.path +
             " has blocks of before something was erased, and cannot be removed: " +
             std::strerror(removed.detail()) + ". Remove it, or take the path out";
      return removed;
    }
    there.erase(name);
    Log(LogLevel::kWarn, "a slab file that was left alone is removed: something was erased since",
        {{"domain", options_.domain_name}, {"path", file.path}});
  }
  const std::string of_drive = SlabNameOf(id, "");
  for (const std::string& name : outdated) {
    if (!name.starts_with(of_drive)) continue;
    if (listed.ok() && !there.contains(name)) {
      slabs_gone_.push_back(name);
    } else {
      slabs_outdated_.insert(directory + "/" + name.substr(of_drive.size()));
    }
  }
  return Status::Ok();
}

void DomainNvme::TellMissed(MissedErasures* missed) const {
  const SlabRestore& restore = tier_->restore();
  const auto& unlisted = restore.unlisted_disks();
  for (const std::string& name : slabs_gone_) missed->StrikeSlab(options_.domain_index, name);
  Missed absent;
  for (uint32_t path = 0; path < drive_ids_.size(); ++path) {
    // Of one that cannot be listed nothing is erased.
    if (std::ranges::find(unlisted, path) != unlisted.end()) continue;
    missed->UseDrive(options_.domain_index, drive_ids_[path]);
    const std::string directory = DirectoryOn(path);
    for (const std::string& file : restore.left_files()) {
      const std::filesystem::path left(file);
      if (left.parent_path() != directory) continue;
      absent.slabs.insert(SlabNameOf(drive_ids_[path], left.filename()));
    }
  }
  missed->AddAbsent(options_.domain_index, absent);
}

void DomainNvme::NoteCapacity(uint64_t capacity_bytes) const {
  const uint64_t share_bytes = capacity_bytes / disks_.size();
  for (size_t i = 0; i < disks_.size(); ++i) {
    const uint64_t filesystem_bytes = disks_[i]->stats().filesystem_bytes;
    const uint64_t usable_bytes = filesystem_bytes - filesystem_bytes / kUnwrittenDivisor;
    if (filesystem_bytes == 0 || share_bytes <= usable_bytes) continue;
    Log(LogLevel::kWarn, "nvme path is smaller than its share",
        {{"path", options_.nvme.paths[i]},
         {"share_bytes", share_bytes},
         {"filesystem_bytes", filesystem_bytes},
         {"remedy", "lower nvme.capacity_bytes: leave a tenth of each drive unwritten"}});
  }
}

void DomainNvme::NoteFiles(const DaemonConfig& config) const {
  NoteFilesOf(config, *options_.files);
}

// Without a ring, too: what is erased by now must not come back with the keys of before.
void DomainNvme::OpenKeys() {
  // The second place is always there: what is erased while a drive is away is erased.
  GroupKeyFiles::Options keys{
      .directory = DirectoryOn(0) + "/keys",
      .second_directory = KeptKeysDirectory(options_.state_dir, options_.domain_name),
      .drive_path = options_.nvme.paths[0],
      .ring = options_.ring};
  for (size_t i = 1; i < disks_.size(); ++i) {
    keys.other_directories.push_back(DirectoryOn(i) + "/keys");
  }
  keys_ = std::make_unique<GroupKeyFiles>(std::move(keys));
}

void DomainNvme::OpenCiphers() {
  cipher_pool_ = std::make_unique<CipherPool>(CipherPool::Options{.post = options_.post});
  for (Disk*& view : disk_views_) {
    cipher_disks_.push_back(
        std::make_unique<CipherDisk>(*view, CipherDisk::Options{.pool = cipher_pool_.get()}));
    view = cipher_disks_.back().get();
  }
}

RecoverySummary DomainNvme::Restore(Store& store, MissedErasures* missed) {
  RecoverySummary summary;
  keys_->Load(&summary.notes);
  RecoveryOptions recovery{.domain_index = options_.domain_index,
                           .secret = options_.secret,
                           .groups_directory = groups_directory(),
                           .restoration = &store.restoration(),
                           .tier = tier_.get(),
                           .catalog = catalog_.get()};
  for (size_t i = 0; i < disks_.size(); ++i) {
    recovery.slab_directories.push_back(DirectoryOn(i));
    if (i > 0) recovery.other_groups_directories.push_back(groups_directory(i));
  }
  const Status status = RestoreDomain(recovery, &summary);
  TellMissed(missed);
  for (const std::string& note : summary.notes) {
    Log(LogLevel::kWarn, "nvme note", {{"domain", options_.domain_name}, {"note", note}});
  }
  if (!status.ok()) {
    Log(LogLevel::kError, "a path could not be read",
        {{"domain", options_.domain_name}, {"why", std::string(status.what())}});
  }
  Log(LogLevel::kInfo, "restored",
      {{"domain", options_.domain_name},
       {"from", RecoverySourceName(summary.source)},
       {"why", summary.why},
       {"groups", summary.groups},
       {"blocks", summary.restored.blocks},
       {"copies_dropped", summary.restored.copies_dropped},
       {"entries_corrupt", summary.counts.entries_corrupt},
       {"entries_left", summary.counts.entries_left},
       {"entries_locked", summary.counts.entries_locked},
       {"entries_plain", summary.counts.entries_plain},
       {"took_ms", summary.duration_us / kUsPerMs}});
  tier_->SetListener(&store.events());
  StartFromLearned(store.restoration());
  StartCatalog();
  return summary;
}

void DomainNvme::StartCatalog() {
  catalog_->Start({
      .read_entry =
          [this](uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) {
            return tier_->ReadEntryNow(slab, slot, entry);
          },
      .has_answers = [this] { options_.post([this] { TakeAnswers(); }); },
      .trouble =
          [this](const std::string& sentence) {
            Log(LogLevel::kWarn, "catalog", {{"domain", options_.domain_name}, {"why", sentence}});
          },
      .is_back = [this] { options_.post([this] { RewriteCatalog(); }); },
  });
}

void DomainNvme::RewriteCatalog() {
  std::vector<Catalog::SlabSlots> slabs;
  const SlotInspector& inspector = tier_->inspector();
  for (std::optional<SlabView> slab = inspector.NextSlab(0); slab.has_value();
       slab = inspector.NextSlab(slab->index + 1)) {
    slabs.push_back({.slab = slab->index, .slot_count = slab->geometry.slot_count});
  }
  catalog_->Rewrite(std::move(slabs));
}

// A turn takes some; the rest is the next turn's.
void DomainNvme::TakeAnswers() {
  std::vector<SlotName> slots;
  const bool has_more = catalog_->TakeAnswers(&slots);
  for (const SlotName& name : slots) tier_->OnCataloged(name.slab, name.slot);
  if (has_more) options_.post([this] { TakeAnswers(); });
}

void DomainNvme::Flush() {
  for (const std::unique_ptr<Disk>& disk : disks_) disk->Flush();
}

bool DomainNvme::is_idle() const { return tier_->is_quiet(); }

void DomainNvme::StartFromLearned(Restoration& restoration) {
  learned_kept_us_ = options_.now_us();
  if (catalog_->db() == nullptr) return;
  for (Learned& own : restoration.WhatWasLearned(options_.domain_index)) {
    const Result<std::string> kept = catalog_->db()->GetPrior(own.name);
    if (kept.code() == StatusCode::kNotFound) continue;
    bool has_started = false;
    if (kept.ok()) {
      const std::span<const std::byte> bytes = std::as_bytes(std::span(*kept));
      own.state.assign(bytes.begin(), bytes.end());
      has_started = restoration.StartFrom(options_.domain_index, own);
    }
    Log(LogLevel::kInfo, "policy",
        {{"domain", options_.domain_name},
         {"policy", own.name},
         {"starts_from", has_started ? "what was learned" : "its prior"}});
  }
}

void DomainNvme::WriteLearned(const Restoration& restoration) {
  learned_kept_us_ = options_.now_us();
  for (const Learned& learned : restoration.WhatWasLearned(options_.domain_index)) {
    catalog_->KeepPrior(
        learned.name,
        std::string(reinterpret_cast<const char*>(learned.state.data()), learned.state.size()));
  }
}

void DomainNvme::KeepLearned(const Restoration& restoration) {
  if (options_.now_us() >= learned_kept_us_ + kKeepLearnedUs) WriteLearned(restoration);
}

void DomainNvme::Close(const Restoration& restoration) {
  WriteLearned(restoration);
  const Status status = catalog_->StopClean(kCatalogStopUs);
  if (!status.ok()) {
    Log(LogLevel::kWarn, "catalog not closed in order: the next start scans",
        {{"domain", options_.domain_name}, {"why", std::string(status.what())}});
  }
}

bool DomainNvme::EndThreads() { return catalog_->Abandon(kCatalogEndUs); }

DiskGroupFiles::Domain DomainNvme::group_files(size_t path) {
  DiskGroupFiles::Domain files{.directory = groups_directory(path),
                               .secret = options_.secret,
                               .drive_path = options_.nvme.paths[path]};
  if (path > 0) return files;
  files.keys = keys_.get();
  // A copy for the catalog; of no content: none any more.
  files.also = [this](const GroupId& id, const std::string& content) {
    catalog_->KeepGroup(id, content);
  };
  return files;
}

void DomainNvme::SetRing(const std::shared_ptr<const KeyRing>& ring, GroupFilesOnPaths& files) {
  const auto done = [name = options_.domain_name, ring,
                     keys = keys_.get()](const std::vector<std::string>& notes) {
    for (const std::string& note : notes) {
      Log(LogLevel::kError, "encryption keys", {{"domain", name}, {"why", note}});
    }
    const GroupKeyFiles::Counts counts = keys->counts();
    Log(LogLevel::kInfo, "keys of groups are wrapped",
        {{"domain", name},
         {"keys", ring->Describe()},
         {"groups", counts.usable},
         {"failed", notes.size()},
         {"locked", counts.locked}});
  };
  files.SetRing(options_.domain_index, ring, done);
}

void DomainNvme::WrapWhatIsOwed(GroupFilesOnPaths& files) {
  if (keys_->has_wrappings_owed()) SetRing(options_.ring, files);
}

std::string KeptKeysDirectory(const std::string& state_dir, const std::string& domain_name) {
  return state_dir + "/" + domain_name + ".keys";
}

void RestoreGroups(Store& store, uint32_t domain_index, const std::string& directory,
                   const DomainSecret& secret) {
  RecoverySummary summary;
  (void)RestoreDomain({.domain_index = domain_index,
                       .secret = secret,
                       .groups_directory = directory,
                       .restoration = &store.restoration()},
                      &summary);
  for (const std::string& note : summary.notes) {
    Log(LogLevel::kWarn, "group files", {{"directory", directory}, {"why", note}});
  }
}

}  // namespace terrace
