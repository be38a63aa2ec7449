#include "tools/terrace/content/hot_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "terrace/domain_secret.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kGroupBodyBytesMax =
    32 + kGroupNameBytesMax + kGroupMembersMax * (8 + kSpaceTextBytesMax);
constexpr std::string_view kRemedy = "export it again, or copy it anew";

struct GroupHead {
  GroupId id;
  uint32_t group = 0;  // in order, from 0 on
  uint32_t name_bytes = 0;
  uint32_t member_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(GroupHead) == 32);
struct MemberHead {
  uint32_t text_bytes = 0;
  uint8_t is_remote = 0;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(MemberHead) == 8);

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
void Append(std::span<const std::byte> bytes, std::vector<std::byte>* to) {
  to->insert(to->end(), bytes.begin(), bytes.end());
}

// Of the record at this place of this file; 0 is the header's.
uint64_t SeedOf(const DomainSecret& secret, uint64_t created_unix_s, uint64_t place) {
  constexpr std::string_view kPurpose = "terrace hot set 1";
  std::array<std::byte, 17 + 16> message;
  static_assert(kPurpose.size() == 17);
  std::memcpy(message.data(), kPurpose.data(), kPurpose.size());
  std::memcpy(message.data() + 17, &created_unix_s, sizeof(created_unix_s));
  std::memcpy(message.data() + 25, &place, sizeof(place));
  return KeyedHash64(secret, message);
}

std::span<const std::byte> Before(const HotFileHeader& header) {
  return BytesOf(header).first(offsetof(HotFileHeader, checksum));
}
std::span<const std::byte> Before(const HotRecordHeader& header) {
  return BytesOf(header).first(offsetof(HotRecordHeader, checksum));
}

Checksum SumOf(uint64_t seed, std::initializer_list<std::span<const std::byte>> pieces) {
  ChecksumStream stream(seed);
  for (const auto& piece : pieces) stream.Append(piece);
  return stream.Finish();
}

}  // namespace

uint64_t PayloadBytes(const SpaceGroupSpec& spec, uint64_t member_mask) {
  uint64_t byte_count = 0;
  for (size_t member = 0; member < spec.members.size(); ++member) {
    if ((member_mask >> member & 1) == 0) continue;
    for (const uint64_t part : spec.members[member].spec.part_bytes) byte_count += part;
  }
  return byte_count;
}

// ---- writing ----

HotFileWriter::HotFileWriter(const DomainSecret& secret, Sink sink)
    : secret_(secret), sink_(std::move(sink)) {}

bool HotFileWriter::Begin(HotFileHeader header) {
  DomainSecretFingerprint(secret_).copy(header.fingerprint, sizeof(header.fingerprint));
  created_unix_s_ = header.created_unix_s;
  header.checksum = SumOf(SeedOf(secret_, created_unix_s_, 0), {Before(header)});
  return sink_(BytesOf(header));
}

bool HotFileWriter::Add(HotRecordKind kind, std::span<const std::byte> head,
                        std::span<const std::byte> rest) {
  HotRecordHeader header{.kind = kind, .body_bytes = head.size() + rest.size()};
  header.checksum =
      SumOf(SeedOf(secret_, created_unix_s_, ++record_count_), {Before(header), head, rest});
  return sink_(BytesOf(header)) && sink_(head) && (rest.empty() || sink_(rest));
}

bool HotFileWriter::AddGroup(const SpaceGroupSpec& spec) {
  const GroupHead head{.id = spec.Id(),
                       .group = static_cast<uint32_t>(group_count_++),
                       .name_bytes = static_cast<uint32_t>(spec.name.size()),
                       .member_count = static_cast<uint32_t>(spec.members.size())};
  std::vector<std::byte> rest;
  Append(std::as_bytes(std::span(spec.name)), &rest);
  for (const SpaceGroupMember& member : spec.members) {
    const std::string text = member.spec.CanonicalText();
    const MemberHead member_head{.text_bytes = static_cast<uint32_t>(text.size()),
                                 .is_remote = member.is_remote};
    Append(BytesOf(member_head), &rest);
    Append(std::as_bytes(std::span(text)), &rest);
  }
  return Add(HotRecordKind::kGroup, BytesOf(head), rest);
}

bool HotFileWriter::AddBlock(const HotBlockHead& head, std::span<const std::byte> payload) {
  ++written_.block_count;
  written_.payload_bytes += payload.size();
  return Add(HotRecordKind::kBlock, BytesOf(head), payload);
}

bool HotFileWriter::End() { return Add(HotRecordKind::kEnd, BytesOf(written_), {}); }

// ---- reading ----

HotFileReader::HotFileReader(const DomainSecret& secret, Source source)
    : secret_(secret), source_(std::move(source)) {}

Status HotFileReader::Refuse(uint64_t offset_bytes, std::string what) {
  why_ = fmt::format("at byte {}: {}", offset_bytes, what);
  return Status(StatusCode::kInvalid, "the file is not believed");
}

Status HotFileReader::Read(std::span<std::byte> bytes, std::string_view what) {
  const size_t count = source_(bytes);
  offset_bytes_ += count;
  if (count == bytes.size()) return Status::Ok();
  return Refuse(offset_bytes_, fmt::format("the file ends within {} ({} of {} bytes are there): it "
                                           "is cut off, {}",
                                           what, count, bytes.size(), kRemedy));
}

Status HotFileReader::Begin(HotFileHeader* header) {
  TERRACE_RETURN_IF_ERROR(Read(std::as_writable_bytes(std::span(header, 1)), "its header"));
  const HotFileHeader expected;
  if (std::memcmp(header->magic, expected.magic, sizeof(expected.magic)) != 0) {
    return Refuse(0, "this is no file of `terrace export`: it does not begin with TERRHOTS");
  }
  if (header->version != kHotFileVersion || header->header_bytes != sizeof(*header)) {
    return Refuse(
        8, fmt::format("version {} with a header of {} bytes; this release reads version "
                       "{} with {}: import it with the release that exported it",
                       header->version, header->header_bytes, kHotFileVersion, sizeof(*header)));
  }
  const std::string own = DomainSecretFingerprint(secret_);
  const std::string_view theirs(header->fingerprint, sizeof(header->fingerprint));
  if (theirs != own) {
    const bool is_text = std::ranges::all_of(theirs, [](char c) { return c >= ' ' && c <= '~'; });
    return Refuse(32, fmt::format("it is of a domain whose secret has the fingerprint {}, this "
                                  "daemon's has {}: keys mean nothing under another secret. Give "
                                  "both domains the same secret_file",
                                  is_text ? theirs : "(damaged)", own));
  }
  created_unix_s_ = header->created_unix_s;
  if (SumOf(SeedOf(secret_, created_unix_s_, 0), {Before(*header)}) != header->checksum) {
    return Refuse(112, fmt::format("the header's checksum is wrong: it is damaged, {}", kRemedy));
  }
  return Status::Ok();
}

uint64_t HotFileReader::BodyBytesMax(HotRecordKind kind) const {
  if (kind == HotRecordKind::kGroup) return kGroupBodyBytesMax;
  if (kind == HotRecordKind::kBlock) return sizeof(HotBlockHead) + block_bytes_max_;
  return kind == HotRecordKind::kEnd ? sizeof(HotEnd) : 0;
}

Status HotFileReader::ReadRecord(HotRecordHeader* header) {
  record_offset_bytes_ = offset_bytes_;
  TERRACE_RETURN_IF_ERROR(Read(std::as_writable_bytes(std::span(header, 1)), "a record's header"));
  const auto kind = static_cast<uint32_t>(header->kind);
  if (header->magic != HotRecordHeader().magic || kind < 1 || kind > 3) {
    return Refuse(
        record_offset_bytes_,
        fmt::format("no record begins here (magic {:#x}, kind {}): the file is damaged, {}",
                    header->magic, kind, kRemedy));
  }
  // Before memory is taken for it: what it claims may be anything.
  if (header->body_bytes > BodyBytesMax(header->kind)) {
    return Refuse(
        record_offset_bytes_ + 8,
        fmt::format("a record of kind {} with {} bytes; the limit here is {}: the file is "
                    "damaged, {}",
                    kind, header->body_bytes, BodyBytesMax(header->kind), kRemedy));
  }
  body_.resize(header->body_bytes);
  TERRACE_RETURN_IF_ERROR(Read(body_, fmt::format("a record of kind {}", kind)));
  const uint64_t seed = SeedOf(secret_, created_unix_s_, ++record_count_);
  if (SumOf(seed, {Before(*header), body_}) != header->checksum) {
    return Refuse(
        record_offset_bytes_,
        fmt::format("record {} has the wrong checksum: it is damaged, or was not made under "
                    "this domain's secret, {}",
                    record_count_, kRemedy));
  }
  return Status::Ok();
}

// What bears the checksum was written by who has the secret; it is looked at nevertheless.
Status HotFileReader::ReadGroup() {
  const auto refuse = [this](std::string what) {
    return Refuse(record_offset_bytes_, fmt::format("a group that {}: {}", what, kRemedy));
  };
  GroupHead head;
  std::span<const std::byte> rest = body_;
  if (rest.size() < sizeof(head)) return refuse("is too short");
  std::memcpy(&head, rest.data(), sizeof(head));
  rest = rest.subspan(sizeof(head));
  if (head.group != groups_.size() || head.group >= kHotFileGroupsMax) {
    return refuse(fmt::format("has number {} where {} comes", head.group, groups_.size()));
  }
  if (head.member_count > kGroupMembersMax || head.name_bytes > rest.size()) {
    return refuse(fmt::format("claims {} members and a name of {} bytes", head.member_count,
                              head.name_bytes));
  }
  SpaceGroupSpec spec{
      .name = std::string(reinterpret_cast<const char*>(rest.data()), head.name_bytes),
      .members = {}};
  rest = rest.subspan(head.name_bytes);
  std::string why;
  for (uint32_t i = 0; i < head.member_count; ++i) {
    MemberHead member;
    if (rest.size() < sizeof(member)) return refuse("is cut off");
    std::memcpy(&member, rest.data(), sizeof(member));
    rest = rest.subspan(sizeof(member));
    if (member.text_bytes > rest.size()) return refuse("is cut off");
    const std::string_view text(reinterpret_cast<const char*>(rest.data()), member.text_bytes);
    rest = rest.subspan(member.text_bytes);
    SpaceGroupMember& added = spec.members.emplace_back();
    added.is_remote = member.is_remote != 0;
    if (!SpaceSpec::Parse(text, &added.spec, &why).ok()) return refuse("has a Space: " + why);
  }
  if (!rest.empty()) return refuse(fmt::format("has {} bytes behind it", rest.size()));
  if (!spec.Validate(&why).ok()) return refuse("is none: " + why);
  if (spec.Id() != head.id) return refuse("has another id than its Spaces");
  const uint64_t block_bytes = PayloadBytes(spec, spec.local_member_mask());
  if (block_bytes > kHotBodyBytesMax) return refuse("has blocks of more than 4 GiB");
  block_bytes_max_ = std::max(block_bytes_max_, block_bytes);
  groups_.push_back(std::move(spec));
  return Status::Ok();
}

Status HotFileReader::ReadBlock(HotBlockHead* head, std::span<const std::byte>* payload) {
  const auto refuse = [this](std::string what) {
    return Refuse(record_offset_bytes_, fmt::format("a block that {}: {}", what, kRemedy));
  };
  if (body_.size() < sizeof(*head)) return refuse("is too short");
  std::memcpy(head, body_.data(), sizeof(*head));
  *payload = std::span<const std::byte>(body_).subspan(sizeof(*head));
  if (head->group >= groups_.size()) {
    return refuse(fmt::format("is of group {}, of which nothing was said", head->group));
  }
  const SpaceGroupSpec& spec = groups_[head->group];
  const uint64_t local_mask = spec.local_member_mask();
  if ((head->member_mask & ~local_mask) != 0 ||
      (head->member_mask & spec.full_member_mask() & local_mask) !=
          (spec.full_member_mask() & local_mask)) {
    return refuse(fmt::format("has members {:#x} of {:#x}", head->member_mask, local_mask));
  }
  if (payload->size() != PayloadBytes(spec, head->member_mask)) {
    return refuse(fmt::format("has {} bytes where its members have {}", payload->size(),
                              PayloadBytes(spec, head->member_mask)));
  }
  ++read_.block_count;
  read_.payload_bytes += payload->size();
  return Status::Ok();
}

Status HotFileReader::ReadEnd() {
  HotEnd end;
  if (body_.size() != sizeof(end)) {
    return Refuse(record_offset_bytes_,
                  fmt::format("an end of {} bytes: {}", body_.size(), kRemedy));
  }
  std::memcpy(&end, body_.data(), sizeof(end));
  if (end.block_count != read_.block_count || end.payload_bytes != read_.payload_bytes) {
    return Refuse(
        record_offset_bytes_,
        fmt::format("the end says {} blocks of {} bytes, {} of {} were there: {}", end.block_count,
                    end.payload_bytes, read_.block_count, read_.payload_bytes, kRemedy));
  }
  std::byte more;
  if (source_(std::span(&more, 1)) != 0) {
    return Refuse(offset_bytes_, fmt::format("something stands behind the end: {}", kRemedy));
  }
  return Status(StatusCode::kNotFound, "the file is through");
}

Status HotFileReader::Next(HotBlockHead* head, std::span<const std::byte>* payload) {
  while (true) {
    HotRecordHeader header;
    TERRACE_RETURN_IF_ERROR(ReadRecord(&header));
    if (header.kind == HotRecordKind::kBlock) return ReadBlock(head, payload);
    if (header.kind == HotRecordKind::kEnd) return ReadEnd();
    TERRACE_RETURN_IF_ERROR(ReadGroup());
  }
}

}  // namespace terrace::tools
