#!/usr/bin/env python3
# PROMISE: T38 the functional suite in the unit
"""The functional suite inside the hardened unit: all integration tests, confined as terraced is.

A Debian 12 is booted by systemd-nspawn, today's packages are installed in it, and the integration
tests of a build, those of the Python package among them, run as a unit that has every setting of
the installed terraced.service's but those of its process (Type, Exec..., watchdog, restarts),
directories and ProtectProc: as the user terrace, without a capability, with its filter of system
calls and its view of the file system. Only localhost may be reached, as OPERATIONS.md has it for
Redis. What skips there because a test has to become another user, or to set aside huge pages, runs
once more as root with what that takes, and every other setting; and what skips even so, because it
mounts a drive that it fills or chooses the number of a process, once more with that. What is left
is named. Needs root and systemd-nspawn.

usage: tests/long/unit_suite.py [--build BUILD] [--tests REGEX] [--debs DEBS] [--base BASE]
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import debian_root
import units
import yesterday
from debian_root import Failure
from install import NAMES, expect

UNIT = "/lib/systemd/system/terraced.service"
# What is of the daemon's process, not of what it may do; the suite brings its own. And ProtectProc:
# tests look at their daemons in /proc, where such as cannot be dumped are root's.
OF_THE_PROCESS = re.compile(
    r"Type|NotifyAccess|Exec\w+|Timeout\w+|WatchdogSec|Restart\w*|FileDescriptorStoreMax|"
    r"(Runtime|State)Directory\w*|IPAddressAllow|ProtectProc")
PROGRAMS = ("daemon/terraced", "tools/terrace", "tests/integration_process_test",
            "tests/chaos/terrace-chaos")
ADMITTED = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
            "io_uring_setup", "io_uring_enter", "io_uring_register")
LOG = yesterday.ROOT / "build/logs/unit_suite.log"
SUITE_S = 3600
TOOLS = ("cmake", "redis-server", "redis-sentinel", "redis-tools", "openssl", "gcc", "libc6-dev",
         "python3-pytest", "python3-numpy", "python3-torch", "python3-zmq", "python3-msgpack",
         "python3-setuptools", "python3-wheel", "tmux", "man-db")
# What a test needs to be somebody else for a moment, and to set aside huge pages.
CAPABILITIES = ("CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_CHOWN CAP_FOWNER "
                "CAP_DAC_OVERRIDE CAP_KILL CAP_SYS_PTRACE")
ROOTS = ("User=root", "Group=root", "SystemCallFilter=@system-service",
         "SystemCallFilter=seccomp landlock_create_ruleset landlock_add_rule "
         "landlock_restrict_self")
AS_ROOT = (*ROOTS, CAPABILITIES)
# What a test needs to mount, and to write kernel.ns_last_pid. Of capabilities the last line holds.
AS_MOUNTER = (*ROOTS, "SystemCallFilter=@mount", f"{CAPABILITIES} CAP_SYS_ADMIN",
              "RestrictNamespaces=mnt", "ProtectProc=default")
NOT_AS_ROOT = re.compile(r"User|Group|SystemCallFilter|CapabilityBoundingSet|AmbientCapabilities|"
                         r"ProtectKernelTunables")
POOL = pathlib.Path("/proc/sys/vm/nr_hugepages")


def settings(unit):
    """name=value of the unit's [Service] section, but those of its process."""
    text = unit.split("\n[Service]\n")[1].split("\n[")[0].replace("\\\n", "")
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    kept = [line for line in lines if not OF_THE_PROCESS.fullmatch(line.split("=")[0])]
    expect(len(kept) > 30, f"{len(kept)} settings of {UNIT} are the suite's")
    return kept


def packages_of(build):
    """Debian's packages of the libraries that the programs are linked with."""
    found = set()
    for program in PROGRAMS:
        for path in re.findall(r"=> (/\S+)", debian_root.run("ldd", build / program).stdout):
            owner = debian_root.run("dpkg", "-S", pathlib.Path(path).resolve(), check=False).stdout
            found |= {owner.split(":")[0]} if owner else set()
    return sorted(found - set(NAMES))


def with_debians_python(build, testing):
    """nspawn's options that have the tests' Python be Debian's: the one that configured the build
    may lie where the guest has nothing."""
    cache = (build / "CMakeCache.txt").read_text()
    python = re.search(r"^_?Python3_EXECUTABLE:\w+=(\S+)", cache, re.MULTILINE)
    options = []
    for number, file in enumerate(build.rglob("CTestTestfile.cmake")):
        text = file.read_text()
        if python and python[1] in text:
            other = pathlib.Path(testing) / f"tests-{number}.cmake"
            other.write_text(text.replace(python[1], "/usr/bin/python3"))
            other.chmod(0o644)
            options += ["--bind-ro", f"{other}:{file}"]
    return options


def run_suite(machine, build, source, lines, chosen):
    """The suite's output, as a unit of these settings."""
    words = ["systemd-run", "--wait", "--pipe", "--collect", "--quiet",
             "--property=IPAddressAllow=localhost",
             f"--property=ReadWritePaths={build}/Testing",
             f"--property=WorkingDirectory={source}"]
    words += [f"--property={line}" for line in lines]
    words += ["--setenv=TMPDIR=/var/tmp", "--setenv=HOME=/var/tmp", "ctest", "--test-dir",
              str(build), *chosen, "-j", "3", "--timeout", "300", "--output-on-failure"]
    return machine.run(*words, check=False, timeout=SUITE_S)


def judge(done, name):
    """{number: name of each test that skipped}, and how many ran, of which none may fail."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    log = LOG.with_name(f"unit_suite.{name}.log")
    log.write_text(done.stdout)
    print(f"      all that the tests said: {log}")
    counts = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", done.stdout)
    expect(counts is not None, f"the suite ran: {done.stderr[-2000:]}")
    skipped = {int(number): test for number, test in re.findall(
        r"^\s*(\d+) - (\S+).*\(Skipped\)$", done.stdout, re.MULTILINE)}
    failed, count = int(counts[2]), int(counts[3])
    expect(failed == 0, f"{failed} of {count} failed")
    return skipped, count - len(skipped)


def run_all(machine, build, source, tests):
    """How many ran as they are and as root, and the names of those that did not."""
    lines = settings(machine.run("cat", UNIT).stdout)
    skipped, ran = judge(run_suite(machine, build, source, lines, [
        "--label-regex", "integration", "--tests-regex", tests]), "terrace")
    expect(ran > 0, f"{ran} tests ran, {len(skipped)} skipped")
    if not skipped:
        return ran, 0, []
    as_root = [line for line in lines if not NOT_AS_ROOT.fullmatch(line.split("=")[0])]
    ran_as_root = 0
    for name, more in (("root", AS_ROOT), ("mounter", AS_MOUNTER)):
        numbers = "0,0,0," + ",".join(map(str, skipped))
        skipped, also_ran = judge(run_suite(machine, build, source, [*as_root, *more],
                                            ["-I", numbers]), name)
        ran_as_root += also_ran
        if not skipped:
            break
    return ran, ran_as_root, sorted(skipped.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    debian_root.add_options(parser)
    parser.add_argument("--build", default=yesterday.ROOT / "build/release", type=pathlib.Path)
    parser.add_argument("--tests", default="^(integration|python)[.]",
                        help="names of tests, a pattern")
    arguments = parser.parse_args()
    debian_root.require("debootstrap", "systemd-nspawn", "nsenter", "dpkg-deb", "cpack", "help2man")
    build = arguments.build.resolve()
    try:
        debian_root.run("ctest", "--test-dir", build, "-N")  # writes the list of tests, once
        today = debian_root.packages(arguments)
        paths = [today[name] for name in NAMES]
        with debian_root.DebianRoot(include=units.INCLUDE, base=arguments.base) as root, \
                tempfile.TemporaryDirectory() as testing:
            pathlib.Path(testing).chmod(0o777)
            root.open()
            debian_root.install_dependencies(root, paths, NAMES)
            root.run("apt-get", "install", "-y", "--no-install-recommends", *TOOLS,
                     *packages_of(build))
            root.close()
            # systemd-nspawn's own filter knows neither Landlock nor, here and there, io_uring.
            options = ["--bind-ro", yesterday.ROOT, "--bind", f"{testing}:{build}/Testing",
                       "--bind", POOL, *with_debians_python(build, testing),
                       "--system-call-filter=" + " ".join(ADMITTED)]
            with units.Booted(root, options) as machine:
                machine.run("dpkg", "--install", *root.copy(*paths))
                machine.run("systemctl", "stop", "terraced.service", "terraced.socket")
                ran, as_root, left = run_all(machine, build, yesterday.ROOT, arguments.tests)
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    except subprocess.CalledProcessError as failure:
        print(f"VERDICT: FAILED: {failure}: {failure.stderr}")
        return 1
    for name in left:
        print(f"      not run: {name}")
    print(f"VERDICT: OK: {ran} tests pass inside the hardened unit, {as_root} more there as root, "
          f"{len(left)} skip")
    return 0


if __name__ == "__main__":
    sys.exit(main())
