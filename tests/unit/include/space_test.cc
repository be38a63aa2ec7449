#include "terrace/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "terrace/arena_layout.h"
#include "unit/include/example_space.h"

namespace terrace {
namespace {

using testing::HasSubstr;

struct Change {
  const char* field;
  std::function<void(SpaceSpec&)> apply;
};

// One change for every field, in canonical order.
const std::vector<Change>& OneChangePerField() {
  static const std::vector<Change> changes = {
      {"model", [](SpaceSpec& s) { s.model += "x"; }},
      {"revision", [](SpaceSpec& s) { s.revision = "R1"; }},
      {"adapter", [](SpaceSpec& s) { s.adapter = "lora@1"; }},
      {"dtype", [](SpaceSpec& s) { s.dtype = "fp16"; }},
      {"quantisation", [](SpaceSpec& s) { s.quantisation = "fp8-e4m3"; }},
      {"layers", [](SpaceSpec& s) { ++s.layers; }},
      {"kv_heads", [](SpaceSpec& s) { ++s.kv_heads; }},
      {"head_size", [](SpaceSpec& s) { ++s.head_size; }},
      {"attention", [](SpaceSpec& s) { s.attention = AttentionKind::kMha; }},
      {"window_tokens", [](SpaceSpec& s) { ++s.window_tokens; }},
      {"layout", [](SpaceSpec& s) { s.layout = "hnd"; }},
      {"block_tokens", [](SpaceSpec& s) { ++s.block_tokens; }},
      {"tp_rank", [](SpaceSpec& s) { ++s.tp_rank; }},
      {"tp_size", [](SpaceSpec& s) { ++s.tp_size; }},
      {"pp_rank", [](SpaceSpec& s) { ++s.pp_rank; }},
      {"pp_size", [](SpaceSpec& s) { ++s.pp_size; }},
      {"cp_rank", [](SpaceSpec& s) { ++s.cp_rank; }},
      {"cp_size", [](SpaceSpec& s) { ++s.cp_size; }},
      {"attention_group", [](SpaceSpec& s) { ++s.attention_group; }},
      {"salt", [](SpaceSpec& s) { s.salt = "tenant"; }},
      {"part_bytes", [](SpaceSpec& s) { ++s.part_bytes.back(); }},
  };
  return changes;
}

TEST(Space, EveryMemberIsAFieldOfTheCanonicalText) {
  // Does not compile when SpaceSpec has other members than the list of changes knows of.
  const SpaceSpec spec;
  const auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
               m20, m21] = spec;
  EXPECT_EQ(&m21, &spec.part_bytes);
  EXPECT_EQ(OneChangePerField().size(), 21u);
}

TEST(Space, ChangingOneFieldChangesTheIdAndIsTheDifference) {
  const SpaceSpec spec = ExampleSpace(0);
  for (const Change& change : OneChangePerField()) {
    SpaceSpec other = spec;
    change.apply(other);
    EXPECT_NE(other, spec) << change.field;
    EXPECT_NE(other.Id(), spec.Id()) << change.field;
    EXPECT_EQ(CountDifferences(spec, other), 1u) << change.field;
    const SpaceDifference difference = FirstDifference(spec, other);
    EXPECT_EQ(difference.field, change.field);
    const std::string prefix = std::string(change.field) + "=";
    EXPECT_THAT(spec.CanonicalText(), HasSubstr(prefix + difference.left + "\n"));
    EXPECT_THAT(other.CanonicalText(), HasSubstr(prefix + difference.right + "\n"));
  }
}

TEST(Space, FirstOfTwoDifferencesIsNamedAndBothAreCounted) {
  const auto& changes = OneChangePerField();
  for (size_t first = 0; first < changes.size(); ++first) {
    for (size_t second = first + 1; second < changes.size(); ++second) {
      SpaceSpec other = ExampleSpace(0);
      changes[second].apply(other);
      changes[first].apply(other);
      EXPECT_EQ(FirstDifference(ExampleSpace(0), other).field, changes[first].field);
      EXPECT_EQ(CountDifferences(ExampleSpace(0), other), 2u);
    }
  }
}

TEST(Space, EqualSpecsHaveNoDifference) {
  EXPECT_EQ(FirstDifference(ExampleSpace(1), ExampleSpace(1)).field, "");
  EXPECT_EQ(CountDifferences(ExampleSpace(1), ExampleSpace(1)), 0u);
}

TEST(Space, PartsStartAtMultiplesOfTheAlignment) {
  SpaceSpec spec = ExampleSpace(0);
  spec.part_bytes = {1, 4096, 4097, 10};
  EXPECT_EQ(spec.part_offset_bytes(0), 0u);
  EXPECT_EQ(spec.part_offset_bytes(1), 4096u);
  EXPECT_EQ(spec.part_offset_bytes(2), 8192u);
  EXPECT_EQ(spec.part_offset_bytes(3), 16384u);
  EXPECT_EQ(spec.slot_bytes(), 20480u);
}

TEST(Space, WindowBlocksCoverTheWindow) {
  SpaceSpec spec = ExampleSpace(0);
  EXPECT_EQ(spec.window_blocks(), 0u);
  for (const auto& [window_tokens, blocks] : std::vector<std::pair<uint32_t, uint32_t>>{
           {1, 1}, {16, 1}, {17, 2}, {4096, 256}, {0xFFFFFFFF, 0x10000000}}) {
    spec.window_tokens = window_tokens;
    EXPECT_EQ(spec.window_blocks(), blocks) << window_tokens;
  }
}

TEST(Space, ExampleIsValid) {
  std::string why;
  EXPECT_TRUE(ExampleSpace(0).Validate(&why).ok()) << why;
  for (const AttentionKind kind :
       {AttentionKind::kSliding, AttentionKind::kState, AttentionKind::kChunked}) {
    SpaceSpec windowed = ExampleSpace(0);
    windowed.attention = kind;
    windowed.window_tokens = 1024;
    EXPECT_TRUE(windowed.Validate(&why).ok()) << why;
  }
}

TEST(Space, LargestAllowedValuesAreValid) {
  SpaceSpec spec = ExampleSpace(0);
  spec.model.assign(kSpaceStringBytesMax, 'm');
  spec.block_tokens = kBlockTokensMax;
  spec.tp_size = 0xFFFFFFFF;
  spec.tp_rank = 0xFFFFFFFE;
  spec.attention_group = kGroupMembersMax - 1;
  spec.part_bytes.assign(kPartsPerSpaceMax, kSegmentBytesMax / kPartsPerSpaceMax);
  std::string why;
  EXPECT_TRUE(spec.Validate(&why).ok()) << why;
}

struct Refusal {
  std::function<void(SpaceSpec&)> apply;
  const char* reason;
};

TEST(Space, RefusalsNameFieldValueAndLimit) {
  const std::vector<Refusal> refusals = {
      {[](SpaceSpec& s) { s.model.clear(); }, "field 'model' has 0 bytes; it must have 1 to 512"},
      {[](SpaceSpec& s) { s.revision.clear(); }, "field 'revision' has 0 bytes"},
      {[](SpaceSpec& s) { s.dtype.clear(); }, "field 'dtype' has 0 bytes"},
      {[](SpaceSpec& s) { s.layout.clear(); }, "field 'layout' has 0 bytes"},
      {[](SpaceSpec& s) { s.salt.assign(513, 's'); }, "field 'salt' has 513 bytes"},
      {[](SpaceSpec& s) { s.layers = 0; }, "field 'layers' is 0; it must be 1 to"},
      {[](SpaceSpec& s) { s.kv_heads = 0; }, "field 'kv_heads' is 0"},
      {[](SpaceSpec& s) { s.head_size = 0; }, "field 'head_size' is 0"},
      {[](SpaceSpec& s) { s.block_tokens = 0; }, "field 'block_tokens' is 0"},
      {[](SpaceSpec& s) { s.block_tokens = 65537; }, "field 'block_tokens' is 65537; it must be 1"},
      {[](SpaceSpec& s) { s.attention = AttentionKind{9}; }, "field 'attention' is kind 9"},
      {[](SpaceSpec& s) { s.window_tokens = 5; }, "field 'window_tokens' is 5 but 'attention' is"},
      {[](SpaceSpec& s) { s.attention = AttentionKind::kState; }, "field 'window_tokens' is 0 but"},
      {[](SpaceSpec& s) { s.tp_rank = 2; }, "field 'tp_rank' is 2 but 'tp_size' is 2"},
      {[](SpaceSpec& s) { s.pp_rank = 1; }, "field 'pp_rank' is 1 but 'pp_size' is 1"},
      {[](SpaceSpec& s) { s.cp_rank = 7; }, "field 'cp_rank' is 7 but 'cp_size' is 1"},
      {[](SpaceSpec& s) { s.cp_size = 0; }, "field 'cp_size' is 0"},
      {[](SpaceSpec& s) { s.attention_group = 64; }, "field 'attention_group' is 64"},
      {[](SpaceSpec& s) { s.part_bytes.clear(); }, "field 'part_bytes' has 0 parts"},
      {[](SpaceSpec& s) { s.part_bytes.assign(129, 4096); }, "field 'part_bytes' has 129 parts"},
      {[](SpaceSpec& s) { s.part_bytes[3] = 0; }, "field 'part_bytes' has 0 bytes in part 3"},
      {[](SpaceSpec& s) { s.part_bytes[1] = UINT64_MAX; }, "18446744073709551615 bytes in part 1"},
      {[](SpaceSpec& s) {
         s.part_bytes = {kSegmentBytesMax, 1};
       },
       "slots of 268439552 bytes"},
      {[](SpaceSpec& s) { s.salt = s.model = s.adapter = std::string(512, '%'); },
       "the canonical text has 4"},
  };
  for (const Refusal& refusal : refusals) {
    SpaceSpec spec = ExampleSpace(0);
    refusal.apply(spec);
    std::string why;
    EXPECT_EQ(spec.Validate(&why).code(), StatusCode::kInvalid) << refusal.reason;
    EXPECT_THAT(why, HasSubstr(refusal.reason));
    EXPECT_THAT(why, HasSubstr(": ")) << "a remedy";
  }
}

}  // namespace
}  // namespace terrace
