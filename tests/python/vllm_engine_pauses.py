"""What happens to the engine without a model between its steps: pauses, weights that are exchanged,
sleeps."""
import types

from vllm_engine_worker import require

AWAY, FRESH = 0x5A5A, 0x1234  # what KV caches hold in a sleep, and after it


class Pauses:
    """Of an Engine."""

    @property
    def may_reset(self):
        """vLLM refuses while a request waits for blocks from elsewhere."""
        return all(request.state != "loading" for request in self.requests.values())

    def drain(self):
        """Pauses: all that was scheduled has been computed."""
        while self.updated < len(self.steps):
            self.finish_step()

    def reset_prefix_cache(self):
        """As vLLM does behind an update of the weights, with reset_running_requests and
        reset_connector; before a sleep; and in a pause with clear_cache. What runs is computed
        anew, nothing of the own cache stays."""
        self.reset_own_cache()
        require(self.connector.reset_cache() is True, "a pause or a sleep would fail")

    def reset_own_cache(self):
        """Without reset_connector: only what vLLM has itself."""
        require(self.may_reset, "a reset while a request is loading")
        self.drain()
        between = types.SimpleNamespace(num_scheduled_tokens={},
                                        preempted_req_ids=self.preempted_between)
        for request in list(reversed(self.running)):
            self.preempt(request, between)
        self.cached.clear()
        self.hash_of = [None] * len(self.hash_of)

    def sleep(self):
        """The memory of all KV caches is taken away, behind a reset. What is in its place for tests
        is seen if anybody stores it, and is looked at when it is given back."""
        self.is_asleep = True
        for worker in self.workers:
            worker.connector.unregister_kv_caches()
            worker.connector.unregister_kv_caches()  # however often
            worker.fill(AWAY)

    def wake_up(self):
        for worker in self.workers:
            worker.expect_untouched(AWAY)
            worker.fill(FRESH)
            worker.connector.restore_kv_caches()
        self.is_asleep = False

    def update_weights(self, weights):
        """In place, of all ranks."""
        self.drain()
        for worker in self.workers:
            worker.base = weights
