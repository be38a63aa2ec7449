#!/usr/bin/env python3
"""usage: manuals.py HELP2MAN VERSION EPOCH OUTPUT TERRACED TERRACE

Manual pages under OUTPUT from what the programs answer to --help: terraced(8), terrace(1), and one
for each verb, terrace-VERB(1). Writes OUTPUT/made last.
"""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys

DAEMON_LINE = "keeps KV blocks of prompts for LLM inference"
TOOL_LINE = "look into, empty and measure the KV cache that terraced keeps"


def read(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def verbs_of(command):
    """(words of the verb, its one line), and those of a family such as `bench`, behind it."""
    _, _, listed = read(*command, "--help").partition("\nSubcommands:\n")
    for name, line in re.findall(r"^  ([a-z][\w-]*) {2,}(\S.*)$", listed, re.M):
        yield [*command[1:], name], line
        yield from verbs_of([*command, name])


class Manuals:
    def __init__(self, help2man, version, epoch, output):
        self.help2man = help2man
        self.version = version
        self.output = output
        self.environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "LC_ALL": "C.UTF-8"}

    def write(self, section, words, program, line):
        """`words` as one would type them; the page is named after them, joined by dashes."""
        page = "-".join(words)
        # help2man runs its argument through a shell, which is how a verb is told to it.
        text = subprocess.run(
            [self.help2man, "--no-info", f"--section={section}", f"--name={line}",
             "--source=Terrace", f"--version-string={page} {self.version}",
             " ".join([str(program), *words[1:]])],
            capture_output=True, text=True, check=True, env=self.environment).stdout
        # A verb's name and synopsis would be the program's.
        text = re.sub(r"^(\.TH )\S+", rf"\g<1>{page.upper()}", text, flags=re.M)
        text = re.sub(r"(\.SH NAME\n)\S+", rf"\g<1>{page}", text)
        if words[0] == "terrace":
            text += '.SH "SEE ALSO"\n.BR terraced (8),\n' + (
                ".BR terrace (1)\n" if words[1:] else
                ".BR terrace-status (1)\nand a page for each other verb\n")
        folder = self.output / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        with gzip.GzipFile(folder / f"{page}.{section}.gz", "wb", 9, mtime=0) as file:
            file.write(text.encode())


def main():
    help2man, version, epoch, output, terraced, terrace = sys.argv[1:]
    output = pathlib.Path(output)
    for folder in output.glob("man?"):
        shutil.rmtree(folder)
    manuals = Manuals(help2man, version, epoch, output)
    manuals.write(8, ["terraced"], terraced, DAEMON_LINE)
    manuals.write(1, ["terrace"], terrace, TOOL_LINE)
    for words, line in verbs_of([terrace]):
        manuals.write(1, ["terrace", *words], terrace, line[0].lower() + line[1:])
    (output / "made").touch()


if __name__ == "__main__":
    main()
