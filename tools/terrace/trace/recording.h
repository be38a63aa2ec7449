// Recording: what `terrace trace record` had the daemon write, as requests of a Trace. What was
// asked, what was stored and how a request ended are lines, and requests, of their own, so that a
// replay does what the daemon did.
//
// LIMITS: leases without a Release, and ends of paths, are remembered up to kLeasesMax.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/terrace/trace/trace.h"

namespace terrace::tools {

class Recording {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kLeasesMax = 1 << 20;

  explicit Recording(Trace* trace) : trace_(trace) {}

  // The first line of a recording, or one with an "op". False with `*why`.
  static bool IsHead(const nlohmann::json& line) { return line.contains("terrace_trace"); }
  static bool IsRecord(const nlohmann::json& line) { return line.contains("op"); }
  static bool CheckHead(const nlohmann::json& line, std::string* why);
  bool Add(const nlohmann::json& line, std::string* why);

 private:
  bool AddPath(const nlohmann::json& line, TraceRequest request, std::string* why);
  // The ids before the first of a line that does not begin at the root. False if they are not
  // known.
  bool PrependParents(const nlohmann::json& line, std::vector<uint64_t>* ids) const;
  // Of the request whose lease it was, or whose path ended with the last block named.
  void AddEnd(const nlohmann::json& line, const TraceRequest& request);
  void AddEndOfTip(const nlohmann::json& line, const TraceRequest& request);
  void AddEndOf(TraceRequest ended, const nlohmann::json& line, const TraceRequest& request);

  Trace* trace_;
  std::unordered_map<uint64_t, uint64_t> parents_;     // by id; 0: a root
  std::unordered_map<uint64_t, TraceRequest> leases_;  // whose paths they are
  std::unordered_map<uint64_t, TraceRequest> tips_;    // the last one that ended there
};

}  // namespace terrace::tools
