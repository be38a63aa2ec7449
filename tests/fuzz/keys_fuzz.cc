// The text of an encryption_keys_file, and the record of a group's key as it may lie on a drive:
// as it is, and one that was made by us and then changed, which no change may pass.
#include <algorithm>
#include <memory>
#include <string>

#include "fuzz/fuzz.h"
#include "tiers/crypto/group_key.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/record_fields.h"

namespace terrace::fuzz::keys {

constexpr GroupId kGroup{0x0123456789ABCDEF, 0xFEDCBA9876543210};
constexpr size_t kSaltAt = 48;  // docs/DISK_FORMAT.md, Group keys

CipherKey KeyOf(uint8_t first) {
  CipherKey key;
  for (size_t i = 0; i < kCipherKeyBytes; ++i) {
    key.bytes()[i] = static_cast<std::byte>(first + 3 * i);
  }
  return key;
}

const KeyRing& Ring() {
  static const KeyRing ring({KeyOf(1), KeyOf(2)});
  return ring;
}

RandomFill Salt(CipherSalt salt) {
  return [salt](std::span<std::byte> bytes) {
    std::copy_n(salt.begin(), bytes.size(), bytes.begin());
    return Status::Ok();
  };
}

GroupKey::Record RecordOf(uint8_t first, const CipherSalt& salt) {
  GroupKey::Record record;
  Require(GroupKey(KeyOf(first)).Wrap(kGroup, Ring(), Salt(salt), &record).ok(),
          "a key is not wrapped");
  return record;
}

// What is unwrapped is wrapped again as it was.
void JudgeRecord(std::span<const std::byte> record) {
  const Result<std::shared_ptr<GroupKey>> key = Unwrap(record, kGroup, Ring());
  if (!key.ok()) {
    Require(key.code() == StatusCode::kCorrupt || key.code() == StatusCode::kNotFound,
            "a record is refused as no reader expects");
    return;
  }
  GroupKey::Record again;
  const auto salt = Get<CipherSalt>(record, kSaltAt);
  Require((*key)->Wrap(kGroup, Ring(), Salt(salt), &again).ok() &&
              (WrappedUnder(record, kGroup) != Ring().first() ||
               std::ranges::equal(again, record.first(again.size()))),
          "a record that was believed is written in another way");
}

// [2; first byte of the key; salt; what is changed, byte by byte]
void TryChanged(Choices& choices) {
  const uint8_t first = choices.Byte();
  const auto salt = choices.Number<CipherSalt>();
  const GroupKey::Record record = RecordOf(first, salt);
  GroupKey::Record changed = record;
  for (std::byte& byte : changed) byte ^= static_cast<std::byte>(choices.Byte());
  Require(Unwrap(changed, kGroup, Ring()).ok() == (changed == record),
          "a changed record was believed");
}

void TryText(std::span<const std::byte> given) {
  const std::string text(reinterpret_cast<const char*>(given.data()), given.size());
  std::string why;
  const auto ring = ParseKeyRing(text, &why);
  if (!ring.ok()) {
    Require(ring.code() == StatusCode::kInvalid && !why.empty(), "a ring is refused without why");
    return;
  }
  Require((*ring)->count() <= kRingKeysMax && (*ring)->Find((*ring)->first()) != nullptr,
          "a ring without its first key");
  const std::string told = (*ring)->Describe();
  Require(told.starts_with(KeyIdText((*ring)->first())) &&
              std::ranges::count(told, ',') + 1 == static_cast<ptrdiff_t>((*ring)->count()),
          "a ring is told of in other ids");
}

Seed TextSeed(const std::string& name, const std::string& text) {
  ChoiceWriter writer;
  writer.Byte(0).Append(std::as_bytes(std::span(text)));
  return {name, writer.Take()};
}

Seed RecordSeed(const std::string& name, uint8_t kind, bool is_changed) {
  ChoiceWriter writer;
  writer.Byte(kind);
  if (kind == 1) {
    writer.Append(RecordOf(9, {}));
  } else {
    Bytes change(1 + kCipherSaltBytes + GroupKey::kRecordBytes);
    if (is_changed) change.back() = std::byte{1};
    writer.Append(change);
  }
  return {name, writer.Take()};
}

std::vector<Seed> Seeds() {
  const std::string a = "terrace-key-1 " + std::string(62, 'a') + "01\n";
  const std::string b = "terrace-key-1 " + std::string(62, 'b') + "02\n";
  std::string many;
  for (size_t i = 0; i <= kRingKeysMax; ++i) {
    many += "terrace-key-1 " + std::string(62, 'c') + std::to_string(10 + i) + "\n";
  }
  return {TextSeed("one_key", a),
          TextSeed("too_many_keys", many),
          TextSeed("no_key", "terrace-key-1 " + std::string(64, 'x')),
          TextSeed("one_byte", "terrace-key-1 " + std::string(64, 'a')),
          TextSeed("two_keys", "# both\n\n" + a + b),
          TextSeed("twice", a + a),
          RecordSeed("record", 1, false),
          RecordSeed("unchanged", 2, false),
          RecordSeed("changed", 2, true)};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  const uint8_t kind = choices.Byte() % 3;
  if (kind == 0) TryText(choices.Rest());
  if (kind == 1) JudgeRecord(choices.Rest());
  if (kind == 2) TryChanged(choices);
  return true;
}

// PROMISE: T29 keys of encryption, and keys of groups
const Registration registration({"keys", Run, Seeds});

}  // namespace terrace::fuzz::keys
