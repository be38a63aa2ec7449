"""Groups of Spaces that are opened when they are first used, on a daemon that may be gone."""
import threading
import time
from typing import Any, Callable, Dict, Optional

from .client import Client
from .errors import Busy, Gone, Unavailable
from .group import Group
from .requests import Pause
from .space import Space, SpaceGroup


class Shelf:
    """One client's groups, each of one Space. Any thread calls it.

    prefix: of the groups' names, as operators see them.
    """

    def __init__(self, client: Client, prefix: str, timeout_s: float):
        self.client = client
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._groups: Dict[Space, Group] = {}
        self._opening = threading.Lock()
        self._pause = Pause(client)

    @property
    def is_there(self) -> bool:
        """Worth a question."""
        try:
            return self.client.is_connected and not self._pause.is_on
        except Gone:  # closed meanwhile
            return False

    @property
    def is_reader(self) -> bool:
        """The client may not store, nor erase."""
        try:
            return self.client.is_reader
        except Gone:  # closed meanwhile
            return False

    def group(self, space: Space, timeout_s: Optional[float] = None) -> Group:
        """Of that Space alone. timeout_s: None: the shelf's own; others' turns are in it."""
        group = self._groups.get(space)
        if group is not None:
            return group
        left_s = self._timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + left_s
        if not self._opening.acquire(timeout=left_s):
            raise Busy("opening a group: another thread has been at it all the time")
        try:
            group = self._groups.get(space)
            if group is None:
                name = SpaceGroup("x", [space]).check()
                group = self.client.open(SpaceGroup(f"{self._prefix}-{name[:16]}", [space]), 1,
                                         max(0.0, until - time.monotonic()))
                self._groups[space] = group
            return group
        finally:
            self._opening.release()

    def guarded(self, call: Callable[[], Any], otherwise: Any) -> Any:
        """What `call` answers. A daemon that does not answer is left alone for a while."""
        if not self.is_there:
            return otherwise
        try:
            answer = call()
        except Unavailable as error:
            self._pause.note(error.status not in ("busy", "gone"))
            return otherwise
        self._pause.note(True)
        return answer
