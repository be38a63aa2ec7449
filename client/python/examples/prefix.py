"""A whole conversation with terraced, without PyTorch:  prefix.py SOCKET

One process stores the blocks of a prompt; anybody who runs this, or the same in C
(terrace-prefix-example), is served from the cache. Prints "stored 4 blocks" the first time and
"loaded 4 blocks, all bytes right" afterwards. A real engine would fill its attention pages where
this computes bytes.
"""
import sys

import terrace

TIMEOUT_S = 5.0
SPACE = terrace.Space(model="prefix-example", revision="1", dtype="bf16", layout="nhd", layers=2,
                      kv_heads=8, head_size=128, block_tokens=16, part_bytes=(65536, 65536))
TOKENS = [i * i for i in range(4 * SPACE.block_tokens)]


def compute(block):
    """Stands for the attention's keys and values of a block, part after part."""
    return b"".join(bytes((i * 31 + block * 7 + part * 3) % 256 for i in range(size))
                    for part, size in enumerate(SPACE.part_bytes))


def load(lease):
    lease.wait_ready(timeout_s=TIMEOUT_S)
    blocks = bytearray(lease.block_count * SPACE.block_bytes)
    lease.copy_into(blocks)
    if blocks != b"".join(map(compute, range(lease.block_count))):
        sys.exit("load: wrong bytes")
    print(f"loaded {lease.block_count} blocks, all bytes right")


def store(group, keys):
    with group.reserve(keys, TIMEOUT_S) as lease:
        for index in lease.reserved:  # the others somebody else has
            lease.write(compute(index), first_key=index, key_count=1)
        print(f"stored {lease.commit(TIMEOUT_S)} blocks")


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} SOCKET")
    try:
        with terrace.Client(sys.argv[1], name="prefix-example") as client:
            client.wait_connected(TIMEOUT_S)
            group = client.open(terrace.SpaceGroup("prefix-example", [SPACE]))
            keys = group.hash(TOKENS)
            with group.acquire(keys, TIMEOUT_S) as lease:
                if lease.block_count == len(keys):
                    load(lease)
                else:
                    store(group, keys)
    except terrace.TerraceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
