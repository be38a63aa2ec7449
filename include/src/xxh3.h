// xxHash as Terrace calls it: XXH3 with the widest vector unit of the running machine. On x86-64
// the plain symbols of a distribution's libxxhash are compiled for SSE2; the dispatching ones,
// which this header puts in their place, choose AVX2 or AVX-512 at run time and compute the same
// function.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t by value: hashing never allocates
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include <bit>

// Messages are hashed as they lie in memory, and every format of Terrace is little-endian.
static_assert(std::endian::native == std::endian::little);
