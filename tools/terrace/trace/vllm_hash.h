// Block hashes as vLLM computes them with --prefix-caching-hash-algo sha256_cbor, so that a prompt
// can be looked up without an engine:
//   hash of block i = SHA-256(CBOR([hash of block i - 1, tokens of block i, extra keys or null]))
// where the block before the first has SHA-256(CBOR(seed)): vllm/v1/core/kv_cache_utils.py.
// vLLM's other algorithms depend on Python's pickle or on a random seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace::tools {

using VllmHash = std::array<std::byte, 32>;

struct VllmHashOptions {
  std::string seed = "vllm-none-hash";  // PYTHONHASHSEED, if the engine had it
  uint32_t block_tokens = 0;            // vLLM's hash block size; > 0
  // Of the first block: LoRA adapter, cache salt, …, in vLLM's order. None: null.
  std::vector<std::string> extra_keys;
};

VllmHash VllmSeedHash(const std::string& seed);
// One a full block.
std::vector<VllmHash> VllmBlockHashes(std::span<const uint32_t> tokens,
                                      const VllmHashOptions& options);

}  // namespace terrace::tools
