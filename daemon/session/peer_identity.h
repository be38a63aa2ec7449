// PeerIdentity: who connected, as the kernel says.
#pragma once

#include <cstdint>

namespace terrace {

struct PeerIdentity {
  uint32_t domain_index = 0;
  uint32_t uid = 0;
  uint32_t pid = 0;  // 0: of a PID namespace that is not ours to see
};

}  // namespace terrace
