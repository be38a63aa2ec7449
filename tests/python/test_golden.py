"""What releases left on drives and on Redis servers, and said, is found and answered by today's
build: tests/golden has files of each release that tests/releases.txt names.
"""
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import types

import pytest

from conftest import die_with_parent, terrace_path

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/long"), str(ROOT / "tests/golden")]
import conversation  # noqa: E402
import make  # noqa: E402
import upgrade  # noqa: E402

FOUND = {"asked": make.BLOCKS, "found": make.BLOCKS, "wrong": 0}
RELEASES = [line.split()[0] for line in (ROOT / "tests/releases.txt").read_text().splitlines()
            if line and not line.startswith("#")]
TODAY = types.SimpleNamespace(version="today", terraced=os.environ["TERRACED"],
                              terrace=terrace_path(), environment=lambda: dict(os.environ))


@pytest.fixture(params=RELEASES)
def golden(request):
    return ROOT / "tests/golden" / request.param


@pytest.fixture
def host(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(upgrade, "PROMPTS", make.PROMPTS)
    made = upgrade.Host(tmp_path_factory.mktemp("g") / "h")
    with contextlib.closing(made):
        yield made


def unpack(golden, host):
    with tarfile.open(fileobj=io.BytesIO(make.unpack(golden / "drive.tar.xz.b64"))) as tar:
        tar.extractall(host.directory)
    host.has_drive = True
    return host.directory / "drive/upgrade"


def recovered_from(host):
    return [line for line in host.log.read_text().splitlines() if "recovered" in line]


@pytest.mark.parametrize("is_catalog_there", [True, False])
def test_a_drive_is_found(golden, host, is_catalog_there):
    domain = unpack(golden, host)
    assert (domain / "catalog").is_dir() and list(domain.glob("slab-*.terrace"))
    if not is_catalog_there:
        shutil.rmtree(domain / "catalog")
    host.start(TODAY)
    assert host.stats(TODAY)["lower_tiers"][0]["block_count"] == make.BLOCKS
    assert host.client(TODAY, "load") == FOUND
    host.stop()
    status, told = host.fsck(TODAY)
    assert status == 0, told
    assert upgrade.stranded(host) == []


def test_a_drive_under_another_secret_gives_nothing(golden, host):
    unpack(golden, host)
    secret = next(host.directory.glob("*.secret"))
    title, digits = secret.read_text().split()
    secret.write_text(f"{title} {digits[::-1]}\n")
    host.start(TODAY)
    assert host.client(TODAY, "load") == {**FOUND, "found": 0}
    host.stop()


# 0.1.0 wrote no generation of a group that was never forgotten. Its blocks are of none: found where
# the server says so, and else not, since it may have lost one.
OF_NO_GENERATION = {"0.1.0": (b"terrace2:{631587f068247005}g",
                              b"00000000000000000000:2d0cb6e1e08ac53b")}


@pytest.mark.parametrize("says_generation", [True, False])
def test_a_redis_server_is_used(golden, host, says_generation):
    stored = json.loads(make.unpack(golden / "redis.json.xz.b64"))
    secret = host.directory / stored["secret_file"]
    secret.write_bytes(bytes.fromhex(stored["secret"]))
    secret.chmod(0o600)
    host.redis = host.directory / "r.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", host.redis, "--save",
                               "", "--appendonly", "no", "--dir", host.directory],
                              stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        host.wait_for(host.redis, server)
        for key, value in stored["values"].items():
            make.ask(host.redis, b"SET", bytes.fromhex(key), bytes.fromhex(value))
        if says_generation:
            make.ask(host.redis, b"SET", *OF_NO_GENERATION[golden.name])
        host.start(TODAY)
        found = {**FOUND, "found": make.BLOCKS if says_generation else 0}
        assert host.client(TODAY, "load") == found
        assert host.stats(TODAY)["redis"]["fetches_found"] == found["found"]
        host.stop()
    finally:
        server.terminate()
        server.wait()


def test_a_conversation_is_answered_as_it_was(golden, host):
    host.start(TODAY)
    answered = 0
    for recorded in conversation.from_json(make.unpack(golden / "wire.json.xz.b64")):
        for request, then, now in conversation.hold_again(recorded, host.socket):
            told = f"verb {request.verb}: {now.body[conversation.PREFIX.size:]!r}"
            assert now.verb == then.verb and now.status == then.status, told
            if request.verb not in conversation.OF_ANY_LENGTH:
                assert len(now.body) == len(then.body), told
            answered += 1
    assert answered > 10 * make.PROMPTS
    host.stop()
