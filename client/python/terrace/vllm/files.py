"""Files that weights are read from: what decides which bytes a path has."""
import os
import stat
import time
from typing import Iterable, Iterator, List, Tuple

CLOCKS_APART_S = 2.0  # a file system's clock may be behind
_LINKS_MAX = 40  # as Linux follows

About = Tuple[str, int, int, int, int, int]  # path, device, inode, bytes, mtime and ctime in ns


def process_started_s() -> float:
    """When this process began, by the clock of files, to a hundredth of a second or so."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def names_in(directory: str, files_max: int) -> List[str]:
    """Its files, sorted: vLLM loads from no directory within it."""
    names = sorted(entry.name for entry in os.scandir(directory) if not entry.is_dir())
    if len(names) > files_max:
        raise OSError(f"{directory} holds {len(names)} files, and {files_max} are looked at")
    return names


def looked_at(directory: str, names: Iterable[str]) -> List[About]:
    """All that decides which bytes vLLM reads there: links on the way, directory, files. One that
    came after the names were listed shows in the directory's own time."""
    found = list(_way_to(directory))
    at = found[-1][0]
    for name in names:
        found += _way_to(name, at)
    return found


def _way_to(path: str, at: str = "/") -> Iterator[About]:
    """Every symbolic link that is followed from `at`, where there are none, to `path`; its end."""
    todo, links = path.split("/")[::-1], 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, name)
        about = os.lstat(here)
        if not stat.S_ISLNK(about.st_mode):
            at = here
            continue
        links += 1
        if links > _LINKS_MAX:
            raise OSError(f"more than {_LINKS_MAX} links on the way to {path}")
        yield _about(here, about)
        target = os.readlink(here)
        at = "/" if target.startswith("/") else at
        todo += target.split("/")[::-1]
    yield _about(at, os.lstat(at))


def _about(path: str, about: os.stat_result) -> About:
    return (path, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns,
            about.st_ctime_ns)
