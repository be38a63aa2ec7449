// Runs every target once over what its encoders make and over the inputs that are kept of it, as an
// ordinary test: what was once found is not lost again, and no target has gone stale. In a build
// without AddressSanitizer it sees less: what targets judge, and what ends a process by itself.
//
// usage: fuzz_corpora FOLDER [TARGET [FILE...]]
//
// FOLDER has a folder of inputs for each target, or none. With FILE only that input is run.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/fuzz.h"

namespace terrace::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameBytesMax = 512;
char running[kNameBytesMax];  // what is run now

// However the process ends: the input that did it.
void TellInput() {
  const std::string_view text(running);
  (void)!write(STDERR_FILENO, text.data(), text.size());
}
void OnEnd(int signal) {
  TellInput();
  std::signal(signal, SIG_DFL);  // and once more, without this
}

void RunInput(const Target& target, const std::string& name, std::span<const std::byte> input) {
  std::snprintf(running, sizeof(running), "==FUZZ== target %s, input %s\n",
                std::string(target.name).c_str(), name.c_str());
  (void)target.run(input);
}

Bytes ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  return BytesOfText({bytes.data(), bytes.size()});
}

void RunTarget(const Target& target, const fs::path& folder) {
  const auto began = std::chrono::steady_clock::now();
  const std::vector<Seed> seeds = target.seeds();
  Require(!seeds.empty(), "a target whose encoders make nothing");
  for (const Seed& seed : seeds) RunInput(target, seed.name, seed.bytes);
  size_t kept_count = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder / target.name, none)) {
    RunInput(target, entry.path(), ReadFile(entry.path()));
    ++kept_count;
  }
  const auto took = std::chrono::steady_clock::now() - began;
  std::printf(
      "%-16s %4zu seeds %5zu kept %6lld ms\n", std::string(target.name).c_str(), seeds.size(),
      kept_count,
      static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
}

int RunAll(int argc, char** argv) {
  const std::string_view wanted = argc > 2 ? argv[2] : "";
  size_t target_count = 0;
  std::vector<Target> targets = Targets();
  std::ranges::sort(targets, {}, &Target::name);
  for (const Target& target : targets) {
    if (!wanted.empty() && target.name != wanted) continue;
    ++target_count;
    if (argc <= 3) RunTarget(target, argv[1]);
    for (int i = 3; i < argc; ++i) RunInput(target, argv[i], ReadFile(argv[i]));
  }
  if (target_count > 0) return 0;
  std::fprintf(stderr, "there is no target '%s'\n", argv[2]);
  return 1;
}

}  // namespace
}  // namespace terrace::fuzz

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuzz_corpora FOLDER [TARGET [FILE...]]\n");
    return 2;
  }
#ifdef __SANITIZE_ADDRESS__
  std::signal(SIGABRT, terrace::fuzz::OnEnd);
  __sanitizer_set_death_callback(terrace::fuzz::TellInput);
#else
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, terrace::fuzz::OnEnd);
  }
#endif
  return terrace::fuzz::RunAll(argc, argv);
}
