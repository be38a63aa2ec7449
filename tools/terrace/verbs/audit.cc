// `terrace audit`: who erased what of late, as the catalog of the persistent tier remembers it.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "terrace/protocol_introspection.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

class AuditVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("audit", "Who evicted or reset blocks, latest first");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    const protocol::FsckRequest request{.flags = protocol::kFsckAudit};
    const auto body = link->Ask(protocol::kVerbFsck, std::as_bytes(std::span(&request, 1)));
    if (!body.ok()) return Fail("audit: the daemon keeps none: " + link->why());
    try {
      const char* const text = reinterpret_cast<const char*>(body->data());
      json lines = json::array();
      const json answer = json::parse(text, text + body->size());
      for (const json& line : answer.at("audit")) {
        lines.push_back(json::parse(line.get<std::string>()));
      }
      is_json_ ? fmt::print("{}\n", json{{"audit", lines}}.dump(2)) : Print(lines);
    } catch (const json::exception& error) {
      return Fail(fmt::format("audit: the daemon's answer cannot be read ({}): another release?",
                              error.what()));
    }
    return kExitOk;
  }

 private:
  static void Print(const json& lines) {
    if (lines.empty()) {
      fmt::print("nobody has erased anything\n");
      return;
    }
    for (const json& line : lines) {
      const std::time_t time = line.at("time_s").get<std::time_t>();
      const std::string group = line.at("group");
      const std::string what =
          line.at("verb") == "reset"
              ? "reset group " + group
              : fmt::format("evicted {} blocks of {}",
                            FormatCount(line.at("erased_count").get<uint64_t>()),
                            group == "all" ? "all groups" : "group " + group);
      const bool is_whole = line.at("is_whole");
      fmt::print("{:%Y-%m-%dT%H:%M:%SZ} {}{} by uid {} pid {} ({})\n", fmt::gmtime(time), what,
                 is_whole ? "" : ", and ended before it was through,",
                 line.at("uid").get<uint64_t>(), line.at("pid").get<uint64_t>(),
                 line.at("client").get<std::string>());
    }
  }

  DaemonAddress address_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeAuditVerb() { return std::make_unique<AuditVerb>(); }

}  // namespace terrace::tools
