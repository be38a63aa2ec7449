// What keeps the files of a domain's groups from being as they should, for a person.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct GroupFilesTrouble {
  std::string directory;         // of the groups' files; empty: there are none
  uint64_t groups_not_kept = 0;  // could not be written, and are tried again
  std::string why_not_kept;      // of one of them
  uint64_t keys_not_erased = 0;  // destroyed in memory, and not on the drive yet
  std::string why_not_erased;    // of one of them
  // Files of keys that were to be wrapped anew, in vain.
  uint64_t key_files_not_wrapped = 0;
  std::string why_not_wrapped;  // of one of them
  std::string keys_needed;      // "<id>, <id>": the keys that they are under
};

}  // namespace terrace
