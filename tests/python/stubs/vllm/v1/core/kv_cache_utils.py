"""How block hashes are seeded."""
DEFAULT_NONE_HASH_SEED = "vllm-none-hash"
