#include "tools/terrace/trace/trace_reader.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/terrace/trace/recording.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kBlockTokensWithSessions = 256;
constexpr uint32_t kBlockTokensWithout = 512;

// Lines of a file that may be gzip'd.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : file_(gzopen(path.c_str(), "rb")) {
    if (file_ != nullptr) gzbuffer(file_, 1 << 17);
  }
  ~LineReader() {
    if (file_ != nullptr) gzclose(file_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  bool is_open() const { return file_ != nullptr; }
  bool is_whole() const { return is_whole_; }  // the last line read ended as lines do

  // False at the end, or with a reason in `*why`.
  bool Next(std::string* line, std::string* why) {
    line->clear();
    std::array<char, 1 << 16> piece;
    while (gzgets(file_, piece.data(), static_cast<int>(piece.size())) != nullptr) {
      const std::string_view read(piece.data());
      line->append(read);
      is_whole_ = line->ends_with('\n');
      if (is_whole_) {
        line->pop_back();
        return true;
      }
      if (read.size() + 1 < piece.size() && gzeof(file_) == 0) {
        *why = "holds a byte of 0. Is this a trace?";
        return false;
      }
      if (line->size() > kTraceLineBytesMax) {
        *why = fmt::format("is longer than {} bytes. Is this a trace?", kTraceLineBytesMax);
        return false;
      }
    }
    int error = Z_OK;
    const char* words = gzerror(file_, &error);
    if (error != Z_OK && error != Z_STREAM_END) {
      *why = fmt::format("cannot be read: {}. The file is cut off or damaged: copy it again",
                         error == Z_ERRNO ? std::strerror(errno) : words);
      return false;
    }
    return !line->empty();
  }

 private:
  gzFile file_;
  bool is_whole_ = true;
};

uint64_t HashSession(const nlohmann::json& session) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (char c : session.dump()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash == 0 ? 1 : hash;
}

bool ReadCount(const nlohmann::json& line, const char* name, uint64_t* count, std::string* why) {
  auto field = line.find(name);
  if (field == line.end() || !field->is_number() || field->get<double>() < 0 ||
      (field->is_number_float() && field->get<double>() >= 0x1p64)) {
    *why = fmt::format("has no count '{}'", name);
    return false;
  }
  *count = field->get<uint64_t>();
  return true;
}

class TraceParser {
 public:
  TraceParser(const TraceOptions& options, Trace* trace) : trace_(trace), recording_(trace) {
    trace_->block_tokens = options.block_tokens;
  }

  bool AddLine(const std::string& text, std::string* why) {
    const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) {
      *why = "is no JSON object. Traces are JSON lines, one request each";
      return false;
    }
    if (Recording::IsHead(line)) return Recording::CheckHead(line, why);
    if (Recording::IsRecord(line)) return recording_.Add(line, why);
    TraceRequest request;
    uint64_t input_tokens = 0;
    if (!ReadCount(line, "timestamp", &request.timestamp_ms, why) ||
        !ReadCount(line, "input_length", &input_tokens, why)) {
      return false;
    }
    auto session = line.find("session_id");
    if (session != line.end()) {
      if (!session->is_primitive()) {
        *why = fmt::format("has an {} as 'session_id', which is a string or a number",
                           session->type_name());
        return false;
      }
      request.session_hash = HashSession(*session);
    }
    if (trace_->block_tokens == 0) {
      trace_->block_tokens = session == line.end() ? kBlockTokensWithout : kBlockTokensWithSessions;
    }
    if (auto stop = line.find("stop"); stop != line.end()) {
      request.end_reason = EndReasonOf(*stop);
    }
    return AddIds(line, input_tokens / trace_->block_tokens, &request, why);
  }

 private:
  bool AddIds(const nlohmann::json& line, uint64_t full_blocks, TraceRequest* request,
              std::string* why) {
    auto ids = line.find("hash_ids");
    if (ids == line.end() || !ids->is_array()) {
      *why = "has no array 'hash_ids'";
      return false;
    }
    const uint64_t count = std::min<uint64_t>(ids->size(), full_blocks);
    if (trace_->ids.size() + count > kTraceIdsMax) {
      *why = fmt::format("is one too many: a trace holds at most {} block ids. Use --requests",
                         kTraceIdsMax);
      return false;
    }
    request->first_id = trace_->ids.size();
    request->id_count = static_cast<uint32_t>(count);
    for (uint64_t i = 0; i < count; ++i) {
      if (!(*ids)[i].is_number_integer()) {
        *why = fmt::format("has something else than an integer in 'hash_ids', at place {}", i);
        return false;
      }
      trace_->ids.push_back((*ids)[i].get<uint64_t>());
    }
    trace_->requests.push_back(*request);
    return true;
  }

  Trace* trace_;
  Recording recording_;
};

}  // namespace

bool ReadTrace(const std::string& path, const TraceOptions& options, Trace* trace,
               std::string* why) {
  *trace = Trace();
  errno = 0;
  LineReader reader(path);
  if (!reader.is_open()) {
    *why = fmt::format("cannot open trace {}: {}", path, std::strerror(errno));
    return false;
  }
  TraceParser parser(options, trace);
  std::string line;
  std::string reason;
  uint64_t line_number = 1;
  while (trace->requests.size() < options.request_count_max && reader.Next(&line, &reason)) {
    // A recording ends in the middle of a line where its disk was full, or the daemon was killed.
    if (!reader.is_whole() && !trace->requests.empty() && !nlohmann::json::accept(line)) {
      trace->cut_line = line_number;
      break;
    }
    if (!line.empty() && !parser.AddLine(line, &reason)) break;
    ++line_number;
  }
  if (!reason.empty()) {
    *why = fmt::format("{}, line {} {}", path, line_number, reason);
    return false;
  }
  if (trace->requests.empty()) {
    *why = fmt::format("trace {} holds no request", path);
    return false;
  }
  return true;
}

std::string CutLineText(const std::string& path, const Trace& trace) {
  return fmt::format("{}, line {} is cut off and left out; the {} requests before it count", path,
                     trace.cut_line, trace.requests.size());
}

}  // namespace terrace::tools
