// Trace: requests to a cache in the order they came, as a replay or a benchmark repeats them.
//
// THREADING: none of its own. LIMITS: kTraceIdsMax block ids.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "terrace/check.h"
#include "terrace/protocol.h"

namespace terrace::tools {

inline constexpr uint64_t kTraceIdsMax = uint64_t{1} << 28;

// What a request does to a cache: it asks for its path and then stores it, or, in a recording, one
// of these, or it ends.
enum class TraceKind : uint8_t { kAskedAndStored, kAsked, kStored, kEnded };

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint64_t session_hash = 0;  // 0: the trace knows no sessions
  uint64_t first_id = 0;      // index into Trace::ids
  uint32_t id_count = 0;
  uint32_t stored_from = 0;  // of a path that is stored in part: the first; it hangs on the others
  protocol::EndReason end_reason = protocol::EndReason::kUnknown;
  TraceKind kind = TraceKind::kAskedAndStored;

  bool is_asked() const { return kind == TraceKind::kAskedAndStored || kind == TraceKind::kAsked; }
};

struct Trace {
  std::vector<uint64_t> ids;
  std::vector<TraceRequest> requests;
  uint32_t block_tokens = 0;
  uint64_t cut_line = 0;  // the last one, which was cut off and is left out; 0: none was

  std::span<const uint64_t> ids_of(const TraceRequest& request) const {
    TERRACE_CHECK(request.first_id + request.id_count <= ids.size(), "a request's ids are here");
    return std::span(ids).subspan(request.first_id, request.id_count);
  }
};

// What a trace's `stop` says. kUnknown for words that are not known.
protocol::EndReason EndReasonOf(const nlohmann::json& stop);

}  // namespace terrace::tools
