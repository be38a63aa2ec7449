"""What engines of a host know of blocks, in a directory: each has a file of its own, and reads all.

So an engine that starts anew, or another one beside it, can announce what the daemon still has. A
file is appended to, and written anew when most of it is out of date; a record has its length and a
checksum, and what a crash has left half written is cut off. Nothing is synced: what is lost is not
announced until a request brings it again. Files hold prompts' tokens, and are their user's alone.

THREADING: one thread.
LIMITS: turn_bytes_max of other engines' files are read a turn, 256 files; at a start files that
nobody writes are deleted, the oldest first, while there are more than idle_max.
"""
import fcntl
import logging
import os
import pathlib
import re
import struct
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

logger = logging.getLogger("terrace")
_TITLE = b"terrace kv book 1\n"
_HEAD = struct.Struct("<IIQ")  # bytes of the facts, checksum of name and facts, name
_RECORD_BYTES_MAX = 1 << 20
_FILES_MAX = 256
_SLACK_BYTES = 1 << 20

Record = Tuple[int, bytes]


def _records(data: bytes) -> Iterator[Tuple[Record, int]]:
    """Whole records, each with the place where it ends; up to the first that is none."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, check, name = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if length > _RECORD_BYTES_MAX or end > len(data):
            return
        if zlib.crc32(data[at + 8:end]) != check:
            return
        yield (name, data[at + _HEAD.size:end]), end
        at = end


def _packed(name: int, facts: bytes) -> bytes:
    body = struct.pack("<Q", name) + facts
    return struct.pack("<II", len(facts), zlib.crc32(body)) + body


class _Reader:
    """Of one file, as it grows."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._inode = 0
        self._place = 0

    def read(self, bytes_max: int) -> Tuple[List[Record], int]:
        """The records that came, and how many bytes were read."""
        with open(self.path, "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self._place:
                self._inode, self._place = about.st_ino, len(_TITLE)
                if file.read(len(_TITLE)) != _TITLE:
                    return [], 0
            if about.st_size <= self._place:
                return [], 0
            file.seek(self._place)
            data = file.read(bytes_max)
        found, read = [], 0
        for record, read in _records(data):
            found.append(record)
        self._place += read
        return found, read


class Book:
    """owner: of this engine's own file, the same in each of its starts. Raises OSError where the
    directory cannot be written to, and BlockingIOError where another process has that file."""

    def __init__(self, directory: str, owner: str, *, turn_bytes_max: int = 1 << 20,
                 idle_max: int = 16):
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._directory / (re.sub(r"[^A-Za-z0-9._-]", "_", owner)[:200] + ".book")
        self._turn_bytes_max = turn_bytes_max
        self._readers: Dict[pathlib.Path, _Reader] = {}
        self._file: Any = None
        self._live_bytes = 0  # of records that a file written anew would have
        self._bytes = 0
        self._open()
        self._delete_idle(idle_max)

    def _open(self) -> None:
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file = os.fdopen(opened, "r+b", buffering=1 << 16)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        self._file = file

    def load(self) -> List[Record]:
        """What an earlier start of this engine wrote. Called once, before anything is added."""
        self._file.seek(0)
        title = self._file.read(len(_TITLE))
        found: List[Record] = []
        end = len(_TITLE)
        if title == _TITLE:
            data = self._file.read()
            for record, place in _records(data):
                found.append(record)
                end = len(_TITLE) + place
        else:
            self._file.seek(0)
            self._file.write(_TITLE)
        self._file.seek(end)
        self._file.truncate(end)
        self._bytes = self._live_bytes = end
        return found

    def add(self, name: int, facts: bytes) -> None:
        """Of a block that this engine knows."""
        data = _packed(name, facts)
        self._file.write(data)
        self._bytes += len(data)

    def flush(self, live: Iterable[Record], live_count: int) -> None:
        """Others can read what was added. live: all records that are worth having."""
        self._file.flush()
        per_record = 256 * live_count + _SLACK_BYTES
        if self._bytes > self._live_bytes + 2 * max(per_record, self._live_bytes):
            self._write_anew(live)

    def _write_anew(self, live: Iterable[Record]) -> None:
        fresh = self._path.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600),
                  "wb") as file:
            file.write(_TITLE)
            for name, facts in live:
                file.write(_packed(name, facts))
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(fresh, self._path)
            self._file.close()
            self._file = os.fdopen(os.dup(file.fileno()), "ab", buffering=1 << 16)
        self._bytes = self._live_bytes = self._file.tell()

    def read_others(self) -> List[Record]:
        """What other engines have written since the last call, as far as a turn goes."""
        left, found = self._turn_bytes_max, []
        for path in self._others():
            reader = self._readers.setdefault(path, _Reader(path))
            try:
                records, read = reader.read(left)
            except OSError:
                del self._readers[path]
                continue
            found += records
            left -= read
            if left < self._turn_bytes_max // 2:
                break
        return found

    def _others(self) -> List[pathlib.Path]:
        paths = sorted(path for path in self._directory.glob("*.book") if path != self._path)
        return paths[:_FILES_MAX]

    def _delete_idle(self, idle_max: int) -> None:
        idle = [path for path in self._others() if _is_idle(path)]
        idle.sort(key=lambda path: path.stat().st_mtime)
        for path in idle[:-idle_max] if idle_max else idle:
            logger.info("terrace: %s is of an engine that is gone: deleted", path)
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Writes what was added."""
        self._file.close()


def _is_idle(path: pathlib.Path) -> bool:
    """No process writes it."""
    opened: Optional[int] = None
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        if opened is not None:
            os.close(opened)
