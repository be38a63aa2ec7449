#!/usr/bin/env python3
"""usage: packaging/documents.py SOURCE OUT | --self-test

Writes the documents of the packages below OUT, a folder a package, as they lie in /usr/share/doc:
links lead to where the packages put what they name, and say of another package's which it is, since
it need not be there; what no package has is named without a link. Fails where a link of the result
leads nowhere.
"""
import pathlib
import re
import shutil
import sys
import tempfile

DEVELOPMENT = "libterrace-dev"
DAEMON = "terraced"
# Which package has a file that documents link to, and it is called there as in the source tree.
# All other documents are the daemon's.
OF_DEVELOPMENT = ("docs/INTEGRATIONS.md", "client/examples/prefix.c")
OF_DAEMON = ("SECURITY.md",)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def packaged(source):
    """Where each file goes, by its path in the source tree."""
    places = {f"docs/{path.name}": DAEMON for path in (source / "docs").glob("*.md")}
    places.update(dict.fromkeys(OF_DAEMON, DAEMON))
    places.update(dict.fromkeys(OF_DEVELOPMENT, DEVELOPMENT))
    return places


def is_distant(target):
    return not target or "://" in target or target.startswith("mailto:")


def rewritten(text, path, places):
    """The text of the document at `path` of the source tree, for where its package has it."""
    def replace(match):
        mark, words, target, part = match.groups()
        if is_distant(target):
            return match.group(0)
        named = (pathlib.PurePosixPath(path).parent / target).as_posix()
        parts = []
        for word in named.split("/"):
            parts.pop() if word == ".." and parts else parts.append(word)
        place = places.get("/".join(parts))
        if place is None:
            return words
        if place == places[path]:
            return f"{mark}[{words}]({parts[-1]}{part or ''})"
        return f"{mark}[{words}](../{place}/{parts[-1]}{part or ''}) (in package {place})"
    return LINK.sub(replace, text)


def broken(out):
    """Links of the documents below `out` that lead nowhere."""
    for document in sorted(out.rglob("*.md")):
        for match in LINK.finditer(document.read_text()):
            target = match.group(3)
            if not is_distant(target) and not (document.parent / target).is_file():
                yield f"{document.relative_to(out)} links to {target}, which no package has"


def write(source, out):
    places = packaged(source)
    for path, package in places.items():
        target = out / package / pathlib.PurePosixPath(path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            target.write_text(rewritten((source / path).read_text(), path, places))
        else:
            shutil.copyfile(source / path, target)
    return list(broken(out))


def self_test(source):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch)
        found = write(source, out)
        if found:
            return found
        for name in ("OPERATIONS", "TROUBLESHOOTING", "RELIABILITY", "METRICS"):
            if not (out / DAEMON / f"{name}.md").is_file():
                return [f"{DAEMON} has no {name}.md"]
        if "](../terraced/OPERATIONS.md" not in (out / DEVELOPMENT / "INTEGRATIONS.md").read_text():
            return ["INTEGRATIONS.md does not lead to the daemon's package"]
        if f"(in package {DEVELOPMENT})" not in (out / DAEMON / "OPERATIONS.md").read_text():
            return ["OPERATIONS.md does not say in which package its readers find the rest"]
        (out / DAEMON / "TROUBLESHOOTING.md").unlink()
        if not any("TROUBLESHOOTING.md" in line for line in broken(out)):
            return ["a document that is not packaged is not missed"]
    return []


def main():
    source = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--self-test"]:
        found = self_test(source)
    elif len(sys.argv) == 3:
        found = write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    else:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    print("\n".join(found) if found else "every link of a packaged document leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
