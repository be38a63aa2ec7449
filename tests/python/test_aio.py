"""The asyncio face against a real daemon."""
import asyncio
import contextlib
import gc
import os
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import terrace
from terrace import aio
from terrace.requests import Asker
from conftest import LONG_S, SPACE, Late, block_bytes, connect, let_nobody_store, wait_until_free


def test_requests_run_side_by_side(group):
    async def prompt(requests, number):
        keys = group.hash([number] + list(range(47)))
        lease = await requests.reserve(keys)
        with lease:
            lease.write([block_bytes(i, number) for i in range(3)])
            assert await requests.commit(lease) == 3
        assert await requests.prefetch(keys) == 3
        with await requests.acquire(keys) as lease:
            await requests.wait_ready(lease)
            found = bytearray(3 * SPACE.block_bytes)
            lease.copy_into(found)
            assert found == b"".join(block_bytes(i, number) for i in range(3))

    async def main():
        async with aio.Requests(group) as requests:
            await asyncio.gather(*(prompt(requests, number) for number in range(8)))
        with pytest.raises(terrace.Gone):
            await requests.prefetch(group.hash(list(range(16))))

    asyncio.run(main())


def store(group, number):
    keys = group.hash([number] + list(range(47)))
    with group.reserve(keys, LONG_S) as lease:
        lease.write([block_bytes(i, number) for i in range(3)])
        assert lease.commit(LONG_S) == 3


async def check_loads(requests, numbers, rounds):
    """What comes is what this one has asked for."""
    for count in range(rounds):
        number = numbers[count % len(numbers)]
        keys = requests.group.hash([number] + list(range(47)))
        with await requests.acquire(keys, LONG_S) as lease:
            lease.wait_ready(timeout_s=LONG_S)
            found = bytearray(3 * SPACE.block_bytes)
            lease.copy_into(found)
            assert found == b"".join(block_bytes(i, number) for i in range(3)), number


def test_each_of_several_on_a_client_gets_its_own_answers(group):
    for number in range(8):
        store(group, number)

    async def pair(numbers):
        async with aio.Requests(group) as one, aio.Requests(group) as other:
            await asyncio.wait_for(asyncio.gather(
                *(check_loads(requests, numbers[i::4], 60)
                  for i, requests in enumerate((one, other, one, other)))), 60)
        async with aio.Requests(group) as after:  # nobody has taken the descriptor from the loop
            await asyncio.wait_for(check_loads(after, numbers, 4), 60)

    asyncio.run(pair(list(range(8))))
    failures = []

    def in_a_loop_of_its_own(numbers):
        try:
            asyncio.run(pair(numbers))
        except BaseException as error:  # pylint: disable=broad-exception-caught
            failures.append(error)

    threads = [threading.Thread(target=in_a_loop_of_its_own, args=(list(range(first, 8, 2)) * 2,))
               for first in range(2)]
    for thread in threads:
        thread.start()
    # Beside them, one that looks now and then, and waits.
    asker = Asker(group, LONG_S)
    for count in range(120):
        pending = asker.acquire(group.hash([count % 8] + list(range(47))))
        assert asker.wait(pending, LONG_S)
        with pending.lease as lease:
            lease.wait_ready(timeout_s=LONG_S)
            found = bytearray(3 * SPACE.block_bytes)
            lease.copy_into(found)
            assert found[:SPACE.block_bytes] == block_bytes(0, count % 8)
    for thread in threads:
        thread.join()
    assert not failures and asker.pending_count == 0


def held_count(client):
    return client.stats(LONG_S)["domain"]["lease_count"]


@pytest.mark.parametrize("loops", [1, 2])
def test_an_answer_whose_asker_is_gone_is_given_back(client, group, loops):
    store(group, 1)
    keys = group.hash([1] + list(range(47)))

    async def leave(requests):
        for _ in range(4):
            asyncio.ensure_future(requests.acquire(keys, LONG_S))
        await asyncio.sleep(0)

    async def abandon():
        requests = aio.Requests(group)  # never closed
        await leave(requests)
        asker.acquire(keys)

    def in_loops():
        for _ in range(40):
            asyncio.run(abandon())

    asker = Asker(group, LONG_S)
    threads = [threading.Thread(target=in_loops) for _ in range(loops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while asker.pending_count:
        asker.collect()
    del asker
    gc.collect()

    async def rest():  # takes what nobody has taken
        async with aio.Requests(group) as requests:
            await requests.prefetch(keys, LONG_S)

    deadline = time.monotonic() + LONG_S
    while held_count(client) and time.monotonic() < deadline:
        asyncio.run(rest())
        gc.collect()
    assert held_count(client) == 0 and client.answers.expected_count == 0
    assert not client.answers._listening


def test_a_call_that_is_refused_here_leaves_nothing_behind(client, group):
    store(group, 1)

    async def main():
        async with aio.Requests(group) as requests:
            with await requests.acquire(group.hash([1] + list(range(47)))) as lease:
                with pytest.raises(Exception):
                    await requests.commit(lease)
            await requests.prefetch(group.hash(list(range(16))), LONG_S)

    asyncio.run(asyncio.wait_for(main(), LONG_S))
    assert client.answers.expected_count == 0


def test_one_that_was_not_closed_holds_no_client(daemon):
    descriptors = len(os.listdir("/proc/self/fd"))

    async def main():
        for _ in range(5):
            client = connect(daemon)
            aio.Requests(client.open(terrace.SpaceGroup("tiny", [SPACE])))
            client.close()
        del client
        gc.collect()
        await asyncio.sleep(0.1)
        gc.collect()
        # Of the loop, and of a client's thread that is about to end.
        return len(os.listdir("/proc/self/fd"))

    assert asyncio.run(main()) < descriptors + 15


def test_a_reader_is_told_that_it_may_not_store(daemon, client):
    let_nobody_store(daemon)

    async def main(group):
        async with aio.Requests(group) as requests:
            with pytest.raises(terrace.ReadOnly):
                await requests.reserve(group.hash(list(range(32))))

    with connect(daemon) as reader:
        asyncio.run(main(reader.open(terrace.SpaceGroup("tiny", [SPACE]))))


@pytest.mark.parametrize("has_answer", [False, True])
def test_a_cancelled_acquire_holds_nothing(group, has_answer):
    async def main():
        keys = group.hash(list(range(32)))
        async with aio.Requests(group) as requests:
            lease = await requests.reserve(keys)
            with lease:
                lease.write([block_bytes(0), block_bytes(1)])
                await requests.commit(lease)
            task = asyncio.ensure_future(requests.acquire(keys))
            await asyncio.sleep(0)  # it has been sent
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        wait_until_free(group, keys)

    asyncio.run(main())


def test_what_is_late_holds_up_no_wait_for_what_is_there(group):
    store(group, 7)
    keys = group.hash([7] + list(range(47)))

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with aio.Requests(group) as requests:
            leases = [await requests.acquire(keys) for _ in range(21)]
            late = [asyncio.ensure_future(requests.wait_ready(Late(lease), 3, LONG_S))
                    for lease in leases[1:]]
            await asyncio.sleep(0.1)
            await asyncio.wait_for(requests.wait_ready(leases[0]), LONG_S / 2)
            for wait in late:
                wait.cancel()
            await asyncio.wait_for(asyncio.wait(late), LONG_S / 2)
            with pytest.raises(terrace.Busy, match=r"0 have come within 0.2 s"):
                await requests.wait_ready(Late(leases[1]), 3, 0.2)
            with pytest.raises(terrace.Invalid, match="timeout_s is -1"):
                await requests.wait_ready(leases[0], timeout_s=-1)
            for lease in leases:
                lease.release()

    asyncio.run(main())


def test_closing_waits_for_who_asks_again(group):
    async def main():
        keys = group.hash(list(range(32)))
        requests = aio.Requests(group)

        async def ask():
            for _ in range(3):
                (await requests.acquire(keys)).release()

        task = asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        await asyncio.wait_for(requests.close(), LONG_S)
        await asyncio.wait_for(task, LONG_S)

    asyncio.run(main())


def test_refusals_are_raised_where_they_are_awaited(group):
    async def main():
        async with aio.Requests(group) as requests:
            with pytest.raises(terrace.Invalid):
                await requests.acquire(group.hash(list(range(16))),
                                       hints=terrace.Hints(priority=101))

    asyncio.run(main())


def test_what_is_on_its_way_is_answered_though_the_client_was_closed(daemon):
    client = connect(daemon)
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    keys = group.hash(list(range(64)))

    async def main():
        requests = aio.Requests(group)
        asked = asyncio.ensure_future(requests.acquire(keys, LONG_S))
        await asyncio.sleep(0)
        client.close()
        lease = await asyncio.wait_for(asked, LONG_S)
        lease.release()
        with pytest.raises(terrace.Gone):
            await requests.acquire(keys, LONG_S)
        gc.collect()
        # The loop looks at it until the Requests are closed, so its number is nobody else's.
        descriptor = terrace._native.lib.terrace_event_fd(requests._handle)
        assert "eventfd" in os.readlink(f"/proc/self/fd/{descriptor}")
        await asyncio.wait_for(requests.close(), LONG_S)

    asyncio.run(main())


def refused_for_others(daemon, client):
    """What two calls that wait are told while as many as there may be are pending."""
    deadline = time.monotonic() + LONG_S
    group = None
    while group is None:  # what was given up before is pending until it is answered
        assert time.monotonic() < deadline
        with contextlib.suppress(terrace.Busy):
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    keys = group.hash(list(range(16)))
    daemon.process.send_signal(signal.SIGSTOP)
    told = []
    for _ in range(4):  # the first two are given up, and pending until they are answered
        with pytest.raises(terrace.Busy) as refused:
            group.match(keys, 0.05)
        told.append(str(refused.value))
    daemon.process.send_signal(signal.SIGCONT)
    return told[2:]


def test_what_is_everyday_says_what_it_is(daemon):
    async def main(client):
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        keys = group.hash(list(range(32)))
        async with aio.Requests(group) as requests:
            daemon.process.send_signal(signal.SIGSTOP)
            found = await asyncio.gather(*(requests.prefetch(keys, 0.2) for _ in range(3)),
                                         return_exceptions=True)
            daemon.process.send_signal(signal.SIGCONT)
        return sorted(map(str, found))

    with connect(daemon, pending_requests_max=2) as client:
        late, _, many = asyncio.run(main(client))
        assert "no answer by the deadline" in late
        assert "pending_requests_max of the client is 2" in many
        for sentence in refused_for_others(daemon, client):
            assert "pending_requests_max of the client is 2, and so many are pending" in sentence
        daemon.kill()
        for _ in range(2):
            with pytest.raises(terrace.Unavailable) as gone:
                client.stats(LONG_S)
        assert f"not connected to {daemon.socket}" in str(gone.value)
        daemon.start()
        client.wait_connected(LONG_S)
