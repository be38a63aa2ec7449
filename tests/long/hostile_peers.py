#!/usr/bin/env python3
# PROMISE: T35 peers that keep no rule
# PROMISE: T36 peers that keep no rule
"""Two hundred connections that do not play by the rules: a legitimate client does not notice.

They say nothing, stop in the middle of a frame, flood garbage, begin messages that never end, ask
and never read the answers, or read without ever catching up. Meanwhile clients work and new ones
come; the daemon's descriptors and private memory stay bounded, and descriptors are as before when
the peers have gone.
"""
import collections
import contextlib
import itertools
import multiprocessing
import random
import select
import socket
import struct
import sys
import time

import rig

HELLO, OPEN, STATS = 1, 2, 18
FRAME_MORE = 1
BUFFERS_MIB = 64
VISITS = 3
OUTSTANDING = 2000
FDS_PER_PEER_MAX = 4
MARGIN_BYTES = 16 << 20  # of allocator and pools


def frame(verb, body, flags=0, request_id=1, frame_bytes=None):
    """Frame version 1, docs/PROTOCOL.md."""
    return struct.pack("<IBBHQ", frame_bytes or 16 + len(body), 1, verb, flags, request_id) + body


def hello():
    return frame(HELLO, struct.pack("<IBBHII32s", 0x31435254, 1, 1, 0, 1, 0, b"peer"))


# Manners: what a peer sends, piece by piece.
def says_nothing(_):
    return iter(())


def stops_in_a_header(_):
    return iter((hello()[:7],))


def stops_in_a_body(_):
    return iter((hello()[:40],))


def stops_after_hello(_):
    return iter((hello(), frame(STATS, bytes(8))[:20]))


def floods_garbage(_):
    source = random.Random(7)
    return (source.randbytes(1 << 16) for _ in itertools.count())


def claims_a_huge_frame(_):
    return itertools.chain((hello(), frame(OPEN, b"", frame_bytes=0xFFFFFFFF)),
                           itertools.repeat(bytes(1 << 16)))


def never_ends_a_message(_):
    return itertools.chain((hello(),),
                           itertools.repeat(frame(OPEN, bytes(1 << 19), flags=FRAME_MORE)))


def never_reads(_):
    yield hello()
    for request_id in itertools.count(2):
        yield frame(STATS, bytes(8), request_id=request_id)


def never_catches_up(peer):
    """As many answers are read as requests are sent, but always so many later that the daemon's
    queue for this peer is never empty."""
    yield hello()
    for request_id in itertools.count(2):
        yield frame(STATS, bytes(8), request_id=request_id)
        peer.read_frames(request_id - OUTSTANDING)


MANNERS = (says_nothing, stops_in_a_header, stops_in_a_body, stops_after_hello, floods_garbage,
           claims_a_huge_frame, never_ends_a_message, never_reads, never_catches_up)


class Peer:
    """One connection; sends what its manner yields whenever the socket takes it."""

    def __init__(self, path, manner):
        self.manner = manner.__name__
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))
        self.socket.setblocking(False)
        self.pieces = manner(self)
        self.unsent = b""
        self.sent_bytes = 0
        self.read_bytes = 0
        self.frames_read = 0
        self.header = b""
        self.body_left_bytes = 0
        self.state = "open"

    def push(self):
        """Sends a piece. False when there is nothing (more) to send."""
        try:
            if not self.unsent:
                self.unsent = next(self.pieces, b"")
            if not self.unsent or self.state != "open":
                return False
            sent = self.socket.send(self.unsent)
        except BlockingIOError:
            return True
        except OSError:
            self.state = "refused"
            return False
        self.sent_bytes += sent
        self.unsent = self.unsent[sent:]
        return True

    def read_frames(self, until_count):
        """Reads whole frames, as far as they are there, until it has seen so many."""
        with contextlib.suppress(BlockingIOError):
            while self.frames_read < until_count:
                piece = self.socket.recv(self.body_left_bytes or 16 - len(self.header))
                if not piece:
                    raise ConnectionError
                self.read_bytes += len(piece)
                if self.body_left_bytes:
                    self.body_left_bytes -= len(piece)
                else:
                    self.header += piece
                    if len(self.header) < 16:
                        continue
                    self.body_left_bytes = struct.unpack_from("<I", self.header)[0] - 16
                if self.body_left_bytes == 0:
                    self.frames_read += 1
                    self.header = b""


def pester(path, count, reports):
    """The peers' process: connects, then lets each send whenever its socket takes it, for good.
    Reports what each manner has done twice a second."""
    rig.die_with_parent()
    peers = [Peer(path, MANNERS[i % len(MANNERS)]) for i in range(count)]
    busy = list(peers)
    next_report = 0
    while True:
        writable = select.select([], [p.socket for p in busy], [], 0.05)[1] if busy else []
        busy = [p for p in busy if p.socket not in writable or p.push()]
        if not busy:
            time.sleep(0.05)
        if time.monotonic() > next_report:
            groups = collections.defaultdict(list)
            for peer in peers:
                groups[peer.manner].append(peer)
            reports.send([(manner, len(group), sum(p.state == "refused" for p in group),
                           sum(p.sent_bytes for p in group) // 1024,
                           sum(p.read_bytes for p in group) // 1024)
                          for manner, group in groups.items()])
            next_report = time.monotonic() + 0.5


class Watch:
    """The most private bytes and descriptors of the daemon, and the peers' last report."""

    def __init__(self, stage, reports):
        self.stage = stage
        self.reports = reports
        self.last_report = []
        self.private_max = self.fds_max = 0

    def look(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.stage.require_daemon()
            self.private_max = max(self.private_max, self.stage.daemon_memory()[0])
            self.fds_max = max(self.fds_max, self.stage.daemon_fd_count())
            if self.reports.poll(0.05):
                self.last_report = self.reports.recv()

    def print_report(self):
        print(f"      {'manner':24}{'peers':>6}{'refused':>9}{'KiB sent':>10}{'read':>10}")
        for manner, peers, refused, sent, read in self.last_report:
            print(f"      {manner:24}{peers:>6}{refused:>9}{sent:>10}{read:>10}")


def visit(stage, seconds, fds_before):
    """Peers come, a client comes after them, they go. (late comer, watch, private bytes after)"""
    reports, their_reports = multiprocessing.Pipe(duplex=False)
    peers = multiprocessing.Process(target=pester, daemon=True, args=(
        stage.socket_path, stage.arguments.peers, their_reports))
    watch = Watch(stage, reports)
    try:
        peers.start()
        watch.look(seconds / 2)
        late_comer = stage.client("worker", prompts=32, seconds=240, seed=2)
        late_comer.expect("ready")
        watch.look(seconds / 2)
    finally:
        peers.kill()
        peers.join()
    watch.print_report()
    stage.check(late_comer.counters()["ops"] > 0 and late_comer.finish() == 0,
                f"a late comer did {late_comer.counters()['ops']} operations meanwhile")
    fds_back = rig.wait_until(lambda: stage.daemon_fd_count() <= fds_before, 5)
    fds_limit = fds_before + FDS_PER_PEER_MAX * (stage.arguments.peers + 1)
    stage.check(watch.fds_max <= fds_limit and fds_back is not None,
                f"descriptors: {fds_before} before, at most {watch.fds_max} (limit {fds_limit}), "
                f"{stage.daemon_fd_count()} after")
    return late_comer, watch, stage.daemon_memory()[0]


def check_memory(stage, private_before, visits):
    """The allocator may keep what one visit took, but not once more after each."""
    limit = private_before + BUFFERS_MIB * rig.MIB + MARGIN_BYTES
    private_max = max(watch.private_max for _, watch, _ in visits)
    after = ", ".join(f"{private / rig.MIB:.1f}" for _, _, private in visits)
    stage.check(private_max <= limit,
                f"private memory in MiB: {private_before / rig.MIB:.1f} before, at most "
                f"{private_max / rig.MIB:.1f} (limit {limit / rig.MIB:.1f}), {after} after visits")


def main():
    arguments = rig.parse_arguments(__doc__, 240, peers=(200, 200), seconds=(30, 3))
    stage = rig.Rig(arguments, dram_mib=64, segment_mib=4, sessions_max=512,
                    session_buffers_bytes_max=BUFFERS_MIB * rig.MIB,
                    session_output_bytes_max=20 * rig.MIB)
    with stage:
        stage.console()
        worker = stage.client("worker", prompts=32, seconds=240)
        worker.expect("ready")
        rig.wait_until(lambda: worker.counters()["ops"] > 100, 10)
        private_before, _, _ = stage.daemon_memory()
        fds_before = stage.daemon_fd_count()
        ops_before = worker.counters()["ops"]
        visits = [visit(stage, arguments.seconds / VISITS, fds_before) for _ in range(VISITS)]
        ops = worker.counters()["ops"] - ops_before
        stage.check(ops > 0 and worker.finish() == 0, f"a client did {ops} operations meanwhile")
        check_memory(stage, private_before, visits)
        stage.check_clients([worker, *(late_comer for late_comer, _, _ in visits)])
        stage.check_nothing_left()
        stage.summary = (f"{arguments.peers} hostile peers: clients worked on, the daemon stayed "
                         "within its bounds")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
