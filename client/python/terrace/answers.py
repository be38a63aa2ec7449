"""Answers of a client's asynchronous requests: whoever takes one from the client's queue gives it
to the one who has asked.
"""
import ctypes
import itertools
import weakref
from typing import Any, Callable, Dict, Tuple

from . import _native
from .errors import Gone

lib = _native.lib


class Answer(_native.Completion):
    """One of them. The lease that it holds is given back with it, unless somebody has taken that:
    then it is no longer in it."""

    def __del__(self) -> None:
        lib.terrace_read_lease_release(ctypes.byref(self.read_lease), 0)
        lib.terrace_write_lease_abort(ctypes.byref(self.write_lease))


Taker = Callable[[Answer], None]


class Answers:
    """Of one client, on any thread. A Taker is called by whichever thread finds the answer."""

    def __init__(self) -> None:
        self._takers: Dict[int, Taker] = {}
        self._numbers = itertools.count(1)
        # Event loops: the descriptor that each looks at, and how many have asked for it.
        self._listening: "weakref.WeakKeyDictionary[Any, Tuple[int, int]]" = \
            weakref.WeakKeyDictionary()

    def expect(self, taker: Taker) -> int:
        """The user_data of a request that is about to be sent."""
        number = next(self._numbers)
        self._takers[number] = taker
        return number

    def forget(self, number: int) -> None:
        """It was not sent."""
        self._takers.pop(number, None)

    @property
    def expected_count(self) -> int:
        """Requests that are on their way."""
        return len(self._takers)

    def collect(self, handle: Any) -> None:
        """Gives those that are there to who has asked."""
        while True:
            answer = Answer()
            if lib.terrace_poll(handle, ctypes.byref(answer)):
                return
            self.give(answer)

    def give(self, answer: Answer) -> None:
        """To who has asked for it."""
        taker = self._takers.pop(answer.user_data, None)
        if taker is not None:
            taker(answer)

    def listen(self, handle: Any, loop: Any) -> None:
        """Collects in this event loop, until as many have called `end_listening`."""
        fd, count = self._listening.get(loop, (-1, 0))
        if not count:
            fd = lib.terrace_event_fd(handle)
            if fd < 0:
                raise Gone("this process was forked: make a Client of its own")
            loop.add_reader(fd, self.collect, handle)
        self._listening[loop] = (fd, count + 1)

    def end_listening(self, loop: Any) -> None:
        """As `listen`, in the same loop."""
        fd, count = self._listening.pop(loop)
        if count > 1:
            self._listening[loop] = (fd, count - 1)
        else:
            loop.remove_reader(fd)
