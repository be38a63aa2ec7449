#!/usr/bin/env python3
"""What linking libterrace costs an engine's own arithmetic: the prefill of terrace-tiny-llama with
a daemon and without one, in pairs, each pair a new prompt, of which nothing is there. The median
ratio may not be below 0.97. (Vector registers that come back from a hash with their upper halves in
use make it 0.14 on an Intel Xeon: include/terrace/vector_state.h.)
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RATIO_MIN = 0.97


def prefill(program, prompt, socket):
    """Tokens a second, without what restoring took."""
    command = [program, "--prompt-file", prompt, "--generate", "1", "--json"]
    done = subprocess.run(command + (["--socket", socket] if socket else []),
                          stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    if result["reused_tokens"] or (socket and not result["stored_blocks"]):
        sys.exit(f"the prompt was to be computed and stored: {done.stdout}")
    return result


def wait_listening(socket, daemon):
    while not pathlib.Path(socket).is_socket():
        if daemon.poll() is not None:
            sys.exit(f"terraced ended with status {daemon.returncode}")
        time.sleep(0.05)
    time.sleep(2)  # it fills in the memory of its first segments


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--pairs", default=5, type=int)
    parser.add_argument("--tokens", default=1024, type=int, help="of each prompt")
    parser.add_argument("--seed", default=1, type=int)
    arguments = parser.parse_args()
    program = arguments.build / "tools/tiny_llama/terrace-tiny-llama"
    subprocess.run(["ninja", "-C", arguments.build, "terrace-tiny-llama", "terraced"], check=True,
                   stdout=subprocess.DEVNULL)
    source = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        socket, prompt = f"{directory}/t.sock", pathlib.Path(directory) / "prompt"
        daemon = subprocess.Popen([arguments.build / "daemon/terraced", "--dram-bytes", "1GiB",
                                   "--socket", socket], stderr=subprocess.DEVNULL)
        ratios, rates, stores = [], [], []
        try:
            wait_listening(socket, daemon)
            for pair in range(-1, arguments.pairs):  # the first warms up
                prompt.write_bytes(source.randbytes(arguments.tokens))
                sides = {}
                for where in (socket, None) if pair % 2 else (None, socket):
                    sides[where] = prefill(program, prompt, where)
                rate, alone = (sides[where]["prefill_tokens_per_second"]
                               for where in (socket, None))
                print(f"{rate:.1f} tokens/s with a daemon, {alone:.1f} without: "
                      f"{rate / alone:.3f}; stored {sides[socket]['stored_blocks']} blocks in "
                      f"{sides[socket]['store_ms']:.1f} ms", flush=True)
                if pair >= 0:
                    ratios.append(rate / alone)
                    rates.append(rate)
                    stores.append(sides[socket]["store_ms"])
        finally:
            daemon.terminate()
            daemon.wait()
    ratio = statistics.median(ratios)
    print(f"VERDICT: {'OK' if ratio >= RATIO_MIN else 'FAILED'}: prefill with a daemon at "
          f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of that without, "
          f"{statistics.median(rates):.0f} tokens/s (limit {RATIO_MIN}); blocks stored in "
          f"{statistics.median(stores):.1f} ms")
    return 0 if ratio >= RATIO_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
