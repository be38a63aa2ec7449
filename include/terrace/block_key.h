// The 128-bit names of the cache. Formulas and golden vectors: docs/PROTOCOL.md.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace {

// Sixteen bytes: on the wire and on disk `low` then `high`, both little-endian. Distinct types for
// distinct meanings, so that a SpaceId is never looked up as a key.
template <typename Tag>
struct Id128 {
  uint64_t low = 0;
  uint64_t high = 0;

  friend constexpr bool operator==(const Id128&, const Id128&) = default;
  friend constexpr auto operator<=>(const Id128& a, const Id128& b) {
    return a.high != b.high ? a.high <=> b.high : a.low <=> b.low;
  }
  constexpr bool is_zero() const { return low == 0 && high == 0; }
};

struct BlockKeyTag {};
struct SpaceIdTag {};
struct GroupIdTag {};
struct LeaseTokenTag {};
struct ChecksumTag {};

using BlockKey = Id128<BlockKeyTag>;      // one block's tokens and everything before them
using SpaceId = Id128<SpaceIdTag>;        // digest of a Space's canonical text
using GroupId = Id128<GroupIdTag>;        // digest of a SpaceGroup's SpaceIds, ranks in order
using LeaseToken = Id128<LeaseTokenTag>;  // the right to touch slots; random
using Checksum = Id128<ChecksumTag>;      // root of one part's checksum tree

// Shared by all members' commits of one block; drawn at random when the block is reserved.
using CommitId = uint64_t;

// 32 lower-case hex digits, `high` first.
std::string ToHex(uint64_t high, uint64_t low);
template <typename Tag>
std::string ToHex(const Id128<Tag>& id) {
  return ToHex(id.high, id.low);
}

// Reads what ToHex writes. kInvalid unless `text` is exactly 32 hex digits.
Status ParseHex(std::string_view text, uint64_t* high, uint64_t* low);
template <typename Tag>
Result<Id128<Tag>> ParseId(std::string_view text) {
  Id128<Tag> id;
  TERRACE_RETURN_IF_ERROR(ParseHex(text, &id.high, &id.low));
  return id;
}

}  // namespace terrace

template <typename Tag>
struct std::hash<terrace::Id128<Tag>> {
  size_t operator()(const terrace::Id128<Tag>& id) const noexcept {
    // The bits are already a digest or random: any 64 of them will do.
    return static_cast<size_t>(id.low ^ (id.high << 1));
  }
};
