"""A request as connectors see vLLM's."""
import hashlib
import types

import numpy

WAITING, LOADING, RUNNING, FINISHED = "waiting", "loading", "running", "finished"


class Request:
    """See the page. block_hashes: of full blocks, each of the prefix up to its end."""

    def __init__(self, request_id, tokens, output_count, block_tokens, lora_request=None, *,
                 says=None, extra=None, stop=(), ends="FINISHED_LENGTH_CAPPED"):
        self.kv_transfer_params, self.ends = says, ends  # its parameters; how it ends by itself
        self.sampling_params = types.SimpleNamespace(extra_args=extra, stop=stop)
        self.status = types.SimpleNamespace(name="WAITING")
        self.request_id = request_id
        self.tokens = list(tokens)
        self.output_count = output_count
        self.prompt_count = len(self.tokens)
        self.block_tokens = block_tokens
        self.block_hashes = []
        self.lora_request = lora_request
        self.num_computed_tokens = 0
        self.state = WAITING
        self.tables = []  # of each KV cache group the block ids
        self.cached_count = 0  # blocks entered into the prefix cache
        self.was_scheduled = False
        self.is_aborted = False
        self.loading_ids = []
        self.preemptions = 0
        self.update_hashes()

    @property
    def num_prompt_tokens(self):
        return self.prompt_count

    @property
    def num_tokens(self):
        return len(self.tokens)

    @property
    def all_token_ids(self):
        return self.tokens

    @property
    def output_token_ids(self):
        return self.tokens[self.prompt_count:]

    @property
    def root_hash(self):
        lora = self.lora_request
        return b"root" if lora is None else f"{lora.lora_name} {lora.lora_path}".encode()

    def state_hash(self, count):
        """What the state after `count` tokens follows from."""
        chunk = numpy.array(self.tokens[:count], "<u4").tobytes()
        return hashlib.sha256(self.root_hash + b" state " + chunk).digest()

    def update_hashes(self):
        while (len(self.block_hashes) + 1) * self.block_tokens <= len(self.tokens):
            first = len(self.block_hashes) * self.block_tokens
            parent = self.block_hashes[-1] if self.block_hashes else self.root_hash
            chunk = numpy.array(self.tokens[first:first + self.block_tokens], "<u4").tobytes()
            self.block_hashes.append(hashlib.sha256(parent + chunk).digest())
