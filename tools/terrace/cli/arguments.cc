#include "tools/terrace/cli/arguments.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <utility>

namespace terrace::tools {

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
  option_->check(CLI::PositiveNumber);
  return *this;
}

Argument& Argument::OneOf(std::vector<std::string> words) {
  option_->check(CLI::IsMember(std::move(words)));
  return *this;
}

template <typename Number>
Argument& Argument::Between(Number low, Number high) {
  option_->check(CLI::Range(low, high));
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
  return Argument(app_->add_option(name, value, description));
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

}  // namespace terrace::tools
