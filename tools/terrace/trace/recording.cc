#include "tools/terrace/trace/recording.h"

#include <fmt/core.h>

#include <algorithm>

#include "terrace/space.h"

namespace terrace::tools {
namespace {

// 0 if there is none.
uint64_t NumberOf(const nlohmann::json& line, const char* name) {
  const auto field = line.find(name);
  return field != line.end() && field->is_number_unsigned() ? field->get<uint64_t>() : 0;
}

// What is not printed is of any depth, and printing it follows it.
std::string TextOf(const nlohmann::json& value) {
  return value.is_primitive() ? value.dump() : value.type_name();
}

}  // namespace

bool Recording::CheckHead(const nlohmann::json& line, std::string* why) {
  const uint64_t version = NumberOf(line, "terrace_trace");
  if (version == kVersion) return true;
  *why = fmt::format("begins a recording of format {}; this terrace reads format {}",
                     TextOf(line["terrace_trace"]), kVersion);
  return false;
}

bool Recording::Add(const nlohmann::json& line, std::string* why) {
  const std::string op = line["op"].is_string() ? line["op"].get<std::string>() : "";
  const auto stamp = line.find("timestamp");
  if (stamp == line.end() || !stamp->is_number_unsigned()) {
    *why = "has no count 'timestamp'";
    return false;
  }
  TraceRequest request{.timestamp_ms = stamp->get<uint64_t>(),
                       .session_hash = NumberOf(line, "session_id")};
  // An Acquire follows a Match that matters, and what a Commit seals was reserved.
  if (op == "match" || op == "commit") return true;
  if (op == "release") {
    AddEnd(line, request);
    return true;
  }
  if (op == "touch") {
    AddEndOfTip(line, request);
    return true;
  }
  if (op != "acquire" && op != "reserve") {
    *why = fmt::format(
        "has op '{}'; there are match, acquire, reserve, commit, release "
        "and touch",
        op);
    return false;
  }
  request.kind = op == "acquire" ? TraceKind::kAsked : TraceKind::kStored;
  return AddPath(line, request, why);
}

bool Recording::AddPath(const nlohmann::json& line, TraceRequest request, std::string* why) {
  const auto ids = line.find("hash_ids");
  if (ids == line.end() || !ids->is_array()) {
    *why = "has no array 'hash_ids'";
    return false;
  }
  const bool is_integers = std::all_of(
      ids->begin(), ids->end(), [](const nlohmann::json& id) { return id.is_number_unsigned(); });
  if (!is_integers) {
    *why = "has something else than an integer in 'hash_ids'";
    return false;
  }
  std::vector<uint64_t> path;
  // Keys on their own are no path; a path whose beginning was not recorded has no place.
  if (line.contains("flat") || !PrependParents(line, &path)) return true;
  request.stored_from = static_cast<uint32_t>(path.size());
  for (const nlohmann::json& id : *ids) {
    parents_.try_emplace(id.get<uint64_t>(), path.empty() ? 0 : path.back());
    path.push_back(id.get<uint64_t>());
  }
  if (path.empty()) return true;  // asks for no block
  const uint64_t block_tokens = NumberOf(line, "block_tokens");
  if (block_tokens == 0 || block_tokens > kBlockTokensMax) {
    *why = fmt::format("has 'block_tokens' {}; a block has 1 to {} tokens",
                       TextOf(line.value("block_tokens", nlohmann::json())), kBlockTokensMax);
    return false;
  }
  if (trace_->block_tokens == 0) trace_->block_tokens = static_cast<uint32_t>(block_tokens);
  if (trace_->ids.size() + path.size() > kTraceIdsMax) {
    *why = fmt::format("is one too many: a trace holds at most {} block ids. Use --requests",
                       kTraceIdsMax);
    return false;
  }
  request.first_id = trace_->ids.size();
  request.id_count = static_cast<uint32_t>(path.size());
  trace_->ids.insert(trace_->ids.end(), path.begin(), path.end());
  trace_->requests.push_back(request);
  if (tips_.size() == kLeasesMax) tips_.clear();
  tips_[path.back()] = request;
  const uint64_t lease = NumberOf(line, "lease");
  if (lease != 0 && leases_.size() < kLeasesMax) leases_[lease] = request;
  return true;
}

bool Recording::PrependParents(const nlohmann::json& line, std::vector<uint64_t>* ids) const {
  uint64_t id = NumberOf(line, "parent");
  if (id == 0) return NumberOf(line, "first") == 0;
  for (; id != 0; id = parents_.at(id)) {
    if (!parents_.contains(id)) return false;
    ids->push_back(id);
  }
  std::reverse(ids->begin(), ids->end());
  return true;
}

void Recording::AddEnd(const nlohmann::json& line, const TraceRequest& request) {
  const auto lease = leases_.find(NumberOf(line, "lease"));
  if (lease == leases_.end()) return;
  AddEndOf(lease->second, line, request);
  leases_.erase(lease);
}

void Recording::AddEndOfTip(const nlohmann::json& line, const TraceRequest& request) {
  const auto ids = line.find("hash_ids");
  if (ids == line.end() || !ids->is_array() || ids->empty() || !ids->back().is_number_unsigned()) {
    return;
  }
  const auto tip = tips_.find(ids->back().get<uint64_t>());
  if (tip != tips_.end()) AddEndOf(tip->second, line, request);
}

void Recording::AddEndOf(TraceRequest ended, const nlohmann::json& line,
                         const TraceRequest& request) {
  const auto stop = line.find("stop");
  if (stop == line.end()) return;
  ended.timestamp_ms = request.timestamp_ms;
  ended.kind = TraceKind::kEnded;
  ended.end_reason = EndReasonOf(*stop);
  trace_->requests.push_back(ended);
}

}  // namespace terrace::tools
