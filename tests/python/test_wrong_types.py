"""What is wrong with a call is said in words of the call: what was given, and what is expected."""
import asyncio
import gc
import pathlib
import re

import pytest

import terrace
from terrace import aio
from conftest import SPACE, run_terrace, store
from terrace.requests import Asker


@pytest.mark.parametrize("verb", ["acquire", "match", "prefetch", "reserve", "touch", "query",
                                  "evict", "pin"])
def test_keys_that_are_none_are_named(group, verb):
    for wrong in ([], list(group.hash(range(16))), "0" * 32, None):
        with pytest.raises(TypeError, match=f"keys: a {type(wrong).__name__} was given") as raised:
            getattr(group, verb)(wrong)
        assert "pass the Keys that Group.hash" in str(raised.value)
        assert isinstance(raised.value, terrace.Invalid)


def test_keys_that_are_none_are_named_where_they_are_awaited(group):
    async def ask():
        async with aio.Requests(group) as requests:
            with pytest.raises(TypeError, match="keys: a list was given"):
                await requests.acquire([1])

    asyncio.run(ask())
    with pytest.raises(TypeError, match="keys: a list was given"):
        Asker(group, 1.0).acquire([1])
    with pytest.raises(TypeError, match="keys: a list was given"):
        group.hash(range(16)) + [1]  # pylint: disable=expression-not-assigned


def test_a_group_that_is_none_is_named(client, group):
    with pytest.raises(TypeError, match="spec: a str was given, 'x': pass a SpaceGroup"):
        client.open("x")
    with pytest.raises(TypeError, match="a member: a str was given, 'x': pass a Space"):
        client.open(terrace.SpaceGroup("x", ["x"]))
    with pytest.raises(TypeError, match="token: a tuple was given, .* pass a Token"):
        group.join_read((1, 2))


def test_blocks_that_a_lease_has_not_are_refused_as_parts_are(group):
    keys = store(group, list(range(32)))
    lease = group.acquire(keys)
    for call in (lambda: lease.slot(2), lambda: lease.part(2, 0), lambda: lease.part(99, 0)):
        with pytest.raises(terrace.Invalid, match="blocks .* of a lease of 2, which counts from 0"):
            call()
    with pytest.raises(terrace.Invalid, match="part 99 of 2"):
        lease.part(0, 99)
    lease.release()
    for call in (lambda: lease.slot(0), lambda: lease.part(0, 0)):
        with pytest.raises(terrace.Gone, match="released"):
            call()


def test_keys_that_a_write_lease_has_not_are_refused(group):
    keys = group.hash(range(32))
    with group.reserve(keys) as lease:
        assert lease.slot(1) is not None
        with pytest.raises(terrace.Invalid, match="keys 2 to 2 of a lease of 2"):
            lease.slot(2)
        with group.reserve(keys) as other:
            assert other.slot(0) is None, "somebody else's"
    gc.collect()
    with pytest.raises(terrace.Gone):
        lease.slot(0)


def test_a_buffer_of_another_size_is_told_of_the_size_of_a_block(group):
    keys, size = store(group, list(range(64))), SPACE.block_bytes
    parts = len(SPACE.part_bytes)
    with group.acquire(keys) as lease:
        for wrong, sentence in (
                (bytearray(3), f"3 bytes for 4 blocks of {size} bytes each, in all {4 * size} "),
                ([bytearray(3)] * 4, f"3 bytes for a block of {size} bytes"),
                ([bytearray(3)] * 4 * parts,
                 f"3 bytes for part 0, of {SPACE.part_bytes[0]} bytes")):
            with pytest.raises(terrace.Invalid, match=sentence):
                lease.copy_into(wrong)


def test_a_key_prints_as_the_command_takes_it(daemon, group):
    keys = store(group, list(range(32)))
    assert str(keys[0]) == keys.hex()[0] and re.fullmatch("[0-9a-f]{32}", str(keys[0]))
    assert repr(keys[0]) == f"Id({keys.hex()[0]})"
    assert repr(keys) == f"<Keys: 2: {keys[0]}, {keys[1]}>" and repr(keys[:0]) == "<Keys: 0>"
    assert repr(keys + keys + keys).endswith(f"{keys[1]}, ...>")
    status, out, err = run_terrace("show", keys[0], "--socket", daemon.socket)
    assert status == 0 and str(keys[0]) in out, err


def test_the_package_says_its_version():
    root = pathlib.Path(terrace.__file__).parents[3]
    said = (root / "CMakeLists.txt").read_text()
    assert f"project(terrace VERSION {terrace.__version__} " in said
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        terrace.nothing  # pylint: disable=pointless-statement,no-member


def test_what_is_no_key_member_or_device_is_named(client, group, daemon):
    keys = group.hash(range(16))
    for call in (lambda: group.hash(range(16), "x"), lambda: group.match(keys, parent=5)):
        with pytest.raises(TypeError, match="parent: a (str|int) was given, .* pass a key"):
            call()
    lease = group.reserve(keys)
    for wrong in (None, "x"):
        with pytest.raises(terrace.Invalid, match=f"member is {wrong!r}: pass an integer"):
            lease.slot(0, wrong)
    lease.abort()
    for call in (lambda: terrace.Client(daemon.socket, device=5), lambda: client.pin_arena(5)):
        with pytest.raises(TypeError, match="device: a int was given, 5: pass a terrace.Device"):
            call()
    with pytest.raises(TypeError, match="socket_path: a int was given, 5: pass a path"):
        terrace.Client(5)
    with pytest.raises(TypeError, match="codec: a int was given"):
        SPACE.encoded(5)
    with pytest.raises(TypeError, match="backend: a int was given"):
        terrace.Device(backend=5)
    with pytest.raises(terrace.Invalid, match="backend is .* zero character"):
        terrace.Device(backend="host\0bogus")


def test_requests_on_a_closed_client_leave_nothing_behind(daemon, recwarn):
    closed = terrace.Client(daemon.socket)
    closed.wait_connected()
    group = closed.open(terrace.SpaceGroup("tiny", [SPACE]))
    closed.close()

    async def ask():
        with pytest.raises(terrace.Gone):
            aio.Requests(group)

    asyncio.run(ask())
    gc.collect()
    assert not [str(each.message) for each in recwarn if "Requests" in str(each.message)]
