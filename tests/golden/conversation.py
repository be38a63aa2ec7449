"""Conversations between a client and a daemon, as frames: read, recorded by a proxy, written down,
and held again with another daemon. See docs/PROTOCOL.md for what frames are.
"""
import array
import dataclasses
import json
import selectors
import socket
import struct
import threading

HEADER = struct.Struct("<IBBHQ")
PREFIX = struct.Struct("<QB3xi")
MORE = 1
FDS_MAX = 64
FROM_DAEMON_MIN = 64  # verbs that nobody asked for
TOKEN_BYTES = 16
COMMIT = 11
COMMIT_ENTRY = struct.Struct("<IHHHHIII")
COMMIT_HEAD_BYTES = 56
ENTRY_COUNT_AT = 16
HAS_CHECKSUMS = 1
# Their answers begin with the token of a lease.
GIVE_LEASE = {4: "Acquire", 10: "Reserve"}
# JSON, whose length follows from names, times and figures of its daemon; Hello's from its flags.
OF_ANY_LENGTH = {1: "Hello", 18: "Stats"}


@dataclasses.dataclass
class Message:
    """One message of either side, its frames put together."""
    is_request: bool
    verb: int
    request_id: int
    body: bytes

    def frame(self):
        return HEADER.pack(HEADER.size + len(self.body), 1, self.verb, 0,
                           self.request_id) + self.body

    @property
    def status(self):
        return PREFIX.unpack_from(self.body)[1]

    @property
    def token(self):
        return self.body[PREFIX.size:PREFIX.size + TOKEN_BYTES]


class Assembler:
    """Messages out of one direction's bytes."""

    def __init__(self, is_request):
        self._is_request = is_request
        self._bytes = b""
        self._parts = b""

    def take(self, data):
        self._bytes += data
        while len(self._bytes) >= HEADER.size:
            length, _, verb, flags, request_id = HEADER.unpack_from(self._bytes)
            if len(self._bytes) < length:
                return
            self._parts += self._bytes[HEADER.size:length]
            self._bytes = self._bytes[length:]
            if flags & MORE:
                continue
            yield Message(self._is_request, verb, request_id, self._parts)
            self._parts = b""


class Recorder:
    """Listens at `path` in front of the daemon at `daemon`, and writes down what both say."""

    def __init__(self, path, daemon):
        self._daemon = str(daemon)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._lock = threading.Lock()
        self.conversations = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            messages = []
            self.conversations.append(messages)
            threading.Thread(target=self._serve, args=(client, messages), daemon=True).start()

    def _serve(self, client, messages):
        with client, socket.socket(socket.AF_UNIX) as daemon, \
                selectors.DefaultSelector() as ready:
            daemon.connect(self._daemon)
            ready.register(client, selectors.EVENT_READ, (daemon, Assembler(True)))
            ready.register(daemon, selectors.EVENT_READ, (client, Assembler(False)))
            while True:
                for key, _ in ready.select():
                    to, assembler = key.data
                    data, fds = receive(key.fileobj)
                    if not data:
                        return
                    with self._lock:
                        messages += assembler.take(data)
                    if not send(to, data, fds):
                        return

    def close(self):
        self._listener.close()


def receive(peer):
    """(bytes, descriptors); no bytes: the other end has closed."""
    space = socket.CMSG_LEN(FDS_MAX * 4)
    try:
        data, ancillary, _, _ = peer.recvmsg(1 << 20, space)
    except ConnectionError:
        return b"", []
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[:len(payload) - len(payload) % 4])
    return data, list(fds)


def send(peer, data, fds):
    """False: the other end has closed."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sent = peer.sendmsg([data], ancillary)
        peer.sendall(data[sent:])
    except ConnectionError:
        return False
    finally:
        for fd in fds:
            socket.close(fd)
    return True


def to_json(conversations):
    return json.dumps([[[m.is_request, m.verb, m.request_id, m.body.hex()] for m in each]
                       for each in conversations])


def from_json(text):
    return [[Message(is_request, verb, request_id, bytes.fromhex(body))
             for is_request, verb, request_id, body in each] for each in json.loads(text)]


class Peer:
    """A client that says again what another once said."""

    def __init__(self, path, timeout_s):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        self._socket.connect(str(path))
        self._assembler = Assembler(False)
        self._answers = {}

    def ask(self, message):
        """The answer to it; what comes unasked is passed over."""
        self._socket.sendall(message.frame())
        while message.request_id not in self._answers:
            data, fds = receive(self._socket)
            for fd in fds:
                socket.close(fd)
            if not data:
                raise ConnectionError(f"the daemon closed the connection at verb {message.verb}")
            for answer in self._assembler.take(data):
                if answer.verb < FROM_DAEMON_MIN:
                    self._answers[answer.request_id] = answer
        return self._answers.pop(message.request_id)

    def close(self):
        self._socket.close()


def without_checksums(body):
    """A Commit's body. Checksums are of bytes that nobody writes here, and of another daemon's
    commits: the entries have none instead."""
    count, = struct.unpack_from("<I", body, ENTRY_COUNT_AT)
    entries = []
    for i in range(count):
        fields = list(COMMIT_ENTRY.unpack_from(body, COMMIT_HEAD_BYTES + i * COMMIT_ENTRY.size))
        fields[2] &= ~HAS_CHECKSUMS
        entries.append(COMMIT_ENTRY.pack(*fields))
    return body[:COMMIT_HEAD_BYTES] + b"".join(entries)


def hold_again(recorded, path, timeout_s=60):
    """Says each request of a recorded conversation to the daemon at `path`, with the leases that
    this one gives. Yields (request, answer then, answer now)."""
    then = {m.request_id: m for m in recorded if not m.is_request and m.verb < FROM_DAEMON_MIN}
    tokens = {}
    peer = Peer(path, timeout_s)
    try:
        for request in (m for m in recorded if m.is_request):
            body = request.body
            for old, new in tokens.items():
                body = body.replace(old, new)
            if request.verb == COMMIT:
                body = without_checksums(body)
            now = peer.ask(dataclasses.replace(request, body=body))
            before = then.get(request.request_id)
            if before is None:  # the client had gone
                continue
            if request.verb in GIVE_LEASE and before.status == now.status == 0:
                tokens[before.token] = now.token
            yield request, before, now
    finally:
        peer.close()
