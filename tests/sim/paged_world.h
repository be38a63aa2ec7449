// Engine caches of every kind of layout, filled with bytes that differ everywhere, and the naive
// copy that all others are compared with: one head vector at a time, by the layout's definition
// alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/abi/paged_layout.h"

namespace terrace {

struct CacheShape {
  uint32_t layer_count = 3;
  uint32_t plane_count = 2;
  uint32_t page_tokens = 16;
  uint32_t head_count = 2;
  uint64_t head_bytes = 32;
  uint64_t page_count = 5;
};

// The names of all kinds, for MakeCache.
inline std::vector<std::string> CacheKinds() {
  return {"nhd_packed",  "nhd_planes_outer", "hnd_packed",   "hnd_planes_outer",
          "kv_by_token", "kv_side_by_side",  "mla",          "split_tensors",
          "slab_pages",  "slab_layers",      "small_blocks", "small_blocks_hnd",
          "padded_pages"};
}

// A cache that owns its memory.
struct TestCache {
  std::vector<std::byte> memory;
  PagedLayout layout;
};

inline PagedLayout DenseLayout(const CacheShape& shape) {
  PagedLayout layout;
  layout.layer_count = shape.layer_count;
  layout.plane_count = shape.plane_count;
  layout.page_tokens = layout.block_tokens = shape.page_tokens;
  layout.page_count = shape.page_count;
  layout.head_count = shape.head_count;
  layout.head_bytes = shape.head_bytes;
  return layout;
}

// Strides of [plane][token][head] or [plane][head][token] in a block, and what a block takes.
inline void SetInner(PagedLayout* layout, bool heads_outer) {
  const uint64_t heads = layout->head_count;
  const uint64_t vector_bytes = layout->head_bytes;
  layout->token_stride_bytes = heads_outer ? vector_bytes : vector_bytes * heads;
  layout->head_stride_bytes = heads_outer ? vector_bytes * layout->block_tokens : vector_bytes;
  layout->plane_stride_bytes = vector_bytes * heads * layout->block_tokens;
  layout->block_stride_bytes = layout->plane_stride_bytes * layout->plane_count;
}

inline TestCache MakeCache(const std::string& kind, CacheShape shape, uint32_t seed = 1) {
  const auto has = [&](const char* word) { return kind.find(word) != std::string::npos; };
  if (kind == "mla") shape.plane_count = shape.head_count = 1;
  if (kind == "kv_side_by_side")
    shape = {shape.layer_count, 1, shape.page_tokens, shape.head_count, 2 * shape.head_bytes,
             shape.page_count};
  PagedLayout layout = DenseLayout(shape);
  if (has("small_blocks")) layout.block_tokens = shape.page_tokens / 4;
  SetInner(&layout, has("hnd"));
  const uint64_t block_count = layout.page_count * layout.blocks_per_page();
  if (has("planes_outer") || kind == "split_tensors") {
    layout.block_stride_bytes = layout.plane_stride_bytes;
    layout.plane_stride_bytes = layout.block_stride_bytes * block_count;
  }
  if (kind == "kv_by_token") {
    layout.plane_stride_bytes = layout.token_stride_bytes;
    layout.token_stride_bytes *= 2;
  }
  if (kind == "padded_pages") layout.block_stride_bytes += 48;
  uint64_t layer_stride_bytes = block_count * layout.layer_bytes() / layout.blocks_per_page();
  layer_stride_bytes += block_count * 48;
  if (kind == "slab_pages") {  // [page][layer][plane]…
    layer_stride_bytes = layout.block_stride_bytes;
    layout.block_stride_bytes *= layout.layer_count;
  }
  TestCache cache;
  const bool is_split = kind == "split_tensors";
  constexpr uint64_t kGapBytes = 112;  // between tensors of their own
  cache.memory.resize(
      shape.layer_count *
      (block_count * (layout.layer_bytes() / layout.blocks_per_page() + 48) + 2 * kGapBytes));
  uint64_t address = reinterpret_cast<uint64_t>(cache.memory.data());
  for (uint32_t layer = 0; layer < shape.layer_count; ++layer) {
    for (uint32_t plane = 0; plane < (is_split ? shape.plane_count : 1); ++plane) {
      layout.bases.push_back(address);
      address += is_split ? layout.plane_stride_bytes + kGapBytes : layer_stride_bytes;
    }
    if (!has("slab") && !is_split) address += kGapBytes;
  }
  if (is_split) layout.plane_stride_bytes = 0;
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= cache.memory.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(cache.memory.data() + i, &word, 8);
  }
  cache.layout = layout;
  return cache;
}

inline std::byte* VectorInPage(const PagedLayout& layout, uint32_t layer, uint32_t plane,
                               uint64_t page, uint32_t token, uint32_t head) {
  const uint64_t block = page * layout.blocks_per_page() + token / layout.block_tokens;
  const bool is_split = layout.has_split_planes();
  const uint64_t base = is_split ? layout.bases[layer * layout.plane_count + plane]
                                 : layout.bases[layer] + plane * layout.plane_stride_bytes;
  return reinterpret_cast<std::byte*>(base + block * layout.block_stride_bytes +
                                      token % layout.block_tokens * layout.token_stride_bytes +
                                      head * layout.head_stride_bytes);
}

// Calls visit(in page, offset of it in the slot's layer) for every head vector of a page's layer,
// in NHD or HND order; the engine's own order is whatever order its addresses have.
template <typename Visit>
void VisitVectors(const PagedLayout& layout, SlotOrder order, uint32_t layer, uint64_t page,
                  Visit&& visit) {
  std::vector<std::byte*> vectors;
  for (uint32_t plane = 0; plane < layout.plane_count; ++plane) {
    const size_t plane_first = vectors.size();
    if (order == SlotOrder::kHnd) {
      for (uint32_t head = 0; head < layout.head_count; ++head) {
        for (uint32_t token = 0; token < layout.page_tokens; ++token) {
          vectors.push_back(VectorInPage(layout, layer, plane, page, token, head));
        }
      }
    } else {
      for (uint32_t token = 0; token < layout.page_tokens; ++token) {
        for (uint32_t head = 0; head < layout.head_count; ++head) {
          vectors.push_back(VectorInPage(layout, layer, plane, page, token, head));
        }
      }
    }
    if (order == SlotOrder::kAsEngine && layout.has_split_planes()) {
      std::sort(vectors.begin() + static_cast<std::ptrdiff_t>(plane_first), vectors.end());
    }
  }
  if (order == SlotOrder::kAsEngine && !layout.has_split_planes()) {
    std::sort(vectors.begin(), vectors.end());
  }
  for (size_t i = 0; i < vectors.size(); ++i) visit(vectors[i], i * layout.head_bytes);
}

inline void NaiveGather(const PagedLayout& layout, const PagedNest& nest, SlotOrder order,
                        uint64_t page, std::byte* slot) {
  for (uint32_t layer = 0; layer < layout.layer_count; ++layer) {
    VisitVectors(layout, order, layer, page, [&](std::byte* vector, uint64_t offset) {
      std::memcpy(slot + nest.layer_offset_bytes[layer] + offset, vector, layout.head_bytes);
    });
  }
}

inline void NaiveScatter(const PagedLayout& layout, const PagedNest& nest, SlotOrder order,
                         uint64_t page, const std::byte* slot) {
  for (uint32_t layer = 0; layer < layout.layer_count; ++layer) {
    VisitVectors(layout, order, layer, page, [&](std::byte* vector, uint64_t offset) {
      std::memcpy(vector, slot + nest.layer_offset_bytes[layer] + offset, layout.head_bytes);
    });
  }
}

}  // namespace terrace
