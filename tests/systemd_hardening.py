#!/usr/bin/env python3
# PROMISE: T38 exposure of the units
"""The units as configured, judged by systemd itself, without a running systemd.

usage: tests/systemd_hardening.py DIR

DIR holds terraced.service, its sockets and .sysusers. Checks that they verify, that the exposure
stays within its limit, that no setting breaks the daemon, and that its system calls pass the
filter.
Exit status 77 when systemd-analyze is not installed.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

EXPOSURE_MAX = 2.0
EXIT_SKIPPED = 77

# Settings that look like hardening and take away what the daemon lives by.
HARMFUL = {
    "PrivateUsers": "peers' uids would read as nobody, so no client could be told from another",
    "ProcSubset": "it hides /proc/meminfo",
    "PrivateNetwork": "it cuts off the Redis tier",
    "DynamicUser": "its private state directory moves away from where the slabs are",
}
# The promises of the unit beyond hardening.
REQUIRED = {
    "Requires": "terraced.socket", "Type": "notify", "NotifyAccess": "main",
    "WatchdogSec": "10s", "TimeoutAbortSec": "1s", "User": "terrace",
    "Restart": "on-failure", "RestartSec": "500ms", "StartLimitIntervalSec": "0",
    "FileDescriptorStoreMax": "4096", "RuntimeDirectory": "terrace", "RuntimeDirectoryMode": "0750",
    "RuntimeDirectoryPreserve": "yes", "StateDirectory": "terrace", "LimitMEMLOCK": "infinity",
    "LimitCORE": "0", "OOMScoreAdjust": "-500", "IPAddressDeny": "any",
    "SystemCallErrorNumber": "EPERM",
}
REQUIRED_OF_SOCKET = {"PartOf": "terraced.service", "RemoveOnStop": "yes", "SocketMode": "0660"}
UNITS = ("terraced.service", "terraced.socket", "terraced-metrics.socket")
# Of the socket where figures are asked for: the daemon knows its name, no other host reaches it.
REQUIRED_OF_METRICS = {
    "FileDescriptorName": "metrics.http", "Service": "terraced.service",
    "PartOf": "terraced.service", "ListenStream": "127.0.0.1:9464", "IPAddressDeny": "any",
    "IPAddressAllow": "localhost",
}
# Beyond what any program needs.
SYSTEM_CALLS = """
mbind set_mempolicy sched_setaffinity sched_getaffinity io_uring_setup io_uring_enter
io_uring_register memfd_create ftruncate fallocate madvise mlock munlock mmap mprotect pread64
pwrite64 preadv2 pwritev2 fdatasync sync_file_range pidfd_open pidfd_send_signal sendmsg recvmsg
accept4 getsockopt epoll_create1 epoll_wait epoll_ctl eventfd2 timerfd_create timerfd_settime
signalfd4 fcntl flock getrandom clone3 futex rseq set_robust_list prctl
seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
""".split()


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, check=False)


def settings_of(unit):
    """Every value of every setting, in order."""
    values = {}
    for line in unit.read_text().splitlines():
        if match := re.match(r"([A-Za-z]\w*)=(.*)$", line):
            values.setdefault(match[1], []).append(match[2])
    return values


def expand(name, cache={}):
    """The system calls behind a name of SystemCallFilter=."""
    if not name.startswith("@"):
        return {name}
    if name not in cache:
        lines = run("systemd-analyze", "syscall-filter", "--no-pager", name).stdout.splitlines()[1:]
        names = [line.strip() for line in lines if line.strip() and "#" not in line]
        cache[name] = set().union(*(expand(n) for n in names if n != name))
    return cache[name]


def allowed_calls(filters):
    allowed = set()
    for line in filters:
        calls = set().union(*(expand(name) for name in line.lstrip("~").split()))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def missing_settings(settings, required):
    for name, value in required.items():
        if settings.get(name, ["nothing"])[-1] != value:
            yield f"{name} is {settings.get(name, ['nothing'])[-1]}, it must be {value}"


def setting_failures(settings):
    for name, why in HARMFUL.items():
        if any(value not in ("no", "all") for value in settings.get(name, [])):
            yield f"{name}={settings[name][-1]}: {why}. Leave it out"
    yield from missing_settings(settings, REQUIRED)
    denied = [c for c in SYSTEM_CALLS if c not in allowed_calls(settings["SystemCallFilter"])]
    if denied:
        yield f"SystemCallFilter refuses {' '.join(denied)}. Allow them"


def exposure_failures(service):
    result = run("systemd-analyze", "security", "--no-pager", "--offline=true",
                 f"--threshold={int(EXPOSURE_MAX * 10)}", str(service))
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", result.stdout)
    if not match:
        yield f"systemd-analyze security gave no exposure: {result.stderr.strip()}"
        return
    print(f"exposure of {service.name}: {match[1]}, the limit is {EXPOSURE_MAX}")
    if float(match[1]) > EXPOSURE_MAX or result.returncode != 0:
        worst = sorted((line for line in result.stdout.splitlines() if line.startswith("✗")),
                       key=lambda line: float(line.split()[-1]), reverse=True)
        yield (f"exposure {match[1]} of {service.name}, the limit is {EXPOSURE_MAX}. Worst:\n  "
               + "\n  ".join(re.sub(r" {2,}", "  ", line) for line in worst[:8]))


def verify_failures(directory):
    """systemd-analyze verify, on copies whose program exists."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in UNITS:
            text = (directory / name).read_text()
            text = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.M)
            (pathlib.Path(scratch) / name).write_text(text)
        for name in UNITS:
            result = run("systemd-analyze", "verify", "--man=no", "--generators=no",
                         "--recursive-errors=no", f"{scratch}/{name}")
            complaints = [line for line in result.stderr.splitlines() if "terraced" in line]
            if result.returncode != 0 or complaints:
                yield f"systemd-analyze verify {name}: {result.stderr.strip()}"
        users = run("systemd-sysusers", "--dry-run", f"--root={scratch}",
                    str(directory / "terraced.sysusers"))
        if users.returncode != 0 or "Creating user 'terrace'" not in users.stdout + users.stderr:
            yield f"systemd-sysusers: {users.stdout}{users.stderr}".strip()


def main():
    directory = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("systemd-analyze"):
        print("skipped: systemd-analyze is not installed (tools/setup installs it)")
        return EXIT_SKIPPED
    service = directory / "terraced.service"
    failures = [*setting_failures(settings_of(service)),
                *missing_settings(settings_of(directory / "terraced.socket"), REQUIRED_OF_SOCKET),
                *missing_settings(settings_of(directory / "terraced-metrics.socket"),
                                  REQUIRED_OF_METRICS),
                *exposure_failures(service),
                *verify_failures(directory)]
    print("\n".join(failures) or "the units hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
