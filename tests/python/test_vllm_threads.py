"""terrace.vllm where no thread can be had any more: limits of processes, or of memory."""
import random
import threading

import pytest

from vllm_driver import (PROMPT, expect_nothing_held, make_engine, run_prompt, terrace,
                         wait_for_segments)
from terrace.threads import Pool


class Limit:
    """Of threads whose names begin with `name`: so many more, and no other."""

    def __init__(self, monkeypatch, name, count=0):
        self.refused = 0
        start = threading.Thread.start

        def limited(thread):
            nonlocal count
            if thread.name.startswith(name):
                if count == 0:
                    self.refused += 1
                    raise RuntimeError("can't start new thread")
                count -= 1
            return start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


def test_a_pool_has_all_its_threads_or_none(monkeypatch):
    pool = Pool(3, "here")
    Limit(monkeypatch, "")
    meeting = threading.Barrier(3)
    works = [pool.submit(meeting.wait) for _ in range(3)]
    assert sorted(work.result() for work in works) == [0, 1, 2]
    pool.shutdown()
    monkeypatch.undo()
    limit = Limit(monkeypatch, "there", 2)
    with pytest.raises(RuntimeError):
        Pool(3, "there")
    assert limit.refused == 1
    for thread in threading.enumerate():
        if thread.name.startswith("there"):
            thread.join()


@pytest.mark.parametrize("copy_threads", [0, 1])
def test_an_engine_that_runs_starts_none(daemon, monkeypatch, copy_threads):
    wait_for_segments(daemon, 2)
    for loaded in (0, 72):
        engine = make_engine(daemon, random.Random(7), copy_threads=copy_threads)
        with monkeypatch.context() as context:
            limit = Limit(context, "terrace-")
            run_prompt(engine)
        assert engine.counts["loaded_tokens"] == loaded and limit.refused == 0
        assert all(side.refusal is None for side in (
            engine.connector.side, *(worker.connector.side for worker in engine.workers)))
        expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_engine_that_gets_none_serves_without_the_cache(daemon, monkeypatch, count):
    wait_for_segments(daemon, 2)
    Limit(monkeypatch, "terrace-", count)
    engine = make_engine(daemon, random.Random(7))
    run_prompt(engine)
    assert "can't start new thread" in engine.workers[0].connector.side.refusal
    assert engine.counts["finished"] == 1 and len(PROMPT) == 80
    assert isinstance(engine.connector, terrace.vllm.TerraceConnector)
    engine.close()
