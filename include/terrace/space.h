// Space: everything that must be equal for KV bytes to be interchangeable. SpaceGroup: the Spaces
// of one model instance, declared whole; a Block belongs to a SpaceGroup.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kPartsPerSpaceMax = 128;
inline constexpr uint32_t kGroupMembersMax = 64;
inline constexpr uint64_t kPartAlignmentBytes = 4096;
inline constexpr size_t kSpaceTextBytesMax = 4096;
inline constexpr size_t kSpaceStringBytesMax = 512;  // of one field, before escaping
inline constexpr uint32_t kBlockTokensMax = 65536;
inline constexpr size_t kGroupNameBytesMax = 128;

enum class AttentionKind : uint8_t { kMha, kGqa, kMla, kSliding, kState, kChunked };

// One rank's share of one attention group of one model. Every field is part of the identity: specs
// that differ anywhere are different Spaces.
struct SpaceSpec {
  std::string model;         // model id, as the operator names it; required
  std::string revision;      // weights revision or digest; required
  std::string adapter;       // LoRA adapter and its revision, or empty
  std::string dtype;         // KV element type as really used, e.g. "bf16"; required
  std::string quantisation;  // KV quantisation scheme, or empty; "terrace:…" is terrace/codec.h's
  uint32_t layers = 0;       // layers in this Space, > 0
  uint32_t kv_heads = 0;     // KV heads on this rank, > 0
  uint32_t head_size = 0;    // elements per head, > 0
  AttentionKind attention = AttentionKind::kGqa;
  // > 0 exactly for kSliding and kState (trailing tokens needed) and kChunked (tokens of a chunk,
  // of which those before the next token are needed).
  uint32_t window_tokens = 0;
  std::string layout;                 // memory layout id, e.g. "nhd"; required
  uint32_t block_tokens = 0;          // tokens per block, > 0
  uint32_t tp_rank = 0, tp_size = 1;  // tensor parallel
  uint32_t pp_rank = 0, pp_size = 1;  // pipeline parallel
  uint32_t cp_rank = 0, cp_size = 1;  // context parallel
  uint32_t attention_group = 0;       // index among a hybrid model's attention groups
  std::string salt;                   // cache salt, or empty
  std::vector<uint64_t> part_bytes;   // bytes of each part in a slot, in layer order; 1..128 parts

  // Windowed members keep only a trailing window of a prompt.
  bool is_windowed() const { return window_tokens > 0; }
  // Blocks a windowed member needs before position p, at most: ceil(window_tokens / block_tokens).
  uint32_t window_blocks() const;
  // Bytes of one slot: every part starts at a multiple of kPartAlignmentBytes. A valid spec's slot
  // fits the largest segment.
  uint64_t slot_bytes() const;
  uint64_t part_offset_bytes(uint32_t part_index) const;

  // kInvalid with `*why` naming field, value, limit and remedy.
  Status Validate(std::string* why) const;

  // The canonical text: one "field=value\n" per field in a fixed order; strings are
  // percent-escaped. Equal specs have equal texts and the other way round.
  std::string CanonicalText() const;
  // Reads exactly what CanonicalText() writes, and nothing else that means the same; says nothing
  // about Validate(). kInvalid with `*why`, and `*spec` untouched, otherwise.
  static Status Parse(std::string_view canonical_text, SpaceSpec* spec, std::string* why);

  // XXH3-128 (no secret) of CanonicalText().
  SpaceId Id() const;

  friend bool operator==(const SpaceSpec&, const SpaceSpec&) = default;
};

// The first field in which two specs differ: name and both values as canonical text. Empty name if
// they are equal. What a refused Open and `explain` print.
struct SpaceDifference {
  std::string field;
  std::string left;
  std::string right;
};
SpaceDifference FirstDifference(const SpaceSpec& left, const SpaceSpec& right);

// The number of fields in which they differ; `explain` lists Spaces at distance one first.
uint32_t CountDifferences(const SpaceSpec& left, const SpaceSpec& right);

struct SpaceGroupMember {
  SpaceSpec spec;
  // A member whose bytes live on another host: a match over it is a bound, never a hit.
  bool is_remote = false;

  friend bool operator==(const SpaceGroupMember&, const SpaceGroupMember&) = default;
};

// All ranks and attention groups of one model instance, ranks in order. All members share
// block_tokens; there is at least one member without a window.
struct SpaceGroupSpec {
  std::string name;  // what people call it, unique in its domain, e.g. "llama3-70b"; required
  std::vector<SpaceGroupMember> members;

  Status Validate(std::string* why) const;
  // XXH3-128 (no secret) over the members' SpaceIds in order. The name is not part of it.
  GroupId Id() const;
  uint32_t block_tokens() const { return members.empty() ? 0 : members[0].spec.block_tokens; }
  // Bit m is set for every member m without (with) a window.
  uint64_t full_member_mask() const;
  uint64_t windowed_member_mask() const;
  uint64_t local_member_mask() const;
};

}  // namespace terrace
