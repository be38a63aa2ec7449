// DenseTrace: a request trace with block ids made dense (0, 1, 2 … in order of first use) and the
// prefix tree it spans, so that a simulation indexes arrays instead of hashing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/index/block_id.h"
#include "tools/terrace/trace/trace.h"

namespace terrace::tools {

class DenseTrace {
 public:
  // False with `*why` if an id follows two different ids: equal ids must mean equal prefixes.
  bool Build(const Trace& trace, std::string* why);

  size_t request_count() const { return requests_.size(); }
  const TraceRequest& request(size_t index) const { return requests_[index]; }
  // Head first.
  std::span<const BlockId> path(size_t index) const {
    return std::span(path_ids_).subspan(requests_[index].first_id, requests_[index].id_count);
  }
  BlockId parent(BlockId id) const { return parents_[id]; }
  std::span<const BlockId> parents() const { return parents_; }
  uint32_t position(BlockId id) const { return positions_[id]; }
  uint32_t unique_count() const { return static_cast<uint32_t>(parents_.size()); }
  uint64_t touch_count() const { return path_ids_.size(); }
  uint64_t asked_count() const { return asked_count_; }  // of those, that a hit rate is of
  uint32_t block_tokens() const { return block_tokens_; }

 private:
  std::vector<TraceRequest> requests_;
  std::vector<BlockId> path_ids_;
  std::vector<BlockId> parents_;  // kBlockNone: a root
  std::vector<uint32_t> positions_;
  uint64_t asked_count_ = 0;
  uint32_t block_tokens_ = 0;
};

}  // namespace terrace::tools
