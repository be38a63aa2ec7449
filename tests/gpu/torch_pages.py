#!/usr/bin/env python3
"""A paged cache of PyTorch's tensors on a GPU, a real terraced, and what must hold between them.

usage: torch_pages.py --terraced PATH --plugin PATH --report FILE [--device cuda|host]
       torch_pages.py --fail SOCKET --plugin PATH

  order    a kernel writes pages late, they are stored, and overwritten at once; pages that a kernel
           still reads are loaded into, and read at once: every byte is the right one, in layouts of
           several engines, with the arena registered and without
  hbm      blocks asked for again are read in the GPU's own memory, byte for byte
  codecs   pages of lossy Spaces and of chunks: the device's slots are the host's, and so is what is
           loaded, the keys of chunks turned
  failure  a kernel of another process writes where nothing is, before its store: that store is not
           committed, all else of the daemon's goes on, and the daemon has no context on the GPU
  product  how much longer matrix products, and sums that memory bounds, take while pages are
           copied, 3 % at most

--device host rehearses all of it on the CPU, where a kernel's time says nothing and none fails.
The report is a JSON list of lines, the daemon's log lies beside it; exit status 0 unless something
went wrong that is no line. --fail is the process that fails.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import torch

import terrace

LONG_S = 60.0
LAYERS, SIZE, TOKENS, PAGES = 8, 128, 16, 64
SLOWDOWN_MAX = 0.03
ROPE = terrace.Rope([500000.0 ** (-2 * i / SIZE) for i in range(SIZE // 2)])
# The axes of a layer's tensor, as engines lay it out, and the order in the slot.
LAYOUTS = (("PBTHD", "nhd"), ("BPTHD", "nhd"), ("BPHTD", "hnd"), ("PBHTD", "nhd"), ("BTHD", "mla"))


def space_of(heads, order):
    is_mla = order == "mla"
    layer_bytes = (1 if is_mla else 2) * TOKENS * heads * SIZE * 2
    return terrace.Space(model=f"torch-{heads}-{order}", revision="1", dtype="bf16",
                         layout="nhd" if is_mla else order, layers=LAYERS, kv_heads=heads,
                         head_size=SIZE, block_tokens=TOKENS, part_bytes=(layer_bytes,) * LAYERS,
                         **({"attention": "mla"} if is_mla else {}))


class Gpu:
    """Or the CPU, where all work is done before its call returns."""

    def __init__(self, device):
        self.place = torch.device("cuda" if device == "cuda" else "cpu")
        self.is_gpu = device == "cuda"
        self.stream = torch.cuda.Stream() if self.is_gpu else None
        self.late_count = self.asked_count = 0

    @property
    def edge(self):
        return self.stream if self.is_gpu else terrace.HOST

    def on(self):
        return torch.cuda.stream(self.stream) if self.is_gpu else contextlib.nullcontext()

    def linger(self):
        """Work on the stream that takes some milliseconds: what follows it is late."""
        if self.is_gpu:
            torch.cuda._sleep(20_000_000)  # pylint: disable=protected-access

    def count_late(self):
        """Whether the stream's work is still under way, as it is to be when a copy is asked for."""
        self.asked_count += 1
        self.late_count += not self.is_gpu or not self.stream.query()

    def synchronize(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def random(self, shape):
        return torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, device=self.place)


class Daemon:
    def __init__(self, options, directory):
        self.socket = f"{directory}/t.sock"
        config = pathlib.Path(directory) / "t.toml"
        hbm = f'"{options.hbm_device}"\nplugin_path = "{options.plugin}"' if options.hbm_device \
            != "host" else '"host"'
        config.write_text(f'[daemon]\ndram_bytes = "{options.dram}"\n'
                          f'segment_bytes = "{options.segment}"\nsegments_spare = 2\n[hbm]\n'
                          f'capacity_bytes = "{options.hbm}"\nslab_bytes = "{options.slab}"\n'
                          f"device = {hbm}\n")
        programs = os.environ.get("TERRACE_PROGRAMS_LD_LIBRARY_PATH")
        environment = {**os.environ, **({"LD_LIBRARY_PATH": programs} if programs else {})}
        self.log = options.report.with_name("terraced.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([options.terraced, "--config", config, "--socket",
                                             self.socket], env=environment, stdout=log,
                                            stderr=subprocess.STDOUT)

    def check_running(self):
        status = self.process.poll()
        if status is not None:
            raise RuntimeError(f"terraced ended with exit status {status}; {self.log} ends: "
                               f"{self.log.read_text()[-1000:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LONG_S)


def connect(daemon, **more):
    client = terrace.Client(daemon.socket, default_timeout_s=LONG_S, **more)
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            client.wait_connected(1.0)
            if client.stats()["domain"]["segments_populated"] > 0:
                return client
        except terrace.Unavailable:
            pass
        daemon.check_running()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no daemon came up: {client.last_error}")


class Cache:
    """Pages of one layout: `layers` as the engine has them, and the library's view of them."""

    def __init__(self, gpu, device, space, axes):
        rope = ROPE if space.is_of_chunks else None
        sizes = {"B": PAGES, "P": 2, "T": TOKENS, "H": space.kv_heads, "D": SIZE}
        self.axes = axes
        self.layers = [gpu.random([sizes[axis] for axis in axes]) for _ in range(LAYERS)]
        self.paged = terrace.PagedCache(device, space, self.layers, axes=axes, rope=rope)

    def pages(self, layer, which):
        """The pages outermost, of the tensor of a layer: a view of a slice, a copy of others."""
        return self.layers[layer].movedim(self.axes.index("B"), 0)[which]


def store_and_load(gpu, group, source, target, tokens):
    """One block's way there and back, with every kernel late; how many bytes are wrong."""
    keys = group.hash(tokens)
    count = len(keys)
    order = torch.randperm(PAGES)
    # On the GPU already: an index that comes from the host waits for the stream, which would leave
    # nothing late.
    there, back = order[:count].to(gpu.place), order[-count:].to(gpu.place)
    to_store, to_fill = there.tolist(), back.tolist()
    fresh = [gpu.random(source.pages(layer, there).shape) for layer in range(LAYERS)]
    gpu.synchronize()
    with group.reserve(keys) as lease, gpu.on():
        gpu.linger()
        for layer in range(LAYERS):
            source.pages(layer, slice(None)).index_copy_(0, there, fresh[layer])
        gpu.count_late()
        with source.paged.store(lease, to_store, kv_written=gpu.edge) as copy:
            copy.page_reuse(gpu.edge)
            for layer in range(LAYERS):  # another prompt's
                source.pages(layer, slice(None)).index_fill_(0, there, 0x5A5A)
            copy.wait(LONG_S)
        if lease.commit() != count:
            raise RuntimeError("not every block was committed")
    wrong = 0
    with group.acquire(keys) as lease, gpu.on():
        lease.wait_ready()
        before = [tensor.clone() for tensor in target.layers]
        gpu.linger()
        read = [target.pages(layer, back) for layer in range(LAYERS)]
        gpu.count_late()
        with target.paged.load(lease, to_fill, destination_free=gpu.edge) as copy:
            got = []
            for layer in range(LAYERS):
                copy.layer_ready(layer, gpu.edge)
                got.append(target.pages(layer, back))
            copy.wait(LONG_S)
    gpu.synchronize()
    for layer in range(LAYERS):
        was = before[layer].movedim(target.axes.index("B"), 0)
        wrong += int((read[layer] != was[back]).sum())
        mine = fresh[layer].movedim(_rest(source.axes), tuple(range(fresh[layer].dim())))
        theirs = got[layer].movedim(_rest(target.axes), tuple(range(got[layer].dim())))
        wrong += int((mine != theirs).sum())
        others = [page for page in range(PAGES) if page not in to_fill]
        wrong += int((target.pages(layer, others) != was[others]).sum())
    return 2 * wrong


def _rest(axes):
    """Where B, P, T, H and D are, once the pages are outermost."""
    moved = "B" + axes.replace("B", "")
    return tuple(moved.index(axis) for axis in "BPTHD" if axis in moved)


def pinned_bytes_of(client):
    """Of the arena, by all clients of the daemon; told within a second of a change."""
    deadline = time.monotonic() + 5
    while True:
        pinned_bytes = sum(told["pinned_bytes"] for told in client.stats()["copies"]["clients"])
        if pinned_bytes or time.monotonic() > deadline:
            return pinned_bytes
        time.sleep(0.1)


def check_order(gpu, device, daemon, options):
    for is_pinned in (False, True):
        with connect(daemon) as client:
            if is_pinned:
                client.pin_arena(device)
            wrong = rounds = 0
            for number, (axes, order) in enumerate(LAYOUTS):
                for heads in (1, 8):
                    space = space_of(heads, order)
                    group = client.open(terrace.SpaceGroup(space.model, [space]))
                    into = {"nhd": "BPHTD", "hnd": "PBTHD", "mla": "BTHD"}[order]
                    source, target = (Cache(gpu, device, space, each) for each in (axes, into))
                    for repeat in range(options.repeats):
                        tokens = [1000 * number + 10 * repeat + is_pinned] * (12 * TOKENS)
                        wrong += store_and_load(gpu, group, source, target, tokens)
                        rounds += 1
                    for cache in (source, target):
                        cache.paged.close()
            pinned_bytes = pinned_bytes_of(client) if is_pinned else 0
        where = "registered" if is_pinned else "not registered"
        yield {"line": f"every edge against late kernels, {len(LAYOUTS)} layouts, arena {where}",
               "figure": f"{wrong} wrong bytes in {rounds} rounds; {pinned_bytes} bytes registered",
               "limit": "0", "holds": wrong == 0 and rounds > 0 and (pinned_bytes > 0) == is_pinned}
    yield {"line": "copies that were asked for while the stream's kernels were under way",
           "figure": f"{gpu.late_count} of {gpu.asked_count}", "limit": "nine in ten",
           "holds": 10 * gpu.late_count >= 9 * gpu.asked_count > 0}


def check_hbm(gpu, device, daemon, options):
    with connect(daemon, device=device) as client:
        space = space_of(8, "nhd")
        group = client.open(terrace.SpaceGroup("hbm", [space]))
        source, target = (Cache(gpu, device, space, "PBTHD") for _ in range(2))
        keys = group.hash(range(8 * TOKENS))
        pages = list(range(8))
        gpu.synchronize()
        with group.reserve(keys) as lease:
            with source.paged.store(lease, pages, kv_written=gpu.edge) as copy:
                copy.wait(LONG_S)
            lease.commit()
        deadline = time.monotonic() + LONG_S
        while True:
            lease = group.acquire(keys, flags=terrace.ACQUIRE_DEVICE)
            if all(lease.is_in_device(block) for block in range(len(keys))):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing came to the device: {client.last_error}")
            lease.release()
            time.sleep(0.01)
        with lease, target.paged.load(lease, pages, destination_free=gpu.edge) as copy:
            copy.wait(LONG_S)
        gpu.synchronize()
        wrong = sum(2 * int((source.pages(layer, pages) != target.pages(layer, pages)).sum())
                    for layer in range(LAYERS))
    yield {"line": f"blocks read in memory of the device ({options.hbm_device})",
           "figure": f"{wrong} wrong bytes in {len(keys)} blocks", "limit": "0",
           "holds": wrong == 0}


def stored(cache, edge, group, tokens, pages, positions):
    """A read lease of the pages, stored."""
    keys = group.hash(tokens)
    with group.reserve(keys) as lease:
        with cache.paged.store(lease, pages, kv_written=edge, positions=positions) as copy:
            copy.wait(LONG_S)
        committed = lease.commit()
        if committed != len(keys):
            raise RuntimeError(f"{committed} of {len(keys)} blocks were committed")
    lease = group.acquire(keys)
    lease.wait_ready()
    return lease


def check_codecs(gpu, device, daemon, _options):
    """The CPU's copies are by the host's backend, of the same numbers."""
    cpu, pages, wrong, count = Gpu("host"), list(range(8)), 0, 0
    with connect(daemon) as client, terrace.Device("host") as host:
        for codec, is_of_chunks in (("int8", False), ("fp8", False), ("int4", False),
                                    (None, True), ("int8", True), ("int4", True)):
            space = space_of(8, "nhd") if codec is None else space_of(8, "nhd").encoded(codec)
            space = space.chunks() if is_of_chunks else space
            was, now = (0, 1000) if is_of_chunks else (None, None)
            group = client.open(terrace.SpaceGroup(f"{codec}-{space.layout}", [space]))
            source, target = (Cache(gpu, device, space, axes) for axes in ("BPHTD", "PBTHD"))
            twin, twins_target = (Cache(cpu, host, space, axes) for axes in ("BPHTD", "PBTHD"))
            for layer in range(LAYERS):
                source.layers[layer] &= ~0x4000  # numbers below 2
                twin.layers[layer].copy_(source.layers[layer])
            gpu.synchronize()
            with stored(source, gpu.edge, group, range(8 * TOKENS), pages, was) as lease, \
                    stored(twin, terrace.HOST, group, range(1, 8 * TOKENS + 1), pages, was) \
                    as twins:
                for block, part in itertools.product(pages, range(len(space.part_bytes))):
                    mine, theirs = bytes(lease.part(block, part)), bytes(twins.part(block, part))
                    wrong += sum(a != b for a, b in zip(mine, theirs))
                    count += len(theirs)
                for cache, edge in ((target, gpu.edge), (twins_target, terrace.HOST)):
                    with cache.paged.load(lease, pages, destination_free=edge,
                                          positions=now) as copy:
                        copy.wait(LONG_S)
            gpu.synchronize()
            for layer in range(LAYERS):
                loaded = target.pages(layer, pages).cpu()
                wrong += 2 * int((loaded != twins_target.pages(layer, pages)).sum())
    yield {"line": "pages under int8, fp8 and int4, and chunks whose keys turn, beside the host's",
           "figure": f"{wrong} other bytes, of {count} in slots", "limit": "0",
           "holds": wrong == 0 and count > 0}


# What one process stores before a kernel of its own fails, and what it stores behind it.
BEFORE, BEHIND = range(10_000, 10_000 + 8 * TOKENS), range(20_000, 20_000 + 8 * TOKENS)
WILD_KERNEL = 'extern "C" __global__ void wild(long long *at) { at[1LL << 44] = 1; }'


def failing_group(client):
    return client.open(terrace.SpaceGroup("failure", [space_of(8, "nhd")]))


def fail(options):
    """Stores, fails, and stores again; says what came of the second store."""
    gpu = Gpu(options.device)
    told = {"committed": 0, "error": None}
    with terrace.Device(options.device, plugin_path=options.plugin) as device, \
            terrace.Client(options.fail, default_timeout_s=LONG_S) as client:
        client.wait_connected(LONG_S)
        group = failing_group(client)
        cache = Cache(gpu, device, space_of(8, "nhd"), "PBTHD")
        for layer in range(LAYERS):
            cache.layers[layer].fill_(layer + 1)
        gpu.synchronize()
        pages = list(range(8))
        stored(cache, gpu.edge, group, BEFORE, pages, None).release()
        lease = group.reserve(group.hash(BEHIND))
        try:
            if gpu.is_gpu:
                # pylint: disable-next=protected-access
                wild = torch.cuda._compile_kernel(WILD_KERNEL, "wild")
                with gpu.on():
                    gpu.linger()
                    wild(grid=(1, 1, 1), block=(1, 1, 1), args=[cache.layers[0]])
            copy = cache.paged.store(lease, pages, kv_written=gpu.edge)
            copy.wait(LONG_S)
        except (terrace.TerraceError, RuntimeError) as error:
            told["error"] = f"{type(error).__name__}: {error}"
        try:
            told["committed"] = lease.commit()
        except terrace.TerraceError as error:
            told["error"] = f"{told['error']}; {type(error).__name__}: {error}"
        print(json.dumps(told), flush=True)
    os._exit(0)  # its GPU is lost to it


def pids_on_gpu():
    if shutil.which("nvidia-smi") is None:
        return []
    asked = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
                           capture_output=True, text=True, check=False)
    return [int(line) for line in asked.stdout.split() if line.isdigit()]


def check_failure(gpu, device, daemon, options):
    with connect(daemon) as client:
        group = failing_group(client)
        space = space_of(8, "nhd")
        source, target = (Cache(gpu, device, space, axes) for axes in ("PBTHD", "BPTHD"))
        wrong = store_and_load(gpu, group, source, target, [7] * (12 * TOKENS))
        child = subprocess.run([sys.executable, __file__, "--fail", daemon.socket, "--plugin",
                                options.plugin, "--device", options.device],
                               capture_output=True, text=True, timeout=2 * LONG_S, check=False)
        try:
            told = json.loads(child.stdout.splitlines()[-1])
        except (IndexError, ValueError) as error:
            raise RuntimeError(f"exit status {child.returncode}: {child.stderr[-600:]}") from error
        daemon.check_running()
        behind = group.acquire(group.hash(BEHIND))
        found = behind.block_count
        behind.release()
        expected = 0 if gpu.is_gpu else len(BEHIND) // TOKENS  # the CPU does not fail
        yield {"line": "a store behind a kernel that failed",
               "figure": f"{told['committed']} blocks committed, {found} found; {told['error']}",
               "limit": f"{expected}, with an error only if that is 0",
               "holds": told["committed"] == found == expected
                        and bool(told["error"]) == (expected == 0)}
        lease = group.acquire(group.hash(BEFORE))
        lease.wait_ready()
        pages = list(range(lease.block_count))
        with lease, target.paged.load(lease, pages, destination_free=gpu.edge) as copy:
            copy.wait(LONG_S)
        gpu.synchronize()
        wrong += sum(2 * int((target.pages(layer, pages) != layer + 1).sum())
                     for layer in range(LAYERS))
        wrong += store_and_load(gpu, group, source, target, [8] * (12 * TOKENS))
        yield {"line": "what it stored before, and others' stores and loads behind its failure",
               "figure": f"{wrong} wrong bytes, {len(pages)} blocks of before", "limit": "0, of 8",
               "holds": wrong == 0 and len(pages) == 8}
        pids = pids_on_gpu()
        if os.getpid() not in pids:
            yield {"line": "processes with a context on the GPU", "limit": "", "holds": None,
                   "figure": f"nvidia-smi does not tell them here ({len(pids)} told)"}
            return
        yield {"line": "the daemon is no process with a context on the GPU",
               "figure": f"pid {daemon.process.pid}, of {pids}", "limit": "not among them",
               "holds": daemon.process.pid not in pids}


class Neighbour:
    """An engine's kernels, matrix products or sums that read and write memory, on a stream of their
    own and timed by the GPU's clock."""

    def __init__(self, gpu, operation, shape, count):
        kind = torch.bfloat16 if gpu.is_gpu else torch.float32
        self.gpu, self.operation, self.count = gpu, operation, count
        self.left, self.right = (torch.randn(shape, device=gpu.place, dtype=kind)
                                 for _ in range(2))
        self.out = torch.empty_like(self.left)
        self.stream = torch.cuda.Stream() if gpu.is_gpu else None

    def time(self, beside):
        """Milliseconds of `count` kernels; `beside` is called again and again until they end."""
        if not self.gpu.is_gpu:
            began = time.monotonic()
            beside()
            for _ in range(self.count):
                self.operation(self.left, self.right, out=self.out)
            return 1e3 * (time.monotonic() - began)
        torch.cuda.synchronize()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            began.record()
            for _ in range(self.count):
                self.operation(self.left, self.right, out=self.out)
            ended.record()
        while not ended.query():
            beside()
        torch.cuda.synchronize()
        return began.elapsed_time(ended)


def check_product(gpu, device, daemon, options):
    neighbours = (
        (f"products of {options.matrix}²",
         Neighbour(gpu, torch.mm, (options.matrix, options.matrix), options.products)),
        (f"sums of {options.sums} MiB",
         Neighbour(gpu, torch.add, (options.sums, 1 << 19), options.products)))
    for heads in (1, 8):
        with connect(daemon) as client:
            client.pin_arena(device)
            space = space_of(heads, "nhd")
            group = client.open(terrace.SpaceGroup(f"product-{heads}", [space]))
            cache = Cache(gpu, device, space, "PBTHD")
            moved = {"store": 0, "load": 0}
            tokens = iter(range(1 << 30))

            def store():
                keys = group.hash([next(tokens)] * (PAGES * TOKENS))
                with group.reserve(keys) as lease:
                    count = len(keys)
                    with cache.paged.store(lease, list(range(count)), kv_written=gpu.edge) as copy:
                        copy.wait(LONG_S)
                    lease.abort()
                    moved["store"] += count * space.block_bytes

            keys = group.hash([1 << 30] * (PAGES * TOKENS))
            with group.reserve(keys) as lease:
                with cache.paged.store(lease, list(range(PAGES)), kv_written=gpu.edge) as copy:
                    copy.wait(LONG_S)
                lease.commit()
            held = group.acquire(keys)
            held.wait_ready()

            def load():
                with cache.paged.load(held, list(range(held.block_count)),
                                      destination_free=gpu.edge) as copy:
                    copy.wait(LONG_S)
                moved["load"] += held.block_count * space.block_bytes

            for (what, neighbour), (name, beside) in itertools.product(
                    neighbours, (("store", store), ("load", load))):
                for _ in range(2):
                    neighbour.time(beside)  # segments are registered, clocks are up
                moved[name], busy_ms = 0, 0.0
                slower = []
                for _ in range(options.rounds):
                    alone = neighbour.time(lambda: time.sleep(0.0005))
                    with_copies = neighbour.time(beside)
                    busy_ms += with_copies
                    slower.append(with_copies / alone - 1)
                median = statistics.median(slower)
                yield {"line": f"{what} beside {name}s, runs of "
                               f"{TOKENS * heads * SIZE * 2 // 1024} KiB",
                       "figure": f"{median:+.2%} (from {min(slower):+.2%} to {max(slower):+.2%}), "
                                 f"{moved[name] / busy_ms / 1e6:.1f} GB/s copied",
                       "limit": f"<= {SLOWDOWN_MAX:.0%}" if gpu.is_gpu else "",
                       "holds": median <= SLOWDOWN_MAX and moved[name] > 0 if gpu.is_gpu else None}
            held.release()
            cache.paged.close()  # or the device stays the arena's of this client


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terraced")
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--fail", metavar="SOCKET")
    parser.add_argument("--device", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--only", default="order,hbm,codecs,failure,product")
    options = parser.parse_args()
    if options.fail is None and None in (options.terraced, options.report):
        parser.error("--terraced and --report are missing")
    is_gpu = options.device == "cuda"
    options.hbm_device = "cuda:0" if is_gpu else "host"
    options.dram, options.segment = ("2GiB", "256MiB") if is_gpu else ("256MiB", "16MiB")
    options.hbm, options.slab = ("512MiB", "256MiB") if is_gpu else ("32MiB", "16MiB")
    options.repeats = 10 if is_gpu else 1
    options.matrix, options.products, options.rounds = (8192, 100, 9) if is_gpu else (256, 2, 1)
    options.sums = 512 if is_gpu else 1  # MiB an operand
    return options


def lines_of(name, *arguments):
    """Of one check; what goes wrong in it is a line, too, and the next check is made."""
    try:
        yield from globals()[f"check_{name}"](*arguments)
    except Exception as error:  # pylint: disable=broad-exception-caught
        traceback.print_exc()
        yield {"line": name, "figure": f"{type(error).__name__}: {error}", "limit": "no error",
               "holds": False}


def main():
    options = parse_arguments()
    if options.fail:
        return fail(options)
    gpu = Gpu(options.device)
    lines = []
    with tempfile.TemporaryDirectory() as directory, \
            terrace.Device(options.device, plugin_path=options.plugin) as device:
        daemon = Daemon(options, directory)
        try:
            for name in options.only.split(","):
                for line in lines_of(name, gpu, device, daemon, options):
                    lines.append(line)
                    print(line, flush=True)
                    options.report.write_text(json.dumps(lines))
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
