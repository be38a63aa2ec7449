// Trace files, as `terrace replay` reads them: JSON lines, of engines or recorded by a daemon,
// plain or gzip'd; and the dense trace that a replay makes of them.
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <string>

#include "fuzz/fuzz.h"
#include "terrace/units.h"
#include "tools/replay/dense_trace.h"
#include "tools/terrace/trace/trace_reader.h"

namespace terrace::fuzz::trace {

using tools::DenseTrace;
using tools::ReadTrace;
using tools::Trace;
using tools::TraceRequest;

constexpr size_t kTextBytesMax = 256 * kKiB;  // of a file, unpacked
constexpr uint64_t kRequestsMax = 500;
// zlib's buffers, the lines' and the JSON library's tree of one; and a recorded path that goes on
// where another ended is as long as both, so that all of them together grow with the square.
constexpr uint64_t kHeapBytesMax = kMiB;
constexpr uint64_t kHeapFactor = 256;
constexpr uint64_t kBytesOfPath = 3 * sizeof(uint64_t);  // of an id, in a vector that grows
constexpr uint64_t kRecordBytesMin = 40;
constexpr uint8_t kLongLine = 255;  // a kind of input

// A file without a name, for all inputs.
class ScratchFile {
 public:
  ScratchFile() : fd_(memfd_create("trace", MFD_CLOEXEC)) {
    Require(fd_ >= 0, "no file for traces");
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  ~ScratchFile() { close(fd_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& Hold(std::string_view bytes) {
    Require(ftruncate(fd_, 0) == 0 &&
                pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
            "a trace cannot be written");
    return path_;
  }

 private:
  const int fd_;
  std::string path_;
};

std::string Zipped(std::string_view text) {
  z_stream stream{};
  Require(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string zipped(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(zipped.data());
  stream.avail_out = static_cast<uInt>(zipped.size());
  Require(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib");
  zipped.resize(stream.total_out);
  deflateEnd(&stream);
  return zipped;
}

// Of a line that is longer than any of a trace, and has an end or none.
const std::string& ZippedLongLine() {
  static const std::string zipped = Zipped(std::string(tools::kTraceLineBytesMax + kMiB, '7'));
  return zipped;
}

// What the file unpacks to, as far as kTextBytesMax and a byte.
size_t UnpackedBytes(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  static std::string text(kTextBytesMax + 1, '\0');
  const int count = gzread(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return count < 0 ? 0 : static_cast<size_t>(count);
}

void JudgeTrace(const Trace& trace) {
  Require(!trace.requests.empty() && trace.requests.size() <= kRequestsMax, "none, or too many");
  for (const TraceRequest& request : trace.requests) {
    Require(request.first_id + request.id_count <= trace.ids.size(), "ids that are not there");
    Require(request.stored_from <= request.id_count, "it goes on behind its own end");
    Require(request.kind != tools::TraceKind::kAskedAndStored || trace.block_tokens > 0,
            "a request of blocks of no tokens");
  }
  const std::string cut = CutLineText("t", trace);
  Require(cut.find("line " + std::to_string(trace.cut_line) + " ") != std::string::npos,
          "nobody says which line is cut off");
  DenseTrace dense;
  std::string why;
  if (!dense.Build(trace, &why)) return Require(!why.empty(), "refused, and nobody says why");
  Require(dense.request_count() == trace.requests.size(), "a request was lost");
  for (size_t i = 0; i < dense.request_count(); ++i) {
    for (const BlockId id : dense.path(i)) Require(id < dense.unique_count(), "an id of none");
  }
}

bool Read(const std::string& path, uint32_t block_tokens, size_t text_bytes, Trace* trace) {
  std::string why;
  HeapMeter meter;
  const bool is_read = ReadTrace(
      path, {.request_count_max = kRequestsMax, .block_tokens = block_tokens}, trace, &why);
  const uint64_t path_bytes = text_bytes / kRecordBytesMin * (text_bytes / 2) * kBytesOfPath;
  meter.RequireAtMost(kHeapBytesMax + path_bytes, kHeapFactor, text_bytes);
  Require(is_read || !why.empty(), "refused, and nobody says why");
  return is_read;
}

bool AreEqual(const TraceRequest& left, const TraceRequest& right) {
  return left.timestamp_ms == right.timestamp_ms && left.session_hash == right.session_hash &&
         left.first_id == right.first_id && left.id_count == right.id_count &&
         left.stored_from == right.stored_from && left.end_reason == right.end_reason &&
         left.kind == right.kind;
}

constexpr std::string_view kRequests =
    R"({"timestamp": 5, "input_length": 1030, "hash_ids": [7, 8, 9]}
{"timestamp": 6, "input_length": 1536, "hash_ids": [7, 8, 10]}
)";
constexpr std::string_view kSessions =
    R"({"timestamp":1,"input_length":512,"hash_ids":[1,2],"session_id":13,"stop":"tool_use"}
{"timestamp":2,"input_length":256,"hash_ids":[1],"session_id":[{"a":"b"}],"stop":"end_turn"}
{"timestamp":3.5,"input_length":1e3,"hash_ids":[1],"session_id":"13","stop":null})";
constexpr std::string_view kRecorded =
    R"({"terrace_trace":1,"domain":"default"}
{"op":"acquire","timestamp":1,"hash_ids":[1,2],"block_tokens":16,"lease":5,"session_id":3}
{"op":"reserve","timestamp":2,"hash_ids":[3],"parent":2,"first":2,"block_tokens":16,"lease":6}
{"op":"commit","timestamp":2,"lease":6}
{"op":"match","timestamp":3,"hash_ids":[1]}
{"op":"release","timestamp":3,"lease":5,"stop":"length"}
{"op":"touch","timestamp":4,"hash_ids":[3],"stop":"aborted"}
{"op":"release","timestamp":4,"lease":6}
{"op":"acquire","timestamp":5,"hash_ids":[9],"flat":1}
{"op":"acquire","timestamp":6,"hash_ids":[4],"parent":77,"first":3,"block_tokens":16}
{"op":"acquire","timestamp":7,"hash_ids":[4],"parent":3,"first":3,"block_tokens":16,"lease":7}
)";

constexpr std::string_view kBackwards =
    R"({"timestamp": 7, "input_length": 1536, "hash_ids": [9, 8, 7]})";

std::string RecordedWith(std::string_view line) {
  return std::string(kRecorded) + std::string(line) + "\n";
}

std::vector<Seed> Seeds() {
  const auto seed = [](const std::string& name, uint8_t kind, std::string_view text) {
    return Seed{name, ChoiceWriter().Byte(kind).Byte(0).Append(text).Take()};
  };
  return {seed("requests", 0, kRequests),
          seed("sessions", 0, kSessions),
          seed("recorded", 0, kRecorded),
          seed("zipped", 1, Zipped(kRecorded)),
          seed("no_ids", 0, "{\"timestamp\":1,\"input_length\":5,\"hash_ids\":{}}\n"),
          seed("ids_of_text", 0, "{\"timestamp\":1,\"input_length\":5,\"hash_ids\":[\"x\"]}\n"),
          seed("recorded_without_ids", 0, RecordedWith("{\"op\":\"acquire\",\"timestamp\":7}")),
          seed("recorded_ids_of_text", 0,
               RecordedWith("{\"op\":\"acquire\",\"timestamp\":7,\"hash_ids\":[-1]}")),
          seed("recorded_no_ids", 0,
               RecordedWith("{\"op\":\"acquire\",\"timestamp\":7,\"hash_ids\":[]}")),
          seed("recorded_of_no_tokens", 0,
               RecordedWith("{\"op\":\"acquire\",\"timestamp\":7,\"hash_ids\":[1],"
                            "\"block_tokens\":0}")),
          seed("recorded_end_of_none", 0,
               RecordedWith("{\"op\":\"release\",\"timestamp\":7,\"lease\":99,\"stop\":1}")),
          seed("recorded_tip_of_none", 0,
               RecordedWith("{\"op\":\"touch\",\"timestamp\":7,\"hash_ids\":[],\"stop\":\"x\"}")),
          seed("recorded_of_another_format", 0, "{\"terrace_trace\":[2]}\n"),
          seed("ids_of_text_of_a_block", 0,
               "{\"timestamp\":1,\"input_length\":512,\"hash_ids\":[\"x\"]}\n"),
          seed("line_cut_off", 0, std::string(kRequests) + "{\"timestamp\": 7, \"inp"),
          seed("long_line", kLongLine, kRequests),
          {"no_file", {}},
          seed("no_requests", 0, "{\"terrace_trace\":1}\n"),
          seed("no_object", 0, "[1]\n"),
          seed("no_count", 0, "{\"timestamp\":-1,\"input_length\":512,\"hash_ids\":[1]}\n"),
          seed("ids_in_two_places", 0, std::string(kRequests) + std::string(kBackwards)),
          seed("recorded_of_no_time", 0, RecordedWith("{\"op\":\"acquire\"}")),
          seed("recorded_of_no_verb", 0, RecordedWith("{\"op\":\"open\",\"timestamp\":7}")),
          seed("a_byte_of_zero", 0, std::string_view("{\0}\n", 4)),
          seed("cut_off", 1, Zipped(kRequests).substr(0, 60))};
}

// A trace that is not there, and one that goes on with a line that is too long.
void JudgeUnreadable(const std::string& path, size_t text_bytes) {
  Trace trace;
  Require(!Read(path, 0, text_bytes, &trace), "a trace that cannot be read was read");
}

// [kind; tokens a block; kind 0: text, read plain and gzip'd; kLongLine: text before such a line;
// else a file as it is] Of nothing at all: no file.
bool Run(std::span<const std::byte> input) {
  static ScratchFile file;
  if (input.empty()) {
    JudgeUnreadable("/proc/self/fd/none", 0);
    return true;
  }
  Choices choices(input);
  const uint8_t kind = choices.Byte();
  const bool is_text = kind % 2 == 0;
  const uint32_t block_tokens = choices.Byte();
  const std::string_view bytes = TextOf(choices.Rest());
  const size_t text_bytes = UnpackedBytes(file.Hold(bytes));
  if (text_bytes > kTextBytesMax) return false;
  if (kind == kLongLine) {
    const std::string& path = file.Hold(Zipped(bytes) + ZippedLongLine());
    Trace trace;
    (void)Read(path, block_tokens, tools::kTraceLineBytesMax, &trace);
    return true;
  }
  Trace trace, again;
  const bool is_read = Read(file.Hold(bytes), block_tokens, text_bytes, &trace);
  if (is_read) JudgeTrace(trace);
  // A text that begins as a gzip'd one does is taken for one.
  if (!is_text || bytes.starts_with("\x1f\x8b")) return true;
  Require(Read(file.Hold(Zipped(bytes)), block_tokens, text_bytes, &again) == is_read,
          "gzip'd it is something else");
  Require(trace.ids == again.ids && std::ranges::equal(trace.requests, again.requests, AreEqual),
          "gzip'd it says something else");
  return true;
}

// PROMISE: T29 trace files
const Registration registration({"trace", Run, Seeds});

}  // namespace terrace::fuzz::trace
