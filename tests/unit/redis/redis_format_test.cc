#include "tiers/redis/redis_format.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "test_paths.h"
#include "tiers/redis/wire/redis_command.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

DomainSecret SecretOf(int first) {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(static_cast<size_t>(first) + i * 7);
  }
  return secret;
}

RedisManifest Example() {
  RedisManifest manifest;
  manifest.group = {1, 2};
  manifest.space = {3, 4};
  manifest.key = {5, 6};
  manifest.parent = {7, 8};
  manifest.commit_id = 9;
  manifest.write_id = 10;
  manifest.length_bytes = 303;
  manifest.event_hash = 11;
  manifest.expires_at_s = 12;
  manifest.position = 13;
  manifest.recompute_ns_per_token = 14;
  manifest.member = 15;
  manifest.priority = 16;
  manifest.part_checksums = {{17, 18}, {19, 20}};
  manifest.chunks = {{{21, 22}, 200}, {{23, 24}, 100}};
  manifest.tail = std::vector<std::byte>(3, std::byte{25});
  return manifest;
}

TEST(RedisManifest, ComesBackAsItWas) {
  const Result<RedisManifest> decoded =
      DecodeManifest(EncodeManifest(Example(), SecretOf(1)), SecretOf(1));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, Example());
}

RedisManifest Encrypted() {
  RedisManifest manifest = Example();
  RedisSeal& seal = manifest.encryption.emplace();
  seal.salt.fill(std::byte{26});
  seal.tag.fill(std::byte{27});
  seal.key_id = 28;
  return manifest;
}

TEST(RedisManifest, ComesBackEncryptedAsItWas) {
  const std::vector<std::byte> bytes = EncodeManifest(Encrypted(), SecretOf(1));
  const Result<RedisManifest> decoded = DecodeManifest(bytes, SecretOf(1));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, Encrypted());
  EXPECT_NE(*decoded, Example());
  EXPECT_EQ(bytes.size(), EncodeManifest(Example(), SecretOf(1)).size() + 56);
}

TEST(RedisManifest, AnyChangedByteAndAnotherSecretAreRefused) {
  for (const RedisManifest& manifest : {Example(), Encrypted()}) {
    const std::vector<std::byte> bytes = EncodeManifest(manifest, SecretOf(1));
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::vector<std::byte> damaged = bytes;
      damaged[i] ^= std::byte{0x01};
      EXPECT_EQ(DecodeManifest(damaged, SecretOf(1)).code(), StatusCode::kCorrupt) << i;
    }
  }
  const std::vector<std::byte> bytes = EncodeManifest(Example(), SecretOf(1));
  EXPECT_EQ(DecodeManifest(bytes, SecretOf(2)).code(), StatusCode::kCorrupt);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_EQ(DecodeManifest(damaged, SecretOf(1)).code(), StatusCode::kCorrupt) << i;
    damaged = bytes;
    damaged.resize(i);
    EXPECT_EQ(DecodeManifest(damaged, SecretOf(1)).code(), StatusCode::kCorrupt) << i;
  }
}

// Sealed by us, and yet not to be followed.
TEST(RedisManifest, LengthsMustAddUp) {
  RedisManifest manifest = Example();
  manifest.length_bytes = 304;
  EXPECT_FALSE(DecodeManifest(EncodeManifest(manifest, SecretOf(1)), SecretOf(1)).ok());
  manifest = Example();
  manifest.chunks = {{{1, 1}, 0}, {{2, 2}, 300}};
  EXPECT_FALSE(DecodeManifest(EncodeManifest(manifest, SecretOf(1)), SecretOf(1)).ok());
}

TEST(RedisManifest, WhatTheDocumentSaysIsZeroIsZero) {
  constexpr size_t kBehindTheFirstLength = 136 + 2 * 16 + 20;
  std::vector<std::byte> bytes = EncodeManifest(Example(), SecretOf(1));
  for (size_t i = 0; i < 4; ++i) {
    bytes[kBehindTheFirstLength + i] = std::byte{1};
    const uint64_t seal = KeyedHash64(SecretOf(1), std::span(bytes).subspan(8));
    std::memcpy(bytes.data(), &seal, sizeof(seal));
    EXPECT_EQ(DecodeManifest(bytes, SecretOf(1)).code(), StatusCode::kCorrupt) << i;
    bytes[kBehindTheFirstLength + i] = std::byte{0};
  }
}

TEST(RedisManifest, FieldsLieWhereTheDocumentSays) {
  std::ifstream page(TERRACE_SOURCE_DIR "/docs/REDIS_FORMAT.md");
  std::map<std::string, std::pair<size_t, size_t>> rows;
  std::string line;
  while (std::getline(page, line)) {
    size_t offset = 0, length = 0;
    char name[64];
    if (std::sscanf(line.c_str(), "| %zu | %zu | %63[a-z_] |", &offset, &length, name) == 3) {
      rows[name] = {offset, length};
    }
  }
  const std::map<std::string, std::function<void(RedisManifest*)>> changes = {
      {"priority", [](RedisManifest* m) { m->priority ^= 0xFF; }},
      {"position", [](RedisManifest* m) { m->position = ~m->position; }},
      {"recompute", [](RedisManifest* m) { m->recompute_ns_per_token = ~0u - 14; }},
      {"length", [](RedisManifest* m) { m->length_bytes = ~m->length_bytes; }},
      {"commit_id", [](RedisManifest* m) { m->commit_id = ~m->commit_id; }},
      {"write_id", [](RedisManifest* m) { m->write_id = ~m->write_id; }},
      {"event_hash", [](RedisManifest* m) { m->event_hash = ~m->event_hash; }},
      {"expires", [](RedisManifest* m) { m->expires_at_s = ~m->expires_at_s; }},
      {"group",
       [](RedisManifest* m) {
         m->group = {~m->group.low, ~m->group.high};
       }},
      {"space",
       [](RedisManifest* m) {
         m->space = {~m->space.low, ~m->space.high};
       }},
      {"key",
       [](RedisManifest* m) {
         m->key = {~m->key.low, ~m->key.high};
       }},
      {"parent",
       [](RedisManifest* m) {
         m->parent = {~m->parent.low, ~m->parent.high};
       }},
      {"member", [](RedisManifest* m) { m->member = static_cast<uint16_t>(~m->member); }},
      {"ring_key_id", [](RedisManifest* m) { m->encryption->key_id = ~m->encryption->key_id; }},
      {"salt", [](RedisManifest* m) { m->encryption->salt.fill(std::byte{255}); }},
      {"tag", [](RedisManifest* m) { m->encryption->tag.fill(std::byte{255}); }},
  };
  const std::vector<std::byte> before = EncodeManifest(Encrypted(), SecretOf(1));
  for (const auto& [field, change] : changes) {
    ASSERT_TRUE(rows.contains(field)) << field << " is not in the document";
    RedisManifest manifest = Encrypted();
    change(&manifest);
    const std::vector<std::byte> after = EncodeManifest(manifest, SecretOf(1));
    const auto [offset, length] = rows[field];
    for (size_t i = 8; i < before.size(); ++i) {
      EXPECT_EQ(before[i] != after[i], i >= offset && i < offset + length) << field << " " << i;
    }
  }
}

TEST(RedisChunkChecksum, BelongsToItsPlace) {
  const std::vector<std::byte> bytes(100, std::byte{1});
  const RedisManifest manifest = Example();
  std::set<Checksum> seen;
  seen.insert(RedisChunkChecksum(SecretOf(1), manifest, 0, bytes));
  seen.insert(RedisChunkChecksum(SecretOf(1), manifest, 1, bytes));
  seen.insert(RedisChunkChecksum(SecretOf(2), manifest, 0, bytes));
  RedisManifest other = manifest;
  other.commit_id = 99;
  seen.insert(RedisChunkChecksum(SecretOf(1), other, 0, bytes));
  other = manifest;
  other.key = {99, 99};
  seen.insert(RedisChunkChecksum(SecretOf(1), other, 0, bytes));
  EXPECT_EQ(seen.size(), 5u);
}

TEST(RedisKeyNames, ARunIsOneSlotAndDomainsShareNothing) {
  const RedisKeyNames names("t", SecretOf(1));
  const RedisBlockName first{{1, 2}, {3, 4}, {5, 6}, {5, 6}, 64};
  const RedisBlockName second{{1, 2}, {3, 4}, {7, 8}, {5, 6}, 127};
  EXPECT_EQ(RedisSlotOf(names.Manifest(first)), RedisSlotOf(names.Manifest(second)));
  EXPECT_EQ(RedisSlotOf(names.Manifest(first)), RedisSlotOf(names.Chunk(first, Example(), 3)));
  EXPECT_EQ(names.Presence(first), names.Presence(second));
  EXPECT_NE(names.Manifest(first), names.Manifest(second));
  RedisBlockName other_space = first;
  other_space.space = {9, 9};
  EXPECT_NE(names.Presence(first), names.Presence(other_space));
  EXPECT_NE(names.Presence(first), RedisKeyNames("t", SecretOf(2)).Presence(first));
  EXPECT_EQ(RedisKeyNames::PresenceBit(first), 5u);
  EXPECT_EQ(RedisKeyNames::PresenceBit(second), 63u * 32 + 7);
}

TEST(RedisKeyNames, WhatIsEncryptedHasOthers) {
  const RedisBlockName name{.group = {1, 2}, .space = {3, 4}, .key = {5, 6}, .run = {5, 6}};
  const RedisKeyNames plain("t", SecretOf(1));
  const RedisKeyNames encrypted("t", SecretOf(1), kRedisEncryptedVersion);
  EXPECT_TRUE(plain.Manifest(name).starts_with("t2:{"));
  EXPECT_TRUE(encrypted.Manifest(name).starts_with("t3:{"));
  EXPECT_TRUE(encrypted.Presence(name).starts_with("t3:{"));
  EXPECT_TRUE(encrypted.Generation(name.group).starts_with("t3:{"));
  EXPECT_EQ(RedisKeyNames::Permission("t", kRedisEncryptedVersion), "t3:permission");
}

TEST(RedisKeyNames, EveryGenerationHasNamesOfItsOwnAndTheFirstThoseOfBefore) {
  const RedisKeyNames names("t", SecretOf(1));
  RedisBlockName name{{1, 2}, {3, 4}, {5, 6}, {5, 6}, 64};
  std::set<std::string> tags;
  for (const uint64_t generation : {0, 1, 2}) {
    name.generation = generation;
    tags.insert(names.Presence(name));
    EXPECT_EQ(RedisSlotOf(names.Manifest(name)), RedisSlotOf(names.Presence(name)));
  }
  EXPECT_EQ(tags.size(), 3u);
  // A server that was filled before there were generations is read on.
  name.generation = 0;
  EXPECT_EQ(names.Presence(name), "t2:{bd9d9a79627df10a}p");
  tags.insert(names.Generation({1, 2}));
  tags.insert(names.Generation({2, 2}));
  tags.insert(RedisKeyNames("t", SecretOf(2)).Generation({1, 2}));
  EXPECT_EQ(tags.size(), 6u);
}

TEST(RedisManifest, IsBelievedInItsOwnGenerationOnly) {
  RedisManifest manifest = Example();
  manifest.generation = 7;
  const std::vector<std::byte> bytes = EncodeManifest(manifest, SecretOf(1));
  EXPECT_EQ(*DecodeManifest(bytes, SecretOf(1), 7), manifest);
  EXPECT_FALSE(DecodeManifest(bytes, SecretOf(1), 8).ok());
  EXPECT_FALSE(DecodeManifest(bytes, SecretOf(1)).ok());
  EXPECT_FALSE(DecodeManifest(EncodeManifest(Example(), SecretOf(1)), SecretOf(1), 7).ok());
}

TEST(RedisGeneration, IsReadBackAsItIsOnly) {
  const GroupId group{1, 2};
  for (const uint64_t generation : {uint64_t{0}, uint64_t{7}, UINT64_MAX}) {
    const std::string text = EncodeGeneration(group, generation, SecretOf(1));
    EXPECT_EQ(*DecodeGeneration(text, group, SecretOf(1)), generation);
    EXPECT_FALSE(DecodeGeneration(text, {2, 2}, SecretOf(1)).ok());
    EXPECT_FALSE(DecodeGeneration(text, group, SecretOf(2)).ok());
    for (size_t i = 0; i < text.size(); ++i) {
      std::string damaged = text;
      damaged[i] ^= 1;
      EXPECT_FALSE(DecodeGeneration(damaged, group, SecretOf(1)).ok()) << i;
      EXPECT_FALSE(DecodeGeneration(text.substr(0, i), group, SecretOf(1)).ok()) << i;
    }
  }
}

TEST(RedisCommand, IsRespWithThePayloadLeftWhereItIs) {
  const RedisCommand words = FormatRedisCommand({"GET", "k"});
  EXPECT_EQ(words.head, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
  EXPECT_TRUE(words.payload.empty() && words.tail.empty());
  const std::vector<std::byte> payload(5, std::byte{'p'});
  const RedisCommand set =
      FormatRedisCommand({"SET", "k"}, payload, std::array<std::string_view, 2>{"PX", "1500"});
  EXPECT_EQ(set.head, "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\n");
  EXPECT_EQ(set.payload.data(), payload.data());
  EXPECT_EQ(set.tail, "\r\n$2\r\nPX\r\n$4\r\n1500\r\n");
  EXPECT_EQ(set.length_bytes(), set.head.size() + 5 + set.tail.size());
}

}  // namespace
}  // namespace terrace
