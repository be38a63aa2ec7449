#!/usr/bin/env python3
"""A recorded trace through the vLLM connector, against real daemons that differ in eviction.

usage: tests/long/engine_policies.py --build BUILD --trace FILE [--capacities 0.5%,1%,2%]
           [--policies lru,hazard] [--requests N] [--mute]

Every request of the trace takes the way that vLLM's scheduler and worker take: lookup, load of what
was hit, steps that compute the rest and store it, its end with vLLM's status and the tokens of an
answer (one that calls a tool where the trace says so). The engine keeps nothing itself. The
connector says what it knows by itself; --mute: the end reasons are left out.

The daemons' clock is the trace's, by a library that is loaded before them: at each request it is
set to the request's time, and between them it goes a tenth as fast as it should, so that a day of
trace takes as long as its requests do, and a slow machine changes nothing. Shown beside what was
hit: what `terrace replay` says of the same capacity, and how much of the way from LRU to the
optimum the connector's way covers, averaged over the capacities where that is at least one point.
"""
import argparse
import contextlib
import ctypes
import hashlib
import itertools
import json
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types

import live_policies

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOT_BYTES = 4096
SEGMENT_BYTES = 2 << 20
BLOCK_TOKENS = 16  # stand for a block of the trace
PAGES = 64  # of the engine: which bytes a block has does not matter here
STEP_BLOCKS = 128  # that an engine computes at a time
LEASE_TTL_MS = 3_600_000  # the daemons' clock jumps
CALL, PLAIN = 5, 6  # tokens: one that begins a call of a tool, and one that does not
CLOCK_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
/* In nanoseconds: the time shown is this and a tenth of the machine's own. */
static volatile long long* offset_ns;
__attribute__((constructor)) static void open_clock(void) {
  const int file = open(getenv("CLOCK_FILE"), O_RDONLY);
  void* map = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
  offset_ns = map == MAP_FAILED ? NULL : map;
}
int clock_gettime(clockid_t id, struct timespec* at) {
  const int failed = (int)syscall(SYS_clock_gettime, id, at);
  if (failed || id != CLOCK_MONOTONIC || offset_ns == NULL) return failed;
  const long long now_ns = at->tv_sec * 1000000000LL + at->tv_nsec;
  const long long shown_ns = __atomic_load_n(offset_ns, __ATOMIC_ACQUIRE) + now_ns / 10;
  at->tv_sec = shown_ns / 1000000000LL;
  at->tv_nsec = shown_ns % 1000000000LL;
  return 0;
}
"""


class Clock:
    """That of the daemons: it never goes back."""

    def __init__(self, directory):
        path = directory / "clock"
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            # One store of eight bytes: who reads half of one sees a clock that goes back.
            self._shown = ctypes.c_int64.from_buffer(mmap.mmap(file.fileno(), 8))
        self._first_ns = time.monotonic_ns()
        self._shown.value = self._first_ns - self._first_ns // 10
        (directory / "clock.c").write_text(CLOCK_SOURCE)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", directory / "clock.c", "-o",
                        directory / "clock.so"], check=True)
        self.environment = {**os.environ, "LD_PRELOAD": str(directory / "clock.so"),
                            "CLOCK_FILE": str(path)}

    def set(self, seconds):
        """Since the trace began. How much later it is already."""
        here_ns = time.monotonic_ns() // 10
        wanted_ns = self._first_ns + int(seconds * 1e9)
        self._shown.value = max(self._shown.value, wanted_ns - here_ns)
        return (self._shown.value + here_ns - wanted_ns) / 1e9


def read_trace(path, count):
    """Of the first `count` requests those that have a full block; see live_policies.requests_of."""
    return [request for request in itertools.islice(live_policies.requests_of(path), count)
            if request[1]]


class Request:
    """As connectors see vLLM's. The token that is left to compute is the last one."""

    def __init__(self, number, ids, stop, session, mute):
        self.request_id = f"r{number}"
        self.block_hashes = [hashlib.blake2b(str(i).encode(), digest_size=32).digest()
                             for i in ids]
        self.num_prompt_tokens = len(ids) * BLOCK_TOKENS + 1
        self.num_computed_tokens = 0
        self.output_token_ids = [PLAIN, CALL if stop == "tool_use" else PLAIN]
        self.num_tokens = self.num_prompt_tokens
        self.kv_transfer_params = None
        self.sampling_params = types.SimpleNamespace(extra_args=None, stop=())
        self.session_id = session
        ends = {"tool_use": "FINISHED_STOPPED", "end_turn": "FINISHED_STOPPED"}
        self.status = types.SimpleNamespace(
            name="RUNNING" if mute else ends.get(stop, "FINISHED_LENGTH_CAPPED"))
        self.lora_request = None


def pages_of(first, last):
    """Block ids: any but vLLM's null block."""
    return [1 + i % (PAGES - 1) for i in range(first, last)]


class Instance:
    """A daemon of `block_count` blocks under one policy, and an engine on it."""

    def __init__(self, build, directory, policy, block_count, clock):
        self.policy, self.block_count = policy, block_count
        self.asked = self.hits = 0
        self.call_us = []
        directory.mkdir()
        socket = directory / "terraced.sock"
        (directory / "terraced.toml").write_text(
            f'[daemon]\ndram_bytes = {block_count * SLOT_BYTES}\n'
            f'segment_bytes = {SEGMENT_BYTES}\neviction = "{policy}"\n'
            f'lease_ttl_ms = {LEASE_TTL_MS}\n')
        self.log_path = directory / "log"
        self.log = open(self.log_path, "wb")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [build / "daemon/terraced", "--config", directory / "terraced.toml", "--socket",
             socket], stdout=self.log, stderr=subprocess.STDOUT, env=clock.environment)
        while not socket.exists():
            if self.process.poll() is not None:
                sys.exit((directory / "log").read_text())
            time.sleep(0.05)
        self.scheduler, self.worker = self._connectors(str(socket))

    @staticmethod
    def _connectors(socket):
        import torch
        import terrace.vllm
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm_engine_worker import FullAttentionSpec

        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1)
        kv_cache = types.SimpleNamespace(num_blocks=PAGES, kv_cache_groups=[
            types.SimpleNamespace(kv_cache_spec=spec, layer_names=["layer.0"])])
        config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(tensor_parallel_size=1,
                                                  decode_context_parallel_size=1),
            cache_config=types.SimpleNamespace(cache_dtype="auto",
                                               prefix_caching_hash_algo="sha256"),
            model_config=types.SimpleNamespace(model="trace", hf_config=None, revision=None),
            load_config=types.SimpleNamespace(load_format="auto"),
            kv_transfer_config=types.SimpleNamespace(
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={
                    "socket": socket, "revision": "1", "timeout_ms": 30_000,
                    "lookup_wait_ms": 30_000, "tool_call_tokens": [CALL]}))
        scheduler, worker = (terrace.vllm.TerraceConnector(config, role, kv_cache)
                             for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER))
        worker.register_kv_caches(
            {"layer.0": torch.zeros((PAGES, SLOT_BYTES // 2), dtype=torch.int16)})
        scheduler.set_xfer_handshake_metadata({0: worker.get_handshake_metadata()})
        return scheduler, worker

    def step(self, new=(), cached=()):
        """new: [(request, block ids)]; cached: [(request, more block ids)]."""
        output = types.SimpleNamespace(
            scheduled_new_reqs=[types.SimpleNamespace(
                req_id=request.request_id, block_ids=(ids,),
                num_computed_tokens=request.num_computed_tokens) for request, ids in new],
            preempted_req_ids=set(),
            num_scheduled_tokens={request.request_id: STEP_BLOCKS * BLOCK_TOKENS
                                  for request, _ in (*new, *cached)},
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[request.request_id for request, _ in cached], resumed_req_ids=set(),
                new_block_ids=[(ids,) for _, ids in cached],
                num_computed_tokens=[request.num_computed_tokens for request, _ in cached]))
        metadata = self.scheduler.build_connector_meta(output)
        worker = self.worker
        worker.bind_connector_metadata(metadata)
        worker.handle_preemptions(metadata)
        worker.start_load_kv(None)
        results = worker.get_transfer_results(set())
        bad, reports = worker.get_block_ids_with_load_errors(), worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        self.scheduler.update_connector_output(types.SimpleNamespace(
            finished_recving=results.finished_recving, finished_sending=None, invalid_block_ids=bad,
            failed_recving=set(), kv_connector_worker_meta=reports))
        self.scheduler.take_events()
        if bad:
            raise RuntimeError(f"{self.policy} of {self.block_count}: blocks of a hit were lost")
        return results.finished_recving

    def serve(self, request):
        """One request, from its arrival to its end."""
        start = time.perf_counter()
        count = len(request.block_hashes)
        request.block_hashes = request.block_hashes[:self.block_count]  # of more the head stays
        kept = len(request.block_hashes)
        self.asked += count
        self.scheduler.on_new_request(request)
        tokens = None
        while tokens is None:
            tokens, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        hit = tokens // BLOCK_TOKENS
        self.hits += hit
        table = pages_of(0, hit)
        self.scheduler.update_state_after_alloc(
            request, types.SimpleNamespace(get_block_ids=lambda: (table,)), tokens)
        if hit:
            while request.request_id not in self.step():
                pass
        self._compute(request, hit, kept)
        request.num_computed_tokens = kept * BLOCK_TOKENS
        self.scheduler.request_finished_all_groups(request, (pages_of(0, kept),))
        while self.scheduler.has_pending_push_work():
            self.step()
        self.call_us.append((time.perf_counter() - start) * 1e6)

    def _compute(self, request, hit, kept):
        """The rest of its prompt, step by step."""
        first, is_new = hit, True
        while first < kept or is_new:
            last = min(kept, first + STEP_BLOCKS)
            request.num_computed_tokens = first * BLOCK_TOKENS
            if is_new:
                self.step(new=[(request, pages_of(0, last))])
            else:
                self.step(cached=[(request, pages_of(first, last))])
            first, is_new = last, False

    def stop(self):
        self.worker.shutdown()
        self.scheduler.shutdown()
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def replayed(build, trace, counts, request_count):
    """{(policy, capacity): hit percent} of LRU, hazard and the optimum."""
    out = subprocess.run(
        [build / "tools/terrace", "replay", trace, "--policy", "lru,hazard", "--capacity",
         ",".join(map(str, counts)), "--requests", str(request_count), "--step-blocks",
         str(STEP_BLOCKS), "--json"], check=True, capture_output=True)
    document = json.loads(out.stdout)
    said = {}
    for row in document["results"]:
        said[row["policy"], row["capacity_blocks"]] = row["hit_percent"]
        said["optimum", row["capacity_blocks"]] = (100 * row["optimum_hit_blocks"]
                                                   / document["block_touches"])
    return said


def drive(instances, requests, clock, mute):
    """Each request at its time. How late the latest was, in seconds of the trace."""
    latest_s = 0.0
    for number, (seconds, ids, stop, session) in enumerate(requests):
        latest_s = max(latest_s, clock.set(seconds))
        for instance in instances:
            instance.serve(Request(number, ids, stop, session, mute))
    for instance in instances:
        if instance.process.poll() is not None:
            sys.exit(f"{instance.policy} of {instance.block_count} blocks: the daemon has ended:\n"
                     f"{instance.log_path.read_text()[-2000:]}")
    return latest_s


def report(instances, said):
    print("capacity policy   hit %   replay %   lru %   optimum %   of the way   ms p50")
    shares = {}
    for instance in instances:
        count, policy = instance.block_count, instance.policy
        hit = 100 * instance.hits / instance.asked
        lru, best = said["lru", count], said["optimum", count]
        share = (hit - lru) / (best - lru) if best - lru >= 1 else None
        if share is not None:
            shares.setdefault(policy, []).append(share)
        instance.call_us.sort()
        print(f"{count:8} {policy:8} {hit:5.2f}   {said[policy, count]:8.2f}   {lru:5.2f}   "
              f"{best:9.2f}   {'' if share is None else f'{share:10.3f}':>10}   "
              f"{instance.call_us[len(instance.call_us) // 2] / 1000:6.1f}")
    for policy, found in shares.items():
        print(f"{policy}: {100 * sum(found) / len(found):.1f} % of the way from LRU to the optimum")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--capacities", default="0.5%,1%,2%")
    parser.add_argument("--policies", default="lru,hazard")
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--mute", action="store_true")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    os.environ["TERRACE_LIBRARY"] = str(build / "client/libterrace.so.1")
    sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/python")]
    import vllm_driver  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
    requests = read_trace(arguments.trace, arguments.requests)
    unique = len({i for _, ids, *_ in requests for i in ids})
    per_segment = SEGMENT_BYTES // SLOT_BYTES
    counts = sorted({max(1, round(float(text.rstrip("%")) / 100 * unique / per_segment))
                     * per_segment for text in arguments.capacities.split(",")})
    with contextlib.ExitStack() as stack:
        root = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-")))
        clock = Clock(root)
        instances = []
        for count in counts:
            for policy in arguments.policies.split(","):
                instances.append(Instance(build, root / f"{policy}-{count}", policy, count,
                                          clock))
                stack.callback(instances[-1].stop)
        latest_s = drive(instances, requests, clock, arguments.mute)
        report(instances, replayed(build, arguments.trace, counts, len(requests)))
    print(f"{len(requests)} requests, {instances[0].asked} block touches, {unique} blocks; at most "
          f"{latest_s:.1f} s of the trace late")


if __name__ == "__main__":
    main()
