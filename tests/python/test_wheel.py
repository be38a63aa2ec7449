"""The wheel holds the library, is bound to no Python, and works from an empty directory."""
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

from conftest import SPACE

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"


def test_a_wheel_brings_its_library(daemon, tmp_path):
    shutil.copytree(SOURCES, tmp_path / "python")
    subprocess.run([sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir",
                    tmp_path / "dist"], cwd=tmp_path / "python", check=True, capture_output=True,
                   env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "-py3-none-linux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "terrace/libterrace.so.1" in names and "terrace/py.typed" in names
        assert {str(path.relative_to(SOURCES)) for path in (SOURCES / "terrace").rglob("*.py")} \
            <= set(names)
        assert not [name for name in names if "test" in name]
        archive.extractall(tmp_path / "installed")
    program = ("import sys, terrace; c = terrace.Client(sys.argv[1]); c.wait_connected(); "
               "print(terrace.__file__, terrace._native.lib._name)")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE")}
    environment["PYTHONPATH"] = str(tmp_path / "installed")
    done = subprocess.run([sys.executable, "-c", program, daemon.socket], capture_output=True,
                          text=True, check=True, env=environment, cwd=tmp_path)
    assert done.stdout.count(str(tmp_path / "installed")) == 2
    assert SPACE.block_tokens == 16
