#include "tools/terrace/cli/completions.h"

#include <fmt/core.h>

#include <functional>
#include <string_view>
#include <vector>

namespace terrace::tools {
namespace {

// What a value is completed with.
enum class Values { kNone, kWords, kFiles, kDirectories };

Values ValuesOf(const DescribedArgument& argument) {
  if (!argument.words.empty()) return Values::kWords;
  const std::string& type = argument.is_option ? argument.type : argument.names[0];
  if (type == "FILE" || type == "PATH" || type == "TRACE" || type == "MODEL") {
    return Values::kFiles;
  }
  return type == "DIR" || type == "DIRECTORY" ? Values::kDirectories : Values::kNone;
}

std::string Joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

// With `escape` before each of `letters`.
std::string Escaped(std::string_view text, std::string_view letters, std::string_view escape) {
  std::string escaped;
  for (const char letter : text) {
    if (letters.find(letter) != std::string_view::npos) escaped += escape;
    escaped += letter;
  }
  return escaped;
}

// In single quotes, as bash and zsh read it.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char letter : text)
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

// Each command from the top on, with the words that lead to it: "", "ls", "bench store".
using Visit = std::function<void(const std::string& words, const DescribedCommand& command)>;
void ForEach(const DescribedCommand& command, const std::string& words, const Visit& visit) {
  visit(words, command);
  for (const DescribedCommand& verb : command.verbs) {
    ForEach(verb, words.empty() ? verb.name : words + " " + verb.name, visit);
  }
}

// ---- bash ----

std::string BashAction(const DescribedArgument& argument) {
  switch (ValuesOf(argument)) {
    case Values::kWords:
      return fmt::format("_terrace_words {}", Quoted(Joined(argument.words, " ")));
    case Values::kFiles:
      return "_terrace_files -f";
    case Values::kDirectories:
      return "_terrace_files -d";
    case Values::kNone:
      break;
  }
  return ":";
}

std::string BashVerbsOf(const DescribedCommand& command) {
  std::vector<std::string> names;
  for (const DescribedCommand& verb : command.verbs) names.push_back(verb.name);
  return Joined(names, " ");
}

constexpr std::string_view kBashHead =
    R"(# bash completion for terrace, made by `terrace completions bash`.
_terrace_words() {
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}
_terrace_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}
_terrace() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= i
  COMPREPLY=()
  # --option=value is three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$verb ${COMP_WORDS[i]}" in
)";
}  // namespace

std::string BashCompletions(const DescribedCommand& command) {
  std::string ways, values, rest;
  ForEach(command, "", [&](const std::string& words, const DescribedCommand& at) {
    for (const DescribedCommand& verb : at.verbs) {
      const std::string to = words.empty() ? verb.name : words + " " + verb.name;
      ways += fmt::format("      {}) verb={} ;;\n", Quoted(words + " " + verb.name), Quoted(to));
    }
    std::vector<std::string> options;
    std::string action = at.verbs.empty() ? ":" : "_terrace_words " + Quoted(BashVerbsOf(at));
    for (const DescribedArgument& argument : at.arguments) {
      if (!argument.is_option) {
        action = BashAction(argument);
        continue;
      }
      for (const std::string& name : argument.names) options.push_back(name);
      if (argument.type.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : argument.names) patterns.push_back(Quoted(words + ":" + name));
      values += fmt::format("    {}) {}; return ;;\n", Joined(patterns, "|"), BashAction(argument));
    }
    rest +=
        fmt::format("    {})\n      if [[ $cur == -* ]]; then _terrace_words {}; else {}; fi ;;\n",
                    Quoted(words), Quoted(Joined(options, " ")), action);
  });
  return std::string(kBashHead) + ways + "    esac\n  done\n  case \"$verb:$prev\" in\n" + values +
         "  esac\n  case \"$verb\" in\n" + rest + "  esac\n}\ncomplete -F _terrace terrace\n";
}

// ---- zsh ----

namespace {

std::string ZshValue(const DescribedArgument& argument) {
  const std::string name =
      Escaped(argument.is_option ? argument.type : argument.names[0], ":", "\\");
  switch (ValuesOf(argument)) {
    case Values::kWords:
      return fmt::format(":{}:({})", name, Joined(argument.words, " "));
    case Values::kFiles:
      return fmt::format(":{}:_files", name);
    case Values::kDirectories:
      return fmt::format(":{}:_files -/", name);
    case Values::kNone:
      break;
  }
  return fmt::format(":{}: ", name);
}

std::string ZshArguments(const DescribedCommand& command) {
  std::string text = "_arguments";
  for (const DescribedArgument& argument : command.arguments) {
    if (!argument.is_option) {
      text += " \\\n        " + Quoted("*" + ZshValue(argument));
      continue;
    }
    const std::string description = Escaped(argument.description, "[]:\\", "\\");
    for (const std::string& name : argument.names) {
      const bool has_value = !argument.type.empty();
      // "=": its value may follow behind that sign, or as the next word.
      text +=
          " \\\n        " +
          Quoted(fmt::format("*{}{}[{}]{}", name, has_value && name.starts_with("--") ? "=" : "",
                             description, has_value ? ZshValue(argument) : ""));
    }
  }
  return text;
}

}  // namespace

std::string ZshCompletions(const DescribedCommand& command) {
  std::string ways, actions;
  ForEach(command, "", [&](const std::string& words, const DescribedCommand& at) {
    for (const DescribedCommand& verb : at.verbs) {
      const std::string to = words.empty() ? verb.name : words + " " + verb.name;
      ways += fmt::format("      ({}) verb={} first=i ;;\n", Quoted(words + " " + verb.name),
                          Quoted(to));
    }
    actions += fmt::format("    ({})\n", Quoted(words));
    if (!at.verbs.empty()) {
      actions += "      if [[ $words[CURRENT] != -* ]]; then\n        verbs=(\n";
      for (const DescribedCommand& verb : at.verbs) {
        actions +=
            "          " + Quoted(verb.name + ":" + Escaped(verb.description, ":\\", "\\")) + "\n";
      }
      actions += "        )\n        _describe verb verbs\n        return\n      fi\n";
    }
    actions += "      " + ZshArguments(at) + " ;;\n";
  });
  return "#compdef terrace\n# zsh completion for terrace, made by `terrace completions zsh`.\n"
         "_terrace() {\n  local verb= \n  local -i i first=1\n  local -a verbs\n"
         "  for ((i = 2; i < CURRENT; i++)); do\n    case \"$verb $words[i]\" in\n" +
         ways +
         "    esac\n  done\n  # As if the verb were the command.\n"
         "  words=(\"${(@)words[first,-1]}\")\n  (( CURRENT -= first - 1 ))\n"
         "  case $verb in\n" +
         actions +
         "  esac\n}\n# Loaded when it is first needed, or sourced.\n"
         "if [[ $funcstack[1] == _terrace ]]; then\n  _terrace \"$@\"\nelse\n"
         "  compdef _terrace terrace\nfi\n";
}

// ---- fish ----

namespace {

std::string FishQuoted(std::string_view text) { return "'" + Escaped(text, "'\\", "\\") + "'"; }

std::string FishOption(const std::string& at, const DescribedArgument& argument) {
  std::string line = "complete -c terrace -n " + FishQuoted("__terrace_at " + at);
  for (const std::string& name : argument.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (!argument.type.empty()) {
    const Values values = ValuesOf(argument);
    const bool is_path = values == Values::kFiles || values == Values::kDirectories;
    line += is_path ? " -r -F" : " -x";
    if (values == Values::kWords) line += " -a " + FishQuoted(Joined(argument.words, " "));
  }
  return line + " -d " + FishQuoted(argument.description) + "\n";
}

}  // namespace

std::string FishCompletions(const DescribedCommand& command) {
  std::string ways, lines;
  ForEach(command, "", [&](const std::string& words, const DescribedCommand& at) {
    for (const DescribedCommand& verb : at.verbs) {
      ways += " " + FishQuoted(words + " " + verb.name);
      lines +=
          fmt::format("complete -c terrace -n {} -a {} -d {}\n",
                      FishQuoted("__terrace_at " + words), verb.name, FishQuoted(verb.description));
    }
    for (const DescribedArgument& argument : at.arguments) {
      if (argument.is_option) {
        lines += FishOption(words, argument);
      } else if (ValuesOf(argument) == Values::kFiles) {
        lines += fmt::format("complete -c terrace -n {} -F\n", FishQuoted("__terrace_at " + words));
      } else if (ValuesOf(argument) == Values::kWords) {
        lines +=
            fmt::format("complete -c terrace -n {} -a {}\n", FishQuoted("__terrace_at " + words),
                        FishQuoted(Joined(argument.words, " ")));
      }
    }
  });
  return "# fish completion for terrace, made by `terrace completions fish`.\n"
         "function __terrace_at\n  set -l tokens (commandline -opc)\n  set -e tokens[1]\n"
         "  set -l verb ''\n  for token in $tokens\n    switch \"$verb $token\"\n      case" +
         ways +
         "\n        set verb (string trim -- \"$verb $token\")\n    end\n  end\n"
         "  test \"$verb\" = \"$argv\"\nend\ncomplete -c terrace -f\n" +
         lines;
}

}  // namespace terrace::tools
