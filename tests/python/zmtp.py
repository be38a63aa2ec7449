"""A peer that speaks ZMTP 3.0 as far as it has to, so that it can break it."""
from conftest import LONG_S


class RawPeer:
    """Over a socket that is not connected yet."""

    def __init__(self, socket, address, socket_type):
        self.socket = socket
        self.socket.settimeout(LONG_S)
        self.socket.connect(address)
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        self.socket.sendall(greeting)
        metadata = b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
        body = b"\x05READY" + metadata
        self.socket.sendall(b"\x04" + bytes([len(body)]) + body)
        # Who goes on before the other end is READY, too, is hung up on for that.
        ready = b""
        while b"READY" not in ready:
            more = self.socket.recv(1 << 10)
            if not more:
                raise ConnectionResetError("before the other end was ready")
            ready += more

    def claim(self, frame_bytes):
        """The header of a frame of so many bytes."""
        self.socket.sendall(b"\x02" + frame_bytes.to_bytes(8, "big"))

    def send(self, part, more=False):
        """A part of a message."""
        self.socket.sendall(bytes([3 if more else 2]) + len(part).to_bytes(8, "big") + part)

    def is_hung_up(self):
        """Waits for it."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True
