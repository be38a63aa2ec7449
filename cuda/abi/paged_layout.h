// Where an engine keeps its pages, and how a page's bytes lie in a slot.
//
// An engine's KV cache is a few tensors; a page is a slice of each. PagedLayout says where with
// strides alone, so that any order of dimensions, any padding, and K and V together or apart are
// one case. CompileNest turns it into what copies want: rows (tensors) and a nest of few loops
// around the longest runs that are contiguous on both sides.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/abi/device.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kPagedRowsMax = 4096;
inline constexpr uint32_t kPageTokensMax = 65536;

// A vector of K or V, of one token and one head, is `head_bytes` contiguous bytes at
//   base + block × block_stride + plane × plane_stride + token × token_stride + head × head_stride
// where a page of the engine's manager is page_tokens / block_tokens blocks of its kernels in a
// row.
struct PagedLayout {
  uint32_t layer_count = 0;
  uint32_t plane_count = 0;   // 2: K and V; 1: MLA, or K and V of a head side by side in head_bytes
  uint32_t page_tokens = 0;   // of the manager's page: what a slot holds
  uint32_t block_tokens = 0;  // of the kernel's block; divides page_tokens
  uint64_t page_count = 0;
  uint32_t head_count = 0;
  uint64_t head_bytes = 0;
  uint64_t block_stride_bytes = 0;
  uint64_t plane_stride_bytes = 0;  // where a layer's planes are one tensor
  uint64_t token_stride_bytes = 0;
  uint64_t head_stride_bytes = 0;
  // Addresses of block 0: layer_count of them, or, where K and V are tensors of their own,
  // layer_count × plane_count, the planes of a layer side by side.
  std::vector<uint64_t> bases;

  bool has_split_planes() const { return plane_count > 1 && bases.size() > layer_count; }
  uint32_t blocks_per_page() const { return page_tokens / block_tokens; }
  uint64_t layer_bytes() const {  // of one page
    return uint64_t{plane_count} * page_tokens * head_count * head_bytes;
  }

  // kInvalid with `*why` naming field, value and remedy. What it accepts, no copy of which can
  // touch a byte of another page or read one twice.
  Status Validate(std::string* why) const;
};

// One layer's tensor as a framework shows it, and what the engine says of it otherwise.
struct TensorView {
  uint64_t address = 0;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> stride_bytes;
  uint64_t item_bytes = 0;
  // What each dimension is, a letter each: Block, Plane, Token, Head, Dim ("BPTHD"; MLA: "BTD").
  // Empty: found from the sizes, where these leave one reading only.
  std::string axes;
};

struct CacheFacts {
  uint64_t page_count = 0;
  uint32_t page_tokens = 0;
  uint32_t block_tokens = 0;  // of the kernel's blocks; mostly page_tokens
  uint32_t head_count = 0;
  uint32_t head_size = 0;  // elements of a head in one plane
  uint32_t plane_count = 2;
};

// The layout of layers that look like `first`, at these addresses. kInvalid with `*why` where the
// sizes can be read in more than one way (2 KV heads beside 2 planes): a guess would give every
// prompt's bytes a wrong order, so the engine must name `axes`.
Result<PagedLayout> LayoutOfTensor(const TensorView& first, std::span<const uint64_t> bases,
                                   const CacheFacts& facts, std::string* why);

enum class SlotOrder {
  kAsEngine,  // planes, blocks, tokens and heads in the engine's own order, the longest runs
  kNhd,       // plane, token, head
  kHnd,       // plane, head, token
};
std::string_view SlotOrderName(SlotOrder order);

struct SlotShape {
  SlotOrder order = SlotOrder::kAsEngine;
  uint32_t layers_per_part = 1;  // every part starts at a multiple of kPartAlignmentBytes
};

// A layout and a slot, ready to copy between.
struct PagedNest {
  std::vector<PagedRow> rows;  // rows_per_layer of each layer, in the layers' order
  uint64_t rows_alignment_bits = 0;
  uint32_t rows_per_layer = 1;
  uint32_t axis_count = 0;
  PagedAxis axes[kPagedAxesMax];
  uint64_t run_bytes = 0;
  uint64_t page_stride_bytes = 0;
  uint64_t page_count = 0;
  uint64_t slot_bytes = 0;
  uint64_t layer_bytes = 0;
  // Where each layer's bytes begin in a slot, and, last, the end of the slot.
  std::vector<uint64_t> layer_offset_bytes;

  uint32_t layer_count() const { return static_cast<uint32_t>(rows.size()) / rows_per_layer; }
  uint64_t runs_per_page() const;  // all layers
  // What a launch over these layers has besides direction, rows' address, pages and thread blocks.
  PagedLaunch Launch(uint32_t layer_first, uint32_t layer_count) const;
};

Result<PagedNest> CompileNest(const PagedLayout& layout, const SlotShape& shape, std::string* why);

}  // namespace terrace
