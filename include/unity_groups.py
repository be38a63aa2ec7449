#!/usr/bin/env python3
"""usage: include/unity_groups.py FILE | --self-test

Each line of FILE is a target, a SIZE and sources, with tabs between them. Divides the sources of
each into groups of at most SIZE that can be compiled as one: no two of a group give different
things one name in their anonymous namespaces, where each thinks itself alone, and none gives there
a name that a header of another has. Prints a line a target: SOURCE:GROUP, with tabs between them.

It reads C++ as an editor would, not as a compiler: names that only look alike keep sources apart,
which costs a little time. What it overlooks the compiler finds; such a source is to be given the
property SKIP_UNITY_BUILD_INCLUSION.
"""
import functools
import pathlib
import re
import sys
import tempfile

NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
DECLARED = re.compile(
    r"(?:(?:class|struct|enum)\s+(\w+)|(?<![.:>\w])(\w+)\s*(?=[(={\[;]|:(?!:)))")
BASES = re.compile(r"(?<![:\w]):(?!:)\s*(?:public|protected|private)\b[^{;]*(?=\{)")
INITIALIZER = re.compile(r"=(?!=)[^;{]*(?=[;{])")
SAME_EVERYWHERE = re.compile(r"(?:using|namespace)\s+(\w+)\s*=[^;]*;")  # an alias may be repeated
DEFINED = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
# What stands at a line's beginning belongs to a namespace: clang-format keeps it there.
AT_NAMESPACE = re.compile(
    r"^(?:(?:class|struct|enum(?:\s+class)?|using)\s+(\w+)|[A-Za-z][^\n;={(]*?[ &*>](\w+)\s*[=({])",
    re.M)
ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE_ROOTS = (ROOT, ROOT / "include", ROOT / "tests")
KEYWORDS = {"static_assert", "const", "noexcept", "decltype", "requires", "alignas", "default",
            "final", "override", "sizeof", "class", "struct", "target", "gnu"}


def anonymous_text(text):
    """What stands in anonymous namespaces, without what stands in braces and parentheses there."""
    kept, depth_inside, nesting = [], None, []
    for token in re.finditer(r"namespace\s*\{|[{}()]|[^{}()]+?(?=namespace\s*\{|[{}()]|\Z)", text):
        word = token.group(0)
        if word.endswith("{") or word == "(":
            if depth_inside is None and word.startswith("namespace"):
                depth_inside = len(nesting) + 1
            elif depth_inside == len(nesting):
                kept.append(word)
            nesting.append(word)
        elif word in "})":
            if nesting:
                nesting.pop()
            if depth_inside is not None and len(nesting) < depth_inside:
                depth_inside = None
                kept.append(";")
        elif depth_inside == len(nesting):
            kept.append(word)
    return "".join(kept)


def names_of(path):
    """{name: what tells it from another of that name}"""
    text = NOISE.sub(" ", pathlib.Path(path).read_text(encoding="utf-8"))
    names = {name: path for name in DEFINED.findall(text)}
    inside = BASES.sub("", re.sub(r"^\s*#.*$", "", anonymous_text(text), flags=re.M))
    for alias in SAME_EVERYWHERE.finditer(inside):
        names[alias.group(1)] = alias.group(0)
    declared = INITIALIZER.sub("=", SAME_EVERYWHERE.sub("", inside))
    for match in DECLARED.finditer(declared):
        name = match.group(1) or match.group(2)
        if name not in KEYWORDS and not re.fullmatch(r"[A-Z][A-Z_]+|\d\w*", name):
            names[name] = path
    return names


@functools.cache
def headers_of(path):
    """The project's headers that a file includes itself."""
    beside = path.parent
    found = set()
    for name in INCLUDED.findall(path.read_text(encoding="utf-8")):
        places = (root / name for root in (beside, *INCLUDE_ROOTS))
        found.update([place for place in places if place.is_file()][:1])
    return found


@functools.cache
def declared_by(header):
    """Names that a header gives to all who include it."""
    found = AT_NAMESPACE.findall(header.read_text(encoding="utf-8"))
    return {a or b for a, b in found} - KEYWORDS


def names_of_headers(path):
    """Names of all headers that a source includes, and that they include."""
    seen = set()
    queue = [pathlib.Path(path).absolute()]
    while queue:
        fresh = headers_of(queue.pop()) - seen
        seen |= fresh
        queue.extend(fresh)
    return set().union(*map(declared_by, seen))


def agree(one, other):
    """Whether two sources, each (own names, names of headers), can be compiled as one."""
    return (all(one[0].get(name, what) == what for name, what in other[0].items())
            and one[0].keys().isdisjoint(other[1]) and other[0].keys().isdisjoint(one[1]))


def groups_of(size, sources):
    """The number of each source's group."""
    groups, numbers = [], []  # a group: its sources' names
    for source in sources:
        names = (names_of(source), names_of_headers(source))
        for number, members in enumerate(groups):
            if len(members) < size and all(agree(names, known) for known in members):
                break
        else:
            number = len(groups)
            groups.append([])
        groups[number].append(names)
        numbers.append(number)
    return numbers


def self_test():
    """Each source after the first meets it: 0 together, else apart."""
    cases = [
        (0, "namespace a {\nnamespace {\nconstexpr int kOne = 1;\nint Two(int x) { return x; }\n"
            "struct Three : Base {};\nusing Four = int;\n"
            "class Eight final : public n::Nine, private Ten<int> {};\n}\n"
            "int Five() { return 5; }\n}\n"),
        (1, "namespace { constexpr char kOne[] = {1}; }"),
        (1, "namespace {\nstd::string Two(double y) {\n  return {};\n}\n}"),
        (1, "namespace { class Three final { int kSix; }; }"),
        (1, "#define kOne 1"),
        (1, "namespace { using Four = long; }"),
        (0, "namespace { using Four = int; }"),
        (0, "namespace { class Twelve : public n::Nine, private Ten<int> {}; }"),
        (0, "namespace { constexpr int kEleven = 2 * kOne; }"),
        (1, "namespace { class Eight : public Nine {}; }"),
        (0, "namespace { void Seven() { int kOne = 1; Two(kOne); } }"),
        (0, "// namespace { constexpr int kOne = 1; }\n"
            "const char* text = \"namespace { int Two(\";"),
        (0, "namespace b { int Two(int x) { return x; } }"),
        (1, '#include "fixture.h"\n'),
    ]
    with tempfile.TemporaryDirectory() as directory:
        header = pathlib.Path(directory) / "fixture.h"
        header.write_text("namespace c {\ninline constexpr int kOne = 1;\n}\n")
        paths = [pathlib.Path(directory) / f"{i}.cc" for i in range(len(cases))]
        for path, (_, text) in zip(paths, cases):
            path.write_text(text, encoding="utf-8")
        found = [groups_of(9, [paths[0], path])[1] for path in paths[1:]]
        expected = [group for group, _ in cases[1:]]
        print(found, expected)
        return 0 if found == expected and groups_of(2, paths[-4:-1]) == [0, 0, 1] else 1


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        _, size, *sources = line.split("\t")
        groups = groups_of(int(size), sources)
        print("\t".join(f"{source}:{group}" for source, group in zip(sources, groups)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
