// `terrace trace record`: has the daemon record what is asked of it, for `terrace replay`.
#include <fmt/core.h>

#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

using protocol::TraceAction;
using protocol::TraceRecordReply;

constexpr std::chrono::milliseconds kLook(20);

class TraceRecordVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("record", "Start, stop or look at the recording");
    verb.AddOption("ACTION", action_, "start, stop or status")
        .Required()
        .OneOf({"start", "stop", "status"});
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    TraceRecordReply reply;
    const TraceAction action = action_ == "start"  ? TraceAction::kStart
                               : action_ == "stop" ? TraceAction::kStop
                                                   : TraceAction::kStatus;
    if (!Ask(*link, action, &reply)) return kExitFailed;
    // The daemon answers before the file is open, or closed.
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(address_.timeout_ms);
    const uint32_t wanted = action == TraceAction::kStart ? 1 : 0;
    while (action != TraceAction::kStatus && reply.is_recording != wanted && reply.error == 0 &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kLook);
      if (!Ask(*link, TraceAction::kStatus, &reply)) return kExitFailed;
    }
    reply.path[sizeof(reply.path) - 1] = '\0';
    if (action == TraceAction::kStart && reply.is_recording == 0) {
      return Fail(fmt::format("the daemon cannot write {}: {}", reply.path,
                              reply.error == 0 ? "no answer in time" : std::strerror(reply.error)));
    }
    Print(reply);
    return kExitOk;
  }

 private:
  static bool Ask(AdminLink& link, TraceAction action, TraceRecordReply* reply) {
    const protocol::TraceRecordRequest request{.action = action};
    const auto body = link.Ask(protocol::kVerbTraceRecord, std::as_bytes(std::span(&request, 1)));
    if (!body.ok()) return Fail("the daemon does not record: " + link.why()) == kExitOk;
    if (body->size() != sizeof(*reply)) return Fail("TraceRecord has another size") == kExitOk;
    std::memcpy(reply, body->data(), sizeof(*reply));
    return true;
  }

  void Print(const TraceRecordReply& reply) const {
    if (is_json_) {
      return PrintJson({{"is_recording", reply.is_recording != 0},
                        {"path", reply.path},
                        {"records", reply.record_count},
                        {"dropped", reply.dropped_count},
                        {"written_bytes", reply.written_bytes},
                        {"file_bytes_max", reply.file_bytes_max},
                        {"error", reply.error == 0 ? "" : std::strerror(reply.error)}});
    }
    PrintText(fmt::format(
        "{} {}\n{}, {} dropped, {} written, at most {} kept{}\n",
        reply.is_recording != 0 ? "recording to" : "not recording;", reply.path,
        FormatCount(reply.record_count, "request"), FormatCount(reply.dropped_count),
        FormatBytes(reply.written_bytes), FormatBytes(reply.file_bytes_max),
        reply.error == 0 ? "" : fmt::format("\nit ended: {}", std::strerror(reply.error))));
  }

  DaemonAddress address_;
  std::string action_;
  bool is_json_ = false;
};

}  // namespace

VerbFamily MakeTraceVerbs() {
  VerbFamily family{.name = "trace", .description = "Recordings of requests", .verbs = {}};
  family.verbs.push_back(std::make_unique<TraceRecordVerb>());
  return family;
}

}  // namespace terrace::tools
