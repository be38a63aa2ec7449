#!/usr/bin/env python3
"""Makes tests/golden/RELEASE: what a release's programs leave on a drive and on a Redis server, and
say to each other. usage: tests/golden/make.py [--build DIR --release VERSION]

Without arguments: of the latest release, built from history (tests/releases.txt). A release makes
its own once, when its formats are final; tests/python/test_golden.py holds every later build
against them. What is in each file: docs/COMPATIBILITY.md.
"""
import argparse
import base64
import contextlib
import io
import json
import lzma
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "long"), str(HERE)]
import conversation  # noqa: E402
import upgrade  # noqa: E402
import yesterday  # noqa: E402

PROMPTS = 2
BLOCKS = PROMPTS * 32


def pack(path, data):
    """What was made, compressed, as text."""
    path.write_bytes(base64.encodebytes(lzma.compress(data, preset=9)))


def unpack(path):
    return lzma.decompress(base64.decodebytes(path.read_bytes()))


def client(build, socket, verb):
    done = subprocess.run([sys.executable, yesterday.ROOT / "tests/long/prompts.py", verb, socket,
                           "0", str(PROMPTS)], env=build.environment(), check=True,
                          capture_output=True, text=True)
    assert json.loads(done.stdout) == {"asked": BLOCKS, "found": BLOCKS, "wrong": 0}, done.stdout


def make_drive(build, directory, to):
    host = upgrade.Host(directory / "drive-host")
    host.has_drive = True
    (host.directory / "drive").mkdir()
    with contextlib.closing(host):
        host.start(build)
        client(build, host.socket, "store")
        host.wait_until(build, lambda s: s["lower_tiers"][0]["persisted_block_count"] == BLOCKS,
                        "every block on the drive")
        host.stop()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(host.directory / "drive", "drive")
        for secret in host.directory.glob("*.secret"):
            tar.add(secret, secret.name)
    pack(to, packed.getvalue())


def make_redis(build, directory, to):
    socket = directory / "redis.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", socket, "--save", "",
                               "--appendonly", "no", "--dir", directory],
                              stdout=subprocess.DEVNULL)
    host = upgrade.Host(directory / "redis-host", redis=socket)
    try:
        host.wait_for(socket, server)
        host.start(build)
        client(build, host.socket, "store")
        host.wait_until(build, lambda s: s["redis"]["blocks_stored"] == BLOCKS,
                        "every block on the server")
        host.stop()
        secret = next(host.directory.glob("*.secret"))
        values = {key.hex(): ask(socket, b"GET", key).hex()
                  for key in keys_of(socket) if ask(socket, b"TYPE", key) == b"string"}
        pack(to, json.dumps({"secret_file": secret.name, "secret": secret.read_bytes().hex(),
                             "values": values}).encode())
    finally:
        host.close()
        server.terminate()
        server.wait()


def ask(path, *words):
    """One command of a Redis server; a bulk, a simple string, or None."""
    import socket
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(path))
        server.sendall(b"*%d\r\n" % len(words) +
                       b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        with server.makefile("rb") as answers:
            return read_reply(answers)


def read_reply(answers):
    line = answers.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"*":
        return [read_reply(answers) for _ in range(int(rest))]
    if kind == b"$":
        count = int(rest)
        return None if count < 0 else answers.read(count + 2)[:-2]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    return rest


def keys_of(path):
    return sorted(ask(path, b"KEYS", b"*"))


def make_wire(build, directory, to):
    host = upgrade.Host(directory / "wire-host")
    path = directory / "recorder.sock"
    with contextlib.closing(host):
        host.start(build)
        recorder = conversation.Recorder(path, host.socket)
        client(build, path, "store")
        client(build, path, "load")
        for words in (["status", "--json"], ["ls", "--json"], ["hitrate", "--json"]):
            subprocess.run([build.terrace, *words, "--socket", path], check=True,
                           capture_output=True)
        time.sleep(0.5)  # the last goodbyes
        recorder.close()
        host.stop()
    pack(to, conversation.to_json(recorder.conversations).encode())
    verbs = sorted({m.verb for each in recorder.conversations for m in each if m.is_request})
    print(f"{len(recorder.conversations)} conversations; verbs {verbs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--release")
    arguments = parser.parse_args()
    build = yesterday.today(arguments.build) if arguments.build else yesterday.release()
    to = HERE / (arguments.release or build.version)
    to.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="terrace-golden.") as directory:
        directory = pathlib.Path(directory)
        make_drive(build, directory, to / "drive.tar.xz.b64")
        make_redis(build, directory, to / "redis.json.xz.b64")
        make_wire(build, directory, to / "wire.json.xz.b64")
    for path in sorted(to.iterdir()):
        print(f"{path.relative_to(yesterday.ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
