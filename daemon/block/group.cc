#include "daemon/block/group.h"

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
      if (space.attention == AttentionKind::kChunked) local.chunk_tokens = space.window_tokens;
      local.block_tokens = space.block_tokens;
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

uint64_t Group::BytesOf(uint64_t member_mask) const {
  if ((member_mask & local_mask_) == local_mask_) return block_bytes_;
  uint64_t bytes = 0;
  for (const LocalMember& local : locals_) {
    if ((member_mask >> local.member) & 1) bytes += local.slot_bytes;
  }
  return bytes;
}

void Group::PlanPartReads(uint64_t read_bytes_min) {
  for (LocalMember& local : locals_) {
    local.part_runs.clear();
    uint64_t begin_bytes = 0;
    uint32_t first = 0;
    for (uint32_t part = 0; part < local.part_count; ++part) {
      const bool is_last = part + 1 == local.part_count;
      const uint64_t end_bytes = is_last ? local.slot_bytes : local.part_offset_bytes[part + 1];
      const uint64_t length_bytes = end_bytes - begin_bytes;
      if (length_bytes < read_bytes_min && !is_last) continue;
      if (length_bytes < read_bytes_min && !local.part_runs.empty()) {
        local.part_runs.back().part_count += part + 1 - first;  // what is left is too little
        local.part_runs.back().length_bytes += length_bytes;
        break;
      }
      local.part_runs.push_back({.part_first = first,
                                 .part_count = part + 1 - first,
                                 .offset_bytes = begin_bytes,
                                 .length_bytes = length_bytes});
      begin_bytes = end_bytes;
      first = part + 1;
    }
    step_count_ = std::max(step_count_, static_cast<uint32_t>(local.part_runs.size()));
  }
}

const LocalMember* Group::FindLocal(uint32_t member) const {
  for (const LocalMember& local : locals_) {
    if (local.member == member) return &local;
  }
  return nullptr;
}

}  // namespace terrace
