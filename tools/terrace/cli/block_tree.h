// The radix tree of a listing: blocks whose only child follows them are one run, drawn on one line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "terrace/protocol.h"
#include "tools/terrace/cli/block_listing.h"

namespace terrace::tools {

struct BlockRun {
  std::vector<const protocol::ListEntry*> blocks;  // a chain, first to last; never empty
  std::vector<uint32_t> children;                  // indexes of the runs that continue it
  uint32_t depth = 0;                              // runs above it
};

class BlockTree {
 public:
  // A block is a root if its parent is not among `entries`.
  // OWNERSHIP: refers to `entries`, which outlive the tree.
  explicit BlockTree(std::span<const protocol::ListEntry> entries);

  const std::vector<BlockRun>& runs() const { return runs_; }  // parents before children
  const std::vector<uint32_t>& roots() const { return roots_; }

  // One line a run, `depth_max` runs deep; below that one line says how much is left out.
  std::string Render(uint32_t depth_max, const GroupNames& names) const;
  nlohmann::json ToJson(uint32_t depth_max, const GroupNames& names) const;

 private:
  struct Below {
    uint64_t block_count = 0;
    uint64_t byte_count = 0;
  };
  Below CountBelow(uint32_t run) const;

  std::vector<BlockRun> runs_;
  std::vector<uint32_t> roots_;
};

}  // namespace terrace::tools
