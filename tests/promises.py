#!/usr/bin/env python3
"""Which tests show what Terrace promises: the table of docs/RELIABILITY.md, and what it lacks.

usage: tests/promises.py [--root DIR] [--write | --check | --self-test]

The promises stand in tests/promises.txt. A test says that it shows one, wholly or in part, by a
line above it (of a fuzz target above its Registration), or at the head of a script or benchmark:

    // PROMISE: T11 torn writes            (of Python and CMake: # PROMISE: …)

Without an option: how many promises are shown wholly, in part and not at all, and which.
  --write      writes the table between its marks in docs/RELIABILITY.md
  --check      fails if the table there is another one, if a promise has neither a test nor a word
               why, if a line names no promise or stands above no test, or if a figure isn't in
               docs/PERFORMANCE.md as it is quoted
  --self-test  plants each of these and sees that it is found
"""
import argparse
import collections
import dataclasses
import pathlib
import re
import sys
import tempfile

LIST = "tests/promises.txt"
DOCUMENT = "docs/RELIABILITY.md"
FIGURES = "docs/PERFORMANCE.md"
BEGIN = "<!-- promises: written by tests/promises.py --write -->"
END = "<!-- promises: end -->"
HEADING = ("| | promised, *and the bound that is wanted* | shown by | what that shows less | "
           "last figure |\n|---|---|---|---|---|")

FIRST_LINE = re.compile(r"(T\d\d) (\S.*)")
TAG = re.compile(r"^\s*(?://|#) PROMISE:(.*)$")
TAG_WORDS = re.compile(r" (T\d\d) \S.*")
CPP_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+), (\w+)\)")
FUZZ_TARGET = re.compile(r"^const Registration \w+\(\{\"(\w+)\"")
PYTHON_TEST = re.compile(r"^(?:async )?def (test_\w+)\(")
# What stands between a tag and its test: other tags, comments and decorators.
BETWEEN = re.compile(r"^\s*(//|#|@|$)")
FIELDS = ("bound", "with", "short", "figure")


@dataclasses.dataclass
class Promise:
    name: str
    sentence: str
    fields: dict = dataclasses.field(default_factory=lambda: {f: [] for f in FIELDS})
    tests: list = dataclasses.field(default_factory=list)  # (program or script, test or "")

    def text(self, field):
        return " ".join(self.fields[field])

    def state(self):
        if not self.tests:
            return "not at all"
        return "in part" if self.text("short") else "wholly"


def read_promises(text):
    """(promises, complaints)"""
    promises, complaints = [], []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.split("\n") if line and not line.startswith("#")]
        if not lines:
            continue
        first = FIRST_LINE.fullmatch(lines[0])
        if not first:
            complaints.append(f"{LIST}: no promise: {lines[0]}")
            continue
        promise = Promise(first[1], first[2])
        for line in lines[1:]:
            field, _, words = line.partition(": ")
            if field not in FIELDS or not words:
                complaints.append(f"{LIST}: {promise.name}: no such line: {line}")
                continue
            promise.fields[field].append(words)
        if not promise.text("bound"):
            complaints.append(f"{LIST}: {promise.name} has no bound")
        promises.append(promise)
    names = [p.name for p in promises]
    if names != sorted(set(names)):
        complaints.append(f"{LIST}: promises are not in order, or one is there twice")
    return promises, complaints


def program_of(path):
    """Of a source of tests the program that has it; of a script itself."""
    parts = path.parts
    if path.suffix in (".cc", ".cu") and parts[1] == "bench":
        return path.stem
    if path.suffix == ".cc" and parts[1] == "fuzz":
        return "fuzz_corpora"
    if path.suffix in (".cc", ".cu"):
        return f"{parts[1]}_{parts[2]}_test"
    return "tools/test --all" if path.name == "CMakeLists.txt" else str(path)


def test_behind(path, lines, at):
    """The test that the tag in lines[at] stands above: its name, "" for all of a script or
    benchmark, None if there is none."""
    for line in lines[at + 1:]:
        if match := CPP_TEST.match(line):
            return f"{match[1]}.{match[2]}"
        if match := PYTHON_TEST.match(line) or FUZZ_TARGET.match(line):
            return match[1]
        if not BETWEEN.match(line):
            break
    is_head = all(BETWEEN.match(line) for line in lines[:at])
    is_whole = path.suffix == ".py" or path.parts[1] == "bench" or lines[0].startswith("#!")
    return "" if path.name == "CMakeLists.txt" or (is_head and is_whole) else None


def read_tags(root):
    """Yields (place, promise or None, program, test or None) of each tag."""
    for file in sorted(p for p in (root / "tests").rglob("*") if p.is_file()):
        path = file.relative_to(root)
        if path.name == "promises.py" or "__pycache__" in path.parts:
            continue
        text = file.read_bytes()
        if b"PROMISE:" not in text:
            continue
        lines = text.decode("utf-8", "replace").split("\n")
        for at, line in enumerate(lines):
            if match := TAG.match(line):
                words = TAG_WORDS.fullmatch(match[1])
                yield (f"{path}:{at + 1}", words and words[1], program_of(path),
                       test_behind(path, lines, at))


def plain(text):
    return re.sub(r"\s+", " ", text.replace("**", ""))


def collect(root):
    """(promises with their tests, complaints)"""
    promises, complaints = read_promises((root / LIST).read_text())
    by_name = {p.name: p for p in promises}
    for place, name, program, test in read_tags(root):
        if name not in by_name:
            complaints.append(f"{place}: no promise of that name, or no word on what is shown: "
                              f"as in \"PROMISE: T11 torn writes\", of {LIST}")
        elif test is None:
            complaints.append(f"{place}: above no test: put it above TEST, def test_ or at the "
                              "head of a script")
        elif (program, test) not in by_name[name].tests:
            by_name[name].tests.append((program, test))
    figures = plain((root / FIGURES).read_text())
    for promise in promises:
        if not promise.tests and not promise.text("short"):
            complaints.append(f"{LIST}: {promise.name} has neither a test nor a word why: tag a "
                              "test, or write \"short:\"")
        for figure in promise.fields["figure"]:
            words, _, machine = figure.partition(" | ")
            if plain(words) not in figures or not machine:
                complaints.append(f"{LIST}: {promise.name}: not in {FIGURES}, or of no machine: "
                                  f"{figure}")
    return promises, complaints


def shown_by(promise):
    programs = collections.defaultdict(list)
    for program, test in promise.tests:
        programs[program].append(test)
    cells = []
    for program, tests in programs.items():
        names = ", ".join(test for test in tests if test)
        cells.append(f"`{program}`" + (f" {names}" if names else ""))
    if promise.text("with"):
        cells.append(f"all of it with `{promise.text('with')}`")
    return "; ".join(cells)


def table(promises):
    rows = [HEADING]
    for p in promises:
        figures = "; ".join("{0} ({2})".format(*f.partition(" | ")) for f in p.fields["figure"])
        cells = (p.name, f"{p.sentence} *{p.text('bound')}*", shown_by(p), p.text("short"), figures)
        rows.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join([counts(promises), "", *rows])


def counts(promises):
    states = collections.Counter(p.state() for p in promises)
    return (f"Of {len(promises)} promises {states['wholly']} are shown wholly, "
            f"{states['in part']} in part, {states['not at all']} not at all.")


def between_marks(text):
    """(before, table, after); None where the marks are not there."""
    match = re.fullmatch(rf"(.*{re.escape(BEGIN)}\n)(.*)(\n{re.escape(END)}\n.*)", text, re.S)
    return match and match.groups()


def check(root):
    promises, complaints = collect(root)
    parts = between_marks((root / DOCUMENT).read_text())
    if parts is None:
        return [*complaints, f"{DOCUMENT}: no table between {BEGIN} and {END}"]
    here, wanted = parts[1].split("\n"), table(promises).split("\n")
    if here != wanted:
        other = next((w for h, w in zip(here, wanted) if h != w), "a row more, or less")
        complaints.append(f"{DOCUMENT}: another table; the first row that differs ought to be "
                          f"\"{other[:90]}\": tests/promises.py --write")
    return complaints


def write(root):
    promises, complaints = collect(root)
    document = root / DOCUMENT
    before, _, after = between_marks(document.read_text())
    document.write_text(before + table(promises) + after)
    return complaints


CLEAN = {
    LIST: "# a comment\n\nT01 It holds.\nbound: always\nfigure: 3 of 3 | a machine\n\n"
          "T02 It holds, too.\nbound: 100 times\nshort: 10 times\n\n"
          "T03 It will hold.\nbound: once\nshort: needs a GPU\n",
    FIGURES: "Of all **3\nof 3** are there.\n",
    DOCUMENT: f"prose\n{BEGIN}\n\n{END}\nmore prose\n",
    "tests/unit/daemon/a/a_test.cc": "#include <a>\n\n// PROMISE: T01 holding\n"
                                     "// What it does.\nTEST_F(A, Holds) {\n}\n",
    "tests/fuzz/a_fuzz.cc": "#include <a>\n\n// PROMISE: T01 holding\n"
                            "const Registration registration({\"a\", Run, Seeds});\n",
    "tests/long/a.py": "#!/usr/bin/env python3\n# PROMISE: T02 holding\n\"\"\"What.\"\"\"\n",
    "tests/python/test_a.py": "import a\n\n\n# PROMISE: T01 holding\n@a\ndef test_it():\n"
                              "    pass\n",
}
# What is wrong then: (file, what is there, what comes in its place, a word of the complaint).
PLANTED = [
    ("tests/unit/daemon/a/a_test.cc", "T01", "T09", "no promise of that name"),
    ("tests/unit/daemon/a/a_test.cc", "T01 holding", "T01", "no word on what"),
    ("tests/unit/daemon/a/a_test.cc", "TEST_F(A, Holds) {", "int F() {", "above no test"),
    ("tests/unit/daemon/a/a_test.cc", "Holds", "Keeps", "another table"),
    ("tests/fuzz/a_fuzz.cc", "const Registration", "Registration", "above no test"),
    ("tests/long/a.py", "# PROMISE: T02 holding\n", "", "another table"),
    (LIST, "bound: 100 times\n", "", "has no bound"),
    (LIST, "short: needs a GPU\n", "", "T03 has neither a test nor a word why"),
    (LIST, "T02 It", "T01 It", "not in order"),
    (LIST, "T03 It", "The third", "no promise"),
    (LIST, "short: 10 times", "shrt: 10 times", "no such line"),
    (LIST, "3 of 3", "4 of 4", "not in docs/PERFORMANCE.md"),
    (LIST, " | a machine", "", "of no machine"),
    (FIGURES, "3\nof 3", "2 of 3", "not in docs/PERFORMANCE.md"),
    (DOCUMENT, "| T02 ", "| T04 ", "another table"),
    (DOCUMENT, END, "", "no table between"),
]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for path, text in CLEAN.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        failures += [f"clean, and yet: {c}" for c in write(root) + check(root)]
        states = [p.state() for p in collect(root)[0]]
        if states != ["wholly", "in part", "not at all"]:
            failures.append(f"states are {states}")
        text = (root / DOCUMENT).read_text()
        for part in ("`unit_daemon_test` A.Holds", "`tests/python/test_a.py` test_it",
                     "`fuzz_corpora` a", "`tests/long/a.py`", "3 of 3 (a machine)"):
            if part not in text:
                failures.append(f"not in the table: {part}")
        for path, there, instead, word in PLANTED:
            whole = (root / path).read_text()
            if there not in whole:
                failures.append(f"{path} has no \"{there}\" to plant something in")
            (root / path).write_text(whole.replace(there, instead, 1))
            if not any(word in complaint for complaint in check(root)):
                failures.append(f"not found: \"{instead}\" for \"{there}\" in {path}")
            (root / path).write_text(whole)
    print("\n".join(failures) or f"{len(PLANTED)} planted, all found")
    return bool(failures)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    complaints = (write if arguments.write else check)(arguments.root)
    promises, _ = collect(arguments.root)
    for state in ("wholly", "in part", "not at all"):
        print(f"{state}: {' '.join(p.name for p in promises if p.state() == state) or 'none'}")
    print(counts(promises))
    if arguments.check or arguments.write:
        print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints and (arguments.check or arguments.write) else 0


if __name__ == "__main__":
    sys.exit(main())
