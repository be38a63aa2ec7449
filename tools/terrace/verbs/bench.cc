// `terrace bench …`: the benchmarks under one word.
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

VerbFamily MakeBenchVerbs() {
  VerbFamily family{"bench", "Measure a daemon against what the machine can do", {}};
  family.verbs.push_back(MakeBenchStoreVerb());
  family.verbs.push_back(MakeBenchLoadVerb());
  family.verbs.push_back(MakeBenchMixedVerb());
  family.verbs.push_back(MakeBenchReplayVerb());
  family.verbs.push_back(MakeBenchRttVerb());
  family.verbs.push_back(MakeBenchDeviceVerb());
  return family;
}

}  // namespace terrace::tools
