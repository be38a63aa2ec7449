"""terrace.PagedCache against a real daemon: pages of every layout come back byte for byte, on the
host's backend, set beside NumPy."""
import dataclasses
import gc
import signal
import time
import weakref

import numpy
import pytest

import terrace
from conftest import LONG_S, connect
from terrace.pages import Pages

LAYERS, HEADS, SIZE, TOKENS, PAGES = 3, 4, 8, 16, 7
SIZES = {"B": PAGES, "P": 2, "T": TOKENS, "H": HEADS, "D": SIZE, "L": LAYERS}
LAYER_BYTES = 2 * TOKENS * HEADS * SIZE * 2
SPACE = terrace.Space(model="tiny", revision="r1", dtype="fp16", layout="nhd", layers=LAYERS,
                      kv_heads=HEADS, head_size=SIZE, block_tokens=TOKENS,
                      part_bytes=(LAYER_BYTES,) * LAYERS)
# Axes of a layer's tensor, or, with an L, of the slab of all layers; "split": K and V apart.
LAYOUTS = ["BPTHD", "PBTHD", "BPHTD", "PBHTD", "BTPHD", "split BTHD", "split BHTD", "LBPTHD",
           "BLPTHD", "BLPHTD"]


class Engine:
    """A cache of one layout; page(i) is what NumPy says of it, as [layer, plane, token, head, ·]"""

    def __init__(self, layout, seed):
        self.axes = layout.split()[-1]
        random = numpy.random.default_rng(seed)
        shape = [SIZES[letter] for letter in self.axes]
        fresh = lambda: random.integers(0, 1 << 16, shape, numpy.uint16)
        if layout.startswith("split"):
            self.layers = [(fresh(), fresh()) for _ in range(LAYERS)]
            stacked = lambda: numpy.stack([numpy.stack(pair) for pair in self.layers])
            letters = "LP" + self.axes
        elif "L" in self.axes:
            self.layers = fresh()
            stacked = lambda: self.layers
            letters = self.axes
        else:
            self.layers = [fresh() for _ in range(LAYERS)]
            stacked = lambda: numpy.stack(self.layers)
            letters = "L" + self.axes
        self.everything = lambda: stacked().transpose([letters.index(x) for x in "BLPTHD"])

    def page(self, index):
        return self.everything()[index].copy()


@pytest.fixture(scope="module", name="device")
def host_device():
    with terrace.Device("host", workers=2) as device:
        assert device.backend == "host" and "host" in device.reason
        yield device


def in_slot(page, layout):
    """A block's bytes as its Space says they lie."""
    return page.transpose([0, 1, 2, 3, 4] if layout == "nhd" else [0, 1, 3, 2, 4]).tobytes()


@pytest.mark.parametrize("order", ["nhd", "hnd"])
def test_pages_of_every_layout_come_back_in_every_other(client, device, order):
    space = dataclasses.replace(SPACE, layout=order)
    group = client.open(terrace.SpaceGroup("tiny", [space]))
    for number, layout in enumerate(LAYOUTS):
        source, target = Engine(layout, 1), Engine(LAYOUTS[(number + 3) % len(LAYOUTS)], 2)
        before = target.everything().copy()
        keys = group.hash([number] * (3 * TOKENS))
        with terrace.PagedCache(device, space, source.layers, axes=source.axes) as cache, \
                group.reserve(keys) as lease:
            with cache.store(lease, [5, 0, 3], kv_written=terrace.HOST) as copy:
                copy.page_reuse(terrace.HOST)
                copy.wait()
            assert lease.commit() == 3
        with terrace.PagedCache(device, space, target.layers, axes=target.axes) as cache, \
                group.acquire(keys) as lease:
            lease.wait_ready()
            for block, page in enumerate([5, 0, 3]):
                assert b"".join(bytes(lease.part(block, part)) for part in range(LAYERS)) \
                    == in_slot(source.page(page), order), layout
            with cache.load(lease, [2, None, 6], destination_free=terrace.HOST) as copy:
                for layer in range(LAYERS):
                    copy.layer_ready(layer, terrace.HOST)
                while not copy.poll():
                    pass
        before[2], before[6] = source.page(5), source.page(3)
        assert (target.everything() == before).all(), layout


def test_kernel_blocks_smaller_than_a_page(client, device):
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    layers = [numpy.random.default_rng(i).integers(0, 1 << 16, (4 * PAGES, 2, 4, HEADS, SIZE),
                                                   numpy.uint16) for i in range(LAYERS)]
    keys = group.hash(range(TOKENS))
    with terrace.PagedCache(device, SPACE, layers, axes="BPTHD", block_tokens=4) as cache, \
            group.reserve(keys) as lease:
        with cache.store(lease, [6], kv_written=terrace.HOST) as copy:
            copy.wait()
        assert lease.commit() == 1
    with group.acquire(keys) as lease:
        lease.wait_ready()
        for number, layer in enumerate(layers):
            expected = layer[24:28].transpose(1, 0, 2, 3, 4)  # a page's blocks, in each plane
            assert bytes(lease.part(0, number)) == expected.tobytes()


@pytest.mark.parametrize("axes", ["BPTHD", "PBTHD", "BHTPD"])
def test_opaque_pages_lie_in_slots_as_in_memory(client, device, axes):
    torch = pytest.importorskip("torch")
    shape = [SIZES[letter] for letter in axes]
    source, target = ([torch.randint(-99, 99, shape, dtype=torch.int16) for _ in range(LAYERS)]
                      for _ in range(2))
    pages = [Pages({str(i): t for i, t in enumerate(tensors)}, "012", PAGES)
             for tensors in (source, target)]
    assert len(pages[0].runs) == (2 * LAYERS if axes[0] == "P" else LAYERS)
    space = dataclasses.replace(SPACE, layout="mine", part_bytes=pages[0].part_bytes)
    group = client.open(terrace.SpaceGroup("opaque", [space]))
    keys = group.hash(range(2 * TOKENS))
    with terrace.PagedCache.opaque(device, space, pages[0]) as cache, group.reserve(keys) as lease:
        with cache.store(lease, [4, 1], kv_written=terrace.HOST) as copy:
            copy.wait()
        assert lease.commit() == 2
    with terrace.PagedCache.opaque(device, space, pages[1]) as cache, group.acquire(keys) as lease:
        lease.wait_ready()
        into = numpy.zeros(len(pages[0].read(4)), numpy.uint8)
        lease.copy_into([into], block_count=1)
        assert bytes(into) == pages[0].read(4)
        with cache.load(lease, [0, 6], destination_free=terrace.HOST) as copy:
            copy.wait()
    assert pages[1].read(0) == pages[0].read(4) and pages[1].read(6) == pages[0].read(1)


@pytest.mark.parametrize("layout, size, sentence", [
    ("nhd", 64, "layout is 'nhd', and the pages are opaque"), ("mine", 128, "part_bytes[0] is 128"),
    ("mine", 48, "runs differ: 48 bytes every 48 beside 64 every 64")])
def test_opaque_pages_that_do_not_fit_are_refused(device, layout, size, sentence):
    torch = pytest.importorskip("torch")
    sizes = (64, 48 if size == 48 else 64)
    pages = Pages({str(i): torch.zeros((PAGES, size), dtype=torch.int8)
                   for i, size in enumerate(sizes)}, "01", PAGES)
    space = dataclasses.replace(SPACE, layout=layout, layers=2, part_bytes=(max(size, 64), 64))
    with pytest.raises(terrace.TerraceError) as refused:
        terrace.PagedCache.opaque(device, space, pages)
    assert sentence in str(refused.value)


def test_tensors_of_opaque_pages_stay_as_long_as_they_are_described(device):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros((PAGES, 64), dtype=torch.int8)
    is_there = weakref.ref(tensor)
    space = dataclasses.replace(SPACE, layout="mine", layers=1, part_bytes=(64,))
    cache = terrace.PagedCache.opaque(device, space, Pages({"0": tensor}, "0", PAGES))
    del tensor
    gc.collect()
    assert is_there() is not None, "a copy may be under way"
    del cache
    gc.collect()
    assert is_there() is None


def test_torch_and_dlpack_tensors_are_taken_as_they_lie(client, device):
    torch = pytest.importorskip("torch")
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    slab = torch.arange(PAGES * LAYERS * 2 * HEADS * TOKENS * SIZE, dtype=torch.int16).reshape(
        PAGES, LAYERS, 2, HEADS, TOKENS, SIZE)
    layers = [slab[:, i].transpose(2, 3) for i in range(LAYERS)]  # BPTHD, of strange strides
    wrapped = [type("Tensor", (), {"__dlpack__": lambda self, t=t: t.__dlpack__()})()
               for t in layers]
    for number, tensors in enumerate((layers, wrapped)):
        keys = group.hash([number] * TOKENS)
        with terrace.PagedCache(device, SPACE, tensors, axes="BPTHD") as cache, \
                group.reserve(keys) as lease:
            with cache.store(lease, [4], kv_written=terrace.HOST) as copy:
                copy.wait()
            assert lease.commit() == 1
        with group.acquire(keys) as lease:
            lease.wait_ready()
            for layer in range(LAYERS):
                assert bytes(lease.part(0, layer)) \
                    == layers[layer][4].contiguous().numpy().tobytes()


def test_pages_of_a_lossy_space_are_encoded_and_decoded(client, device):
    space = SPACE.encoded("int8")
    group = client.open(terrace.SpaceGroup("tiny-int8", [space]))
    engine, other = Engine("BPHTD", 1), Engine("PBTHD", 2)
    for layer in engine.layers:
        layer &= 0xBFFF  # numbers below 2
    keys = group.hash(range(2 * TOKENS))
    with terrace.PagedCache(device, space, engine.layers, axes="BPHTD") as cache, \
            group.reserve(keys) as lease:
        with cache.store(lease, [1, 2], kv_written=terrace.HOST) as copy:
            copy.wait(LONG_S)
        assert lease.commit() == 2
        engine.layers[1][4] = 0x7E00  # NaNs
        with group.reserve(group.hash(range(7, TOKENS + 7))) as refused, \
                cache.store(refused, [4], kv_written=terrace.HOST) as copy:
            with pytest.raises(terrace.Unsupported, match="a page has a NaN"):
                copy.wait(LONG_S)
            assert refused.commit() == 0
        parts = numpy.ones(sum(space.engine_part_bytes) * 3 // 2, numpy.float16)
        parts[len(parts) // 2] = numpy.nan  # in the second of three blocks
        with group.reserve(group.hash(range(9, 3 * TOKENS + 9))) as refused:
            with pytest.raises(terrace.Unsupported, match="is not written, the others are"):
                refused.write(parts)
            refused.commit()
            assert [refused.key(index).status for index in range(3)] == ["ok"] * 3
        found = group.query(group.hash(range(9, 3 * TOKENS + 9)))
        assert [block.state == "sealed" for block in found] == [True, False, True]
    with terrace.PagedCache(device, space, other.layers, axes="PBTHD") as cache, \
            group.acquire(keys) as lease:
        lease.wait_ready()
        with cache.load(lease, [5, 0], destination_free=terrace.HOST) as copy:
            copy.wait(LONG_S)
    for page, stored in ((5, 1), (0, 2)):
        loaded, exact = (cache.page(index).view(numpy.float16).astype(numpy.float32)
                         for cache, index in ((other, page), (engine, stored)))
        assert 0 < abs(loaded - exact).max() < 2 / 200  # of magnitudes below 2, by 127
    other_numbers = dataclasses.replace(SPACE, dtype="bf16").encoded("int8")
    halves = [layer.view(numpy.float16) for layer in engine.layers]
    with pytest.raises(terrace.Invalid, match="dtype is float16, and the Space's is 'bf16'"):
        terrace.PagedCache(device, other_numbers, halves, axes="BPHTD")
    terrace.PagedCache(device, space, halves, axes="BPHTD").close()
    long_name = dataclasses.replace(SPACE, dtype="float16").encoded("int8")
    terrace.PagedCache(device, long_name, halves, axes="BPHTD").close()


def test_blocks_are_read_in_the_devices_memory(hbm_daemon, device, monkeypatch):
    with terrace.Client(hbm_daemon.socket, default_timeout_s=LONG_S, device=device) as client:
        client.wait_connected(LONG_S)
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        engine, other = Engine("BPTHD", 1), Engine("BPTHD", 2)
        cache = terrace.PagedCache(device, SPACE, engine.layers, axes="BPTHD")
        into = terrace.PagedCache(device, SPACE, other.layers, axes="BPTHD")
        keys = group.hash(range(2 * TOKENS))
        with group.reserve(keys) as lease:
            with cache.store(lease, [1, 2], kv_written=terrace.HOST) as copy:
                copy.wait(LONG_S)
            assert lease.commit() == 2
        deadline = time.monotonic() + LONG_S
        while True:  # until both have been copied there
            lease = group.acquire(keys, flags=terrace.ACQUIRE_DEVICE)
            if lease.is_in_device(1):
                break
            assert time.monotonic() < deadline, client.last_error
            lease.release()
        with connect(hbm_daemon) as stranger:  # who has no device reads DRAM
            plain = stranger.open(terrace.SpaceGroup("tiny", [SPACE])).acquire(keys)
            assert plain.block_count == 2 and not plain.is_in_device(0)
            with group.join_read(plain.token, flags=terrace.ACQUIRE_DEVICE) as joined:
                assert joined.is_in_device(0)
            plain.release()
        with lease, into.load(lease, [5, 0], destination_free=terrace.HOST) as copy:
            copy.wait(LONG_S)
            assert bytes(lease.slot(0)[:64]) == in_slot(engine.page(1), "nhd")[:64]
            monkeypatch.setattr(client, "device_backend", "cuda")
            with pytest.raises(terrace.Unsupported, match="PagedCache.load"):
                lease.slot(0)
        assert (other.page(5) == engine.page(1)).all() and (other.page(0) == engine.page(2)).all()


def test_a_closed_device_makes_no_client(daemon):
    closed = terrace.Device("host")
    closed.close()
    with pytest.raises(terrace.Gone, match="device is closed"):
        terrace.Client(daemon.socket, device=closed)


def test_nothing_is_committed_that_was_not_seen_to_end(client, device):
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    engine = Engine("BPTHD", 1)
    cache = terrace.PagedCache(device, SPACE, engine.layers, axes="BPTHD")
    keys = group.hash(range(2 * TOKENS))
    with group.reserve(keys) as lease:
        copy = cache.store(lease, [1, 2], kv_written=terrace.HOST)
        assert lease.commit() == 0
        copy.wait()
        assert lease.commit() == 2
    del cache, device  # the copy keeps what it needs
    gc.collect()
    assert copy.poll()
    copy.close()


def test_a_block_under_a_copy_is_nobody_elses_and_a_sealed_one_stays(client, device):
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    engine = Engine("BPTHD", 1)
    with terrace.PagedCache(device, SPACE, engine.layers, axes="BPTHD") as cache, \
            group.reserve(group.hash(range(2 * TOKENS))) as lease:
        first = cache.store(lease, [1], kv_written=terrace.HOST)
        for again in (lambda: cache.store(lease, [2, 3], kv_written=terrace.HOST),
                      lambda: lease.write(bytes(sum(SPACE.part_bytes)), first_key=0, key_count=1)):
            with pytest.raises(terrace.Busy):
                again()
        assert lease.commit() == 0
        first.wait()
        again = cache.store(lease, [2], kv_written=terrace.HOST)  # its first bytes do not count
        again.wait()
        first.close()
        again.close()
        assert lease.commit() == 1
        with pytest.raises(terrace.TerraceError):
            cache.store(lease, [3], kv_written=terrace.HOST)


def test_memory_that_is_read_only_is_refused(device):
    engine = Engine("BPTHD", 1)
    for layer in engine.layers:
        layer.flags.writeable = False
    with pytest.raises(terrace.Invalid, match="read-only"):
        terrace.PagedCache(device, SPACE, engine.layers, axes="BPTHD")


def test_a_daemon_that_died_makes_copies_gone(daemon, device):
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        engine = Engine("BPTHD", 1)
        with terrace.PagedCache(device, SPACE, engine.layers, axes="BPTHD") as cache, \
                group.reserve(group.hash(range(TOKENS))) as lease:
            copy = cache.store(lease, [0], kv_written=terrace.HOST)
            daemon.process.send_signal(signal.SIGKILL)
            while lease.is_valid:
                pass
            with pytest.raises(terrace.Gone):
                copy.wait()
            with pytest.raises(terrace.Gone):
                cache.store(lease, [0], kv_written=terrace.HOST)


@pytest.mark.parametrize("change, sentence", [
    ({"axes": None}, "page_count"),
    ({"axes": "BPTH"}, "axes"),
    ({"axes": "BPHTD"}, "axes 'BPHTD'"),
    ({"axes": "BPTHD", "page_count": 9}, "axes 'BPTHD'"),
    ({"axes": "BPTHD", "block_tokens": 5}, "block_tokens is 5"),
    ({"axes": "BPTHD", "space": {"kv_heads": 2}}, "axes 'BPTHD'"),
    ({"axes": "BPTHD", "space": {"layers": 2}}, "3 addresses"),
    ({"axes": "BPTHD", "space": {"layout": "thd"}}, "layout is 'thd'"),
    ({"axes": "BPTHD", "space": {"part_bytes": (LAYER_BYTES, LAYER_BYTES, 64)}},
     "part_bytes[2] is 64"),
])
def test_what_does_not_fit_is_named(device, change, sentence):
    space = dataclasses.replace(SPACE, **change.pop("space", {}))
    with pytest.raises(terrace.TerraceError) as refused:
        terrace.PagedCache(device, space, Engine("BPTHD", 1).layers, **change)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name, value, sentence", [
    ("block_tokens", (1 << 32) + TOKENS, "block_tokens is 4294967312: it goes from 0 to 2^32 - 1"),
    ("block_tokens", 16.5, "block_tokens is 16.5: pass an integer"),
    ("block_tokens", 0, "block_tokens is 0"),
    ("page_count", (1 << 64) + PAGES, f"page_count is {(1 << 64) + PAGES}: it goes from 0 to 2^64"),
    ("page_count", PAGES + 0.9, "page_count is 7.9: pass an integer"),
    ("page_count", 0, "page_count is 0"),
    ("member", 0.5, "member is 0.5: pass an integer"),
    ("first_key", 0.5, "first_key is 0.5: pass an integer"),
    ("kv_written", 1 << 64, f"kv_written is {1 << 64}: it goes from 0 to 2^64 - 1"),
    ("pages", [2.9], "page is 2.9: pass an integer"),
    ("pages", ["7"], "page is '7': pass an integer"),
    ("pages", [1 << 64], f"page is {1 << 64}: it goes from 0 to 2^64 - 1"),
])
def test_numbers_are_refused_not_cut(client, device, name, value, sentence):
    with pytest.raises(terrace.Invalid) as refused:
        options = {name: value} if name in ("block_tokens", "page_count") else {}
        with terrace.PagedCache(device, SPACE, Engine("BPTHD", 1).layers, axes="BPTHD",
                                **options) as cache:
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            call = {"pages": [0], "kv_written": terrace.HOST}
            with group.reserve(group.hash(range(TOKENS))) as lease:
                if not options:
                    cache.store(lease, **{**call, name: value})
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name, value, sentence", [
    ("workers", (1 << 32) + 1, "workers is 4294967297: it goes from 0 to 2^32 - 1"),
    ("workers", 1.5, "workers is 1.5: pass an integer"),
    ("workers", 65, "worker_count: 1..64"),
    ("index", 1 << 32, "index is 4294967296: it goes from 0 to 2^32 - 1"),
])
def test_numbers_of_a_device_are_refused_not_cut(name, value, sentence):
    with pytest.raises(terrace.Invalid) as refused:
        terrace.Device("host", **{name: value})
    assert sentence in str(refused.value)


def test_numbers_of_numpy_are_numbers(client, device):
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    with terrace.PagedCache(device, SPACE, Engine("BPTHD", 1).layers, axes="BPTHD",
                            page_count=numpy.int64(PAGES)) as cache, \
            group.reserve(group.hash(range(TOKENS))) as lease:
        cache.store(lease, numpy.array([3], numpy.uint16), kv_written=terrace.HOST,
                    member=numpy.uint8(0)).wait()
        assert lease.commit() == 1


def test_a_gpu_without_a_plugin_says_what_is_missing():
    with pytest.raises(terrace.Invalid) as refused:
        terrace.Device("cuda")
    for word in ("plugin_path", "libterrace_cuda.so", "absolute path", '"host"'):
        assert word in str(refused.value), refused.value
    fallback = terrace.Device("auto")
    assert fallback.backend == "host" and "plugin_path" in fallback.reason


def test_two_heads_beside_two_planes_are_not_guessed(device):
    space = dataclasses.replace(SPACE, kv_heads=2, part_bytes=(LAYER_BYTES // 2,) * LAYERS)
    layers = [numpy.zeros((PAGES, 2, TOKENS, 2, SIZE), numpy.uint16) for _ in range(LAYERS)]
    with pytest.raises(terrace.Invalid, match="BPTHD and as BHTPD"):
        terrace.PagedCache(device, space, layers, page_count=PAGES)
    terrace.PagedCache(device, space, layers, axes="BPTHD").close()


def test_calls_that_are_wrong_are_named(client, device):
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    with terrace.PagedCache(device, SPACE, Engine("BPTHD", 1).layers, axes="BPTHD") as cache, \
            group.reserve(group.hash(range(TOKENS))) as lease:
        with pytest.raises(TypeError, match="kv_written"):
            cache.store(lease, [0])  # pylint: disable=missing-kwoa
        with pytest.raises(terrace.Invalid, match="kv_written is None"):
            cache.store(lease, [0], kv_written=None)
        with pytest.raises(terrace.Unsupported, match="host backend"):
            cache.store(lease, [0], kv_written=0)
        with pytest.raises(terrace.Invalid, match=r"page_indexes\[0\] is 7, and page_count is 7"):
            cache.store(lease, [7], kv_written=terrace.HOST)
        with pytest.raises(terrace.Invalid, match="the lease has 1"):
            cache.store(lease, [0, 1], kv_written=terrace.HOST)
        with pytest.raises(terrace.Invalid, match="page is -1: it goes from 0 to 2.64 - 1"):
            cache.store(lease, [-1], kv_written=terrace.HOST)
        with pytest.raises(terrace.Invalid, match="first_key is 4294967296"):
            cache.store(lease, [0], kv_written=terrace.HOST, first_key=1 << 32)
        with pytest.raises(terrace.Invalid, match="member is 4294967296"):
            cache.store(lease, [0], kv_written=terrace.HOST, member=1 << 32)
    with pytest.raises(terrace.NotFound, match="/nonexistent"):
        terrace.Device("cuda", plugin_path="/nonexistent")
    fallback = terrace.Device("auto", plugin_path="/nonexistent")
    assert fallback.backend == "host" and "/nonexistent" in fallback.reason
    on_gpu = type("Tensor", (), {"__cuda_array_interface__": {
        "typestr": "<f2", "shape": (PAGES, 2, TOKENS, HEADS, SIZE), "data": (4096, False)}})
    with pytest.raises(terrace.Unsupported, match="lies on cuda, and the device's backend is host"):
        terrace.PagedCache(device, SPACE, [on_gpu() for _ in range(LAYERS)], axes="BPTHD")



def test_how_much_of_the_arena_may_be_pinned(daemon):
    with terrace.Client(daemon.socket, pinned_bytes_max=1 << 20) as client, \
            terrace.Device("host") as own:
        client.wait_connected()
        client.pin_arena(own)
        deadline = time.monotonic() + 30
        while not client.stats()["copies"]["clients"] and time.monotonic() < deadline:
            time.sleep(0.05)
        told = client.stats()["copies"]["clients"][0]
        assert told["pinned_bytes_max"] == 1 << 20 and told["backend"] == "host"
    with pytest.raises(terrace.Invalid, match="pinned_bytes_max is -1"):
        terrace.Client(daemon.socket, pinned_bytes_max=-1)


def test_an_arena_is_pinned_for_one_device(daemon, device):
    with connect(daemon) as client, terrace.Device("host") as own:
        client.pin_arena(own)
        with pytest.raises(terrace.Exists, match="already"):
            client.pin_arena(device)
        with connect(daemon) as other, pytest.raises(terrace.Exists, match="a device a client"):
            other.pin_arena(own)
        with client.pinning_paused():
            pass
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        source, target = Engine("BPTHD", 1), Engine("BPTHD", 2)
        keys = group.hash([77] * TOKENS)
        with terrace.PagedCache(own, SPACE, source.layers, axes="BPTHD") as cache, \
                group.reserve(keys) as lease:
            with cache.store(lease, [4], kv_written=terrace.HOST) as copy:
                copy.wait()
            assert lease.commit() == 1
        with terrace.PagedCache(own, SPACE, target.layers, axes="BPTHD") as cache, \
                group.acquire(keys) as lease:
            lease.wait_ready()
            with cache.load(lease, [2], destination_free=terrace.HOST) as copy:
                copy.wait()
        assert numpy.array_equal(target.page(2), source.page(4))
