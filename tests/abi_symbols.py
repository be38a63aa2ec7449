#!/usr/bin/env python3
"""usage: tests/abi_symbols.py LIBRARY VERSION_SCRIPT HEADER...

libterrace.so shows exactly the functions that its version script lists and the headers declare, and
none of its own C++. A name that was once listed stays.
"""
import re
import subprocess
import sys


def main():
    library, script, *headers = sys.argv[1:]
    listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True,
                             text=True, check=True).stdout
    shown = {line.split()[2].split("@")[0] for line in listing.splitlines()
             if line.split()[1] != "A"}
    listed = set(re.findall(r"^ +(terrace_\w+);", open(script, encoding="utf-8").read(), re.M))
    text = "".join(re.sub(r"/\*.*?\*/", "", open(header, encoding="utf-8").read(), flags=re.S)
                   for header in headers)
    declared = set(re.findall(r"TERRACE_API[^;]*?\b(terrace_\w+)\(", text))
    wrong = [f"{name}: shown {name in shown}, listed {name in listed}, declared {name in declared}"
             for name in sorted(shown | listed | declared)
             if not (name in shown and name in listed and name in declared)]
    for line in wrong:
        print(f"{line}: make {script} and {', '.join(headers)} agree")
    print(f"{len(shown)} symbols shown, {len(listed)} listed, {len(declared)} declared")
    return 1 if wrong or not shown else 0


if __name__ == "__main__":
    sys.exit(main())
