// Group: a SpaceGroup as this Client opened it: layout of its slots, and the handle by which the
// present connection names it. Groups are never closed, so a GroupRef is an index for ever.
//
// THREADING: everything but the binding is constant after Create; the binding is atomic.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/link/timed_lock.h"
#include "terrace/block_key.h"
#include "terrace/codec.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace::client {

inline constexpr uint32_t kGroupsMax = 256;  // opened by one Client

struct GroupMember {
  SpaceId space;
  uint64_t slot_bytes = 0;
  bool is_windowed = false;
  std::vector<uint64_t> part_bytes;  // in a slot
  std::vector<uint64_t> part_offset_bytes;
  std::vector<uint64_t> engine_part_bytes;  // as the engine holds them: more, under a lossy codec
  SpaceCodec codec;

  uint32_t part_count() const { return static_cast<uint32_t>(part_bytes.size()); }
};

class Group {
 public:
  // kInvalid with `*why` if the spec is, or self_mask names members it has not.
  static Result<std::unique_ptr<Group>> Create(const SpaceGroupSpec& spec, uint64_t self_mask,
                                               std::string* why);

  const GroupId& id() const { return id_; }
  const std::string& name() const { return name_; }
  uint32_t block_tokens() const { return block_tokens_; }
  uint64_t self_mask() const { return self_mask_; }
  const std::vector<GroupMember>& members() const { return members_; }
  bool is_of_chunks() const { return members_[0].codec.has_chunk_header; }  // all, or none
  bool has_members(uint64_t mask) const;

  // Body of the Open request.
  std::span<const std::byte> open_body() const { return open_body_; }
  // Checks the body of its reply. kInvalid with `*why` if it names another group.
  Result<uint32_t> DecodeOpenReply(std::span<const std::byte> body, std::string* why) const;

  // The handle that `connection` gave it; 0 if it did not.
  uint32_t handle(uint32_t connection) const;
  void Bind(uint32_t connection, uint32_t handle);

 private:
  Group() = default;

  std::string name_;
  GroupId id_;
  uint64_t self_mask_ = 0;
  uint32_t block_tokens_ = 0;
  std::vector<GroupMember> members_;
  std::vector<std::byte> open_body_;
  std::atomic<uint64_t> binding_{0};  // connection in the upper half, handle in the lower
};

// The groups of a Client, in the order of their GroupRefs.
class GroupTable {
 public:
  // The group of that index; null if there is none.
  Group* At(uint32_t index) const;
  // The index of `group`, or of an equal one that is here already. kNoSpace above kGroupsMax.
  Result<uint32_t> Add(std::unique_ptr<Group> group);
  uint32_t count() const { return count_.load(std::memory_order_acquire); }

 private:
  TimedLock lock_;
  std::atomic<uint32_t> count_{0};
  std::array<std::unique_ptr<Group>, kGroupsMax> groups_;
};

}  // namespace terrace::client
