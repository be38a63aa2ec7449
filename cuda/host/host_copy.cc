#include "cuda/host/host_copy.h"

#include <algorithm>
#include <cstring>

#include "terrace/check.h"
#include "terrace/checksum.h"
#include "terrace/units.h"
#include "terrace/vector_state.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace {
namespace {

// Smaller copies are likelier to be read from cache soon, and gain least from streaming.
constexpr size_t kStreamBytesMin = 64 * kKiB;
// Of one run of many: below it, two partly written lines a run cost more than reading them does.
constexpr size_t kStreamRunBytesMin = kKiB;
constexpr size_t kStreamAlignmentBytes = 64;
constexpr size_t kStreamUnitBytes = 128;
static_assert(kChecksumLeafBytes % kStreamUnitBytes == 0);

// Hashing a leaf stalls on memory unless its lines were asked for during the copy of the one
// before.
constexpr size_t kPrefetchAheadBytes = 6 * kKiB;
// Of a large copy so many pages are read in turns. The hardware's prefetches stop at a page's end,
// so each page is one stream of reads, and several keep more of them on their way: on a server
// whose core copies 5.5 GB/s page after page, 8.4 GB/s.
constexpr size_t kPageBytes = 4 * kKiB;
constexpr size_t kPagesBytes = 8 * kPageBytes;
static_assert(kPagesBytes % kChecksumLeafBytes == 0);
// Of runs: a page's worth, as hardware prefetches stop at its end.
constexpr size_t kRunAheadBytes = 4 * kKiB;

bool IsStreamAligned(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % kStreamAlignmentBytes == 0;
}

void CopyPlain(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

#if defined(__x86_64__)

// AVX2 only: 64-byte stores of AVX-512 were measured no faster, 16-byte ones of SSE2 a tenth
// slower.
bool HasStreamingStores() {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2;
}

[[gnu::target("avx2"), gnu::always_inline]] inline void StreamUnit(std::byte* to,
                                                                   const std::byte* from) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* target = reinterpret_cast<__m256i*>(to);
  const __m256i word0 = _mm256_loadu_si256(source);
  const __m256i word1 = _mm256_loadu_si256(source + 1);
  const __m256i word2 = _mm256_loadu_si256(source + 2);
  const __m256i word3 = _mm256_loadu_si256(source + 3);
  _mm256_stream_si256(target, word0);
  _mm256_stream_si256(target + 1, word1);
  _mm256_stream_si256(target + 2, word2);
  _mm256_stream_si256(target + 3, word3);
}

// kPagesBytes with stores that bypass the caches and are not ordered until FenceStreams().
// REQUIRES: `to` is aligned to kStreamAlignmentBytes.
[[gnu::target("avx2")]] void StreamPages(std::byte* to, const std::byte* from) {
  for (size_t line = 0; line < kPageBytes; line += kStreamUnitBytes) {
    for (size_t page = 0; page < kPagesBytes; page += kPageBytes) {
      StreamUnit(to + page + line, from + page + line);
    }
  }
}

// Of a page that will be read in a while. Much more than this was slower than nothing.
constexpr size_t kAskedForBytes = 384;

void AskFor(const std::byte* page) {
  for (size_t at = 0; at < kAskedForBytes; at += kStreamAlignmentBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(page + at), _MM_HINT_T0);
  }
}

// The same of any size, what is less than kPagesBytes in one stream. With kAhead > 0 that also asks
// for what comes kAhead bytes on, which past the end of `from` is at `next_from`; that reads
// nothing and cannot fault.
// REQUIRES: `to` is aligned to kStreamAlignmentBytes; the size is a multiple of kStreamUnitBytes.
template <size_t kAhead>
[[gnu::target("avx2")]] void StreamWide(std::span<std::byte> to, std::span<const std::byte> from,
                                        const std::byte* next_from) {
  size_t i = 0;
  for (; from.size() - i >= kPagesBytes; i += kPagesBytes) StreamPages(&to[i], &from[i]);
  if (kAhead > 0 && i == from.size()) AskFor(next_from);
  for (; i < from.size(); i += kStreamUnitBytes) {
    if constexpr (kAhead > 0) {
      const size_t at = i + kAhead;
      const uintptr_t ahead = at < from.size()
                                  ? reinterpret_cast<uintptr_t>(from.data()) + at
                                  : reinterpret_cast<uintptr_t>(next_from) + at - from.size();
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(ahead + 64), _MM_HINT_T0);
    }
    StreamUnit(&to[i], &from[i]);
  }
}

template <size_t kAhead>
void Stream(std::span<std::byte> to, std::span<const std::byte> from, const std::byte* next_from) {
  StreamWide<kAhead>(to, from, next_from);
  ClearUpperHalves();
}

void FenceStreams() { _mm_sfence(); }

#else

// The architecture's memcpy already streams large copies.
constexpr bool HasStreamingStores() { return false; }

template <size_t kAhead>
void Stream(std::span<std::byte> to, std::span<const std::byte> from, const std::byte*) {
  CopyPlain(to, from);
}

void AskFor(const std::byte*) {}

void FenceStreams() {}

#endif

}  // namespace

namespace {

// Streams all whole lines of the target. REQUIRES: at least one line, HasStreamingStores().
template <size_t kAhead>
void StreamLines(std::span<std::byte> to, std::span<const std::byte> from,
                 const std::byte* next_from) {
  const size_t past_line_bytes = reinterpret_cast<uintptr_t>(to.data()) % kStreamAlignmentBytes;
  const size_t head_bytes = past_line_bytes == 0 ? 0 : kStreamAlignmentBytes - past_line_bytes;
  const size_t stream_bytes = RoundDown(from.size() - head_bytes, kStreamUnitBytes);
  const size_t tail_offset = head_bytes + stream_bytes;
  CopyPlain(to.first(head_bytes), from.first(head_bytes));
  Stream<kAhead>(to.subspan(head_bytes, stream_bytes), from.subspan(head_bytes, stream_bytes),
                 next_from);
  CopyPlain(to.subspan(tail_offset), from.subspan(tail_offset));
}

}  // namespace

void CopyBytes(std::span<std::byte> to, std::span<const std::byte> from) {
  TERRACE_CHECK(to.size() == from.size(), "a copy fills its target exactly");
  if (from.size() < kStreamBytesMin || !HasStreamingStores()) return CopyPlain(to, from);
  StreamLines<0>(to, from, nullptr);
  FenceStreams();
}

void CopyRun(std::byte* to, const std::byte* from, size_t byte_count, const std::byte* next_from) {
  if (byte_count < kStreamRunBytesMin || !HasStreamingStores()) {
    std::memcpy(to, from, byte_count);
    return;
  }
  StreamLines<kRunAheadBytes>({to, byte_count}, {from, byte_count}, next_from);
}

void FenceRuns() { FenceStreams(); }

Checksum CopyAndChecksumPart(std::span<std::byte> to, std::span<const std::byte> from,
                             uint64_t seed) {
  ChecksumStream checksum(seed);
  CopyAndAppend(to, from, &checksum);
  return checksum.Finish();
}

void CopyAndAppend(std::span<std::byte> to, std::span<const std::byte> from,
                   ChecksumStream* checksum) {
  TERRACE_CHECK(to.size() == from.size(), "a copy fills its target exactly");
  const bool streams =
      from.size() >= kStreamBytesMin && IsStreamAligned(to.data()) && HasStreamingStores();
  while (streams && from.size() >= kPagesBytes) {
    Stream<0>(to.first(kPagesBytes), from.first(kPagesBytes), nullptr);
    for (size_t page = 0; page < kPagesBytes; page += kPageBytes) {
      if (from.size() >= kPagesBytes + page + kPageBytes) AskFor(&from[kPagesBytes + page]);
      checksum->Append(from.subspan(page, kPageBytes));
    }
    to = to.subspan(kPagesBytes);
    from = from.subspan(kPagesBytes);
  }
  while (!from.empty()) {
    const size_t leaf_bytes = std::min<size_t>(kChecksumLeafBytes, from.size());
    checksum->Append(from.first(leaf_bytes));
    if (streams && leaf_bytes == kChecksumLeafBytes) {
      Stream<kPrefetchAheadBytes>(to.first(leaf_bytes), from.first(leaf_bytes),
                                  from.data() + leaf_bytes);
    } else {
      CopyPlain(to.first(leaf_bytes), from.first(leaf_bytes));
    }
    to = to.subspan(leaf_bytes);
    from = from.subspan(leaf_bytes);
  }
  if (streams) FenceStreams();
}

}  // namespace terrace
