#!/usr/bin/env python3
"""Inputs that are kept of the fuzz targets: one text file a target in tests/fuzz/corpus.

usage: tests/fuzz/corpus.py unpack FOLDER            what a build does: a folder of inputs a target
       tests/fuzz/corpus.py add TARGET NAME INPUT    keeps an input, e.g. one that found something
       tests/fuzz/corpus.py keep FOLDER              in place of those that fuzzing found, the
                                                     smallest of FOLDER/TARGET, up to KEPT_BYTES_MAX

A file has, for each input, a line `= NAME` and its bytes in base64. Names that begin with a digit
are those of `keep`. What a target's own encoders make (Seeds) is not in it: each program makes it.
"""
import base64
import hashlib
import pathlib
import sys
import textwrap

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
COLUMNS = 100
KEPT_BYTES_MAX = 8 << 10  # of a target, in base64


def read(path):
    inputs, name = {}, None
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
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
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def unpack_one(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, data in read(path).items():
        (folder / name).write_bytes(data)


def unpack(folder):
    for path in sorted(CORPUS.glob("*.txt")):
        unpack_one(path, folder / path.stem)


def keep(folder):
    for found in sorted(p for p in folder.iterdir() if p.is_dir()):
        path = CORPUS / f"{found.name}.txt"
        inputs = {name: data for name, data in read(path).items() if not name[0].isdigit()}
        room, kept = KEPT_BYTES_MAX, 0
        for data in sorted((p.read_bytes() for p in found.iterdir()), key=lambda d: (len(d), d)):
            room -= 4 * len(data) // 3 + 12
            if room < 0:
                break
            kept += 1
            inputs[f"{kept:03}_{hashlib.sha256(data).hexdigest()[:6]}"] = data
        write(path, inputs)
        print(f"{path.name}: {len(inputs)} inputs, {path.stat().st_size} bytes")


def main():
    match sys.argv[1:]:
        case ["unpack", folder]:
            unpack(pathlib.Path(folder))
        case ["keep", folder]:
            keep(pathlib.Path(folder))
        case ["add", target, name, data]:
            path = CORPUS / f"{target}.txt"
            write(path, {**read(path), name: pathlib.Path(data).read_bytes()})
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
