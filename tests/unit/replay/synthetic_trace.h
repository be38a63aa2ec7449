// Small traces for tests: written by hand, or random prefix trees.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "tools/replay/dense_trace.h"

namespace terrace::tools {

inline void AddRequest(Trace* trace, uint64_t timestamp_ms, const std::vector<uint64_t>& ids) {
  trace->requests.push_back({.timestamp_ms = timestamp_ms,
                             .first_id = trace->ids.size(),
                             .id_count = static_cast<uint32_t>(ids.size())});
  trace->ids.insert(trace->ids.end(), ids.begin(), ids.end());
}

inline Trace MakeTrace(std::initializer_list<std::vector<uint64_t>> paths) {
  Trace trace;
  trace.block_tokens = 16;
  uint64_t now_ms = 0;
  for (const auto& path : paths) AddRequest(&trace, now_ms += 1000, path);
  return trace;
}

// Sessions that grow turn by turn, some sharing a head, some cut back and continued otherwise.
inline Trace MakeRandomTrace(uint32_t seed, uint32_t request_count) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  std::vector<std::vector<uint64_t>> sessions;
  uint64_t next_id = 1000;
  uint64_t now_ms = 0;
  Trace trace;
  trace.block_tokens = 16;
  for (uint32_t r = 0; r < request_count; ++r) {
    if (sessions.empty() || below(5) == 0) {
      sessions.emplace_back();
      if (sessions.size() > 1 && below(2) == 0) {
        const auto& other = sessions[below(static_cast<uint32_t>(sessions.size()) - 1)];
        sessions.back().assign(other.begin(), other.begin() + below(other.size() + 1));
      }
    }
    auto& path = sessions[below(static_cast<uint32_t>(sessions.size()))];
    if (below(8) == 0) path.resize(below(static_cast<uint32_t>(path.size()) + 1));
    for (uint32_t added = below(6); added > 0; --added) path.push_back(next_id++);
    AddRequest(&trace, now_ms += below(20000), path);
  }
  return trace;
}

}  // namespace terrace::tools
