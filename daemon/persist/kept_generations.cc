#include "daemon/persist/kept_generations.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "daemon/persist/kept_file.h"
#include "src/thread_name.h"
#include "terrace/block_key.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::chrono::seconds kWrittenAgain{1};
constexpr std::string_view kTitle = "terrace redis generations 1\n";
constexpr std::string_view kErased = "erased ";
constexpr size_t kLineBytesMax = 64;
constexpr size_t kErasedBytesMax = kErased.size() + 33 + 33 + 21;
constexpr size_t kFileBytesMax = kTitle.size() + kRedisGroupsMax * kLineBytesMax +
                                 OwedErasures::kBlocksMax * kErasedBytesMax + kKeptSealBytes;
constexpr uint64_t kTtlLeastS = 24 * 3600 + 60;
constexpr std::string_view kPlaceTitle = "terrace redis place 1\n";

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
  return content + KeptSealOf(content, secret);
}

Result<RedisPlace> ParsePlace(std::string_view content, const DomainSecret& secret) {
  RedisPlace place;
  std::string_view inside;
  const bool is_read = UnsealKept(content, kPlaceTitle, secret, &inside) &&
                       inside.ends_with('\n') &&
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
  return content + KeptSealOf(content, secret);
}

Result<RedisMemory> ParseGenerations(std::string_view content, const DomainSecret& secret) {
  const Status refused(StatusCode::kCorrupt, "it is damaged, or another domain's");
  std::string_view rest;
  if (!UnsealKept(content, kTitle, secret, &rest)) return refused;
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
  // As of a place.
  if (FormatGenerations(memory, secret) != content) return refused;
  return memory;
}

KeptGenerations::KeptGenerations(Options options) : options_(std::move(options)) {
  thread_ = StartThread("terrace-forget", [this] { Run(); });
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
  const Result<std::string> content = ReadKeptFile(options_.path, kFileBytesMax);
  Result<RedisMemory> memory =
      content.ok() ? ParseGenerations(*content, options_.secret) : content.status();
  const bool is_new = memory.status().code() == StatusCode::kNotFound;
  if (is_new) memory = RedisMemory();
  const Result<std::string> place_content = ReadKeptFile(options_.place_path, kFileBytesMax);
  // Of a release that wrote no place, it was this one.
  Result<RedisPlace> before = options_.place;
  if (place_content.status().code() != StatusCode::kNotFound) {
    before =
        place_content.ok() ? ParsePlace(*place_content, options_.secret) : place_content.status();
  }
  const bool is_believed =
      !options_.has_missed_erasure && before.ok() && before->IsSameAs(options_.place);
  is_loaded_for_good_ = is_believed && *before == options_.place && place_content.ok();
  if (is_loaded_for_good_) return memory;
  if (memory.ok() && !is_believed) {
    // Other hosts may let blocks stay for longer, or this one did before it was last elsewhere.
    const uint64_t ttl_s =
        std::max({before.ok() ? before->ttl_s : 0, options_.place.ttl_s, kTtlLeastS});
    OweAll(options_.unix_s + ttl_s, &*memory);
    const Status owed = WriteKeptFile(options_.path, FormatGenerations(*memory, options_.secret));
    if (!owed.ok()) {
      Tell(options_.path, owed);
      return memory;
    }
  }
  const Status placed = WritePlace();
  if (!placed.ok()) {
    Tell(options_.place_path, placed);
    const std::lock_guard lock(mutex_);
    is_place_due_ = true;
    wake_.notify_one();
  }
  is_loaded_for_good_ = placed.ok() && memory.ok();
  return memory;
}

Status KeptGenerations::WritePlace() const {
  return WriteKeptFile(options_.place_path, FormatPlace(options_.place, options_.secret));
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
                   "restart before it is written; make its directory writable, with room in it");
}

void KeptGenerations::Run() {
  bool is_told = false;  // that it cannot be written
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_stopping_ || due_.has_value() || is_place_due_; });
    if (!due_ && !is_place_due_) return;
    std::optional<Due> due = std::exchange(due_, std::nullopt);
    const bool is_place_due = is_place_due_;
    lock.unlock();
    const bool is_placed = is_place_due && WritePlace().ok();
    const Status written =
        due ? WriteKeptFile(options_.path, FormatGenerations(due->memory, options_.secret))
            : Status::Ok();
    if (due && written.ok()) options_.kept(due->revision);
    if (!written.ok() && !is_told) Tell(options_.path, written);
    is_told = !written.ok();
    lock.lock();
    if (is_placed) is_place_due_ = false;
    if (!written.ok() && !due_) due_ = std::move(due);  // else there is something later
    if (written.ok() && !is_place_due_) continue;
    if (is_stopping_) return;
    wake_.wait_for(lock, kWrittenAgain, [this] { return is_stopping_; });
  }
}

Status LeaveRedis(const std::string& path, const std::string& place_path,
                  const DomainSecret& secret) {
  RedisPlace nowhere;
  const Result<std::string> content = ReadKeptFile(place_path, kFileBytesMax);
  if (content.status().code() == StatusCode::kNotFound) {
    if (!std::filesystem::exists(path)) return Status::Ok();
  } else {
    TERRACE_RETURN_IF_ERROR(content.status());
    const Result<RedisPlace> before = ParsePlace(*content, secret);
    if (before.ok() && before->names == 0) return Status::Ok();
    if (before.ok()) nowhere.ttl_s = before->ttl_s;
  }
  return WriteKeptFile(place_path, FormatPlace(nowhere, secret));
}

}  // namespace terrace
