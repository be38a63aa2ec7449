"""Bits, one a key."""


class Bitmap:
    """So many of them, none set."""

    def __init__(self, size):
        self._bits = [False] * size

    def __len__(self):
        return len(self._bits)

    def set(self, index):
        self._bits[index] = True

    def test(self, index):
        return self._bits[index]

    def popcount(self):
        return sum(self._bits)
