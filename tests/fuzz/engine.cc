// What libFuzzer calls. A program has one target.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fuzz/fuzz.h"

namespace terrace::fuzz {
namespace {

void WriteSeeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const Seed& seed : Targets().front().seeds()) {
    std::ofstream file(folder / seed.name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.bytes.data()),
               static_cast<std::streamsize>(seed.bytes.size()));
    Require(file.good(), "a seed cannot be written");
  }
}

}  // namespace
}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  using terrace::fuzz::Targets;
  terrace::fuzz::Require(Targets().size() == 1, "a program that is fuzzed has one target");
  if (const char* folder = std::getenv("TERRACE_FUZZ_SEEDS"); folder != nullptr) {
    terrace::fuzz::WriteSeeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size_bytes);
  return terrace::fuzz::Targets().front().run(input) ? 0 : -1;
}
