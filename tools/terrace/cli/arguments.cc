#include "tools/terrace/cli/arguments.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <utility>

namespace terrace::tools {
namespace {

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

DescribedArgument Describe(const CLI::Option& option) {
  DescribedArgument described{.description = FirstLine(option.get_description()),
                              .is_option = !option.get_positional()};
  for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  if (!described.is_option) described.names = {option.get_name(true)};
  if (option.get_items_expected_max() == 0) return described;
  // The type, and behind a colon what a check says of its values: of a list "{a,b}".
  const std::string type = option.get_type_name();
  const size_t colon = type.find(':');
  described.type = type.substr(0, colon);
  if (colon == std::string::npos || !type.substr(colon).starts_with(":{")) return described;
  std::istringstream words(type.substr(colon + 2, type.find('}', colon) - colon - 2));
  for (std::string word; std::getline(words, word, ',');) described.words.push_back(word);
  return described;
}

DescribedCommand Describe(const CLI::App& app) {
  DescribedCommand command{.name = app.get_name(), .description = FirstLine(app.get_description())};
  for (const CLI::Option* option : app.get_options()) {
    command.arguments.push_back(Describe(*option));
  }
  const auto all = [](const CLI::App*) { return true; };
  for (const CLI::App* verb : app.get_subcommands(all)) command.verbs.push_back(Describe(*verb));
  return command;
}

// Of NaN neither "below" nor "above" holds, and no check of a range refuses it.
const CLI::Validator kIsNumber(
    [](const std::string& text) {
      double value = 0;
      const bool is_read = CLI::detail::lexical_cast(text, value);
      if (is_read && std::isfinite(value)) return std::string();
      return "'" + text + "' is no finite number. Write one such as 2 or 0.5";
    },
    "");

}  // namespace

Argument& Argument::Type(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Argument& Argument::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

Argument& Argument::Required() {
  option_->required();
  return *this;
}

Argument& Argument::SplitAt(char delimiter) {
  option_->delimiter(delimiter);
  return *this;
}

Argument& Argument::OneWord() {
  option_->allow_extra_args(false);
  return *this;
}

Argument& Argument::Needs(const Argument& other) {
  option_->needs(other.option_);
  return *this;
}

Argument& Argument::Excludes(const Argument& other) {
  option_->excludes(other.option_);
  return *this;
}

Argument& Argument::Positive() {
  option_->check(kIsNumber)->check(CLI::PositiveNumber);
  return *this;
}

Argument& Argument::OneOf(std::vector<std::string> words) {
  option_->check(CLI::IsMember(std::move(words)));
  return *this;
}

template <typename Number>
Argument& Argument::Between(Number low, Number high) {
  option_->check(kIsNumber)->check(CLI::Range(low, high));
  return *this;
}

template Argument& Argument::Between(int low, int high);
template Argument& Argument::Between(uint32_t low, uint32_t high);
template Argument& Argument::Between(uint64_t low, uint64_t high);
template Argument& Argument::Between(double low, double high);

Arguments Arguments::AddVerb(const std::string& name, const std::string& description) {
  return Arguments(app_->add_subcommand(name, description));
}

template <typename Value>
Argument Arguments::AddOption(const std::string& name, Value& value,
                              const std::string& description) {
  CLI::Option* const option = app_->add_option(name, value, description);
  // A shell's unset variable would name nothing, and so mean everything.
  option->check([](const std::string& text) -> std::string {
    return text.empty() ? "the value is empty: give one, or leave the option out" : "";
  });
  return Argument(option);
}

#define TERRACE_OPTION_OF(Value)                                                \
  template Argument Arguments::AddOption(const std::string& name, Value& value, \
                                         const std::string& description)
TERRACE_OPTION_OF(int);
TERRACE_OPTION_OF(uint32_t);
TERRACE_OPTION_OF(uint64_t);
TERRACE_OPTION_OF(double);
TERRACE_OPTION_OF(std::string);
TERRACE_OPTION_OF(std::vector<std::string>);
#undef TERRACE_OPTION_OF

Argument Arguments::AddFlag(const std::string& name, bool& value, const std::string& description) {
  return Argument(app_->add_flag(name, value, description));
}

bool Arguments::is_named() const { return app_->parsed(); }

DescribedCommand Arguments::Describe() const { return tools::Describe(*app_); }

}  // namespace terrace::tools
