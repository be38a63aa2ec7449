"""usage: prompts.py store|load SOCKET FIRST COUNT

A client of whatever `terrace` Python finds: stores prompts FIRST to FIRST + COUNT - 1, or loads
them and compares every byte. One JSON line says how many blocks were asked for, found, and wrong.
It uses what every release has, so that any release's client can run it; what bytes a block has
follows from its prompt and position alone, so that any other can check them.
"""
import json
import sys
import time

import terrace

BLOCKS = 32
SPACE = terrace.Space(model="prompts", revision="r1", dtype="bf16", layout="nhd", layers=2,
                      kv_heads=1, head_size=64, block_tokens=16, part_bytes=(40_960, 24_576))
ANSWER_S = 120.0  # a busy machine is no finding


def block_bytes(prompt, block):
    step = bytes((i * (2 * prompt + 31) + block * 7) & 255 for i in range(256))
    return step * (SPACE.block_bytes // 256)


def tokens_of(prompt):
    return [prompt * 100_003 + i for i in range(BLOCKS * SPACE.block_tokens)]


def store(group, prompt):
    keys = group.hash(tokens_of(prompt))
    with group.reserve(keys) as lease:
        lease.write([block_bytes(prompt, block) for block in range(BLOCKS)])
        return {"asked": BLOCKS, "found": lease.commit(), "wrong": 0}


def load(group, prompt):
    keys = group.hash(tokens_of(prompt))
    with group.acquire(keys, timeout_s=ANSWER_S, load_timeout_s=ANSWER_S) as lease:
        found = lease.block_count
        lease.wait_ready(timeout_s=ANSWER_S)
        blocks = [bytearray(SPACE.block_bytes) for _ in range(found)]
        if found:
            lease.copy_into(blocks)
        wrong = sum(bytes(got) != block_bytes(prompt, i) for i, got in enumerate(blocks))
    return {"asked": BLOCKS, "found": found, "wrong": wrong}


def connect(socket):
    client = terrace.Client(socket, default_timeout_s=ANSWER_S)
    client.wait_connected(ANSWER_S)
    end = time.monotonic() + ANSWER_S
    while client.stats()["domain"]["segments_populated"] == 0:
        if time.monotonic() > end:
            raise SystemExit(f"the daemon at {socket} has no memory after {ANSWER_S:.0f} s")
        time.sleep(0.01)
    return client


def main():
    verb, socket, first, count = sys.argv[1:]
    with connect(socket) as client:
        group = client.open(terrace.SpaceGroup("prompts", [SPACE]))
        total = {"asked": 0, "found": 0, "wrong": 0}
        for prompt in range(int(first), int(first) + int(count)):
            done = {"store": store, "load": load}[verb](group, prompt)
            total = {name: total[name] + done[name] for name in total}
        print(json.dumps(total))


if __name__ == "__main__":
    main()
