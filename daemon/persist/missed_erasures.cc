#include "daemon/persist/missed_erasures.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "daemon/persist/drive_directory.h"
#include "daemon/persist/kept_file.h"
#include "src/thread_name.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::string_view kTitle = "terrace missed erasures 1\n";
constexpr std::string_view kDrives = "all drives but ", kMemory = "all memory but ";
constexpr std::string_view kSlab = "slab ", kRedis = "redis ";
constexpr std::chrono::seconds kTriedAgain{1};

// The file is no secret's: a slab may be left alone because it is under another one.
std::string SealOf(std::string_view content) { return KeptSealOf(content, DomainSecret{}); }

bool ReadHex(std::string_view digits, uint64_t* number) {
  const char* const end_of_line = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), end_of_line, *number, 16);
  return error == std::errc() && end == end_of_line;
}

bool ReadLine(std::string_view line, Missed* missed) {
  if (line.starts_with(kSlab)) return missed->slabs.emplace(line.substr(kSlab.size())).second;
  if (line.starts_with(kRedis)) return missed->redis.emplace(line.substr(kRedis.size())).second;
  uint64_t number = 0;
  if (line.starts_with(kDrives)) {
    return ReadHex(line.substr(kDrives.size()), &number) &&
           missed->all_drives_but.insert(number).second;
  }
  if (!line.starts_with(kMemory)) return false;
  if (!ReadHex(line.substr(kMemory.size()), &number)) return false;
  missed->all_memory_but.push_back(number);
  return true;
}

void AddAbsentTo(const Missed& absent, Missed* missed) {
  missed->slabs.insert(absent.slabs.begin(), absent.slabs.end());
  missed->redis.insert(absent.redis.begin(), absent.redis.end());
}

}  // namespace

std::string FormatMissed(const Missed& missed) {
  std::string content(kTitle);
  for (const uint64_t id : missed.all_drives_but) {
    content += std::string(kDrives) + Hex16(id) + '\n';
  }
  for (const std::string& name : missed.slabs) content += std::string(kSlab) + name + '\n';
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

std::string SlabNameOf(uint64_t drive_id, const std::string& file_name) {
  return Hex16(drive_id) + '/' + file_name;
}

// ---- at the start ----

MissedErasures::MissedErasures(Options options) : options_(std::move(options)) {
  TERRACE_CHECK(options_.all_redis.size() == options_.paths.size() &&
                    options_.key_directories.size() == options_.paths.size(),
                "all are by domain index");
  for (size_t i = 0; i < options_.paths.size(); ++i) {
    Domain& domain = domains_.emplace_back();
    domain.path = options_.paths[i];
    domain.key_directory = options_.key_directories[i];
    const Result<std::string> content = ReadKeptFile(domain.path, kMissedBytesMax);
    domain.has_file = content.status().code() != StatusCode::kNotFound;
    if (!domain.has_file) continue;
    Result<Missed> missed = content.ok() ? ParseMissed(*content) : content.status();
    if (!missed.ok()) {
      Tell(domain.path, missed.status(),
           "what the drives, Redis and other memory have is given up");
      missed = Missed{.all_drives_but = {Missed::kNobody},
                      .all_memory_but = {Missed::kNobody},
                      .redis = options_.all_redis[i]};
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

void MissedErasures::UseMemory(uint32_t domain_index, uint64_t seed, bool is_held) {
  Domain& domain = domains_[domain_index];
  domain.seed = seed;
  std::vector<uint64_t>& seeds = domain.missed.all_memory_but;
  if (!is_held || seeds.empty() || std::ranges::find(seeds, seed) != seeds.end()) return;
  if (seeds.size() == kMemoriesMax) seeds.erase(seeds.begin());
  seeds.push_back(seed);
}

bool MissedErasures::MayServe(uint32_t domain_index, uint64_t drive_id) const {
  const std::set<uint64_t>& ids = domains_[domain_index].missed.all_drives_but;
  return ids.empty() || (drive_id != Missed::kNobody && ids.contains(drive_id));
}

void MissedErasures::UseDrive(uint32_t domain_index, uint64_t drive_id) {
  if (drive_id == Missed::kNobody) return;
  Domain& domain = domains_[domain_index];
  domain.drives.insert(drive_id);
  std::set<uint64_t>& ids = domain.missed.all_drives_but;
  if (!ids.empty()) ids.insert(drive_id);
}

void MissedErasures::StrikeSlab(uint32_t domain_index, const std::string& name) {
  domains_[domain_index].missed.slabs.erase(name);
}

void MissedErasures::StrikeRedis(uint32_t domain_index, const std::string& secret_name) {
  domains_[domain_index].missed.redis.erase(secret_name);
}

void MissedErasures::AddAbsent(uint32_t domain_index, const Missed& absent) {
  AddAbsentTo(absent, &domains_[domain_index].at_erasure);
}

// What the file should say now, and once something is erased.
void MissedErasures::Reckon(Domain* domain) const {
  std::set<uint64_t>& ids = domain->missed.all_drives_but;
  if (ids.size() > 1) ids.erase(Missed::kNobody);
  // Of those that are not there any may be forgotten: it begins empty.
  for (auto at = ids.begin(); ids.size() > kDrivesKnownMax && at != ids.end();) {
    at = domain->drives.contains(*at) ? std::next(at) : ids.erase(at);
  }
  AddAbsentTo(domain->missed, &domain->at_erasure);
  domain->at_erasure.all_drives_but = domain->drives;
  if (domain->drives.empty()) domain->at_erasure.all_drives_but = {Missed::kNobody};
  domain->at_erasure.all_memory_but = {domain->seed};
}

void MissedErasures::Begin() {
  const bool has_file = std::ranges::any_of(domains_, &Domain::has_file);
  if (!options_.is_anything_kept && !has_file) return;
  for (Domain& domain : domains_) {
    Reckon(&domain);
    domain.phase = domain.at_erasure == domain.missed ? Phase::kNoted : Phase::kNone;
    if (domain.missed == domain.before && domain.has_file) continue;
    std::string where;
    const Status kept = Write(domain, Phase::kStartDue, &where);
    if (kept.ok()) continue;
    Tell(where, kept,
         "what begins empty at this start does so at the next one, too; erasures are answered once "
         "it is written, and until then nobody knows that there are blocks here: what a daemon "
         "without drives, keeper and Redis erases comes back");
    domain.phase = domain.phase == Phase::kNoted ? Phase::kErasureDue : Phase::kStartDue;
  }
  const auto is_noted = [](const Domain& domain) { return domain.phase == Phase::kNoted; };
  if (std::ranges::all_of(domains_, is_noted)) return;
  thread_ = StartThread("terrace-absent", [this] { Run(); });
}

// Where no drive is there, all begin empty: nothing that a key in state_dir opens is served again,
// and who has an old copy of a drive must not find it. Before the file says so: of one who dies in
// between, the keys are gone.
Status MissedErasures::Write(const Domain& domain, Phase phase, std::string* where) const {
  *where = domain.path;
  if (phase == Phase::kStartDue) return WriteKeptFile(domain.path, FormatMissed(domain.missed));
  if (domain.drives.empty()) {
    const Status removed = RemoveGroupKeys(domain.key_directory);
    if (!removed.ok()) *where = domain.key_directory;
    TERRACE_RETURN_IF_ERROR(removed);
  }
  return WriteKeptFile(domain.path, FormatMissed(domain.at_erasure));
}

void MissedErasures::Tell(const std::string& path, const Status& status,
                          const char* consequence) const {
  options_.trouble(
      path + ": " + status.what() +
      (status.detail() == 0 ? "" : std::string(" (") + strerror(status.detail()) + ')') + ": " +
      consequence + "; see that state_dir can be written");
}

// ---- erasures ----

void MissedErasures::NoteErasure(uint32_t domain_index) {
  TERRACE_CHECK(domain_index < domains_.size(), "an erasure is a domain's");
  {
    const std::lock_guard lock(mutex_);
    Phase& phase = domains_[domain_index].phase;
    if (phase == Phase::kErasureDue || phase == Phase::kNoted) return;
    phase = Phase::kErasureDue;
    has_news_ = true;
  }
  wake_.notify_one();
}

bool MissedErasures::HasNoted(uint32_t domain_index) const {
  const std::lock_guard lock(mutex_);
  return domains_[domain_index].phase == Phase::kNoted;
}

bool MissedErasures::IsAnyDue() const {
  return std::ranges::any_of(domains_, [](const Domain& domain) {
    return domain.phase == Phase::kStartDue || domain.phase == Phase::kErasureDue;
  });
}

void MissedErasures::Run() {
  std::set<uint32_t> told;  // whose file cannot be written
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_stopping_ || IsAnyDue(); });
    has_news_ = false;
    for (uint32_t i = 0; i < domains_.size(); ++i) {
      Domain& domain = domains_[i];
      const Phase due = domain.phase;
      if (due == Phase::kNone || due == Phase::kNoted) continue;
      lock.unlock();
      std::string where;
      const Status kept = Write(domain, due, &where);
      if (!kept.ok() && due == Phase::kErasureDue && told.insert(i).second) {
        Tell(where, kept,
             options_.is_certain ? "no erasure of the domain is answered until it is written"
                                 : "memory that systemd kept of before may bring it back");
      }
      lock.lock();
      if (!kept.ok() && (due == Phase::kStartDue || options_.is_certain)) continue;
      told.erase(i);
      if (domain.phase != due) continue;  // the first erasure came meanwhile
      domain.phase = due == Phase::kStartDue ? Phase::kNone : Phase::kNoted;
      if (due == Phase::kStartDue) continue;
      lock.unlock();
      options_.noted(i);
      lock.lock();
    }
    if (is_stopping_) return;
    if (IsAnyDue()) wake_.wait_for(lock, kTriedAgain, [this] { return is_stopping_ || has_news_; });
  }
}

}  // namespace terrace
