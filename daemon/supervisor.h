// What the daemon tells its supervisor (systemd, or whoever listens at NOTIFY_SOCKET), as sd_notify
// does, but without waiting: a supervisor that does not read holds up nothing here.
#pragma once

#include <string_view>

namespace terrace {

// States as in sd_notify(3), one a line. False if the supervisor's queue is full: worth another
// try later. True without a supervisor, or with one that is gone. Any thread.
bool TellSupervisor(std::string_view states);

}  // namespace terrace
