#include "tiers/crypto/group_key.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "terrace/check.h"
#include "tiers/record_fields.h"

namespace terrace {
namespace {

constexpr std::string_view kNameLabel = "terrace payload 1";
constexpr std::string_view kPayloadLabel = "terrace nvme payload key 1";
constexpr std::string_view kWrapLabel = "terrace group key 1";

// docs/DISK_FORMAT.md has the same table.
struct RecordAt {
  static constexpr size_t kMagic = 0;
  static constexpr size_t kVersion = 8;
  static constexpr size_t kReserved = 12;  // zero
  static constexpr size_t kGroup = 16;
  static constexpr size_t kKeyId = 32;
  static constexpr size_t kReserved2 = 40;  // zero
  static constexpr size_t kSalt = 48;
  static constexpr size_t kWrapped = 80;
  static constexpr size_t kTag = 112;
  static constexpr size_t kEnd = 128;  // zero up to the record's end
};
constexpr uint64_t kMagic = 0x59454B4752524554;  // "TERRGKEY"
constexpr uint32_t kVersion = 1;

// All before the wrapped key is authenticated with it.
constexpr size_t kHeadBytes = RecordAt::kWrapped;

bool IsZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

bool IsRecordOf(std::span<const std::byte> record, const GroupId& group) {
  return record.size() >= GroupKey::kRecordBytes &&
         Get<uint64_t>(record, RecordAt::kMagic) == kMagic &&
         Get<uint32_t>(record, RecordAt::kVersion) == kVersion &&
         IsZero(record.subspan(RecordAt::kReserved, 4)) &&
         IsZero(record.subspan(RecordAt::kReserved2, 8)) &&
         IsZero(record.subspan(RecordAt::kEnd, GroupKey::kRecordBytes - RecordAt::kEnd)) &&
         GetId<GroupId>(record, RecordAt::kGroup) == group;
}

CipherKey WrappingKey(const CipherKey& ring_key, std::span<const std::byte> head) {
  return DeriveKey(ring_key, kWrapLabel, head.subspan(RecordAt::kSalt, kCipherSaltBytes),
                   head.subspan(RecordAt::kGroup, 16));
}

}  // namespace

PayloadName NamePayload(const BlockDescription& block, uint64_t length_bytes,
                        std::span<const Checksum> part_checksums) {
  constexpr size_t kFixedBytes = 17 + 16 * 3 + 2 + 8 + 8 + 4;
  static_assert(kNameLabel.size() == 17);
  std::vector<std::byte> text(kFixedBytes + 16 * part_checksums.size());
  std::ranges::copy(std::as_bytes(std::span(kNameLabel)), text.begin());
  size_t at = kNameLabel.size();
  PutId(text, at, block.group);
  PutId(text, at + 16, block.space);
  PutId(text, at + 32, block.key);
  Put(text, at + 48, block.member);
  Put<uint64_t>(text, at + 50, block.commit_id);
  Put(text, at + 58, length_bytes);
  Put(text, at + 66, static_cast<uint32_t>(part_checksums.size()));
  at = kFixedBytes;
  for (const Checksum& checksum : part_checksums) {
    PutId(text, at, checksum);
    at += 16;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  TERRACE_CHECK(
      EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr) == 1,
      "libcrypto has SHA-256");
  PayloadName name;
  std::memcpy(name.data(), digest.data(), name.size());
  return name;
}

Status GroupKey::Derive(const CipherSalt& salt, const PayloadName& name,
                        CipherKey* payload_key) const {
  const std::lock_guard lock(mutex_);
  if (!key_) return Status(StatusCode::kGone, "the group's key has been destroyed");
  *payload_key = DeriveKey(*key_, kPayloadLabel, salt, name);
  return Status::Ok();
}

void GroupKey::Destroy() {
  const std::lock_guard lock(mutex_);
  if (key_) key_->Wipe();
  key_.reset();
}

bool GroupKey::is_destroyed() const {
  const std::lock_guard lock(mutex_);
  return !key_;
}

Status GroupKey::Wrap(const GroupId& group, const KeyRing& ring, const RandomFill& random,
                      Record* record) const {
  const std::lock_guard lock(mutex_);
  if (!key_) return Status(StatusCode::kGone, "the group's key has been destroyed");
  const std::span<std::byte> bytes(*record);
  std::ranges::fill(bytes, std::byte{0});
  Put(bytes, RecordAt::kMagic, kMagic);
  Put(bytes, RecordAt::kVersion, kVersion);
  PutId(bytes, RecordAt::kGroup, group);
  Put(bytes, RecordAt::kKeyId, ring.first());
  TERRACE_RETURN_IF_ERROR(random(bytes.subspan(RecordAt::kSalt, kCipherSaltBytes)));
  CipherTag tag;
  Encrypt(WrappingKey(*ring.Find(ring.first()), bytes), bytes.first(kHeadBytes), key_->bytes(),
          bytes.subspan(RecordAt::kWrapped, kCipherKeyBytes), &tag);
  Put(bytes, RecordAt::kTag, tag);
  return Status::Ok();
}

std::optional<KeyId> WrappedUnder(std::span<const std::byte> record, const GroupId& group) {
  if (!IsRecordOf(record, group)) return std::nullopt;
  return Get<uint64_t>(record, RecordAt::kKeyId);
}

Result<std::shared_ptr<GroupKey>> Unwrap(std::span<const std::byte> record, const GroupId& group,
                                         const KeyRing& ring) {
  const std::optional<KeyId> id = WrappedUnder(record, group);
  if (!id) return Status(StatusCode::kCorrupt, "no record of the group's key");
  const CipherKey* const ring_key = ring.Find(*id);
  if (ring_key == nullptr) {
    return Status(StatusCode::kNotFound, "it is under a key that the ring has not");
  }
  CipherKey key;
  std::ranges::copy(record.subspan(RecordAt::kWrapped, kCipherKeyBytes), key.bytes().begin());
  TERRACE_RETURN_IF_ERROR(Decrypt(WrappingKey(*ring_key, record), record.first(kHeadBytes),
                                  key.bytes(), Get<CipherTag>(record, RecordAt::kTag)));
  return std::make_shared<GroupKey>(key);
}

Status PayloadCipher::EncryptInto(std::span<const std::byte> from, std::span<std::byte> into) {
  CipherKey payload_key;
  TERRACE_RETURN_IF_ERROR(key->Derive(seal.salt, name, &payload_key));
  Encrypt(payload_key, name, from, into, &seal.tag);
  return Status::Ok();
}

Status PayloadCipher::DecryptInPlace(std::span<std::byte> bytes) const {
  CipherKey payload_key;
  const Status derived = key->Derive(seal.salt, name, &payload_key);
  if (derived.ok()) return Decrypt(payload_key, name, bytes, seal.tag);
  std::ranges::fill(bytes, std::byte{0});
  return derived;
}

}  // namespace terrace
