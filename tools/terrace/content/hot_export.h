// HotExport: reads the chosen blocks of a daemon, under leases, into a file. What leaves the cache
// meanwhile is left out, with what stands behind it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "tools/terrace/content/group_opener.h"
#include "tools/terrace/content/hot_file.h"
#include "tools/terrace/content/hot_set.h"

namespace terrace::tools {

class HotExport {
 public:
  // `tell` is called now and then.
  HotExport(GroupOpener& opener, HotFileWriter& writer, const HotChoice& choice,
            std::function<void()> tell);

  enum class Outcome : uint8_t { kDone, kCancelled, kNotWritten, kRefused };
  // kNotWritten: errno says why; kRefused: told on stderr.
  Outcome Run(const std::atomic<bool>& is_cancelled);
  // Chosen, and gone when their turn came.
  uint64_t lost_count() const { return lost_count_; }

 private:
  Outcome WritePath(std::span<const uint32_t> path);
  Outcome WriteBatch(const OpenedGroup& group, std::span<const uint32_t> batch, bool* is_whole);
  Outcome WriteBlock(const OpenedGroup& group, uint32_t block, const ReadLease& lease,
                     uint32_t block_index);
  // The file's number of the group, which is written before its first block.
  bool NumberOf(const OpenedGroup& group, uint32_t* number);

  GroupOpener& opener_;
  HotFileWriter& writer_;
  const HotChoice& choice_;
  const std::function<void()> tell_;
  std::vector<bool> is_written_;
  std::map<GroupId, uint32_t> numbers_;
  std::vector<std::byte> payload_;
  uint64_t lost_count_ = 0;
};

}  // namespace terrace::tools
