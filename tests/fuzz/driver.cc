// Runs a target over files and folders, for a compiler without libFuzzer: what a corpus finds is
// found, and nothing new. Options, which begin with '-', are libFuzzer's and are passed over.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

void RunFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  std::printf("Running: %s\n", path.c_str());
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  size_t run_count = 0;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-') continue;
    if (!std::filesystem::is_directory(argv[i])) {
      RunFile(argv[i]);
      ++run_count;
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      RunFile(entry.path());
      ++run_count;
    }
  }
  std::printf("%zu inputs were run\n", run_count);
  return run_count > 0 ? 0 : 1;
}
