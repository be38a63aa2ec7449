#include "tools/replay/dense_trace.h"

#include <fmt/core.h>

#include <unordered_map>

namespace terrace::tools {

bool DenseTrace::Build(const Trace& trace, std::string* why) {
  *this = DenseTrace();
  requests_ = trace.requests;
  block_tokens_ = trace.block_tokens;
  path_ids_.reserve(trace.ids.size());
  std::unordered_map<uint64_t, BlockId> dense;
  for (size_t r = 0; r < requests_.size(); ++r) {
    BlockId parent = kBlockNone;
    uint32_t position = 0;
    const uint64_t first = path_ids_.size();
    for (const uint64_t id : trace.ids_of(requests_[r])) {
      const auto [entry, is_new] = dense.try_emplace(id, unique_count());
      if (is_new) {
        parents_.push_back(parent);
        positions_.push_back(position);
      } else if (parents_[entry->second] != parent) {
        *why = fmt::format(
            "request {} has block id {} at place {}, after another id than before. Equal ids must "
            "mean equal prefixes: is this trace of independent block hashes?",
            r + 1, id, position);
        return false;
      }
      parent = entry->second;
      path_ids_.push_back(parent);
      ++position;
    }
    requests_[r].first_id = first;
    if (requests_[r].is_asked()) asked_count_ += requests_[r].id_count;
  }
  return true;
}

}  // namespace terrace::tools
