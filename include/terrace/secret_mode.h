// Which modes a file that holds a secret may have.
#pragma once

#include <string>

namespace terrace {

// Bits that the mode of the file may not have: nobody but its owner reads or writes it. Below
// $CREDENTIALS_DIRECTORY it may be readable for its group (0440): systemd lets the unit's user in
// by a list of access, whose mask is shown as the group's bits. Nowhere else, since the group of a
// daemon is that of the engines.
unsigned ForbiddenModeBits(const std::string& path);
// "0640": how a mode is told.
std::string ModeText(unsigned mode);
// Behind the error of a file that its reader may not open.
inline constexpr char kUnreadableRemedy[] =
    "; it must belong to the user that reads it, with mode 0600: chown it, and let that user into "
    "its directory";

}  // namespace terrace
