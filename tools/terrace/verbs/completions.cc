// `terrace completions`: prints what makes a shell complete this command.
#include "tools/terrace/cli/completions.h"

#include <memory>
#include <optional>
#include <string>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

class CompletionsVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    whole_ = parent;
    Arguments verb = parent.AddVerb(
        "completions",
        "Print what makes a shell complete this command\n\n"
        "Packages install it. By hand, for this shell: source <(terrace completions bash), "
        "source <(terrace\ncompletions zsh), or terrace completions fish | source.");
    verb.AddOption("SHELL", shell_, "bash, zsh or fish").Required().OneOf({"bash", "zsh", "fish"});
    return verb;
  }

  ExitCode Run() override {
    const DescribedCommand command = whole_->Describe();
    PrintText(shell_ == "bash"  ? BashCompletions(command)
              : shell_ == "zsh" ? ZshCompletions(command)
                                : FishCompletions(command));
    return kExitOk;
  }

 private:
  std::optional<Arguments> whole_;
  std::string shell_;
};

}  // namespace

std::unique_ptr<Verb> MakeCompletionsVerb() { return std::make_unique<CompletionsVerb>(); }

}  // namespace terrace::tools
