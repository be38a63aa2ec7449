// terrace-tiny-llama: one prompt through a real transformer, on CPU.
//
// With --socket, leading blocks of the prompt come from Terrace and new ones go there; the answer
// is the same either way, bit for bit.
//
// Exit status: 0 done, 1 the logits are not the expected ones, 2 bad usage or input.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tiny_llama/inference.h"
#include "tiny_llama/model.h"
#include "tiny_llama/terrace_prefix_cache.h"

namespace terrace::tiny_llama {
namespace {

constexpr int kExitMismatch = 1;
constexpr int kExitUsage = 2;
constexpr uint64_t kPromptBytesMax = kContextTokensMax;
constexpr std::chrono::seconds kProgressAfter{2};
constexpr std::chrono::seconds kProgressEvery{5};

struct Arguments {
  std::string prompt_file;
  std::string socket_path;
  std::string shape = "default";
  uint64_t seed = 1;
  uint32_t generate_tokens = 16;
  std::string expect_digest;
  std::string logits_out;
  bool as_json = false;
  bool tells_progress = false;
};

void Declare(CLI::App& app, Arguments& arguments) {
  app.add_option("--prompt-file", arguments.prompt_file, "File whose bytes are the prompt")
      ->required();
  app.add_option("--socket", arguments.socket_path,
                 "Socket of terraced; without it nothing is cached");
  app.add_option("--shape", arguments.shape, "Model shape: small or default")
      ->check(CLI::IsMember({"small", "default"}));
  app.add_option("--seed", arguments.seed, "Seed of the weights");
  app.add_option("--generate", arguments.generate_tokens, "Tokens to generate, greedily")
      ->check(CLI::Range(1u, kContextTokensMax));
  app.add_option("--expect-digest", arguments.expect_digest,
                 "Exit with 1 unless the logits have this digest");
  app.add_option("--logits-out", arguments.logits_out,
                 "Write the logits of the prompt's last token here as raw float32");
  app.add_flag("--json", arguments.as_json, "Print one JSON object");
  app.add_flag(
      "--progress", arguments.tells_progress,
      "Say on stderr, after 2 s and every 5, how far the prefill is and how long it may take");
}

Status ReadPrompt(const std::string& path, std::vector<uint8_t>* prompt, std::string* why) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    *why = "cannot open the prompt file " + path + ": check the path and its permissions";
    return Status(StatusCode::kIo, "prompt file not opened");
  }
  prompt->resize(kPromptBytesMax + 1);
  file.read(reinterpret_cast<char*>(prompt->data()), static_cast<std::streamsize>(prompt->size()));
  prompt->resize(static_cast<size_t>(file.gcount()));
  if (prompt->size() > kPromptBytesMax) {
    *why = "the prompt file " + path + " is longer than " + std::to_string(kPromptBytesMax) +
           " bytes: shorten it";
    return Status(StatusCode::kInvalid, "prompt file too long");
  }
  return Status::Ok();
}

Status WriteLogits(const std::string& path, const std::vector<float>& logits, std::string* why) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(logits.data()),
             static_cast<std::streamsize>(logits.size() * sizeof(float)));
  file.close();
  if (file) return Status::Ok();
  *why = "cannot write the logits to " + path + ": check the path and the space left";
  return Status(StatusCode::kIo, "logits not written");
}

double TokensPerSecond(double tokens, double elapsed_ms) {
  return elapsed_ms > 0 ? tokens * 1000.0 / elapsed_ms : 0;
}

double PrefillRate(const InferenceResult& result) {
  return TokensPerSecond(result.computed_tokens(), result.ttft_ms - result.restore_ms);
}

double DecodeRate(const InferenceResult& result) {
  return TokensPerSecond(static_cast<double>(result.generated.size()) - 1, result.decode_ms);
}

std::string Hex(const std::vector<uint8_t>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// `account` is null when the run had no cache.
void PrintForPeople(const InferenceResult& result, const TerracePrefixCache::Account* account) {
  const std::string tiers = account == nullptr ? "" : account->RestoredTiers();
  std::printf("prompt      %u tokens\n", result.prompt_tokens);
  std::printf("reused      %u tokens%s%s\n", result.reused_tokens, tiers.empty() ? "" : " from ",
              tiers.c_str());
  std::printf("computed    %u tokens, %.0f tokens/s\n", result.computed_tokens(),
              PrefillRate(result));
  std::printf("TTFT        %.1f ms, %.1f of it restoring\n", result.ttft_ms, result.restore_ms);
  if (account != nullptr) {
    std::printf("stored      %u blocks in %.1f ms\n", account->stored_blocks, result.store_ms);
  }
  std::printf("generated   %zu tokens, %.1f tokens/s: %s\n", result.generated.size(),
              DecodeRate(result), Hex(result.generated).c_str());
  std::printf("logits      %s\n", result.LogitsDigest().c_str());
  if (account == nullptr) return;
  for (const std::string& trouble : account->troubles)
    std::printf("cache       %s\n", trouble.c_str());
}

void PrintJson(const InferenceResult& result, const TerracePrefixCache::Account* account) {
  nlohmann::json json = {{"prompt_tokens", result.prompt_tokens},
                         {"reused_tokens", result.reused_tokens},
                         {"tier", nullptr},
                         {"ttft_ms", result.ttft_ms},
                         {"restore_ms", result.restore_ms},
                         {"store_ms", result.store_ms},
                         {"prefill_tokens_per_second", PrefillRate(result)},
                         {"decode_tokens_per_second", DecodeRate(result)},
                         {"generated_hex", Hex(result.generated)},
                         {"logits_digest", result.LogitsDigest()}};
  if (account != nullptr) {
    if (result.reused_tokens > 0) json["tier"] = account->RestoredTiers();
    json["stored_blocks"] = account->stored_blocks;
    json["existing_blocks"] = account->existing_blocks;
    json["refused_blocks"] = account->refused_blocks;
    json["cache_troubles"] = account->troubles;
  }
  // Troubles may carry bytes of a path that are no UTF-8.
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// A line every so often, none for what is over before the first.
std::function<void(const PrefillProgress&)> ProgressLines(size_t prompt_tokens) {
  return [prompt_tokens, next = std::chrono::steady_clock::now() +
                                kProgressAfter](const PrefillProgress& progress) mutable {
    if (std::chrono::steady_clock::now() < next) return;
    next = std::chrono::steady_clock::now() + kProgressEvery;
    std::fprintf(stderr, "prefill: %u of %zu tokens, about %.0f s left\n", progress.tokens,
                 prompt_tokens, progress.left_ms / 1000);
  };
}

int Refuse(const std::string& why) {
  std::fprintf(stderr, "terrace-tiny-llama: %s\n", why.c_str());
  return kExitUsage;
}

int Main(const Arguments& arguments) {
  std::string why;
  std::vector<uint8_t> prompt;
  InferenceResult result;
  TinyLlama model(arguments.shape == "small" ? Shape::Small() : Shape{}, arguments.seed);
  if (!ReadPrompt(arguments.prompt_file, &prompt, &why).ok()) return Refuse(why);
  std::unique_ptr<TerracePrefixCache> cache;
  if (!arguments.socket_path.empty()) {
    cache = std::make_unique<TerracePrefixCache>(
        model, TerracePrefixCache::Options{.socket_path = arguments.socket_path});
  }
  RunOptions options{.cache = cache.get(), .generate_tokens = arguments.generate_tokens};
  if (arguments.tells_progress) options.progress = ProgressLines(prompt.size());
  if (!RunPrompt(model, prompt, options, &result, &why).ok() ||
      (!arguments.logits_out.empty() &&
       !WriteLogits(arguments.logits_out, result.logits, &why).ok())) {
    return Refuse(why);
  }
  const TerracePrefixCache::Account* account = cache == nullptr ? nullptr : &cache->account();
  arguments.as_json ? PrintJson(result, account) : PrintForPeople(result, account);
  const std::string digest = result.LogitsDigest();
  if (!arguments.expect_digest.empty() && arguments.expect_digest != digest) {
    std::fprintf(stderr, "terrace-tiny-llama: the logits have digest %s, expected %s\n",
                 digest.c_str(), arguments.expect_digest.c_str());
    return kExitMismatch;
  }
  return 0;
}

}  // namespace
}  // namespace terrace::tiny_llama

int main(int argc, char** argv) {
  terrace::tiny_llama::ChooseMatrixKernels(argv);
  CLI::App app{"Runs one prompt through a small Llama on CPU and says how long it took."};
  terrace::tiny_llama::Arguments arguments;
  terrace::tiny_llama::Declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : terrace::tiny_llama::kExitUsage;
  }
  return terrace::tiny_llama::Main(arguments);
}
