"""Chunks off the prefix against a real daemon: a document's keys are found by its own tokens and
turned to where it stands now, set beside the keys that a model would compute there."""
import dataclasses
import time

import numpy
import pytest

import terrace
from terrace import buffers
from conftest import LONG_S, connect

LAYERS, HEADS, SIZE, TOKENS, PAGES = 3, 2, 16, 16, 8
BLOCKS = 4
ROPE = terrace.Rope([10000.0 ** (-2 * i / SIZE) for i in range(SIZE // 2)])
DOCUMENT = range(1000, 1000 + BLOCKS * TOKENS)


def space_of(dtype="fp32", **fields):
    layer_bytes = 2 * TOKENS * HEADS * SIZE * {"fp32": 4, "fp16": 2}[dtype]
    return terrace.Space(model="tiny", revision="r1", dtype=dtype, layout="nhd", layers=LAYERS,
                         kv_heads=HEADS, head_size=SIZE, block_tokens=TOKENS,
                         part_bytes=(layer_bytes,) * LAYERS, **fields)


def turned(keys, positions, rope):
    """What a model makes of keys [token, head, size] that have no positions yet; in double."""
    first, count = rope.offset, len(rope.inv_freq)
    angles = numpy.outer(positions, numpy.array(rope.inv_freq, float))[:, None, :]
    at = numpy.arange(count)
    low, high = (at, at + count) if rope.pairing == "neox" else (2 * at, 2 * at + 1)
    out = keys.astype(float)
    x, y = out[..., first + low], out[..., first + high]
    out[..., first + low] = x * numpy.cos(angles) - y * numpy.sin(angles)
    out[..., first + high] = y * numpy.cos(angles) + x * numpy.sin(angles)
    return out


class Model:
    """Keys and values of a document at every layer, before positions, and pages of both."""

    def __init__(self, axes="BPTHD", dtype="fp32", rope=ROPE, seed=1, planes=2, heads=HEADS):
        self.rope, self.axes = rope, axes
        random = numpy.random.default_rng(seed)
        self.plain = random.uniform(-2, 2, (LAYERS, planes, BLOCKS * TOKENS, heads, SIZE))
        sizes = {"B": PAGES, "P": planes, "T": TOKENS, "H": heads, "D": SIZE}
        self.layers = [numpy.zeros([sizes[letter] for letter in axes],
                                   numpy.float32 if dtype == "fp32" else numpy.float16)
                       for _ in range(LAYERS)]

    def at(self, layer, block, position):
        """[plane, token, head, size] of a block whose first token stands at `position`."""
        piece = self.plain[layer, :, block * TOKENS:(block + 1) * TOKENS].copy()
        piece[0] = turned(piece[0], numpy.arange(position, position + TOKENS), self.rope)
        return piece

    def page(self, layer, index):
        """A view of it as [plane, token, head, size]."""
        letters = [letter for letter in "BPTHD" if letter in self.axes]
        view = self.layers[layer].transpose([self.axes.index(letter) for letter in letters])
        return view[index] if "P" in self.axes else view[index][None]

    def compute(self, pages, position):
        for layer in range(LAYERS):
            for block, page in enumerate(pages):
                self.page(layer, page)[:] = self.at(layer, block, position + block * TOKENS)

    def error(self, pages, position, plane):
        """The largest difference to what the model would compute there."""
        return max(abs(self.page(layer, page)[plane]
                       - self.at(layer, block, position + block * TOKENS)[plane]).max()
                   for layer in range(LAYERS) for block, page in enumerate(pages)
                   if page is not None)


@pytest.fixture(scope="module", name="device")
def host_device():
    with terrace.Device("host", workers=2) as device:
        yield device


def open_of(client, space):
    return client.open(terrace.SpaceGroup(f"{space.dtype}{space.quantisation}{space.layout}"
                                          f"{space.kv_heads}", [space]))


def put(group, cache, keys, pages, position, first_key=0):
    with group.reserve(keys) as lease:
        with cache.store(lease, pages, kv_written=terrace.HOST, positions=position,
                         first_key=first_key) as copy:
            copy.wait(LONG_S)
        return lease.commit()


def get(group, cache, keys, pages, position):
    with group.acquire(keys) as lease:
        assert lease.block_count == len(keys)
        lease.wait_ready()
        with cache.load(lease, pages, destination_free=terrace.HOST, positions=position) as copy:
            for layer in range(LAYERS):
                copy.layer_ready(layer, terrace.HOST)
            copy.wait(LONG_S)


@pytest.mark.parametrize("codec,dtype,keys_error,values_error", [
    (None, "fp32", 1e-5, 1e-6), (None, "fp16", 0.005, 0.001), ("int8", "fp32", 0.04, 0.02),
    ("fp8", "fp16", 0.4, 0.2)])
@pytest.mark.parametrize("axes", ["BPTHD", "PBHTD"])
@pytest.mark.parametrize("pairing", ["neox", "gptj"])
def test_keys_are_those_of_where_the_chunk_stands_now(client, device, codec, dtype, keys_error,
                                                      values_error, axes, pairing):
    space = space_of(dtype, salt=axes + pairing)
    space = (space if codec is None else space.encoded(codec)).chunks()
    rope = dataclasses.replace(ROPE, pairing=pairing)
    group = client.open(terrace.SpaceGroup(f"{codec}{dtype}{axes}{pairing}", [space]))
    model = Model(axes, dtype, rope)
    keys = group.hash(DOCUMENT)
    with terrace.PagedCache(device, space, model.layers, axes=axes, rope=rope) as cache:
        model.compute([1, 2, 0, 5], position=96)
        assert put(group, cache, keys, [1, 2, 0, 5], 96) == BLOCKS
        for position in (96, 3104, 0, 96):
            for layer in model.layers:
                layer[:] = 7
            get(group, cache, keys, [3, 7, 4, 6], position)
            error = model.error([3, 7, 4, 6], position, plane=0)
            assert error < keys_error
            assert model.error([3, 7, 4, 6], position, plane=1) < values_error
            for away in (96, 3104, 0):  # and of nowhere else
                assert away == position or model.error([3, 7, 4, 6], away, plane=0) > 1


def test_latents_turn_their_trailing_window(client, device):
    space = dataclasses.replace(space_of(), attention="mla", kv_heads=1,
                                part_bytes=(TOKENS * SIZE * 4,) * LAYERS).chunks()
    rope = terrace.Rope(ROPE.inv_freq[:3], offset=SIZE - 6)
    group = open_of(client, space)
    model = Model("BTHD", rope=rope, planes=1, heads=1)
    with terrace.PagedCache(device, space, model.layers, axes="BTHD", rope=rope) as cache:
        model.compute([0, 1, 2, 3], 0)
        exact = [model.page(layer, 1)[0, :, :, :SIZE - 6].copy() for layer in range(LAYERS)]
        assert put(group, cache, group.hash(DOCUMENT), [0, 1, 2, 3], 0) == BLOCKS
        get(group, cache, group.hash(DOCUMENT), [4, 5, 6, 7], 640)
        assert model.error([4, 5, 6, 7], 640, plane=0) < 1e-4
        for layer in range(LAYERS):  # outside the window
            assert (model.page(layer, 5)[0, :, :, :SIZE - 6] == exact[layer]).all()


def test_a_chunk_is_found_by_its_own_tokens_and_by_no_prefix(client):
    chunks = open_of(client, space_of().chunks())
    prefixes = open_of(client, space_of())
    ids = lambda keys: [(key.high, key.low) for key in keys]
    assert ids(chunks.hash(DOCUMENT)) == ids(chunks.hash(list(DOCUMENT)))
    assert len(set(ids(chunks.hash(DOCUMENT)) + ids(prefixes.hash(DOCUMENT)))) == 2 * BLOCKS
    exact = terrace.Hints(exact=True)
    assert prefixes.match(prefixes.hash(DOCUMENT), hints=exact).block_count == 0
    with pytest.raises(terrace.Unsupported, match="or as chunks"):
        chunks.match(chunks.hash(DOCUMENT), hints=exact)


def test_parts_are_read_without_pages(client, device):
    """Layers are encoded, the header is not."""
    space = space_of(salt="parts").encoded("int8").chunks()
    assert space.engine_part_bytes == (64, *space_of().part_bytes)
    group = client.open(terrace.SpaceGroup("parts", [space]))
    model = Model()
    model.compute([5], 32)
    keys = group.hash(DOCUMENT)[:1]
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        assert put(group, cache, keys, [5], 32) == 1
    with group.acquire(keys) as lease:
        lease.wait_ready()
        read = [numpy.zeros(64, numpy.uint8)] + [
            numpy.zeros((2, TOKENS, HEADS, SIZE), numpy.float32) for _ in range(LAYERS)]
        lease.copy_into(read)
        assert bytes(read[0][:8]) == b"TCHK\1\0\0\0" and read[0][8] == 32
        for layer in range(LAYERS):
            assert 0 < abs(read[layer + 1] - model.page(layer, 5)).max() < 3 / 127


def test_a_chunk_is_not_written_by_hand(client, device):
    space = space_of(salt="by hand").chunks()
    group = client.open(terrace.SpaceGroup("by hand", [space]))
    keys = group.hash(DOCUMENT)[:1]
    block = [numpy.zeros(size, numpy.uint8) for size in space.part_bytes]
    refused = (r"member 0 has layout 'chunk-nhd', whose blocks begin with a header .*: use "
               r"PagedCache\.store\(lease, pages, kv_written=..., positions=...\)")
    with group.reserve(keys) as lease:
        for write in (lambda: lease.write(block), lambda: lease.write_part(0, 1, block[1]),
                      lambda: lease.slot(0)):
            with pytest.raises(terrace.Invalid, match=refused):
                write()
        assert lease.commit() == 0
    model = Model()
    model.compute([0], 16)
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        assert put(group, cache, keys, [0], 16) == 1, "nobody else has stored it"
        get(group, cache, keys, [4], 16)
    assert model.error([4], 16, plane=0) < 1e-5


def test_blocks_that_stood_apart_are_loaded_together(client, device):
    space = space_of(salt="apart").chunks()
    group = client.open(terrace.SpaceGroup("apart", [space]))
    model = Model()
    keys = group.hash(DOCUMENT)
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        model.compute([0, 1, 2, 3], 32)
        assert put(group, cache, keys[:2], [0, 1], 32) == 2
        model.compute([0, 1, 2, 3], 7000)
        assert put(group, cache, keys, [0, 1, 2, 3], 7000) == 2, "the first commit wins"
        with group.acquire(keys) as lease:
            lease.wait_ready()
            assert [lease.chunk_position(block) for block in range(BLOCKS)] == [
                32, 32 + TOKENS, 7000 + 2 * TOKENS, 7000 + 3 * TOKENS]
        get(group, cache, keys, [4, 5, 6, 7], 512)
        assert model.error([4, 5, 6, 7], 512, plane=0) < 1e-4
        # A page that is passed over, and positions of no order.
        for layer in model.layers:
            layer[:] = 7
        get(group, cache, keys, [4, None, 6, 7], [512, 0, 2048, 0])
        assert model.error([4], 512, plane=0) < 1e-4
        for page, position in ((6, 2048), (7, 0)):
            assert abs(model.page(2, page)[0] - model.at(2, page - 4, position)[0]).max() < 1e-4
        assert (model.layers[0][5] == 7).all()


def test_keys_without_positions_stay_as_they_are(client, device):
    space = space_of(salt="nope").chunks()
    group = client.open(terrace.SpaceGroup("nope", [space]))
    model = Model(rope=terrace.Rope())
    keys = group.hash(DOCUMENT)
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD",
                            rope=terrace.Rope()) as cache:
        model.compute([0, 1, 2, 3], 96)
        assert put(group, cache, keys, [0, 1, 2, 3], 96) == BLOCKS
        get(group, cache, keys, [4, 5, 6, 7], 4096)
        for layer in range(LAYERS):
            for page in range(4):
                assert (model.page(layer, page) == model.page(layer, page + 4)).all()
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        with pytest.raises(terrace.Unsupported, match="block 0: the chunk's keys were made by"):
            get(group, cache, keys, [4, 5, 6, 7], 96)


def test_a_block_without_its_header_is_named(client, device):
    space = space_of(salt="corrupt").chunks()
    group = client.open(terrace.SpaceGroup("corrupt", [space]))
    model = Model()
    keys = group.hash(DOCUMENT)[:2]
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        assert put(group, cache, keys[:1], [0], 0) == 1
        block = numpy.zeros(space.block_bytes, numpy.uint8)
        lib = terrace._native.lib
        with group.reserve(keys) as lease:
            refused = lib.terrace_write_lease_write_blocks(
                lease.native, 0, 1, 1, buffers.pointers_to_parts(block, space.part_bytes, 1, False))
            assert lib.terrace_status_name(refused) == b"invalid"
            for part in range(len(space.part_bytes)):  # unseen, as a program in C may
                assert lib.terrace_write_lease_mark_part(lease.native, 1, 0, part) == 0
            assert lease.commit() == 1
        with pytest.raises(terrace.Corrupt, match="block 1: its first part is no header"):
            get(group, cache, keys, [4, 5], 0)
        get(group, cache, keys, [4, None], 0)
        with group.acquire(keys) as lease:
            lease.wait_ready()
            assert lease.chunk_position(0) == 0
            with pytest.raises(terrace.Corrupt):
                lease.chunk_position(1)


def test_chunks_are_read_in_the_devices_memory(hbm_daemon, device):
    space = space_of().chunks()
    with terrace.Client(hbm_daemon.socket, default_timeout_s=LONG_S, device=device) as client:
        client.wait_connected(LONG_S)
        group = open_of(client, space)
        model = Model()
        keys = group.hash(DOCUMENT)
        cache = terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE)
        model.compute([0, 1, 2, 3], 48)
        assert put(group, cache, keys, [0, 1, 2, 3], 48) == BLOCKS
        deadline = time.monotonic() + LONG_S
        while True:  # until all have been copied there
            lease = group.acquire(keys, flags=terrace.ACQUIRE_DEVICE)
            if lease.is_in_device(BLOCKS - 1):
                break
            assert time.monotonic() < deadline, client.last_error
            lease.release()
        with lease, cache.load(lease, [4, 5, 6, 7], destination_free=terrace.HOST,
                               positions=800) as copy:
            copy.wait(LONG_S)
        assert model.error([4, 5, 6, 7], 800, plane=0) < 1e-4


@pytest.mark.parametrize("rope,sentence", [
    (None, "no rope is set"),
    (dataclasses.replace(ROPE, scaling="dynamic"), "rope scaling 'dynamic'"),
    (dataclasses.replace(ROPE, scaling="longrope"), "rope scaling 'longrope'"),
    (dataclasses.replace(ROPE, is_per_layer=True), "layers that differ in their rope"),
    (dataclasses.replace(ROPE, is_multidimensional=True), "mrope"),
    (dataclasses.replace(ROPE, pairing="alibi"), "pairing is 'alibi': it is 'neox' .* and 'gptj'"),
    (terrace.Rope(pairing="x"), "pairing is 'x': it is 'neox' .* and 'gptj'"),
    (dataclasses.replace(ROPE, offset=2), "rot_dim 16 at rot_offset 2 is no window"),
    (terrace.Rope([1.0] * 1000), "rot_dim 2000"),
    (terrace.Rope([float("nan")] * 8), "angles per token are finite"),
    (terrace.Rope(None), "inv_freq is None: pass one number a pair"),
    (terrace.Rope([[1.0]] * 8), "pass one number a pair"),
    (dataclasses.replace(ROPE, scaling={"rope_type": "linear"}), "scaling is {'rope_type'"),
])
def test_what_cannot_be_turned_is_refused_by_name(device, rope, sentence):
    with pytest.raises((terrace.Invalid, terrace.Unsupported), match=sentence):
        terrace.PagedCache(device, space_of().chunks(), Model().layers, axes="BPTHD", rope=rope)


def test_what_does_not_fit_is_named(client, device):
    layers = Model().layers
    with pytest.raises(terrace.Invalid, match="keys turn in Spaces of chunks only"):
        terrace.PagedCache(device, space_of(), layers, axes="BPTHD", rope=ROPE)
    with pytest.raises(terrace.Invalid, match="chunks are of 'nhd'"):
        dataclasses.replace(space_of(), layout="hnd").chunks()
    with pytest.raises(terrace.Invalid, match="encode first"):
        space_of().chunks().encoded("int8")
    with pytest.raises(terrace.Invalid, match="codecs and chunks are of bf16, fp16 and fp32"):
        dataclasses.replace(space_of(), dtype="fp8_e4m3").chunks()
    with pytest.raises(terrace.Invalid, match="keys that the engine quantised are no chunks"):
        dataclasses.replace(space_of(), quantisation="fp8_per_tensor").chunks()
    with pytest.raises(terrace.Invalid, match="a chunk's header is 64"):
        client.open(terrace.SpaceGroup("headless", [
            dataclasses.replace(space_of(), layout="chunk-nhd")]))
    with pytest.raises(terrace.Invalid, match="declare two groups"):
        client.open(terrace.SpaceGroup("both", [
            space_of(), space_of(tp_rank=1, tp_size=2).chunks()]))
    space = space_of().chunks()
    group = open_of(client, space)
    with terrace.PagedCache(device, space, layers, axes="BPTHD", rope=ROPE) as cache, \
            group.reserve(group.hash(range(TOKENS))) as lease:
        with pytest.raises(terrace.Invalid, match="positions are 0 of 1 pages: chunks have one a"):
            cache.store(lease, [0], kv_written=terrace.HOST)
        with pytest.raises(terrace.Invalid, match="positions are 2, and pages 1"):
            cache.store(lease, [0], kv_written=terrace.HOST, positions=[0, 16])
        for position in (-1, 1 << 32, 16.0, numpy.int64(-1)):
            with pytest.raises(terrace.Invalid, match="position is"):
                cache.store(lease, [0], kv_written=terrace.HOST, positions=position)
        for position in (16, numpy.int64(16), numpy.array(16), [16], numpy.array([16])):
            with cache.store(lease, [0], kv_written=terrace.HOST, positions=position) as copy:
                copy.wait(LONG_S)
    plain = open_of(client, space_of())
    with terrace.PagedCache(device, space_of(), layers, axes="BPTHD") as cache, \
            plain.reserve(plain.hash(range(TOKENS))) as lease:
        with pytest.raises(terrace.Invalid, match="positions are 1 of 1 pages: only chunks have"):
            cache.store(lease, [0], kv_written=terrace.HOST, positions=0)


def test_keys_that_stood_too_far_away_are_computed_again(client, device):
    space = space_of(salt="far").chunks()
    group = client.open(terrace.SpaceGroup("far", [space]))
    model = Model()
    keys = group.hash(DOCUMENT)[:1]
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        assert put(group, cache, keys, [0], 1 << 25) == 1
        with pytest.raises(terrace.Unsupported, match="block 0: the chunk stood at token 33554432"):
            get(group, cache, keys, [1], 0)
        get(group, cache, keys, [1], (1 << 25) - (1 << 24))
    space = space_of(salt="far and without positions").chunks()
    group = client.open(terrace.SpaceGroup("far nope", [space]))
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD",
                            rope=terrace.Rope()) as cache:
        assert put(group, cache, keys, [0], 1 << 25) == 1
        get(group, cache, keys, [1], 0)


def test_every_part_with_a_nan_is_counted(client, device):
    space = space_of().encoded("int8").chunks()
    group = open_of(client, space)
    model = Model()
    model.compute([0, 1, 2, 3], 0)
    for layer in (0, 2):
        model.page(layer, 1)[1, 3] = numpy.nan
    before = client.stats()["domain"]["parts_refused"]
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache, \
            group.reserve(group.hash(range(2 * TOKENS))) as lease:
        with cache.store(lease, [0, 1], kv_written=terrace.HOST, positions=0) as copy:
            with pytest.raises(terrace.Unsupported):
                copy.wait(LONG_S)
        assert lease.commit() == 1
    assert client.stats()["domain"]["parts_refused"] == before + 2


def test_another_process_turns_what_one_stored(client, daemon, device):
    space = space_of(salt="shared").chunks()
    spec = terrace.SpaceGroup("shared", [space])
    model, other = Model(), Model(axes="PBHTD")
    group = client.open(spec)
    with terrace.PagedCache(device, space, model.layers, axes="BPTHD", rope=ROPE) as cache:
        model.compute([0, 1, 2, 3], 64)
        assert put(group, cache, group.hash(DOCUMENT), [0, 1, 2, 3], 64) == BLOCKS
    with connect(daemon) as stranger, \
            terrace.PagedCache(device, space, other.layers, axes="PBHTD", rope=ROPE) as cache:
        theirs = stranger.open(spec)
        get(theirs, cache, theirs.hash(DOCUMENT), [4, 5, 6, 7], 1600)
    assert other.error([4, 5, 6, 7], 1600, plane=0) < 1e-4
