// Authenticated encryption under keys that are used once: AES-256-GCM with a nonce of zeros, and
// HKDF-Expand (RFC 5869, SHA-256), which makes a key for each use. Why no pair of key and nonce
// repeats: docs/ENCRYPTION.md.
//
// Pure, but for KernelRandom. THREADING: any.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

#include "terrace/status.h"

namespace terrace {

inline constexpr size_t kCipherKeyBytes = 32;
inline constexpr size_t kCipherTagBytes = 16;
inline constexpr size_t kCipherSaltBytes = 32;

using CipherTag = std::array<std::byte, kCipherTagBytes>;
using CipherSalt = std::array<std::byte, kCipherSaltBytes>;

// A key, wiped at its end. Never printed, never compared but by its id.
class CipherKey {
 public:
  CipherKey() = default;
  explicit CipherKey(std::span<const std::byte, kCipherKeyBytes> bytes);
  CipherKey(const CipherKey&) = default;
  CipherKey& operator=(const CipherKey&) = default;
  ~CipherKey() { Wipe(); }

  void Wipe();
  std::span<std::byte, kCipherKeyBytes> bytes() { return bytes_; }
  std::span<const std::byte, kCipherKeyBytes> bytes() const { return bytes_; }

 private:
  std::array<std::byte, kCipherKeyBytes> bytes_{};
};

// HKDF-Expand of 32 bytes: HMAC-SHA256(key, info ‖ 0x01), `info` being label ‖ salt ‖ context.
// REQUIRES: at most kHkdfInfoBytesMax of info.
inline constexpr size_t kHkdfInfoBytesMax = 256;
CipherKey DeriveKey(const CipherKey& key, std::string_view label, std::span<const std::byte> salt,
                    std::span<const std::byte> context);

// Encrypts `from` into `into`, which is as long, and may be the same memory.
// REQUIRES: the key encrypts nothing else, ever.
void Encrypt(const CipherKey& key, std::span<const std::byte> associated,
             std::span<const std::byte> from, std::span<std::byte> into, CipherTag* tag);
// Decrypts in place. kCorrupt: the tag does not hold, and `bytes` are zeros.
Status Decrypt(const CipherKey& key, std::span<const std::byte> associated,
               std::span<std::byte> bytes, const CipherTag& tag);

// Fills the bytes with what nobody can guess or repeat (a simulation: with what its seed says).
using RandomFill = std::function<Status(std::span<std::byte>)>;
// The kernel's, which knows when a machine has been cloned. kIo: it has none.
Status KernelRandom(std::span<std::byte> bytes);

}  // namespace terrace
