#include "daemon/persist/group_key_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "daemon/persist/kept_file.h"
#include "terrace/check.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKeysUnsynced = "cannot sync the directory of keys";

using Place = GroupKeyPlace;
using File = GroupKeyContent;

std::string PathIn(const std::string& directory, const GroupId& group) {
  return directory + "/" + ToHex(group) + std::string(kGroupKeySuffix);
}

std::string DraftOf(const std::string& path) { return path + std::string(kGroupKeyDraftSuffix); }

// What nobody can tell is left out.
std::string TextOf(const std::set<KeyId>& ids) {
  std::string text;
  for (const KeyId id : ids) {
    if (id != 0) text += (text.empty() ? "" : ", ") + KeyIdText(id);
  }
  return text;
}

std::set<KeyId> KeysOf(const std::map<std::string, std::set<KeyId>>& files) {
  std::set<KeyId> all;
  for (const auto& [path, keys] : files) all.insert(keys.begin(), keys.end());
  return all;
}

}  // namespace

GroupKeyFiles::GroupKeyFiles(Options options) : options_(std::move(options)), ring_(options_.ring) {
  TERRACE_CHECK(options_.random != nullptr, "keys are drawn at random");
}

std::shared_ptr<const KeyRing> GroupKeyFiles::ring() const {
  const std::lock_guard lock(mutex_);
  return ring_;
}

std::string GroupKeyFiles::PathOf(const GroupId& group) const {
  return PathIn(options_.directory, group);
}

std::vector<std::string> GroupKeyFiles::Others() const {
  std::vector<std::string> directories = options_.other_directories;
  if (!options_.second_directory.empty()) directories.push_back(options_.second_directory);
  return directories;
}

std::string GroupKeyFiles::Places() const {
  if (options_.second_directory.empty()) return options_.directory;
  return options_.directory + " and " + options_.second_directory;
}

Status GroupKeyFiles::Pass(GroupKeyStep step) const {
  if (!options_.may_go_on || options_.may_go_on(step)) return Status::Ok();
  return Status(StatusCode::kIo, "writing the key's file", EIO);
}

// ---- what is there ----

Status GroupKeyFiles::Read(const std::string& path, const GroupId& group, Wrapped* wrapped,
                           std::string* why) const {
  *wrapped = {};
  const OpenFile file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (file.fd() < 0 && SaysNoGroupKey(errno)) {
    return Status(StatusCode::kNotFound, "there is no key");
  }
  File content;
  Status read = file.fd() < 0 ? GroupKeyErrno("cannot open the key's file")
                              : ReadGroupKey(file.fd(), &content);
  if (!read.ok()) {
    *why = std::string(read.what()) + ": " + strerror(read.detail());
    return Status::Ok();
  }
  if (IsNoGroupKey(content[0]) && IsNoGroupKey(content[1])) {
    return Status(StatusCode::kNotFound, "the key was being erased");
  }
  *why = "it is damaged, or of another version";
  const std::shared_ptr<const KeyRing> ring = this->ring();
  for (const Place& place : content) {
    const std::optional<KeyId> under = WrappedUnder(place, group);
    if (!under) continue;
    if (ring == nullptr) {
      wrapped->under = *under;
      *why = "it is under key " + KeyIdText(*under) + ", and no encryption_keys_file is set";
      continue;
    }
    Result<std::shared_ptr<GroupKey>> key = Unwrap(place, group, *ring);
    if (key.ok()) {
      *wrapped = {.key = std::move(*key), .under = *under};
      if (*under == ring->first()) return Status::Ok();
    } else if (wrapped->key == nullptr) {
      wrapped->under = *under;
      if (key.code() == StatusCode::kNotFound) {
        *why = "it is under key " + KeyIdText(*under) + ", which the keys file does not hold";
      }
    }
  }
  return Status::Ok();
}

// Another key of a group that has one here stays where it is, until the group is erased.
Status GroupKeyFiles::Bring(const std::string& directory, const GroupId& group) const {
  Wrapped here, there;
  std::string why;
  const bool is_there = Read(PathIn(directory, group), group, &there, &why).ok();
  if (!is_there) return Status::Ok();  // it was being erased
  if (Read(PathOf(group), group, &here, &why).ok()) {
    const bool is_same = here.key != nullptr && there.key != nullptr
                             ? here.key->id() == there.key->id()
                             : here.key == there.key;
    return is_same ? Status::Ok() : Status(StatusCode::kExists, "another key is in use", EEXIST);
  }
  return CopyFile(directory, options_.directory, group);
}

Status GroupKeyFiles::CopyFile(const std::string& from, const std::string& to,
                               const GroupId& group) const {
  File content;
  const OpenFile file(PathIn(from, group), O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (file.fd() < 0) return GroupKeyErrno("cannot open the key's file");
  TERRACE_RETURN_IF_ERROR(ReadGroupKey(file.fd(), &content));
  return WriteIn(to, group, {content.front().data(), kGroupKeyFileBytes});
}

void GroupKeyFiles::BringAll(std::vector<std::string>* notes) const {
  for (const std::string& directory : Others()) {
    for (const GroupId& group : GroupsOfKeysIn(directory)) {
      const Status status = Bring(directory, group);
      if (status.ok()) continue;
      notes->push_back("the key of group " + ToHex(group) + " stays in " + directory + ": " +
                       status.what() + " (" + strerror(status.detail()) +
                       "). What was written under it cannot be used meanwhile");
    }
  }
}

void GroupKeyFiles::CopyToSecond(std::vector<std::string>* notes) const {
  if (options_.second_directory.empty()) return;
  for (const GroupId& group : GroupsOfKeysIn(options_.directory)) {
    Wrapped there;
    std::string why;
    if (Read(PathIn(options_.second_directory, group), group, &there, &why).ok()) continue;
    const Status status = CopyFile(options_.directory, options_.second_directory, group);
    if (status.ok()) continue;
    notes->push_back("the keys of groups cannot be copied to " + options_.second_directory + ": " +
                     status.what() + " (" + strerror(status.detail()) + "). If the drive of " +
                     options_.directory +
                     " is lost, what was written under them on any drive is lost with it");
    return;
  }
}

// What is copied anew is written anew, and of a key that no file has nothing was written.
void GroupKeyFiles::EraseDrafts(std::vector<std::string>* notes) const {
  std::vector<std::string> directories = Others();
  directories.push_back(options_.directory);
  for (const std::string& directory : directories) {
    for (const std::string& path : GroupKeyDraftsIn(directory)) {
      const Status erased = EraseAt(path);
      if (erased.ok()) continue;
      notes->push_back(path + ", which a write of a key has left, cannot be erased: " +
                       erased.what() + " (" + strerror(erased.detail()) +
                       "). It is tried again at each start, and when its group is erased");
    }
  }
}

void GroupKeyFiles::Load(std::vector<std::string>* notes) {
  EraseDrafts(notes);
  if (encrypts()) BringAll(notes);
  LoadFrom(options_.directory, notes);
  if (!encrypts()) {
    for (const std::string& directory : Others()) LoadFrom(directory, notes);
    return;
  }
  CopyToSecond(notes);
  std::map<GroupId, std::shared_ptr<GroupKey>> usable;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [group, wrapped] : groups_) {
      if (wrapped.key != nullptr) usable.emplace(group, wrapped.key);
    }
  }
  for (const auto& [group, key] : usable) {
    std::set<std::string> copies;
    FindCopies(group, *key, &copies);
    OweWrappings(group, copies);
  }
}

void GroupKeyFiles::LoadFrom(const std::string& directory, std::vector<std::string>* notes) {
  for (const GroupId& group : GroupsOfKeysIn(directory)) {
    if (IsLocked(group)) continue;  // its other file has been told
    Wrapped wrapped;
    std::string why;
    if (!Read(PathIn(directory, group), group, &wrapped, &why).ok()) {
      Destroy(group);  // a daemon that ended in between had begun to
      (void)EraseFile(group);
      continue;
    }
    if (wrapped.key == nullptr) {
      notes->push_back("the key of group " + ToHex(group) + " cannot be used: " + why +
                       ". Its blocks stay, encrypted; with the right encryption_keys_file a "
                       "restart finds them, and erasing the group gives them up");
    }
    const std::lock_guard lock(mutex_);
    groups_[group] = std::move(wrapped);
  }
}

std::shared_ptr<const GroupKey> GroupKeyFiles::Find(const GroupId& group) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : found->second.key;
}

bool GroupKeyFiles::IsLocked(const GroupId& group) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  return found != groups_.end() && found->second.key == nullptr;
}

GroupKeyFiles::Counts GroupKeyFiles::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts{.erasures_owed = to_erase_.size()};
  for (const auto& [group, wrapped] : groups_) {
    ++(wrapped.key == nullptr ? counts.locked : counts.usable);
  }
  return counts;
}

std::string GroupKeyFiles::LockedUnder() const {
  const std::lock_guard lock(mutex_);
  std::set<KeyId> ids;
  for (const auto& [group, wrapped] : groups_) {
    if (wrapped.key == nullptr && wrapped.under != 0) ids.insert(wrapped.under);
  }
  return TextOf(ids);
}

// ---- new ones ----

bool GroupKeyFiles::IsThere(const GroupId& group) const {
  return Find(group) == nullptr || access(PathOf(group).c_str(), F_OK) == 0 || errno != ENOENT;
}

Status GroupKeyFiles::Ensure(const GroupId& group) {
  if (!encrypts()) return Status::Ok();
  std::shared_ptr<GroupKey> own;
  {
    const std::lock_guard lock(mutex_);
    if (to_erase_.contains(group)) {
      return Status(StatusCode::kIo, "its last key could not be erased", EIO);
    }
    const auto found = groups_.find(group);
    if (found != groups_.end()) own = found->second.key;
  }
  if (own != nullptr) return Complete(group, *own);
  Wrapped wrapped;
  std::string why;
  const Status read = Read(PathOf(group), group, &wrapped, &why);
  if (read.ok() && wrapped.key == nullptr) {
    const std::lock_guard lock(mutex_);
    groups_[group] = std::move(wrapped);
    return Status(StatusCode::kNotFound, "its key is under one that the keys file does not hold");
  }
  Status written;
  if (!read.ok()) {
    CipherKey key;
    TERRACE_RETURN_IF_ERROR(options_.random(key.bytes()));
    wrapped = {.key = std::make_shared<GroupKey>(key), .under = ring()->first()};
    bool is_kept = false;
    written = Create(group, *wrapped.key, &is_kept);
    if (!is_kept) return written;
  }
  const std::lock_guard lock(mutex_);
  groups_[group] = std::move(wrapped);
  return written;
}

// Files that somebody has removed, or that could not be written.
Status GroupKeyFiles::Complete(const GroupId& group, const GroupKey& key) const {
  const auto lacks_it = [&](const std::string& directory) {
    return access(PathIn(directory, group).c_str(), F_OK) != 0 && SaysNoGroupKey(errno);
  };
  const std::string& second = options_.second_directory;
  const bool first_lacks_it = lacks_it(options_.directory);
  const bool second_lacks_it = !second.empty() && lacks_it(second);
  if (!first_lacks_it && !second_lacks_it) return Status::Ok();
  std::vector<std::byte> content;
  TERRACE_RETURN_IF_ERROR(Fill(group, key, &content));
  if (second_lacks_it) (void)WriteIn(second, group, content);
  return first_lacks_it ? WriteIn(options_.directory, group, content) : Status::Ok();
}

Status GroupKeyFiles::Fill(const GroupId& group, const GroupKey& key,
                           std::vector<std::byte>* content) const {
  GroupKey::Record record;
  TERRACE_RETURN_IF_ERROR(key.Wrap(group, *ring(), options_.random, &record));
  content->assign(kGroupKeyFileBytes, std::byte{0});
  std::ranges::copy(record, content->begin());
  return Status::Ok();
}

Status GroupKeyFiles::Create(const GroupId& group, const GroupKey& key, bool* is_kept) const {
  std::vector<std::byte> content;
  TERRACE_RETURN_IF_ERROR(Fill(group, key, &content));
  const Status first = WriteIn(options_.directory, group, content);
  const std::string& second = options_.second_directory;
  *is_kept = (!second.empty() && WriteIn(second, group, content).ok()) || first.ok();
  return first;
}

Status GroupKeyFiles::WriteIn(const std::string& directory, const GroupId& group,
                              std::span<const std::byte> content) const {
  std::error_code error;
  const bool is_on_drive = directory == options_.directory && !options_.drive_path.empty();
  if (is_on_drive && !fs::is_directory(options_.drive_path, error)) {
    return Status(StatusCode::kIo, "the drive's directory is gone", ENOENT);
  }
  fs::create_directories(directory, error);
  if (!error) fs::permissions(directory, fs::perms::owner_all, error);
  if (error) return Status(StatusCode::kIo, "cannot make the directory of keys", error.value());
  const std::string path = PathIn(directory, group);
  const std::string draft = DraftOf(path);
  {
    const OpenFile file(draft, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    if (file.fd() < 0 || !WriteGroupKey(file.fd(), content, 0) || fsync(file.fd()) != 0) {
      const Status failed = GroupKeyErrno("cannot write the key's file");
      unlink(draft.c_str());
      return failed;
    }
  }
  TERRACE_RETURN_IF_ERROR(Pass(GroupKeyStep::kDraftWritten));
  if (rename(draft.c_str(), path.c_str()) != 0) {
    const Status failed = GroupKeyErrno("cannot place the key's file");
    (void)EraseAt(draft);
    return failed;
  }
  return SyncDirectory(directory, kKeysUnsynced);
}

// ---- another ring ----

// At any moment one place at least has a whole record.
Status GroupKeyFiles::WrapAnew(const std::string& path, const GroupId& group,
                               const GroupKey& key) const {
  const OpenFile file(path, O_RDWR | O_NOFOLLOW, 0);
  if (file.fd() < 0) return GroupKeyErrno("cannot open the key's file");
  File content;
  TERRACE_RETURN_IF_ERROR(ReadGroupKey(file.fd(), &content));
  const std::shared_ptr<const KeyRing> ring = this->ring();
  // Of two whole ones, which a crash has left, the one under the ring's first key stays.
  const auto is_good = [&](size_t place) {
    return Unwrap(content[place], group, *ring).ok() &&
           WrappedUnder(content[place], group) == ring->first();
  };
  size_t good = is_good(0) ? 0 : 1;
  if (!is_good(good)) {
    // The old record may be under a key that has left the ring: it is where a record is.
    good = WrappedUnder(content[0], group) ? 1 : 0;
    GroupKey::Record record;
    TERRACE_RETURN_IF_ERROR(key.Wrap(group, *ring, options_.random, &record));
    Place place{};
    std::ranges::copy(record, place.begin());
    if (!WriteGroupKey(file.fd(), place, static_cast<off_t>(good * kGroupKeyPlaceBytes)) ||
        fsync(file.fd()) != 0) {
      return GroupKeyErrno("cannot write the key's file");
    }
  }
  TERRACE_RETURN_IF_ERROR(Pass(GroupKeyStep::kPlaceWritten));
  if (!IsNoGroupKey(content[1 - good])) {
    if (!WriteGroupKey(file.fd(), Place{}, static_cast<off_t>((1 - good) * kGroupKeyPlaceBytes)) ||
        fsync(file.fd()) != 0) {
      return GroupKeyErrno("cannot clear the old record in the key's file");
    }
  }
  return Pass(GroupKeyStep::kPlaceCleared);
}

void GroupKeyFiles::FindCopies(const GroupId& group, const GroupKey& key,
                               std::set<std::string>* paths) const {
  for (const std::string& directory : Others()) {
    Wrapped copy;
    std::string why;
    const std::string path = PathIn(directory, group);
    const bool is_there = Read(path, group, &copy, &why).ok();
    if (is_there && copy.key != nullptr && copy.key->id() == key.id()) paths->insert(path);
  }
}

bool GroupKeyFiles::IsRemoved(const std::string& path) const {
  std::error_code error;
  return access(path.c_str(), F_OK) != 0 && SaysNoGroupKey(errno) &&
         (options_.drive_path.empty() || fs::is_directory(options_.drive_path, error));
}

std::set<KeyId> GroupKeyFiles::OldKeysOf(const std::string& path, const GroupId& group) const {
  constexpr KeyId kNobodyCanTell = 0;
  if (IsRemoved(path)) return {};
  const OpenFile file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  File content;
  if (file.fd() < 0 || !ReadGroupKey(file.fd(), &content).ok()) return {kNobodyCanTell};
  std::set<KeyId> keys;
  const KeyId first = ring()->first();
  for (const Place& place : content) {
    if (IsNoGroupKey(place)) continue;
    const KeyId under = WrappedUnder(place, group).value_or(kNobodyCanTell);
    if (under != first) keys.insert(under);
  }
  return keys;
}

void GroupKeyFiles::OweWrappings(const GroupId& group, const std::set<std::string>& copies) {
  std::map<std::string, std::set<KeyId>> files;
  std::set<std::string> paths = copies;
  paths.insert(PathOf(group));
  for (const std::string& path : paths) {
    std::set<KeyId> keys = OldKeysOf(path, group);
    if (!keys.empty()) files.emplace(path, std::move(keys));
  }
  if (files.empty()) return;
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  if (found == groups_.end() || found->second.key == nullptr) return;  // destroyed meanwhile
  to_wrap_[group].files.merge(files);
}

Status GroupKeyFiles::SetRing(std::shared_ptr<const KeyRing> ring,
                              std::vector<std::string>* notes) {
  std::map<GroupId, Wrapped> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  // What the former ring opens the next one may not.
  std::map<GroupId, std::set<std::string>> copies;
  for (const auto& [group, wrapped] : groups) {
    if (wrapped.key != nullptr) FindCopies(group, *wrapped.key, &copies[group]);
  }
  {
    const std::lock_guard lock(mutex_);
    ring_ = std::move(ring);
  }
  for (auto& [group, wrapped] : groups) {
    std::string why;
    if (wrapped.key == nullptr) {
      if (!Read(PathOf(group), group, &wrapped, &why).ok() || wrapped.key == nullptr) continue;
      const std::lock_guard lock(mutex_);
      const auto found = groups_.find(group);
      if (found == groups_.end()) continue;  // destroyed meanwhile
      found->second = wrapped;
    }
    FindCopies(group, *wrapped.key, &copies[group]);
    OweWrappings(group, copies[group]);
  }
  return WrapOwed(notes);
}

Status GroupKeyFiles::WrapOwedOf(const GroupId& group, const OldWrappings& owed) {
  const std::shared_ptr<const GroupKey> key = Find(group);
  Status worst = key == nullptr ? Status(StatusCode::kGone, "it is destroyed") : Status::Ok();
  std::set<std::string> done;
  for (const auto& [path, keys] : owed.files) {
    if (worst.code() == StatusCode::kGone) break;
    const Status status = IsRemoved(path) ? Status::Ok() : WrapAnew(path, group, *key);
    if (!status.ok()) worst = status;
    if (status.ok()) done.insert(path);
  }
  const std::lock_guard lock(mutex_);
  const auto found = to_wrap_.find(group);
  if (found == to_wrap_.end()) return Status::Ok();  // destroyed meanwhile
  for (const std::string& path : done) found->second.files.erase(path);
  found->second.why = worst;
  if (!worst.ok() && worst.code() != StatusCode::kGone) return worst;
  to_wrap_.erase(found);
  if (const auto wrapped = groups_.find(group); wrapped != groups_.end() && worst.ok()) {
    wrapped->second.under = ring_->first();
  }
  return Status::Ok();
}

Status GroupKeyFiles::WrapOwed(std::vector<std::string>* notes) {
  std::map<GroupId, OldWrappings> to_wrap;
  {
    const std::lock_guard lock(mutex_);
    to_wrap = to_wrap_;
  }
  Status worst;
  for (const auto& [group, owed] : to_wrap) {
    const Status status = WrapOwedOf(group, owed);
    if (status.ok()) continue;
    worst = status;
    notes->push_back("the key of group " + ToHex(group) + " stays under " +
                     TextOf(KeysOf(owed.files)) + ": " + status.what() + " (" +
                     strerror(status.detail()) +
                     "); keep that key in the keys file: it is tried again each second");
  }
  return worst;
}

bool GroupKeyFiles::has_wrappings_owed() const {
  const std::lock_guard lock(mutex_);
  return !to_wrap_.empty();
}

GroupKeyFiles::Owed GroupKeyFiles::wrappings_owed() const {
  const std::lock_guard lock(mutex_);
  Owed all;
  std::set<KeyId> keys;
  for (const auto& [group, owed] : to_wrap_) {
    all.files += owed.files.size();
    keys.merge(KeysOf(owed.files));
    if (!owed.why.ok()) all.why = owed.why;
  }
  all.under = TextOf(keys);
  return all;
}

// ---- the end of one ----

void GroupKeyFiles::Destroy(const GroupId& group) {
  const std::lock_guard lock(mutex_);
  to_erase_.try_emplace(group);
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  if (found->second.key != nullptr) found->second.key->Destroy();
  groups_.erase(found);
  to_wrap_.erase(group);
}

bool GroupKeyFiles::has_erasures_owed() const {
  const std::lock_guard lock(mutex_);
  return !to_erase_.empty();
}

std::vector<GroupId> GroupKeyFiles::ErasuresOwed() const {
  const std::lock_guard lock(mutex_);
  std::vector<GroupId> groups;
  for (const auto& [group, tried] : to_erase_) groups.push_back(group);
  return groups;
}

void GroupKeyFiles::AddTrouble(GroupFilesTrouble* trouble) const {
  const auto text_of = [](const Status& status) {
    return std::string(status.what()) + " (" + strerror(status.detail()) + ")";
  };
  if (const Owed owed = wrappings_owed(); !owed.why.ok()) {
    trouble->key_files_not_wrapped = owed.files;
    trouble->why_not_wrapped = text_of(owed.why);
    trouble->keys_needed = owed.under;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [group, tried] : to_erase_) {
    if (tried.ok()) continue;
    ++trouble->keys_not_erased;
    trouble->why_not_erased = text_of(tried);
  }
}

Status GroupKeyFiles::EraseAt(const std::string& path) const {
  const Status overwritten = OverwriteGroupKey(path);
  if (overwritten.code() == StatusCode::kNotFound) return Status::Ok();
  TERRACE_RETURN_IF_ERROR(overwritten);
  TERRACE_RETURN_IF_ERROR(Pass(GroupKeyStep::kErasedInPlace));
  if (unlink(path.c_str()) != 0) return GroupKeyErrno("cannot remove the key's file");
  TERRACE_RETURN_IF_ERROR(Pass(GroupKeyStep::kUnlinked));
  return SyncDirectory(fs::path(path).parent_path(), kKeysUnsynced);
}

// A draft, which a crash may have left, holds the key just as well.
Status GroupKeyFiles::EraseIn(const std::string& directory, const GroupId& group) const {
  const std::string path = PathIn(directory, group);
  TERRACE_RETURN_IF_ERROR(EraseAt(DraftOf(path)));
  return EraseAt(path);
}

Status GroupKeyFiles::EraseEverywhere(const GroupId& group) const {
  Status worst;
  for (const std::string& directory : Others()) {
    if (const Status erased = EraseIn(directory, group); !erased.ok()) worst = erased;
  }
  const Status erased = EraseIn(options_.directory, group);
  return erased.ok() ? worst : erased;
}

Status GroupKeyFiles::EraseFile(const GroupId& group) {
  const Status erased = EraseEverywhere(group);
  const std::lock_guard lock(mutex_);
  const auto owed = to_erase_.find(group);
  if (owed == to_erase_.end()) return erased;
  owed->second = erased;
  if (erased.ok()) to_erase_.erase(owed);
  return erased;
}

}  // namespace terrace
