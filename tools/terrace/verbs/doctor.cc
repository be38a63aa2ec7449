// `terrace doctor`: what of this host and its daemon is as the cache needs it, what is not, and
// what to do about it.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/terrace/cli/verb.h"
#include "tools/terrace/doctor/checks.h"
#include "tools/terrace/doctor/gather.h"
#include "tools/terrace/doctor/report.h"
#include "tools/terrace/doctor/system_host.h"

namespace terrace::tools {
namespace {

constexpr char kDoctorDescription[] =
    "Look for what this host, the configuration or the daemon lacks\n\n"
    "Each row is one check: ok, note (nothing to do), warning (the cache works, and worse than it\n"
    "could) or problem; then what it means and the remedy. Changes nothing. Needs neither a "
    "daemon\n"
    "nor root, and says what it cannot see without.\n"
    "Exit status: 0 no problem, 1 a problem, 2 wrong command line.";

class DoctorVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("doctor", kDoctorDescription);
    verb.AddOption("--config", config_path_,
                   "The daemon's configuration (default: the running daemon's, else "
                   "/etc/terrace/terraced.toml)")
        .Type("FILE");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const HostFiles files;
    const SystemHost calls;
    const Subject subject = GatherSubject(files, calls, address_, config_path_);
    const std::vector<Finding> findings = Examine(subject);
    if (is_json_) {
      nlohmann::json document = ToJson(findings);
      document["config"] = subject.config_path;
      document["socket"] = subject.socket_path;
      PrintJson(document);
    } else {
      PrintText(RenderFindings(findings));
    }
    return CountOf(findings, FindingLevel::kProblem) == 0 ? kExitOk : kExitFailed;
  }

 private:
  DaemonAddress address_;
  std::string config_path_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeDoctorVerb() { return std::make_unique<DoctorVerb>(); }

}  // namespace terrace::tools
