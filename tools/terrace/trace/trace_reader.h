// Reads request traces: JSON lines, plain or gzip'd, one request a line with `timestamp` (ms),
// `input_length` (tokens) and `hash_ids` (one id a block; equal ids mean equal prefixes up to and
// including that block); optional `session_id` and `stop` ("tool_use", "end_turn"). Or what a
// daemon has recorded, see recording.h.
#pragma once

#include <cstdint>
#include <string>

#include "tools/terrace/trace/trace.h"

namespace terrace::tools {

inline constexpr uint64_t kTraceLineBytesMax = uint64_t{16} << 20;

struct TraceOptions {
  uint64_t request_count_max = 0;  // > 0; the rest of the file is not read
  // Tokens a block: the last id of a request that does not fill its block is dropped. 0: 256 if the
  // trace has sessions, else 512.
  uint32_t block_tokens = 0;
};

// False with `*why`, which names file, line and what is wrong there.
bool ReadTrace(const std::string& path, const TraceOptions& options, Trace* trace,
               std::string* why);
// What a person is told of a trace whose last line was cut off. REQUIRES: cut_line is not 0.
std::string CutLineText(const std::string& path, const Trace& trace);

}  // namespace terrace::tools
