#include "daemon/persist/kept_generations.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "terrace/block_key.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::string_view kTitle = "terrace redis generations 1\n";
constexpr std::string_view kSeal = "seal ";
constexpr size_t kSealBytes = kSeal.size() + 16 + 1;
constexpr std::string_view kErased = "erased ";
constexpr size_t kLineBytesMax = 64;
constexpr size_t kErasedBytesMax = kErased.size() + 33 + 33 + 21;
constexpr std::string_view kPlace = "place ";
constexpr size_t kPlaceBytesMax = kPlace.size() + 21 + 17 * (1 + RedisPlace::kEndpointsMax);
constexpr size_t kFileBytesMax = kTitle.size() + kPlaceBytesMax + kRedisGroupsMax * kLineBytesMax +
                                 OwedErasures::kBlocksMax * kErasedBytesMax + kSealBytes;

std::string Hex16(uint64_t digest) { return ToHex(0, digest).substr(16); }

std::string SealOf(std::string_view content, const DomainSecret& secret) {
  return std::string(kSeal) + Hex16(KeyedHash64(secret, std::as_bytes(std::span(content)))) + '\n';
}

// "GROUP GENERATION OWED": 32 hex digits, a number, 0 or 1.
bool ReadLine(std::string_view line, GroupGeneration* group) {
  if (line.size() < 32 + 1 + 1 + 2 || line[32] != ' ') return false;
  const Result<GroupId> id = ParseId<GroupIdTag>(line.substr(0, 32));
  if (!id.ok()) return false;
  group->group = *id;
  const std::string_view number = line.substr(33, line.size() - 33 - 2);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), group->generation);
  const std::string_view owed = line.substr(line.size() - 2);
  group->is_owed = owed == " 1";
  return error == std::errc() && end == number.data() + number.size() &&
         (owed == " 1" || owed == " 0");
}

// "erased GROUP KEY UNTIL": 32 hex digits each, Unix seconds.
bool ReadErased(std::string_view line, KeptErasure* erased) {
  line.remove_prefix(kErased.size());
  if (line.size() < 33 + 33 + 1 || line[32] != ' ' || line[65] != ' ') return false;
  const Result<GroupId> group = ParseId<GroupIdTag>(line.substr(0, 32));
  const Result<BlockKey> key = ParseId<BlockKeyTag>(line.substr(33, 32));
  if (!group.ok() || !key.ok()) return false;
  erased->group = *group;
  erased->key = *key;
  const char* const line_end = line.data() + line.size();
  const auto [end, error] = std::from_chars(line.data() + 66, line_end, erased->until_s);
  return error == std::errc() && end == line_end;
}

// "place TTL NAMES ENDPOINT...": a number, 16 hex digits each.
std::string FormatPlace(const RedisPlace& place) {
  std::string line = std::string(kPlace) + std::to_string(place.ttl_s) + ' ' + Hex16(place.names);
  for (const uint64_t endpoint : place.endpoints) line += ' ' + Hex16(endpoint);
  return line;
}

bool ReadPlace(std::string_view line, RedisPlace* place) {
  const char* next = line.data() + kPlace.size();
  const char* const line_end = line.data() + line.size();
  const auto read = [&](uint64_t* value, int base) {
    const auto [end, error] = std::from_chars(next, line_end, *value, base);
    next = end == line_end ? end : end + 1;
    return error == std::errc();
  };
  if (!read(&place->ttl_s, 10) || !read(&place->names, 16)) return false;
  while (next != line_end && place->endpoints.size() < RedisPlace::kEndpointsMax) {
    if (!read(&place->endpoints.emplace_back(), 16)) return false;
  }
  return FormatPlace(*place) == line;
}

bool WriteWhole(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t done = write(fd, content.data(), content.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    content.remove_prefix(static_cast<size_t>(done));
  }
  return fsync(fd) == 0;
}

bool IsAllInAnyGroup(const KeptErasure& erasure) {
  return erasure.group == GroupId() && erasure.key == BlockKey();
}

// Beside its place, then into it: there is always a whole one.
Status WriteKept(const std::string& path_text, const std::string& content) {
  const auto failed = [](const char* what) { return Status(StatusCode::kIo, what, errno); };
  const std::filesystem::path path(path_text);
  const std::string draft = path_text + ".new";
  std::error_code error_of_directory;  // what it comes to shows below
  std::filesystem::create_directories(path.parent_path(), error_of_directory);
  unlink(draft.c_str());  // of a death in between, or whatever somebody has put there
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed("it cannot be made");
  const bool is_written = WriteWhole(fd, content);
  const int error = errno;
  close(fd);
  if (!is_written) return Status(StatusCode::kIo, "it cannot be written", error);
  if (rename(draft.c_str(), path_text.c_str()) != 0) return failed("it cannot be placed");
  const int directory = open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return failed("its directory cannot be opened");
  const bool is_synced = fsync(directory) == 0;
  const int sync_error = errno;
  close(directory);
  return is_synced ? Status::Ok()
                   : Status(StatusCode::kIo, "its directory cannot be synced", sync_error);
}

}  // namespace

bool RedisPlace::IsSameAs(const RedisPlace& other) const {
  return names == other.names &&
         (names == 0 || std::ranges::any_of(endpoints, [&other](uint64_t endpoint) {
            return std::ranges::find(other.endpoints, endpoint) != other.endpoints.end();
          }));
}

std::string FormatGenerations(const KeptOfRedis& kept, const DomainSecret& secret) {
  std::string content(kTitle);
  if (kept.place) content += FormatPlace(*kept.place) + '\n';
  for (const GroupGeneration& group : kept.memory.generations) {
    content += ToHex(group.group) + ' ' + std::to_string(group.generation) +
               (group.is_owed ? " 1\n" : " 0\n");
  }
  for (const KeptErasure& erased : kept.memory.erasures) {
    content += std::string(kErased) + ToHex(erased.group) + ' ' + ToHex(erased.key) + ' ' +
               std::to_string(erased.until_s) + '\n';
  }
  return content + SealOf(content, secret);
}

Result<KeptOfRedis> ParseGenerations(std::string_view content, const DomainSecret& secret) {
  const Status refused(StatusCode::kCorrupt, "it is damaged, or another domain's");
  if (content.size() < kTitle.size() + kSealBytes || !content.starts_with(kTitle)) return refused;
  std::string_view rest = content.substr(0, content.size() - kSealBytes);
  if (content.substr(rest.size()) != SealOf(rest, secret)) return refused;
  KeptOfRedis kept;
  RedisMemory& memory = kept.memory;
  rest.remove_prefix(kTitle.size());
  if (rest.starts_with(kPlace)) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos || !ReadPlace(rest.substr(0, end), &kept.place.emplace())) {
      return refused;
    }
    rest.remove_prefix(end + 1);
  }
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) return refused;
    const std::string_view line = rest.substr(0, end);
    const bool is_read = line.starts_with(kErased)
                             ? ReadErased(line, &memory.erasures.emplace_back())
                             : ReadLine(line, &memory.generations.emplace_back());
    if (!is_read) return refused;
    rest.remove_prefix(end + 1);
  }
  return kept;
}

namespace {

Result<KeptOfRedis> ReadKept(const std::string& path, const DomainSecret& secret) {
  // What is no file may never be there to be opened, or read.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return Status(StatusCode::kNotFound, "there is no file");
  if (fd < 0) return Status(StatusCode::kIo, "it cannot be opened", errno);
  struct stat about {};
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    close(fd);
    return Status(StatusCode::kIo, "it is no regular file", EINVAL);
  }
  std::string content(kFileBytesMax + 1, '\0');
  size_t done_bytes = 0;
  ssize_t got = 0;
  do {
    got = read(fd, content.data() + done_bytes, content.size() - done_bytes);
    if (got > 0) done_bytes += static_cast<size_t>(got);
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error = errno;
  close(fd);
  if (got < 0) return Status(StatusCode::kIo, "it cannot be read", error);
  content.resize(done_bytes);
  return ParseGenerations(content, secret);
}

}  // namespace

KeptGenerations::KeptGenerations(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "terrace-forget");
}

KeptGenerations::~KeptGenerations() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<RedisMemory> KeptGenerations::Load() {
  Result<KeptOfRedis> found = ReadKept(options_.path, options_.secret);
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  KeptOfRedis kept = found.ok() ? std::move(*found) : KeptOfRedis{.place = options_.place};
  const RedisPlace before = kept.place.value_or(options_.place);
  if (!before.IsSameAs(options_.place)) {
    for (GroupGeneration& group : kept.memory.generations) group.is_owed = true;
    const uint64_t until_s = options_.unix_s + std::max(before.ttl_s, options_.place.ttl_s);
    std::erase_if(kept.memory.erasures, IsAllInAnyGroup);
    if (kept.memory.erasures.size() == OwedErasures::kBlocksMax) kept.memory.erasures.pop_back();
    kept.memory.erasures.insert(kept.memory.erasures.begin(), KeptErasure{.until_s = until_s});
  }
  kept.place = options_.place;
  const Status written = WriteKept(options_.path, FormatGenerations(kept, options_.secret));
  if (!written.ok()) Tell(written);
  return std::move(kept.memory);
}

void KeptGenerations::Save(uint64_t revision, RedisMemory memory) {
  TERRACE_CHECK(memory.generations.size() <= kRedisGroupsMax &&
                    memory.erasures.size() <= OwedErasures::kBlocksMax,
                "what is kept can be loaded again");
  {
    const std::lock_guard lock(mutex_);
    due_ = {revision, std::move(memory)};
  }
  wake_.notify_one();
}

void KeptGenerations::Tell(const Status& status) const {
  options_.trouble(options_.path + ": " + status.what() + " (" + std::strerror(status.detail()) +
                   "): what was to be forgotten on the redis server may come back after a "
                   "restart; make its directory writable");
}

void KeptGenerations::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_stopping_ || due_.has_value(); });
    if (!due_) return;
    const Due due = std::exchange(due_, std::nullopt).value();
    lock.unlock();
    const Status written = WriteKept(
        options_.path,
        FormatGenerations({.memory = due.memory, .place = options_.place}, options_.secret));
    if (written.ok()) {
      options_.kept(due.revision);
    } else {
      Tell(written);
    }
    lock.lock();
  }
}

Status LeaveRedis(const std::string& path, const DomainSecret& secret) {
  Result<KeptOfRedis> kept = ReadKept(path, secret);
  if (!kept.ok()) return kept.status().code() == StatusCode::kIo ? kept.status() : Status::Ok();
  const uint64_t ttl_s = kept->place ? kept->place->ttl_s : 0;
  kept->place = RedisPlace{.ttl_s = ttl_s};
  return WriteKept(path, FormatGenerations(*kept, secret));
}

}  // namespace terrace
