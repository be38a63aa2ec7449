// A domain at run time: its secret, and who may enter. A domain is its socket; uid and gid lists
// narrow it further.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/config/config.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/crypto/key_ring.h"

namespace terrace {

// The peer as SO_PEERCRED gives it, taken when it connected.
struct PeerCredentials {
  uint32_t uid = kOverflowUid;
  uint32_t gid = kOverflowUid;
  uint32_t pid = 0;  // 0: not visible from here
};

// Reads the keys that encrypt what the domain keeps on drives and Redis; null: none are configured.
// Answers as LoadDomainSecret.
Status LoadKeyRing(const DomainConfig& config, std::shared_ptr<const KeyRing>* ring,
                   std::string* why);
// Reads the domain's secret. The secret of a domain without a configured file is drawn on first
// use, with the directory it lives in. kIo, kInvalid or kNotFound with `*why`.
Status LoadDomainSecret(const DomainConfig& config, DomainSecret* secret, std::string* why);

// kOk, or kInvalid with a sentence for the log and the client.
Status AuthorisePeer(const DomainConfig& config, const PeerCredentials& peer, std::string* why);

}  // namespace terrace
