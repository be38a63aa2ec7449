#include "daemon/persist/missed_erasures.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "daemon/persist/group_key_files.h"
#include "daemon/persist/kept_file.h"
#include "src/thread_name.h"
#include "terrace/check.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTitle = "terrace missed erasures 1\n";
constexpr std::string_view kDrive = "drive ", kSlab = "slab ", kRedis = "redis ";
constexpr std::string_view kMemory = "all memory but ";
constexpr uint64_t kNoMemory = 0;  // no arena's seed
constexpr std::chrono::seconds kTriedAgain{1};
constexpr const char* kDirectoryUnsynced = "its directory cannot be synced";
constexpr std::string_view kSlabExtension = ".terrace";

// The file is no secret's: a slab may be left alone because it is under another one.
std::string SealOf(std::string_view content) { return KeptSealOf(content, DomainSecret{}); }

bool ReadLine(std::string_view line, Missed* missed) {
  if (line.starts_with(kDrive)) {
    return missed->drives.emplace(line.substr(kDrive.size())).second;
  }
  if (line.starts_with(kSlab)) return missed->slabs.emplace(line.substr(kSlab.size())).second;
  if (line.starts_with(kRedis)) return missed->redis.emplace(line.substr(kRedis.size())).second;
  if (!line.starts_with(kMemory)) return false;
  line.remove_prefix(kMemory.size());
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), seed, 16);
  missed->all_memory_but.push_back(seed);
  return error == std::errc() && end == line.data() + line.size();
}

// But the memory.
void AddTo(const Missed& more, Missed* missed) {
  missed->drives.insert(more.drives.begin(), more.drives.end());
  missed->slabs.insert(more.slabs.begin(), more.slabs.end());
  missed->redis.insert(more.redis.begin(), more.redis.end());
}

// The files with that extension; `before` each goes.
template <typename Before>
Status RemoveAll(const std::string& directory, std::string_view extension, const Before& before) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == extension) paths.push_back(at->path());
  }
  if (error == std::errc::no_such_file_or_directory) return Status::Ok();
  if (error) return Status(StatusCode::kIo, "it cannot be listed", error.value());
  for (const fs::path& path : paths) {
    TERRACE_RETURN_IF_ERROR(before(path));
    if (unlink(path.c_str()) != 0) {
      return Status(StatusCode::kIo, "a file cannot be removed", errno);
    }
  }
  return SyncDirectory(directory, kDirectoryUnsynced);
}

}  // namespace

std::string FormatMissed(const Missed& missed) {
  std::string content(kTitle);
  for (const std::string& path : missed.drives) content += std::string(kDrive) + path + '\n';
  for (const std::string& file : missed.slabs) content += std::string(kSlab) + file + '\n';
  for (const std::string& name : missed.redis) content += std::string(kRedis) + name + '\n';
  for (const uint64_t seed : missed.all_memory_but) {
    content += std::string(kMemory) + Hex16(seed) + '\n';
  }
  return content + SealOf(content);
}

Result<Missed> ParseMissed(std::string_view content) {
  const Status refused(StatusCode::kCorrupt, "it is damaged");
  std::string_view rest;
  if (!UnsealKept(content, kTitle, DomainSecret{}, &rest)) return refused;
  Missed missed;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos || !ReadLine(rest.substr(0, end), &missed)) return refused;
    rest.remove_prefix(end + 1);
  }
  return missed;
}

Status RemoveSynced(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Status(StatusCode::kIo, "a file cannot be removed", errno);
  }
  return SyncDirectory(fs::path(path).parent_path(), kDirectoryUnsynced);
}

// Keys first: who dies in between begins again, and finds slabs that nobody can read.
Status EmptyDrive(const std::string& directory, uint64_t* slab_count) {
  *slab_count = 0;
  TERRACE_RETURN_IF_ERROR(RemoveAll(directory + "/keys", kGroupKeySuffix, OverwriteGroupKey));
  return RemoveAll(directory, kSlabExtension, [&](const fs::path&) {
    ++*slab_count;
    return Status::Ok();
  });
}

// ---- at the start ----

MissedErasures::MissedErasures(Options options) : options_(std::move(options)) {
  TERRACE_CHECK(options_.all_redis.size() == options_.paths.size(), "both are by domain index");
  for (size_t i = 0; i < options_.paths.size(); ++i) {
    Domain& domain = domains_.emplace_back();
    domain.path = options_.paths[i];
    const Result<std::string> content = ReadKeptFile(domain.path, kMissedBytesMax);
    if (content.status().code() == StatusCode::kNotFound) continue;
    Result<Missed> missed = content.ok() ? ParseMissed(*content) : content.status();
    if (!missed.ok()) {
      Tell(domain, missed.status(), "what the drives, Redis and other memory have is given up");
      missed = Missed{.drives = options_.all_drives,
                      .redis = options_.all_redis[i],
                      .all_memory_but = {kNoMemory}};
    }
    domain.before = *missed;
    domain.missed = *missed;
  }
}

MissedErasures::~MissedErasures() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool MissedErasures::MayAdopt(uint32_t domain_index, uint64_t seed) const {
  const std::vector<uint64_t>& seeds = domains_[domain_index].missed.all_memory_but;
  return seeds.empty() || std::ranges::find(seeds, seed) != seeds.end();
}

// Memory that a successor may be given is named before anything is erased: whoever serves without
// it knows that it is somewhere.
void MissedErasures::UseMemory(uint32_t domain_index, uint64_t seed, bool is_held) {
  Domain& domain = domains_[domain_index];
  domain.seed = seed;
  std::vector<uint64_t>& seeds = domain.missed.all_memory_but;
  if (!is_held || std::ranges::find(seeds, seed) != seeds.end()) return;
  if (seeds.size() == kMemoriesMax) seeds.erase(seeds.begin());
  seeds.push_back(seed);
}

void MissedErasures::StrikeDrive(uint32_t domain_index, const std::string& path) {
  domains_[domain_index].missed.drives.erase(path);
}

void MissedErasures::StrikeSlab(uint32_t domain_index, const std::string& file) {
  domains_[domain_index].missed.slabs.erase(file);
}

void MissedErasures::StrikeRedis(uint32_t domain_index, const std::string& secret_name) {
  domains_[domain_index].missed.redis.erase(secret_name);
}

void MissedErasures::AddAbsent(uint32_t domain_index, const Missed& absent) {
  AddTo(absent, &domains_[domain_index].at_erasure);
}

void MissedErasures::Begin() {
  for (Domain& domain : domains_) {
    if (domain.missed != domain.before) {
      const Status kept = WriteKeptFile(domain.path, FormatMissed(domain.missed));
      if (!kept.ok()) Tell(domain, kept, "the next start gives the same up once more");
    }
    AddTo(domain.missed, &domain.at_erasure);
    if (!domain.missed.all_memory_but.empty()) domain.at_erasure.all_memory_but = {domain.seed};
    domain.phase = domain.at_erasure == domain.missed ? Phase::kNoted : Phase::kNone;
  }
  const auto is_noted = [](const Domain& domain) { return domain.phase == Phase::kNoted; };
  if (std::ranges::all_of(domains_, is_noted)) return;
  thread_ = StartThread("terrace-absent", [this] { Run(); });
}

void MissedErasures::Tell(const Domain& domain, const Status& status,
                          const char* consequence) const {
  options_.trouble(
      domain.path + ": " + status.what() +
      (status.detail() == 0 ? "" : std::string(" (") + strerror(status.detail()) + ')') + ": " +
      consequence + "; see that state_dir can be written");
}

// ---- erasures ----

void MissedErasures::NoteErasure(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < domains_.size(), "an erasure is a domain's");
  {
    const std::lock_guard lock(mutex_);
    if (domains_[domain_index].phase != Phase::kNone) return;
    domains_[domain_index].phase = Phase::kDue;
  }
  wake_.notify_one();
}

bool MissedErasures::HasNoted(uint32_t domain_index) const {
  const std::lock_guard lock(mutex_);
  return domains_[domain_index].phase == Phase::kNoted;
}

bool MissedErasures::IsAnyDue() const {
  return std::ranges::any_of(domains_,
                             [](const Domain& domain) { return domain.phase == Phase::kDue; });
}

void MissedErasures::Run() {
  std::set<uint32_t> told;  // whose file cannot be written
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_stopping_ || IsAnyDue(); });
    for (uint32_t i = 0; i < domains_.size(); ++i) {
      Domain& domain = domains_[i];
      if (domain.phase != Phase::kDue) continue;
      lock.unlock();
      const Status kept = WriteKeptFile(domain.path, FormatMissed(domain.at_erasure));
      if (!kept.ok() && told.insert(i).second) {
        Tell(domain, kept, "no erasure of the domain is answered until it is written");
      }
      lock.lock();
      if (!kept.ok()) continue;
      told.erase(i);
      domain.phase = Phase::kNoted;
      lock.unlock();
      options_.noted(i);
      lock.lock();
    }
    if (is_stopping_) return;
    if (IsAnyDue()) wake_.wait_for(lock, kTriedAgain, [this] { return is_stopping_; });
  }
}

}  // namespace terrace
