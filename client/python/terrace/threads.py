"""Threads that are there before they are needed, and in nobody's way when the process ends: what
the daemon or a slow tier may yet bring is not waited for then. What others lent for copies is not
touched any more by when their memory goes.

THREADING: any thread calls anything.
"""
import atexit
import concurrent.futures
import contextlib
import functools
import itertools
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Iterator, List, Optional, TypeVar

from .errors import Gone

# When the process ends what has been submitted may take so long: stores, where the daemon answers.
_END_S = 0.2
_Result = TypeVar("_Result")


class Pool:
    """So many threads, all of which run already. One that starts them with its work may fail then
    (limits of processes, of memory) with the work in its queue: nobody could say whether it is done
    some day. RuntimeError where they cannot be had.

    They are daemons: the interpreter ends without those that wait. Pools end then in the order in
    which they were made, so who submits to another one's is made before it.
    """

    def __init__(self, count: int, name: str):
        self._works: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._submitting = threading.Lock()
        self._threads: List[threading.Thread] = []
        self.is_closed = False
        try:
            for number in range(count):
                thread = threading.Thread(target=_work_off, args=(self._works,), daemon=True,
                                          name=f"{name}_{number}")
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.shutdown(wait=False)
            raise
        # Not when the interpreter ends: a thread that wakes then may be in the way of its end.
        weakref.finalize(self, _end_work, self._works, count).atexit = False
        _pools[next(_numbers)] = self

    def submit(self, work: Callable[..., _Result], *arguments: Any
               ) -> "concurrent.futures.Future[_Result]":
        """RuntimeError once it is shut down."""
        future: "concurrent.futures.Future[_Result]" = concurrent.futures.Future()
        with self._submitting:
            if self.is_closed:
                raise RuntimeError("the pool is shut down")
            self._works.put(functools.partial(_run, future, functools.partial(work, *arguments)))
        return future

    def shutdown(self, wait: bool = True) -> None:
        """Takes no more work. wait: comes back when all of it is done."""
        with self._submitting:
            if not self.is_closed:
                self.is_closed = True
                _end_work(self._works, len(self._threads))
        if wait:
            self.join()

    def join(self, timeout_s: Optional[float] = None) -> None:
        """REQUIRES: it is shut down. Until its threads have ended, not longer."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _work_off(works: "queue.SimpleQueue[Any]") -> None:
    while True:
        work = works.get()
        if work is None:
            return
        work()
        del work  # what it holds goes now, not when there is more to do


def _end_work(works: "queue.SimpleQueue[Any]", thread_count: int) -> None:
    for _ in range(thread_count):
        works.put(None)


def _run(future: "Optional[concurrent.futures.Future[Any]]", work: Callable[[], Any]) -> None:
    assert future is not None
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # pylint: disable=broad-except
        future.set_exception(error)
        future = None  # which the error holds by its traceback: they would hold each other
    else:
        future.set_result(result)


class LentMemory:
    """Memory of somebody else's, for as long as it is there; until the process ends, at most. Any
    thread uses it; its owner takes it away and gives it back."""

    def __init__(self, name: str):
        self._name = name
        self._changed = threading.Condition()
        self._user_count = 0
        self.is_there = True
        _lent.add(self)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """It stays meanwhile. Gone if it has been taken away."""
        with self._changed:
            if not self.is_there:
                raise Gone(f"{self._name} has been taken away")
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
            self._changed.wait_for(lambda: self._user_count == 0)
        return was_there

    def give_back(self) -> None:
        """Nothing of what it held before is in it."""
        with self._changed:
            self.is_there = True


_numbers = itertools.count()
_pools: "weakref.WeakValueDictionary[int, Pool]" = weakref.WeakValueDictionary()
_lent: "weakref.WeakSet[LentMemory]" = weakref.WeakSet()


def _end() -> None:
    """Of the process: before anybody's memory goes."""
    until = time.monotonic() + _END_S
    for _, pool in sorted(_pools.items()):
        pool.shutdown(wait=False)
        pool.join(max(0.0, until - time.monotonic()))
    for memory in list(_lent):
        memory.take_away()


def _forget() -> None:
    """In a forked child: the threads are the parent's."""
    global _pools, _lent  # pylint: disable=global-statement
    _pools, _lent = weakref.WeakValueDictionary(), weakref.WeakSet()


os.register_at_fork(after_in_child=_forget)
# Where threads that are no daemons are waited for: atexit's functions come behind that, and some of
# them, in any order, give memory back.
getattr(threading, "_register_atexit", atexit.register)(_end)
