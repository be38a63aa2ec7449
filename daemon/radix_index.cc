#include "daemon/radix_index.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>

#include "terrace/check.h"

namespace terrace {

namespace {

// Every lookup goes to another page of the buckets: with small ones it waits for the page walk
// first. Where there are no huge pages it goes on with small ones.
void UseHugePages(void* memory, size_t length_bytes) {
  constexpr uintptr_t kPageBytes = 4096;
  const uintptr_t begin =
      (reinterpret_cast<uintptr_t>(memory) + kPageBytes - 1) & ~(kPageBytes - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + length_bytes) & ~(kPageBytes - 1);
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

void RadixIndex::FreeDeleter::operator()(Bucket* buckets) const { std::free(buckets); }

RadixIndex::RadixIndex(const Options& options) : options_(options) {
  TERRACE_CHECK(options.blocks_max > 0 && options.blocks_max <= uint32_t{1} << 30,
                "blocks_max is 1 to 2^30");
  const uint32_t bucket_count = std::bit_ceil(options.blocks_max * 2);
  bucket_mask_ = bucket_count - 1;
  // calloc: pages nobody touches cost nothing.
  buckets_.reset(static_cast<Bucket*>(std::calloc(bucket_count, sizeof(Bucket))));
  TERRACE_CHECK(buckets_ != nullptr, "memory for the buckets of blocks_max blocks");
  UseHugePages(buckets_.get(), size_t{bucket_count} * sizeof(Bucket));
}

// The key is uniform for honest clients; the seed makes it so for the others.
uint32_t RadixIndex::HashOf(const BlockKey& key) const {
  uint64_t x = (key.low ^ options_.hash_seed) * 0x9E3779B97F4A7C15;
  x ^= x >> 32;
  x = (x ^ key.high) * 0xD6E8FEB86659FD93;
  x ^= x >> 32;
  return static_cast<uint32_t>(x);
}

void RadixIndex::FindAll(const BlockKey& key, std::vector<BlockId>* ids) const {
  const uint32_t hash = HashOf(key);
  for (uint32_t at = hash & bucket_mask_; buckets_[at].id_plus_1 != 0;
       at = (at + 1) & bucket_mask_) {
    if (buckets_[at].hash != hash) continue;
    const BlockId id = buckets_[at].id_plus_1 - 1;
    if (nodes_[id].key == key) ids->push_back(id);
  }
}

BlockId RadixIndex::Find(uint32_t group_index, const BlockKey& key) const {
  const uint32_t hash = HashOf(key);
  for (uint32_t at = hash & bucket_mask_; buckets_[at].id_plus_1 != 0;
       at = (at + 1) & bucket_mask_) {
    if (buckets_[at].hash != hash) continue;
    const BlockId id = buckets_[at].id_plus_1 - 1;
    const Node& node = nodes_[id];
    if (node.key == key && node.group_index == group_index) return id;
  }
  return kBlockNone;
}

BlockId RadixIndex::Insert(uint32_t group_index, const BlockKey& key, uint32_t position) {
  BlockId id = kBlockNone;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else if (id_count_ < options_.blocks_max) {
    id = id_count_++;
    nodes_.Reach(id);
  } else {
    return kBlockNone;
  }
  const uint32_t hash = HashOf(key);
  uint32_t at = hash & bucket_mask_;
  while (buckets_[at].id_plus_1 != 0) at = (at + 1) & bucket_mask_;
  buckets_[at] = {.id_plus_1 = id + 1, .hash = hash};

  nodes_[id] = Node{.key = key, .group_index = group_index, .position = position, .is_live = true};
  if (group_index >= groups_.size()) groups_.resize(group_index + 1);
  ++groups_[group_index].block_count;
  ++live_count_;
  LinkInto(id, kBlockNone);
  return id;
}

bool RadixIndex::Link(BlockId child, BlockId parent) {
  const Node& node = nodes_[child];
  const Node& above = nodes_[parent];
  TERRACE_CHECK(node.is_live && above.is_live, "edges join live blocks");
  if (node.parent != kBlockNone || node.group_index != above.group_index ||
      node.position != above.position + 1) {
    return false;
  }
  Unlink(child);
  LinkInto(child, parent);
  return true;
}

void RadixIndex::LinkInto(BlockId id, BlockId parent) {
  Node& node = nodes_[id];
  BlockId& head =
      parent == kBlockNone ? groups_[node.group_index].first_root : nodes_[parent].first_child;
  node.parent = parent;
  node.previous_sibling = kBlockNone;
  node.next_sibling = head;
  if (head != kBlockNone) nodes_[head].previous_sibling = id;
  head = id;
  if (parent != kBlockNone) ++nodes_[parent].child_count;
}

void RadixIndex::Unlink(BlockId id) {
  Node& node = nodes_[id];
  if (node.next_sibling != kBlockNone) {
    nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  }
  if (node.previous_sibling != kBlockNone) {
    nodes_[node.previous_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kBlockNone) {
    nodes_[node.parent].first_child = node.next_sibling;
  } else {
    groups_[node.group_index].first_root = node.next_sibling;
  }
  if (node.parent != kBlockNone) --nodes_[node.parent].child_count;
  node.parent = kBlockNone;
  node.previous_sibling = kBlockNone;
  node.next_sibling = kBlockNone;
}

void RadixIndex::Erase(BlockId id) {
  Node& node = nodes_[id];
  TERRACE_CHECK(node.is_live, "only a live block is erased");
  // Paths go tail first: what it hangs from is next.
  if (node.parent != kBlockNone) Prefetch(nodes_[node.parent].key);
  while (node.first_child != kBlockNone) {
    const BlockId child = node.first_child;
    Unlink(child);
    LinkInto(child, kBlockNone);
  }
  Unlink(id);
  uint32_t at = HashOf(node.key) & bucket_mask_;
  while (buckets_[at].id_plus_1 != id + 1) {
    TERRACE_CHECK(buckets_[at].id_plus_1 != 0, "a live block is in its chain of buckets");
    at = (at + 1) & bucket_mask_;
  }
  EraseBucket(at);
  node.is_live = false;
  --groups_[node.group_index].block_count;
  --live_count_;
}

// Closes the gap: whatever behind it hashes to it or before it moves up, so that no search ends
// early.
void RadixIndex::EraseBucket(uint32_t bucket) {
  uint32_t gap = bucket;
  for (uint32_t next = (gap + 1) & bucket_mask_; buckets_[next].id_plus_1 != 0;
       next = (next + 1) & bucket_mask_) {
    const uint32_t home = buckets_[next].hash & bucket_mask_;
    if (((next - home) & bucket_mask_) >= ((next - gap) & bucket_mask_)) {
      buckets_[gap] = buckets_[next];
      gap = next;
    }
  }
  buckets_[gap] = {};
}

void RadixIndex::Recycle(BlockId id) {
  TERRACE_CHECK(!nodes_[id].is_live, "an erased id is recycled");
  free_ids_.push_back(id);
}

BlockId RadixIndex::first_root(uint32_t group_index) const {
  return group_index < groups_.size() ? groups_[group_index].first_root : kBlockNone;
}

uint32_t RadixIndex::group_block_count(uint32_t group_index) const {
  return group_index < groups_.size() ? groups_[group_index].block_count : 0;
}

void RadixIndex::CheckInvariants() const {
  uint32_t live_count = 0;
  for (BlockId id = 0; id < id_count_; ++id) {
    const Node& node = nodes_[id];
    if (!node.is_live) continue;
    ++live_count;
    TERRACE_CHECK(Find(node.group_index, node.key) == id, "a live block is found by its key");
    uint32_t child_count = 0;
    BlockId previous = kBlockNone;
    for (BlockId child = node.first_child; child != kBlockNone;
         child = nodes_[child].next_sibling) {
      TERRACE_CHECK(nodes_[child].is_live && nodes_[child].parent == id &&
                        nodes_[child].previous_sibling == previous &&
                        nodes_[child].position == node.position + 1,
                    "children know their parent and are one position behind");
      previous = child;
      ++child_count;
    }
    TERRACE_CHECK(child_count == node.child_count, "children are counted");
  }
  TERRACE_CHECK(live_count == live_count_, "live blocks are counted");
  TERRACE_CHECK(id_count_ - free_ids_.size() >= live_count_, "ids are live, erased or free");
}

}  // namespace terrace
