"""vLLM's CPU worker, made ready for a pipeline: a later stage gets its buffers for what the stage
before it sends in a profile run, which vLLM spares where it compiles nothing."""
from vllm.v1.worker.cpu_worker import CPUWorker


class PipelineWorker(CPUWorker):
    """Always runs it."""

    def determine_available_memory(self) -> int:
        self.model_runner.profile_run()
        return super().determine_available_memory()
