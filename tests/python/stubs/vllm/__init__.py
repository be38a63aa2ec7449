"""A stand-in for vLLM: only what terrace.vllm imports, so that its contract can be tested anywhere."""
__version__ = "stand-in"
