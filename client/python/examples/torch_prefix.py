"""A PyTorch program that shares the prefixes of its prompts:  torch_prefix.py SOCKET

Run it twice: the second process computes only what the first one did not store, and prints the same
digest of the logits. The model is a toy with random weights of a fixed seed.
"""
import hashlib
import sys

import torch

import terrace
import terrace.torch

LAYERS, HEADS, SIZE, VOCABULARY, BLOCK = 4, 4, 32, 256, 16
CONFIG = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": HEADS * SIZE,
          "torch_dtype": "float32", "model_type": "toy"}


def forward(weights, tokens, past, on_layer=lambda layer, k, v: None):
    """Logits of `tokens`, and K and V of all tokens so far, layer by layer."""
    x, grown = weights["embed"][tokens], []
    for layer, (wq, wk, wv, wo) in enumerate(weights["layers"]):
        q, k, v = (torch.tanh(x @ w).view(1, -1, HEADS, SIZE).transpose(1, 2) for w in (wq, wk, wv))
        if past:
            k, v = torch.cat((past[layer][0], k), 2), torch.cat((past[layer][1], v), 2)
        grown.append((k, v))
        on_layer(layer, k, v)
        scores = q @ k.transpose(2, 3) / SIZE**0.5
        ahead = torch.ones(scores.shape[2:], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        mixed = torch.softmax(scores.masked_fill(ahead, float("-inf")), -1) @ v
        x = x + mixed.transpose(1, 2).reshape(-1, HEADS * SIZE) @ wo
    return x @ weights["embed"].T, grown


def make_weights():
    """The same in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = HEADS * SIZE
    return {"embed": torch.randn(VOCABULARY, width) / width**0.5,
            "layers": torch.randn(LAYERS, 4, width, width) / width**0.5}


def main():
    weights = make_weights()
    prompt = [(i * i + 3 * i) % VOCABULARY for i in range(200)]
    with terrace.Client(sys.argv[1]) as client:
        client.wait_connected()
        cache = terrace.torch.PrefixCache(client, CONFIG, revision="seed-1", block_tokens=BLOCK)
        loaded, past = cache.load(prompt)
        for first in range(loaded, len(prompt), BLOCK):  # chunk by chunk: always the same shapes
            logits, past = forward(weights, prompt[first:first + BLOCK], past)
        stored = cache.save(prompt, past)
    digest = hashlib.sha256(logits.numpy().tobytes()).hexdigest()
    print(f"loaded {loaded} of {len(prompt)} tokens, stored {stored} blocks, logits {digest}")


if __name__ == "__main__":
    main()
