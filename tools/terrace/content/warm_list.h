// What `terrace warm` is given: a list, line by line, of keys or of prompts as token ids.
//
//   0123456789abcdef0123456789abcdef                         a key, of --group or of any group
//   {"group": "llama", "keys": ["0123…", "4567…"]}            a chain of keys from a prompt's root
//   {"group": "llama", "tokens": [1, 2, 3]}                  a prompt: its keys are derived from it
//
// "space" may stand for "group"; without one --group is meant. Empty lines and lines that begin
// with # are passed over.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "terrace/block_key.h"

namespace terrace::tools {

inline constexpr size_t kWarmLineBytesMax = size_t{16} << 20;

struct WarmItem {
  uint64_t line = 0;
  std::string group;           // empty: the line names none
  std::vector<BlockKey> keys;  // of a chain, or one
  std::vector<uint32_t> tokens;
  bool is_chain = false;
};

// Reads one line at a time, so a list may be of any length.
class WarmList {
 public:
  explicit WarmList(std::istream& in) : in_(in) {}
  // None at the end, or where a line is none of those: then why() says which, and what to write.
  std::optional<WarmItem> Next();
  const std::string& why() const { return why_; }

 private:
  bool ReadLine(std::string* text);
  std::optional<WarmItem> Read(const std::string& text);
  std::optional<WarmItem> Refuse(const std::string& what);

  std::istream& in_;
  uint64_t line_ = 0;
  std::string why_;
};

}  // namespace terrace::tools
