"""A stand-in for vLLM: only what terrace.vllm imports, to test its contract anywhere."""
__version__ = "stand-in"
