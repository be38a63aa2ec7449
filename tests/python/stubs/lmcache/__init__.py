"""A stand-in for LMCache: only what terrace.lmcache imports, to test its contract anywhere."""
__version__ = "stand-in"
