"""Whether the memory of vLLM's KV caches is there: its sleep mode takes it away and brings it back,
at the same addresses and with other bytes."""
import contextlib
import threading
from typing import Iterator

from ..errors import Gone


class KvMemory:
    """Of one worker. sleep_count: how often it was taken away. Any thread uses it; vLLM's own takes
    it away and gives it back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._user_count = 0
        self.is_there = True
        self.sleep_count = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """It stays meanwhile. Gone if it has been taken away."""
        with self._changed:
            if not self.is_there:
                raise Gone("the memory of the KV cache has been taken away")
            self._user_count += 1
        try:
            yield
        finally:
            with self._changed:
                self._user_count -= 1
                self._changed.notify_all()

    def take_away(self) -> bool:
        """Waits until nobody uses it. Whether it was there."""
        with self._changed:
            was_there, self.is_there = self.is_there, False
            self.sleep_count += int(was_there)
            self._changed.wait_for(lambda: self._user_count == 0)
        return was_there

    def give_back(self) -> None:
        """Nothing of what it held before is in it."""
        with self._changed:
            self.is_there = True
