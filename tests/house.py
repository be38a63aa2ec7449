#!/usr/bin/env python3
"""usage: tests/house.py [--root DIR]

How the house stands, in figures: what a newcomer meets. Product code only (include/, cuda/, tiers/,
daemon/, client/, tools/); nothing is judged but what tests/tidy.py judges.

  files per folder      headers and sources, the fullest folders
  methods per class     public ones, declared in headers
  classes in pieces     classes whose methods lie in more than two .cc files
  circles               of rooms (terrace_room), and of files; .h, .cc and _state.h taken as one
  state from outside    places that write a block's, a lease's or a domain's fields without being
                        their owner: of a block's parts those that Key names, of leases the
                        LeaseTable, of a domain whom OwnedBy names (the counters are everybody's)
  lines                 of code, without blank lines and lines of comment alone
  functions             median, p90 and longest, in lines
  checks                TERRACE_CHECK a thousand lines outside client/
  contracts             headers that begin with a comment
"""
import argparse
import collections
import pathlib
import re
import sys

import tidy

PRODUCT = ("include", "cuda", "tiers", "daemon", "client", "tools")
CLASS = re.compile(r"^(?:class|struct)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*"
                   r"(?::[^{;]*)?\{", re.M)
METHOD = re.compile(r"^[\w:<>,&*\s\[\]]*?\b(~?\w+)\([^;{]*\)[^;{]*[;{]", re.S)


def public_methods(body, is_struct):
    """Names declared public in a class's body whose nested braces are gone."""
    names, is_public, statement = [], is_struct, ""
    for line in body.split("\n"):
        if re.match(r"^\s*(public|private|protected):", line):
            is_public, statement = "public" in line, ""
            continue
        statement += line + "\n"
        if ";" in line or "}" in line:
            match = METHOD.match(statement.strip())
            is_other = re.match(r"\s*(using|friend|static_assert|enum)", statement)
            if is_public and match and not is_other:
                names.append(match[1])
            statement = ""
    return names


def classes_of(text):
    text = tidy.blank_out(text)
    for match in CLASS.finditer(text):
        end = tidy.matching_brace(text, match.end() - 1)
        body = text[match.end():end]
        while (flat := re.sub(r"\{[^{}]*\}", ";", body)) != body:
            body = flat
        yield match[1], public_methods(body, match[0].startswith("struct"))


def circles(edges):
    """Groups of nodes that reach each other (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for to in edges.get(node, ()):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in on_stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
                on_stack.discard(group[-1])
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(edges):
        if node not in index:
            visit(node)
    return found


def file_edges(tree, paths):
    edges = collections.defaultdict(set)
    for path in paths:
        for _, _, target in tree.includes(path):
            a, b = (str(pathlib.PurePath(p).with_suffix("")).removesuffix("_state")
                    for p in (path, target or path))
            if a != b:
                edges[a].add(b)
    return edges


FIELD = re.compile(r"^\s+(?:mutable )?[\w:<>,*& ]+?\s(\w+)(?:\[\w+\])?(?:\{[^;]*\}| = [^;]+)?;",
                   re.M)
CHANGE = (r"(?:\[[^\]]*\])?\s*(?:[-+|&^]?=(?!=)|\+\+|--|"
          r"(?:\.|->)(?:push|pop|clear|emplace|erase|insert|assign|resize|reserve|shrink|swap)"
          r"\w*\()")


def fields_of(text, name):
    """Fields of a struct, and the classes that its Key or an OwnedBy lets change them."""
    text = tidy.blank_out(text)
    match = re.search(rf"^struct {name}\b[^;{{]*\{{", text, re.M)
    body = text[match.end():tidy.matching_brace(text, match.end() - 1)]
    owners = re.findall(r"friend class (\w+);", body)
    while (flat := re.sub(r"\{[^{}]*\}", "", body)) != body:
        body = flat
    body = re.sub(r"^\s*(?:static|const|friend|using)\b[^;]*;|^\s*class Key;", "", body, flags=re.M)
    for line in body.split(";"):
        if "(" in line:
            continue
        own = re.search(r"OwnedBy<(\w+),", line)
        for field in FIELD.findall(line + ";"):
            yield field, ([own[1]] if own else owners)


def stem_of(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def written_outside(tree, paths):
    """(path:line, field) of each write of somebody else's state."""
    block = tree.text["daemon/block/block.h"]
    parts = re.findall(r"(\w+)", re.search(r"struct Block :([^{]*)\{", block)[1]) \
        if "struct Block :" in block else ["Block"]
    tables = [
        (r"(?:\bb|\bblock|\bknown|\bblock\([^()]*(?:\([^()]*\))?[^()]*\))\.",
         [pair for part in parts for pair in fields_of(block, part)]),
        (r"(?:\b(?:lease|writer)|\bleases\.at\([^()]*\))(?:\.|->)",
         [(f, ["LeaseTable"]) for f, _ in fields_of(tree.text["daemon/block/lease_table.h"],
                                                    "Lease")]),
        (r"(?:\bd_|\bdomain|\bdomain\(\))(?:\.|->)",
         [(f, o) for f, o in fields_of(tree.text["daemon/block/cache_domain.h"], "CacheDomain")
          if f != "counters"])]
    for path in (p for p in paths if p.startswith("daemon/")):
        stem = pathlib.PurePath(path).stem
        for number, line in enumerate(tidy.blank_out(tree.text[path]).split("\n"), 1):
            for receiver, fields in tables:
                for field, owners in fields:
                    if field not in line or "of_owner()" in line or \
                            any(stem.startswith(stem_of(o)) for o in owners):
                        continue
                    if re.search(rf"{receiver}{field}\b{CHANGE}", line) or \
                            re.search(rf"(?:\+\+|--){receiver}{field}\b(?!\.|\()", line):
                        yield f"{path}:{number}", field


def print_most(title, rows, limit=None):
    over = "" if limit is None else f"; {sum(count > limit for count, _ in rows)} above {limit}"
    print(f"{title}{over}")
    for count, name in sorted(rows, reverse=True)[:8]:
        print(f"  {count:5}  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[2])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[1])
    tree = tidy.Tree(parser.parse_args().root)
    sys.setrecursionlimit(10_000)
    paths = [p for p in tree.cpp if tidy.room_of(p) in PRODUCT]
    folders = collections.Counter(str(pathlib.PurePath(p).parent) for p in paths)
    print_most("files per folder", [(n, f) for f, n in folders.items()], 40)

    methods = [(len(names), f"{name} ({path})") for path in paths if path.endswith(".h")
               for name, names in classes_of(tree.text[path])]
    print_most("public methods per class", methods, 25)

    pieces = collections.defaultdict(set)
    for path in (p for p in paths if p.endswith(".cc")):
        for first, _ in tidy.cpp_functions(tree.text[path]):
            if match := re.match(r"[^(]*?\b(\w+(?:::\w+)*)::~?\w+\(", tree.lines[path][first - 1]):
                pieces[match[1]].add(path)
    print_most("classes over several .cc files", [(len(f), n) for n, f in pieces.items()], 2)

    rooms = {room: uses for room, (_, _, uses) in tidy.rooms_of(tree).items()}
    print(f"circles of rooms: {circles(rooms)}")
    found = circles(file_edges(tree, paths))
    print(f"circles of files (.h and .cc as one): {len(found)}")
    for group in found:
        print(f"  {len(group):5}  {' '.join(group)}")

    outside = list(written_outside(tree, paths))
    print(f"state written from outside: {len(outside)}")
    for where, field in outside:
        print(f"  {field:>20}  {where}")

    code = {p: [line for line in tidy.blank_out(tree.text[p]).split("\n") if line.strip()]
            for p in paths}
    lines = sum(map(len, code.values()))
    print(f"lines of product code: {lines} (with comments and blank lines "
          f"{sum(len(tree.lines[p]) for p in paths)})")
    lengths = sorted(last - first + 1 for p in paths
                     for first, last in tidy.cpp_functions(tree.text[p]))
    print(f"functions: {len(lengths)}, median {lengths[len(lengths) // 2]}, "
          f"p90 {lengths[len(lengths) * 9 // 10]}, longest {lengths[-1]} lines")
    outside = [p for p in paths if tidy.room_of(p) != "client"]
    checks = sum(tree.text[p].count("TERRACE_CHECK(") for p in outside)
    print(f"TERRACE_CHECK: {checks * 1000 / sum(len(code[p]) for p in outside):.1f} a thousand "
          "lines outside client/")
    headers = [p for p in paths if p.endswith(".h")]
    told = sum(tree.text[p].startswith(("//", "/*")) for p in headers)
    print(f"headers with a contract: {told} of {len(headers)}")


if __name__ == "__main__":
    main()
