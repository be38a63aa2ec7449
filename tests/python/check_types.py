#!/usr/bin/env python3
"""usage: tests/python/check_types.py

Checks the types of the Python package with mypy, as client/python/pyproject.toml says. Exit status
77, ctest's "skipped", where there is no mypy.
"""
import pathlib
import shutil
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"


def main():
    mypy = shutil.which("mypy")
    if mypy is None:
        print("skipped: no mypy here: run tools/setup")
        return 77
    return subprocess.run([mypy, "--cache-dir", "/dev/null"], cwd=PACKAGE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
