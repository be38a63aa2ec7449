// The canonical text of a Space: what it looks like, that it is read back exactly, and that nothing
// else is read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "terrace/space.h"
#include "unit/include/example_space.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr char kExampleText[] =
    "model=llama-3%3D70b/%C3%A9\n"
    "revision=r1\n"
    "adapter=\n"
    "dtype=bf16\n"
    "quantisation=\n"
    "layers=80\n"
    "kv_heads=4\n"
    "head_size=128\n"
    "attention=gqa\n"
    "window_tokens=0\n"
    "layout=nhd\n"
    "block_tokens=16\n"
    "tp_rank=0\n"
    "tp_size=2\n"
    "pp_rank=0\n"
    "pp_size=1\n"
    "cp_rank=0\n"
    "cp_size=1\n"
    "attention_group=0\n"
    "salt=\n"
    "part_bytes=7x327680,1x65536\n";

// kExampleText with `from` replaced by `to`.
std::string Edited(std::string_view from, std::string_view to) {
  std::string text = kExampleText;
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

std::string HostileString(std::mt19937_64& random) {
  static constexpr char kAlphabet[] = {'%', '=', '\n', '\0', '\r', ' ',    'a',
                                       '0', ',', 'x',  '\t', '~',  '\x7f', '\xff'};
  std::string text(random() % 24, '\0');
  for (char& c : text) {
    c = random() % 3 == 0 ? static_cast<char>(random()) : kAlphabet[random() % sizeof(kAlphabet)];
  }
  return text;
}

SpaceSpec RandomSpace(std::mt19937_64& random) {
  const auto number = [&random] { return static_cast<uint32_t>(random() >> random() % 64); };
  SpaceSpec spec;
  for (std::string* text : {&spec.model, &spec.revision, &spec.adapter, &spec.dtype,
                            &spec.quantisation, &spec.layout, &spec.salt}) {
    *text = HostileString(random);
  }
  for (uint32_t* value : {&spec.layers, &spec.kv_heads, &spec.head_size, &spec.window_tokens,
                          &spec.block_tokens, &spec.tp_rank, &spec.tp_size, &spec.pp_rank,
                          &spec.pp_size, &spec.cp_rank, &spec.cp_size, &spec.attention_group}) {
    *value = number();
  }
  spec.attention = static_cast<AttentionKind>(random() % 5);
  spec.part_bytes.resize(random() % (kPartsPerSpaceMax + 1));
  uint64_t part_bytes = 0;
  for (uint64_t& value : spec.part_bytes) {
    if (random() % 4 == 0) part_bytes = random() >> random() % 64;
    value = part_bytes;
  }
  return spec;
}

TEST(SpaceText, ExampleIsTheGoldenText) {
  EXPECT_EQ(ExampleSpace(0).CanonicalText(), kExampleText);
}

TEST(SpaceText, SpaceIdsAreTheGoldenVectors) {
  EXPECT_EQ(ToHex(ExampleSpace(0).Id()), "a850de5b9d8fe4d5374479af85ee1c1d");
  EXPECT_EQ(ToHex(ExampleSpace(1).Id()), "649b031264f5b70251a9c2eaa69eedf6");
}

TEST(SpaceText, WhatIsWrittenIsReadBack) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    const SpaceSpec spec = RandomSpace(random);
    const std::string text = spec.CanonicalText();
    ASSERT_LE(text.size(), kSpaceTextBytesMax);
    ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
    SpaceSpec read;
    std::string why;
    ASSERT_TRUE(SpaceSpec::Parse(text, &read, &why).ok()) << why << "\n" << text;
    ASSERT_EQ(read, spec) << text;
  }
}

struct Refusal {
  std::string text;
  const char* reason;
};

TEST(SpaceText, RefusalsNameTheFieldAndItsValue) {
  const std::vector<Refusal> refusals = {
      {"", "the text ends where field 'model' is due"},
      {"model", "no '=' or no end of line where field 'model' is due"},
      {"model=x", "no '=' or no end of line where field 'model' is due"},
      {Edited("revision=r1\n", ""), "field 'adapter' comes too early where field 'revision' is"},
      {Edited("revision=r1\n", "model=y\n"), "field 'model' comes again where field 'revision'"},
      {Edited("dtype=bf16\n", "Dtype=bf16\n"), "unknown field 'Dtype' where field 'dtype' is due"},
      {Edited("dtype=bf16\n", "dtype =bf16\n"), "unknown field 'dtype ' where field 'dtype'"},
      {Edited("salt=\n", "salt=\nsalt=\n"), "field 'salt' comes again where field 'part_bytes'"},
      {Edited("layers=80", "layers=080"), "field 'layers' is '080'; write a decimal number"},
      {Edited("layers=80", "layers=+80"), "field 'layers' is '+80'"},
      {Edited("layers=80", "layers=-1"), "field 'layers' is '-1'"},
      {Edited("layers=80", "layers= 80"), "field 'layers' is ' 80'"},
      {Edited("layers=80", "layers="), "field 'layers' is ''"},
      {Edited("layers=80", "layers=0x50"), "field 'layers' is '0x50'"},
      {Edited("layers=80", "layers=4294967296"), "is '4294967296'; write a decimal number up to"},
      {Edited("attention=gqa", "attention=GQA"), "field 'attention' is 'GQA'; write one of mha"},
      {Edited("revision=r1", "revision=r%41"), "field 'revision' is 'r%2541'; write bytes"},
      {Edited("revision=r1", "revision=r%c3"), "field 'revision' is 'r%25c3'"},
      {Edited("revision=r1", "revision=r%"), "field 'revision' is 'r%25'"},
      {Edited("revision=r1", "revision=r%4"), "field 'revision' is 'r%254'"},
      {Edited("revision=r1", "revision=r=1"), "field 'revision' is 'r%3D1'"},
      {Edited("revision=r1", "revision=r\xC3"), "field 'revision' is 'r%C3'"},
      {Edited("7x327680,1x65536", "6x327680,1x327680,1x65536"), "is '6x327680,1x327680,1x65536'"},
      {Edited("7x327680,1x65536", "7x327680,"), "field 'part_bytes' is '7x327680,'; write runs"},
      {Edited("7x327680,1x65536", ",7x327680"), "field 'part_bytes' is ',7x327680'"},
      {Edited("7x327680,1x65536", "0x5"), "field 'part_bytes' is '0x5'"},
      {Edited("7x327680,1x65536", "7"), "field 'part_bytes' is '7'"},
      {Edited("7x327680,1x65536", "7x"), "field 'part_bytes' is '7x'"},
      {Edited("7x327680,1x65536", "128x1,1x2"), "is '128x1,1x2'; write runs such as"},
      {Edited("7x327680,1x65536", "18446744073709551615x1"), "at most 128 parts in all"},
      {Edited("7x327680,1x65536", "1x18446744073709551616"), "is '1x18446744073709551616'"},
      {std::string(kExampleText) + "x", "after field 'part_bytes' comes 'x': nothing may follow"},
      {std::string(kExampleText) + "\n", "after field 'part_bytes' comes '%0A'"},
      {std::string(kExampleText) + std::string("\0", 1), "comes '%00'"},
      {std::string(kSpaceTextBytesMax + 1, 'm'), "has 4097 bytes; it may have 4096"},
  };
  for (const Refusal& refusal : refusals) {
    SpaceSpec spec = ExampleSpace(1);
    std::string why;
    EXPECT_EQ(SpaceSpec::Parse(refusal.text, &spec, &why).code(), StatusCode::kInvalid);
    EXPECT_THAT(why, HasSubstr(refusal.reason));
    EXPECT_EQ(spec, ExampleSpace(1)) << "a refused text leaves the spec alone";
  }
}

// One random edit: flip, insert, erase or duplicate bytes, or move a whole line.
void Mutate(std::string* text, std::mt19937_64& random) {
  const size_t at = text->empty() ? 0 : random() % text->size();
  switch (random() % 6) {
    case 0:
      if (!text->empty()) (*text)[at] = static_cast<char>((*text)[at] ^ (1u << random() % 8));
      break;
    case 1:
      text->insert(at, HostileString(random));
      break;
    case 2:
      text->erase(at, random() % 40);
      break;
    case 3:
      text->insert(at, text->substr(random() % (text->size() + 1), random() % 200));
      break;
    case 4:
      text->insert(at, std::to_string(random() >> random() % 64));
      break;
    default: {
      const size_t begin = text->rfind('\n', at) + 1;  // npos + 1 is the start of the text
      const std::string line = text->substr(begin, text->find('\n', begin) - begin + 1);
      text->erase(begin, line.size());
      text->insert(text->find('\n', random() % (text->size() + 1)) + 1, line);
    }
  }
}

// PROMISE: T29 texts of Spaces
TEST(SpaceText, MutatedTextIsRefusedWithAReasonOrIsCanonical) {
  constexpr uint64_t kSeed = 13;
  std::mt19937_64 random(kSeed);
  std::string valid;
  size_t accepted_count = 0;
  for (int round = 0; round < 100'000; ++round) {
    if (round % 100 == 0) valid = RandomSpace(random).CanonicalText();
    std::string text = valid;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) Mutate(&text, random);
    SpaceSpec spec;
    std::string why;
    if (SpaceSpec::Parse(text, &spec, &why).ok()) {
      ++accepted_count;
      ASSERT_EQ(spec.CanonicalText(), text) << "round " << round << ", seed " << kSeed;
      (void)spec.Validate(&why);
      (void)spec.slot_bytes();
    } else {
      ASSERT_FALSE(why.empty()) << "round " << round << ", seed " << kSeed;
      ASSERT_LT(why.size(), 600u) << why;
      ASSERT_TRUE(std::all_of(why.begin(), why.end(), [](char c) { return c >= 32 && c < 127; }))
          << why;
    }
  }
  // Both answers were exercised.
  EXPECT_GT(accepted_count, 1000u);
  EXPECT_LT(accepted_count, 99'000u);
}

}  // namespace
}  // namespace terrace
