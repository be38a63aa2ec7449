// SimGroupKeys: a key for every group, from a seed, and salts from a seed: what encrypts in tests.
#pragma once

#include <map>
#include <memory>
#include <random>

#include "tiers/crypto/group_key.h"
#include "tiers/record_fields.h"

namespace terrace::sim {

inline CipherKey KeyFrom(uint64_t seed) {
  std::mt19937_64 random(seed);
  CipherKey key;
  for (size_t at = 0; at < kCipherKeyBytes; at += 8) Put<uint64_t>(key.bytes(), at, random());
  return key;
}

class SimGroupKeys final : public GroupKeys {
 public:
  explicit SimGroupKeys(uint64_t seed = 1) : seed_(seed), random_(seed) {}

  std::shared_ptr<const GroupKey> Find(const GroupId& group) const override {
    if (is_locked) return nullptr;
    std::shared_ptr<GroupKey>& key = keys_[group];
    if (key == nullptr) key = std::make_shared<GroupKey>(KeyFrom(seed_ ^ group.low));
    return key;
  }
  void Destroy(const GroupId& group) {
    keys_[group]->Destroy();
    keys_.erase(group);
    ++seed_;  // the next is another
  }
  PayloadEncryption encryption() {
    return {.keys = this, .random = [this](std::span<std::byte> bytes) {
              for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
              return Status::Ok();
            }};
  }

  bool is_locked = false;  // there is no key that can be used

 private:
  uint64_t seed_;
  std::mt19937_64 random_;
  mutable std::map<GroupId, std::shared_ptr<GroupKey>> keys_;
};

}  // namespace terrace::sim
