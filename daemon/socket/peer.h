// Who is at the other end of a connection, and the descriptor that tells when it is dead.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/socket/domain.h"
#include "terrace/status.h"

namespace terrace {

// SO_PEERCRED: the credentials of the process that connected, at the time it did. kIo on failure.
Status ReadPeerCredentials(int socket_fd, PeerCredentials* peer);

// A pidfd of the process that connected: SO_PEERPIDFD where the kernel has it (6.5), else
// pidfd_open of a visible pid that is still connected; `*pidfd` is -1 if neither works, and the end
// of the life socket has to do. The caller closes it. kGone if that process has ended: whoever
// holds the socket now is another one, and its number may be another one's, too. kNoSpace, with the
// errno: no descriptor is left.
Status OpenPeerPidfd(int socket_fd, const PeerCredentials& peer, int* pidfd);

// What the other end of a life socket says; nothing is taken out of it, so that whoever holds the
// socket after this process hears the same.
enum class LifeSign : uint8_t {
  kAlive,
  kGoodbye,  // it lives and is done with the arena
  kEnded,    // closed without a word
};
LifeSign ReadLife(int life_fd);

// Asks the kernel (6.16) to refuse descriptors that the peer wants to pass. Older kernels drop
// them, since the daemon receives without control space.
void RefusePassedDescriptors(int socket_fd);

}  // namespace terrace
