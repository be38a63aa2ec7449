"""Answers of a client's asynchronous requests: whoever takes one from the client's queue gives it
to the one who has asked.
"""
import ctypes
import itertools
from typing import Any, Callable, Dict

from . import _native

lib = _native.lib
Taker = Callable[[_native.Completion], None]


class Answers:
    """Of one client, on any thread. A Taker is called by whichever thread finds the answer."""

    def __init__(self) -> None:
        self._takers: Dict[int, Taker] = {}
        self._numbers = itertools.count(1)
        self._listening: Dict[Any, int] = {}  # event loops, each with so many who ask

    def expect(self, taker: Taker) -> int:
        """The user_data of a request that is about to be sent."""
        number = next(self._numbers)
        self._takers[number] = taker
        return number

    def forget(self, number: int) -> None:
        """It was not sent."""
        self._takers.pop(number, None)

    def collect(self, handle: Any) -> None:
        """Gives those that are there to who has asked."""
        while True:
            completion = _native.Completion()
            if lib.terrace_poll(handle, ctypes.byref(completion)):
                return
            self.give(completion)

    def give(self, completion: _native.Completion) -> None:
        """To who has asked for it."""
        taker = self._takers.pop(completion.user_data, None)
        if taker is not None:
            taker(completion)
        else:
            give_back(completion)

    def listen(self, handle: Any, loop: Any) -> None:
        """Collects in this event loop, until as many have called `end_listening`."""
        if not self._listening.get(loop):
            loop.add_reader(lib.terrace_event_fd(handle), self.collect, handle)
        self._listening[loop] = self._listening.get(loop, 0) + 1

    def end_listening(self, handle: Any, loop: Any) -> None:
        """As `listen`, by the same loop."""
        self._listening[loop] -= 1
        if not self._listening[loop]:
            del self._listening[loop]
            loop.remove_reader(lib.terrace_event_fd(handle))


def give_back(completion: _native.Completion) -> None:
    """Leases of a completion that nobody waits for."""
    lib.terrace_read_lease_release(ctypes.byref(completion.read_lease), 0)
    lib.terrace_write_lease_abort(ctypes.byref(completion.write_lease))
