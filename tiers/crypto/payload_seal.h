// PayloadSeal: what lies beside an encrypted payload, and PayloadName, to which it is bound.
//
// Pure.
#pragma once

#include <array>
#include <cstddef>

#include "tiers/crypto/aead.h"

namespace terrace {

// A digest of everything that names a payload: bytes of another block, commit or place do not
// authenticate.
using PayloadName = std::array<std::byte, 16>;

// What decrypts one payload, but for the key.
struct PayloadSeal {
  CipherSalt salt{};
  CipherTag tag{};

  friend bool operator==(const PayloadSeal&, const PayloadSeal&) = default;
};

}  // namespace terrace
