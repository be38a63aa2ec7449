// GroupKeyFiles: the keys of a domain's groups, each wrapped under a key of the ring in a file of
// its own (docs/DISK_FORMAT.md, Group keys), and in memory for the tier that encrypts with them.
//
// A file holds two places for its record, one of them zeros: a key is wrapped anew into the other
// place and synced before the old one is cleared, so that no crash loses it and no old wrapping
// stays. Files that are still under another key than the ring's first, since the ring was changed
// by a start or a drive did not take it, are owed that. A key whose file cannot be opened with this
// ring is *locked*: its file stays as it is, and nothing is written under its group until the key
// of the ring is back or the group is erased.
//
// A second directory has a copy of each file: a key is kept if it lies in either, and the next
// start puts it into both. It has to be there whenever the first may be, so that an erasure reaches
// it.
//
// Without a ring nothing is encrypted, and what keys a predecessor has left are locked: they can be
// destroyed, and that is all.
//
// THREADING: any; what says so blocks, one such call at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/block/group_files_trouble.h"
#include "daemon/persist/group_key_file.h"
#include "terrace/block_key.h"
#include "terrace/status.h"
#include "tiers/crypto/group_key.h"
#include "tiers/crypto/key_ring.h"

namespace terrace {

// Each write of a key's file, that a test may fail or end the process at.
enum class GroupKeyStep : uint8_t {
  kDraftWritten,   // of a new file, not in its place yet
  kPlaceWritten,   // the other place has the new record, synced
  kPlaceCleared,   // the old one is zeros, synced
  kErasedInPlace,  // both are zeros, synced
  kUnlinked,
};

class GroupKeyFiles final : public GroupKeys {
 public:
  struct Options {
    std::string directory;         // made with the first file
    std::string second_directory;  // the same; empty: there is none
    // Never made: where it is gone nothing is written to `directory`. May be empty.
    std::string drive_path;
    // Where files may lie from when the paths were others: they are copied here at start, wrapped
    // anew and erased where they are.
    std::vector<std::string> other_directories;
    std::shared_ptr<const KeyRing> ring;  // null: nothing is encrypted
    RandomFill random = KernelRandom;
    // False: the step fails as if the drive had. None: all go on.
    std::function<bool(GroupKeyStep)> may_go_on;
  };
  struct Counts {
    uint64_t usable = 0, locked = 0;
    uint64_t erasures_owed = 0;  // of files that could not be destroyed
  };
  explicit GroupKeyFiles(Options options);

  // At start: whose keys are there, and what is to be wrapped anew. What a crash has left of a
  // write is no key, and is erased. Blocks.
  void Load(std::vector<std::string>* notes);
  std::shared_ptr<const GroupKey> Find(const GroupId& group) const override;

  bool encrypts() const { return ring() != nullptr; }
  // There is a key that cannot be opened: what it wrote may come back.
  bool IsLocked(const GroupId& group) const;

  const std::string& directory() const { return options_.directory; }
  std::string Places() const;  // the directories, for a person
  // False: the group's key is in use here, and no file has it any more. Blocks.
  bool IsThere(const GroupId& group) const;
  // The group has a key that a successor finds, an old one, whose file is written again if somebody
  // has removed it, or a new one. kNotFound: it is locked. kIo: the first directory lacks it; if
  // the second has it, it is in use all the same. Without a ring it needs none. Blocks.
  Status Ensure(const GroupId& group);
  // The ring has changed: all keys are under its first one afterwards, but for those that stay
  // locked. What failed is in the notes, and stays under its old key until WrapOwed. Blocks.
  Status SetRing(std::shared_ptr<const KeyRing> ring, std::vector<std::string>* notes);
  // Files that Load has found under another key than the ring's first, or in which SetRing failed,
  // are wrapped anew. What fails again is in the notes. Blocks.
  Status WrapOwed(std::vector<std::string>* notes);
  bool has_wrappings_owed() const;
  struct Owed {
    uint64_t files = 0;
    Status why;         // of one that was tried in vain; kOk: none was
    std::string under;  // "<id>, <id>": the keys of the ring that they need
  };
  Owed wrappings_owed() const;

  // Of a group, locked or not: nothing under its key can be read any more, whatever becomes of the
  // file. Does not block.
  void Destroy(const GroupId& group);
  // The file of a key that was destroyed is overwritten, and gone. kIo: it is not; asked again with
  // any other. Blocks.
  Status EraseFile(const GroupId& group);
  // Files of destroyed keys that are still there.
  bool has_erasures_owed() const;
  std::vector<GroupId> ErasuresOwed() const;
  // What has been tried in vain of erasures and wrappings.
  void AddTrouble(GroupFilesTrouble* trouble) const;

  Counts counts() const;
  // "<id>, <id>": keys of the ring that locked files want, for a person.
  std::string LockedUnder() const;

 private:
  struct Wrapped {
    std::shared_ptr<GroupKey> key;  // null: locked
    KeyId under = 0;                // 0: nobody can tell
  };
  // Of a group: by file the keys that records in it are under, besides the ring's first.
  struct OldWrappings {
    std::map<std::string, std::set<KeyId>> files;
    Status why;  // of the last try
  };

  std::string PathOf(const GroupId& group) const;
  void LoadFrom(const std::string& directory, std::vector<std::string>* notes);
  // All directories but the first.
  std::vector<std::string> Others() const;
  Status WriteIn(const std::string& directory, const GroupId& group,
                 std::span<const std::byte> content) const;
  void CopyToSecond(std::vector<std::string>* notes) const;
  Status CopyFile(const std::string& from, const std::string& to, const GroupId& group) const;
  Status Bring(const std::string& directory, const GroupId& group) const;
  void BringAll(std::vector<std::string>* notes) const;
  void EraseDrafts(std::vector<std::string>* notes) const;
  // No file is as good.
  Status EraseAt(const std::string& path) const;
  Status EraseIn(const std::string& directory, const GroupId& group) const;
  Status EraseEverywhere(const GroupId& group) const;
  // kNotFound: no file, or one that was being erased.
  Status Read(const std::string& path, const GroupId& group, Wrapped* wrapped,
              std::string* why) const;
  // What a new file holds.
  Status Fill(const GroupId& group, const GroupKey& key, std::vector<std::byte>* content) const;
  // As Ensure; `*is_kept` if the second directory alone has it, too.
  Status Create(const GroupId& group, const GroupKey& key, bool* is_kept) const;
  Status Complete(const GroupId& group, const GroupKey& key) const;
  Status WrapAnew(const std::string& path, const GroupId& group, const GroupKey& key) const;
  // The group's file and `copies`, as far as they are to be wrapped anew.
  void OweWrappings(const GroupId& group, const std::set<std::string>& copies);
  std::set<KeyId> OldKeysOf(const std::string& path, const GroupId& group) const;
  // Somebody has removed the file, which is no drive that has gone.
  bool IsRemoved(const std::string& path) const;
  Status WrapOwedOf(const GroupId& group, const OldWrappings& owed);
  // The files of the key in other directories; what this ring cannot open is none.
  void FindCopies(const GroupId& group, const GroupKey& key, std::set<std::string>* paths) const;
  Status Pass(GroupKeyStep step) const;
  std::shared_ptr<const KeyRing> ring() const;

  const Options options_;
  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<const KeyRing> ring_;
  std::map<GroupId, Wrapped> groups_;
  std::map<GroupId, Status> to_erase_;  // with how the last try ended
  std::map<GroupId, OldWrappings> to_wrap_;
};

}  // namespace terrace
