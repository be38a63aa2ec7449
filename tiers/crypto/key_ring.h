// KeyRing: the keys of a domain's encryption_keys_file. The first encrypts, all decrypt. Each is
// named by its id, which says nothing of it.
//
// The file is text: a line "terrace-key-1 <64 hex digits>" a key; empty lines and lines that begin
// with # count for nothing. As a domain's secret it is readable by its owner alone.
//
// THREADING: constant once it is made. LIMITS: kRingKeysMax.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/status.h"
#include "tiers/crypto/aead.h"

namespace terrace {

inline constexpr size_t kRingKeysMax = 16;

// 0: none.
using KeyId = uint64_t;
// 16 hex digits.
std::string KeyIdText(KeyId id);

class KeyRing {
 public:
  // REQUIRES: 1 to kRingKeysMax keys.
  explicit KeyRing(std::vector<CipherKey> keys);

  KeyId first() const { return keys_.front().id; }
  // Null: the ring has no such key.
  const CipherKey* Find(KeyId id) const;
  size_t count() const { return keys_.size(); }
  // Their ids, for a person; the first encrypts.
  std::string Describe() const;

 private:
  struct Entry {
    KeyId id = 0;
    CipherKey key;
  };
  std::vector<Entry> keys_;
};

KeyId IdOf(const CipherKey& key);

// kInvalid with what is wrong and the remedy; never what the text holds.
Result<std::shared_ptr<const KeyRing>> ParseKeyRing(std::string_view text, std::string* why);
// kNotFound, kInvalid (owner, mode, kind or content), kIo. `*why` names the file, what is wrong and
// the remedy. Blocks.
Result<std::shared_ptr<const KeyRing>> ReadKeyRingFile(const std::string& path, std::string* why);

}  // namespace terrace
