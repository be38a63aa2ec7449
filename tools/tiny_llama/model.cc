#include "tiny_llama/model.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "terrace/check.h"

namespace terrace::tiny_llama {
namespace {

constexpr float kRmsEpsilon = 1e-5f;
constexpr uint8_t kPaddingToken = 0;

// Partial sums of a row, in an order that is written down: the compiler may not reorder float
// additions, so this is what lets it use vector registers.
constexpr size_t kLanes = 16;
using Lanes = std::array<float, kLanes>;

float SumOf(const Lanes& lanes) {
  float sum = 0.0f;
  for (float lane : lanes) sum += lane;
  return sum;
}

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

// y = x Wᵀ for dense rows. W is [out][in].
void Project(uint32_t rows, uint32_t out, uint32_t in, const FloatBuffer& weights,
             const FloatBuffer& x, FloatBuffer& y, Product::Into into = Product::Into::kOverwrite) {
  Multiply({.rows = rows,
            .columns = out,
            .inner = in,
            .a = x.data(),
            .a_stride = in,
            .b = weights.data(),
            .b_stride = in,
            .to = y.data(),
            .to_stride = out,
            .into = into});
}

// RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x²) + ε) · w, row by row.
void Normalize(uint32_t rows, const FloatBuffer& weights, const FloatBuffer& x, FloatBuffer& y) {
  const size_t width = weights.count();
  for (uint32_t row = 0; row < rows; ++row) {
    const float* from = x.data() + row * width;
    float* to = y.data() + row * width;
    Lanes squares{};
    for (size_t i = 0; i < width; ++i) squares[i % kLanes] += from[i] * from[i];
    const float mean = SumOf(squares) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + kRmsEpsilon);
    for (size_t i = 0; i < width; ++i) to[i] = from[i] * scale * weights.data()[i];
  }
}

// Softmax over the first `visible` scores of a row; the rest, which the row may not see, become 0.
void MaskedSoftmax(float* scores, uint32_t visible, uint32_t columns) {
  const float largest = *std::max_element(scores, scores + visible);
  Lanes sums{};
  for (uint32_t i = 0; i < visible; ++i) {
    scores[i] = std::exp(scores[i] - largest);
    sums[i % kLanes] += scores[i];
  }
  const float scale = 1.0f / SumOf(sums);
  for (uint32_t i = 0; i < visible; ++i) scores[i] *= scale;
  std::fill(scores + visible, scores + columns, 0.0f);
}

}  // namespace

TinyLlama::TinyLlama(const Shape& shape, uint64_t seed) : shape_(shape), seed_(seed) {
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
  scores_ = FloatBuffer(rows * shape.queries_per_kv_head() * shape.context_tokens_max);
  attended_ = FloatBuffer(rows * shape.query_width());
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

void TinyLlama::Attend(PagedKv& kv, const LayerWeights& layer, uint32_t layer_index,
                       const Pass& pass) {
  const uint32_t rows = pass.row_count;
  Normalize(rows, layer.attention_norm, residual_, normed_);
  Project(rows, shape_.query_width() + 2 * shape_.kv_width(), shape_.d_model, layer.query_key_value,
          normed_, projected_);
  SplitHeads(kv.Page(pass.page_index), layer_index, pass);
  for (uint32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
    AttendHead(kv, layer_index, kv_head, pass);
  }
  for (uint32_t head = 0; head < shape_.query_heads; ++head) {
    for (uint32_t row = 0; row < rows; ++row) {
      std::copy_n(attended_.data() + (uint64_t{head} * rows + row) * shape_.head_size,
                  shape_.head_size,
                  merged_.data() + uint64_t{row} * shape_.query_width() + head * shape_.head_size);
    }
  }
  Project(rows, shape_.d_model, shape_.query_width(), layer.attention_output, merged_, residual_,
          Product::Into::kAdd);
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

// All query heads that share `kv_head`, as one tall matrix, against one page after another. Only
// the last page may be partly filled (while decoding), and no row beyond the filled ones is read.
void TinyLlama::AttendHead(PagedKv& kv, uint32_t layer_index, uint32_t kv_head, const Pass& pass) {
  const uint32_t head_size = shape_.head_size;
  const uint32_t queries = shape_.queries_per_kv_head() * pass.row_count;
  const uint32_t columns = pass.start + pass.row_count;
  const uint64_t first = uint64_t{kv_head} * queries * head_size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_size));

  for (uint32_t page = 0; page <= pass.page_index; ++page) {
    const uint32_t page_start = page * shape_.block_tokens;
    Multiply({.rows = queries,
              .columns = std::min(shape_.block_tokens, columns - page_start),
              .inner = head_size,
              .a = queries_.data() + first,
              .a_stride = head_size,
              .b = kv.Page(page).data() + shape_.KeyPlane(layer_index, kv_head),
              .b_stride = head_size,
              .to = scores_.data() + page_start,
              .to_stride = columns,
              .alpha = scale});
  }
  for (uint32_t query = 0; query < queries; ++query) {
    const uint32_t visible = pass.start + query % pass.row_count + 1;
    MaskedSoftmax(scores_.data() + uint64_t{query} * columns, visible, columns);
  }
  for (uint32_t page = 0; page <= pass.page_index; ++page) {
    const uint32_t page_start = page * shape_.block_tokens;
    Multiply({.rows = queries,
              .columns = head_size,
              .inner = std::min(shape_.block_tokens, columns - page_start),
              .a = scores_.data() + page_start,
              .a_stride = columns,
              .b = kv.Page(page).data() + shape_.ValuePlane(layer_index, kv_head),
              .b_stride = head_size,
              .to = attended_.data() + first,
              .to_stride = head_size,
              .right = Product::Right::kPlain,
              .into = page == 0 ? Product::Into::kOverwrite : Product::Into::kAdd});
  }
}

// SwiGLU (Shazeer 2020): down(silu(gate) · up), silu(x) = x / (1 + e^−x).
void TinyLlama::FeedForward(const LayerWeights& layer, const Pass& pass) {
  const uint32_t rows = pass.row_count;
  const uint32_t width = shape_.ffn_width;
  Normalize(rows, layer.ffn_norm, residual_, normed_);
  Project(rows, 2 * width, shape_.d_model, layer.gate_up, normed_, gate_up_);
  for (uint32_t row = 0; row < rows; ++row) {
    const float* gate = gate_up_.data() + uint64_t{row} * 2 * width;
    const float* up = gate + width;
    float* to = gated_.data() + uint64_t{row} * width;
    for (uint32_t i = 0; i < width; ++i) to[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
  Project(rows, shape_.d_model, width, layer.down, gated_, residual_, Product::Into::kAdd);
}

void TinyLlama::Head(uint32_t row_count) {
  Normalize(row_count, weights_.final_norm, residual_, normed_);
  Project(row_count, kVocabulary, shape_.d_model, weights_.head, normed_, row_logits_);
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
