#include "daemon/group.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

namespace {

Result<uint32_t> ClassFor(uint64_t slot_bytes, uint64_t owner, SlotAllocator* allocator,
                          SlotClasses* classes) {
  const auto known = classes->find({owner, slot_bytes});
  if (known != classes->end()) return known->second;
  const Result<uint32_t> added = allocator->AddClass(slot_bytes, owner);
  if (added.ok()) classes->emplace(std::pair(owner, slot_bytes), *added);
  return added;
}

}  // namespace

Status Group::Open(const SpaceGroupSpec& spec, uint64_t owner, SlotAllocator* allocator,
                   SlotClasses* classes) {
  for (uint32_t m = 0; m < spec.members.size(); ++m) {
    const SpaceSpec& space = spec.members[m].spec;
    if (spec.members[m].is_remote) {
      has_remote_ = true;
      continue;
    }
    LocalMember local;
    local.member = m;
    local.space = space.Id();
    local.slot_bytes = space.slot_bytes();
    const Result<uint32_t> class_index =
        ClassFor(local.slot_bytes, owner * kGroupMembersMax + m, allocator, classes);
    if (!class_index.ok()) return class_index.status();
    local.class_index = *class_index;
    local.part_count = static_cast<uint32_t>(space.part_bytes.size());
    local.part_bytes = space.part_bytes;
    for (uint32_t part = 0; part < local.part_count; ++part) {
      local.part_offset_bytes.push_back(space.part_offset_bytes(part));
    }
    local.first_root = root_count_;
    local.first_part_bit = part_words_ * 64;
    root_count_ += local.part_count;
    part_words_ += (local.part_count + 63) / 64;
    block_bytes_ += local.slot_bytes;
    local_mask_ |= uint64_t{1} << m;
    if (space.is_windowed()) {
      local.window_blocks = space.window_blocks();
      local.window_index = windowed_count_++;
    } else {
      full_mask_ |= uint64_t{1} << m;
    }
    locals_.push_back(std::move(local));
  }
  spec_ = spec;
  id_ = spec.Id();
  slots_ = RowPool<SlotRef>(static_cast<uint32_t>(locals_.size()));
  extents_ = RowPool<Extent>(static_cast<uint32_t>(locals_.size()));
  roots_ = RowPool<Checksum>(root_count_);
  return Status::Ok();
}

const LocalMember* Group::FindLocal(uint32_t member) const {
  for (const LocalMember& local : locals_) {
    if (local.member == member) return &local;
  }
  return nullptr;
}

}  // namespace terrace
