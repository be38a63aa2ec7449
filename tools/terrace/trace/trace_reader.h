// Request traces: JSON lines, plain or gzip'd, one request a line with `timestamp` (ms),
// `input_length` (tokens) and `hash_ids` (one id a block; equal ids mean equal prefixes up to and
// including that block); optional `session_id` and `stop` ("tool_use", "end_turn"). Or what a
// daemon has recorded, see recording.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "terrace/protocol.h"

namespace terrace::tools {

inline constexpr uint64_t kTraceLineBytesMax = uint64_t{16} << 20;
inline constexpr uint64_t kTraceIdsMax = uint64_t{1} << 28;

// What a request does to a cache: it asks for its path and then stores it, or, in a recording, one
// of these, or it ends.
enum class TraceKind : uint8_t { kAskedAndStored, kAsked, kStored, kEnded };

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint64_t session_hash = 0;  // 0: the trace knows no sessions
  uint64_t first_id = 0;      // index into Trace::ids
  uint32_t id_count = 0;
  protocol::EndReason end_reason = protocol::EndReason::kUnknown;
  TraceKind kind = TraceKind::kAskedAndStored;

  bool is_asked() const { return kind == TraceKind::kAskedAndStored || kind == TraceKind::kAsked; }
};

struct Trace {
  std::vector<uint64_t> ids;
  std::vector<TraceRequest> requests;
  uint32_t block_tokens = 0;

  std::span<const uint64_t> ids_of(const TraceRequest& request) const {
    return std::span(ids).subspan(request.first_id, request.id_count);
  }
};

protocol::EndReason EndReasonOf(const nlohmann::json& stop);

struct TraceOptions {
  uint64_t request_count_max = 0;  // > 0; the rest of the file is not read
  // Tokens a block: the last id of a request that does not fill its block is dropped. 0: 256 if the
  // trace has sessions, else 512.
  uint32_t block_tokens = 0;
};

// False with `*why`, which names file, line and what is wrong there.
bool ReadTrace(const std::string& path, const TraceOptions& options, Trace* trace,
               std::string* why);

}  // namespace terrace::tools
