"""The class an adapter derives from, with what it tells LMCache kept for tests to look at."""
import abc


class L2AdapterInterface(abc.ABC):
    """Lists what an adapter has to have; LMCache 0.5.6 asks for the same."""

    def __init__(self, max_capacity_bytes=0):
        self.max_capacity_bytes = max_capacity_bytes
        self.told = []

    def _notify_keys_stored(self, keys, sizes):
        self.told.append(("stored", keys, sizes))

    def _notify_keys_accessed(self, keys):
        self.told.append(("accessed", keys, None))

    def _notify_keys_deleted(self, keys, sizes):
        self.told.append(("deleted", keys, sizes))

    @abc.abstractmethod
    def get_store_event_fd(self): ...

    @abc.abstractmethod
    def get_lookup_and_lock_event_fd(self): ...

    @abc.abstractmethod
    def get_load_event_fd(self): ...

    @abc.abstractmethod
    def submit_store_task(self, keys, objects): ...

    @abc.abstractmethod
    def pop_completed_store_tasks(self): ...

    @abc.abstractmethod
    def submit_lookup_and_lock_task(self, keys, group_layout_descs): ...

    @abc.abstractmethod
    def query_lookup_and_lock_result(self, task_id): ...

    @abc.abstractmethod
    def submit_unlock(self, keys): ...

    @abc.abstractmethod
    def submit_load_task(self, keys, objects): ...

    @abc.abstractmethod
    def query_load_result(self, task_id): ...

    @abc.abstractmethod
    def close(self): ...
