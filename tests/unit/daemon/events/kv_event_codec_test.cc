// Messages byte for byte, as routers decode them.
#include "daemon/events/kv_event_codec.h"

#include <gtest/gtest.h>

#include <msgpack.hpp>
#include <sstream>

namespace terrace {
namespace {

constexpr double kNow = 2.5;
constexpr KvEventForm kArray32 = {
    .block_tokens = 32, .encoding = KvEventEncoding::kArray, .unix_s = kNow};

std::string Shown(const std::string& payload) {
  std::ostringstream text;
  text << msgpack::unpack(payload.data(), payload.size()).get();
  return text.str();
}

KvEvent Stored(uint64_t hash, uint64_t parent, KvEventMedium medium = KvEventMedium::kDram) {
  return {.hash = hash, .parent_hash = parent, .medium = medium};
}
KvEvent Removed(uint64_t hash, KvEventMedium medium = KvEventMedium::kDram) {
  return {.hash = hash, .kind = KvEvent::Kind::kRemoved, .medium = medium};
}

TEST(KvEventCodec, AMapNamesEveryField) {
  const std::vector<KvEvent> events = {Stored(15760518052499183552u, 0)};
  EXPECT_EQ(Shown(EncodeKvEvents(events, {.block_tokens = 16, .unix_s = kNow})),
            R"([2.5,[{"type":"BlockStored","block_hashes":[15760518052499183552],)"
            R"("parent_block_hash":null,"token_ids":[],"block_size":16,"lora_id":null,)"
            R"("medium":"CPU","lora_name":null,"locality":"LOCAL"}],0])");
}

TEST(KvEventCodec, BlocksThatFollowEachOtherAreOneEvent) {
  const std::vector<KvEvent> events = {Stored(2, 1),
                                       Stored(3, 2),
                                       Stored(7, 2),
                                       Stored(8, 7, KvEventMedium::kPersistent),
                                       Removed(4),
                                       Removed(5),
                                       Removed(4, KvEventMedium::kPersistent)};
  EXPECT_EQ(Shown(EncodeKvEvents(events, kArray32)),
            R"([2.5,[["BlockStored",[2,3],1,[],32,null,"CPU"],)"
            R"(["BlockStored",[7],2,[],32,null,"CPU"],)"
            R"(["BlockStored",[8],7,[],32,null,"STORAGE"],)"
            R"(["BlockRemoved",[4,5],"CPU"],["BlockRemoved",[4],"STORAGE"]],0])");
}

TEST(KvEventCodec, ARemovalSaysWhereFrom) {
  const std::vector<KvEvent> events = {Removed(9)};
  EXPECT_EQ(Shown(EncodeKvEvents(events, {.block_tokens = 16, .unix_s = kNow})),
            R"([2.5,[{"type":"BlockRemoved","block_hashes":[9],"medium":"CPU",)"
            R"("locality":"LOCAL"}],0])");
}

TEST(KvEventCodec, EveryMediumHasItsNameAndWhatHostsShareIsRemote) {
  const std::vector<KvEvent> events = {
      Stored(1, 0), Stored(2, 0, KvEventMedium::kPersistent), Stored(3, 0, KvEventMedium::kDevice),
      Stored(4, 0, KvEventMedium::kShared), Removed(4, KvEventMedium::kShared)};
  const std::string shown = Shown(EncodeKvEvents(events, {.block_tokens = 16, .unix_s = kNow}));
  size_t at = 0;
  for (const std::string_view said :
       {R"("medium":"CPU","lora_name":null,"locality":"LOCAL")",
        R"("medium":"STORAGE","lora_name":null,"locality":"LOCAL")",
        R"("medium":"HBM","lora_name":null,"locality":"LOCAL")",
        R"("medium":"EXTERNAL","lora_name":null,"locality":"REMOTE")",
        R"("BlockRemoved","block_hashes":[4],"medium":"EXTERNAL","locality":"REMOTE")"}) {
    at = shown.find(said, at);
    ASSERT_NE(at, std::string::npos) << said << " in " << shown;
  }
}

TEST(KvEventCodec, WhatIsToldAnewBeginsEmptyInTheSameMessage) {
  KvEventForm form = kArray32;
  form.begins_anew = true;
  const std::vector<KvEvent> events = {Stored(2, 1)};
  EXPECT_EQ(Shown(EncodeKvEvents(events, form)),
            R"([2.5,[["AllBlocksCleared"],["BlockStored",[2],1,[],32,null,"CPU"]],0])");
}

TEST(KvEventCodec, WhatFitsIsKnownBeforeItIsWritten) {
  const KvEventForm form = {.block_tokens = UINT32_MAX, .unix_s = kNow, .begins_anew = true};
  const KvEventMedium longest = KvEventMedium::kShared;
  std::vector<KvEvent> flat, chain;
  for (uint64_t i = 0; i < 2000; ++i) {
    flat.push_back(Stored(UINT64_MAX - 2 * i, UINT64_MAX - 2 * i - 1, longest));
    chain.push_back(Stored(UINT64_MAX - i - 1, UINT64_MAX - i, longest));
  }
  for (const size_t bytes_max : {1000, 10'000, 15'000}) {
    for (const std::vector<KvEvent>& events : {flat, chain}) {
      const size_t count = KvEventsWithin(events, bytes_max);
      const size_t bytes = EncodeKvEvents({events.data(), count}, form).size();
      EXPECT_LE(bytes, bytes_max);
      EXPECT_GT(bytes, bytes_max * 3 / 4) << "of " << count;
    }
  }
  EXPECT_EQ(KvEventsWithin(flat, 1), 1u) << "one goes anyhow";
  EXPECT_EQ(KvEventsWithin({}, 1000), 0u);
}

TEST(KvEventCodec, TakingBackEverythingIsOneWord) {
  EXPECT_EQ(Shown(EncodeKvCleared(KvEventEncoding::kMap, kNow)),
            R"([2.5,[{"type":"AllBlocksCleared"}],0])");
  EXPECT_EQ(Shown(EncodeKvCleared(KvEventEncoding::kArray, kNow)),
            R"([2.5,[["AllBlocksCleared"]],0])");
}

}  // namespace
}  // namespace terrace
