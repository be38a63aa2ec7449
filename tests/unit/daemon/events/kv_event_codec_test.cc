// Messages byte for byte, as routers decode them.
#include "daemon/events/kv_event_codec.h"

#include <gtest/gtest.h>

#include <msgpack.hpp>
#include <sstream>

namespace terrace {
namespace {

constexpr double kNow = 2.5;

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
  EXPECT_EQ(Shown(EncodeKvEvents(events, 16, KvEventEncoding::kMap, kNow)),
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
  EXPECT_EQ(Shown(EncodeKvEvents(events, 32, KvEventEncoding::kArray, kNow)),
            R"([2.5,[["BlockStored",[2,3],1,[],32,null,"CPU"],)"
            R"(["BlockStored",[7],2,[],32,null,"CPU"],)"
            R"(["BlockStored",[8],7,[],32,null,"STORAGE"],)"
            R"(["BlockRemoved",[4,5],"CPU"],["BlockRemoved",[4],"STORAGE"]],0])");
}

TEST(KvEventCodec, ARemovalSaysWhereFrom) {
  const std::vector<KvEvent> events = {Removed(9)};
  EXPECT_EQ(Shown(EncodeKvEvents(events, 16, KvEventEncoding::kMap, kNow)),
            R"([2.5,[{"type":"BlockRemoved","block_hashes":[9],"medium":"CPU",)"
            R"("locality":"LOCAL"}],0])");
}

TEST(KvEventCodec, TakingBackEverythingIsOneWord) {
  EXPECT_EQ(Shown(EncodeKvCleared(KvEventEncoding::kMap, kNow)),
            R"([2.5,[{"type":"AllBlocksCleared"}],0])");
  EXPECT_EQ(Shown(EncodeKvCleared(KvEventEncoding::kArray, kNow)),
            R"([2.5,[["AllBlocksCleared"]],0])");
}

}  // namespace
}  // namespace terrace
