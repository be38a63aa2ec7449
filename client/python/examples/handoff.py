"""Prefill and decode in two processes:  handoff.py SOCKET prefill|decode|alone [--step]

Start decode and prefill in any order: decode takes the prompt's KV cache layer by layer as prefill
computes it, and computes by itself what does not come in time. `alone` shares nothing; all print
the same digest of the logits. Two sockets of two daemons with one Redis tier do as well. --step:
prefill waits for a line on its input before every layer.
"""
import argparse
import hashlib
import sys

import torch_prefix as model

import terrace
import terrace.handoff
import terrace.torch

CHUNK = 4 * model.BLOCK  # always the same shapes: always the same bits
PROMPT = [(i * i + 5 * i) % model.VOCABULARY for i in range(200)]


def compute(weights, past, first, on_layer=lambda layer, k, v: None):
    """Logits at the end of the prompt, of which `first` tokens are in `past`."""
    for begin in range(first, len(PROMPT), CHUNK):
        logits, past = model.forward(weights, PROMPT[begin:begin + CHUNK], past, on_layer)
    return logits


def prefill(weights, cache, is_stepped):
    """Hands on every layer; the logits."""
    with terrace.handoff.Giver(cache, PROMPT) as giver:
        def put(layer, k, v):
            if is_stepped:
                sys.stdin.readline()
            giver.put(layer, k, v)
            if is_stepped:
                print(f"layer {layer} of {k.shape[2]} tokens", flush=True)

        logits = compute(weights, None, 0, put)
        print(f"gave {giver.block_count} blocks")
    return logits


def decode(weights, cache, timeout_s):
    """Takes what is given, and computes the rest."""
    with terrace.handoff.Taker(cache, PROMPT, timeout_s=timeout_s, idle_s=timeout_s / 2) as taker:
        print(f"announced {taker.tokens} tokens", flush=True)
        try:
            if taker.tokens == len(PROMPT) - len(PROMPT) % CHUNK:
                logits = compute(weights, taker, taker.tokens)  # waits for layers as it needs them
                print(f"took {taker.tokens} tokens")
                return logits
        except terrace.Unavailable as error:
            print(f"the rest did not come: {type(error).__name__}")
        tokens, past = taker.whole()
    tokens -= tokens % CHUNK
    print(f"took {tokens} tokens")
    return compute(weights, [(k[:, :, :tokens], v[:, :, :tokens]) for k, v in past], tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("socket")
    parser.add_argument("role", choices=("prefill", "decode", "alone"))
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--timeout", type=float, default=10.0)
    arguments = parser.parse_args()
    weights = model.make_weights()
    if arguments.role == "alone":
        logits = compute(weights, None, 0)
    else:
        with terrace.Client(arguments.socket) as client:
            client.wait_connected()
            cache = terrace.torch.PrefixCache(client, model.CONFIG, revision="seed-1",
                                              block_tokens=model.BLOCK)
            if arguments.role == "prefill":
                logits = prefill(weights, cache, arguments.step)
            else:
                logits = decode(weights, cache, arguments.timeout)
    print(f"logits {hashlib.sha256(logits.numpy().tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
