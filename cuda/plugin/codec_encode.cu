// Kernels that encode. Elements are read once, as vectors that stay in
// registers from the search for a group's extremes until they are codes; the
// lanes of a warp share out a group and agree by shuffles. Compiled without FMA
// contraction.
#include "cuda/kernels/codec_kernels.h"

namespace terrace::cuda {
namespace {

using namespace codec_math;  // NOLINT: one header, the arithmetic this file is
                             // made of

constexpr uint32_t kAllLanes = 0xFFFFFFFF;
constexpr uint32_t kHeldOfColumnMax = 8;  // vectors of a thread, of as many tokens
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr uint32_t kBlocksOfFewHeld = 8;  // of a multiprocessor, which has 1,024 threads
#else
constexpr uint32_t kBlocksOfFewHeld = 12;
#endif
constexpr uint32_t kHeldOfRow = 4;       // vectors of a thread, of one row
constexpr uint32_t kRowsOfThread = 4;    // int4 values: vectors of a thread, of as many rows
constexpr uint32_t kTokensOfCopy = 4;    // raw: vectors of a thread
constexpr uint32_t kColumnLaneBits = 3;  // vectors of a token that a warp takes: 8, 128 bytes
constexpr uint32_t kColumnLanes = 1u << kColumnLaneBits;

// The bytes that alignment leaves; there are fewer than kThreads of each.
__device__ void ZeroPadding(const CodecWork& work, uint8_t* slot) {
  if (blockIdx.x != 0 || blockIdx.z != 0) return;
  const uint32_t behind_parameters = work.parameter_bytes + threadIdx.x;
  if (behind_parameters < work.codes_offset_bytes) slot[behind_parameters] = 0;
  const uint32_t behind_codes = work.codes_end_bytes + threadIdx.x;
  if (behind_codes < work.encoded_bytes) slot[behind_codes] = 0;
}
static_assert(kThreads >= kCodecPlaneAlignmentBytes);

template <typename Element>
__device__ void RefuseIf(const CodecWork& work, uint32_t magnitude_max) {
  if (magnitude_max > Element::kMagnitudeLimit) work.refused[blockIdx.y] = 1;
}

template <typename Element, uint32_t kWidth>
__device__ ElementsOf<Element, kWidth> LoadByElements(const typename Element::Bits* from) {
  ElementsOf<Element, kWidth> words = {};
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    const uint32_t bits = LoadOne<typename Element::Bits>(from + i);
    words.at[i * kElementBytesOf<Element> / 4] |= bits << i * kElementBytesOf<Element> % 4 * 8;
  }
  return words;
}

// Loads the vectors of which `place(k, &from)` says that and where they are; zeros for the others.
// All are asked for before any is used.
template <typename Element, uint32_t kWidth, uint32_t kCount, typename Place>
__device__ void LoadVectors(const CodecPlaces<Element>& at, Place place,
                            ElementsOf<Element, kWidth> (&held)[kCount]) {
  const typename Element::Bits* from = nullptr;
  if (at.is_aligned) {
    TERRACE_CODEC_UNROLL
    for (uint32_t k = 0; k < kCount; ++k) {
      held[k] = {};
      if (place(k, &from)) held[k] = Load<kWidth * kElementBytesOf<Element>>(from);
    }
  } else {
    TERRACE_CODEC_UNROLL
    for (uint32_t k = 0; k < kCount; ++k) {
      held[k] = {};
      if (place(k, &from)) held[k] = LoadByElements<Element, kWidth>(from);
    }
  }
}

// The largest of some words' magnitudes.
template <typename Element, uint32_t kCount>
__device__ uint32_t LargestMagnitude(const uint32_t (&words)[kCount]) {
  uint32_t magnitudes = 0;
  for (const uint32_t word : words) {
    magnitudes = LargerMagnitudes<Element>(magnitudes, MagnitudesOf<Element>(word));
  }
  if constexpr (kElementBytesOf<Element> == 4) return magnitudes;
  return max(magnitudes & 0xFFFF, magnitudes >> 16);
}

template <typename Element>
__device__ uint16_t ScaleOfMagnitude(uint32_t magnitude, float code_max) {
  using Bits = typename Element::Bits;
  return ScaleOf(WidenElement(Element{}, static_cast<Bits>(magnitude)), code_max);
}

// int8 values, and fp8: 2^work.lane_bits lanes of a warp take a row of a token
// and head.
template <typename Element, uint32_t kWidth, bool kIsFp8>
__device__ void EncodeRowsOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  using Bits = typename Element::Bits;
  const uint32_t lane = threadIdx.x & ((1u << work.lane_bits) - 1);
  const uint32_t row_count = work.tokens * work.heads;
  const uint32_t row_wanted = (blockIdx.x * kThreads + threadIdx.x) >> work.lane_bits;
  const uint32_t row = min(row_wanted, row_count - 1);  // lanes stay for the shuffles
  const uint32_t token = work.heads_of_token.Divide(row);
  const Bits* values =
      at.engine + token * work.token_stride + (row - token * work.heads) * work.head_dim;
  const uint32_t vector_count = work.vectors_per_head.divisor();
  const uint32_t tile_vectors = kHeldOfRow << work.lane_bits;
  ElementsOf<Element, kWidth> held[kHeldOfRow];
  const auto load = [&](uint32_t first) {
    const auto place = [&](uint32_t k, const Bits** from) {
      const uint32_t vector = first + (k << work.lane_bits) + lane;
      *from = values + vector * kWidth;
      return vector < vector_count;
    };
    LoadVectors<Element, kWidth>(at, place, held);
  };
  uint32_t magnitudes[1] = {};
  for (uint32_t first = 0; first < vector_count; first += tile_vectors) {
    load(first);
    TERRACE_CODEC_UNROLL
    for (uint32_t k = 0; k < kHeldOfRow; ++k) {
      for (const uint32_t word : held[k].at) {
        magnitudes[0] = LargerMagnitudes<Element>(magnitudes[0], MagnitudesOf<Element>(word));
      }
    }
  }
  uint32_t magnitude_max = LargestMagnitude<Element>(magnitudes);
  for (uint32_t distance = (1u << work.lane_bits) / 2; distance > 0; distance /= 2) {
    magnitude_max = max(magnitude_max, __shfl_xor_sync(kAllLanes, magnitude_max, distance));
  }
  if (row_wanted >= row_count) return;
  RefuseIf<Element>(work, magnitude_max);
  const uint16_t scale =
      ScaleOfMagnitude<Element>(magnitude_max, kIsFp8 ? kFp8CodeMax : kInt8CodeMax);
  if (lane == 0) reinterpret_cast<uint16_t*>(at.slot)[row] = scale;
  float reciprocals[kWidth];
  for (float& reciprocal : reciprocals) reciprocal = ReciprocalOf(scale);
  for (uint32_t first = 0; first < vector_count; first += tile_vectors) {
    if (vector_count > tile_vectors) load(first);
    TERRACE_CODEC_UNROLL
    for (uint32_t k = 0; k < kHeldOfRow; ++k) {
      const uint32_t vector = first + (k << work.lane_bits) + lane;
      if (vector >= vector_count) continue;
      float numbers[kWidth];
      WidenAll<Element, kWidth>(held[k], numbers);
      Store<kWidth>(at.codes + row * work.head_dim + vector * kWidth,
                    EncodeBytes<kIsFp8>(numbers, reciprocals));
    }
  }
}

// Where a thread stands whose warp takes 2^work.lane_bits vectors of
// neighbouring channels, of every token in turn: the other lanes have the same
// channels of the tokens between.
template <uint32_t kWidth>
struct Column {
  uint32_t channel;
  bool is_within;  // lanes that are not stay for the shuffles, and read what is
                   // there
  uint32_t channel_lane, token_lane, token_lanes;

  __device__ explicit Column(const CodecWork& work) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t warp = (blockIdx.x * kThreads + threadIdx.x) / kWarpThreads;
    channel_lane = lane & ((1u << work.lane_bits) - 1);
    const uint32_t vector = (warp << work.lane_bits) + channel_lane;
    is_within = vector < work.vectors_per_row.divisor();
    channel = min(vector, work.vectors_per_row.divisor() - 1) * kWidth;
    token_lane = lane >> work.lane_bits;
    token_lanes = kWarpThreads >> work.lane_bits;
  }
};

// Lanes that have all of a group's extremes share out what is computed of them: lane n of them
// takes words[n % kCount]. By masks, because what is indexed leaves the registers.
template <uint32_t kCount>
__device__ uint32_t WordOf(const uint32_t (&words)[kCount], uint32_t n) {
  uint32_t word = 0;
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) word |= words[i] & (n % kCount == i ? 0xFFFFFFFF : 0);
  return word;
}

// As WordOf, of what `reduce(a, b)` makes of the words of all lanes of a column: of two lanes, each
// gives the other those that it does not take, so that few are shuffled.
template <uint32_t kCount, typename Reduce>
__device__ uint32_t ReducedWordOf(const uint32_t (&words)[kCount], uint32_t lane_bits,
                                  uint32_t token_lane, Reduce reduce) {
  if constexpr (kCount > 1) {
    const bool takes_odd = token_lane % 2 != 0;
    uint32_t taken[kCount / 2];
    TERRACE_CODEC_UNROLL
    for (uint32_t i = 0; i < kCount / 2; ++i) {
      const uint32_t given = takes_odd ? words[2 * i] : words[2 * i + 1];
      const uint32_t kept = takes_odd ? words[2 * i + 1] : words[2 * i];
      taken[i] = reduce(kept, __shfl_xor_sync(kAllLanes, given, 1u << lane_bits));
    }
    return ReducedWordOf<kCount / 2>(taken, lane_bits + 1, token_lane / 2, reduce);
  } else {
    uint32_t word = words[0];
    for (uint32_t distance = 1u << lane_bits; distance < kWarpThreads; distance *= 2) {
      word = reduce(word, __shfl_xor_sync(kAllLanes, word, distance));
    }
    return word;
  }
}

// What a thread holds of a column, from `first` on; the last token again where
// there is no more.
template <typename Element, uint32_t kWidth, uint32_t kHeld>
__device__ void LoadColumn(const CodecWork& work, const CodecPlaces<Element>& at,
                           const Column<kWidth>& column, uint32_t first,
                           ElementsOf<Element, kWidth> (&held)[kHeld]) {
  const auto place = [&](uint32_t k, const typename Element::Bits** from) {
    const uint32_t row = first + k * column.token_lanes;
    const uint32_t token = min(row + column.token_lane, work.tokens - 1);
    *from = at.engine + token * work.token_stride + column.channel;
    return row < work.tokens;
  };
  LoadVectors<Element, kWidth>(at, place, held);
}

template <typename Element, uint32_t kWidth, uint32_t kHeld>
__device__ void EncodeInt8KeysOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  using Bits = typename Element::Bits;
  const Column<kWidth> column(work);
  const uint32_t tile_tokens = kHeld * column.token_lanes;
  ElementsOf<Element, kWidth> held[kHeld];
  ElementsOf<Element, kWidth> magnitudes = {};
  for (uint32_t first = 0; first < work.tokens; first += tile_tokens) {
    LoadColumn<Element, kWidth, kHeld>(work, at, column, first, held);
    TERRACE_CODEC_UNROLL
    for (uint32_t k = 0; k < kHeld; ++k) {
      TERRACE_CODEC_UNROLL
      for (uint32_t i = 0; i < magnitudes.kCount; ++i) {
        magnitudes.at[i] =
            LargerMagnitudes<Element>(magnitudes.at[i], MagnitudesOf<Element>(held[k].at[i]));
      }
    }
  }
  constexpr uint32_t kEach = kWidth / magnitudes.kCount;
  const uint32_t own[] = {
      ReducedWordOf(magnitudes.at, work.lane_bits, column.token_lane,
                    [](uint32_t a, uint32_t b) { return LargerMagnitudes<Element>(a, b); })};
  Words<2 * kEach> own_scales = {};
  float own_reciprocals[kEach], reciprocals[kWidth];
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint16_t scale =
        ScaleOfMagnitude<Element>(static_cast<Bits>(own[0] >> i * 16), kInt8CodeMax);
    own_scales.at[0] |= uint32_t{scale} << i * 16;
    own_reciprocals[i] = ReciprocalOf(scale);
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    const uint32_t lane = (i / kEach << work.lane_bits) + column.channel_lane;
    reciprocals[i] = __shfl_sync(kAllLanes, own_reciprocals[i % kEach], lane);
  }
  if (!column.is_within) return;
  if (column.token_lane < magnitudes.kCount) {
    RefuseIf<Element>(work, LargestMagnitude<Element>(own));
    Store(at.slot + 2 * (column.channel + column.token_lane * kEach), own_scales);
  }
  for (uint32_t first = 0; first < work.tokens; first += tile_tokens) {
    if (work.tokens > tile_tokens) {
      LoadColumn<Element, kWidth, kHeld>(work, at, column, first, held);
    }
    TERRACE_CODEC_UNROLL
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t token = first + k * column.token_lanes + column.token_lane;
      if (token >= work.tokens) continue;
      float numbers[kWidth];
      WidenAll<Element, kWidth>(held[k], numbers);
      Store<kWidth>(at.codes + token * work.channel_count + column.channel,
                    EncodeBytes<false>(numbers, reciprocals));
    }
  }
}

// --- int4
// ---------------------------------------------------------------------------------------------

// A group's {minimum, step} of its smallest and largest number; and what its
// codes are made with.
template <typename Element>
__device__ uint32_t GroupOf(typename Element::Bits smallest, typename Element::Bits largest,
                            float* half_minimum, float* reciprocal) {
  const uint16_t below = Bf16Below(WidenElement(Element{}, smallest));
  const uint16_t step = StepOf(below, WidenElement(Element{}, largest));
  *half_minimum = Bf16::Widen(below) * 0.5f;
  *reciprocal = HalfStepReciprocalOf(step);
  return below | uint32_t{step} << 16;
}

// Keys: as a column of the tokens of one group (blockIdx.z), which a warp holds
// whole.
template <typename Element, uint32_t kWidth, uint32_t kHeld>
__device__ void EncodeInt4KeysOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  using Bits = typename Element::Bits;
  static_assert(kHeldOfColumnMax * kWarpThreads / kColumnLanes == kInt4GroupElements);
  const Column<kWidth> column(work);
  const uint32_t first = blockIdx.z * kInt4GroupElements;
  ElementsOf<Element, kWidth> held[kHeld];
  LoadColumn<Element, kWidth, kHeld>(work, at, column, first, held);
  auto smallest = held[0];
  auto largest = held[0];
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 1; k < kHeld; ++k) {
    if (first + k * column.token_lanes >= work.tokens) continue;
    TERRACE_CODEC_UNROLL
    for (uint32_t i = 0; i < smallest.kCount; ++i) {
      smallest.at[i] = Extremes<Element, Extreme::kMinimum>(smallest.at[i], held[k].at[i]);
      largest.at[i] = Extremes<Element, Extreme::kMaximum>(largest.at[i], held[k].at[i]);
    }
  }
  constexpr uint32_t kEach = kWidth / smallest.kCount;
  const auto extreme = [&]<Extreme kExtreme>(const auto& words) {
    return ReducedWordOf(words.at, kColumnLaneBits, column.token_lane,
                         [](uint32_t a, uint32_t b) { return Extremes<Element, kExtreme>(a, b); });
  };
  const uint32_t own[] = {extreme.template operator()<Extreme::kMinimum>(smallest),
                          extreme.template operator()<Extreme::kMaximum>(largest)};
  Words<4 * kEach> own_groups;
  uint32_t own_minima = 0;
  float own_half_minimum, own_reciprocals[kEach], half_minima[kWidth], reciprocals[kWidth];
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kEach; ++i) {
    own_groups.at[i] =
        GroupOf<Element>(static_cast<Bits>(own[0] >> i * 16), static_cast<Bits>(own[1] >> i * 16),
                         &own_half_minimum, &own_reciprocals[i]);
    own_minima |= (own_groups.at[i] & 0xFFFF) << i * 16;
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; i += kEach) {
    const uint32_t lane = i / kEach * kColumnLanes + column.channel_lane;
    const uint32_t minima = __shfl_sync(kAllLanes, own_minima, lane);
    TERRACE_CODEC_UNROLL
    for (uint32_t each = 0; each < kEach; ++each) {
      half_minima[i + each] = Bf16::Widen(static_cast<uint16_t>(minima >> each * 16)) * 0.5f;
      reciprocals[i + each] = __shfl_sync(kAllLanes, own_reciprocals[each], lane);
    }
  }
  if (!column.is_within) return;
  if (column.token_lane < smallest.kCount) {
    RefuseIf<Element>(work, LargestMagnitude<Element>(own));
    const uint32_t channel = column.channel + column.token_lane * kEach;
    Store(at.slot + 4 * (blockIdx.z * work.channel_count + channel), own_groups);
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kHeld; ++k) {
    const uint32_t token = first + k * column.token_lanes + column.token_lane;
    if (token >= work.tokens) continue;
    float numbers[kWidth];
    WidenAll<Element, kWidth>(held[k], numbers);
    Store<kWidth / 2>(at.codes + (token * work.channel_count + column.channel) / 2,
                      EncodeNibbles(numbers, half_minima, reciprocals));
  }
}

// The smallest and the largest number of a group that lanes next to each other
// share, in both halves of a word.
template <typename Element, uint32_t kGroupLanes, uint32_t kCount>
__device__ void ExtremesOfGroup(const uint32_t (&words)[kCount], uint32_t* smallest,
                                uint32_t* largest) {
  constexpr auto kMinimum = Extreme::kMinimum;
  constexpr auto kMaximum = Extreme::kMaximum;
  uint32_t low = words[0];
  uint32_t high = words[0];
  for (const uint32_t word : words) {
    low = Extremes<Element, kMinimum>(low, word);
    high = Extremes<Element, kMaximum>(high, word);
  }
  if constexpr (kElementBytesOf<Element> == 2) {
    low = Extremes<Element, kMinimum>(low, low >> 16 | low << 16);
    high = Extremes<Element, kMaximum>(high, high >> 16 | high << 16);
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t distance = kGroupLanes / 2; distance > 0; distance /= 2) {
    low = Extremes<Element, kMinimum>(low, __shfl_xor_sync(kAllLanes, low, distance));
    high = Extremes<Element, kMaximum>(high, __shfl_xor_sync(kAllLanes, high, distance));
  }
  *smallest = low;
  *largest = high;
}

// Values: a thread takes a vector of a group of neighbouring rows each; the
// lanes of a group are neighbours. A head's last group may be short of lanes:
// those that are left read its first vector.
template <typename Element, uint32_t kWidth>
__device__ void EncodeInt4ValuesOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  using Bits = typename Element::Bits;
  constexpr uint32_t kGroupLanes = kInt4GroupElements / kWidth;
  static_assert(kRowsOfThread <= kGroupLanes);
  const uint32_t row_count = work.tokens * work.heads;
  const uint32_t n = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row_first = work.vectors_per_head.Divide(n) * kRowsOfThread;
  const uint32_t vector = n - row_first / kRowsOfThread * work.vectors_per_head.divisor();
  const bool is_within = vector * kWidth < work.head_dim;
  const uint32_t i = (is_within ? vector : vector / kGroupLanes * kGroupLanes) * kWidth;
  ElementsOf<Element, kWidth> held[kRowsOfThread];
  const auto place = [&](uint32_t k, const Bits** from) {
    const uint32_t row = min(row_first + k, row_count - 1);
    const uint32_t token = work.heads_of_token.Divide(row);
    *from = at.engine + token * work.token_stride + (row - token * work.heads) * work.head_dim + i;
    return true;
  };
  LoadVectors<Element, kWidth>(at, place, held);
  uint32_t smallest[kRowsOfThread], largest[kRowsOfThread];
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kRowsOfThread; ++k) {
    ExtremesOfGroup<Element, kGroupLanes>(held[k].at, &smallest[k], &largest[k]);
  }
  const uint32_t group_lane = vector % kGroupLanes;
  const uint32_t own[] = {WordOf(smallest, group_lane), WordOf(largest, group_lane)};
  float own_half_minimum, own_reciprocal;
  const uint32_t own_group = GroupOf<Element>(static_cast<Bits>(own[0]), static_cast<Bits>(own[1]),
                                              &own_half_minimum, &own_reciprocal);
  if (group_lane < kRowsOfThread && row_first + group_lane < row_count) {
    RefuseIf<Element>(work, LargestMagnitude<Element>(own));
    const uint32_t groups_per_row = work.vectors_per_head.divisor() / kGroupLanes;
    const uint32_t group = (row_first + group_lane) * groups_per_row + vector / kGroupLanes;
    StoreOne(at.slot + 4 * group, own_group);
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kRowsOfThread; ++k) {
    const uint32_t lane = threadIdx.x % kWarpThreads - group_lane + k;
    const float half_minimum = __shfl_sync(kAllLanes, own_half_minimum, lane);
    const float reciprocal = __shfl_sync(kAllLanes, own_reciprocal, lane);
    const uint32_t row = row_first + k;
    if (!is_within || row >= row_count) continue;
    float numbers[kWidth], half_minima[kWidth], reciprocals[kWidth];
    WidenAll<Element, kWidth>(held[k], numbers);
    for (float& each : half_minima) each = half_minimum;
    for (float& each : reciprocals) each = reciprocal;
    Store<kWidth / 2>(at.codes + (row * work.head_dim + i) / 2,
                      EncodeNibbles(numbers, half_minima, reciprocals));
  }
}

// --- raw
// ----------------------------------------------------------------------------------------------

template <typename Element, uint32_t kWidth>
__device__ void CopyOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  const uint32_t n = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t first = work.vectors_per_row.Divide(n) * kTokensOfCopy;
  const uint32_t channel = (n - first / kTokensOfCopy * work.vectors_per_row.divisor()) * kWidth;
  ElementsOf<Element, kWidth> held[kTokensOfCopy];
  const auto place = [&](uint32_t k, const typename Element::Bits** from) {
    const uint32_t token = first + k;
    *from = at.engine + token * work.token_stride + channel;
    return token < work.tokens;
  };
  LoadVectors<Element, kWidth>(at, place, held);
  auto* slot = reinterpret_cast<typename Element::Bits*>(at.slot);
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kTokensOfCopy; ++k) {
    const uint32_t token = first + k;
    if (token >= work.tokens) continue;
    Store(slot + token * work.channel_count + channel, held[k]);
  }
}

// --- kernels and launches
// -----------------------------------------------------------------------------

template <CodecKind kKind, typename Element, uint32_t kWidth, uint32_t kHeld>
__device__ void EncodeOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  if constexpr (kKind == CodecKind::kRaw) {
    CopyOf<Element, kWidth>(work, at);
  } else if constexpr (kKind == CodecKind::kInt8Keys) {
    EncodeInt8KeysOf<Element, kWidth, kHeld>(work, at);
  } else if constexpr (kKind == CodecKind::kInt4Keys) {
    EncodeInt4KeysOf<Element, kWidth, kHeld>(work, at);
  } else if constexpr (kKind == CodecKind::kInt4Values) {
    EncodeInt4ValuesOf<Element, kWidth>(work, at);
  } else {
    EncodeRowsOf<Element, kWidth, kKind == CodecKind::kFp8>(work, at);
  }
}

// kHeld: of a column's kernels, how many vectors a thread holds. Where it holds few, as many blocks
// are at once as with registers to spare they would not be: a tenth faster on an H200.
template <CodecKind kKind, typename Element, uint32_t kWidth, uint32_t kHeld>
__global__ void __launch_bounds__(kThreads, kHeld < kHeldOfColumnMax ? kBlocksOfFewHeld : 1)
    Encode(const __grid_constant__ CodecWork work) {
  const auto at = PlacesOf<Element, kWidth>(work, work.pieces[blockIdx.y]);
  if constexpr (kKind != CodecKind::kRaw) ZeroPadding(work, at.slot);
  EncodeOf<kKind, Element, kWidth, kHeld>(work, at);
}

// Of the powers of two from 4 to a warp's lanes, the first that is not below `wanted`, or the last.
uint32_t LaneBitsFor(uint32_t wanted) {
  uint32_t lane_bits = 2;
  while (1u << lane_bits < wanted && 1u << lane_bits < kWarpThreads) ++lane_bits;
  return lane_bits;
}

template <CodecKind kKind, typename Element, uint32_t kWidth>
cudaError_t LaunchKind(CodecWork work, uint32_t piece_count, cudaStream_t stream) {
  const uint32_t vectors_per_head = work.head_dim / kWidth;
  const uint32_t row_count = work.tokens * work.heads;
  work.heads_of_token = FastDivider(work.heads);
  work.vectors_per_head = FastDivider(vectors_per_head);
  work.vectors_per_row = FastDivider(work.channel_count / kWidth);
  dim3 grid(1, piece_count);
  if (kKind == CodecKind::kRaw) {
    const uint64_t copies = BlocksFor(work.tokens, kTokensOfCopy);
    grid.x = BlocksFor(copies * work.vectors_per_row.divisor(), kThreads);
  } else if (kKind == CodecKind::kInt8Keys || kKind == CodecKind::kInt4Keys) {
    // Of more tokens than lanes hold at that width, fewer neighbours, and so
    // more tokens, at once.
    work.lane_bits = kColumnLaneBits;
    while (kKind == CodecKind::kInt8Keys && work.lane_bits > 1 &&
           work.tokens > (kHeldOfColumnMax * kWarpThreads) >> work.lane_bits) {
      --work.lane_bits;
    }
    grid.x = BlocksFor(work.vectors_per_row.divisor(), kWarps << work.lane_bits);
    if (kKind == CodecKind::kInt4Keys) grid.z = BlocksFor(work.tokens, kInt4GroupElements);
  } else if (kKind == CodecKind::kInt4Values) {
    constexpr uint32_t kGroupLanes = kInt4GroupElements / kWidth;
    const uint32_t padded = BlocksFor(vectors_per_head, kGroupLanes) * kGroupLanes;
    work.vectors_per_head = FastDivider(padded);
    grid.x = BlocksFor(uint64_t{BlocksFor(row_count, kRowsOfThread)} * padded, kThreads);
  } else {
    work.lane_bits = LaneBitsFor(BlocksFor(vectors_per_head, kHeldOfRow));
    grid.x = BlocksFor(uint64_t{row_count} << work.lane_bits, kThreads);
  }
  if constexpr (kKind == CodecKind::kInt8Keys || kKind == CodecKind::kInt4Keys) {
    constexpr uint32_t kHeld = kHeldOfColumnMax / 2;
    if (work.tokens <= (kHeld * kWarpThreads) >> work.lane_bits) {
      return LaunchKernel(Encode<kKind, Element, kWidth, kHeld>, grid, kThreads, stream, work);
    }
  }
  return LaunchKernel(Encode<kKind, Element, kWidth, kHeldOfColumnMax>, grid, kThreads, stream,
                      work);
}

template <typename Element, uint32_t kWidth>
cudaError_t LaunchWidth(CodecKind kind, const CodecWork& work, uint32_t piece_count,
                        cudaStream_t stream) {
  if constexpr (kWidth > 2) {
    if (work.head_dim % kWidth != 0) {
      return LaunchWidth<Element, kWidth / 2>(kind, work, piece_count, stream);
    }
  }
  switch (kind) {
    case CodecKind::kRaw:
      return LaunchKind<CodecKind::kRaw, Element, kWidth>(work, piece_count, stream);
    case CodecKind::kInt8Keys:
      return LaunchKind<CodecKind::kInt8Keys, Element, kWidth>(work, piece_count, stream);
    case CodecKind::kInt8Values:
      return LaunchKind<CodecKind::kInt8Values, Element, kWidth>(work, piece_count, stream);
    case CodecKind::kFp8:
      return LaunchKind<CodecKind::kFp8, Element, kWidth>(work, piece_count, stream);
    case CodecKind::kInt4Keys:
      return LaunchKind<CodecKind::kInt4Keys, Element, kWidth>(work, piece_count, stream);
    case CodecKind::kInt4Values:
      break;
  }
  return LaunchKind<CodecKind::kInt4Values, Element, kWidth>(work, piece_count, stream);
}

}  // namespace

cudaError_t LaunchEncode(CodecKind kind, ElementType element, CodecWork work, uint32_t piece_count,
                         cudaStream_t stream) {
  switch (element) {
    case ElementType::kBf16:
      return LaunchWidth<Bf16, 8>(kind, work, piece_count, stream);
    case ElementType::kFp16:
      return LaunchWidth<Fp16, 8>(kind, work, piece_count, stream);
    case ElementType::kFp32:
      break;
  }
  return LaunchWidth<Fp32, 4>(kind, work, piece_count, stream);
}

}  // namespace terrace::cuda
