"""The wheel holds the library, is bound to no Python, works from an empty directory and in a fresh
environment, and tells vLLM its connector's name."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from conftest import SPACE

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"
STUBS = pathlib.Path(__file__).resolve().parent / "stubs"


def build(folder, **more):
    shutil.copytree(SOURCES, folder / "python")
    subprocess.run([sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir",
                    folder / "dist"], cwd=folder / "python", check=True, capture_output=True,
                   env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **more})
    (wheel,) = (folder / "dist").iterdir()
    return wheel


def test_a_wheel_brings_its_library(daemon, tmp_path):
    wheel = build(tmp_path)
    assert "-py3-none-linux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "terrace/libterrace.so.1" in names and "terrace/py.typed" in names
        assert {str(path.relative_to(SOURCES)) for path in (SOURCES / "terrace").rglob("*.py")} \
            <= set(names)
        assert not [name for name in names if "test" in name]
        archive.extractall(tmp_path / "installed")
    program = ("import sys, terrace; c = terrace.Client(sys.argv[1]); c.wait_connected(); "
               "print(terrace.__file__, terrace._native.lib._name, terrace.__version__)")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE")}
    environment["PYTHONPATH"] = str(tmp_path / "installed")
    done = subprocess.run([sys.executable, "-c", program, daemon.socket], capture_output=True,
                          text=True, check=True, env=environment, cwd=tmp_path)
    assert done.stdout.count(str(tmp_path / "installed")) == 2
    assert done.stdout.split()[-1] == wheel.name.split("-")[1], "its version"
    assert SPACE.block_tokens == 16


def text_of(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [each for each in archive.namelist() if each.endswith(f".dist-info/{name}")]
        return archive.read(path).decode()


def test_a_wheel_says_what_it_is(tmp_path):
    said = text_of(build(tmp_path, TERRACE_URL="https://example.org/terrace/"), "METADATA")
    for extra in ("vllm", "sglang", "lmcache", "torch", "numpy"):
        assert f"Provides-Extra: {extra}\n" in said
    assert "Project-URL: Source, https://example.org/terrace\n" in said
    assert "# terrace-kv\n" in said and "](" not in said, "links lead nowhere from a registry"
    assert "License: Apache-2.0\n" in said


def test_the_debian_package_tells_vllm_the_same(tmp_path):
    package = SOURCES.parents[1] / "packaging" / "python_entry_points.txt"
    assert text_of(build(tmp_path), "entry_points.txt").strip() == package.read_text().strip()


def test_without_a_url_a_wheel_names_none(tmp_path):
    assert "Project-URL" not in text_of(build(tmp_path, TERRACE_URL=""), "METADATA")


def test_the_library_needs_no_newer_c_library_than_wheels_name():
    """tools/wheel has auditwheel say the same of all that a wheel brings."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump here")
    named = re.search(r"^glibc=(\d+)_(\d+)$", (SOURCES.parents[1] / "tools" / "wheel").read_text(),
                      re.M)
    wanted = subprocess.run(["objdump", "-T", os.environ["TERRACE_LIBRARY"]], check=True,
                            capture_output=True, text=True).stdout
    versions = {(int(a), int(b)): line for line in wanted.splitlines()
                for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", line)}
    most = max(versions)
    assert most <= (int(named[1]), int(named[2])), versions[most]


PLUGIN = """
import importlib.metadata, json, sys
(point,) = [p for p in importlib.metadata.entry_points().get("vllm.general_plugins", ())
            if p.name == "terrace"] if sys.version_info < (3, 10) else [
    p for p in importlib.metadata.entry_points(group="vllm.general_plugins") if p.name == "terrace"]
register = point.load()
heavy = sorted(n for n in sys.modules if n.startswith("terrace.vllm.") or n == "numpy")
register()
register()
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as Factory
import terrace
print(json.dumps([heavy, Factory.registered, terrace.__file__]))
"""


def test_in_a_fresh_environment_vllm_learns_the_connector_s_name(tmp_path):
    """As vLLM's load_general_plugins does it, with the stand-in in vLLM's place."""
    wheel = build(tmp_path)
    made = subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], capture_output=True,
                          text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no virtual environments here: {made.stdout[-200:]}")
    python = tmp_path / "venv" / "bin" / "python"
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("TERRACE", "PYTHON"))}
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
                    "--disable-pip-version-check", wheel], check=True, env=bare,
                   capture_output=True)
    done = subprocess.run([python, "-c", PLUGIN], env={**bare, "PYTHONPATH": str(STUBS)},
                          capture_output=True, text=True, check=True, cwd=tmp_path)
    heavy, registered, where = json.loads(done.stdout)
    assert registered == {"TerraceConnector": ["terrace.vllm", "TerraceConnector"]}
    assert heavy == [], "every process of vLLM pays for what is imported here"
    assert where.startswith(str(tmp_path / "venv"))


def test_another_vllm_is_no_error(tmp_path):
    """One whose factory is elsewhere: vLLM would not start if the plug-in raised."""
    program = "from terrace.vllm_plugin import register; register(); print('on')"
    os.mkdir(tmp_path / "vllm")
    (tmp_path / "vllm" / "__init__.py").write_text("")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True, env={**os.environ, "PYTHONPATH": f"{SOURCES}:{tmp_path}"})
    assert done.stdout == "on\n"
