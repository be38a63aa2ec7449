"""Self-test of tests/tidy.py: violations planted one at a time in a small clean tree.

Every case says where the finding must be; one more finding, or one less, is a failure, and so is a
rule without a case.
"""
import pathlib
import shutil
import tempfile

import tidy

HEADER = "#pragma once\n"


def function_of(lines, head="int F() {\n"):
    """A C++ function of that many lines."""
    return head + "  F();\n" * (lines - 1 - head.count("\n")) + "}\n"


def python_function_of(lines):
    return "def f():\n" + "    f()\n" * (lines - 1)


CLEAN = {
    "README.md": "Read docs/ARCHITECTURE.md and docs/PROTOCOL.md.\n",
    "docs/ARCHITECTURE.md": "The rooms.\n",
    "docs/PROTOCOL.md": "x" * 200 + "\n",
    "include/terrace/units.h": HEADER + "#include <cstdint>\n",
    "include/src/units.cc": '#include <xxhash.h>\n\n#include "terrace/units.h"\n',
    "cuda/abi/device.h": HEADER + '#include "terrace/units.h"\n',
    "tiers/extent.h": HEADER + "#include <cstdint>\n",
    "tiers/redis/redis_tier.h": HEADER + "#include <asio.hpp>\n",
    "daemon/block/block.h": HEADER + "#include <cstdint>\n\nstruct Block {\n  int a;\n};\n"
                            "class Store;\ninline constexpr int kBlockMax = 1;\n",
    "daemon/block/block.cc": '#include "daemon/block/block.h"\n\n'
                             "Block F() { return {kBlockMax}; }\n",
    "daemon/index/near.cc": "// Block\nstruct A {\n  enum class Block { kBlockMax };\n"
                            "  Block b;\n};\n",
    "daemon/store/store.h": HEADER + "#include <spdlog/spdlog.h>\n\n"
                               '#include "tiers/redis/redis_tier.h"\n',
    "client/client.h": HEADER + '#include "cuda/abi/device.h"\n',
    "tools/replay/replay.cc": '#include "client/client.h"\n#include "daemon/block/block.h"\n',
    "tests/unit/a_test.cc": '#include "client/client.h"\n#include "daemon/store/store.h"\n',
    "CMakeLists.txt": "terrace_room(daemon/policy USES daemon/policy/eviction)\n"
                      + "".join(f"terrace_room({room})\n" for room in (
                          "cuda", "cuda/abi", "daemon", "daemon/block", "daemon/index",
                          "daemon/policy/eviction", "tiers", "tiers/arena", "tiers/redis",
                          "tools")),
    "client/CMakeLists.txt": "terrace_room_uses(client USES cuda/abi)\n",
    "daemon/CMakeLists.txt": "terrace_room(daemon/store\n  SOURCES\n    store.cc\n"
                             "  USES daemon/block tiers/redis\n  LINKS PRIVATE tiers)\n",
    "tiers/CMakeLists.txt": "terrace_room(tiers/nvme USES tiers/redis)\n",
    "tools/CMakeLists.txt": "terrace_room(tools/replay USES client daemon/block)\n",
    # What looks like a violation and is none.
    "tiers/near.cc": (
        function_of(70) + "\nstruct S {\n  S() : a_{1}, b_(2) {\n    F();\n  }\n\n"
        + "  int a_;\n  int b_;\n\n" * 30 + "};\n\n"
        + 'const char* const kText = R"(\n' + "{ using namespace std;\n" * 90 + ')";\n'
        + "constexpr int kTable[] = {\n" + "    1,  //\n" * 90 + "};\n"),
    "tests/near.py": python_function_of(70),
    **{f"tests/forty/{number}.cc": "int a;\n" for number in range(40)},
}

# (rule, path, line of the finding, content)
CASES = [
    ("columns", "tiers/a.cc", 2, "\n//" + "x" * 99 + "\n"),
    ("columns", "tests/CMakeLists.txt", 1, "#" + "x" * 100 + "\n"),
    ("columns", "tools/verb", 2, "#!/bin/sh\n#" + "x" * 100 + "\n"),
    ("file-lines", "tiers/a.cc", 701, "//\n" * 701),
    ("folder-files", "tests/forty/last.cc", 1, "int a;\n"),
    ("function-lines", "tiers/a.cc", 1, function_of(71)),
    ("function-lines", "tiers/a.cc", 3, "namespace a {\n\n" + function_of(71) + "}\n"),
    ("function-lines", "tiers/a.cc", 3,
     "struct S {\n public:\n" + function_of(71, "  S() : a_{1}, b_(2) {\n") + "};\n"),
    ("function-lines", "tiers/a.cc", 1, function_of(71, "template <class T>\nvoid F(T = {}) {\n")),
    ("function-lines", "tiers/a.cc", 1, function_of(71, "bool operator==(A a, B b) {\n")),
    ("function-lines", "tiers/a.cc", 2, "constexpr int kA{1};\n" + function_of(71)),
    ("function-lines", "tiers/a.cc", 3,
     "class A : public B<int> {\n private:\n" + function_of(71, "  auto F() -> X<A> {\n") + "};\n"),
    ("function-lines", "tests/a.py", 1, python_function_of(71)),
    ("include-direction", "tiers/a.h", 2, HEADER + '#include "daemon/block/block.h"\n'),
    ("include-direction", "client/a.cc", 1, '#include "tiers/extent.h"\n'),
    ("include-direction", "client/a.cc", 1, '#include "daemon/block/block.h"\n'),
    ("include-direction", "daemon/a.cc", 1, '#include "client/client.h"\n'),
    ("include-direction", "cuda/a.cc", 1, '#include "tiers/extent.h"\n'),
    ("include-direction", "include/src/a.cc", 1, '#include "tiers/extent.h"\n'),
    ("include-direction", "tools/a.cc", 1, '#include "daemon/store/store.h"\n'),
    ("include-direction", "daemon/a.cc", 1, '#include "../elsewhere/x.h"\n'),
    ("include-direction", "elsewhere/a.cc", 1, "int a;\n"),
    ("include-direction", "daemon/store/a.cc", 1, '#include "tiers/extent.h"\n'),
    ("include-direction", "daemon/block/a.cc", 1, '#include "daemon/store/store.h"\n'),
    ("named-includes", "daemon/store/a.cc", 2, "\nBlock F();\n"),
    ("named-includes", "daemon/store/a.cc", 1, "static int a = kBlockMax;\n"),
    ("named-includes", "tiers/a.cc", 1, "std::vector<int> a;\n"),
    ("room-cycle", "tiers/disk/CMakeLists.txt", 2,
     "terrace_room(tiers/disk USES tiers/hbm)\nterrace_room(tiers/hbm USES tiers/disk)\n"),
    ("pure-core", "daemon/policy/eviction/a.cc", 1, "#include <asio.hpp>\n"),
    ("pure-core", "daemon/index/radix_index.cc", 1, "#include <rocksdb/db.h>\n"),
    ("pure-core", "daemon/block/lease_table.cc", 1, "#include <cuda_runtime.h>\n"),
    ("pure-core", "daemon/policy/admission.cc", 1, "#include <spdlog/spdlog.h>\n"),
    ("pure-core", "tiers/arena/slot_allocator.cc", 1, "#include <liburing.h>\n"),
    ("pure-core", "tiers/nvme/header_table.cc", 1, '#include "tiers/redis/redis_tier.h"\n'),
    ("contract-includes", "include/terrace/a.h", 2, HEADER + "#include <fmt/core.h>\n"),
    ("contract-includes", "include/terrace/a.h", 2, HEADER + "#include <xxhash.h>\n"),
    ("contract-includes", "include/src/a.cc", 1, "#include <zstd.h>\n"),
    ("hash-calls", "include/src/a.cc", 1, "uint64_t F() { return XXH3_64bits(nullptr, 0); }\n"),
    ("hash-calls", "cuda/a.cc", 1, "#include <xxh_x86dispatch.h>\n"),
    ("logging", "client/a.cc", 1, "#include <spdlog/spdlog.h>\n"),
    *(("words", "tiers/a.cc", 1, f"// {word}: later\n") for word in tidy.BANNED_WORDS),
    ("words", "tests/a.py", 1, f"# {tidy.BANNED_WORDS[0]}\n"),
    ("namespace-std", "tools/a.cc", 1, "using namespace std;\n"),
    ("client-check", "client/a.cc", 1, 'void F() { TERRACE_CHECK(true, ""); }\n'),
    ("pragma-once", "tiers/a.h", 1, "#include <cstdint>\n"),
    ("trailing-whitespace", "docs/PROTOCOL.md", 2, "a\nb \n"),
    ("trailing-whitespace", "tiers/a.cc", 1, "\t\n"),
    ("trailing-whitespace", "systemd/a.service", 1, "[Unit]\r\n"),
    ("final-newline", "tiers/a.cc", 2, "//\n//"),
    *(("file-names", f"tiers/my_{name}s.cc", 1, "//\n") for name in tidy.BANNED_NAMES),
    ("file-names", "tests/Common/a.cc", 1, "//\n"),
    ("binary", "tests/golden.bin", 1, "a\0b\n"),
    ("left-over", "tests/a.cc.orig", 1, "int a;\n"),
    ("file-bytes", "tests/golden.txt", 1, "0123456\n" * (1 << 17) + "\n"),
    ("docs", "docs/SECRETS.md", 1, "Nobody links here.\n"),
]
FORMAT_CASE = ("format", "tiers/a.cc", 1, "int  a ;\n")
HEADER_CASES = [
    ("compiles-alone", "tiers/a.h", 1, HEADER + "inline std::string a;\n"),
    ("compiles-alone", "tiers/extent.h", 1, HEADER + "inline uint32_t a;\n"),
    ("compiles-alone", "include/a.h", 1, HEADER + "inline std::string a;\n"),
]


def write(root, path, content):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, newline="")


def planted(root, case, look):
    """What `look` finds with the case planted in a clean tree, against what it must find."""
    rule, path, line, content = case
    before = CLEAN.get(path)
    write(root, path, content)
    found = [(f.rule, f.path, f.line) for f in look(tidy.Tree(root))]
    (root / path).unlink()
    if before is not None:
        write(root, path, before)
    if found == [(rule, path, line)]:
        return []
    return [f"planted {rule} at {path}:{line}, found {found or 'nothing'}"]


def rules_by_name():
    source = pathlib.Path(tidy.__file__).read_text()
    return set(tidy.re.findall(r'Finding\([^"]*?"([a-z-]+)"', source)) | {
        "namespace-std", "client-check"}


def header_failures(root):
    def look(tree):
        return list(tidy.check_headers(tree, "all"))

    for path in ("tiers/redis/redis_tier.h", "daemon/store/store.h"):  # need more than a compiler
        (root / path).unlink()
    failures = [f"clean headers: {f}" for f in look(tidy.Tree(root))]
    for case in HEADER_CASES:
        failures += planted(root, case, look)
    public = HEADER_CASES[-1]
    failures += planted(root, public, lambda tree: list(tidy.check_headers(tree, "public")))
    return failures


def run():
    skipped = []
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for path, content in CLEAN.items():
            write(root, path, content)
        failures = [f"clean tree: {f}" for f in tidy.run_rules(tidy.Tree(root))]
        for case in CASES:
            failures += planted(root, case, tidy.run_rules)
        if shutil.which("clang-format"):
            failures += planted(root, FORMAT_CASE, lambda tree: [
                f for f in tidy.check_format(tree) if f.path == FORMAT_CASE[1]])
        else:
            skipped.append("skipped: clang-format is not installed; all other rules are tested")
        failures += header_failures(root)
    tested = {case[0] for case in [*CASES, FORMAT_CASE, *HEADER_CASES]}
    failures += [f"a rule without a case, or a case without a rule: {rule}"
                 for rule in sorted(rules_by_name() ^ tested)]
    print("\n".join(failures + skipped))
    print(f"{len(CASES) + 1 + len(HEADER_CASES)} violations planted, {len(failures)} failures")
    return 1 if failures else tidy.EXIT_SKIPPED if skipped else 0
