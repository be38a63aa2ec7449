"""Threads that are there before they are needed."""
import concurrent.futures
import threading


def started_pool(count: int, name: str) -> concurrent.futures.ThreadPoolExecutor:
    """A pool of so many threads, all of which run already. One that starts them with its work may
    fail then (limits of processes, of memory) with the work in its queue: nobody could say whether
    it is done some day. RuntimeError where they cannot be had."""
    pool = concurrent.futures.ThreadPoolExecutor(count, name)
    meeting = threading.Barrier(count + 1)  # each thread takes one, so none takes two
    try:
        for _ in range(count):
            pool.submit(meeting.wait)
        meeting.wait()
    except BaseException:
        meeting.abort()
        pool.shutdown(wait=False)
        raise
    return pool
