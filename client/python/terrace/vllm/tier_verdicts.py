"""What the vLLM tier's scheduler knows of chunks: asked, there, or not."""
from typing import Dict, List, Optional, Set


class Verdicts:
    """What has been asked, by whom, and what the answer was. Of the scheduler's thread."""

    def __init__(self) -> None:
        self._known: Dict[bytes, Optional[bool]] = {}  # None: on its way
        self._askers: Dict[bytes, Set[str]] = {}
        self._keys_of: Dict[str, Set[bytes]] = {}
        self.new: Dict[str, List[bytes]] = {}  # to be asked, by request

    def knows(self, key: bytes) -> bool:
        return key in self._known

    def ask(self, key: bytes, request_id: str) -> Optional[bool]:
        """The verdict; None: not yet."""
        if key not in self._known:
            self._known[key] = None
            self.new.setdefault(request_id, []).append(key)
        self._askers.setdefault(key, set()).add(request_id)
        self._keys_of.setdefault(request_id, set()).add(key)
        return self._known[key]

    def tell(self, key: bytes, is_there: bool) -> None:
        """An answer, or that a load has failed: nobody is promised it again."""
        if key in self._known:
            self._known[key] = is_there

    def forget(self, request_id: str) -> None:
        """The request has ended. Others who wait for its questions' answers go on waiting."""
        if request_id in self.new:
            return
        for key in self._keys_of.pop(request_id, ()):
            askers = self._askers[key]
            askers.discard(request_id)
            if not askers:
                del self._askers[key], self._known[key]
