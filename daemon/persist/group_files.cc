#include "daemon/persist/group_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "daemon/persist/kept_file.h"
#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kIdDigits = 32;
constexpr std::string_view kStemTitle = "terrace group file";
constexpr std::string_view kDraftSuffix = ".new";

Status FromErrno(const char* what) { return Status(StatusCode::kIo, what, errno); }

std::string TextOf(const Status& status) {
  if (status.detail() == 0) return std::string(status.what());
  return std::string(status.what()) + " (" + std::strerror(status.detail()) + ")";
}

bool WriteAll(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t done = write(fd, content.data(), content.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    content.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

// Regular files only, and no more of them than a group file has.
Status ReadSmallFile(const std::string& path, std::string* content) {
  const OpenFile file(path, O_RDONLY | O_NONBLOCK, 0);
  if (file.fd() < 0) return FromErrno("cannot open it");
  struct stat about {};
  if (fstat(file.fd(), &about) != 0) return FromErrno("cannot look at it");
  if (!S_ISREG(about.st_mode)) return Status(StatusCode::kCorrupt, "it is no regular file");
  if (static_cast<uint64_t>(about.st_size) > kGroupFileBytesMax) {
    return Status(StatusCode::kCorrupt, "it is longer than any group file");
  }
  content->resize(static_cast<size_t>(about.st_size));
  size_t done_bytes = 0;
  while (done_bytes < content->size()) {
    const ssize_t got = read(file.fd(), content->data() + done_bytes, content->size() - done_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno("cannot read it");
    if (got == 0) break;
    done_bytes += static_cast<size_t>(got);
  }
  content->resize(done_bytes);
  return Status::Ok();
}

std::vector<fs::path> GroupPaths(const std::string& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == kGroupFileSuffix) paths.push_back(at->path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

fs::path PathOf(const std::string& directory, const std::string& stem) {
  return fs::path(directory) / (stem + std::string(kGroupFileSuffix));
}

// Of a group whose usual name a file under another secret has.
std::string StemUnder(const DomainSecret& secret, const GroupId& id) {
  return ToHex(id) + '-' + GroupFileSeal(kStemTitle, secret);
}

// A daemon with another secret has left it, and may come back: the group's content is whole, and
// only the seal is not ours.
bool IsUnderAnotherSecret(const fs::path& path, const GroupId& id, const DomainSecret& secret) {
  std::string content, why;
  if (!ReadSmallFile(path, &content).ok()) return false;
  SpaceGroupSpec spec;
  return ParseGroupFile(content, secret, &spec, &why).code() == StatusCode::kCorrupt &&
         ReadUnsealedGroupFile(content, &spec) && spec.Id() == id;
}

// Where a group's file is, or belongs.
fs::path PlaceOf(const std::string& directory, const GroupId& id, const DomainSecret& secret) {
  const fs::path usual = PathOf(directory, ToHex(id));
  return IsUnderAnotherSecret(usual, id, secret) ? PathOf(directory, StemUnder(secret, id)) : usual;
}

// Of which group a file says that it is; none: of no group's name.
std::optional<GroupId> ClaimedId(const fs::path& path) {
  const Result<GroupId> id = ParseId<GroupIdTag>(path.stem().string().substr(0, kIdDigits));
  return id.ok() ? std::optional(*id) : std::nullopt;
}

// Beside its place, synced, then into it.
Status WriteAt(const fs::path& path, std::string_view content) {
  const fs::path directory = path.parent_path();
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Status(StatusCode::kIo, "cannot make the directory of groups", error.value());
  const std::string draft = path.string() + std::string(kDraftSuffix);
  {
    const OpenFile file(draft, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file.fd() < 0) return FromErrno("cannot create the group's file");
    if (!WriteAll(file.fd(), content) || fsync(file.fd()) != 0) {
      const Status failed = FromErrno("cannot write the group's file");
      unlink(draft.c_str());
      return failed;
    }
  }
  if (rename(draft.c_str(), path.c_str()) != 0) return FromErrno("cannot place the group's file");
  return SyncDirectory(directory, "cannot sync the directory of groups");
}

}  // namespace

std::vector<FoundGroup> FindGroupFiles(const std::vector<std::string>& directories,
                                       const DomainSecret& secret,
                                       std::vector<std::string>* notes) {
  struct Candidate {
    fs::path path;
    fs::file_time_type written;
  };
  std::vector<Candidate> candidates;
  for (const std::string& directory : directories) {
    for (fs::path& path : GroupPaths(directory)) {
      std::error_code error;
      const fs::file_time_type written = fs::last_write_time(path, error);
      candidates.push_back({std::move(path), written});
    }
  }
  std::ranges::stable_sort(candidates, std::greater(), &Candidate::written);
  std::vector<FoundGroup> found;
  for (const Candidate& candidate : candidates) {
    const fs::path& path = candidate.path;
    std::string content, why;
    const auto note = [&](const std::string& reason) {
      notes->push_back("group file " + path.string() + " is left aside: " + reason);
    };
    if (const Status status = ReadSmallFile(path, &content); !status.ok()) {
      note(status.what());
      continue;
    }
    SpaceGroupSpec spec;
    if (!ParseGroupFile(content, secret, &spec, &why).ok()) {
      note(why);
    } else if (path.stem() != ToHex(spec.Id()) && path.stem() != StemUnder(secret, spec.Id())) {
      note("it holds group " + ToHex(spec.Id()));
    } else {
      found.push_back({.spec = std::move(spec), .directory = path.parent_path()});
    }
  }
  return found;
}

std::vector<SpaceGroupSpec> LoadGroupFiles(const std::string& directory, const DomainSecret& secret,
                                           std::vector<std::string>* notes) {
  std::vector<SpaceGroupSpec> specs;
  for (FoundGroup& found : FindGroupFiles({directory}, secret, notes)) {
    specs.push_back(std::move(found.spec));
  }
  return specs;
}

Status WriteGroupFile(const std::string& directory, const SpaceGroupSpec& spec,
                      const DomainSecret& secret) {
  return WriteAt(PlaceOf(directory, spec.Id(), secret), FormatGroupFile(spec, secret));
}

struct DiskGroupFiles::Writer {
  using KeptGroup = std::pair<uint32_t, GroupId>;
  struct Job {
    uint32_t domain_index = 0;
    GroupId id;
    uint64_t stamp = 0;                  // of the Keep
    std::optional<SpaceGroupSpec> spec;  // none: a Drop, or what follows
    bool is_key_erasure = false;
    bool is_again = false;        // of what is lost
    std::function<void()> other;  // all there is to do
    KeptGroup group() const { return {domain_index, id}; }
  };
  struct Kept {
    uint64_t stamp = 0;
    bool is_written = false;
    SpaceGroupSpec spec;
  };
  struct Lost {
    SpaceGroupSpec spec;
    std::string why = {};  // it could not be written; empty: nobody has tried yet
  };
  // Of a domain's directories: another one when a file in them comes or goes.
  using Looks = std::array<struct timespec, 2>;

  explicit Writer(Options chosen) : options(std::move(chosen)) {}
  const Options options;

  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable drained;
  std::deque<Job> jobs;
  std::map<KeptGroup, Kept> kept;                 // in this run, or soon
  std::map<KeptGroup, SpaceGroupSpec> inherited;  // not kept in this run yet
  std::map<KeptGroup, Lost> lost;                 // removed, or not written; tried again
  std::vector<std::optional<Looks>> looked;       // by domain; the writing thread's
  uint64_t keep_count = 0;
  size_t drops_queued = 0;
  bool is_busy = false;
  bool is_stopping = false;
  std::thread thread;

  void Run();
  Status Write(const Job& job);
  Status WriteIn(const Domain& domain, const Job& job, const std::string& content);
  void TellNotWritten(const Job& job, const Status& status) const;
  void TellRemoved(const Domain& domain, size_t count) const;
  void Remove(const Job& job);
  void EraseKey(const Job& job);
  void EraseKeyFile(const Domain& domain, const GroupId& id) const;
  void EraseOwedKeys(uint32_t domain_index);
  void WrapOwedKeys(uint32_t domain_index) const;
  void EndWrite(const Job& job, const Status& status);
  // Of what was kept and is not written: it is lost. REQUIRES: the mutex is held.
  void Lose(const KeptGroup& group, uint64_t stamp, const Status& status);
  bool IsKept(const KeptGroup& group);
  // REQUIRES: the mutex is held.
  bool IsAnyNotWritten(uint32_t domain_index) const;
  void MakeRoom(const Job& job);
  void LookForRemoved();
  std::vector<KeptGroup> RemovedOf(uint32_t domain_index);
  void KeepAgain(const std::vector<KeptGroup>& groups);
};

// The times of the last change; zeros where there is no directory.
static std::array<struct timespec, 2> LookAt(const DiskGroupFiles::Domain& domain) {
  std::array<struct timespec, 2> looks{};
  struct stat about {};
  if (stat(domain.directory.c_str(), &about) == 0) looks[0] = about.st_mtim;
  const bool has_keys = domain.keys != nullptr;
  if (has_keys && stat(domain.keys->directory().c_str(), &about) == 0) looks[1] = about.st_mtim;
  return looks;
}

static bool IsOfNow(const std::array<struct timespec, 2>& looks) {
  const time_t now_s = ::time(nullptr);
  return std::ranges::any_of(looks,
                             [&](const struct timespec& at) { return at.tv_sec + 1 >= now_s; });
}

static bool IsThere(const DiskGroupFiles::Domain& domain, const GroupId& id) {
  std::error_code error;
  if (domain.keys != nullptr && !domain.keys->IsThere(id)) return false;
  return fs::exists(PathOf(domain.directory, ToHex(id)), error) ||
         fs::exists(PathOf(domain.directory, StemUnder(domain.secret, id)), error);
}

bool DiskGroupFiles::Writer::IsKept(const KeptGroup& group) {
  const std::lock_guard lock(mutex);
  return kept.contains(group);
}

// Removes what was opened longest ago until one more file fits.
void DiskGroupFiles::Writer::MakeRoom(const Job& job) {
  const std::string& directory = options.domains[job.domain_index].directory;
  const DomainSecret& secret = options.domains[job.domain_index].secret;
  std::vector<std::pair<fs::file_time_type, fs::path>> old;
  const std::vector<fs::path> paths = GroupPaths(directory);
  if (paths.size() < options.groups_max) return;
  size_t own_count = 0;
  for (const fs::path& path : paths) {
    const std::optional<GroupId> id = ClaimedId(path);
    if (id && IsUnderAnotherSecret(path, *id, secret)) continue;
    ++own_count;
    if (id && IsKept({job.domain_index, *id})) continue;
    std::error_code error;
    old.emplace_back(fs::last_write_time(path, error), path);
  }
  std::sort(old.begin(), old.end());
  const size_t surplus = own_count + 1 - std::min<size_t>(own_count + 1, options.groups_max);
  for (size_t i = 0; i < std::min(surplus, old.size()); ++i) {
    std::error_code error;
    fs::remove(old[i].second, error);
  }
}

Status DiskGroupFiles::Writer::Write(const Job& job) {
  TERRACE_CHECK(job.spec.has_value() && job.domain_index < options.domains.size(),
                "what is written is a domain's spec");
  const Domain& domain = options.domains[job.domain_index];
  const std::string content = FormatGroupFile(*job.spec, domain.secret);
  Status status = WriteIn(domain, job, content);
  if (domain.also && (status.ok() || !job.is_again)) domain.also(job.id, content);
  // Also of a group that another path alone can keep.
  const Status has_key = domain.keys != nullptr ? domain.keys->Ensure(job.id) : Status::Ok();
  return status.ok() ? has_key : status;
}

Status DiskGroupFiles::Writer::WriteIn(const Domain& domain, const Job& job,
                                       const std::string& content) {
  std::error_code error;
  if (!domain.drive_path.empty() && !fs::is_directory(domain.drive_path, error)) {
    return Status(StatusCode::kIo, "the drive's directory is gone", ENOENT);
  }
  const fs::path path = PlaceOf(domain.directory, job.id, domain.secret);
  std::string present;
  if (ReadSmallFile(path, &present).ok() && present == content) {
    // Opened again: not the oldest any more.
    if (!job.is_again) utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
    return Status::Ok();
  }
  if (!fs::exists(path, error)) MakeRoom(job);
  return WriteAt(path, content);
}

void DiskGroupFiles::Writer::EraseKeyFile(const Domain& domain, const GroupId& id) const {
  const Status erased = domain.keys->EraseFile(id);
  if (erased.ok() || !options.trouble) return;
  options.trouble("the key of group " + ToHex(id) + " is destroyed in memory, but not in " +
                  domain.keys->Places() + ": " + TextOf(erased) +
                  ". Its blocks can be read again after a restart until that is done, and it is "
                  "tried again each second");
}

// Of groups for which no erasure is queued: that one would meet the next key.
void DiskGroupFiles::Writer::EraseOwedKeys(uint32_t domain_index) {
  GroupKeyFiles* const keys = options.domains[domain_index].keys;
  if (keys == nullptr || !keys->has_erasures_owed()) return;
  bool is_any_erased = false;
  for (const GroupId& id : keys->ErasuresOwed()) {
    const KeptGroup group{domain_index, id};
    {
      const std::lock_guard lock(mutex);
      const auto is_of_it = [&](const Job& job) { return !job.spec && job.group() == group; };
      if (std::ranges::any_of(jobs, is_of_it)) continue;
    }
    is_any_erased |= keys->EraseFile(id).ok();
  }
  if (is_any_erased && options.changed) options.changed(domain_index);
}

// What could not be wrapped has been told, and is a condition until it can be.
void DiskGroupFiles::Writer::WrapOwedKeys(uint32_t domain_index) const {
  GroupKeyFiles* const keys = options.domains[domain_index].keys;
  if (keys == nullptr || !keys->has_wrappings_owed()) return;
  std::vector<std::string> notes;
  (void)keys->WrapOwed(&notes);
}

void DiskGroupFiles::Writer::Lose(const KeptGroup& group, uint64_t stamp, const Status& status) {
  const auto found = kept.find(group);
  if (found == kept.end() || found->second.stamp != stamp) return;
  lost.try_emplace(group, Lost{.spec = found->second.spec}).first->second.why = TextOf(status);
  kept.erase(found);
}

// The group's blocks are unreadable; if it is in use its next ones get another key.
void DiskGroupFiles::Writer::EraseKey(const Job& job) {
  const Domain& domain = options.domains[job.domain_index];
  EraseKeyFile(domain, job.id);
  Status renewed;
  if (IsKept(job.group())) renewed = domain.keys->Ensure(job.id);
  {
    const std::lock_guard lock(mutex);
    const auto found = kept.find(job.group());
    const bool is_meant = found != kept.end() && found->second.stamp == job.stamp;
    if (is_meant && renewed.ok()) found->second.is_written = true;
    if (!renewed.ok()) Lose(job.group(), job.stamp, renewed);
  }
  if (options.changed) options.changed(job.domain_index);
}

// Kept again since: what writes it is queued behind this.
void DiskGroupFiles::Writer::Remove(const Job& job) {
  TERRACE_CHECK(!job.spec.has_value() && job.domain_index < options.domains.size(),
                "what is removed is a domain's");
  if (IsKept(job.group())) return;
  const Domain& domain = options.domains[job.domain_index];
  if (domain.keys != nullptr && domain.keys->IsLocked(job.id)) return;
  std::error_code error;
  fs::remove(PlaceOf(domain.directory, job.id, domain.secret), error);
  fs::remove(PathOf(domain.directory, StemUnder(domain.secret, job.id)), error);
  if (domain.keys != nullptr && domain.keys->encrypts()) {
    domain.keys->Destroy(job.id);
    EraseKeyFile(domain, job.id);
  }
  if (domain.also) domain.also(job.id, "");
}

void DiskGroupFiles::Writer::EndWrite(const Job& job, const Status& status) {
  bool is_told = false, is_meant = false;
  // It may be gone already, and the directory look as it did before.
  if (job.domain_index < looked.size()) looked[job.domain_index].reset();
  {
    const std::lock_guard lock(mutex);
    const auto before = lost.find(job.group());
    is_told = options.are_copies ? IsAnyNotWritten(job.domain_index)
                                 : before != lost.end() && !before->second.why.empty();
    if (before != lost.end() && status.ok()) lost.erase(before);
    const auto found = kept.find(job.group());
    is_meant = found != kept.end() && found->second.stamp == job.stamp;
    if (is_meant && status.ok()) found->second.is_written = true;
    if (!status.ok()) Lose(job.group(), job.stamp, status);
  }
  // Of what was dropped since, or its key destroyed, there is nothing to mend: what is queued for
  // that tells of itself.
  if (!status.ok() && is_meant && !is_told && options.trouble) TellNotWritten(job, status);
  if (options.changed) options.changed(job.domain_index);
}

void DiskGroupFiles::Writer::TellNotWritten(const Job& job, const Status& status) const {
  const std::string& directory = options.domains[job.domain_index].directory;
  if (options.are_copies) {
    options.trouble("files of groups cannot be copied to " + directory + ": " + TextOf(status) +
                    ". If the other drives are lost, the blocks on this one are not found; it is "
                    "tried again each second");
    return;
  }
  options.trouble("group '" + job.spec->name + "' cannot be kept in " + directory + ": " +
                  TextOf(status) +
                  ". None of its blocks are written to a drive until it is, here or on another "
                  "path, and those there are not found by the next start; it is tried again each "
                  "second");
}

bool DiskGroupFiles::Writer::IsAnyNotWritten(uint32_t domain_index) const {
  return std::ranges::any_of(lost, [&](const auto& entry) {
    return entry.first.first == domain_index && !entry.second.why.empty();
  });
}

// Copies that are not there yet are no news: there may never have been any.
void DiskGroupFiles::Writer::TellRemoved(const Domain& domain, size_t count) const {
  if (options.are_copies || !options.trouble) return;
  options.trouble("files of " + std::to_string(count) + " groups below " +
                  fs::path(domain.directory).parent_path().string() +
                  " were removed while terraced runs: they are written again");
}

// Somebody may remove files under a daemon that runs, be it with the slabs: a successor would know
// nothing of blocks that are called persisted. What is lost is known here, and written again.
void DiskGroupFiles::Writer::LookForRemoved() {
  looked.resize(options.domains.size());
  for (uint32_t i = 0; i < options.domains.size(); ++i) {
    EraseOwedKeys(i);
    WrapOwedKeys(i);
    std::vector<KeptGroup> again;
    {
      const std::lock_guard lock(mutex);
      for (const auto& [group, is] : lost) {
        const auto found = kept.find(group);
        const bool is_coming = found != kept.end() && !found->second.is_written;
        if (group.first == i && !is_coming) again.push_back(group);
      }
    }
    const Looks now = LookAt(options.domains[i]);
    const bool is_same = looked[i] && std::memcmp(&*looked[i], &now, sizeof(now)) == 0;
    // Of what has changed just now the next change may have the same time.
    looked[i] = IsOfNow(now) ? std::nullopt : std::optional(now);
    const std::vector<KeptGroup> removed = is_same ? std::vector<KeptGroup>() : RemovedOf(i);
    if (!removed.empty()) TellRemoved(options.domains[i], removed.size());
    again.insert(again.end(), removed.begin(), removed.end());
    KeepAgain(again);
    if (!removed.empty() && options.changed) options.changed(i);
  }
}

std::vector<DiskGroupFiles::Writer::KeptGroup> DiskGroupFiles::Writer::RemovedOf(
    uint32_t domain_index) {
  std::map<KeptGroup, SpaceGroupSpec> expected;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [group, is] : kept) {
      if (group.first == domain_index && is.is_written) expected.emplace(group, is.spec);
    }
    for (const auto& [group, spec] : inherited) {
      if (group.first == domain_index) expected.emplace(group, spec);
    }
  }
  std::vector<KeptGroup> removed;
  for (const auto& [group, spec] : expected) {
    if (IsThere(options.domains[domain_index], group.second)) continue;
    const std::lock_guard lock(mutex);
    // Dropped meanwhile, or its key destroyed: what comes of that is queued.
    const auto found = kept.find(group);
    const bool is_kept = found != kept.end() && found->second.is_written;
    if (!is_kept && !inherited.contains(group)) continue;
    lost.try_emplace(group, Lost{.spec = spec});
    removed.push_back(group);
  }
  return removed;
}

void DiskGroupFiles::Writer::KeepAgain(const std::vector<KeptGroup>& groups) {
  const std::lock_guard lock(mutex);
  for (const KeptGroup& group : groups) {
    const auto found = lost.find(group);
    if (found == lost.end()) continue;  // dropped
    const uint64_t stamp = ++keep_count;
    const SpaceGroupSpec& spec = found->second.spec;
    kept[group] = {.stamp = stamp, .spec = spec};
    inherited.erase(group);
    jobs.push_back({.domain_index = group.first,
                    .id = group.second,
                    .stamp = stamp,
                    .spec = spec,
                    .is_again = true});
  }
}

void DiskGroupFiles::Writer::Run() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point next_look = Clock::now() + options.look_interval;
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait_until(lock, next_look, [this] { return is_stopping || !jobs.empty(); });
    if (!is_stopping && Clock::now() >= next_look) {
      lock.unlock();
      LookForRemoved();
      next_look = Clock::now() + options.look_interval;
      lock.lock();
    }
    if (jobs.empty() && !is_stopping) continue;
    if (jobs.empty()) return;
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    const bool is_drop = !job.spec && !job.is_key_erasure && !job.other;
    if (is_drop) --drops_queued;
    is_busy = true;
    lock.unlock();
    if (job.spec) {
      EndWrite(job, Write(job));
    } else if (job.is_key_erasure) {
      EraseKey(job);
    } else if (job.other) {
      job.other();
    } else {
      Remove(job);
    }
    lock.lock();
    is_busy = false;
    if (jobs.empty()) drained.notify_all();
  }
}

DiskGroupFiles::DiskGroupFiles(Options options)
    : writer_(std::make_unique<Writer>(std::move(options))) {
  TERRACE_CHECK(writer_->options.groups_max > 0, "one group at least has a file");
  writer_->thread = StartThread("terrace-groups", [writer = writer_.get()] { writer->Run(); });
}

DiskGroupFiles::~DiskGroupFiles() {
  {
    const std::lock_guard lock(writer_->mutex);
    writer_->is_stopping = true;
  }
  writer_->wake.notify_all();
  writer_->thread.join();
}

void DiskGroupFiles::Keep(uint32_t domain_index, const SpaceGroupSpec& spec) {
  TERRACE_CHECK(domain_index < writer_->options.domains.size(), "the domain has a directory");
  const GroupId id = spec.Id();
  {
    const std::lock_guard lock(writer_->mutex);
    const uint64_t stamp = writer_->keep_count + 1;
    const Writer::KeptGroup group{domain_index, id};
    if (!writer_->kept.insert({group, {.stamp = stamp, .spec = spec}}).second) return;
    writer_->keep_count = stamp;
    writer_->inherited.erase(group);
    writer_->jobs.push_back({.domain_index = domain_index, .id = id, .stamp = stamp, .spec = spec});
  }
  writer_->wake.notify_one();
}

void DiskGroupFiles::Inherit(uint32_t domain_index, const SpaceGroupSpec& spec) {
  TERRACE_CHECK(domain_index < writer_->options.domains.size(), "the domain has a directory");
  const Writer::KeptGroup group{domain_index, spec.Id()};
  const std::lock_guard lock(writer_->mutex);
  if (!writer_->kept.contains(group)) writer_->inherited.emplace(group, spec);
}

void DiskGroupFiles::Drop(uint32_t domain_index, const GroupId& id) {
  TERRACE_CHECK(domain_index < writer_->options.domains.size(), "the domain has a directory");
  {
    const std::lock_guard lock(writer_->mutex);
    const Writer::KeptGroup group{domain_index, id};
    writer_->kept.erase(group);
    writer_->inherited.erase(group);
    writer_->lost.erase(group);
    std::erase_if(writer_->jobs,
                  [&](const Writer::Job& job) { return job.spec && job.group() == group; });
    if (writer_->drops_queued >= kDropsQueuedMax) return;
    ++writer_->drops_queued;
    writer_->jobs.push_back({.domain_index = domain_index, .id = id});
  }
  writer_->wake.notify_one();
}

GroupFiles::State DiskGroupFiles::StateOf(uint32_t domain_index, const GroupId& id) const {
  const std::lock_guard lock(writer_->mutex);
  const auto found = writer_->kept.find({domain_index, id});
  if (found == writer_->kept.end()) return State::kFailed;
  return found->second.is_written ? State::kKept : State::kComing;
}

bool DiskGroupFiles::IsLost(uint32_t domain_index, const GroupId& id) const {
  const std::lock_guard lock(writer_->mutex);
  return writer_->lost.contains({domain_index, id});
}

GroupFilesTrouble DiskGroupFiles::TroubleOf(uint32_t domain_index) const {
  return TroubleOf(domain_index, [](const GroupId&) { return false; });
}

GroupFilesTrouble DiskGroupFiles::TroubleOf(uint32_t domain_index,
                                            const IsKeptElsewhere& is_elsewhere) const {
  const Domain& domain = writer_->options.domains[domain_index];
  GroupFilesTrouble trouble{.directory = domain.directory};
  if (domain.keys != nullptr) domain.keys->AddTrouble(&trouble);
  const std::lock_guard lock(writer_->mutex);
  for (const auto& [group, is] : writer_->lost) {
    if (group.first != domain_index || is.why.empty() || is_elsewhere(group.second)) continue;
    if (++trouble.groups_not_kept == 1) trouble.why_not_kept = is.why;
  }
  return trouble;
}

bool DiskGroupFiles::IsWhole(uint32_t domain_index, const GroupId& id) const {
  const GroupKeyFiles* const keys = writer_->options.domains[domain_index].keys;
  return keys == nullptr || !keys->encrypts() || keys->Find(id) != nullptr;
}

void DiskGroupFiles::DestroyKey(uint32_t domain_index, const GroupId& id) {
  const Domain& domain = writer_->options.domains[domain_index];
  if (domain.keys == nullptr) return;
  if (!domain.keys->encrypts() && !domain.keys->IsLocked(id)) return;
  domain.keys->Destroy(id);
  {
    const std::lock_guard lock(writer_->mutex);
    const auto found = writer_->kept.find({domain_index, id});
    Writer::Job job{.domain_index = domain_index, .id = id, .is_key_erasure = true};
    if (found != writer_->kept.end()) {
      job.stamp = ++writer_->keep_count;
      found->second.stamp = job.stamp;
      found->second.is_written = false;
    }
    writer_->jobs.push_back(std::move(job));
  }
  writer_->wake.notify_one();
}

bool DiskGroupFiles::AreKeysDestroyed(uint32_t domain_index) const {
  const GroupKeyFiles* const keys = writer_->options.domains[domain_index].keys;
  return keys == nullptr || !keys->has_erasures_owed();
}

void DiskGroupFiles::SetRing(uint32_t domain_index, std::shared_ptr<const KeyRing> ring,
                             std::function<void(const std::vector<std::string>& notes)> done) {
  GroupKeyFiles* const keys = writer_->options.domains[domain_index].keys;
  TERRACE_CHECK(keys != nullptr && keys->encrypts(), "a domain encrypts from the start or never");
  {
    const std::lock_guard lock(writer_->mutex);
    writer_->jobs.push_back({.domain_index = domain_index, .other = [=] {
                               std::vector<std::string> notes;
                               (void)keys->SetRing(ring, &notes);
                               done(notes);
                             }});
  }
  writer_->wake.notify_one();
}

bool DiskGroupFiles::Drain(uint64_t timeout_us) {
  std::unique_lock lock(writer_->mutex);
  return writer_->drained.wait_for(lock, std::chrono::microseconds(timeout_us),
                                   [this] { return writer_->jobs.empty() && !writer_->is_busy; });
}

}  // namespace terrace
