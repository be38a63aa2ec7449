#!/usr/bin/env python3
"""usage: tests/package.py BUILD EXAMPLE

What BUILD installs of libterrace is enough for others: EXAMPLE is built against it by a Makefile's
means (pkg-config, cc -std=c99) and by CMake's (find_package), and both start.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.25)
project(example C)
find_package(terrace 0.1 REQUIRED)
add_executable(example "{example}")
target_link_libraries(example terrace::libterrace)
"""


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect_usage(program, library_directory):
    done = subprocess.run([program], capture_output=True, text=True, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": str(library_directory)})
    if done.returncode != 2 or "usage:" not in done.stderr:
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr}")


def main():
    build, example = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        prefix = scratch / "prefix"
        run(["cmake", "--install", build, "--prefix", prefix, "--component", "libterrace"])
        library = next(prefix.rglob("libterrace.so")).parent

        # The .pc file names the prefix the build was configured with; --define-prefix: where it is.
        flags = run(["pkg-config", "--define-prefix", "--cflags", "--libs", "terrace"],
                    env={**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig")}).split()
        run(["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", example, *flags,
             "-o", scratch / "by_pkg_config"])
        expect_usage(scratch / "by_pkg_config", library)

        (scratch / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(example=example))
        run(["cmake", "-S", scratch, "-B", scratch / "out", f"-DCMAKE_PREFIX_PATH={prefix}"])
        run(["cmake", "--build", scratch / "out"])
        expect_usage(scratch / "out" / "example", library)
    print("built and started by pkg-config and by find_package")


if __name__ == "__main__":
    main()
