// One file of a group's wrapped key: two places for a record, one of them zeros. What is read,
// written, overwritten and listed of such files; GroupKeyFiles says what they mean.
//
// THREADING: any; all but what asks of a name blocks.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr std::string_view kGroupKeySuffix = ".key";
inline constexpr std::string_view kGroupKeyDraftSuffix = ".new";  // behind the file's whole name
inline constexpr size_t kGroupKeyPlaceBytes = 4096;               // no loss of power tears both
inline constexpr size_t kGroupKeyFileBytes = 2 * kGroupKeyPlaceBytes;

using GroupKeyPlace = std::array<std::byte, kGroupKeyPlaceBytes>;
using GroupKeyContent = std::array<GroupKeyPlace, 2>;

// What a crash has left of a key's file that was being written.
bool IsGroupKeyDraft(std::string_view path);
// The paths of such drafts; the groups of which there is a file. Of no directory: none.
std::vector<std::string> GroupKeyDraftsIn(const std::string& directory);
std::vector<GroupId> GroupsOfKeysIn(const std::string& directory);

// All zeros.
bool IsNoGroupKey(std::span<const std::byte> bytes);
// The errno of an open says that there is no file; something else may be where its directory was.
bool SaysNoGroupKey(int error);
// kIo with the errno of now.
Status GroupKeyErrno(const char* what);
// What a file lacks at its end is zeros.
Status ReadGroupKey(int fd, GroupKeyContent* content);
// False: errno says why.
bool WriteGroupKey(int fd, std::span<const std::byte> bytes, off_t offset);
// With zeros, synced. kNotFound: there is no such file. kIo.
Status OverwriteGroupKey(const std::string& path);

}  // namespace terrace
