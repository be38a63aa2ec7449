#!/usr/bin/env python3
# PROMISE: T17 everything that works, without io_uring
"""All functional tests where io_uring_setup answers EPERM, as in a container that forbids it, and
where it answers ENOSYS, as on a kernel that has none: contract, model and integration tests,
Python's among them. Left out are the tests that ask for io_uring by name.

usage: tests/faults/without_io_uring.py [--build BUILD] [--jobs 2] [--tests REGEX] [EPERM] [ENOSYS]
"""
import argparse
import ctypes
import errno
import os
import pathlib
import platform
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
IO_URING_SETUP = 425  # on every machine
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# What the contract's tests of a disk look at, so as not to expect a ring.
DENIED_VARIABLE = "TERRACE_TEST_IO_URING_DENIED"
BY_NAME = "/[Uu]ring|DiskWithoutIoUring"  # the latter denies it by itself


def deny_io_uring(error):
    """For this process and all that it starts."""
    rules = b"".join(struct.pack("<HBBI", *rule) for rule in (
        (0x20, 0, 0, 0),                      # load the number of the call
        (0x15, 0, 1, IO_URING_SETUP),
        (0x06, 0, 0, ERRNO | error),
        (0x06, 0, 0, ALLOW)))
    memory = ctypes.create_string_buffer(rules)

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_void_p)]
    program = Program(len(rules) // 8, ctypes.addressof(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if (libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) != 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def is_denied_there(error):
    """Whether a child sees it so."""
    probe = ("import ctypes, sys; c = ctypes.CDLL(None, use_errno=True); "
             f"c.syscall({IO_URING_SETUP}, 1, None); sys.exit(ctypes.get_errno() != {error})")
    return subprocess.run([sys.executable, "-c", probe], check=False,
                          preexec_fn=lambda: deny_io_uring(error)).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tests", default=".", help="of these only")
    parser.add_argument("errors", nargs="*", default=["EPERM", "ENOSYS"])
    arguments = parser.parse_args()
    failed = []
    for name in arguments.errors:
        error = getattr(errno, name)
        if not is_denied_there(error):
            print(f"skipped: no seccomp filter on {platform.machine()}")
            return 77
        done = subprocess.run(
            ["ctest", "--test-dir", arguments.build, "-j", str(arguments.jobs), "-L",
             "^(contract|model|integration)$", "-LE", "house", "-R", arguments.tests, "-E", BY_NAME,
             "--output-on-failure", "--no-tests=error"], check=False,
            env={**os.environ, DENIED_VARIABLE: "1"}, preexec_fn=lambda: deny_io_uring(error))
        if done.returncode != 0:
            failed.append(name)
    names = ", ".join(failed or arguments.errors)
    print(f"VERDICT: FAILED under {names}" if failed else
          f"VERDICT: OK: all functional tests without io_uring ({names})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
