#include "terrace/chunk.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "terrace/check.h"
#include "terrace/space.h"

namespace terrace {
namespace {

constexpr std::string_view kLabel = "terrace chunk keys v1";
constexpr std::array<char, 4> kMagic = {'T', 'C', 'H', 'K'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kDeltaMax = 1u << 24;  // kRopePositionMax of cuda/kernels/rope.h
constexpr size_t kSha256Bytes = 32;
static_assert(kDomainSecretBytes % kSha256Bytes == 0);

struct HeaderAt {
  static constexpr size_t kVersion = 4;
  static constexpr size_t kFirstTokenPosition = 8;
  static constexpr size_t kTokenCount = 12;
  static constexpr size_t kRopeDigest = 16;
  static constexpr size_t kEnd = 24;
};

template <typename T>
T Get(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

DomainSecret ChunkSecret(const DomainSecret& secret) {
  DomainSecret derived;
  for (size_t offset = 0; offset < derived.size(); offset += kSha256Bytes) {
    std::vector<std::byte> message;
    const auto label = std::as_bytes(std::span(kLabel));
    message.insert(message.end(), label.begin(), label.end());
    message.push_back(static_cast<std::byte>(offset / kSha256Bytes));
    message.insert(message.end(), secret.begin(), secret.end());
    unsigned int digest_bytes = 0;
    const bool is_hashed = EVP_Digest(message.data(), message.size(),
                                      reinterpret_cast<unsigned char*>(derived.data() + offset),
                                      &digest_bytes, EVP_sha256(), nullptr) == 1;
    TERRACE_CHECK(is_hashed && digest_bytes == kSha256Bytes,
                  "a secret that is not derived would make chunk keys of prefix keys");
  }
  return derived;
}

PrefixHasher ChunkHasher(const PrefixHasher::Options& options, const DomainSecret& secret) {
  return PrefixHasher(options, ChunkSecret(secret));
}

void ChunkHeader::Write(std::span<std::byte, kChunkHeaderBytes> bytes) const {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::memcpy(bytes.data() + HeaderAt::kVersion, &kVersion, sizeof(kVersion));
  std::memcpy(bytes.data() + HeaderAt::kFirstTokenPosition, &first_token_position, 4);
  std::memcpy(bytes.data() + HeaderAt::kTokenCount, &token_count, 4);
  std::memcpy(bytes.data() + HeaderAt::kRopeDigest, &rope_digest, 8);
}

Result<ChunkHeader> ChunkHeader::Read(std::span<const std::byte> bytes) {
  constexpr Status kNone(StatusCode::kCorrupt, "this is no chunk's header");
  if (bytes.size() != kChunkHeaderBytes) return kNone;
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return kNone;
  if (Get<uint32_t>(bytes, HeaderAt::kVersion) != kVersion) return kNone;
  const auto behind = bytes.subspan(HeaderAt::kEnd);
  if (!std::all_of(behind.begin(), behind.end(), [](std::byte b) { return b == std::byte{0}; })) {
    return kNone;
  }
  const ChunkHeader header = {
      .first_token_position = Get<uint32_t>(bytes, HeaderAt::kFirstTokenPosition),
      .token_count = Get<uint32_t>(bytes, HeaderAt::kTokenCount),
      .rope_digest = Get<uint64_t>(bytes, HeaderAt::kRopeDigest)};
  if (header.token_count == 0 || header.token_count > kBlockTokensMax) return kNone;
  return header;
}

Result<int32_t> ChunkDelta(const ChunkHeader& header, uint32_t first_token_position,
                           uint64_t rope_digest, std::string* why) {
  if (header.rope_digest != rope_digest) {
    *why = "the chunk's keys were made by another rope than the reader's: compute them again";
    return Status(StatusCode::kUnsupported, "another rope made the keys");
  }
  if (rope_digest == 0) return int32_t{0};
  const int64_t delta = int64_t{first_token_position} - int64_t{header.first_token_position};
  if (std::abs(delta) > kDeltaMax) {
    *why = "the chunk stood at token " + std::to_string(header.first_token_position) +
           " and is wanted at " + std::to_string(first_token_position) + "; keys turn by at most " +
           std::to_string(kDeltaMax) + " tokens: compute them again";
    return Status(StatusCode::kUnsupported, "the way is too long");
  }
  return static_cast<int32_t>(delta);
}

}  // namespace terrace
