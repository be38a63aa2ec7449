"""One wheel for every CPython: the library inside is C, found by ctypes. It comes from the build
directory that TERRACE_BUILD names (default: build/release beside the sources)."""
import os
import pathlib
import re
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = "libterrace.so.1"
PLUGIN = "libterrace_cuda.so"  # where there was a CUDA toolkit


BUILD = pathlib.Path(os.environ.get("TERRACE_BUILD", HERE.parents[1] / "build/release"))


def built(path):
    """A file of the build."""
    if not (BUILD / path).exists():
        raise SystemExit(f"{BUILD / path} is not there: build libterrace first, or name its build "
                         "directory in TERRACE_BUILD")
    return BUILD / path


def version():
    return re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.+)$", built("CMakeCache.txt").read_text(),
                     re.M)[1]


class BuildWithLibrary(build_py):
    """Puts libterrace beside the modules."""

    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib) / "terrace"
        shutil.copy2(built(f"client/{LIBRARY}"), package / LIBRARY)
        if (BUILD / "cuda" / PLUGIN).exists():
            shutil.copy2(BUILD / "cuda" / PLUGIN, package / PLUGIN)


class BinaryDistribution(Distribution):
    """Bound to the machine ..."""

    def has_ext_modules(self):
        return True


class PlatformWheel(bdist_wheel):
    """... but not to a Python."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


def urls():
    """Of the repository that this is built from, if TERRACE_URL names it."""
    url = os.environ.get("TERRACE_URL", "").rstrip("/")
    return {"Source": url, "Issues": f"{url}/issues",
            "Documentation": f"{url}/blob/main/docs/INTEGRATIONS.md"} if url else {}


setup(version=version(), project_urls=urls(), distclass=BinaryDistribution,
      cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
