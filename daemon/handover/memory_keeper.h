// The memory keeper: a process that holds descriptors for a daemon, so that they outlive it. It
// knows no more of them than their names: no index, no configuration, no mapping of what they stand
// for.
//
// Protocol: SOCK_SEQPACKET, one KeeperMessage a packet, at most one descriptor with it. The keeper
// speaks first: kWelcome, or kBusy while another daemon is served: being connected is the lock.
// Then the daemon sends kPut (with the descriptor), kDrop and kGiveAll; the keeper answers kGiveAll
// with a kHeld for each (with the descriptor) and a kEnd.
//
// THREADING: one. LIMITS: kKeptFdsMax descriptors, less if the process may not have as many; one
// daemon at a time, of the keeper's own uid.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kKeptFdsMax = 16'384;
inline constexpr uint32_t kKeeperMagic = 0x3150'4B54;  // "TKP1", and the version
inline constexpr uint32_t kKeeperPatienceMs = 5'000;   // for a peer that does not answer or read

enum class KeeperVerb : uint8_t { kPut = 1, kDrop, kGiveAll, kHeld, kEnd, kBusy, kWelcome };

struct KeeperMessage {
  uint32_t magic = kKeeperMagic;
  KeeperVerb verb = KeeperVerb::kPut;
  uint8_t name_bytes = 0;
  char name[122] = {};
};
static_assert(sizeof(KeeperMessage) == 128);

// One packet, with `fd` unless it is -1. kBusy: the peer does not read now; kIo: it is gone.
Status SendKeeperMessage(int socket_fd, KeeperVerb verb, const std::string& name, int fd,
                         int flags);
// The next packet; `*fd` is -1 or the caller's to close. kBusy: none yet, or none in time; kIo: the
// peer is gone or talks nonsense.
Status ReceiveKeeperMessage(int socket_fd, KeeperMessage* message, int* fd, int flags);

// Serves at `socket_path` (mode 0600) until SIGTERM or SIGINT. Not kOk: `*why`.
Status RunMemoryKeeper(const std::string& socket_path, std::string* why);

}  // namespace terrace
