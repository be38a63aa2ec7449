#include "tiny_llama/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace terrace::tiny_llama {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> Draws(uint64_t seed, uint64_t tensor, size_t count) {
  std::vector<float> draws(count);
  FillUniform(draws, seed, tensor, 1.0f);
  return draws;
}

// Golden vectors, computed with Python's unbounded integers from the definition.
TEST(Weights, DrawsEqualTheDefinitionOnEveryMachine) {
  EXPECT_THAT(Draws(1, 0, 6), ElementsAre(-1128353, -1247686, 665529, 5322582, -5567499, -5939980));
  EXPECT_THAT(Draws(1, 1, 3), ElementsAre(-7570525, 5160234, 5935049));
  EXPECT_THAT(Draws(2, 0, 3), ElementsAre(3045880, -7312570, -7372012));
  EXPECT_THAT(Draws(UINT64_MAX, 7, 3), ElementsAre(-310800, 6768867, -324611));
}

TEST(Weights, MatricesKeepUnitVarianceUnit) {
  const Shape shape = Shape::Small();
  const Weights weights = GenerateWeights(shape, 3);
  const FloatBuffer& gate_up = weights.layers[1].gate_up;
  double squares = 0;
  for (float weight : gate_up.span()) squares += double{weight} * weight;
  // Each row of d_model draws has variance 1 / d_model an element: its squares sum to about 1.
  EXPECT_NEAR(squares / (2.0 * shape.ffn_width), 1.0, 0.02);
}

TEST(Weights, EveryTensorHasDrawsOfItsOwn) {
  const Weights weights = GenerateWeights(Shape::Small(), 3);
  EXPECT_NE(weights.layers[0].down.data()[0], weights.layers[1].down.data()[0]);
  EXPECT_NE(weights.layers[0].attention_norm.data()[0], weights.layers[0].ffn_norm.data()[0]);
}

TEST(Shape, DefaultPageIsOneMebibyte) {
  EXPECT_EQ(Shape{}.page_bytes(), uint64_t{1} << 20);
  EXPECT_EQ(Shape::Small().page_bytes(), uint64_t{16} << 10);
}

TEST(Shape, PlanesFollowTheLayoutWithoutGaps) {
  const Shape shape = Shape::Small();
  uint64_t next = 0;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t head = 0; head < shape.kv_heads; ++head, next += shape.plane_floats()) {
      EXPECT_EQ(shape.KeyPlane(layer, head), next);
    }
    for (uint32_t head = 0; head < shape.kv_heads; ++head, next += shape.plane_floats()) {
      EXPECT_EQ(shape.ValuePlane(layer, head), next);
    }
  }
  EXPECT_EQ(next * sizeof(float), shape.page_bytes());
}

TEST(Shape, RefusalNamesFieldValueAndRemedy) {
  std::string why;
  EXPECT_TRUE(Shape{}.Validate(&why).ok());
  EXPECT_TRUE(Shape::Small().Validate(&why).ok());
  EXPECT_EQ((Shape{.layers = 0}.Validate(&why).code()), StatusCode::kInvalid);
  EXPECT_EQ(why, "layers is 0: choose 1 to 128");
  EXPECT_FALSE((Shape{.kv_heads = 3}.Validate(&why).ok()));
  EXPECT_THAT(why, HasSubstr("query_heads is 8: choose a multiple of kv_heads, 3"));
  EXPECT_FALSE((Shape{.head_size = 63}.Validate(&why).ok()));
  EXPECT_FALSE((Shape{.block_tokens = 48}.Validate(&why).ok()));
  EXPECT_THAT(why, HasSubstr("context_tokens_max is 16384"));
  EXPECT_FALSE((Shape{.rope_theta = std::nan("")}.Validate(&why).ok()));
}

TEST(Shape, TextTellsShapesApart) {
  EXPECT_NE(Shape{}.CanonicalText(), Shape::Small().CanonicalText());
  EXPECT_NE(Shape{}.CanonicalText(), (Shape{.rope_theta = 10000.5}.CanonicalText()));
}

}  // namespace
}  // namespace terrace::tiny_llama
