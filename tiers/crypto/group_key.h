// GroupKey: the key that the blocks of one SpaceGroup are encrypted under on a domain's drives, and
// its wrapping for the file it lives in (docs/DISK_FORMAT.md, Group keys).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/block_meta.h"
#include "tiers/crypto/aead.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/crypto/payload_seal.h"

namespace terrace {

PayloadName NamePayload(const BlockDescription& block, uint64_t length_bytes,
                        std::span<const Checksum> part_checksums);

// THREADING: any.
class GroupKey {
 public:
  explicit GroupKey(const CipherKey& key) : id_(IdOf(key)), key_(key) {}
  // Of this key among those that the group has had; says nothing of it.
  KeyId id() const { return id_; }

  // The key of one payload. kGone: destroyed.
  Status Derive(const CipherSalt& salt, const PayloadName& name, CipherKey* payload_key) const;
  // Nothing under it can be read from now on, whoever still refers to it.
  void Destroy();
  bool is_destroyed() const;

  // As its file holds it, under the ring's first key. kGone, kIo: no salt is to be had.
  static constexpr size_t kRecordBytes = 160;
  using Record = std::array<std::byte, kRecordBytes>;
  Status Wrap(const GroupId& group, const KeyRing& ring, const RandomFill& random,
              Record* record) const;

 private:
  const KeyId id_;
  mutable std::mutex mutex_;
  std::optional<CipherKey> key_;
};

// Under which key a record is; none: it is no record of the group.
std::optional<KeyId> WrappedUnder(std::span<const std::byte> record, const GroupId& group);
// kCorrupt: no record of the group, or changed. kNotFound: the ring has not its key.
Result<std::shared_ptr<GroupKey>> Unwrap(std::span<const std::byte> record, const GroupId& group,
                                         const KeyRing& ring);

// What encrypts or decrypts the payload of one request to a disk. A write sets the tag.
struct PayloadCipher {
  std::shared_ptr<const GroupKey> key;
  PayloadName name{};
  PayloadSeal seal;

  Status EncryptInto(std::span<const std::byte> from, std::span<std::byte> into);
  // kCorrupt: the bytes are not what was written; they are wiped. kGone: the key has been
  // destroyed; likewise.
  Status DecryptInPlace(std::span<std::byte> bytes) const;
};

// Where a tier finds the keys of groups.
class GroupKeys {
 public:
  virtual ~GroupKeys() = default;
  // Null: there is none that can be used.
  virtual std::shared_ptr<const GroupKey> Find(const GroupId& group) const = 0;
};

// Whether and how a tier encrypts.
struct PayloadEncryption {
  const GroupKeys* keys = nullptr;  // none: it does not
  RandomFill random;                // of salts
  bool is_plain_served = false;     // blocks that were stored as they are: served, or given up

  bool is_on() const { return keys != nullptr; }
};

}  // namespace terrace
