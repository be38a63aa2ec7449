#include "tiny_llama/model.h"

#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "terrace/check.h"

namespace terrace::tiny_llama {
namespace {

constexpr float kRmsEpsilon = 1e-5f;
constexpr uint8_t kPaddingToken = 0;
constexpr uint32_t kPanelColumns = 256;  // of a projection: what one thread multiplies at a time
constexpr uint32_t kGatedColumns = 352;  // of the feed-forward's inner width, likewise

// One matrix product of BLAS. `to` [rows][columns] += or = alpha · a [rows][inner] · b, where b is
// [columns][inner] (kTransposed: weights, keys) or [inner][columns] (values).
struct Product {
  enum class Right { kTransposed, kPlain };
  enum class Into { kOverwrite, kAdd };

  uint32_t rows, columns, inner;
  const float* a;
  uint32_t a_stride;
  const float* b;
  uint32_t b_stride;
  float* to;
  uint32_t to_stride;
  Right right = Right::kTransposed;
  Into into = Into::kOverwrite;
  float alpha = 1.0f;
};

void Multiply(const Product& p) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans,
              p.right == Product::Right::kTransposed ? CblasTrans : CblasNoTrans,
              static_cast<int>(p.rows), static_cast<int>(p.columns), static_cast<int>(p.inner),
              p.alpha, p.a, static_cast<int>(p.a_stride), p.b, static_cast<int>(p.b_stride),
              p.into == Product::Into::kAdd ? 1.0f : 0.0f, p.to, static_cast<int>(p.to_stride));
}

// RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x²) + ε) · w, row by row.
void Normalize(uint32_t rows, const FloatBuffer& weights, const FloatBuffer& x, FloatBuffer& y) {
  const size_t width = weights.count();
  for (uint32_t row = 0; row < rows; ++row) {
    const std::span<const float> from = x.span().subspan(row * width, width);
    float* to = y.data() + row * width;
    const float mean = SumOfSquares(from) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + kRmsEpsilon);
    for (size_t i = 0; i < width; ++i) to[i] = from[i] * scale * weights.data()[i];
  }
}

}  // namespace

void ChooseMatrixKernels(char** argv) {
#if defined(__x86_64__)
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
  ::setenv("OPENBLAS_CORETYPE", "Haswell", 1);
  ::execv("/proc/self/exe", argv);
#endif
  static_cast<void>(argv);  // no /proc: the BLAS's own choice has to do
}

// y = x Wᵀ for dense rows. W is [out][in].
struct TinyLlama::Projection {
  uint32_t out, in;
  const FloatBuffer& weights;
  const FloatBuffer& x;
  FloatBuffer& y;
  Product::Into into = Product::Into::kOverwrite;
};

TinyLlama::TinyLlama(const Shape& shape, uint64_t seed, uint32_t threads)
    : shape_(shape), seed_(seed), threads_(threads) {
  std::string why;
  TERRACE_CHECK(shape.Validate(&why).ok(), "the caller validates the shape");
  openblas_set_num_threads(1);
  weights_ = GenerateWeights(shape, seed);

  // RoPE (Su et al. 2021) in the half-split order: element i turns with element i + head_size / 2
  // by position · theta^(−2i / head_size).
  const uint32_t half = shape.head_size / 2;
  rope_cos_ = FloatBuffer(uint64_t{shape.context_tokens_max} * half);
  rope_sin_ = FloatBuffer(uint64_t{shape.context_tokens_max} * half);
  for (uint32_t i = 0; i < half; ++i) {
    const double turn = std::pow(shape.rope_theta, -2.0 * i / shape.head_size);
    for (uint32_t position = 0; position < shape.context_tokens_max; ++position) {
      rope_cos_.data()[uint64_t{position} * half + i] =
          static_cast<float>(std::cos(position * turn));
      rope_sin_.data()[uint64_t{position} * half + i] =
          static_cast<float>(std::sin(position * turn));
    }
  }

  const uint64_t rows = shape.block_tokens;
  residual_ = FloatBuffer(rows * shape.d_model);
  normed_ = FloatBuffer(rows * shape.d_model);
  projected_ = FloatBuffer(rows * (shape.query_width() + 2 * shape.kv_width()));
  queries_ = FloatBuffer(rows * shape.query_width());
  score_columns_ = static_cast<uint32_t>((shape.block_tokens + kLanes - 1) / kLanes * kLanes);
  scores_ = FloatBuffer(rows * shape.query_heads * score_columns_);
  attended_ = FloatBuffer(rows * shape.query_width());
  softmax_.resize(rows * shape.query_heads);
  merged_ = FloatBuffer(rows * shape.query_width());
  gate_up_ = FloatBuffer(rows * 2 * shape.ffn_width);
  gated_ = FloatBuffer(rows * shape.ffn_width);
  row_logits_ = FloatBuffer(rows * kVocabulary);
}

std::string TinyLlama::KernelName() { return openblas_get_corename(); }

PagedKv TinyLlama::NewKv() const {
  return PagedKv({.page_bytes = page_bytes(), .pages_max = shape_.blocks_max()});
}

void TinyLlama::PrefillBlock(PagedKv& kv, std::span<const uint8_t> tokens, uint32_t block_index,
                             std::vector<float>* logits) {
  TERRACE_CHECK(!tokens.empty() && tokens.size() <= shape_.block_tokens, "one block at a time");
  std::vector<uint8_t> block(tokens.begin(), tokens.end());
  block.resize(shape_.block_tokens, kPaddingToken);
  Forward(kv, block,
          {.start = block_index * shape_.block_tokens,
           .row_count = shape_.block_tokens,
           .page_index = block_index});
  if (logits == nullptr) return;
  Head(shape_.block_tokens);
  logits->assign(row_logits_.data(), row_logits_.data() + tokens.size() * kVocabulary);
}

void TinyLlama::Decode(PagedKv& kv, uint8_t token, uint32_t position, std::vector<float>* logits) {
  Forward(kv, {&token, 1},
          {.start = position, .row_count = 1, .page_index = position / shape_.block_tokens});
  Head(1);
  logits->assign(row_logits_.data(), row_logits_.data() + kVocabulary);
}

void TinyLlama::Forward(PagedKv& kv, std::span<const uint8_t> tokens, const Pass& pass) {
  TERRACE_CHECK(kv.page_bytes() == page_bytes(), "pages of another shape");
  TERRACE_CHECK(pass.page_index < shape_.blocks_max(), "a block beyond the context");
  for (uint32_t row = 0; row < pass.row_count; ++row) {
    std::copy_n(weights_.embedding.data() + uint64_t{tokens[row]} * shape_.d_model, shape_.d_model,
                residual_.data() + uint64_t{row} * shape_.d_model);
  }
  for (uint32_t layer_index = 0; layer_index < shape_.layers; ++layer_index) {
    const LayerWeights& layer = weights_.layers[layer_index];
    Attend(kv, layer, layer_index, pass);
    FeedForward(layer, pass);
  }
}

void TinyLlama::Project(uint32_t rows, const Projection& p) {
  threads_.ForEach((p.out + kPanelColumns - 1) / kPanelColumns, [&](uint32_t panel) {
    const uint32_t first = panel * kPanelColumns;
    Multiply({.rows = rows,
              .columns = std::min(kPanelColumns, p.out - first),
              .inner = p.in,
              .a = p.x.data(),
              .a_stride = p.in,
              .b = p.weights.data() + uint64_t{first} * p.in,
              .b_stride = p.in,
              .to = p.y.data() + first,
              .to_stride = p.out,
              .into = p.into});
  });
}

void TinyLlama::Attend(PagedKv& kv, const LayerWeights& layer, uint32_t layer_index,
                       const Pass& pass) {
  const uint32_t rows = pass.row_count;
  Normalize(rows, layer.attention_norm, residual_, normed_);
  Project(rows, {.out = shape_.query_width() + 2 * shape_.kv_width(),
                 .in = shape_.d_model,
                 .weights = layer.query_key_value,
                 .x = normed_,
                 .y = projected_});
  SplitHeads(kv.Page(pass.page_index), layer_index, pass);
  pages_.resize(pass.page_index + 1);
  for (uint32_t page = 0; page <= pass.page_index; ++page) pages_[page] = kv.Page(page).data();
  threads_.ForEach(shape_.kv_heads, [&](uint32_t kv_head) {
    AttendHead(layer_index, kv_head, pass);
    MergeHeads(kv_head, pass);
  });
  Project(rows, {.out = shape_.d_model,
                 .in = shape_.query_width(),
                 .weights = layer.attention_output,
                 .x = merged_,
                 .y = residual_,
                 .into = Product::Into::kAdd});
}

// Turns rows of projections into planes per head: queries into queries_, keys and values into the
// page, where they stay.
void TinyLlama::SplitHeads(std::span<float> page, uint32_t layer_index, const Pass& pass) {
  const uint32_t head_size = shape_.head_size;
  const uint32_t first_row_in_page = pass.start % shape_.block_tokens;
  for (uint32_t row = 0; row < pass.row_count; ++row) {
    const uint32_t position = pass.start + row;
    const float* query =
        projected_.data() + uint64_t{row} * (shape_.query_width() + 2 * shape_.kv_width());
    const float* key = query + shape_.query_width();
    const float* value = key + shape_.kv_width();
    for (uint32_t head = 0; head < shape_.query_heads; ++head) {
      RotateInto(queries_.data() + (uint64_t{head} * pass.row_count + row) * head_size,
                 query + head * head_size, position);
    }
    const uint64_t place = uint64_t{first_row_in_page + row} * head_size;
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
      RotateInto(page.data() + shape_.KeyPlane(layer_index, head) + place, key + head * head_size,
                 position);
      std::copy_n(value + head * head_size, head_size,
                  page.data() + shape_.ValuePlane(layer_index, head) + place);
    }
  }
}

// All query heads that share `kv_head`, as one tall matrix, against one page after another, each
// while its scores are in the cache (Dao et al. 2022). Only the last page may be partly filled
// (while decoding), and no row beyond the filled ones is read.
void TinyLlama::AttendHead(uint32_t layer_index, uint32_t kv_head, const Pass& pass) {
  const uint32_t head_size = shape_.head_size;
  const uint32_t queries = shape_.queries_per_kv_head() * pass.row_count;
  const uint32_t columns = pass.start + pass.row_count;
  const uint64_t first = uint64_t{kv_head} * queries;
  for (uint32_t query = 0; query < queries; ++query) softmax_[first + query].Begin();
  for (uint32_t page = 0; page <= pass.page_index; ++page) {
    const uint32_t filled = std::min(shape_.block_tokens, columns - page * shape_.block_tokens);
    Multiply({.rows = queries,
              .columns = filled,
              .inner = head_size,
              .a = queries_.data() + first * head_size,
              .a_stride = head_size,
              .b = pages_[page] + shape_.KeyPlane(layer_index, kv_head),
              .b_stride = head_size,
              .to = scores_.data() + first * score_columns_,
              .to_stride = score_columns_,
              .alpha = 1.0f / std::sqrt(static_cast<float>(head_size))});
    WeighPage(kv_head, page, pass);
    Multiply({.rows = queries,
              .columns = head_size,
              .inner = filled,
              .a = scores_.data() + first * score_columns_,
              .a_stride = score_columns_,
              .b = pages_[page] + shape_.ValuePlane(layer_index, kv_head),
              .b_stride = head_size,
              .to = attended_.data() + first * head_size,
              .to_stride = head_size,
              .right = Product::Right::kPlain,
              .into = page == 0 ? Product::Into::kOverwrite : Product::Into::kAdd});
  }
}

// Turns a page's scores into weights, and brings what earlier pages gave to the same scale.
void TinyLlama::WeighPage(uint32_t kv_head, uint32_t page, const Pass& pass) {
  const uint32_t queries = shape_.queries_per_kv_head() * pass.row_count;
  const uint32_t page_start = page * shape_.block_tokens;
  for (uint32_t query = 0; query < queries; ++query) {
    const uint64_t row = uint64_t{kv_head} * queries + query;
    const uint32_t seen = pass.start + query % pass.row_count + 1;  // positions, the row's own too
    const float shrink =
        softmax_[row].Weigh(scores_.span().subspan(row * score_columns_, score_columns_),
                            std::min(shape_.block_tokens, seen - page_start));
    if (shrink == 1.0f || page == 0) continue;
    float* attended = attended_.data() + row * shape_.head_size;
    for (uint32_t i = 0; i < shape_.head_size; ++i) attended[i] *= shrink;
  }
}

// From planes per head to rows of tokens; the softmax's division comes last.
void TinyLlama::MergeHeads(uint32_t kv_head, const Pass& pass) {
  const uint32_t queries = shape_.queries_per_kv_head() * pass.row_count;
  for (uint32_t query = 0; query < queries; ++query) {
    const uint64_t row = uint64_t{kv_head} * queries + query;
    const uint32_t head = static_cast<uint32_t>(row / pass.row_count);
    const float scale = 1.0f / softmax_[row].sum;
    const float* from = attended_.data() + row * shape_.head_size;
    float* to = merged_.data() + row % pass.row_count * shape_.query_width() +
                uint64_t{head} * shape_.head_size;
    for (uint32_t i = 0; i < shape_.head_size; ++i) to[i] = from[i] * scale;
  }
}

// SwiGLU (Shazeer 2020): down(silu(gate) · up), silu(x) = x / (1 + e^−x).
void TinyLlama::FeedForward(const LayerWeights& layer, const Pass& pass) {
  const uint32_t rows = pass.row_count;
  const uint32_t width = shape_.ffn_width;
  Normalize(rows, layer.ffn_norm, residual_, normed_);
  Project(rows, {.out = 2 * width,
                 .in = shape_.d_model,
                 .weights = layer.gate_up,
                 .x = normed_,
                 .y = gate_up_});
  threads_.ForEach((width + kGatedColumns - 1) / kGatedColumns, [&](uint32_t part) {
    const uint32_t first = part * kGatedColumns;
    const uint32_t count = std::min(kGatedColumns, width - first);
    for (uint32_t row = 0; row < rows; ++row) {
      const float* gate = gate_up_.data() + uint64_t{row} * 2 * width + first;
      SiluTimes({gate, count}, {gate + width, count},
                gated_.data() + uint64_t{row} * width + first);
    }
  });
  Project(rows, {.out = shape_.d_model,
                 .in = width,
                 .weights = layer.down,
                 .x = gated_,
                 .y = residual_,
                 .into = Product::Into::kAdd});
}

void TinyLlama::Head(uint32_t row_count) {
  Normalize(row_count, weights_.final_norm, residual_, normed_);
  Project(row_count, {.out = kVocabulary,
                      .in = shape_.d_model,
                      .weights = weights_.head,
                      .x = normed_,
                      .y = row_logits_});
}

void TinyLlama::RotateInto(float* to, const float* from, uint32_t position) const {
  const uint32_t half = shape_.head_size / 2;
  const float* cosine = rope_cos_.data() + uint64_t{position} * half;
  const float* sine = rope_sin_.data() + uint64_t{position} * half;
  for (uint32_t i = 0; i < half; ++i) {
    to[i] = from[i] * cosine[i] - from[half + i] * sine[i];
    to[half + i] = from[half + i] * cosine[i] + from[i] * sine[i];
  }
}

}  // namespace terrace::tiny_llama
