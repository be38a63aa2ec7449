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
import secrets
import time
from typing import Optional, Sequence, Tuple

import numpy

_TITLE = b"terrace epoch v1\0"
_VERSION_BYTES_MAX = 256
# A file changed so lately may change once more and look the same.
_SETTLED_NS = 1_000_000_000


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


class Weights:
    """The epoch an engine is in. version_path: of a file whose text names the weights that are
    loaded, for as long as they are; None: nothing does, and every reset begins an epoch of its
    own."""

    def __init__(self, version_path: Optional[str], logger: logging.Logger):
        self.name = ""
        self._path = None if version_path is None else str(version_path)
        self._logger = logger
        # What the file looked like when its text was certain.
        self._seen: Optional[Tuple[int, ...]] = None
        self.look()

    @property
    def mask(self) -> bytes:
        """Over digests of this epoch."""
        return mask_of(self.name)

    def look(self) -> bool:
        """Whether the file names other weights than it did. One stat, mostly."""
        if self._path is None:
            return False
        try:
            about = os.stat(self._path)
            seen = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if seen == self._seen:
                return False
            with open(self._path, "rb") as file:
                version = file.read(_VERSION_BYTES_MAX + 1).decode(errors="strict").strip()
            if not version or len(version) > _VERSION_BYTES_MAX:
                raise ValueError(f"it holds {len(version)} characters: write 1 to "
                                 f"{_VERSION_BYTES_MAX}")
        except (OSError, ValueError) as error:
            return self._lose(error)
        self._seen = seen if time.time_ns() - about.st_mtime_ns > _SETTLED_NS else None
        return self._move(of_version(version))

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
        self._logger.info("terrace: keys are of epoch %r from here on", name)
        return True
