"""vLLM's TieringOffloadingSpec with a worker that copies between the CPU platform's KV cache and
the CPU tier: vLLM has one for GPUs only. For tests/engines."""
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies at once: a page of each of the group's layers, block by block."""

    def __init__(self, kv_caches, region):
        self.caches = [each.tensor for each in kv_caches.tensors]
        self.rows = [region.create_next_worker_view(tensor.shape[1]) for tensor in self.caches]
        self.refs = kv_caches.group_data_refs
        self.finished = []

    def _copy(self, job_id, blocks, rows, is_store):
        at = 0
        for refs, count in zip(self.refs, blocks.group_sizes):
            for i in range(at, at + count):
                block, row = int(blocks.block_ids[i]), int(rows.chunk_ids[i])
                for ref in refs:
                    page = slice(0, ref.page_size_bytes)
                    cache = self.caches[ref.tensor_idx][block, page]
                    stored = self.rows[ref.tensor_idx][row, page]
                    (stored if is_store else cache).copy_(cache if is_store else stored)
            at += count
        assert at == len(rows.chunk_ids)
        self.finished.append(TransferResult(job_id=job_id, success=True))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, dst_spec, src_spec, False)

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        pass


class CpuTieringSpec(TieringOffloadingSpec):
    """One chunk a block."""

    def get_worker(self, kv_caches):
        assert self.blocks_per_chunk == 1
        assert all(each.tensor.dtype == torch.int8 for each in kv_caches.tensors)
        region = SharedOffloadRegion(
            engine_id=self._engine_id, num_chunks=self.num_chunks, rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker)
        return CopyingWorker(kv_caches, region)
