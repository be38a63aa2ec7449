#!/usr/bin/env python3
"""usage: tests/packages.py DIRECTORY

Builds the Debian packages and looks at what comes out: which there are, what each holds and depends
on, lintian's verdict, the list of parts; and a daemon, the command and the Python client start from
the unpacked files and understand each other. Installing them is tests/long/install.py's.
DIRECTORY is where they are unpacked. Exit status 77 where something to build them with is missing.
"""
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEBS = ROOT / "build/package/debs"
EXIT_SKIPPED = 77
NEEDS = ("cpack", "deb-systemd-helper", "dpkg-deb", "dpkg-shlibdeps", "help2man", "lintian")
# Each package, what it must hold, and what must stand in its control file.
PACKAGES = {
    "terraced": (["usr/bin/terraced", "usr/lib/systemd/system/terraced.service",
                  "usr/lib/systemd/system/terraced.socket", "usr/lib/sysusers.d/terraced.conf",
                  "usr/lib/systemd/system/terraced-metrics.socket",
                  "usr/share/terrace/terrace-alerts.yml", "usr/share/doc/terraced/METRICS.md",
                  "usr/share/doc/terraced/TROUBLESHOOTING.md",
                  "usr/share/doc/terraced/RELIABILITY.md",
                  "usr/lib/tmpfiles.d/terraced.conf", "etc/terrace/terraced.toml",
                  "usr/share/man/man8/terraced.8.gz", "usr/share/doc/terraced/OPERATIONS.md"],
                 {"Depends": "librocksdb7", "Recommends": "terrace"}),
    "terrace": (["usr/bin/terrace", "usr/share/man/man1/terrace.1.gz",
                 "usr/share/man/man1/terrace-evict.1.gz",
                 "usr/share/bash-completion/completions/terrace",
                 "usr/share/zsh/vendor-completions/_terrace",
                 "usr/share/fish/vendor_completions.d/terrace.fish"], {"Depends": "libc6"}),
    "libterrace1": (["usr/lib/*/libterrace.so.1"], {"Depends": "libssl3"}),
    "libterrace-dev": (["usr/include/terrace/terrace.h", "usr/lib/*/libterrace.so",
                        "usr/lib/*/pkgconfig/terrace.pc",
                        "usr/lib/*/cmake/terrace/terraceConfig.cmake",
                        "usr/share/doc/libterrace-dev/INTEGRATIONS.md"],
                       {"Depends": "libterrace1 (="}),
    "python3-terrace": (["usr/lib/python3/dist-packages/terrace/vllm/connector.py",
                         "usr/lib/python3/dist-packages/terrace/py.typed"],
                        {"Architecture": "all", "Depends": "libterrace1"}),
}
ONLY_WITH_NVCC = {
    "terrace-cuda": (["usr/lib/*/terrace/libterrace_cuda.so"], {"Enhances": "terraced"})}
FOLDERS = ("usr/", "etc/terrace/")


class Failure(Exception):
    pass


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, **options)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))} ended with {done.returncode}:\n"
                      f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def expect(holds, sentence):
    if not holds:
        raise Failure(sentence)


class Package:
    def __init__(self, path, root):
        self.path = path
        self.name = path.name.split("_")[0]
        self.root = root / self.name
        run("dpkg-deb", "-R", path, self.root)
        self.control = dict(re.findall(r"^([\w-]+): (.*)$",
                                       (self.root / "DEBIAN/control").read_text(), re.M))
        self.files = sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*")
                            if not p.is_dir() and "DEBIAN" not in p.parts)

    def check(self, contents, fields):
        for pattern in contents:
            expect(fnmatch.filter(self.files, pattern), f"{self.name} does not hold {pattern}")
        for field, word in fields.items():
            expect(word in self.control.get(field, ""),
                   f"{self.name}: {field} is '{self.control.get(field)}', without '{word}'")
        for document in ("copyright", "changelog.Debian.gz"):
            expect(f"usr/share/doc/{self.name}/{document}" in self.files,
                   f"{self.name} has no {document}")
        strange = [f for f in self.files if not f.startswith(FOLDERS)]
        expect(not strange, f"{self.name} writes to {strange}")
        listed = dict(reversed(line.split("  ", 1)) for line in
                      (self.root / "DEBIAN/md5sums").read_text().splitlines())
        for name in self.files:
            path = self.root / name
            if not path.is_symlink():
                expect(listed.get(name) == hashlib.md5(path.read_bytes()).hexdigest(),
                       f"{self.name}: {name} is not as its md5sums say")
        for script in ("postinst", "prerm", "postrm"):
            if (self.root / "DEBIAN" / script).exists():
                run("sh", "-n", self.root / "DEBIAN" / script)


def build():
    """The packages' paths. The build itself is from the compiler cache where there is one."""
    run(ROOT / "tools/package", cwd=ROOT)
    return sorted(DEBS.glob("*.deb"))


def check_lintian(paths):
    done = subprocess.run(["lintian", "--show-overrides", "--tag-display-limit", "0",
                           *paths, "--allow-root"], capture_output=True, text=True, check=False)
    told = [line for line in done.stdout.splitlines() if re.match(r"[EWO]: ", line)]
    found = [line for line in told if line[0] in "EW"]
    expect(not found and done.returncode == 0, "lintian:\n" + "\n".join(found or [done.stderr]))
    print(f"lintian: 0 errors, 0 warnings, {len(told)} overridden: "
          + "; ".join(sorted({line.split()[2] for line in told})))


def check_apart(packages):
    owners = {}
    for package in packages.values():
        for name in package.files:
            owners.setdefault(name, []).append(package.name)
    shared = {name: who for name, who in owners.items() if len(who) > 1}
    expect(not shared, f"files of two packages: {shared}")
    expect((packages["terraced"].root / "DEBIAN/conffiles").read_text().split()
           == ["/etc/terrace/terraced.toml"], "conffiles of terraced")
    unit = (packages["terraced"].root / "usr/lib/systemd/system/terraced.service").read_text()
    expect("ExecStart=/usr/bin/terraced --config /etc/terrace/terraced.toml" in unit,
           "the unit starts another program than /usr/bin/terraced")


def check_parts(packages):
    """The list of parts names every program as it is shipped, and every package that it loads."""
    (path,) = packages["terraced"].root.glob("usr/share/doc/terraced/*.spdx.json")
    document = json.loads(path.read_text())
    expect(document["spdxVersion"] == "SPDX-2.3" and document["dataLicense"] == "CC0-1.0",
           "the list of parts is no SPDX 2.3")
    sums = {c["checksumValue"] for f in document["files"] for c in f["checksums"]}
    for package in packages.values():
        for name in package.files:
            file = package.root / name
            if not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF":
                expect(hashlib.sha256(file.read_bytes()).hexdigest() in sums,
                       f"the list of parts has another {name}")
    loaded = {r["relatedSpdxElement"] for r in document["relationships"]
              if r["relationshipType"] == "DYNAMIC_LINK"}
    names = {p["name"] for p in document["packages"] if p["SPDXID"] in loaded}
    names |= set(re.findall(r"[\w.+-]+", run("dpkg-query", "-W", "-f=${Provides}\n", *names)))
    for package in ("terraced", "terrace", "libterrace1"):
        for depends in re.findall(r"\b(z?lib[\w.+-]+)", packages[package].control["Depends"]):
            expect(depends in names, f"{package} depends on {depends}, which is no part")
    built_in = {p["name"] for p in document["packages"]}
    for name in ("libspdlog-dev", "libasio-dev", "nlohmann-json3-dev", "libcli11-dev"):
        expect(name in built_in, f"{name}, which is compiled in, is no part")
    print(f"parts: {len(document['packages'])} packages, {len(document['files'])} programs")


def check_purge(package, directory):
    """Nothing stays in the system's own directories, nor a unit that an operator has enabled."""
    left = ("etc/systemd/system/sockets.target.wants/terraced.socket",
            "etc/systemd/system/sockets.target.wants/terraced-metrics.socket",
            "etc/systemd/system/multi-user.target.wants/terraced.service",
            "etc/terrace/default.keys", "run/terrace/default.sock",
            "var/lib/terrace/default.secret")
    kept = "etc/systemd/system/sockets.target.wants/other.socket"
    for name in (*left, kept):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("etc/systemd"):
            path.symlink_to(f"/lib/systemd/system/{path.name}")
        else:
            path.write_text("")
    enabled = directory / "var/lib/systemd/deb-systemd-helper-enabled"
    for wants in ("sockets.target.wants/terraced.socket",
                  "multi-user.target.wants/terraced.service"):  # as the helper enables them
        (enabled / wants).parent.mkdir(parents=True, exist_ok=True)
        (enabled / wants).write_text("")
        (enabled / f"{pathlib.Path(wants).name}.dsh-also").write_text(
            f"/etc/systemd/system/{wants}\n")
    postrm = package.root / "DEBIAN/postrm"
    for verb in ("remove", "purge"):
        run("sh", postrm, verb, env={**os.environ, "DPKG_ROOT": str(directory),
                                        "DPKG_MAINTSCRIPT_PACKAGE": package.name})
        names = {str(p.relative_to(directory)) for p in directory.rglob("*")
                 if p.is_symlink() or p.is_file()}
        if verb == "remove":
            expect(names >= {*left, kept}, f"a remove takes {sorted({*left, kept} - names)}")
    expect(names & {*left, kept} == {kept}, f"a purge leaves {sorted(names & {*left})}")
    expect(not any((directory / name).exists() for name in ("etc/terrace", "run/terrace",
                                                            "var/lib/terrace")),
           "a purge leaves a directory")


def check_they_run(packages, directory):
    """From the unpacked files, with nothing of the build."""
    library = next(packages["libterrace1"].root.glob("usr/lib/*/libterrace.so.1")).parent
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("TERRACE")},
                   "LD_LIBRARY_PATH": str(library), "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": str(packages["python3-terrace"].root
                                     / "usr/lib/python3/dist-packages")}
    programs = {name: packages[name].root / "usr/bin" / name for name in ("terraced", "terrace")}
    version = packages["terraced"].control["Version"].rsplit("-", 1)[0]
    for name, program in programs.items():
        said = run(program, "--version", env=environment)
        expect(re.fullmatch(rf"{name} {re.escape(version)} \([\w-]+\)\n", said),
               f"{name} --version says '{said.strip()}', the package is {version}")
    socket = directory / "t.sock"
    log = directory / "log"
    with open(log, "wb") as output:
        daemon = subprocess.Popen([programs["terraced"], "--socket", socket, "--dram-bytes",
                                   "512MiB"], stdout=output, stderr=output, env=environment)
    try:
        for verb in ("store", "load"):
            told = run("/usr/bin/python3", ROOT / "tests/long/prompts.py", verb, socket, 0, 4,
                       env=environment)
            expect(json.loads(told) == {"asked": 128, "found": 128, "wrong": 0},
                   f"{verb} from the unpacked packages: {told}{log.read_text()}")
        status = run(programs["terrace"], "status", "--json", "--socket", socket, env=environment)
        expect(json.loads(status)["version"] == version, "terrace status names another version")
    finally:
        daemon.terminate()
        daemon.wait(60)
    expect(daemon.returncode == 0, f"terraced ended with {daemon.returncode}: {log.read_text()}")


def main():
    missing = [name for name in NEEDS if not shutil.which(name)]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed (tools/setup installs them)")
        return EXIT_SKIPPED
    os.nice(10)  # a build: tests that run beside it come first
    directory = pathlib.Path(sys.argv[1])
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        paths = build()
        packages = {p.name: p for p in (Package(path, directory) for path in paths)}
        expected = {**PACKAGES, **{n: c for n, c in ONLY_WITH_NVCC.items() if n in packages}}
        expect(set(packages) == set(expected), f"built {sorted(packages)}")
        for name, (contents, fields) in expected.items():
            packages[name].check(contents, fields)
        check_apart(packages)
        check_parts(packages)
        with tempfile.TemporaryDirectory() as root:
            check_purge(packages["terraced"], pathlib.Path(root))
        with tempfile.TemporaryDirectory() as sockets:  # a socket's path is short
            check_they_run(packages, pathlib.Path(sockets))
        check_lintian(paths)
    except Failure as failure:
        print(f"FAILED: {failure}")
        return 1
    for path in paths:
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
