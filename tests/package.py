#!/usr/bin/env python3
"""usage: tests/package.py BUILD EXAMPLE

What BUILD installs works wherever it is put: with `cmake --install --prefix`, under a DESTDIR, and
moved after that. There EXAMPLE is built by a Makefile's means (pkg-config, cc -std=c99) and by
CMake's (find_package), and starts; units name the programs and the configuration of their prefix,
which exist; shells find the command's completions; and no file names a prefix that is not its own.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.25)
project(example C)
find_package(terrace {version} REQUIRED)
add_executable(example "{example}")
target_link_libraries(example terrace::libterrace)
"""
COMPONENTS = ("libterrace", "development", "daemon", "tools")
# Texts in which another prefix than the file's own would be a defect.
TEXTS = {".pc", ".cmake", ".service", ".socket", ".conf", ".toml"}


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(build, prefix, destdir=None):
    for component in COMPONENTS:
        run(["cmake", "--install", build, "--prefix", prefix, "--component", component],
            env={**os.environ, **({"DESTDIR": str(destdir)} if destdir else {})})


def expect_usage(program, library_directory):
    done = subprocess.run([program], capture_output=True, text=True, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": str(library_directory)})
    if done.returncode != 2 or "usage:" not in done.stderr:
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr}")


def expect_builds(prefix, example, scratch):
    """A program is built against `prefix` by both means, of the version that the programs say."""
    library = next(prefix.rglob("libterrace.so")).parent
    version = re.match(r"terraced ([\d.]+) \(\w+(-dirty)?\)\n$",
                       run([prefix / "bin" / "terraced", "--version"]))[1]
    search = {**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig")}
    if (told := run(["pkg-config", "--modversion", "terrace"], env=search).strip()) != version:
        raise SystemExit(f"terrace.pc says version {told}, terraced --version says {version}")
    flags = run(["pkg-config", "--cflags", "--libs", "terrace"], env=search).split()
    run(["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", example, *flags,
         "-o", scratch / "by_pkg_config"])
    expect_usage(scratch / "by_pkg_config", library)

    (scratch / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(example=example, version=version))
    run(["cmake", "-S", scratch, "-B", scratch / "out", f"-DCMAKE_PREFIX_PATH={prefix}"])
    run(["cmake", "--build", scratch / "out"])
    expect_usage(scratch / "out" / "example", library)


def expect_units(root, prefix, config):
    """Installed under `root` (a DESTDIR, or empty), units name what there is under `prefix`."""
    unit = pathlib.Path(f"{root}{prefix}/lib/systemd/system/terraced.service").read_text()
    command = re.search(r"^ExecStart=(\S+) --config (\S+)$", unit, re.M)
    if command.groups() != (f"{prefix}/bin/terraced", f"{config}/terraced.toml"):
        raise SystemExit(f"under {prefix} the unit starts {command[0]}")
    for path in command.groups():
        if not pathlib.Path(f"{root}{path}").is_file():
            raise SystemExit(f"the unit names {path}, which is not installed")


def expect_completions(root, prefix):
    """Shells find what completes the command, and bash can read it."""
    share = pathlib.Path(f"{root}{prefix}/share")
    for name in ("bash-completion/completions/terrace", "zsh/site-functions/_terrace",
                 "fish/vendor_completions.d/terrace.fish"):
        if not (share / name).is_file():
            raise SystemExit(f"{share / name} is not installed")
    run(["bash", "-n", share / "bash-completion/completions/terrace"])


def expect_no_other_prefix(root, others):
    for path in root.rglob("*"):
        if path.suffix in TEXTS and path.is_file():
            found = [other for other in others if str(other) in path.read_text()]
            if found:
                raise SystemExit(f"{path} names {', '.join(map(str, found))}")


def main():
    build, example = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        prefix = scratch / "prefix"
        install(build, prefix)
        expect_units("", prefix, prefix / "etc/terrace")
        expect_completions("", prefix)
        expect_no_other_prefix(prefix, ["/usr/local"])
        moved = scratch / "moved"
        shutil.move(prefix, moved)
        (scratch / "by_prefix").mkdir()
        expect_builds(moved, example, scratch / "by_prefix")

        staged = scratch / "staged"
        install(build, "/opt/terrace", staged)
        expect_units(staged, "/opt/terrace", "/etc/opt/terrace/terrace")
        expect_completions(staged, "/opt/terrace")
        expect_no_other_prefix(staged, ["/usr/local", staged, prefix])
        (scratch / "by_destdir").mkdir()
        expect_builds(staged / "opt/terrace", example, scratch / "by_destdir")
    print("built and started by pkg-config and by find_package, from a prefix that was moved and "
          "from a DESTDIR; units name their prefix")


if __name__ == "__main__":
    main()
