"""The class a backend derives from, without behaviour."""


class HiCacheStorage:
    """Marks a backend."""
