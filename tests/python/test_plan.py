"""`terrace plan`: of a trace it says what `terrace replay` measures; what is wrong is named."""
import json
import os
import pathlib
import random
import subprocess

CLI = pathlib.Path(os.environ["TERRACED"]).parents[1] / "tools" / "terrace"
TOKEN_BYTES = 2 * 8 * 128 * 2 * 32  # llama-3-8b
BLOCK_TOKENS = 512


def terrace(*arguments):
    return subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True, check=False)


def answer(*arguments):
    done = terrace(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_trace(path):
    """400 requests of 40 conversations, each of which grows."""
    chance, chains = random.Random(1), {}
    with open(path, "w", encoding="ascii") as file:
        for number in range(400):
            name = chance.randrange(40)
            chain = chains.setdefault(name, [])
            chain += [name << 32 | len(chain) + i for i in range(chance.randrange(1, 5))]
            print(json.dumps({"timestamp": number, "input_length": len(chain) * BLOCK_TOKENS,
                              "hash_ids": chain}), file=file)


def test_a_traces_hits_are_those_of_a_replay(tmp_path):
    trace = tmp_path / "trace.jsonl"
    write_trace(trace)
    tiers = {"dram": 64, "nvme": 256, "redis": 128}
    block_bytes = TOKEN_BYTES * BLOCK_TOKENS
    planned = answer("plan", "llama-3-8b", "--trace", trace,
                     *(f"--tier={name}={blocks * block_bytes}" for name, blocks in tiers.items()))
    # A tier holds copies of what is above it, and more only by what it is larger.
    capacities = [64, 256, 256]
    replayed = answer("replay", trace, "--policy", "lru", "--capacity", "64,256", "--below",
                      "256", "--admission", "all")
    two_tiers = [row for row in replayed["tiers"] if row["dram_blocks"] == 64]
    assert [row["dram_hit_blocks"] + row["below_hit_blocks"] for row in two_tiers] == [
        planned["tiers"][1]["trace"]["lru_hit_blocks"]]
    for tier, capacity, row in zip(planned["tiers"], capacities,
                                   [*replayed["results"], replayed["results"][1]]):
        assert tier["trace"]["block_count"] == row["capacity_blocks"] == capacity
        assert 0 < tier["trace"]["lru_hit_blocks"] == row["hit_blocks"]
        assert tier["trace"]["lru_hit_blocks"] <= tier["trace"]["optimum_hit_blocks"]
    assert planned["tiers"][0]["token_count"] == 64 * BLOCK_TOKENS


def test_a_configuration_is_read_from_a_file_or_its_directory(tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        planned = answer("plan", path, "--context", "128K", "--tier", "dram=16GiB@1GiB/s",
                         "--prefill", "1024=0.5", "--prefill", "8192=6")
        assert planned["token_bytes"] == TOKEN_BYTES
        assert planned["tiers"][0]["session_count"] == 1
        assert planned["tiers"][0]["session_load_s"] == 16.0
        assert planned["tiers"][0]["load_from_tokens"] == 1
        assert [row["tokens"] for row in planned["break_even"]] == [512, 2048, 8192, 32768, 131072]


def test_what_is_wrong_is_named_and_nothing_is_printed(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    huge = {"num_hidden_layers": 4096, "num_attention_heads": 65536, "head_dim": 65536}
    (tmp_path / "huge.json").write_text(json.dumps(huge))
    for arguments, words in (
            (["plan"], "no model is named"),
            (["plan", "llama-9"], "'llama-9' is no model known by name"),
            (["plan", tmp_path], "no 'num_hidden_layers'"),
            (["plan", tmp_path / "empty"], "empty/config.json' is no model known"),
            (["plan", tmp_path / "huge.json"], "for a session of 32768 tokens: say a shorter"),
            (["plan", "llama-3-8b", "--prefill", "1=1e-320"], "4294967296 tokens, 1e-09 to"),
            (["plan", "llama-3-8b", "--tier", "dram"], "--tier 'dram': expected NAME=SIZE"),
            (["plan", "llama-3-8b", "--prefill", "1=x"], "--prefill '1=x': expected TOKENS=SEC"),
            (["plan", "llama-3-8b", "--context", "-1"], "--context '-1': expected a number"),
            (["plan", "llama-3-8b", "--cache-dtype", "int3"], "'int3', which is not known")):
        done = terrace(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert words in done.stderr
    missing = terrace("plan", "llama-3-8b", "--trace", tmp_path / "none.jsonl")
    assert missing.returncode == 1 and "none.jsonl" in missing.stderr


def test_models_are_listed():
    names = terrace("plan", "--models").stdout.split()
    assert len(names) > 20 and "llama-3-70b" in names
