"""`terrace explain` of a prompt whose blocks vLLM hashed."""
import json
import os
import pathlib
import subprocess

import terrace

from conftest import SPACE, block_bytes

# vLLM's own, of tokens 1 to 32 in blocks of 16, sha256_cbor, PYTHONHASHSEED=0.
DIGESTS = [bytes.fromhex("202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea"),
           bytes.fromhex("4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf")]


def explain(daemon, *arguments):
    cli = pathlib.Path(os.environ["TERRACED"]).parents[1] / "tools" / "terrace"
    done = subprocess.run([cli, "explain", "--socket", daemon.socket, "--json", *arguments],
                          capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_a_prompt_is_found_under_vllms_own_hashes(daemon, client, tmp_path):
    group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
    with group.reserve(group.keys_of_digests(DIGESTS)) as lease:
        lease.write([block_bytes(i) for i in range(2)])
        assert lease.commit() == 2
    prompt = tmp_path / "prompt"
    prompt.write_text(" ".join(str(token) for token in range(1, 65)))
    asked = ("--prompt-file", prompt, "--hash", "sha256_cbor", "--hash-seed", "0")
    found = explain(daemon, *asked)
    assert (found["key_count"], found["block_count"], found["reason"]) == (4, 2, "never_seen")
    assert explain(daemon, *asked[:-2])["block_count"] == 0  # another seed
    assert explain(daemon, *asked, "--cache-salt", "s")["block_count"] == 0
    assert explain(daemon, "--prompt-file", prompt)["block_count"] == 0
    finer = explain(daemon, *asked, "--hash-block-tokens", "8")
    assert (finer["key_count"], finer["block_count"]) == (4, 0)
    assert "divides" in explain(daemon, *asked, "--hash-block-tokens", "12")
