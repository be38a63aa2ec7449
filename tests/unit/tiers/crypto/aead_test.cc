#include "tiers/crypto/aead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace terrace {
namespace {

std::vector<std::byte> FromHex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t at = 0; at < text.size(); at += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

CipherKey KeyOf(const std::string& text) {
  return CipherKey(std::span<const std::byte, kCipherKeyBytes>(FromHex(text)));
}

// McGrew and Viega, The Galois/Counter Mode of Operation, test cases 13 and 14.
TEST(Aead, EncryptsAsItsTestVectorsSay) {
  const CipherKey zeros;
  CipherTag tag;
  Encrypt(zeros, {}, {}, {}, &tag);
  EXPECT_TRUE(std::ranges::equal(tag, FromHex("530f8afbc74536b9a963b4f1c4cb738b")));
  std::vector<std::byte> text(16);
  Encrypt(zeros, {}, text, text, &tag);
  EXPECT_EQ(text, FromHex("cea7403d4d606b6e074ec5d3baf39d18"));
  EXPECT_TRUE(std::ranges::equal(tag, FromHex("d0d1c8a799996bf0265b98b5d48ab919")));
  EXPECT_TRUE(Decrypt(zeros, {}, text, tag).ok());
  EXPECT_EQ(text, std::vector<std::byte>(16));
}

// RFC 5869, A.1: the first 32 bytes of what is expanded.
TEST(Aead, KeysAreDerivedAsTheRfcSays) {
  const CipherKey key = KeyOf("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  const CipherKey wanted =
      KeyOf("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  const std::vector<std::byte> info = FromHex("f0f1f2f3f4f5f6f7f8f9");
  EXPECT_TRUE(std::ranges::equal(DeriveKey(key, "", info, {}).bytes(), wanted.bytes()));
  EXPECT_TRUE(std::ranges::equal(
      DeriveKey(key, "", std::span(info).first(4), std::span(info).subspan(4)).bytes(),
      wanted.bytes()));
  EXPECT_FALSE(std::ranges::equal(DeriveKey(key, "x", info, {}).bytes(), wanted.bytes()));
}

TEST(Aead, WhatWasChangedIsWipedAndCorrupt) {
  const CipherKey key = KeyOf(std::string(64, '5'));
  const std::vector<std::byte> associated = FromHex("0102");
  const std::vector<std::byte> plain(10'000, std::byte{7});
  std::vector<std::byte> sealed(plain.size());
  CipherTag tag;
  Encrypt(key, associated, plain, sealed, &tag);
  EXPECT_NE(sealed, plain);
  const auto expect_refused = [&](std::vector<std::byte> bytes, const CipherKey& with,
                                  const std::vector<std::byte>& and_with, const CipherTag& under) {
    EXPECT_EQ(Decrypt(with, and_with, bytes, under).code(), StatusCode::kCorrupt);
    EXPECT_EQ(bytes, std::vector<std::byte>(plain.size()));
  };
  std::vector<std::byte> changed = sealed;
  changed[9'999] ^= std::byte{1};
  expect_refused(changed, key, associated, tag);
  expect_refused(sealed, KeyOf(std::string(64, '6')), associated, tag);
  expect_refused(sealed, key, FromHex("0103"), tag);
  CipherTag other = tag;
  other[15] ^= std::byte{128};
  expect_refused(sealed, key, associated, other);
  EXPECT_TRUE(Decrypt(key, associated, sealed, tag).ok());
  EXPECT_EQ(sealed, plain);
}

TEST(Aead, TheKernelGivesOtherBytesEachTime) {
  std::set<CipherSalt> salts;
  for (int i = 0; i < 1000; ++i) {
    CipherSalt salt{};
    ASSERT_TRUE(KernelRandom(salt).ok());
    salts.insert(salt);
  }
  EXPECT_EQ(salts.size(), 1000u);
}

}  // namespace
}  // namespace terrace
