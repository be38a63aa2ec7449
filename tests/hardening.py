#!/usr/bin/env python3
"""usage: tests/hardening.py BUILD

Every program and library that BUILD installs carries the protections that CMakeLists.txt asks for,
read from the ELF files themselves. Of stack clash protection a file shows nothing: it is read from
the command that compiled each source of the product.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOMS = ("client", "cuda", "daemon", "include", "tiers", "tools")  # what is installed is made of
NOTHING_TO_CHECK = ("libterrace_cuda.so",)  # it calls nothing that _FORTIFY_SOURCE knows
COMPILED_WITH = ("-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=3")


def read(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def elf_files(root):
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def failures_of(path):
    headers = read("readelf", "-W", "--file-header", "--program-headers", "--dynamic", path)
    symbols = set(re.findall(r"\bUND +(\w+)", read("readelf", "-W", "--dyn-syms", path)))
    if not re.search(r"Type: +DYN ", headers):
        yield "is loaded at a fixed address (no PIE)"
    if "GNU_RELRO" not in headers:
        yield "leaves its relocations writable (no -z relro)"
    if not re.search(r"FLAGS_1.*\bNOW\b", headers):
        yield "resolves its functions late (no -z now)"
    stack = re.search(r"GNU_STACK.* (RWE|RW) ", headers)
    if not stack or stack[1] != "RW":
        yield "has a stack that can be executed"
    if "__stack_chk_fail" not in symbols:
        yield "has no stack protector"
    if path.name not in NOTHING_TO_CHECK and not any(n.endswith("_chk") for n in symbols):
        yield "calls nothing that _FORTIFY_SOURCE checks"
    if re.search(r"(RPATH|RUNPATH)", headers):
        yield "looks for libraries where it was built (RUNPATH)"
    if path.name.startswith("libterrace.so") and not re.search(r"FLAGS_1.*NODELETE", headers):
        yield "may be unloaded under a thread of its own (no -z nodelete)"
    if "X86-64" in headers and (naked := unmarked_functions(path)):
        yield f"has functions that an indirect call may not enter: {', '.join(naked[:5])}"


def unmarked_functions(path):
    """Functions of ours that others may call and that do not begin with endbr64."""
    ours = {int(address, 16): name for address, name in
            re.findall(r"^ *\d+: ([0-9a-f]+) +\d+ FUNC +(?:GLOBAL|WEAK) +\w+ +\d+ "
                       r"(main|terrace_\w+|_ZNK?7terrace\w+)$",
                       read("readelf", "-W", "--syms", path), re.M)}
    code = read("objdump", "-d", "--no-show-raw-insn", path)
    first = {int(address, 16): instruction for address, instruction in
             re.findall(r"^[0-9a-f]+ <[^>]+>:\n +([0-9a-f]+):\t(\S+)", code, re.M)}
    if not ours:
        return ["all of them, for none is named"]
    return [name for address, name in sorted(ours.items()) if first.get(address) != "endbr64"]


def compile_failures(build):
    root = pathlib.Path(__file__).resolve().parent.parent
    wanted = COMPILED_WITH
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if source.suffix == ".cu" or not source.is_relative_to(root):
            continue
        # Sources that are compiled together are included by one that lies in the build.
        home = build if source.is_relative_to(build) else root
        room = source.relative_to(home).parts[0]
        missing = [flag for flag in wanted if flag not in entry["command"].split()]
        if room in ROOMS and missing:
            yield f"{source.relative_to(root)} is compiled without {' '.join(missing)}"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failures = list(compile_failures(build))
    with tempfile.TemporaryDirectory() as scratch:
        read("cmake", "--install", build, "--prefix", scratch)
        files = list(elf_files(pathlib.Path(scratch)))
        for path in files:
            failures += [f"{path.relative_to(scratch)} {what}" for what in failures_of(path)]
    names = sorted(path.name for path in files)
    for program in ("terrace", "terraced"):
        if program not in names:
            failures.append(f"{program} is not installed")
    print("\n".join(failures) or f"{len(files)} files are hardened: {' '.join(names)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
