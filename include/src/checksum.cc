#include "terrace/checksum.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "src/xxh3.h"

namespace terrace {
namespace {

XXH3_state_t* State(std::byte* storage) {
  return std::launder(reinterpret_cast<XXH3_state_t*>(storage));
}

Checksum FromXxh(XXH128_hash_t hash) { return Checksum{.low = hash.low64, .high = hash.high64}; }

}  // namespace

uint64_t ChecksumSeed(const DomainSecret& secret, const PartIdentity& identity) {
  std::array<std::byte, 44> message;
  std::byte* to = message.data();
  const auto put = [&to](const auto& value) {
    std::memcpy(to, &value, sizeof(value));
    to += sizeof(value);
  };
  put(identity.space.low);
  put(identity.space.high);
  put(identity.key.low);
  put(identity.key.high);
  put(identity.commit_id);
  put(identity.part_index);
  return xxh3::Hash64(message, secret);
}

uint64_t KeyedHash64(const DomainSecret& secret, std::span<const std::byte> bytes) {
  return xxh3::Hash64(bytes, secret);
}

uint64_t ChecksumLeaf(std::span<const std::byte> leaf, uint64_t seed) {
  return xxh3::Hash64(leaf, seed);
}

Checksum ChecksumRoot(std::span<const uint64_t> leaf_hashes, uint64_t seed) {
  return FromXxh(xxh3::Hash128(std::as_bytes(leaf_hashes), seed));
}

Checksum ChecksumPart(std::span<const std::byte> part, uint64_t seed) {
  ChecksumStream stream(seed);
  stream.Append(part);
  return stream.Finish();
}

ChecksumStream::ChecksumStream(uint64_t seed) : seed_(seed) {
  static_assert(sizeof(XXH3_state_t) == sizeof(root_state_), "another version of xxHash");
  static_assert(alignof(XXH3_state_t) <= 64);
  static_assert(XXH3_SECRET_DEFAULT_SIZE == sizeof(leaf_secret_));
  xxh3::Start128(new (root_state_.data()) XXH3_state_t, seed);
  xxh3::SecretOfSeed(leaf_secret_, seed);
}

void ChecksumStream::AppendLeaf(std::span<const std::byte> leaf) {
  // Above 240 bytes XXH3 under a seed is XXH3 under the secret derived from that seed. Deriving it
  // once per part and not once per leaf is a fifth of the hash.
  const uint64_t hash = leaf.size() == kChecksumLeafBytes ? xxh3::Hash64(leaf, leaf_secret_)
                                                          : ChecksumLeaf(leaf, seed_);
  xxh3::Append(State(root_state_.data()), std::as_bytes(std::span(&hash, 1)));
}

void ChecksumStream::Append(std::span<const std::byte> piece) {
  if (leaf_bytes_ > 0) {
    const size_t fill_bytes = std::min(piece.size(), leaf_.size() - leaf_bytes_);
    std::copy_n(piece.begin(), fill_bytes, leaf_.begin() + leaf_bytes_);
    leaf_bytes_ += fill_bytes;
    piece = piece.subspan(fill_bytes);
    if (leaf_bytes_ < leaf_.size()) return;
    AppendLeaf(leaf_);
    leaf_bytes_ = 0;
  }
  while (piece.size() >= leaf_.size()) {
    AppendLeaf(piece.first(leaf_.size()));
    piece = piece.subspan(leaf_.size());
  }
  std::copy(piece.begin(), piece.end(), leaf_.begin());
  leaf_bytes_ = piece.size();
}

Checksum ChecksumStream::Finish() {
  if (leaf_bytes_ > 0) AppendLeaf(std::span(leaf_).first(leaf_bytes_));
  leaf_bytes_ = 0;
  return FromXxh(xxh3::Finish128(*State(root_state_.data())));
}

}  // namespace terrace
