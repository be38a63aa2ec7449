"""Epochs: which weights the keys of a Space's blocks are of, where an engine changes them while it
runs.

An engine's digests name tokens, not weights. Under an epoch every digest is mixed with the epoch's
name before it becomes a key, so that of another epoch nothing can be named, on any tier or host,
and nobody has to be told. Engines share what they store as long as they are in one epoch: that of
their start, or one with the same version. docs/PROTOCOL.md, Epochs.
"""
import hashlib
import logging
import os
import queue
import secrets
import threading
import time
import weakref
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy

_TITLE = b"terrace epoch v1\0"
_VERSION_BYTES_MAX = 256
# A file changed so lately may change once more and look the same.
_SETTLED_NS = 1_000_000_000
# A look at the file that takes longer is taken for none.
_LOOK_S = 0.2


def mask_of(name: str) -> bytes:
    """Of the epoch of that name, 32 bytes; of "", the epoch of a start, none."""
    return hashlib.sha256(_TITLE + name.encode()).digest() if name else b""


def of_version(version: str) -> str:
    """The name of the epoch that everybody with these weights is in."""
    return f"version {version}"


def of_nobody_else() -> str:
    """The name of an epoch that nobody was ever in."""
    return f"random {secrets.token_hex(16)}"


def both(one: bytes, other: bytes) -> bytes:
    """The mask of two together, such as an adapter's and an epoch's."""
    if not one or not other:
        return one or other
    return hashlib.sha256(one + other).digest()


def masked(digests: Sequence[bytes], mask: bytes) -> Sequence[bytes]:
    """Digests of one length, at most the mask's, under that mask; without one, as they are."""
    if mask == b"" or not digests:
        return digests
    width = len(digests[0])
    rows = numpy.frombuffer(b"".join(digests), numpy.uint8).reshape(-1, width)
    mixed = rows ^ numpy.frombuffer(mask[:width], numpy.uint8)
    return mixed.view(f"V{width}").ravel().tolist()


class _Seen(NamedTuple):
    """What a look has found. stamp: of the file, None where it may change once more and look the
    same; text: None: as the caller has it."""
    stamp: Optional[Tuple[int, ...]]
    text: Optional[str]


def _look(path: str, stamp: Optional[Tuple[int, ...]]) -> _Seen:
    """Raises OSError and ValueError. May hang."""
    about = os.stat(path)
    # A copy and an archive set mtime, and an inode is used again; no program sets ctime.
    found = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    if found == stamp:
        return _Seen(stamp, None)
    with open(path, "rb") as file:
        text = file.read(_VERSION_BYTES_MAX + 1).decode(errors="strict").strip()
    if not text or len(text) > _VERSION_BYTES_MAX:
        raise ValueError(f"it holds {len(text)} characters: write 1 to {_VERSION_BYTES_MAX}")
    return _Seen(found if time.time_ns() - about.st_ctime_ns > _SETTLED_NS else None, text)


class _Looker:
    """Looks at one file on a thread of its own, which ends with it: a file system that hangs holds
    up what is known of the file, not an engine's step, nor the end of its process. THREADING: of
    one caller at a time."""

    def __init__(self, path: str):
        self._path = path
        self._questions: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._answers: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._is_under_way = False
        self._is_started = False
        # Not when the interpreter ends: a thread that wakes then may be in the way of its end.
        weakref.finalize(self, self._questions.put, None).atexit = False

    def look(self, stamp: Optional[Tuple[int, ...]]) -> _Seen:
        """What a look finds that begins after this call, as _look; TimeoutError where there is no
        answer in time, and at once while one of before is not answered."""
        if not self._is_started:
            threading.Thread(target=_answer, args=(self._questions, self._answers), daemon=True,
                             name="terrace-version").start()
            self._is_started = True
        try:
            if self._is_under_way:
                self._answers.get_nowait()  # it may have begun before this call
            self._is_under_way = True
            self._questions.put((self._path, stamp))
            answer = self._answers.get(timeout=_LOOK_S)
        except queue.Empty:
            raise TimeoutError(f"there is no answer in {_LOOK_S:g} s") from None
        self._is_under_way = False
        if isinstance(answer, _Seen):
            return answer
        raise answer


def _answer(questions: "queue.SimpleQueue[Any]", answers: "queue.SimpleQueue[Any]") -> None:
    while True:
        question = questions.get()
        if question is None:
            return
        try:
            answers.put(_look(*question))
        except (OSError, ValueError) as error:
            answers.put(error)


class Weights:
    """The epoch an engine is in. version_path: of a file whose text names the weights that are
    loaded, for as long as they are; None: nothing does, and every reset begins an epoch of its
    own."""

    def __init__(self, version_path: Optional[str], logger: logging.Logger):
        self.name = ""
        self._path = None if version_path is None else str(version_path)
        self._looker = None if self._path is None else _Looker(self._path)
        self._logger = logger
        # What the file looked like when its text was certain.
        self._seen: Optional[Tuple[int, ...]] = None
        self.number = 0
        self.look()
        self.number = 0  # of the epoch; that of the start has none before it

    @property
    def mask(self) -> bytes:
        """Over digests of this epoch."""
        return mask_of(self.name)

    def look(self) -> bool:
        """Whether the file names other weights than it did. One stat, mostly, by another thread."""
        if self._looker is None:
            return False
        try:
            seen = self._looker.look(self._seen)
        except (OSError, ValueError, RuntimeError) as error:  # the last: no thread can be had
            return self._lose(error)
        self._seen = seen.stamp
        return False if seen.text is None else self._move(of_version(seen.text))

    def reset(self) -> None:
        """The engine forgets its own cache: its weights may be others from here on."""
        if self._path is None:
            self._move(of_nobody_else())
        else:
            self.look()

    def _lose(self, error: Exception) -> bool:
        """Nobody knows what the weights are: they are nobody else's until the file says."""
        self._seen = None
        if self.name.startswith("random "):
            return False
        self._logger.warning(
            "terrace: the version of the weights cannot be read from %s: %s. Nothing is shared "
            "with others until it can", self._path, error)
        return self._move(of_nobody_else())

    def _move(self, name: str) -> bool:
        if name == self.name:
            return False
        self.name = name
        self.number += 1
        self._logger.info("terrace: keys are of epoch %r from here on", name)
        return True
