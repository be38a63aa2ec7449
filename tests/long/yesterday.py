"""The latest release, built from history: programs and libraries that today's are held against."""
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOME = ROOT / "build/yesterday"
EXIT_SKIPPED = 77


def latest():
    """(version, commit) of the last line of tests/releases.txt."""
    lines = [line.split() for line in (ROOT / "tests/releases.txt").read_text().splitlines()
             if line and not line.startswith("#")]
    return lines[-1]


def skip(why):
    print(f"SKIPPED, so not checked on this machine: {why}")
    sys.exit(EXIT_SKIPPED)


def sources():
    """The release's tree under build/yesterday."""
    version, commit = latest()
    tree = HOME / f"{version}-{commit[:12]}"
    known = subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"],
                           capture_output=True, check=False)
    if known.returncode != 0:
        skip(f"commit {commit} of release {version} is not in this clone, which is shallow or no "
             "clone: git fetch --unshallow")
    if not (tree / "CMakeLists.txt").exists():
        shutil.rmtree(HOME, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE,
                                 check=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


class Build:
    """What tests need of a build: where its programs, library and Python package are."""

    def __init__(self, version, tree, build):
        self.version = version
        self.terraced = build / "daemon/terraced"
        self.terrace = build / "tools/terrace"
        self.config = tree / "systemd/terraced.toml"
        self.library = build / "client/libterrace.so"
        self.python = tree / "client/python"

    def environment(self):
        return {"TERRACE_LIBRARY": str(self.library), "PYTHONPATH": str(self.python),
                "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/local/bin:/usr/bin:/bin"}


def today(build=ROOT / "build/release"):
    made = Build("today", ROOT, pathlib.Path(build))
    if not made.terraced.exists():
        sys.exit(f"missing: {made.terraced}. Build first: cmake --preset release && "
                 "cmake --build build/release, or name another build directory with --build")
    return made


def release():
    """The latest release's build; minutes where the compiler cache does not know it."""
    tree = sources()
    version = latest()[0]
    build = tree / "build/release"
    for command in (["cmake", "--preset", "release", "-DBUILD_TESTING=OFF", "-DTERRACE_CUDA=off"],
                    ["cmake", "--build", build, "--target", "terraced", "terrace", "libterrace"]):
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"release {version} does not build: {done.stdout[-3000:]}"
                             f"{done.stderr[-1000:]}")
    return Build(version, tree, build)
