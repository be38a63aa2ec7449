"""Whether the memory of vLLM's KV caches is there: its sleep mode takes it away and brings it back,
at the same addresses and with other bytes."""
from ..threads import LentMemory


class KvMemory(LentMemory):
    """Of one worker. sleep_count: how often it was taken away."""

    def __init__(self) -> None:
        super().__init__("the memory of the KV cache")
        self.sleep_count = 0

    def take_away(self) -> bool:
        was_there = super().take_away()
        self.sleep_count += int(was_there)
        return was_there
