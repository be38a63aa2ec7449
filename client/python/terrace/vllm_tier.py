"""The module that vLLM's configuration names for the tier form: see terrace.vllm.tier."""
from .vllm.tier import TerraceTier

__all__ = ["TerraceTier"]
