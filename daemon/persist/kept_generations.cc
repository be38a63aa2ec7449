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
constexpr size_t kFileBytesMax = kTitle.size() + kRedisGroupsMax * kLineBytesMax +
                                 OwedErasures::kBlocksMax * kErasedBytesMax + kSealBytes;
constexpr std::string_view kPlaceTitle = "terrace redis place 1\n";

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

// What lies between title and seal.
bool Unseal(std::string_view content, std::string_view title, const DomainSecret& secret,
            std::string_view* inside) {
  if (content.size() < title.size() + kSealBytes || !content.starts_with(title)) return false;
  const std::string_view sealed = content.substr(0, content.size() - kSealBytes);
  *inside = sealed.substr(title.size());
  return content.substr(sealed.size()) == SealOf(sealed, secret);
}

// "TTL NAMES ENDPOINT...": a number, 16 hex digits each.
bool ReadPlace(std::string_view line, RedisPlace* place) {
  const char* next = line.data();
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
  return next == line_end;
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

// Of every group that is known, and of those that will be met until then.
void OweAll(uint64_t until_s, RedisMemory* memory) {
  for (GroupGeneration& group : memory->generations) group.is_owed = true;
  std::erase_if(memory->erasures, IsAllInAnyGroup);
  if (memory->erasures.size() == OwedErasures::kBlocksMax) memory->erasures.pop_back();
  memory->erasures.insert(memory->erasures.begin(), KeptErasure{.until_s = until_s});
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

std::string FormatPlace(const RedisPlace& place, const DomainSecret& secret) {
  std::string content(kPlaceTitle);
  content += std::to_string(place.ttl_s) + ' ' + Hex16(place.names);
  for (const uint64_t endpoint : place.endpoints) content += ' ' + Hex16(endpoint);
  content += '\n';
  return content + SealOf(content, secret);
}

Result<RedisPlace> ParsePlace(std::string_view content, const DomainSecret& secret) {
  RedisPlace place;
  std::string_view inside;
  const bool is_read = Unseal(content, kPlaceTitle, secret, &inside) && inside.ends_with('\n') &&
                       ReadPlace(inside.substr(0, inside.size() - 1), &place);
  // One way to write it: else a file could be believed that nobody wrote.
  if (is_read && FormatPlace(place, secret) == content) return place;
  return Status(StatusCode::kCorrupt, "it is damaged, or another domain's");
}

std::string FormatGenerations(const RedisMemory& memory, const DomainSecret& secret) {
  std::string content(kTitle);
  for (const GroupGeneration& group : memory.generations) {
    content += ToHex(group.group) + ' ' + std::to_string(group.generation) +
               (group.is_owed ? " 1\n" : " 0\n");
  }
  for (const KeptErasure& erased : memory.erasures) {
    content += std::string(kErased) + ToHex(erased.group) + ' ' + ToHex(erased.key) + ' ' +
               std::to_string(erased.until_s) + '\n';
  }
  return content + SealOf(content, secret);
}

Result<RedisMemory> ParseGenerations(std::string_view content, const DomainSecret& secret) {
  const Status refused(StatusCode::kCorrupt, "it is damaged, or another domain's");
  std::string_view rest;
  if (!Unseal(content, kTitle, secret, &rest)) return refused;
  RedisMemory memory;
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
  return memory;
}

namespace {

// kNotFound: there is none.
Result<std::string> ReadFile(const std::string& path) {
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
  return content;
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

// What the groups owe is on the disk before the place is: a death in between does it once more.
Result<RedisMemory> KeptGenerations::Load() {
  const Result<std::string> content = ReadFile(options_.path);
  Result<RedisMemory> memory =
      content.ok() ? ParseGenerations(*content, options_.secret) : content.status();
  const bool is_new = memory.status().code() == StatusCode::kNotFound;
  if (is_new) memory = RedisMemory();
  const Result<std::string> place_content = ReadFile(options_.place_path);
  // Of a release that wrote no place, it was this one.
  Result<RedisPlace> before = options_.place;
  if (place_content.status().code() != StatusCode::kNotFound) {
    before =
        place_content.ok() ? ParsePlace(*place_content, options_.secret) : place_content.status();
  }
  if (before.ok() && *before == options_.place && place_content.ok()) return memory;
  if (memory.ok() && !(before.ok() && before->IsSameAs(options_.place))) {
    const uint64_t ttl_s = std::max(before.ok() ? before->ttl_s : 0, options_.place.ttl_s);
    OweAll(options_.unix_s + ttl_s, &*memory);
    const Status owed = WriteKept(options_.path, FormatGenerations(*memory, options_.secret));
    if (!owed.ok()) {
      Tell(options_.path, owed);
      return memory;
    }
  }
  const Status placed =
      WriteKept(options_.place_path, FormatPlace(options_.place, options_.secret));
  if (!placed.ok()) Tell(options_.place_path, placed);
  return memory;
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

void KeptGenerations::Tell(const std::string& path, const Status& status) const {
  options_.trouble(path + ": " + status.what() + " (" + std::strerror(status.detail()) +
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
    const Status written = WriteKept(options_.path, FormatGenerations(due.memory, options_.secret));
    if (written.ok()) {
      options_.kept(due.revision);
    } else {
      Tell(options_.path, written);
    }
    lock.lock();
  }
}

Status LeaveRedis(const std::string& path, const std::string& place_path,
                  const DomainSecret& secret) {
  RedisPlace nowhere;
  const Result<std::string> content = ReadFile(place_path);
  if (content.status().code() == StatusCode::kNotFound) {
    if (!std::filesystem::exists(path)) return Status::Ok();
  } else {
    TERRACE_RETURN_IF_ERROR(content.status());
    const Result<RedisPlace> before = ParsePlace(*content, secret);
    if (before.ok() && before->names == 0) return Status::Ok();
    if (before.ok()) nowhere.ttl_s = before->ttl_s;
  }
  return WriteKept(place_path, FormatPlace(nowhere, secret));
}

}  // namespace terrace
