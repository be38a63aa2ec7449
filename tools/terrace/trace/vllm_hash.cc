#include "tools/terrace/trace/vllm_hash.h"

#include <openssl/sha.h>

#include <nlohmann/json.hpp>

namespace terrace::tools {
namespace {

using nlohmann::json;

VllmHash HashOf(const json& value) {
  const std::vector<uint8_t> bytes = json::to_cbor(value);
  VllmHash hash;
  SHA256(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

json BytesOf(const VllmHash& hash) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(hash.data());
  return json::binary(std::vector<uint8_t>(bytes, bytes + hash.size()));
}

}  // namespace

VllmHash VllmSeedHash(const std::string& seed) { return HashOf(seed); }

std::vector<VllmHash> VllmBlockHashes(std::span<const uint32_t> tokens,
                                      const VllmHashOptions& options) {
  std::vector<VllmHash> hashes;
  VllmHash parent = VllmSeedHash(options.seed);
  for (size_t first = 0; first + options.block_tokens <= tokens.size();
       first += options.block_tokens) {
    const bool has_extra = first == 0 && !options.extra_keys.empty();
    const json extra = has_extra ? json(options.extra_keys) : json();
    const std::span<const uint32_t> own = tokens.subspan(first, options.block_tokens);
    parent = HashOf(
        json::array({BytesOf(parent), json(std::vector<uint32_t>(own.begin(), own.end())), extra}));
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace terrace::tools
