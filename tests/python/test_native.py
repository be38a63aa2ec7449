"""The ctypes declarations agree with terrace.h, field by field and function by function."""
import ctypes
import os
import pathlib
import re
import subprocess

import pytest

from terrace import _native
from terrace.space import Space

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADERS = [INCLUDE / "terrace" / name for name in ("terrace_cache.h", "terrace_pages.h")]


def test_structs_lie_as_the_compiler_lays_them(tmp_path):
    lines = []
    for name, struct in _native.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    source = tmp_path / "sizes.c"
    source.write_text('#include <stdio.h>\n#include "terrace/terrace.h"\nint main(void) {\n'
                      + "\n".join(lines) + "\nreturn 0;\n}\n")
    subprocess.run(["cc", "-std=c99", "-I", INCLUDE, source, "-o", tmp_path / "sizes"], check=True)
    printed = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True,
                             check=True).stdout
    ours = []
    for name, struct in _native.STRUCTS.items():
        ours.append(f"{name} {ctypes.sizeof(struct)}")
        ours += [f"{name}.{field} {getattr(struct, field).offset}" for field, *_ in struct._fields_]
    assert printed.splitlines() == ours


def test_every_function_of_the_header_is_declared_with_as_many_arguments():
    text = "".join(re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
                   for header in HEADERS)
    declared = {name: [a for a in arguments.split(",") if a.strip() not in ("", "void")]
                for name, arguments in re.findall(r"TERRACE_API[^;]*?\b(terrace_\w+)\(([^;]*)\);",
                                                  text)}
    assert set(declared) == set(_native.FUNCTIONS)
    for name, arguments in declared.items():
        assert len(arguments) == len(_native.FUNCTIONS[name][1]), name


def test_every_struct_of_the_header_is_known():
    text = "".join(header.read_text() for header in HEADERS)
    structs = set(re.findall(r"typedef struct (terrace_\w+) \{", text))
    assert structs == set(_native.STRUCTS)


def test_defaults_are_those_of_the_header():
    assert _native.Request().priority == 255
    assert os.environ["TERRACE_LIBRARY"]
    assert Space.__dataclass_fields__["tp_size"].default == 1


def test_no_argument_is_cut_in_silence():
    checked = 0
    for name, (_, arguments) in _native.FUNCTIONS.items():
        taken = getattr(_native.lib, name).argtypes
        for index, (declared, kind) in enumerate(zip(arguments, taken), 1):
            if declared not in (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t):
                continue
            for wrong in (-1, 1 << 8 * ctypes.sizeof(declared)):
                with pytest.raises(OverflowError, match=f"{name}, argument {index}: {wrong} goes"):
                    kind.from_param(wrong)
                checked += 1
    assert checked > 100
