// HotImport: stores the blocks of a file in a daemon, each once all of its bytes are believed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "tools/terrace/content/group_opener.h"
#include "tools/terrace/content/hot_file.h"

namespace terrace::tools {

struct ImportCounts {
  uint64_t stored = 0;
  uint64_t stored_bytes = 0;
  uint64_t existed = 0;
  uint64_t busy = 0;     // being written by somebody, to the end; not stored, and perhaps never
  uint64_t expired = 0;  // their time to live is over
  uint64_t no_room = 0;
};

class HotImport {
 public:
  // `now_unix_s`: what is left of times to live.
  HotImport(GroupOpener& opener, HotFileReader& reader, uint64_t now_unix_s,
            std::function<void()> tell);

  enum class Outcome : uint8_t { kDone, kCancelled, kNotBelieved, kRefused };
  // kNotBelieved: the reader's why(); kRefused: told on stderr.
  Outcome Run(const HotFileHeader& header, const std::atomic<bool>& is_cancelled);
  const ImportCounts& counts() const { return counts_; }

 private:
  bool Store(const HotBlockHead& head, std::span<const std::byte> payload, uint32_t ttl_s);
  bool Write(const SpaceGroupSpec& spec, const HotBlockHead& head,
             std::span<const std::byte> payload, WriteLease* lease);

  GroupOpener& opener_;
  HotFileReader& reader_;
  const uint64_t now_unix_s_;
  const std::function<void()> tell_;
  ImportCounts counts_;
};

}  // namespace terrace::tools
