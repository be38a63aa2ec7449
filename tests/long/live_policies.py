#!/usr/bin/env python3
"""A recorded trace, in its own time, against real daemons that differ in their eviction policy.

usage: tests/long/live_policies.py --build BUILD --trace FILE [--capacities 1%,2%]
           [--policies lru,hazard] [--hours 1]

One daemon for each capacity and policy; all are asked at the moment the trace says: acquire the
prompt, store what missed, release with the reason why it ended. Beside what they hit stands what
`terrace replay` says of the same capacity. Blocks are 4 KiB: policies count blocks, not bytes.
"""
import argparse
import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK_BYTES = 4096  # of payload, and of its slot
SEGMENT_BYTES = 2 << 20
END_REASONS = {"tool_use": "tool_call", "end_turn": "end_of_turn"}


def requests_of(path):
    """(seconds since the first, ids of full blocks, why it ended or None, session or None) of each
    request of a recorded trace, as `terrace replay` takes them, in the order of their times."""
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as lines:
        rows = [json.loads(line) for line in lines]
    block_tokens = 256 if "session_id" in rows[0] else 512
    rows.sort(key=lambda row: row["timestamp"])
    for row in rows:
        yield ((row["timestamp"] - rows[0]["timestamp"]) / 1000,
               row["hash_ids"][:row["input_length"] // block_tokens], row.get("stop"),
               row.get("session_id"))


def read_trace(path, hours):
    """(seconds, ids of full blocks, why it ended) for each request."""
    return [(seconds, ids, END_REASONS.get(stop, "unknown"))
            for seconds, ids, stop, _ in requests_of(path) if seconds <= hours * 3600]


class Daemon:
    """A terraced of `block_count` blocks under one policy, and a client of it."""

    def __init__(self, build, directory, policy, block_count):
        import terrace
        self.policy, self.block_count = policy, block_count
        self.asked = self.hits = self.unavailable = 0
        self.call_us = []
        directory.mkdir()
        socket = directory / "terraced.sock"
        (directory / "terraced.toml").write_text(
            f'[daemon]\ndram_bytes = {block_count * BLOCK_BYTES}\n'
            f'segment_bytes = {SEGMENT_BYTES}\neviction = "{policy}"\n')
        self.log = open(directory / "log", "wb")
        self.process = subprocess.Popen(
            [build / "daemon/terraced", "--config", directory / "terraced.toml", "--socket",
             socket], stdout=self.log, stderr=subprocess.STDOUT)
        while not socket.exists():
            if self.process.poll() is not None:
                sys.exit((directory / "log").read_text())
            time.sleep(0.05)
        self.client = terrace.Client(str(socket))
        self.client.wait_connected()
        space = terrace.Space(model="trace", revision="1", dtype="int8", layout="flat", layers=1,
                              kv_heads=1, head_size=1, block_tokens=16,
                              part_bytes=(BLOCK_BYTES,))
        self.group = self.client.open(terrace.SpaceGroup("trace", [space]))
        self.payload = bytes(BLOCK_BYTES)

    def serve(self, ids, digests, end_reason):
        import terrace
        kept = digests[:self.block_count]  # of a longer prompt the head stays
        self.asked += len(ids)
        start = time.perf_counter()
        try:
            keys = self.group.keys_of_digests(kept)
            with self.group.acquire(keys) as lease:
                hit = lease.block_count
                self.hits += hit
                if hit < len(keys):
                    parent = keys[hit - 1] if hit else None
                    with self.group.reserve(keys[hit:], parent=parent, first_position=hit) as new:
                        for index in new.reserved:
                            new.write(self.payload, first_key=index,
                                      key_count=1)
                        new.commit()
                lease.release(end_reason)
        except terrace.TerraceError as error:
            self.unavailable += 1
            print(f"{self.policy} of {self.block_count}: {error}", file=sys.stderr)
        self.call_us.append((time.perf_counter() - start) * 1e6)

    def cpu_s(self):
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.client.close()
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def replayed(build, trace, policies, counts, requests):
    """{(policy, capacity): hit percent}"""
    out = subprocess.run(
        [build / "tools/terrace", "replay", trace, "--policy", ",".join(policies), "--capacity",
         ",".join(map(str, counts)), "--requests", str(requests), "--step-blocks",
         str(max(counts)), "--json"], check=True, capture_output=True)  # one Reserve a prompt
    return {(row["policy"], row["capacity_blocks"]): row["hit_percent"]
            for row in json.loads(out.stdout)["results"]}


def drive(daemons, requests):
    """Each request at its time. How late the latest was, in seconds."""
    began, latest_s = time.monotonic(), 0.0
    for seconds, ids, end_reason in requests:
        if not ids:
            continue
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        latest_s = max(latest_s, time.monotonic() - began - seconds)
        digests = [hashlib.blake2b(str(i).encode(), digest_size=32).digest() for i in ids]
        for daemon in daemons:
            daemon.serve(ids, digests, end_reason)
    return latest_s


def report(daemons, said):
    print("capacity policy   hit %   replay %   calls that failed   call p50 / p99 us   CPU s")
    for daemon in daemons:
        daemon.call_us.sort()
        count = len(daemon.call_us)
        print(f"{daemon.block_count:8} {daemon.policy:8} {100 * daemon.hits / daemon.asked:5.2f}   "
              f"{said[daemon.policy, daemon.block_count]:8.2f}   {daemon.unavailable:17}   "
              f"{daemon.call_us[count // 2]:7.0f} / {daemon.call_us[count * 99 // 100]:.0f}   "
              f"{daemon.cpu_s():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--capacities", default="1%,2%,5%")
    parser.add_argument("--policies", default="lru,hazard")
    parser.add_argument("--hours", type=float, default=1.0)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    os.environ["TERRACE_LIBRARY"] = str(build / "client/libterrace.so.1")
    sys.path.insert(0, str(ROOT / "client/python"))
    requests = read_trace(arguments.trace, arguments.hours)
    unique = len({i for _, ids, _ in requests for i in ids})
    per_segment = SEGMENT_BYTES // BLOCK_BYTES
    shares = [float(text.rstrip("%")) / 100 for text in arguments.capacities.split(",")]
    counts = sorted({max(1, round(share * unique / per_segment)) * per_segment
                     for share in shares})
    policies = arguments.policies.split(",")
    with contextlib.ExitStack() as stack:
        root = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="policies-")))
        daemons = []
        for count in counts:
            for policy in policies:
                daemons.append(Daemon(build, root / f"{policy}-{count}", policy, count))
                stack.callback(daemons[-1].stop)
        latest_s = drive(daemons, requests)
        report(daemons, replayed(build, arguments.trace, policies, counts, len(requests)))
    print(f"{len(requests)} requests, {daemons[0].asked} block touches, {unique} blocks; at most "
          f"{latest_s:.1f} s late")


if __name__ == "__main__":
    main()
