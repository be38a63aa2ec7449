#!/usr/bin/env python3
"""Terrace beside LMCache's own L2 adapters, by LMCache's own benchmark.

usage: tests/long/lmcache_l2.py [--venv DIR] [--build DIR] [--repeats 7] [--keys 16] [--kib 4096]
                                [--only NAME,…]

`lmcache bench l2` is run for each adapter in turn, --repeats times: a process of its own each time,
one task at a time of so many objects. Eight rounds are not counted: the daemon's memory holds six,
so that what is timed is written where something was before, as in a process that has run for a
while; then come three that are. Shown is, of each adapter and operation, the median over the
repeats of the median round, and the range. Lookups are of objects that are there. Adapters of files
write to --directory: what they load comes from the page cache, except with O_DIRECT. Redis, if
there is a redis-server, has no persistence. The environment is that of `tests/engines --install`.
"""
import argparse
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS, WARM_ROUNDS, ROOM_ROUNDS = 3, 8, 6


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Rig:
    """Daemon, redis-server, and the adapters' configurations."""

    def __init__(self, arguments, home):
        self.home, self.processes = home, []
        self.arguments = arguments
        block = arguments.kib << 10
        room = ROOM_ROUNDS * arguments.keys * block
        config = pathlib.Path(home) / "t.toml"
        config.write_text(f'[daemon]\ndram_bytes = {room}\nsegment_bytes = "64MiB"\n')
        self.socket = f"{home}/t.sock"
        self._start(arguments.build / "daemon" / "terraced", "--config", config, "--socket",
                    self.socket)
        self.adapters = {
            "Terrace": {"type": "plugin", "module_path": "terrace.lmcache",
                        "class_name": "TerraceL2Adapter", "adapter_params": {
                            "socket": self.socket, "revision": "1", "timeout_ms": 5000}},
            "mock (RAM of its own process)": {"type": "mock", "max_size_gb": 4 * room / 2**30,
                                              "mock_bandwidth_gb": 1000},
            "fs": {"type": "fs", "base_path": f"{home}/fs"},
            "fs_native": {"type": "fs_native", "base_path": f"{home}/fs_native"},
            "fs_native, O_DIRECT": {"type": "fs_native", "base_path": f"{home}/fs_direct",
                                    "use_odirect": True},
        }
        if shutil.which("redis-server"):
            port = free_port()
            self._start("redis-server", "--port", port, "--save", "", "--bind", "127.0.0.1",
                        "--appendonly", "no", "--dir", home)
            self.adapters["resp (Redis, loopback)"] = {"type": "resp", "host": "127.0.0.1",
                                                       "port": port}
        if arguments.only:
            self.adapters = {name: each for name, each in self.adapters.items()
                             if any(word in name for word in arguments.only.split(","))}
        time.sleep(2)

    def _start(self, *command):
        with open(f"{self.home}/log", "ab") as log:
            self.processes.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log))

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def run(self, number, name):
        """Milliseconds of the median round, by operation; what was not found or loaded fails."""
        spec = json.loads(json.dumps(self.adapters[name]))
        if name == "Terrace":
            spec["adapter_params"]["apart"] = str(number)  # nothing of the runs before is there
        elif "base_path" in spec:
            spec["base_path"] += str(number)
            os.mkdir(spec["base_path"])
        out = f"{self.home}/result.json"
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT / "client" / "python"),
            "TERRACE_LIBRARY": str(self.arguments.build / "client" / "libterrace.so"),
            "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_LOG_LEVEL": "ERROR",
            "LMCACHE_TRACK_USAGE": "false"}
        done = subprocess.run(
            [self.arguments.venv / "bin" / "lmcache", "bench", "l2", "--l2-adapter",
             json.dumps(spec), "--num-keys", str(self.arguments.keys), "--data-size-kb",
             str(self.arguments.kib), "--rounds", str(ROUNDS),
             "--warmup-rounds", str(WARM_ROUNDS), "--lookup-max-hit-rate", "1.0",
             "--l1-align-bytes", "4096", "--no-skip-verify", "--format", "json", "--output", out],
            env=environment, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        if "base_path" in spec:
            shutil.rmtree(spec["base_path"])
        elif spec["type"] == "resp":
            subprocess.run(["redis-cli", "-p", str(spec["port"]), "flushall"], check=True,
                           capture_output=True)
        with open(out, encoding="utf-8") as file:
            return _of_operations(json.load(file), name)


def _of_operations(told, name):
    """From the report's sections of operations."""
    found = {}
    for section in _sections(told):
        total, success = section["total_keys"], section["total_success"]
        if success != total:
            raise SystemExit(f"{name}: {section['operation']}: {success} of {total}")
        found[section["operation"]] = section["duration_p50_ms"]
    return found


def _sections(told):
    if isinstance(told, dict):
        if "operation" in told and "duration_p50_ms" in told:
            yield told
        else:
            for each in told.values():
                yield from _sections(each)
    elif isinstance(told, list):
        for each in told:
            yield from _sections(each)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / "build" / "engines")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--directory", help="for files; default: the temporary one")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--keys", type=int, default=16)
    parser.add_argument("--kib", type=int, default=4096)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as home:
        rig = Rig(arguments, home)
        try:
            results = {name: [] for name in rig.adapters}
            for number in range(arguments.repeats):
                for name in rig.adapters:
                    results[name].append(rig.run(number, name))
        finally:
            rig.end()
    task_gb = arguments.keys * arguments.kib / 1e6 * 1.024
    print(f"{arguments.repeats} runs of each in turns, {arguments.keys} objects of "
          f"{arguments.kib} KiB a task\n")
    print("| adapter | store, GB/s | load, GB/s | lookup, ms |\n|---|---|---|---|")
    for name, runs in results.items():
        cells = []
        for operation in ("Store", "Load"):
            speeds = sorted(task_gb / (run[operation] / 1e3) for run in runs)
            cells.append(f"{statistics.median(speeds):.2f} ({speeds[0]:.2f} to {speeds[-1]:.2f})")
        times = sorted(run["Lookup"] for run in runs)
        cells.append(f"{statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
