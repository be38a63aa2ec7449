// `terrace`: inspection, eviction and measurement of a terraced domain. This file only maps the
// command line to verbs; each verb has a file.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "src/build_version.h"
#include "src/printable_text.h"
#include "tools/terrace/cli/nearest_word.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/verbs/admin_verbs.h"
#include "tools/terrace/verbs/content_verbs.h"
#include "tools/terrace/verbs/diagnosis_verbs.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

constexpr char kDescription[] =
    "terrace: look into, empty and measure the KV cache that terraced keeps.\n\n"
    "The daemon is found through --socket, else $TERRACE_SOCKET, else the default domain's "
    "socket.\n"
    "Exit status: 0 done, 1 could not be done, 2 wrong command line.";

struct DeclaredVerb {
  Arguments command;
  std::unique_ptr<Verb> verb;
};

class CommandLine {
 public:
  CommandLine() {
    app_.set_version_flag("--version", std::string("terrace ") + BuildVersion());
    app_.get_formatter()->column_width(34);
    Add(arguments_, MakeStatusVerb());
    Add(arguments_, MakeTopVerb());
    Add(arguments_, MakeDoctorVerb());
    Add(arguments_, MakeSpacesVerb());
    Add(arguments_, MakeListVerb());
    Add(arguments_, MakeShowVerb());
    Add(arguments_, MakeTreeVerb());
    Add(arguments_, MakeEvictVerb());
    Add(arguments_, MakeDrainVerb());
    Add(arguments_, MakeQuotaVerb());
    Add(arguments_, MakePinVerb());
    Add(arguments_, MakeUnpinVerb());
    Add(arguments_, MakePinsVerb());
    Add(arguments_, MakeWarmVerb());
    Add(arguments_, MakeExportVerb());
    Add(arguments_, MakeImportVerb());
    Add(arguments_, MakeHitRateVerb());
    Add(arguments_, MakeExplainVerb());
    Add(arguments_, MakeReplayVerb());
    Add(arguments_, MakePlanVerb());
    Add(arguments_, MakeFsckVerb());
    Add(arguments_, MakeAuditVerb());
    Add(arguments_, MakeLogVerb());
    Add(arguments_, MakeSlowVerb());
    Add(arguments_, MakeCompletionsVerb());
    AddFamily(MakeConfigVerbs());
    AddFamily(MakeDebugVerbs());
    AddFamily(MakeDomainVerbs());
    AddFamily(MakeTraceVerbs());
    AddFamily(MakeBenchVerbs());
  }

  ExitCode Run(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "help") {
      return ExplainHelp({argv + 2, argv + argc});
    }
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return Say(error);
    }
    for (DeclaredVerb& declared : verbs_) {
      if (declared.command.is_named()) return declared.verb->Run();
    }
    Fail(
        "no verb is named. `terrace --help` and, for families of them, `terrace WORD --help` list "
        "all");
    return kExitUsage;
  }

 private:
  // What the command line has come to: "terrace domain add".
  struct Named {
    CLI::App* app;
    std::string words;
  };
  Named DeepestNamed() {
    Named named{&app_, "terrace"};
    while (!named.app->get_subcommands().empty()) {
      named.app = named.app->get_subcommands().front();
      named.words += " " + named.app->get_name();
    }
    return named;
  }

  // Help, the version, or what is wrong with the command line.
  ExitCode Say(const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      std::ostringstream answer;
      app_.exit(error, answer, answer);
      PrintText(answer.str());
      return kExitOk;
    }
    // A word that nobody takes is told first: what was its value may be wrong as another argument.
    if (ExplainWord()) return kExitUsage;
    const Named named = DeepestNamed();
    Fail(fmt::format("{}; `{} --help` says what it takes", WhatIsWrong(named, error), named.words));
    return kExitUsage;
  }

  // The library's sentence; of an argument that is missing, what it is for as well.
  static std::string WhatIsWrong(const Named& named, const CLI::ParseError& error) {
    const std::string sentence = error.what();
    for (const CLI::Option* option : named.app->get_options()) {
      if (sentence == option->get_name() + " is required") {
        const std::string about = option->get_description();
        return fmt::format("{} is missing ({})", option->get_name(),
                           about.substr(0, about.find('\n')));
      }
    }
    return sentence;
  }

  // An option that the verb has not: mistyped, or one of the verb's that stands before it.
  static void ExplainOption(const Named& named, const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> names;
    for (const DescribedArgument& argument : Arguments(named.app).Describe().arguments) {
      if (!argument.is_option) continue;
      names.insert(names.end(), argument.names.begin(), argument.names.end());
    }
    const bool is_before_verb = std::ranges::find(names, name) != names.end();
    const std::string nearest = is_before_verb ? "" : NearestWord(name, names);
    Fail(fmt::format(
        "'{}' is no option {}; `{} --help` lists all", name,
        is_before_verb    ? fmt::format("where it stands: write it behind `{}`", named.words)
        : nearest.empty() ? fmt::format("of `{}`", named.words)
                          : fmt::format("of `{}`: did you mean {}?", named.words, nearest),
        named.words));
  }

  static void ExplainVerb(const Named& named, const std::string& word,
                          const std::vector<std::string>& verbs) {
    const std::string nearest = NearestWord(word, verbs);
    const std::string meant =
        nearest.empty() ? "" : fmt::format(": did you mean `{} {}`?", named.words, nearest);
    Fail(fmt::format("'{}' is no verb of `{}`{}; `{} --help` lists all", word, named.words, meant,
                     named.words));
  }

  // `terrace help status` as other programs have it: as many of the words as are verbs.
  ExitCode ExplainHelp(const std::vector<std::string>& words) const {
    std::string named = "terrace";
    const CLI::App* app = &app_;
    for (const std::string& word : words) {
      const auto found =
          app->get_subcommands([&word](const CLI::App* verb) { return verb->get_name() == word; });
      if (found.empty()) break;
      app = found.front();
      named += " " + word;
    }
    Fail(fmt::format("help is an option, not a verb: `{} --help`", named));
    return kExitUsage;
  }

  // A word too many: an option that is none or, where a verb was expected, one that is none, which
  // the options behind it would be of. False: there is no such word.
  bool ExplainWord() {
    const Named named = DeepestNamed();
    const std::vector<std::string> words = app_.remaining(true);
    if (words.empty()) return false;
    const auto is_option = [](const std::string& word) {
      return word.size() > 1 && word.starts_with('-');
    };
    std::vector<std::string> verbs;
    for (const CLI::App* verb : named.app->get_subcommands([](const CLI::App*) { return true; })) {
      verbs.push_back(verb->get_name());
    }
    if (!verbs.empty() && !is_option(words.front())) {
      ExplainVerb(named, words.front(), verbs);
      return true;
    }
    const auto option = std::ranges::find_if(words, is_option);
    if (option != words.end()) ExplainOption(named, *option);
    return option != words.end();
  }

  void Add(Arguments& parent, std::unique_ptr<Verb> verb) {
    Arguments command = verb->Declare(parent);
    verbs_.push_back({command, std::move(verb)});
  }

  void AddFamily(VerbFamily family) {
    Arguments word = arguments_.AddVerb(family.name, family.description);
    for (std::unique_ptr<Verb>& verb : family.verbs) Add(word, std::move(verb));
  }

  CLI::App app_{kDescription, "terrace"};
  Arguments arguments_{&app_};
  std::vector<DeclaredVerb> verbs_;
};

}  // namespace
}  // namespace terrace::tools

int main(int argc, char** argv) {
  try {
    terrace::tools::HoldStandardStreams();
    return terrace::tools::FinishOutput(stdout, terrace::tools::CommandLine().Run(argc, argv));
  } catch (const std::exception& error) {
    return terrace::tools::Fail(error.what());
  }
}
