"""Dynamo's own indexer as the router of an engine's relay: it hears the events over ZeroMQ, and is
asked for prompts by their tokens alone.

TERRACE_DYNAMO: a Python that has the wheel ai-dynamo-runtime (tests/engines makes one).
"""
import json
import os
import random
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest

from conftest import LONG_S, die_with_parent
from test_kv_relay import Prompt, Rig

PYTHON = os.environ.get("TERRACE_DYNAMO")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="no TERRACE_DYNAMO: see tests/engines")
BLOCK_TOKENS = 16


class Indexer:
    """A process of `python -m dynamo.indexer`, with one engine registered."""

    def __init__(self, settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [PYTHON, "-m", "dynamo.indexer", "--port", str(self.port)], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ""},
            preexec_fn=die_with_parent)
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                self.ask("/workers")
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline and self.process.poll() is None
                time.sleep(0.05)
        self.ask("/register", {"instance_id": 1, "model_name": "m", "block_size": BLOCK_TOKENS,
                               "endpoint": settings["endpoint"],
                               "replay_endpoint": settings["replay_endpoint"]})

    def ask(self, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"content-type": "application/json"},
            data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=LONG_S) as answer:
            return json.loads(answer.read())

    def blocks_of(self, prompt):
        """(leading blocks in DRAM, those and what goes on from there on the drive)."""
        found = self.ask("/query", {"token_ids": prompt.tokens, "model_name": "m"})["instances"]
        told = found.get("1", {"cpu": 0, "disk": 0})
        return told["cpu"] // BLOCK_TOKENS, told["disk"] // BLOCK_TOKENS

    def close(self):
        self.process.kill()
        self.process.wait()


def expected(rig, prompt):
    tiers = rig.queried(prompt)
    in_dram = next((i for i, each in enumerate(tiers) if "cpu" not in each), len(tiers))
    below = next((i for i, each in enumerate(tiers[in_dram:]) if "storage" not in each),
                 len(tiers) - in_dram)
    return in_dram, in_dram + below


def agree(rig, indexer, prompts):
    deadline = time.monotonic() + LONG_S
    while True:
        wrong = [(prompt.tokens[0], seen, there) for prompt in prompts
                 for seen, there in [(indexer.blocks_of(prompt), expected(rig, prompt))]
                 if seen != there]
        if not wrong:
            return
        assert time.monotonic() < deadline, wrong[:5]
        time.sleep(0.1)


def test_dynamos_indexer_finds_by_tokens_what_query_says():
    chance = random.Random(3)
    prompts = [Prompt(number, 8) for number in range(40)]
    with tempfile.TemporaryDirectory() as directory:
        rig = Rig(directory)
        indexer = Indexer(rig.settings)
        for step in range(400):
            prompt = chance.choice(prompts)
            if chance.random() < 0.8:
                rig.put(prompt, chance.randrange(1, 9))
            elif chance.random() < 0.05:
                rig.group.evict(rig.keys(prompt)[chance.randrange(8):])
            else:
                with rig.group.acquire(rig.keys(prompt)):
                    pass
            if step == 100:
                rig.restart_engine()
            elif step == 200:
                rig.restart_daemon()
            elif step == 300:
                agree(rig, indexer, prompts)
                indexer.close()
                indexer = Indexer(rig.settings)
        agree(rig, indexer, prompts)
        assert sum(expected(rig, prompt)[1] for prompt in prompts) > 40
        indexer.close()
        rig.close()
        rig.daemon.stop()
