"""What a store task answers."""


class L2StoreResult(int):
    """The bytes that were moved, -1 where it failed."""

    def __new__(cls, success, bytes_transferred):
        return super().__new__(cls, bytes_transferred if success else -1)

    def is_successful(self):
        return self >= 0

    def bytes_transferred(self):
        return max(0, int(self))
