// What a verb takes on the command line. CLI11 parses it, behind arguments.cc alone: including it
// takes seconds of compile time, for every verb.
//
// OWNERSHIP: handles; what they name lives as long as the command line, and so must every variable
// that an argument is read into.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace terrace::tools {

// An option, a flag or a word without dashes.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument& Type(const std::string& name);  // of the value, in --help
  Argument& ShowDefault();                  // in --help: what the variable holds now
  Argument& Required();
  Argument& SplitAt(char delimiter);  // one word of the command line is several values
  Argument& OneWord();                // of a list: one value each time it is named
  Argument& Needs(const Argument& other);
  Argument& Excludes(const Argument& other);

  // Other values end the program, before any verb runs, with what was expected.
  Argument& Positive();
  Argument& OneOf(std::vector<std::string> words);
  template <typename Number>  // int, uint32_t, uint64_t, double
  Argument& Between(Number low, Number high);

 private:
  CLI::Option* option_;
};

// What --help tells, for who wants it otherwise than as that text.
struct DescribedArgument {
  std::vector<std::string> names;  // "--json", "-h"; of a word without dashes "KEY"
  std::string description;         // its first line
  std::string type;                // of the value: "FILE", "N"; empty: a flag
  std::vector<std::string> words;  // the only values there are; empty: any
  bool is_option = true;           // has dashes
};
struct DescribedCommand {
  std::string name;
  std::string description;
  std::vector<DescribedArgument> arguments;
  std::vector<DescribedCommand> verbs;  // of the command, or of a family
};

// All of one verb, or of the whole command.
class Arguments {
 public:
  explicit Arguments(CLI::App* app) : app_(app) {}

  Arguments AddVerb(const std::string& name, const std::string& description);
  template <typename Value>  // a number as above, a string, a vector of strings
  Argument AddOption(const std::string& name, Value& value, const std::string& description);
  Argument AddFlag(const std::string& name, bool& value, const std::string& description);

  // REQUIRES: the command line is parsed. Whether it names this verb.
  bool is_named() const;
  DescribedCommand Describe() const;

 private:
  CLI::App* app_;
};

}  // namespace terrace::tools
