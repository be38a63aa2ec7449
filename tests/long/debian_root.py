"""A Debian 12 root of a test's own, by debootstrap, and commands in it: with processes and mounts
of its own, which end with the test. It needs root and a Debian mirror.
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import yesterday

ROOT = yesterday.ROOT
DEBS = ROOT / "build/package/debs"
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
COMMAND_S = 900
# What apt and dpkg write beside what packages hold.
BOOKKEEPING = ("/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/tmp", "/root/.cache",
               "/etc/ld.so.cache", "/proc", "/dev", "/sys", "/run/lock", "/srv/debs")


class Failure(Exception):
    """The check cannot go on; its sentence is the verdict."""


def require(*programs):
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        yesterday.skip(f"needs {', '.join(missing)}: apt-get install debootstrap "
                       "systemd-container umoci skopeo")
    if os.geteuid() != 0:
        yesterday.skip("needs root, for a root directory with users of its own")


def run(*command, check=True, timeout=COMMAND_S, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, timeout=timeout, **options)
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))} ended with {done.returncode}:\n"
                      f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def add_options(parser):
    parser.add_argument("--debs", type=pathlib.Path,
                        help="packages that are built already; else tools/package builds them")
    parser.add_argument("--base", help="an archive of the root to start from; made if missing")


def packages(arguments):
    """Today's, by name; built from the compiler cache as far as it goes."""
    if not arguments.debs:
        run(ROOT / "tools/package", cwd=ROOT)
    directory = arguments.debs or DEBS
    return {path.name.split("_")[0]: path for path in directory.glob("*.deb")}


def as_older(package, version, output, replace=()):
    """The package under another version, in which `replace` ((path in it, file), ...) stands."""
    with tempfile.TemporaryDirectory() as scratch:
        run("dpkg-deb", "-R", package, scratch)
        control = pathlib.Path(scratch) / "DEBIAN/control"
        text = control.read_text()
        now = re.search(r"^Version: (.*)$", text, re.M)[1]
        control.write_text(text.replace(f"Version: {now}", f"Version: {version}")
                           .replace(f"(= {now})", f"(= {version})")
                           .replace(f"(>= {now.rsplit('-', 1)[0]})",
                                    f"(>= {version.rsplit('-', 1)[0]})"))
        for name, file in replace:
            target = pathlib.Path(scratch) / name
            if target.suffix == ".toml":
                shutil.copyfile(file, target)
            else:
                run("strip", "-o", target, file)
            sums = pathlib.Path(scratch) / "DEBIAN/md5sums"
            digest = run("md5sum", target).stdout.split()[0]
            sums.write_text(re.sub(rf"^\w+(  {re.escape(name)})$", rf"{digest}\1",
                                   sums.read_text(), flags=re.M))
        old = output / package.name.replace(now, version)
        run("dpkg-deb", "--root-owner-group", "-b", scratch, old)
    return old


def install_dependencies(root, paths, names):
    """All that the packages at `paths` depend on but `names` themselves, so that what is left of
    these can be told."""
    words = set()
    for path in paths:
        fields = run("dpkg-deb", "-f", path, "Depends").stdout.split(",")
        words |= {re.split(r"[ :(|]", field.strip())[0] for field in fields}
    root.run("apt-get", "update")
    root.run("apt-get", "install", "-y", "--no-install-recommends",
             *sorted(word for word in words - set(names) if word))


class DebianRoot:
    """A context manager. `include`: packages beside the smallest Debian there is."""

    def __init__(self, include=(), base=None):
        self.include = include
        self.base = base  # an archive of a root made before, to save the minutes
        self.space = None

    def __enter__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="terrace-root."))
        self.path = self.home / "root"
        if self.base and pathlib.Path(self.base).exists():
            self.path.mkdir()
            run("tar", "-C", self.path, "-xf", self.base)
        else:
            made = run("debootstrap", "--variant=minbase",
                       *(["--include=" + ",".join(self.include)] if self.include else []),
                       SUITE, self.path, MIRROR, check=False)
            if made.returncode != 0:
                shutil.rmtree(self.home)
                yesterday.skip(f"debootstrap from {MIRROR} failed (no network?): "
                               f"{made.stdout[-300:]}")
            if self.base:
                run("tar", "-C", self.path, "-cf", self.base, ".")
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        (self.path / "srv/debs").mkdir()
        return self

    def __exit__(self, *_):
        self.close()
        # Its mounts were of a namespace that is gone, so nothing but its own files is there.
        shutil.rmtree(self.home)

    def open(self):
        """Processes and mounts of its own, until close()."""
        script = (f"mount -t proc proc {self.path}/proc && mount --rbind /dev {self.path}/dev && "
                  f"mount -t tmpfs tmpfs {self.path}/run && echo up && exec sleep infinity")
        self.space = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            stdout=subprocess.PIPE, text=True)
        if self.space.stdout.readline() != "up\n":
            raise Failure("no namespaces for the root: is this a container without CAP_SYS_ADMIN?")
        children = pathlib.Path(f"/proc/{self.space.pid}/task/{self.space.pid}/children")
        self.inside = children.read_text().split()[0]

    def close(self):
        if self.space is not None:
            self.space.kill()
            self.space.wait()
            self.space = None

    def command(self, *words, user="root"):
        return ["nsenter", "--target", self.inside, "--mount", "--pid", "--",
                "chroot", f"--userspec={user}:{user}", self.path, "env", "-i",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                "DEBIAN_FRONTEND=noninteractive", "PYTHONDONTWRITEBYTECODE=1", *map(str, words)]

    def run(self, *words, user="root", check=True):
        return run(*self.command(*words, user=user), check=check)

    def start(self, *words, user, log):
        with open(log, "ab") as output:
            return subprocess.Popen(self.command(*words, user=user), stdout=output, stderr=output)

    def copy(self, *files):
        """Into /srv/debs; their names there."""
        for file in files:
            shutil.copy(file, self.path / "srv/debs")
        return [f"/srv/debs/{file.name}" for file in files]

    def files(self):
        """Every file and directory there is, but what apt and dpkg keep about them. REQUIRES: the
        root is closed."""
        found = set()
        for directory, folders, files in os.walk(self.path):
            inside = "/" + os.path.relpath(directory, self.path)
            inside = "" if inside == "/." else inside
            folders[:] = [f for f in folders if f"{inside}/{f}" not in BOOKKEEPING]
            found |= {f"{inside}/{name}" for name in folders + files
                      if f"{inside}/{name}" not in BOOKKEEPING}
        return found
