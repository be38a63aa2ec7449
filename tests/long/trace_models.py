"""Request traces generated from a seed: traffic whose kind is known, to see where a policy gains
and where it loses. Each writes JSON lines as `terrace replay` reads them: blocks of 16 tokens.

usage: tests/long/trace_models.py MODEL SEED FILE     (MODEL: one of those below)
"""
import heapq
import json
import random
import sys

BLOCK_TOKENS = 16


class Ids:
    """Block ids, each once."""

    def __init__(self):
        self.used_count = 0

    def take(self, count):
        first = self.used_count + 1
        self.used_count += count
        return list(range(first, first + count))


def chat(rng, ids, start_s, prompt, turn_count, gap_s, turn_blocks, stops=None):
    """The requests of one chain: (second, path, stop)."""
    path = list(prompt) + ids.take(turn_blocks(rng))
    now_s = start_s
    for turn in range(turn_count):
        yield now_s, list(path), stops(rng, turn) if stops else None
        now_s += gap_s(rng, turn)
        path += ids.take(turn_blocks(rng))


def alike(rng, ids):
    """4,000 chats that nothing tells apart."""
    for _ in range(4000):
        yield chat(rng, ids, rng.uniform(0, 7200), [], 1 + int(rng.expovariate(1 / 4)),
                   lambda r, _: r.expovariate(1 / 90), lambda r: r.randint(2, 12))


def documents(rng, ids):
    """8,000 questions about 300 documents, by Zipf's law with exponent 0.9."""
    texts = [ids.take(rng.randint(20, 200)) for _ in range(300)]
    weights = [1 / (rank + 1) ** 0.9 for rank in range(len(texts))]
    for _ in range(8000):
        text = rng.choices(texts, weights)[0]
        yield chat(rng, ids, rng.uniform(0, 14400), text, 1, lambda r, _: 0,
                   lambda r: r.randint(1, 4))


def mixed(rng, ids):
    """Chats, agents and prompts that never come back, under a few system prompts."""
    heads = [ids.take(rng.randint(4, 40)) for _ in range(5)]
    for _ in range(1500):
        yield chat(rng, ids, rng.uniform(0, 7200), rng.choice(heads),
                   1 + int(rng.expovariate(1 / 5)), lambda r, _: r.lognormvariate(4.3, 0.8),
                   lambda r: r.randint(1, 8))
    for _ in range(120):
        yield chat(rng, ids, rng.uniform(0, 7200), rng.choice(heads),
                   10 + int(rng.expovariate(1 / 30)),
                   lambda r, turn: r.expovariate(1 / 8) if turn % 8 else r.expovariate(1 / 240),
                   lambda r: r.randint(4, 40),
                   lambda r, turn: "tool_use" if (turn + 1) % 8 else "end_turn")
    for _ in range(2500):
        yield chat(rng, ids, rng.uniform(0, 7200), [], 1, lambda r, _: 0,
                   lambda r: r.randint(10, 120))


def shifting(rng, ids):
    """Documents asked about again and again for an hour, then chats only, then documents anew."""
    for hour in range(3):
        texts = [ids.take(rng.randint(20, 80)) for _ in range(100)]
        for _ in range(2500):
            start_s = 3600 * hour + rng.uniform(0, 3600)
            if hour % 2 == 0:
                yield chat(rng, ids, start_s, rng.choice(texts), 1, lambda r, _: 0,
                           lambda r: r.randint(1, 6))
            elif rng.random() < 0.4:
                yield chat(rng, ids, start_s, [], 1 + int(rng.expovariate(1 / 5)),
                           lambda r, _: r.expovariate(1 / 60), lambda r: r.randint(2, 12))


def loops(rng, ids):
    """Batch work: the same 400 prompts in the same order, over and over, among chats."""
    prompts = [ids.take(rng.randint(10, 40)) for _ in range(400)]
    for lap in range(12):
        for i, prompt in enumerate(prompts):
            yield chat(rng, ids, lap * 600 + i * 1.5, prompt, 1, lambda r, _: 0, lambda r: 1)
    for _ in range(1000):
        yield chat(rng, ids, rng.uniform(0, 7200), [], 1 + int(rng.expovariate(1 / 4)),
                   lambda r, _: r.expovariate(1 / 60), lambda r: r.randint(2, 8))


MODELS = {"alike": alike, "documents": documents, "loops": loops, "mixed": mixed,
          "shifting": shifting}


def write(model, seed, path):
    rng = random.Random(seed)
    streams = MODELS[model](rng, Ids())
    requests = heapq.merge(*streams, key=lambda request: request[0])
    with open(path, "w", encoding="ascii") as file:
        for now_s, blocks, stop in requests:
            line = {"timestamp": int(now_s * 1000), "input_length": len(blocks) * BLOCK_TOKENS,
                    "hash_ids": blocks}
            if stop:
                line["stop"] = stop
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in MODELS:
        sys.exit(__doc__ + "\n".join(f"  {name}: {make.__doc__}" for name, make in MODELS.items()))
    write(sys.argv[1], int(sys.argv[2]), sys.argv[3])
