"""Looks at files, on threads of their own: a file system that hangs holds up what is known of the
files on it, and neither a step of the engine nor the end of its process.
"""
import dataclasses
import hashlib
import os
import queue
import threading
import time
from typing import Callable, Dict, Hashable, List, Optional

from . import files

FILES_MAX = 256
_LINES_MAX = 8
_MOUNTS = "/proc/self/mountinfo"


@dataclasses.dataclass(frozen=True)
class AdapterFiles:
    """An adapter's files as the scheduler saw them: a worker that sees others does not store.
    place: the device that they lie on, all of which hangs together."""
    path: str
    stamp: str
    place: int

    @classmethod
    def of(cls, path: str, seen: List[files.About]) -> "AdapterFiles":
        return cls(path, _stamp(seen), os.stat(path).st_dev)

    @property
    def is_unchanged(self) -> bool:
        """Now. May hang."""
        try:
            names = files.names_in(self.path, FILES_MAX)
            return _stamp(files.looked_at(self.path, names)) == self.stamp
        except OSError:
            return False


def _stamp(seen: List[files.About]) -> str:
    return hashlib.sha256(repr(seen).encode()).hexdigest()


class Lines:
    """Work in its order, by one thread a place. THREADING: of one caller; the threads are daemons,
    so a process ends without those that hang. LIMITS: of more than _LINES_MAX places the others are
    in line with the last one."""

    def __init__(self, name: str):
        self._name = name
        self._lines: "Dict[Hashable, queue.Queue[Optional[Callable[[], None]]]]" = {}

    def put(self, place: Hashable, work: Callable[[], None]) -> None:
        """work: has not to raise."""
        if place not in self._lines and len(self._lines) >= _LINES_MAX:
            place = next(reversed(self._lines))
        if place not in self._lines:
            line = self._lines[place] = queue.Queue()
            threading.Thread(target=_work_off, args=(line,), daemon=True, name=self._name).start()
        self._lines[place].put(work)

    def join(self) -> None:
        """Until all of it has been done."""
        for line in self._lines.values():
            line.join()

    def close(self) -> None:
        """Each thread ends with what it does."""
        for line in self._lines.values():
            line.put(None)


def _work_off(line: "queue.Queue[Optional[Callable[[], None]]]") -> None:
    while True:
        work = line.get()
        try:
            if work is None:
                return
            work()
        finally:
            line.task_done()


class Look:
    """At files, once, after it was asked for. is_unchanged: None until that is known."""

    def __init__(self, seen: AdapterFiles):
        self._seen = seen
        self._asked_s = time.monotonic()
        self._is_over = threading.Event()
        self.has_begun = False
        self.is_unchanged: Optional[bool] = None

    def run(self) -> None:
        self.has_begun = True  # before the first look: nobody who comes later is served by this
        try:
            self.is_unchanged = self._seen.is_unchanged
        finally:
            self._is_over.set()

    def wait(self, wait_s: float) -> None:
        """Until it is over, not longer."""
        self._is_over.wait(wait_s)

    def is_overdue(self, limit_s: float) -> bool:
        """There is no answer, and has been none for so long."""
        return self.is_unchanged is None and time.monotonic() > self._asked_s + limit_s


class Looks:
    """Of one caller. LIMITS: of the same files one look is under way and one waits for it, however
    many are asked for."""

    def __init__(self) -> None:
        self._lines = Lines("terrace-looks")
        self._last: Dict[AdapterFiles, Look] = {}

    def look(self, seen: AdapterFiles) -> Look:
        """One that begins after this call."""
        look = self._last.get(seen)
        if look is None or look.has_begun:
            look = self._last[seen] = Look(seen)
            self._lines.put(seen.place, look.run)
        return look

    def close(self) -> None:
        """Those that are under way have nobody to tell."""
        self._lines.close()


def mount_of(path: str) -> str:
    """Where the file system is mounted that has it, by its name alone: nothing of it is asked, and
    no link is followed."""
    found = "/"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                mount = _unescaped(line.split()[4])
                if len(mount) > len(found) and f"{path}/".startswith(f"{mount}/"):
                    found = mount
    except OSError:
        pass
    return found


def _unescaped(name: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        name = name.replace(escape, character)
    return name
