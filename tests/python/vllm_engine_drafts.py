"""What a draft does to the engine without a model: what the layers of one of EAGLE's kind keep of a
token follows from the next one, too; a draft model of its own reads tokens where they stand."""
import types

NULL = 0  # the block that stands where a window has passed
DRAFTED = 2  # tokens at a time


class Drafted:
    """Of an Engine. Bytes of a block of `draft_groups` follow from its hash and from the token
    before which its last one was computed; vLLM's own cache tells blocks apart by their hashes
    alone, drops the last block of a hit, and may so have blocks that were computed before another
    token. With method "draft_model" bytes follow from the hash alone. In a step with a sequence of
    more than `draft_max` tokens nothing of a draft is computed.
    """

    def begin_drafts(self, kv_cache, config, draft_groups, draft_max, method="eagle"):
        self.draft_groups, self.draft_max = set(draft_groups), draft_max
        self.after = [None] * kv_cache.num_blocks  # by block, as it was computed; b"…": it was not
        self.undrafted_count = 0
        self.looks_ahead = method != "draft_model"
        for index, group in enumerate(kv_cache.kv_cache_groups):
            group.is_eagle_group = self.looks_ahead and index in self.draft_groups
        if draft_groups:
            config.model_config.max_model_len = draft_max and draft_max + DRAFTED
            config.speculative_config = types.SimpleNamespace(
                method=method, num_speculative_tokens=DRAFTED, parallel_drafting=False,
                uses_draft_kv_cache=lambda: True, draft_model_config=types.SimpleNamespace(
                    model="a-draft", revision=None, hf_config=None,
                    max_model_len=config.model_config.max_model_len))

    def without_drafted(self, block_count):
        """Of a hit in the own cache."""
        drops = self.looks_ahead and self.draft_groups
        return max(0, block_count - 1) if drops else block_count

    def _behind(self, tokens, i):
        """What a block that is computed in one go follows from, beside its hash."""
        return tokens[(i + 1) * self.block_tokens] if self.looks_ahead else b"the hash"

    def draft(self, output):
        """What the draft makes of a step's blocks."""
        if not self.draft_groups:
            return
        works = output.work.values()
        is_left_out = self.draft_max is not None and \
            max((work.start + work.count for work in works), default=0) > self.draft_max
        self.undrafted_count += is_left_out
        for work in works:
            if work.samples:
                work.sample = self.sample()
            for group in self.draft_groups:
                self._draft_blocks(work, work.tables[group], is_left_out)
        for work in works:
            work.after = {group: [self.after[block_id] for block_id in work.tables[group]]
                          for group in self.draft_groups}

    def _draft_blocks(self, work, table, is_left_out):
        n, tokens = self.block_tokens, work.request.tokens + [work.sample]
        end = work.start + work.count
        for i in range(work.start // n, -(-end // n)):
            if i * n >= work.start:
                self.after[table[i]] = None  # it begins anew
            if is_left_out:
                self.after[table[i]] = b"left out"
            elif (i + 1) * n <= end and self.after[table[i]] is None:
                self.after[table[i]] = self._behind(tokens, i)

    def draft_loaded(self, request, first, last):
        """A load has to bring what follows from the request's own tokens."""
        for group in self.draft_groups:
            for i, block_id in enumerate(request.tables[group][first:last], first):
                if block_id != NULL:
                    self.after[block_id] = self._behind(request.tokens, i)

    def content(self, work, group, i):
        """What the bytes of a full block follow from."""
        block_hash = work.request.block_hashes[i]
        if group not in self.draft_groups:
            return block_hash
        return block_hash + repr(work.after[group][i]).encode()
