#!/usr/bin/env python3
"""usage: packaging/kubernetes/seccomp.py >terraced.json

The seccomp profile for terraced's containers: the system calls that terraced.service allows,
io_uring among them, which container runtimes refuse by default. It belongs into the kubelet's
seccomp/profiles/ folder on each node. Needs systemd-analyze (Debian 12's names are meant).
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from systemd_hardening import allowed_calls, settings_of  # noqa: E402

# What a runtime itself does after the filter is on.
OF_RUNTIMES = {"capset", "capget", "setgroups", "setgid", "setuid", "setresuid", "setresgid",
               "chdir", "execve", "prctl", "close_range", "fchdir", "fstatfs"}


def main():
    unit = settings_of(ROOT / "systemd/terraced.service.in")
    calls = {call for call in allowed_calls(unit["SystemCallFilter"]) if not call.startswith("@")}
    json.dump({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
               "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
               "syscalls": [{"names": sorted(calls | OF_RUNTIMES), "action": "SCMP_ACT_ALLOW"}]},
              sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
