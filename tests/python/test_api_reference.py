"""The reference of the Python package is made of its docstrings, and the lines that documents tell
people to copy are lines that work."""
import ast
import html.parser
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client" / "python" / "terrace"
sys.path.insert(0, str(ROOT / "packaging"))

import api_reference  # noqa: E402  pylint: disable=wrong-import-position

# Configured by name, or of use to the package alone.
NOT_CALLED = {"_native", "_version", "answers", "denied", "parameters", "prefill_cost", "presence",
              "shelf", "threads", "vllm_plugin", "vllm_tier", "waiting"}
ADAPTERS = {"vllm", "sglang", "lmcache"}


class Text(html.parser.HTMLParser):
    """Of a page, which has to be well formed as far as this reads it."""

    def __init__(self):
        super().__init__()
        self.text, self.open = "", []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_it_says_something_of_everything_public(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "packaging" / "api_reference.py", "--out",
                           tmp_path / "api.html"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = Text()
    page.feed((tmp_path / "api.html").read_text())
    assert page.open == []
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (exported,) = [ast.literal_eval(node.value) for node in tree.body
                   if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    assert not [name for name in exported if name not in page.text]
    assert "acquire(keys: Keys" in page.text and "self" not in page.text.split("terrace.client")[0]


def test_no_module_is_left_out():
    there = {str(path.relative_to(PACKAGE))[:-3] for path in PACKAGE.rglob("*.py")}
    left = {path for path in there if path.split("/")[0] not in ADAPTERS | NOT_CALLED}
    assert left - set(api_reference.MODULES) == {"kv_events/book", "kv_events/feed",
                                                 "kv_events/peers", "kv_events/publisher"}


def test_what_says_nothing_of_itself_is_found(tmp_path, monkeypatch):
    (tmp_path / "bare.py").write_text('"""Of a module."""\n\n\ndef silent():\n    pass\n')
    monkeypatch.setattr(api_reference, "PACKAGE", tmp_path)
    monkeypatch.setattr(api_reference, "MODULES", ("bare",))
    assert api_reference.reference()[1] == ["terrace.bare.silent"]


def test_the_start_without_root_works_when_it_is_pasted():
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(),
                                              re.S) if "TERRACE_SOCKET=/tmp/" in block]
    build = pathlib.Path(os.environ["TERRACE_BUILD"])
    with tempfile.TemporaryDirectory(prefix="terrace-") as parent:
        slow = pathlib.Path(parent) / "terraced"  # as on a machine that is busy
        slow.write_text(f'#!/bin/sh\nsleep 1\nexec {build}/daemon/terraced "$@"\n')
        slow.chmod(0o755)
        pasted = block.replace("/tmp/", f"{parent}/").replace(
            "$PWD/build/release/daemon", parent).replace("$PWD/build/release", str(build))
        done = subprocess.run(["bash"], input=pasted + "echo status $?; kill $!; wait $!\n",
                              capture_output=True, text=True, check=False, timeout=60)
        assert "health" in done.stdout and "no daemon" not in done.stderr, done
        assert done.stdout.endswith("status 0\n"), done


def test_the_causes_of_a_start_that_is_refused_are_the_programs_words():
    section = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text().split("## It does not start")[1]
    (said,) = re.findall(r"^\| `nvme.paths: (.*?)` \|", section, re.M)
    source = (ROOT / "daemon" / "domain" / "domain_nvme.cc").read_text()
    for words in said.replace("Permission denied", "…").split("…"):
        assert words.strip(": ") in source, words


def test_every_installed_component_that_is_named_is_one():
    named = re.search(r"for c in (.*?); do cmake --install",
                      (ROOT / "docs" / "INTEGRATIONS.md").read_text())[1].split()
    rules = (ROOT / "client" / "CMakeLists.txt").read_text()
    assert set(named) == set(re.findall(r"COMPONENT (\w+)", rules))


def commands(path):
    """The shell lines of a document that start vLLM."""
    for block in re.findall(r"```\w*\n(.*?)```", path.read_text(), re.S):
        for command in re.findall(r"^(?:\w+=\S+ )*vllm serve .*?'\{.*?\}'$", block, re.S | re.M):
            yield command


@pytest.mark.parametrize("name", ("README.md", "client/python/README.md", "docs/INTEGRATIONS.md"))
def test_the_lines_that_start_vllm_say_what_the_connector_takes(name):
    found = list(commands(ROOT / name))
    assert found
    for command in found:
        words = shlex.split(command)
        said = json.loads(words[words.index("--kv-transfer-config") + 1])
        assert said["kv_role"] == "kv_both"
        if said["kv_connector"] != "TerraceConnector":
            continue
        assert said["kv_load_failure_policy"] == "recompute"
        settings = (PACKAGE / "vllm" / "settings.py").read_text()
        assert all(f'    "{key}": Parameter(' in settings
                   for key in said["kv_connector_extra_config"])
