"""transformers' own models and caches with terrace.torch, for tests/engines: a line RESULT. The
argument is the socket. What one process's cache was given, another one's continues from.
"""
import json
import subprocess
import sys

import torch
import transformers

import terrace
import terrace.torch

BLOCK, TOKENS = 16, [(i * 7 + 3) % 500 for i in range(100)]
CONFIG = transformers.LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=512, max_position_embeddings=512, dtype="float32")


def make_model():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(CONFIG).eval()


def compute(model, past, first):
    """Logits at the end, chunk by chunk: always the same shapes."""
    with torch.no_grad():
        for begin in range(first, len(TOKENS), BLOCK):
            tokens = torch.tensor([TOKENS[begin:begin + BLOCK]])
            logits = model(tokens, past_key_values=past, use_cache=True).logits
    return logits


def restored(layers):
    """A DynamicCache of what was loaded."""
    past = transformers.DynamicCache()
    for index, (k, v) in enumerate(layers):
        past.update(k, v, index)
    return past


def refusal_of(cache, past):
    try:
        cache.save(TOKENS, past)
    except terrace.Invalid as error:
        return str(error)
    return ""


def child(socket):
    with terrace.Client(socket, default_timeout_s=30) as client:
        client.wait_connected(30)
        cache = terrace.torch.PrefixCache(client, CONFIG, revision="seed-1", block_tokens=BLOCK,
                                          dtype="float32", timeout_s=30)
        tokens, layers = cache.load(TOKENS)
        logits = compute(make_model(), restored(layers), tokens)
        print(json.dumps({"tokens": tokens, "logits": logits.numpy().tobytes().hex()}))


def chunk_error(model, client, offset=37):
    """A document's keys, computed by itself, turned to where it stands behind a prefix: how far
    those of the first layer, which has seen no other token, are from what the model computes there;
    and how far they are without a turn."""
    document = TOKENS[:4 * BLOCK]
    heads, size = CONFIG.num_key_value_heads, CONFIG.hidden_size // CONFIG.num_attention_heads
    space = terrace.Space(
        model="llama", revision="seed-1", dtype="float32", layout="nhd", kv_heads=heads,
        head_size=size, layers=CONFIG.num_hidden_layers, block_tokens=BLOCK,
        part_bytes=(2 * BLOCK * heads * size * 4,) * CONFIG.num_hidden_layers).chunks()
    group = client.open(terrace.SpaceGroup("llama-chunks", [space]))
    pages = [torch.zeros(8, 2, BLOCK, heads, size) for _ in range(space.layers)]

    def computed(tokens):
        past = transformers.DynamicCache()
        with torch.no_grad():
            model(torch.tensor([tokens]), past_key_values=past, use_cache=True)
        return [torch.stack([k[0], v[0]]).transpose(1, 2) for k, v in terrace.torch.layers_of(past)]

    alone = computed(document)
    for layer, whole in enumerate(alone):
        pages[layer][:4] = whole.reshape(2, 4, BLOCK, heads, size).transpose(0, 1)
    rope = terrace.Rope(model.model.rotary_emb.inv_freq.tolist())
    with terrace.Device("host") as device, \
            terrace.PagedCache(device, space, pages, axes="BPTHD", rope=rope) as cache:
        with group.reserve(group.hash(document)) as lease:
            with cache.store(lease, [0, 1, 2, 3], kv_written=terrace.HOST, positions=0) as copy:
                copy.wait()
            lease.commit()
        with group.acquire(group.hash(document)) as lease:
            lease.wait_ready()
            with cache.load(lease, [4, 5, 6, 7], destination_free=terrace.HOST,
                            positions=offset) as copy:
                copy.wait()
    loaded = pages[0][4:].transpose(0, 1).reshape(2, len(document), heads, size)
    there = computed(TOKENS[-offset:] + document)[0][:, offset:]
    return float((loaded - there).abs().max()), float((alone[0] - there).abs().max())


def main():
    if sys.argv[2:]:
        child(sys.argv[1])
        return
    model, past = make_model(), transformers.DynamicCache()
    logits = compute(model, past, 0).numpy().tobytes().hex()
    with terrace.Client(sys.argv[1], default_timeout_s=30) as client:
        client.wait_connected(30)
        cache = terrace.torch.PrefixCache(client, CONFIG, revision="seed-1", block_tokens=BLOCK,
                                          dtype="float32", timeout_s=30)
        stored = cache.save(TOKENS, past)
        fixed = transformers.StaticCache(CONFIG, max_cache_len=128)
        compute(model, fixed, 0)
        again = cache.save(TOKENS, fixed)  # the same bytes: nothing new
        windowed = transformers.DynamicCache(config=transformers.MistralConfig(
            num_hidden_layers=3, sliding_window=32))
        for index, (k, v) in enumerate(terrace.torch.layers_of(past)):
            windowed.update(k, v, index)
        refusal = refusal_of(cache, windowed)
        turned, unturned = chunk_error(model, client)
    done = subprocess.run([sys.executable, __file__, sys.argv[1], "child"], check=True,
                          stdout=subprocess.PIPE, text=True)
    other = json.loads(done.stdout.splitlines()[-1])
    print("RESULT " + json.dumps({
        "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "stored": stored, "stored_again": again, "tokens": other["tokens"],
        "is_equal": other["logits"] == logits, "refusal": refusal,
        "chunk_error": turned, "unturned_error": unturned}), flush=True)


if __name__ == "__main__":
    main()
