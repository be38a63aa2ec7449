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

    def __init__(self, req_id, kv_transfer_params=None):
        self.req_id = req_id
        self.kv_transfer_params = kv_transfer_params
        self._positions = {}
        self._state = {}

    def set_state(self, value):
        self._state[type(value)] = value

    def get_state(self, kind):
        return self._state.get(kind)

    def set_offload_key_position(self, key, end_token):
        self._positions[key] = end_token

    def get_offload_key_position(self, key):
        return self._positions.get(key)
