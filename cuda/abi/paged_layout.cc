#include "cuda/abi/paged_layout.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "terrace/space.h"
#include "terrace/units.h"

namespace terrace {
namespace {

Status Invalid(std::string* why, std::string text) {
  *why = std::move(text);
  return Status(StatusCode::kInvalid, "a paged layout was refused");
}

std::string Number(uint64_t value) { return std::to_string(value); }

struct NamedCount {
  const char* name;
  uint64_t value;
  uint64_t max;
};

struct NamedAxis {
  const char* name;
  uint64_t count;
  uint64_t stride_bytes;
};

// The innermost first.
std::vector<NamedAxis> AxesOf(const PagedLayout& layout) {
  std::vector<NamedAxis> axes = {
      {"block_stride_bytes", layout.page_count * layout.blocks_per_page(),
       layout.block_stride_bytes},
      {"token_stride_bytes", layout.block_tokens, layout.token_stride_bytes},
      {"head_stride_bytes", layout.head_count, layout.head_stride_bytes},
  };
  if (!layout.has_split_planes()) {
    axes.push_back({"plane_stride_bytes", layout.plane_count, layout.plane_stride_bytes});
  }
  std::erase_if(axes, [](const NamedAxis& axis) { return axis.count == 1; });
  std::ranges::sort(axes, {}, &NamedAxis::stride_bytes);
  return axes;
}

Status CheckCounts(const PagedLayout& layout, std::string* why) {
  constexpr uint64_t kCountMax = uint64_t{1} << 31;
  const NamedCount counts[] = {
      {"layer_count", layout.layer_count, kPagedRowsMax / 2},
      {"plane_count", layout.plane_count, 2},
      {"page_tokens", layout.page_tokens, kPageTokensMax},
      {"block_tokens", layout.block_tokens, kPageTokensMax},
      {"page_count", layout.page_count, kCountMax},
      {"head_count", layout.head_count, kPageTokensMax},
      {"head_bytes", layout.head_bytes, kMiB},
  };
  for (const NamedCount& count : counts) {
    if (count.value == 0 || count.value > count.max) {
      return Invalid(why, std::string(count.name) + " is " + Number(count.value) + ", not 1.." +
                              Number(count.max));
    }
  }
  if (layout.page_tokens % layout.block_tokens != 0) {
    return Invalid(why, "block_tokens is " + Number(layout.block_tokens) +
                            ", which does not divide "
                            "page_tokens, " +
                            Number(layout.page_tokens));
  }
  return Status::Ok();
}

Status CheckBases(const PagedLayout& layout, std::string* why) {
  const size_t whole = layout.layer_count;
  const size_t split = whole * layout.plane_count;
  if (layout.bases.size() != whole && layout.bases.size() != split) {
    return Invalid(why, "bases are " + Number(layout.bases.size()) +
                            " addresses: give one a layer (" + Number(whole) +
                            "), or one a plane of a layer (" + Number(split) + ")");
  }
  std::vector<uint64_t> sorted = layout.bases;
  std::ranges::sort(sorted);
  if (sorted.front() == 0) return Invalid(why, "bases hold the address 0");
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    return Invalid(why, "bases hold an address twice: layers that share memory are one layer");
  }
  return Status::Ok();
}

// No two indexes of a layer may name one byte: each stride steps over all that is inside of it.
// `*extent_bytes`: from a layer's first byte to behind its last one.
Status CheckStrides(std::span<const NamedAxis> axes, uint64_t* extent_bytes, std::string* why) {
  for (const NamedAxis& axis : axes) {
    if (axis.stride_bytes < *extent_bytes) {
      return Invalid(why, std::string(axis.name) + " is " + Number(axis.stride_bytes) +
                              ", less than the " + Number(*extent_bytes) +
                              " bytes it steps over: these strides overlap");
    }
    if (axis.stride_bytes > (std::numeric_limits<int64_t>::max() - *extent_bytes) / axis.count) {
      return Invalid(why, std::string(axis.name) + " is " + Number(axis.stride_bytes) +
                              ": with it the cache ends past 2^63");
    }
    *extent_bytes += (axis.count - 1) * axis.stride_bytes;
  }
  return Status::Ok();
}

// Whether two layers so far apart have a byte in common, and not just interleave as those of a slab
// [page][layer] do. Axes are as CheckStrides accepts them: a distance can be made of steps of the
// outermost stride and less than one more, before it or behind it, of what is inside.
bool ShareBytes(std::span<const NamedAxis> axes, uint64_t head_bytes, uint64_t distance_bytes) {
  if (axes.empty()) return distance_bytes < head_bytes;
  const NamedAxis& outer = axes.back();
  const std::span<const NamedAxis> inner = axes.first(axes.size() - 1);
  const uint64_t step_count = distance_bytes / outer.stride_bytes;
  const uint64_t rest_bytes = distance_bytes % outer.stride_bytes;
  return (step_count < outer.count && ShareBytes(inner, head_bytes, rest_bytes)) ||
         (step_count + 1 < outer.count &&
          ShareBytes(inner, head_bytes, outer.stride_bytes - rest_bytes));
}

Status CheckLayers(const PagedLayout& layout, std::span<const NamedAxis> axes,
                   uint64_t extent_bytes, std::string* why) {
  std::vector<uint64_t> bases = layout.bases;
  std::ranges::sort(bases);
  if (bases.back() - 1 > std::numeric_limits<uint64_t>::max() - extent_bytes) {
    return Invalid(why, "bases hold " + Number(bases.back()) + ": with the " +
                            Number(extent_bytes) + " bytes of a layer's pages it ends past 2^64");
  }
  for (size_t i = 0; i < bases.size(); ++i) {
    for (size_t j = i + 1; j < bases.size() && bases[j] - bases[i] < extent_bytes; ++j) {
      if (!ShareBytes(axes, layout.head_bytes, bases[j] - bases[i])) continue;
      return Invalid(why, "the distance between bases is " + Number(bases[j] - bases[i]) +
                              ", and the pages of a layer span " + Number(extent_bytes) +
                              " bytes: these layers overlap");
    }
  }
  return Status::Ok();
}

}  // namespace

Status PagedLayout::Validate(std::string* why) const {
  TERRACE_RETURN_IF_ERROR(CheckCounts(*this, why));
  TERRACE_RETURN_IF_ERROR(CheckBases(*this, why));
  const std::vector<NamedAxis> axes = AxesOf(*this);
  uint64_t extent_bytes = head_bytes;
  TERRACE_RETURN_IF_ERROR(CheckStrides(axes, &extent_bytes, why));
  return CheckLayers(*this, axes, extent_bytes, why);
}

namespace {

constexpr char kAxisLetters[] = "BPTHD";

// Which dimension each axis is, in the letters' order; -1: the tensor has none.
using Reading = std::array<int, 5>;

uint64_t SizeOfAxis(char letter, const CacheFacts& facts) {
  switch (letter) {
    case 'B':
      return facts.page_count * (facts.page_tokens / facts.block_tokens);
    case 'P':
      return facts.plane_count;
    case 'T':
      return facts.block_tokens;
    case 'H':
      return facts.head_count;
    default:
      return facts.head_size;
  }
}

class Readings {
 public:
  Readings(const TensorView& tensor, const CacheFacts& facts) : tensor_(tensor), facts_(facts) {
    Extend(0, Reading{-1, -1, -1, -1, -1}, 0);
  }
  const std::vector<Reading>& found() const { return found_; }

 private:
  // Dimensions before `dimension` have their letters.
  void Extend(size_t dimension, Reading reading, uint32_t used) {
    if (dimension == tensor_.shape.size()) return Keep(reading, used);
    for (size_t axis = 0; axis < reading.size(); ++axis) {
      if ((used & (1u << axis)) != 0) continue;
      if (tensor_.shape[dimension] != SizeOfAxis(kAxisLetters[axis], facts_)) continue;
      if (!tensor_.axes.empty() && tensor_.axes[dimension] != kAxisLetters[axis]) continue;
      Reading longer = reading;
      longer[axis] = static_cast<int>(dimension);
      Extend(dimension + 1, longer, used | (1u << axis));
    }
  }

  // An axis that no dimension is must be of size 1; two readings that differ only in dimensions of
  // size 1 are one.
  void Keep(const Reading& reading, uint32_t used) {
    for (size_t axis = 0; axis < reading.size(); ++axis) {
      if ((used & (1u << axis)) == 0 && SizeOfAxis(kAxisLetters[axis], facts_) != 1) return;
    }
    const bool is_known = std::ranges::any_of(found_, [&](const Reading& other) {
      for (size_t axis = 0; axis < reading.size(); ++axis) {
        if (SizeOfAxis(kAxisLetters[axis], facts_) != 1 && reading[axis] != other[axis]) {
          return false;
        }
      }
      return true;
    });
    if (!is_known) found_.push_back(reading);
  }

  const TensorView& tensor_;
  const CacheFacts& facts_;
  std::vector<Reading> found_;
};

std::string ShapeText(const TensorView& tensor) {
  std::string text = "[";
  for (const uint64_t size : tensor.shape) {
    text += (text.size() > 1 ? ", " : "") + Number(size);
  }
  return text + "]";
}

std::string ReadingText(const Reading& reading) {
  std::string letters(reading.size(), ' ');
  for (size_t axis = 0; axis < reading.size(); ++axis) {
    if (reading[axis] >= 0) letters[static_cast<size_t>(reading[axis])] = kAxisLetters[axis];
  }
  return letters.substr(0, letters.find(' '));
}

Status CheckTensor(const TensorView& tensor, const CacheFacts& facts, std::string* why) {
  if (facts.block_tokens == 0 || facts.page_tokens % facts.block_tokens != 0) {
    return Invalid(why, "block_tokens is " + Number(facts.block_tokens) +
                            ", which does not divide page_tokens, " + Number(facts.page_tokens));
  }
  if (facts.page_count == 0) return Invalid(why, "page_count is 0: a cache has pages");
  if (tensor.shape.empty() || tensor.shape.size() > 5 ||
      tensor.stride_bytes.size() != tensor.shape.size()) {
    return Invalid(why, "shape " + ShapeText(tensor) + ": 1..5 dimensions with a stride each");
  }
  if (!tensor.axes.empty() && tensor.axes.size() != tensor.shape.size()) {
    return Invalid(
        why, "axes is '" + tensor.axes + "': a letter for each dimension of " + ShapeText(tensor));
  }
  return Status::Ok();
}

}  // namespace

Result<PagedLayout> LayoutOfTensor(const TensorView& first, std::span<const uint64_t> bases,
                                   const CacheFacts& facts, std::string* why) {
  TERRACE_RETURN_IF_ERROR(CheckTensor(first, facts, why));
  const Readings readings(first, facts);
  const std::vector<Reading>& found = readings.found();
  if (found.empty()) {
    return Invalid(why, "axes '" + first.axes + "': a tensor of shape " + ShapeText(first) +
                            " holds no pages of " + Number(facts.page_tokens) + " tokens, " +
                            Number(facts.head_count) + " heads of " + Number(facts.head_size));
  }
  if (found.size() > 1) {
    return Invalid(why, "axes: the shape " + ShapeText(first) + " can be read as " +
                            ReadingText(found[0]) + " and as " + ReadingText(found[1]) +
                            ": name the axes");
  }
  const auto stride = [&](size_t axis) -> uint64_t {
    const int dimension = found[0][axis];
    return dimension < 0 ? 0 : first.stride_bytes[static_cast<size_t>(dimension)];
  };
  if (facts.head_size > 1 && stride(4) != first.item_bytes) {
    return Invalid(why, "stride_bytes of a head's elements is " + Number(stride(4)) + ", not " +
                            Number(first.item_bytes) + ": elements of a head must be contiguous");
  }
  PagedLayout layout;
  layout.layer_count = static_cast<uint32_t>(bases.size());
  layout.plane_count = facts.plane_count;
  layout.page_tokens = facts.page_tokens;
  layout.block_tokens = facts.block_tokens;
  layout.page_count = facts.page_count;
  layout.head_count = facts.head_count;
  layout.head_bytes = facts.head_size * first.item_bytes;
  layout.block_stride_bytes = stride(0);
  layout.plane_stride_bytes = stride(1);
  layout.token_stride_bytes = stride(2);
  layout.head_stride_bytes = stride(3);
  layout.bases.assign(bases.begin(), bases.end());
  TERRACE_RETURN_IF_ERROR(layout.Validate(why));
  return layout;
}

std::string_view SlotOrderName(SlotOrder order) {
  switch (order) {
    case SlotOrder::kNhd:
      return "nhd";
    case SlotOrder::kHnd:
      return "hnd";
    case SlotOrder::kAsEngine:
      break;
  }
  return "as_engine";
}

namespace {

// The loops of a page, outermost first, in the slot's order; slot strides are not set yet.
std::vector<PagedAxis> OrderedAxes(const PagedLayout& layout, SlotOrder order) {
  const PagedAxis plane{layout.has_split_planes() ? 1 : layout.plane_count,
                        layout.plane_stride_bytes};
  const PagedAxis block{layout.blocks_per_page(), layout.block_stride_bytes};
  const PagedAxis token{layout.block_tokens, layout.token_stride_bytes};
  const PagedAxis head{layout.head_count, layout.head_stride_bytes};
  std::vector<PagedAxis> axes = {plane, block, token, head};
  if (order == SlotOrder::kHnd) axes = {plane, head, block, token};
  std::erase_if(axes, [](const PagedAxis& axis) { return axis.count == 1; });
  if (order == SlotOrder::kAsEngine) {
    std::ranges::stable_sort(axes, std::ranges::greater{}, &PagedAxis::page_stride_bytes);
  }
  return axes;
}

// Joins loops and runs that are contiguous in the page; in the slot all are.
void MergeAxes(std::vector<PagedAxis>* axes, PagedNest* nest) {
  while (!axes->empty() && axes->back().page_stride_bytes == nest->run_bytes) {
    nest->run_bytes *= axes->back().count;
    axes->pop_back();
  }
  for (size_t outer = axes->size(); outer-- > 1;) {
    PagedAxis& to = (*axes)[outer - 1];
    const PagedAxis& from = (*axes)[outer];
    if (to.page_stride_bytes != from.page_stride_bytes * from.count) continue;
    to = {to.count * from.count, from.page_stride_bytes, from.slot_stride_bytes};
    axes->erase(axes->begin() + static_cast<std::ptrdiff_t>(outer));
  }
  nest->axis_count = static_cast<uint32_t>(axes->size());
  std::ranges::copy(*axes, nest->axes);
}

void PlaceRows(const PagedLayout& layout, const SlotShape& shape, PagedNest* nest) {
  nest->layer_bytes = layout.layer_bytes();
  nest->rows_per_layer = layout.has_split_planes() ? layout.plane_count : 1;
  const uint64_t row_bytes = nest->layer_bytes / nest->rows_per_layer;
  const uint64_t part_bytes =
      RoundUp(nest->layer_bytes * shape.layers_per_part, kPartAlignmentBytes);
  for (uint32_t layer = 0; layer < layout.layer_count; ++layer) {
    const uint64_t offset = layer / shape.layers_per_part * part_bytes +
                            layer % shape.layers_per_part * nest->layer_bytes;
    nest->layer_offset_bytes.push_back(offset);
    for (uint32_t row = 0; row < nest->rows_per_layer; ++row) {
      const uint64_t base = layout.bases[nest->rows.size()];
      nest->rows.push_back({base, offset + row * row_bytes});
      nest->rows_alignment_bits |= base | nest->rows.back().slot_offset_bytes;
    }
  }
  nest->slot_bytes =
      RoundUp(nest->layer_offset_bytes.back() + nest->layer_bytes, kPartAlignmentBytes);
  nest->layer_offset_bytes.push_back(nest->slot_bytes);
}

}  // namespace

uint64_t PagedNest::runs_per_page() const {
  uint64_t run_count = rows.size();
  for (uint32_t axis = 0; axis < axis_count; ++axis) run_count *= axes[axis].count;
  return run_count;
}

PagedLaunch PagedNest::Launch(uint32_t layer_first, uint32_t layer_count) const {
  PagedLaunch launch;
  launch.axis_count = axis_count;
  std::copy_n(axes, axis_count, launch.axes);
  launch.run_bytes = run_bytes;
  launch.page_stride_bytes = page_stride_bytes;
  launch.rows_alignment_bits = rows_alignment_bits;
  launch.row_first = layer_first * rows_per_layer;
  launch.row_count = layer_count * rows_per_layer;
  launch.slot_origin_bytes = layer_offset_bytes[layer_first];
  return launch;
}

Result<PagedNest> CompileNest(const PagedLayout& layout, const SlotShape& shape, std::string* why) {
  TERRACE_RETURN_IF_ERROR(layout.Validate(why));
  if (shape.layers_per_part == 0 || shape.layers_per_part > layout.layer_count) {
    return Invalid(why, "layers_per_part is " + Number(shape.layers_per_part) + ", not 1.." +
                            Number(layout.layer_count));
  }
  PagedNest nest;
  nest.run_bytes = layout.head_bytes;
  nest.page_stride_bytes = layout.block_stride_bytes * layout.blocks_per_page();
  nest.page_count = layout.page_count;
  std::vector<PagedAxis> axes = OrderedAxes(layout, shape.order);
  uint64_t inside_bytes = layout.head_bytes;
  for (size_t axis = axes.size(); axis-- > 0;) {
    axes[axis].slot_stride_bytes = inside_bytes;
    inside_bytes *= axes[axis].count;
  }
  MergeAxes(&axes, &nest);
  PlaceRows(layout, shape, &nest);
  return nest;
}

}  // namespace terrace
