#!/usr/bin/env python3
# PROMISE: T32 a client that changes what it has committed
"""A client whose checksums are never those of its bytes, beside clients that play by the rules.

It writes its slots, has the library take the checksums, changes a byte of each, and commits, in
rounds. A reader of another user asks for each of its blocks as soon as they are committed. A
bystander loads its own blocks all the while. Nothing wrong reaches the drive or the reader, no
place of the drive is given up, and the bystander finds every block as fast as without. Beside it
stands what the same client costs the bystander when its checksums are right.

Needs root, for the users.
"""
import importlib
import multiprocessing
import os
import statistics
import sys
import time

import rig

BLOCK_BYTES = 256 << 10
ROUND_BLOCKS = 32
BYSTANDER_BLOCKS = 16
READER_UID, BYSTANDER_UID = 23_001, 23_002
PAUSE_S = 0.1     # between the wrong client's rounds
WINDOW_S = 3.0    # of the bystander's figures, with and without
RATIO_MAX = 1.5
PAIRS = 7


def load_package(build):
    os.environ["TERRACE_LIBRARY"] = str(build / "client" / "libterrace.so")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(rig.ROOT / "client" / "python"))
    return importlib.import_module("terrace")


def keys_of(terrace, chain, count):
    return terrace.Keys.from_hex([f"{chain:016x}{block + 1:016x}" for block in range(count)])


def group_of(terrace, client):
    client.wait_connected(30)
    space = terrace.Space(model="claims", revision="1", dtype="bf16", layout="nhd", layers=1,
                          kv_heads=1, head_size=64, block_tokens=16, part_bytes=(BLOCK_BYTES,))
    return client.open(terrace.SpaceGroup("claims", [space]))


def tell(terrace, group, chain, is_honest):
    """One round; how many blocks became visible, if only for a moment."""
    with group.reserve(keys_of(terrace, chain, ROUND_BLOCKS)) as lease:
        mine = lease.reserved
        for key in mine:
            slot = lease.slot(key)
            slot[:] = bytes([chain % 251]) * BLOCK_BYTES
            lease.checksum(key, 0)
            if not is_honest:
                slot[key * 4099 % BLOCK_BYTES] ^= 1
            del slot
        return lease.commit() if mine else 0


def run_writer(terrace, socket, pipe, first_chain, rounds, is_honest):
    """Rounds while told to, `rounds` of them if not 0; reports the chains."""
    rig.die_with_parent()
    with terrace.Client(socket, default_timeout_s=30) as client:
        group = group_of(terrace, client)
        pipe.send("ready")
        chain = first_chain
        while pipe.recv() == "go":
            sealed = done = 0
            while (done < rounds) if rounds else not pipe.poll():
                sealed += tell(terrace, group, chain, is_honest)
                pipe.send(chain)
                chain += 1
                done += 1
                if not rounds:
                    time.sleep(PAUSE_S)
            pipe.send(("sealed", sealed))


def read_as_other(terrace, group, chain):
    """Blocks of the chain that were handed out as ready, and of those the wrong ones."""
    ready = wrong = 0
    try:
        with group.acquire(keys_of(terrace, chain, ROUND_BLOCKS)) as lease:
            for block in range(lease.block_count):
                lease.wait_ready(block + 1)
                with lease.slot(block) as slot:
                    ready += 1
                    wrong += bytes(slot) != bytes([chain % 251]) * BLOCK_BYTES
    except (terrace.NotFound, terrace.Busy):
        pass
    return ready, wrong


def run_reader(terrace, socket, pipe):
    rig.die_with_parent()
    os.setuid(READER_UID)
    with terrace.Client(socket, default_timeout_s=30) as client:
        group = group_of(terrace, client)
        pipe.send("ready")
        while (chain := pipe.recv()) is not None:
            pipe.send(read_as_other(terrace, group, chain))


def run_bystander(terrace, socket, pipe):
    """Loads its blocks for as long as it is told; microseconds of each load, and misses."""
    rig.die_with_parent()
    os.setuid(BYSTANDER_UID)
    with terrace.Client(socket, default_timeout_s=30) as client:
        group = group_of(terrace, client)
        keys = keys_of(terrace, 1, BYSTANDER_BLOCKS)
        data = bytearray(b"\7" * (BYSTANDER_BLOCKS * BLOCK_BYTES))
        with group.reserve(keys) as lease:
            lease.write(data)
            assert lease.commit() == BYSTANDER_BLOCKS
        into = bytearray(len(data))
        pipe.send("ready")
        while (seconds := pipe.recv()) is not None:
            times_us, missed, end = [], 0, time.monotonic() + seconds
            while time.monotonic() < end:
                began = time.monotonic()
                with group.acquire(keys) as lease:
                    lease.wait_ready()
                    missed += BYSTANDER_BLOCKS - lease.block_count
                    lease.copy_into(into)
                times_us.append((time.monotonic() - began) * 1e6)
                assert into == data, "the bystander read wrong bytes"
                time.sleep(0.002)
            times_us.sort()
            pipe.send((times_us[len(times_us) * 99 // 100], len(times_us), missed))


def start(role, *arguments):
    """A process that plays a role; the pipe to it, once it is ready."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=role, args=(*arguments[:2], theirs, *arguments[2:]),
                                      daemon=True)
    process.start()
    theirs.close()
    if ours.recv() != "ready":
        raise rig.Failure(f"{role.__name__} did not start")
    return ours


def collect(pipe):
    """The chains of a liar's rounds, and how many blocks they sealed."""
    chains = []
    while isinstance(said := pipe.recv(), int):
        chains.append(said)
    return chains, said[1]


def check_rounds(stage, terrace, reader, rounds):
    """Rounds of wrong checksums, each read by another user at once."""
    before = stage.console_client.ask("stats")
    liar = start(run_writer, terrace, str(stage.socket_path), 1000, 1, False)
    ready = wrong = sealed = 0
    for _ in range(rounds):
        liar.send("go")
        reader.send(liar.recv())
        sealed += collect(liar)[1]
        more_ready, more_wrong = reader.recv()
        ready, wrong = ready + more_ready, wrong + more_wrong
    liar.send("stop")
    rig.wait_until(lambda: stage.stats()["blocks_refuted"] >= sealed, 10)
    after = stage.console_client.ask("stats")
    tier = after["lower_tiers"][0]
    stage.check(sealed == rounds * ROUND_BLOCKS, f"{rounds} rounds: {sealed} blocks with wrong "
                                                 "checksums were committed")
    stage.check(wrong == 0, f"another user was handed {ready} of them, {wrong} wrong")
    stage.check(after["domain"]["blocks_refuted"] == sealed,
                f"{after['domain']['blocks_refuted']} were found out")
    written = tier["written_bytes"] - before["lower_tiers"][0]["written_bytes"]
    stage.check(written == 0, f"{written} bytes of them reached the drive")
    stage.check(tier["quarantined_bytes"] == tier["suspect_bytes"] == 0,
                f"{tier['quarantined_bytes']} bytes quarantined, {tier['suspect_bytes']} suspect, "
                f"of {tier['capacity_bytes']}")
    writers = after["domain"]["refuted_writers"]
    stage.check(len(writers) == 1 and writers[0]["block_count"] == sealed
                and writers[0]["uid"] == 0, f"status names the writer: {writers}")
    stage.check(after["conditions"] == ["wrong_checksums"],
                f"health: {after['health']} {after['troubles']}")


def p99_beside(stage, terrace, bystander, writer, first_chain):
    """The bystander's p99 in a window beside a writer of the kind; what it loaded and missed."""
    if writer is not None:
        beside = start(run_writer, terrace, str(stage.socket_path), first_chain, 0,
                       writer == "honest")
        beside.send("go")
    bystander.send(WINDOW_S)
    told = bystander.recv()
    if writer is not None:
        beside.send("stop")
        collect(beside)
    return told


def check_bystander(stage, terrace, bystander, pairs):
    writers = [None, "wrong", "honest"]
    ratios, missed, loads = {"wrong": [], "honest": []}, 0, 0
    for pair in range(pairs):
        p99 = {}
        for place in range(len(writers)):
            writer = writers[(pair + place) % len(writers)]
            p99[writer], count, more_missed = p99_beside(stage, terrace, bystander, writer,
                                                         100_000 * (3 * pair + place + 1))
            missed, loads = missed + more_missed, loads + count
        for writer, of_writer in ratios.items():
            of_writer.append(p99[writer] / p99[None])
        print(f"      p99 {p99[None]:.0f} us alone, {p99['wrong']:.0f} beside the wrong client, "
              f"{p99['honest']:.0f} beside an honest one", flush=True)
    median = {writer: statistics.median(of_writer) for writer, of_writer in ratios.items()}
    stage.check(missed == 0, f"the bystander missed {missed} blocks in {loads} loads")
    stage.check(median["wrong"] <= RATIO_MAX,
                f"its p99 beside the wrong client is {median['wrong']:.2f} of that alone, beside "
                f"an honest one {median['honest']:.2f} (medians of {pairs}, limit {RATIO_MAX})")


def main():
    arguments = rig.parse_arguments(__doc__, 240, rounds=(5, 5), pairs=(PAIRS, 3))
    if os.geteuid() != 0:
        print("SKIPPED: needs root, to be other users")
        return 0
    terrace = load_package(arguments.build.resolve())
    stage = rig.Rig(arguments, dram_mib=64, segment_mib=16, nvme_mib=256, slab_mib=64,
                    domain_keys={"socket_mode": "0666"})
    with stage:
        os.chmod(stage.directory, 0o711)
        stage.console()
        socket = str(stage.socket_path)
        bystander = start(run_bystander, terrace, socket)
        reader = start(run_reader, terrace, socket)
        rig.wait_until(lambda: stage.console_client.ask("stats")["lower_tiers"][0]["block_count"]
                       >= BYSTANDER_BLOCKS, 10)
        check_rounds(stage, terrace, reader, arguments.rounds)
        check_bystander(stage, terrace, bystander, arguments.pairs)
        stage.summary = (f"{arguments.rounds} rounds of wrong checksums: nothing below, nothing "
                         "read, nothing lost")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
