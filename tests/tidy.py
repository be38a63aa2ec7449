#!/usr/bin/env python3
"""The house rules that a machine can check; docs and reviews keep the rest.

usage: tests/tidy.py [--root DIR] [--headers public|all | --self-test]

Without an option: every rule below, and clang-format. Each finding names file:line, what is there,
the limit and the remedy. Exit status 0: clean; 1: findings; 77: clean as far as looked, but
something needed for a look is not installed.
  --headers    compile alone each header of include/; with all, each that no source includes
               first, too
  --self-test  plant one violation of every rule and see that each is found (tests/tidy_cases.py)
"""
import argparse
import ast
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
FILE_BYTES_MAX = 1 << 20
FOLDER_FILES_MAX = 40
EXIT_SKIPPED = 77

CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
HEADER_SUFFIXES = {".h", ".cuh"}
CODE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake", ".service", ".socket"}
UNTRACKED_DIRECTORIES = {".git", ".cache", "build", "shared", "__pycache__"}

BANNED_WORDS = ("TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK")
BANNED_NAMES = ("util", "helper", "common", "misc")

# Who may include whom is said where each room's library is made (include/rooms.cmake): a folder may
# include itself, include/ and the rooms it USES. Tests may include all.
ROOM_DECLARATION = re.compile(r"^terrace_room(?:_uses)?\((\S+?)(\s[^)]*)?\)", re.M)
ROOM_KEYWORDS = {"SOURCES", "USES", "LINKS"}
ROOMS_THAT_LOG = {"daemon", "tools", "tests"}
PURE_CORE = re.compile(
    r"(include/.*|tiers/(extent|arena/slot_allocator|nvme/header_table)\..*|daemon/index/.*|"
    r"daemon/policy/eviction/.*|daemon/(block/(block|lease_table)|policy/admission)\..*)$")
IMPURE = re.compile(
    r"(asio(/|\.hpp)|boost/asio|spdlog/|liburing|rocksdb/|cuda/|"
    r"(cuda|cuda_runtime|cuda_runtime_api|driver_types|cuda_fp16|cuda_bf16)\.h)")
# What the sources of include/ may use besides the standard library: hashes, POSIX files, threads.
INCLUDE_SOURCES_MAY = re.compile(
    r"(xxhash\.h|xxh_x86dispatch\.h|openssl/.*|[a-z]*intrin\.h|arm_neon\.h|"
    r"fcntl\.h|pthread\.h|unistd\.h|sys/stat\.h)$")
# What stands at the beginning of a line in a header, and is more than a forward declaration.
DECLARED_AT_NAMESPACE = re.compile(
    r"^(?:(?:class|struct|enum(?:\s+class)?)\s+(?:\[\[\w+\]\]\s+)?([A-Z]\w+)(?=[^;]*?[{:])|"
    r"using\s+([A-Z]\w+)\s*=|inline\s+constexpr\s[^=;{(]*?(k[A-Z]\w+)\s*[={\[])", re.M)
NAMED = re.compile(r"\bstd::(\w+)|(?<![\w.>:])((?:[A-Z]|k[A-Z])\w+)\b")
# What sources use most of the standard library. Much else comes with these.
STANDARD_NAMES = {name: header for header, names in {
    "algorithm": "sort min max clamp find_if any_of all_of fill copy", "array": "array",
    "atomic": "atomic", "bit": "bit_cast bit_ceil bit_width countr_zero has_single_bit popcount",
    "charconv": "from_chars", "chrono": "chrono", "cmath": "sqrt log exp pow",
    "condition_variable": "condition_variable", "cstddef": "byte", "cstdlib": "getenv",
    "cstring": "memcpy memcmp strerror", "deque": "deque", "filesystem": "filesystem",
    "fstream": "ifstream ofstream", "functional": "function hash", "future": "future promise",
    "iomanip": "setprecision", "iostream": "cout cerr", "limits": "numeric_limits", "list": "list",
    "map": "map multimap", "memory": "unique_ptr make_unique shared_ptr make_shared",
    "mutex": "mutex lock_guard unique_lock", "numeric": "accumulate",
    "optional": "optional nullopt", "random": "mt19937 mt19937_64", "set": "set", "span": "span",
    "sstream": "ostringstream istringstream", "string": "string to_string",
    "string_view": "string_view", "system_error": "system_error", "thread": "thread",
    "tuple": "tuple tie", "unordered_map": "unordered_map", "unordered_set": "unordered_set",
    "utility": "move exchange pair swap", "variant": "variant visit", "vector": "vector",
}.items() for name in names.split()}
HASH_WRAPPER = "include/src/xxh3.h"
STANDARD_HEADERS = set("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono
cinttypes climits clocale cmath compare complex concepts condition_variable coroutine csetjmp
csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime deque exception execution filesystem
format forward_list fstream functional future initializer_list iomanip ios iosfwd iostream istream
iterator latch limits list locale map memory memory_resource mutex new numbers numeric optional
ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex
source_location span sstream stack stdexcept stop_token streambuf string string_view syncstream
system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
valarray variant vector version errno.h limits.h stdbool.h stddef.h stdint.h
""".split())

INCLUDE_ROOTS = ("include/", "", "tools/", "tests/")
INCLUDE_LINE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


@dataclasses.dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    what: str
    remedy: str

    def __str__(self):
        return f"{self.path}:{self.line}: [{self.rule}] {self.what}. {self.remedy}"


class Tree:
    """The files under a root that belong to the project, each read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.paths = sorted(p for p in self._list() if (self.root / p).is_file()
                            and not (self.root / p).is_symlink())
        self.bytes = {p: (self.root / p).read_bytes() for p in self.paths}
        self.binaries = {p for p in self.paths if b"\0" in self.bytes[p][:8192]}
        self.text = {p: b.decode("utf-8", "replace") for p, b in self.bytes.items()
                     if p not in self.binaries}
        self.lines = {p: t.split("\n") for p, t in self.text.items()}
        self.cpp = [p for p in self.text if pathlib.PurePath(p).suffix in CPP_SUFFIXES]
        self.headers = [p for p in self.cpp if pathlib.PurePath(p).suffix in HEADER_SUFFIXES]
        self.code = [p for p in self.text if self._is_code(p)]
        self._includes = {}

    def _list(self):
        if (self.root / ".git").exists():
            listing = subprocess.run(
                ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others",
                 "--exclude-standard"], capture_output=True, check=False)
            if listing.returncode == 0:
                return {p for p in listing.stdout.decode().split("\0") if p}
        found = set()
        for directory, names, files in os.walk(self.root):
            names[:] = [n for n in names if n not in UNTRACKED_DIRECTORIES]
            found |= {os.path.relpath(os.path.join(directory, f), self.root) for f in files}
        return found

    def _is_code(self, path):
        return (pathlib.PurePath(path).suffix in CODE_SUFFIXES
                or pathlib.PurePath(path).name == "CMakeLists.txt"
                or self.text[path].startswith("#!"))

    def includes(self, path):
        """(line, name, project path or None) of each #include."""
        if path not in self._includes:
            self._includes[path] = [
                (number, match[2], self._resolve(path, match[1], match[2]))
                for number, line in enumerate(self.lines[path], 1)
                if (match := INCLUDE_LINE.match(line))]
        return self._includes[path]

    def _resolve(self, path, quote, name):
        beside = str(pathlib.PurePath(path).parent / name)
        candidates = [root + name for root in INCLUDE_ROOTS] + ([beside] if quote == '"' else [])
        return next((c for c in candidates if c in self.text), None)

    def closure(self, path):
        """Project files reached from `path`, itself first, in the order they are met."""
        seen = {path: None}
        for current in (queue := [path]):
            for _, _, target in self.includes(current):
                if target and target not in seen:
                    seen[target] = None
                    queue.append(target)
        return list(seen)


def room_of(path):
    return path.split("/", 1)[0]


def check_columns(tree):
    for path in tree.code:
        for number, line in enumerate(tree.lines[path], 1):
            if len(line) > COLUMNS_MAX:
                yield Finding(path, number, "columns",
                              f"{len(line)} columns, the limit is {COLUMNS_MAX}", "Break the line")


def check_file_lines(tree):
    for path in tree.code:
        count = len(tree.text[path].splitlines())
        if count > FILE_LINES_MAX:
            yield Finding(path, count, "file-lines",
                          f"{count} lines, the limit is {FILE_LINES_MAX}",
                          "Two rooms under one roof: split the file by responsibility")


def check_folder_files(tree):
    folders = {}
    for path in tree.cpp:
        folders.setdefault(str(pathlib.PurePath(path).parent), []).append(path)
    for folder, paths in folders.items():
        if len(paths) > FOLDER_FILES_MAX:
            yield Finding(paths[FOLDER_FILES_MAX], 1, "folder-files",
                          f"{len(paths)} headers and sources in {folder}/, the limit is "
                          f"{FOLDER_FILES_MAX}", "Make rooms of it")


def check_function_lines(tree):
    for path in tree.cpp:
        yield from too_long(path, cpp_functions(tree.text[path]))
    for path in tree.text:
        if path.endswith(".py"):
            yield from too_long(path, python_functions(tree.text[path]))


def too_long(path, functions):
    for first, last in functions:
        if (count := last - first + 1) > FUNCTION_LINES_MAX:
            yield Finding(path, first, "function-lines",
                          f"a function of {count} lines, the limit is {FUNCTION_LINES_MAX}",
                          "Name its steps and make each a function")


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno


BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"|'
    r"\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|"
    r"^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
DECORATION = re.compile(r"(alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)|\[\[.*?\]\]", re.S)


def blank_out(text):
    """Comments, literals and directives as spaces; line breaks stay where they are."""
    return BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def drop_template_heads(head):
    """`template <...>` gone, so that the `class` in it opens nothing."""
    while match := re.search(r"\btemplate\s*<", head):
        depth, end = 1, match.end()
        while depth and end < len(head):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[:match.start()] + head[end:]
    return head


def opens(head):
    """What the brace after `head`, outside of any function, opens."""
    head = DECORATION.sub(" ", drop_template_heads(head)).strip()
    head = re.sub(r"\boperator\s*(\(\)|[^\s\w(]+)", "operator_", head)
    outside_parentheses = head
    while (inner := re.sub(r"\([^()]*\)", "", outside_parentheses)) != outside_parentheses:
        outside_parentheses = inner
    if "(" not in head:
        return "container" if CONTAINER.search(head) else "initialiser"
    if re.search(r"=(?!=)", outside_parentheses):
        return "initialiser"
    if re.search(r"\)[^:]*(?<!:):(?!:)", head) and re.search(r"[\w>]$", head):
        return "member initialiser"
    return "function"


def cpp_functions(text):
    """(first, last) line of every function body's definition, outermost only."""
    text = blank_out(text)
    head, position = 0, 0
    parentheses = 0
    while position < len(text):
        char = text[position]
        if char in "()":
            parentheses += 1 if char == "(" else -1
        elif char == ";" and parentheses <= 0:
            head = position + 1
        elif char == "}" and parentheses <= 0:
            head = position + 1
        elif char == ":" and text[head:position].strip() in ("public", "private", "protected"):
            head = position + 1
        elif char == "{":
            kind = "initialiser" if parentheses > 0 else opens(text[head:position])
            if kind == "container":
                head = position + 1
            else:
                end = matching_brace(text, position)
                if kind == "function":
                    lead = len(text[head:position]) - len(text[head:position].lstrip())
                    yield text.count("\n", 0, head + lead) + 1, text.count("\n", 0, end) + 1
                    head = end + 1
                position = end
        position += 1


def matching_brace(text, opening):
    depth = 0
    for match in re.finditer(r"[{}]", text[opening:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return opening + match.start()
    return len(text)


def rooms_of(tree):
    """Of each declared room: its CMakeLists.txt, the line there, and the rooms it uses."""
    rooms = {}
    for path in (p for p in tree.text if p.endswith("CMakeLists.txt")):
        for match in ROOM_DECLARATION.finditer(tree.text[path]):
            uses, keyword = [], None
            for word in (match[2] or "").split():
                if word in ROOM_KEYWORDS:
                    keyword = word
                elif keyword == "USES":
                    uses.append(word)
            line = tree.text[path].count("\n", 0, match.start()) + 1
            rooms[match[1]] = (path, line, uses)
    return rooms


def check_room_cycles(tree):
    rooms, done = rooms_of(tree), set()

    def walk(room, way):
        if room in way:
            path, line, _ = rooms[way[-1]]
            circle = " uses ".join([*way[way.index(room):], room])
            yield Finding(path, line, "room-cycle", circle,
                          "Move what both need to a room below them")
        elif room not in done:
            for used in rooms.get(room, ("", 0, []))[2]:
                yield from walk(used, [*way, room])
            done.add(room)

    for room in rooms:
        yield from walk(room, [])


def check_include_directions(tree):
    rooms = rooms_of(tree)
    for path in tree.cpp:
        folder = str(pathlib.PurePath(path).parent)
        is_free = room_of(path) == "tests"
        if not is_free and room_of(path) != "include" and folder not in rooms:
            yield Finding(path, 1, "include-direction", f"C++ in {folder}/, which is no room",
                          "Declare it by terrace_room() in its part's CMakeLists.txt")
            continue
        may = {folder, *rooms.get(folder, ("", 0, []))[2]}
        for number, name, target in tree.includes(path):
            to = str(pathlib.PurePath(target).parent) if target else None
            if to is None or is_free or to in may or room_of(target) == "include":
                continue
            yield Finding(path, number, "include-direction", f"{folder}/ includes {target}",
                          f"{folder}/ uses {', '.join(sorted(may - {folder})) or 'nothing'}: move "
                          "what is needed below both, or name the room in its USES")
        for number, name, target in tree.includes(path):
            if name.startswith("../"):
                yield Finding(path, number, "include-direction", f"a path upward, {name}",
                              "Include from the root of the tree")


def check_pure_core(tree):
    for path in filter(PURE_CORE.match, tree.cpp):
        for reached in tree.closure(path):
            for number, name, _ in tree.includes(reached):
                if IMPURE.match(name):
                    via = "" if reached == path else f" through {reached}"
                    yield Finding(path, number if reached == path else 1, "pure-core",
                                  f"{name}{via}; the pure core holds no Asio, CUDA, liburing, "
                                  "RocksDB or logging", "Move what needs it to its caller")


def check_contract_includes(tree):
    for path in (p for p in tree.cpp if room_of(p) == "include"):
        is_source = not path.startswith("include/terrace/")
        for number, name, target in tree.includes(path):
            allowed = target or name in STANDARD_HEADERS
            if not allowed and not (is_source and INCLUDE_SOURCES_MAY.match(name)):
                yield Finding(path, number, "contract-includes",
                              f"{name}; include/ uses the standard library only (its sources: "
                              "xxHash, OpenSSL and POSIX files and threads too)",
                              "Keep the dependency behind a source")


def check_hash_calls(tree):
    """A hash's vector code leaves registers in a state that costs its caller: one place clears
    them."""
    call = re.compile(r"\bXXH(3|32|64|128)?_\w+\(")
    for path in (p for p in tree.cpp if p != HASH_WRAPPER and room_of(p) != "tests"):
        for number, name, _ in tree.includes(path):
            if name == "xxh_x86dispatch.h":
                yield Finding(path, number, "hash-calls", "xxHash's dispatch header",
                              f"Include {HASH_WRAPPER}, behind whose calls registers are clean")
        if room_of(path) != "include":
            continue
        for number, line in enumerate(blank_out(tree.text[path]).split("\n"), 1):
            if call.search(line):
                yield Finding(path, number, "hash-calls", "a call of xxHash's own",
                              f"Call what {HASH_WRAPPER} makes of it")


def check_logging(tree):
    for path in (p for p in tree.cpp if room_of(p) not in ROOMS_THAT_LOG):
        for number, name, _ in tree.includes(path):
            if name.startswith("spdlog"):
                yield Finding(path, number, "logging", "only daemon/ and tools/ log",
                              "Return a Status and let the caller log it")


def check_words(tree):
    words = re.compile(r"\b(" + "|".join(BANNED_WORDS) + r")\b")
    for path in tree.code:
        for number, line in enumerate(tree.lines[path], 1):
            if match := words.search(line):
                yield Finding(path, number, "words", f"the word {match[0]}",
                              "Do it now, or leave it out")


def check_cpp_lines(tree):
    patterns = {
        "namespace-std": (re.compile(r"\busing\s+namespace\s+std\s*;"), "using namespace std",
                          "Write std:: where it is used"),
        "client-check": (re.compile(r"\bTERRACE_CHECK\("), "TERRACE_CHECK in client/",
                         "The library never aborts an engine: return a Status"),
    }
    for path in tree.cpp:
        for number, line in enumerate(blank_out(tree.text[path]).split("\n"), 1):
            for rule, (pattern, what, remedy) in patterns.items():
                if rule == "client-check" and room_of(path) != "client":
                    continue
                if pattern.search(line):
                    yield Finding(path, number, rule, what, remedy)


def check_pragma_once(tree):
    for path in tree.headers:
        if not re.search(r"^#pragma once$", tree.text[path], re.MULTILINE):
            yield Finding(path, 1, "pragma-once", "no #pragma once", "Add it after the comment")


def check_whitespace(tree):
    for path, lines in tree.lines.items():
        if path.endswith(".patch"):  # an unchanged empty line of a patch is one space
            continue
        for number, line in enumerate(lines, 1):
            if line != line.rstrip():
                yield Finding(path, number, "trailing-whitespace", "white space ends the line",
                              "Remove it")
        if tree.text[path] and lines[-1]:
            yield Finding(path, len(lines), "final-newline", "the last line does not end",
                          "End the file with a newline")


def check_file_names(tree):
    for path in tree.paths:
        for name in BANNED_NAMES:
            if name in path.lower():
                yield Finding(path, 1, "file-names", f"'{name}' in a name says nothing",
                              "Name the responsibility")


def check_file_kinds(tree):
    for path in tree.paths:
        if path in tree.binaries:
            yield Finding(path, 1, "binary", "a binary file", "Generate it where it is needed")
        if path.endswith((".orig", ".rej")):
            yield Finding(path, 1, "left-over", "what a patch has left behind", "Delete it")
        if (count := len(tree.bytes[path])) > FILE_BYTES_MAX:
            yield Finding(path, 1, "file-bytes", f"{count} bytes, the limit is {FILE_BYTES_MAX}",
                          "Generate it, or keep it out of the tree")


def check_docs(tree):
    entrances = [p for p in ("README.md", "docs/ARCHITECTURE.md") if p in tree.text]
    if not entrances:
        return
    for path in tree.paths:
        name = pathlib.PurePath(path).name
        if path.startswith("docs/") and path != "docs/ARCHITECTURE.md":
            if not any(name in tree.text[entrance] for entrance in entrances):
                yield Finding(path, 1, "docs", f"no word of it in {' or '.join(entrances)}",
                              "Link it where a reader would look for it")


def reach_of(rooms, folder):
    """The rooms that a folder's sources see, through others too."""
    seen, queue = {folder}, [folder]
    for room in queue:
        fresh = [used for used in rooms.get(room, ("", 0, []))[2] if used not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return seen


def declarations_of(tree):
    """Of each type and constant that headers give to the product: which do."""
    declared = {}
    for header in (h for h in tree.headers if room_of(h) != "tests"):
        for match in DECLARED_AT_NAMESPACE.finditer(tree.text[header]):
            declared.setdefault(next(filter(None, match.groups())), set()).add(header)
    return declared


def is_another(name, text):
    """Whether something in `text` has that name: a member, a function, an enumerator."""
    return re.search(rf"\b(?:class|struct|enum|using|constexpr [^;=]*?)\s*\b{name}\b"
                     rf"|[\w>&*]\s+{name}\(|^ *enum .*[{{,]\s*{name}\b", text, re.M)


def check_named_includes(tree):
    """A room's sources are compiled together: what one forgets to include, a neighbour may have
    brought. Each reaches by its own includes whatever it names."""
    rooms, declared = rooms_of(tree), declarations_of(tree)
    for path in (p for p in tree.cpp if p.endswith((".cc", ".h")) and room_of(p) != "tests"):
        sees = reach_of(rooms, str(pathlib.PurePath(path).parent))
        closure = tree.closure(path)
        text = blank_out(tree.text[path])
        reached = "\n".join(tree.text[p] for p in closure)
        standard = {name for p in closure for _, name, _ in tree.includes(p)}
        for match in NAMED.finditer(text):
            if match[2]:
                givers = {h for h in declared.get(match[2], ())
                          if room_of(h) == "include" or str(pathlib.PurePath(h).parent) in sees}
                is_there = not givers.isdisjoint(closure)
            else:
                givers = {STANDARD_NAMES[match[1]]} if match[1] in STANDARD_NAMES else set()
                is_there = not givers.isdisjoint(standard)
            if givers and not is_there and not (match[2] and is_another(match[2], reached)):
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(path, line, "named-includes", f"{match[0]} without its header",
                              f"Include {min(givers)}")
                break


RULES = (check_columns, check_file_lines, check_function_lines, check_folder_files,
         check_include_directions, check_named_includes, check_room_cycles, check_pure_core,
         check_contract_includes, check_hash_calls, check_logging, check_words, check_cpp_lines,
         check_pragma_once, check_whitespace, check_file_names, check_file_kinds, check_docs)


def check_format(tree):
    """Findings of clang-format, one a file. REQUIRES: it is installed."""
    if not tree.cpp:
        return
    chunks = [tree.cpp[i:i + 16] for i in range(0, len(tree.cpp), 16)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outputs = pool.map(lambda chunk: subprocess.run(
            ["clang-format", "--dry-run", "--Werror", *chunk], cwd=tree.root, text=True,
            capture_output=True, check=False).stderr, chunks)
        seen = set()
        for match in re.finditer(r"^(.+?):(\d+):\d+: error: (.*)$", "".join(outputs), re.M):
            if match[1] not in seen:
                seen.add(match[1])
                yield Finding(match[1], int(match[2]), "format", match[3],
                              f"Run clang-format -i {match[1]}")


def check_headers(tree, which):
    """Compiles alone each header of include/, which engines may include first; with `all`, each
    that no source file shows to, too. Those that the compiler cache knows cost next to nothing."""
    ccache = shutil.which("ccache")
    command = [*([ccache] if ccache else []), os.environ.get("CXX", "g++"), "-std=c++20", "-c",
               "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror",
               *(f"-I{root or '.'}" for root in INCLUDE_ROOTS)]
    environment = {**os.environ, "CCACHE_BASEDIR": str(tree.root)}
    stubs = pathlib.Path("build/headers")  # of the root, as all that the cache sees
    (tree.root / stubs).mkdir(parents=True, exist_ok=True)

    def compile_alone(header):
        stub = stubs / f"{header.replace('/', '.')}.cc"
        (tree.root / stub).write_text(f'#include "{header}"\n')
        return subprocess.run([*command, str(stub), "-o", str(stub.with_suffix(".o"))],
                              cwd=tree.root, env=environment, text=True, capture_output=True,
                              check=False)

    # What a source file includes before anything else is compiled alone where each source is
    # compiled by itself (tools/test --long); until then named-includes looks at it.
    first = {tree.includes(p)[0][2] for p in tree.cpp if p.endswith(".cc") and tree.includes(p)}
    headers = [h for h in tree.headers if h.endswith(".h") and
               (room_of(h) == "include" or (which == "all" and h not in first))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, result in zip(headers, pool.map(compile_alone, headers)):
            if result.returncode != 0:
                error = next((e for e in result.stderr.splitlines() if "error:" in e),
                             result.stderr)
                yield Finding(header, 1, "compiles-alone", error.strip(),
                              "Include what the header uses")
    print(f"{len(headers)} headers compiled alone")


def run_rules(tree):
    return [finding for rule in RULES for finding in rule(tree)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--headers", choices=["public", "all"])
    parser.add_argument("--self-test", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.self_test:
        import tidy_cases
        return tidy_cases.run()
    tree = Tree(arguments.root)
    has_format = shutil.which("clang-format") is not None
    if arguments.headers:
        findings = list(check_headers(tree, arguments.headers))
    else:
        findings = run_rules(tree) + (list(check_format(tree)) if has_format else [])
    for finding in sorted(findings, key=lambda f: (f.path, f.line)):
        print(finding)
    print(f"{len(tree.paths)} files, {len(findings)} findings")
    if findings:
        return 1
    if not arguments.headers and not has_format:
        print("skipped: clang-format is not installed (tools/setup installs it); "
              "all other rules hold")
        return EXIT_SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
