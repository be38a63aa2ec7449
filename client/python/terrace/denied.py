"""Who may open a daemon's socket: what the library's sentence cannot know of users and groups."""
import grp
import os
import pwd
import stat


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def remedy_of(socket_path: str) -> str:
    """Where this process's user may not open the socket: a sentence that names the user, the group,
    and what lets one into the other, to be put behind another; otherwise nothing."""
    uid = os.geteuid()
    user = _user(uid)
    try:
        found = os.stat(socket_path)
        if os.access(socket_path, os.R_OK | os.W_OK, effective_ids=True):
            return ""
    except PermissionError:
        return (f". User {user} may not enter the directory of {socket_path}: give it the group "
                "that may, and a new login")
    except (OSError, ValueError):  # that is another trouble
        return ""
    mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
    try:
        group = grp.getgrgid(found.st_gid)
    except KeyError:
        return (f". User {user} may not open it: it is of gid {found.st_gid}, {mode}; run this "
                "process with that group")
    if found.st_gid == 0:  # which is for nobody to join
        return (f". User {user} may not open it: its group is {group.gr_name}, {mode}; chgrp it to "
                f"one of users who are to reach the domain, and add {user} there")
    if found.st_gid in (os.getegid(), *os.getgroups()) or uid == found.st_uid:
        return f". User {user} may not open it: its group is {group.gr_name}, {mode}; chmod 0660"
    if user in group.gr_mem:
        return (f". User {user} is in the socket's group {group.gr_name} by now, this process is "
                "not: start it after a new login")
    return (f". User {user} is not in the socket's group {group.gr_name} ({mode}): "
            f"sudo usermod -aG {group.gr_name} {user}, and a new login")
