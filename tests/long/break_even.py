#!/usr/bin/env python3
"""Whether `terrace plan` names the bandwidth at which loading takes as long as computing.

usage: tests/long/break_even.py [--build BUILD] [--repeats 3] [--short]

A grid of lengths and prefill costs. For each, plan is told that prefill and names a break-even
bandwidth; a drive is then held to speeds around it (slow_drive.py), the prompt is loaded from it at
each, and the speed at which that takes as long as the prefill is read off between them. Bar: within
10 % of what plan said, everywhere.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import eta_error

BLOCK_TOKENS = 16
# 65,536 bytes a token, so that a block of 16 tokens has eta_error's 1 MiB.
MODEL = {"model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 8,
         "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 1024,
         "torch_dtype": "bfloat16", "max_position_embeddings": 131072, "vocab_size": 1000}
LENGTHS = (16, 48, 96)  # blocks
PREFILL_US_PER_TOKEN = (300, 900)
SPEEDS = (0.75, 0.9, 1.0, 1.1, 1.3)  # of what plan said
BAR = 0.10


def planned(build, model, tokens, seconds):
    """Bytes a second at which plan says that loading equals computing."""
    done = subprocess.run([build / "tools/terrace", "plan", model, "--context", str(tokens),
                           "--prefill", f"{tokens}={seconds:.6f}", "--json"], check=True,
                          capture_output=True, text=True)
    row = json.loads(done.stdout)["break_even"][-1]
    assert (row["tokens"], row["bytes"]) == (tokens, tokens * 65_536), row
    return row["bytes_per_s"]


def load_s(rig, build, keys):
    """Seconds until all of a prompt that only the drive has is in DRAM."""
    subprocess.run([build / "tools/terrace", "evict", "--tier", "dram", "--yes", "--socket",
                    rig.socket], check=True, capture_output=True)
    asked = rig.ask(keys)
    assert asked is not None, "the prompt was in DRAM, or not whole on the drive"
    return asked[1]


def measured(rig, build, keys, seconds, said):
    """Bytes a second at which loading takes so many seconds, between the speeds that were tried."""
    points = []
    for share in SPEEDS:
        rig.drive.set(max(1, round(said * share / 1e6)))
        tries = sorted(load_s(rig, build, keys) for _ in range(rig.repeats))
        points.append((round(said * share / 1e6) * 1e6, tries[len(tries) // 2]))
    rig.drive.set(0)
    for (slow, longer), (fast, shorter) in zip(points, points[1:]):
        if longer >= seconds >= shorter:
            share = (longer - seconds) / (longer - shorter) if longer > shorter else 0.5
            return slow + share * (fast - slow), points
    return None, points


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=eta_error.ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    os.environ["TERRACE_LIBRARY"] = str(build / "client/libterrace.so.1")
    sys.path.insert(0, str(eta_error.ROOT / "client/python"))
    lengths = LENGTHS[:1] if arguments.short else LENGTHS
    off = []
    with tempfile.TemporaryDirectory(prefix="even-") as directory:
        model = pathlib.Path(directory) / "config.json"
        model.write_text(json.dumps(MODEL))
        rig = eta_error.Rig(build, directory, is_slowed=True)
        rig.repeats = arguments.repeats
        try:
            print("blocks   prefill s   plan MB/s   measured   ratio")
            for blocks in lengths:
                keys = rig.store(blocks)
                for cost_us in PREFILL_US_PER_TOKEN:
                    tokens = blocks * BLOCK_TOKENS
                    seconds = tokens * cost_us / 1e6
                    said = planned(build, model, tokens, seconds)
                    found, points = measured(rig, build, keys, seconds, said)
                    ratio = found / said if found else float("nan")
                    print(f"{blocks:6}   {seconds:9.3f}   {said / 1e6:9.1f}   "
                          f"{(found or 0) / 1e6:8.1f}   {ratio:5.3f}", flush=True)
                    if not abs(ratio - 1) <= BAR:
                        tried = ", ".join(f"{speed / 1e6:.0f} MB/s {took:.3f} s"
                                          for speed, took in points)
                        off.append(f"{blocks} blocks, {seconds:.3f} s: {ratio:.3f} ({tried})")
        finally:
            rig.end()
    print("VERDICT " + ("OK" if not off else "FAILED: " + "; ".join(off)))
    return 1 if off else 0


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
