#!/usr/bin/env python3
# PROMISE: T38 the functional suite in the unit
"""The functional suite inside the hardened unit: all integration tests, confined as terraced is.

A Debian 12 is booted by systemd-nspawn, today's packages are installed in it, and the integration
tests of a build run as a unit that has every setting of the installed terraced.service's but those
of its process (Type, Exec..., watchdog, restarts), directories and ProtectProc: as the user
terrace, without a capability, with its filter of system calls and its view of the file system. Only
localhost may be reached, as OPERATIONS.md has it for Redis. Needs root and systemd-nspawn.

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
TOOLS = ("cmake", "redis-server", "redis-tools", "openssl", "gcc",
         "libc6-dev")


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


def run_suite(machine, build, source, tests):
    unit = machine.run("cat", UNIT).stdout
    words = ["systemd-run", "--wait", "--pipe", "--collect", "--quiet",
             "--property=IPAddressAllow=localhost",
             f"--property=ReadWritePaths={build}/Testing",
             f"--property=WorkingDirectory={source}"]
    words += [f"--property={line}" for line in settings(unit)]
    words += ["--setenv=TMPDIR=/var/tmp", "ctest", "--test-dir", str(build), "--label-regex",
              "integration", "--tests-regex", tests, "--exclude-regex", "^python[.]", "-j", "3",
              "--timeout", "300",
              "--output-on-failure"]
    done = machine.run(*words, check=False, timeout=SUITE_S)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.write_text(done.stdout)
    print(f"      all that the tests said: {LOG}")
    counts = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", done.stdout)
    expect(counts is not None, f"the suite ran: {done.stderr[-2000:]}")
    skipped = len(re.findall(r"\*\*\*Skipped", done.stdout))
    failed, count = int(counts[2]), int(counts[3])
    expect(count > skipped, f"{count} tests, {skipped} of them skipped")
    expect(failed == 0, f"{failed} of {count} failed")
    return count - skipped, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    debian_root.add_options(parser)
    parser.add_argument("--build", default=yesterday.ROOT / "build/release", type=pathlib.Path)
    parser.add_argument("--tests", default="^integration[.]", help="names of tests, a pattern")
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
                       "--system-call-filter=" + " ".join(ADMITTED)]
            with units.Booted(root, options) as machine:
                machine.run("dpkg", "--install", *root.copy(*paths))
                machine.run("systemctl", "stop", "terraced.service", "terraced.socket")
                ran, skipped = run_suite(machine, build, yesterday.ROOT, arguments.tests)
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    except subprocess.CalledProcessError as failure:
        print(f"VERDICT: FAILED: {failure}: {failure.stderr}")
        return 1
    print(f"VERDICT: OK: {ran} integration tests pass inside the hardened unit, {skipped} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
