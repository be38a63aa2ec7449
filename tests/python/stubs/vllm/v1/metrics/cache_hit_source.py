"""Where tokens came from."""
import enum


class CacheHitSource(str, enum.Enum):
    """By vLLM's names."""
    DEVICE = "device"
    HOST = "host"
    P2P = "p2p"
    DISK = "disk"
    EXTERNAL_UNSPECIFIED = "external_unspecified"
