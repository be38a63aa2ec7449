"""How long one call of SGLang's waits for the daemon."""
import contextlib
import time
from typing import Iterator


class Patience:
    """Of one call: all that it asks takes timeout_s together. What it copies takes its time."""

    def __init__(self, timeout_s: float):
        self._until = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """0: nothing is asked any more."""
        return max(0.0, self._until - time.monotonic())

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """The daemon has no part in it."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._until += time.monotonic() - began
