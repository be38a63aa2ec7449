// `terrace status`: memory, blocks, sessions and hit rates of one domain.
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/status_report.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

class StatusVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("status", "Memory, blocks, sessions and hit rates of a domain");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    std::unique_ptr<Client> client = ConnectOrExplain(address_);
    if (client == nullptr) return kExitFailed;
    std::optional<StatsView> stats = FetchStats(*client, address_.deadline_us());
    if (!stats) return kExitFailed;
    if (is_json_) {
      PrintJson(stats->document());
    } else {
      PrintText(RenderStatus(*stats));
    }
    return kExitOk;
  }

 private:
  DaemonAddress address_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeStatusVerb() { return std::make_unique<StatusVerb>(); }

}  // namespace terrace::tools
