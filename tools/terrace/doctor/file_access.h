// Whether the daemon's user may read a file that the configuration names, as modes say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/terrace/doctor/finding.h"
#include "tools/terrace/doctor/subject.h"

namespace terrace::tools {

struct Unreadable {
  std::string why;  // "mode 0600, of uid 0: terrace may not read it"
  std::string remedy;
};
// None: it may, or what is in the way cannot be seen. Credentials of systemd are the unit's, by
// lists of access that modes do not show.
std::optional<Unreadable> WhyUnreadable(const Subject& subject, const std::string& path,
                                        const FileFacts& file);

// What is found of a file that only the daemon may read, and what it refuses of it. `exposed` is
// what follows if others may have read it.
void JudgeSecretFile(const Subject& subject, const std::string& path, const FileFacts& file,
                     const std::string& exposed, Finding* finding);

// Where a path will lie that is not there yet: the nearest directory above it that is; the path
// itself if it is there, or none above it can be seen.
std::string NearestThere(const Subject& subject, const std::string& path);

enum class MissingParents : uint8_t {
  kRefused,  // only the last directory is made
  kMade,
};
struct Making {
  bool is_seen = true;    // false: this user may not look
  bool is_units = false;  // systemd makes it, or what it lies in
  std::string why_not;    // "its parent /mnt/d is not there"; empty: the daemon can make it
};
// Whether the daemon's start can make a directory that is not there.
Making MakingOf(const Subject& subject, const std::string& path, MissingParents parents);

// Of a file that this user cannot look at.
void MarkUnseen(const Subject& subject, const std::string& path, int error, Finding* finding);

bool IsCredential(const std::string& path);

}  // namespace terrace::tools
