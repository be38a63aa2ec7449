// ReadLease and WriteLease: what a user touches of a LeaseState.
#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "client/lease/lease_state.h"
#include "client/lease/leases.h"
#include "client/lease/part_codec.h"
#include "cuda/host/host_copy.h"
#include "terrace/checksum.h"
#include "terrace/chunk.h"
#include "terrace/client.h"

namespace terrace {
namespace {

using client::kForked;
using client::kLeaseGone;
using client::LeaseCopy;
using client::WrittenPart;

// A revoked writer stops within this many bytes.
constexpr size_t kCopyPieceBytes = 256 * kKiB;
static_assert(kCopyPieceBytes % kChecksumLeafBytes == 0);

constexpr Status kNoLease(StatusCode::kInvalid, "there is no lease");

bool IsUsable(const std::shared_ptr<LeaseState>& lease) {
  return lease != nullptr && !lease->owner->is_forked();
}

void End(const std::shared_ptr<LeaseState>& lease, protocol::EndReason reason) {
  if (!IsUsable(lease)) return;
  lease->end_reason = static_cast<uint8_t>(reason);
  lease->is_end_wanted = true;
  lease->is_valid = false;
  lease->owner->SendEndIfDue(*lease);
}

// The caller is wrong. What `sentence` makes, for a person, is in Client::last_error().
template <typename Sentence>
Status Refused(const LeaseState& lease, const char* what, const Sentence& sentence) {
  try {
    lease.owner->SetError(sentence());
  } catch (const std::bad_alloc&) {
    // The code and `what` say it, too.
  }
  return Status(StatusCode::kInvalid, what);
}

std::string Number(uint64_t value) { return std::to_string(value); }

Status NotReserved(const LeaseState& lease, uint32_t key_index, uint32_t member) {
  return Refused(lease, "that key is not reserved for that member", [&] {
    return "key " + Number(key_index) + " of " + Number(lease.reserved.size()) +
           " is not reserved for member " + Number(member) +
           " (WriteLease::keys() says which are, member_mask for whom): pass it over";
  });
}

Status WrongSize(const LeaseState& lease, uint32_t member, uint32_t part_index, size_t bytes) {
  return Refused(lease, "not the size of a part of that Space", [&] {
    const std::vector<uint64_t>& parts = lease.member(member).engine_part_bytes;
    const std::string part = "part " + Number(part_index) + " of member " + Number(member);
    if (part_index >= parts.size()) {
      return part + ": its Space has " + Number(parts.size()) + " parts, from 0 on";
    }
    return part + " has " + Number(parts[part_index]) + " bytes, and the buffer " + Number(bytes) +
           ": pass as many as part_bytes() says";
  });
}

// The first part of a chunk's block says where it stood; without that nobody could read the block,
// nor store it again.
Status CheckHeader(const LeaseState& lease, uint32_t key_index, uint32_t member,
                   uint32_t part_index, std::span<const std::byte> bytes) {
  if (part_index != 0 || !lease.group->is_of_chunks()) return Status::Ok();
  if (ChunkHeader::Read(bytes).ok()) return Status::Ok();
  return Refused(lease, "no header of a chunk", [&] {
    return "part 0 of key " + Number(key_index) + ", member " + Number(member) +
           ", is to be the header of a chunk, and these bytes are none: store through a "
           "PagedCache, or write what ChunkHeader::Write makes";
  });
}

// kOk if the part exists and this lease may write it.
Status CheckPart(const std::shared_ptr<LeaseState>& lease, uint32_t key_index, uint32_t member,
                 uint32_t part_index) {
  if (lease == nullptr) return kNoLease;
  if (lease->owner->is_forked()) return kForked;
  if (lease->WriteSlot(key_index, member) == nullptr) return NotReserved(*lease, key_index, member);
  if (part_index >= lease->member(member).part_count()) {
    return WrongSize(*lease, member, part_index, 0);
  }
  return Status::Ok();
}

std::span<std::byte> PartOf(LeaseState& lease, uint32_t key_index, uint32_t member,
                            uint32_t part_index) {
  const client::GroupMember& layout = lease.member(member);
  return {lease.WriteSlot(key_index, member) + layout.part_offset_bytes[part_index],
          layout.part_bytes[part_index]};
}

// The keys of a joined lease are not known here: its checksums are the daemon's.
WrittenPart::Kind KindOf(const LeaseState& lease) {
  return lease.keys.empty() ? WrittenPart::Kind::kUnchecked : WrittenPart::Kind::kChecksummed;
}

uint64_t SeedOf(const LeaseState& lease, uint32_t key_index, uint32_t member, uint32_t part_index) {
  return ChecksumSeed(lease.attachment->secret(), {.space = lease.member(member).space,
                                                   .key = lease.keys[key_index],
                                                   .commit_id = lease.reserved[key_index].commit_id,
                                                   .part_index = part_index});
}

std::span<const uint64_t> PartBytesOf(const std::shared_ptr<LeaseState>& lease, uint32_t member) {
  if (lease == nullptr || lease->group == nullptr || member >= lease->group->members().size()) {
    return {};
  }
  return lease->member(member).engine_part_bytes;
}

Status EncodeInto(LeaseState& lease, const SpaceCodec& codec, std::span<const std::byte> from,
                  std::span<std::byte> to) {
  const Status encoded = client::EncodePart(codec, from, to, lease.is_valid);
  if (encoded.code() == StatusCode::kUnsupported) lease.parts_refused.fetch_add(1);
  return encoded;
}

WrittenPart Written(uint32_t key_index, uint32_t member, uint32_t part_index,
                    WrittenPart::Kind kind) {
  return {.key_index = key_index,
          .member = static_cast<uint16_t>(member),
          .part_index = static_cast<uint16_t>(part_index),
          .kind = kind};
}

// One thread's write of a part, which nobody commits meanwhile. What does not come to End is
// forgotten.
class PartWrite {
 public:
  PartWrite(LeaseState& lease, const WrittenPart& part)
      : lease_(lease), part_(part), begun_(lease.BeginPart(part)), is_open_(begun_.ok()) {}
  ~PartWrite() {
    if (is_open_) lease_.ForgetPart(part_);
  }
  PartWrite(const PartWrite&) = delete;
  PartWrite& operator=(const PartWrite&) = delete;

  Status begun() const { return begun_; }
  bool is_checksummed() const { return part_.kind == WrittenPart::Kind::kChecksummed; }
  Status End(const Checksum& checksum) {
    if (!lease_.is_valid.load()) return kLeaseGone;
    part_.checksum = checksum;
    const Status ended = lease_.EndPart(part_);
    is_open_ = !ended.ok();
    return ended;
  }

 private:
  LeaseState& lease_;
  WrittenPart part_;
  const Status begun_;
  bool is_open_;
};

}  // namespace

ReadLease::ReadLease() = default;
ReadLease::ReadLease(std::shared_ptr<LeaseState> state) : state_(std::move(state)) {}
ReadLease::ReadLease(ReadLease&&) noexcept = default;
ReadLease& ReadLease::operator=(ReadLease&& other) noexcept {
  if (this != &other) {
    Release();
    state_ = std::move(other.state_);
  }
  return *this;
}
ReadLease::~ReadLease() { Release(); }

uint32_t ReadLease::block_count() const { return state_ == nullptr ? 0 : state_->block_count; }
uint32_t ReadLease::token_count() const { return state_ == nullptr ? 0 : state_->token_count; }
std::span<const protocol::BlockSpan> ReadLease::spans() const {
  if (state_ == nullptr) return {};
  return state_->spans;
}
uint32_t ReadLease::ready_count() const {
  return state_ == nullptr ? 0 : state_->ready_count.load();
}

std::span<const std::byte> ReadLease::slot(uint32_t block_index, uint32_t member) const {
  if (!IsUsable(state_)) return {};
  const std::byte* first = state_->ReadSlot(block_index, member);
  if (first == nullptr) return {};
  return {first, state_->member(member).slot_bytes};
}

std::span<const uint64_t> ReadLease::part_bytes(uint32_t member) const {
  return PartBytesOf(state_, member);
}

bool ReadLease::is_part_ready(uint32_t block_index, uint32_t member, uint32_t part_index) const {
  return IsUsable(state_) && state_->is_part_readable(block_index, member, part_index);
}

Status ReadLease::CopyPart(uint32_t block_index, uint32_t member, uint32_t part_index,
                           std::span<std::byte> to) const {
  if (state_ == nullptr) return kNoLease;
  if (state_->owner->is_forked()) return kForked;
  // Before the slot: what a followed block is without is heard before the block is ready.
  const bool is_readable = state_->is_part_readable(block_index, member, part_index);
  const std::byte* const first = state_->ReadSlot(block_index, member);
  if (first == nullptr) {
    return Refused(*state_, "that member has no bytes there", [&] {
      return "block " + Number(block_index) + " of " + Number(state_->block_count) +
             " has no bytes of member " + Number(member) +
             ": it is absent there, or not in the lease's member_mask";
    });
  }
  if (!state_->IsHostReadable(block_index, member)) {
    return Status(StatusCode::kUnsupported,
                  "that block lies in a GPU's memory: load it into pages, or acquire without the "
                  "flag for device memory");
  }
  const client::GroupMember& layout = state_->member(member);
  if (part_index >= layout.part_count() || to.size() != layout.engine_part_bytes[part_index]) {
    return WrongSize(*state_, member, part_index, to.size());
  }
  if (!is_readable) {
    return state_->is_valid.load() ? Status(StatusCode::kBusy, "that part is not ready yet")
                                   : kLeaseGone;
  }
  const LeaseCopy copy(*state_);
  if (!state_->is_valid.load()) return kLeaseGone;
  const std::span<const std::byte> from(first + layout.part_offset_bytes[part_index],
                                        layout.part_bytes[part_index]);
  if (layout.codec.IsEncoded(part_index)) {
    return client::DecodePart(layout.codec, from, to, state_->is_valid);
  }
  CopyBytes(to, from);
  return state_->is_valid.load() ? Status::Ok() : kLeaseGone;
}

LeaseToken ReadLease::token() const { return state_ == nullptr ? LeaseToken() : state_->token; }
bool ReadLease::is_valid() const { return IsUsable(state_) && state_->is_valid.load(); }
void ReadLease::Release(protocol::EndReason reason) { End(state_, reason); }

WriteLease::WriteLease() = default;
WriteLease::WriteLease(std::shared_ptr<LeaseState> state) : state_(std::move(state)) {}
WriteLease::WriteLease(WriteLease&&) noexcept = default;
WriteLease& WriteLease::operator=(WriteLease&& other) noexcept {
  if (this != &other) {
    Abort();
    state_ = std::move(other.state_);
  }
  return *this;
}
WriteLease::~WriteLease() { Abort(); }

std::span<const protocol::ReservedKey> WriteLease::keys() const {
  if (state_ == nullptr) return {};
  return state_->reserved;
}
bool WriteLease::is_reserved(uint32_t key_index) const {
  return state_ != nullptr && state_->is_reserved(key_index);
}

std::span<std::byte> WriteLease::slot(uint32_t key_index, uint32_t member) const {
  if (!IsUsable(state_)) return {};
  std::byte* first = state_->WriteSlot(key_index, member);
  if (first == nullptr) return {};
  // Said before is_valid is looked at: a revocation either sees it or is seen.
  state_->has_raw_slots = true;
  if (!state_->is_valid.load()) return {};
  return {first, state_->member(member).slot_bytes};
}

std::span<const uint64_t> WriteLease::part_bytes(uint32_t member) const {
  return PartBytesOf(state_, member);
}

Status WriteLease::WritePart(uint32_t key_index, uint32_t member, uint32_t part_index,
                             std::span<const std::byte> from) {
  TERRACE_RETURN_IF_ERROR(CheckPart(state_, key_index, member, part_index));
  std::span<std::byte> to = PartOf(*state_, key_index, member, part_index);
  const client::GroupMember& layout = state_->member(member);
  if (from.size() != layout.engine_part_bytes[part_index]) {
    return WrongSize(*state_, member, part_index, from.size());
  }
  TERRACE_RETURN_IF_ERROR(CheckHeader(*state_, key_index, member, part_index, from));
  const LeaseCopy copy(*state_);
  if (!state_->is_valid.load()) return kLeaseGone;
  PartWrite write(*state_, Written(key_index, member, part_index, KindOf(*state_)));
  TERRACE_RETURN_IF_ERROR(write.begun());
  const uint64_t seed = write.is_checksummed() ? SeedOf(*state_, key_index, member, part_index) : 0;
  if (layout.codec.IsEncoded(part_index)) {
    TERRACE_RETURN_IF_ERROR(EncodeInto(*state_, layout.codec, from, to));
    return write.End(write.is_checksummed() ? ChecksumPart(to, seed) : Checksum());
  }
  ChecksumStream checksum(seed);
  while (!from.empty()) {
    if (!state_->is_valid.load()) return kLeaseGone;
    const size_t piece_bytes = std::min(kCopyPieceBytes, from.size());
    if (write.is_checksummed()) {
      CopyAndAppend(to.first(piece_bytes), from.first(piece_bytes), &checksum);
    } else {
      CopyBytes(to.first(piece_bytes), from.first(piece_bytes));
    }
    to = to.subspan(piece_bytes);
    from = from.subspan(piece_bytes);
  }
  return write.End(write.is_checksummed() ? checksum.Finish() : Checksum());
}

Status WriteLease::ChecksumWrittenPart(uint32_t key_index, uint32_t member, uint32_t part_index) {
  TERRACE_RETURN_IF_ERROR(CheckPart(state_, key_index, member, part_index));
  WrittenPart part = Written(key_index, member, part_index, KindOf(*state_));
  const LeaseCopy copy(*state_);
  if (!state_->is_valid.load()) return kLeaseGone;
  const std::span<const std::byte> bytes = PartOf(*state_, key_index, member, part_index);
  TERRACE_RETURN_IF_ERROR(CheckHeader(*state_, key_index, member, part_index, bytes));
  if (part.kind == WrittenPart::Kind::kChecksummed) {
    part.checksum = ChecksumPart(bytes, SeedOf(*state_, key_index, member, part_index));
  }
  return state_->is_valid.load() ? state_->Remember(part) : kLeaseGone;
}

Status WriteLease::MarkWrittenPart(uint32_t key_index, uint32_t member, uint32_t part_index) {
  TERRACE_RETURN_IF_ERROR(CheckPart(state_, key_index, member, part_index));
  if (!state_->is_valid.load()) return kLeaseGone;
  return state_->Remember(Written(key_index, member, part_index, WrittenPart::Kind::kUnchecked));
}

Status WriteLease::MarkAbsent(uint32_t key_index, uint32_t member) {
  if (state_ == nullptr) return kNoLease;
  if (state_->owner->is_forked()) return kForked;
  if (!state_->is_reserved(key_index) || state_->MemberOrdinal(member) < 0) {
    return NotReserved(*state_, key_index, member);
  }
  if (!state_->member(member).is_windowed) {
    return Refused(*state_, "only windowed members may be absent", [&] {
      return "member " + Number(member) + " has no window, so its bytes are needed: write it";
    });
  }
  if (!state_->is_valid.load()) return kLeaseGone;
  return state_->Remember(Written(key_index, member, 0, WrittenPart::Kind::kAbsent));
}

LeaseToken WriteLease::token() const { return state_ == nullptr ? LeaseToken() : state_->token; }
bool WriteLease::is_valid() const { return IsUsable(state_) && state_->is_valid.load(); }
void WriteLease::Abort() { End(state_, protocol::EndReason::kUnknown); }

}  // namespace terrace
