// The file of `terrace export`: blocks with all that another node needs to serve them. Its format
// is docs/HOT_SET_FORMAT.md. Written and read front to back, so a pipe will do; of the blocks one
// is in memory at a time.
//
// Every record's checksum is seeded with the domain's secret and the record's place, so nobody
// without the secret makes a record that is believed, and none is believed in another place. That
// tells damage and strangers; who has the secret is trusted with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/prefix_hasher.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace::tools {

inline constexpr uint32_t kHotFileVersion = 1;
inline constexpr uint32_t kHotFileGroupsMax = 4096;
inline constexpr uint64_t kHotBodyBytesMax = uint64_t{4} << 30;

struct HotFileHeader {
  char magic[8] = {'T', 'E', 'R', 'R', 'H', 'O', 'T', 'S'};
  uint32_t version = kHotFileVersion;
  uint32_t header_bytes = 128;
  uint64_t created_unix_s = 0;
  uint64_t bytes_asked = 0;   // --hot
  char fingerprint[16] = {};  // of the domain's secret, hex
  uint8_t key_hash = 0;       // KeyHash
  uint8_t reserved[7] = {};
  char domain_name[56] = {};  // NUL-padded
  Checksum checksum{};        // of the 112 bytes before it
};
static_assert(sizeof(HotFileHeader) == 128);

enum class HotRecordKind : uint32_t { kGroup = 1, kBlock = 2, kEnd = 3 };
struct HotRecordHeader {
  uint32_t magic = 0x43455254;  // "TREC"
  HotRecordKind kind = HotRecordKind::kEnd;
  uint64_t body_bytes = 0;
  Checksum checksum{};  // of the 16 bytes before it, then the body
};
static_assert(sizeof(HotRecordHeader) == 32);

// Behind it the bytes of each member of member_mask, in order: its parts, without what lies between
// them in a slot.
struct HotBlockHead {
  BlockKey key;
  BlockKey parent;  // zero: the first of its prompt
  uint64_t age_ms = 0;
  uint64_t idle_ms = 0;
  uint64_t member_mask = 0;
  uint32_t group = 0;  // of the file's groups, from 0 on
  uint32_t position = 0;
  uint32_t hit_count = 0;
  uint32_t expires_in_s = 0;  // after created_unix_s; 0: never
  uint8_t priority = 0;
  uint8_t flags = 0;  // kHotNoStore
  uint8_t reserved[6] = {};
};
static_assert(sizeof(HotBlockHead) == 80);
inline constexpr uint8_t kHotNoStore = 1;

struct HotEnd {
  uint64_t block_count = 0;
  uint64_t payload_bytes = 0;
};

// What a block of the group has behind its head.
uint64_t PayloadBytes(const SpaceGroupSpec& spec, uint64_t member_mask);

class HotFileWriter {
 public:
  // False where the bytes cannot be written: errno says why.
  using Sink = std::function<bool(std::span<const std::byte>)>;
  HotFileWriter(const DomainSecret& secret, Sink sink);

  bool Begin(HotFileHeader header);  // fingerprint and checksum are filled in
  bool AddGroup(const SpaceGroupSpec& spec);
  // REQUIRES: the group was added, and blocks before it in its prompt; payload as PayloadBytes.
  bool AddBlock(const HotBlockHead& head, std::span<const std::byte> payload);
  bool End();
  const HotEnd& written() const { return written_; }

 private:
  bool Add(HotRecordKind kind, std::span<const std::byte> head, std::span<const std::byte> rest);

  const DomainSecret secret_;
  const Sink sink_;
  uint64_t created_unix_s_ = 0;
  uint64_t record_count_ = 0;
  uint64_t group_count_ = 0;
  HotEnd written_;
};

class HotFileReader {
 public:
  // As many bytes as there are, fewer only at the end.
  using Source = std::function<size_t(std::span<std::byte>)>;
  HotFileReader(const DomainSecret& secret, Source source);

  // kInvalid: it is no such file, of another domain, damaged or cut off; why() names what, the
  // offset and the remedy. Nothing more is read then.
  Status Begin(HotFileHeader* header);
  // The next block, whose bytes are those that were written. kNotFound: the file is through, whole.
  Status Next(HotBlockHead* head, std::span<const std::byte>* payload);
  const std::vector<SpaceGroupSpec>& groups() const { return groups_; }
  const std::string& why() const { return why_; }

 private:
  Status Refuse(uint64_t offset_bytes, std::string what);
  Status Read(std::span<std::byte> bytes, std::string_view what);
  Status ReadRecord(HotRecordHeader* header);
  Status ReadGroup();
  Status ReadBlock(HotBlockHead* head, std::span<const std::byte>* payload);
  Status ReadEnd();
  uint64_t BodyBytesMax(HotRecordKind kind) const;

  const DomainSecret secret_;
  const Source source_;
  uint64_t created_unix_s_ = 0;
  uint64_t offset_bytes_ = 0;         // what was read
  uint64_t record_offset_bytes_ = 0;  // where the record begins that was read last
  uint64_t record_count_ = 0;
  HotEnd read_;
  std::vector<std::byte> body_;
  std::vector<SpaceGroupSpec> groups_;
  uint64_t block_bytes_max_ = 0;
  std::string why_;
};

}  // namespace terrace::tools
