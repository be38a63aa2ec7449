#!/usr/bin/env python3
"""Corpora of the fuzz targets: one text file a target, of which a build makes a folder of inputs.

usage: tests/fuzz/corpus.py unpack FILE FOLDER      what a build does
       tests/fuzz/corpus.py seeds BUILD             makes the seeds anew, by the targets of BUILD
       tests/fuzz/corpus.py add FILE NAME INPUT     keeps an input, e.g. one that found something

A file has, for each input, a line `= NAME` and its bytes in base64. `seeds` replaces those of the
names it makes and leaves the others where they are.
"""
import base64
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
COLUMNS = 100


def read(path):
    inputs, name = {}, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("= "):
            name = line[2:]
            if not name or "/" in name or name in inputs:
                sys.exit(f"{path}:{number}: '{name}' is no name of a new input: give it another")
            inputs[name] = ""
        elif name is None:
            sys.exit(f"{path}:{number}: an input begins with '= NAME'")
        else:
            inputs[name] += line
    return {name: base64.b64decode(text, validate=True) for name, text in inputs.items()}


def write(path, inputs):
    lines = []
    for name, data in sorted(inputs.items()):
        lines += [f"= {name}", *textwrap.wrap(base64.b64encode(data).decode(), COLUMNS)]
    path.write_text("\n".join(lines) + "\n")


def unpack(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, data in read(path).items():
        (folder / name).write_bytes(data)


def make_seeds(build):
    targets = sorted(build.glob("tests/fuzz/fuzz_*"))
    if not targets:
        sys.exit(f"{build} has no fuzz targets: build the target tests_fuzz of preset asan there")
    for target in targets:
        path = CORPUS / (target.name.removeprefix("fuzz_") + ".txt")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([target], env={**os.environ, "TERRACE_FUZZ_SEEDS": folder}, check=True)
            seeds = {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}
        write(path, {**(read(path) if path.exists() else {}), **seeds})
        print(f"{path.name}: {len(seeds)} seeds, {sum(map(len, seeds.values()))} bytes")


def main():
    match sys.argv[1:]:
        case ["unpack", path, folder]:
            unpack(pathlib.Path(path), pathlib.Path(folder))
        case ["seeds", build]:
            make_seeds(pathlib.Path(build))
        case ["add", path, name, data]:
            path = pathlib.Path(path)
            write(path, {**read(path), name: pathlib.Path(data).read_bytes()})
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
