// `--name value` pairs of a chaos program's command line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace terrace::chaos {

class Arguments {
 public:
  // From argv[first] on. Ends the program on an odd one: these are tests' own command lines.
  Arguments(int argc, char** argv, int first) {
    for (int i = first; i < argc; i += 2) {
      const std::string name = argv[i];
      if (name.rfind("--", 0) != 0 || i + 1 == argc) {
        std::fprintf(stderr, "terrace-chaos: '%s' is not a '--name value' pair\n", argv[i]);
        std::exit(2);
      }
      values_[name.substr(2)] = argv[i + 1];
    }
  }

  std::string Text(const std::string& name, const std::string& otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }
  uint64_t Number(const std::string& name, uint64_t otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 0);
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace terrace::chaos
