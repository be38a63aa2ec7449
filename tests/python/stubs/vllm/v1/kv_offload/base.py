"""What tiers answer, and what they are told of a request."""
import enum


class LookupResult(enum.Enum):
    """Of one key."""
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class RequestOffloadingContext:
    """What a tier wishes."""


class ReqContext:
    """A request, as tiers see it."""

    def __init__(self, req_id):
        self.req_id = req_id
        self._positions = {}

    def set_offload_key_position(self, key, end_token):
        self._positions[key] = end_token

    def get_offload_key_position(self, key):
        return self._positions.get(key)
