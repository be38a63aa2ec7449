// What the daemon tells its supervisor (systemd, or whoever listens at NOTIFY_SOCKET), as sd_notify
// does, but without waiting: a supervisor that does not read holds up nothing here.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string_view>

namespace terrace {

// Of a path as in NOTIFY_SOCKET; one that begins with '@' is abstract.
struct SupervisorAddress {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t byte_count = 0;  // 0: the path is empty or too long for a socket
};
SupervisorAddress SupervisorAddressOf(std::string_view path);

// States as in sd_notify(3), one a line. False if the supervisor's queue is full: worth another
// try later. True without a supervisor, or with one that is gone. Any thread.
bool TellSupervisor(std::string_view states);

}  // namespace terrace
