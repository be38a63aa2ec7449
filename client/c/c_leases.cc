// The C ABI: what a lease's holder does.
#include "client/c/c_api.h"
#include "terrace/chunk.h"

using namespace terrace;
using namespace terrace::client;

namespace {

ReadLease* Live(const terrace_read_lease* lease) { return LiveLease<ReadLease>(lease); }
WriteLease* Live(const terrace_write_lease* lease) { return LiveLease<WriteLease>(lease); }

constexpr terrace_id kNoId = {.low = 0, .high = 0};

terrace_reserved_key ToCKey(const protocol::ReservedKey& reserved) {
  return {.status = reserved.status,
          .writer_age_ms = reserved.is_passed_by != 0 ? 1 : reserved.writer_age_ms,
          .commit_id = reserved.commit_id};
}

}  // namespace

// ---- Reading ----

uint32_t terrace_read_lease_block_count(const terrace_read_lease* lease) {
  const ReadLease* live = Live(lease);
  return live == nullptr ? 0 : live->block_count();
}

uint32_t terrace_read_lease_token_count(const terrace_read_lease* lease) {
  const ReadLease* live = Live(lease);
  return live == nullptr ? 0 : live->token_count();
}

uint32_t terrace_read_lease_ready_count(const terrace_read_lease* lease) {
  const ReadLease* live = Live(lease);
  return live == nullptr ? 0 : live->ready_count();
}

terrace_id terrace_read_lease_token(const terrace_read_lease* lease) {
  const ReadLease* live = Live(lease);
  return live == nullptr ? kNoId : ToC(live->token());
}

int terrace_read_lease_is_valid(const terrace_read_lease* lease) {
  const ReadLease* live = Live(lease);
  return live != nullptr && live->is_valid() ? 1 : 0;
}

int terrace_read_lease_is_in_device(const terrace_read_lease* lease, uint32_t block_index) {
  const ReadLease* live = Live(lease);
  if (live == nullptr) return 0;
  for (const protocol::BlockSpan& span : live->spans()) {
    if (block_index - span.first_block < span.block_count) {
      return span.tier == protocol::TierKind::kHbm ? 1 : 0;
    }
  }
  return 0;
}

uint32_t terrace_read_lease_spans(const terrace_read_lease* lease, terrace_span* spans,
                                  uint32_t span_capacity) {
  const ReadLease* live = Live(lease);
  if (live == nullptr) return 0;
  const std::span<const protocol::BlockSpan> all = live->spans();
  for (size_t i = 0; i < all.size() && i < span_capacity && spans != nullptr; ++i) {
    spans[i] = {.first_block = all[i].first_block,
                .block_count = all[i].block_count,
                .state = static_cast<uint8_t>(all[i].state),
                .tier = static_cast<uint8_t>(all[i].tier),
                .reserved = 0,
                .eta_us = all[i].eta_us};
  }
  return static_cast<uint32_t>(all.size());
}

const void* terrace_read_lease_slot(const terrace_read_lease* lease, uint32_t block_index,
                                    uint32_t member, uint64_t* slot_bytes) {
  if (slot_bytes != nullptr) *slot_bytes = 0;
  const ReadLease* live = Live(lease);
  if (live == nullptr || block_index >= live->ready_count()) return nullptr;
  const std::span<const std::byte> slot = live->slot(block_index, member);
  if (slot_bytes != nullptr) *slot_bytes = slot.size();
  return slot.data();
}

int terrace_read_lease_is_part_ready(const terrace_read_lease* lease, uint32_t block_index,
                                     uint32_t member, uint32_t part_index) {
  const ReadLease* live = Live(lease);
  if (live == nullptr || block_index >= live->block_count()) return 0;
  return live->is_part_ready(block_index, member, part_index) ? 1 : 0;
}

terrace_status terrace_read_lease_copy_part(const terrace_read_lease* lease, uint32_t block_index,
                                            uint32_t member, uint32_t part_index, void* to,
                                            size_t to_bytes) {
  const ReadLease* live = Live(lease);
  if (live == nullptr || to == nullptr || block_index >= live->block_count()) {
    return TERRACE_INVALID;
  }
  return Guarded([&] {
    return ToC(
        live->CopyPart(block_index, member, part_index, {static_cast<std::byte*>(to), to_bytes}));
  });
}

terrace_status terrace_read_lease_chunk_position(const terrace_read_lease* lease,
                                                 uint32_t block_index, uint32_t member,
                                                 uint32_t* first_token_position) {
  if (first_token_position == nullptr) return TERRACE_INVALID;
  std::byte bytes[kChunkHeaderBytes];
  const terrace_status copied =
      terrace_read_lease_copy_part(lease, block_index, member, 0, bytes, sizeof(bytes));
  if (copied != TERRACE_OK) return copied;
  const Result<ChunkHeader> header = ChunkHeader::Read(bytes);
  if (!header.ok()) return ToC(header.status());
  *first_token_position = header->first_token_position;
  return TERRACE_OK;
}

terrace_status terrace_read_lease_copy_blocks(const terrace_read_lease* lease, uint32_t member,
                                              uint32_t first_block, uint32_t block_count,
                                              void* const* to) {
  const ReadLease* live = Live(lease);
  if (live == nullptr || to == nullptr ||
      uint64_t{first_block} + block_count > live->block_count()) {
    return TERRACE_INVALID;
  }
  return Guarded([&] {
    const std::span<const uint64_t> part_bytes = live->part_bytes(member);
    if (part_bytes.empty()) return terrace_status{TERRACE_INVALID};
    for (uint32_t block = 0; block < block_count; ++block) {
      for (uint32_t part = 0; part < part_bytes.size(); ++part) {
        std::byte* place = static_cast<std::byte*>(to[block * part_bytes.size() + part]);
        if (place == nullptr) return terrace_status{TERRACE_INVALID};
        const Status status =
            live->CopyPart(first_block + block, member, part, {place, part_bytes[part]});
        if (!status.ok()) return ToC(status);
      }
    }
    return terrace_status{TERRACE_OK};
  });
}

void terrace_read_lease_release(terrace_read_lease* lease, uint32_t end_reason) {
  ReadLease* live = Live(lease);
  if (live == nullptr) return;
  const uint32_t reason = end_reason > TERRACE_END_ABORTED ? 0 : end_reason;
  (void)Guarded([&] {
    live->Release(static_cast<protocol::EndReason>(reason));
    return terrace_status{TERRACE_OK};
  });
  EndLease<ReadLease>(lease);
}

// ---- Writing ----

uint32_t terrace_write_lease_key_count(const terrace_write_lease* lease) {
  const WriteLease* live = Live(lease);
  return live == nullptr ? 0 : static_cast<uint32_t>(live->keys().size());
}

terrace_status terrace_write_lease_key(const terrace_write_lease* lease, uint32_t key_index,
                                       terrace_reserved_key* key) {
  const WriteLease* live = Live(lease);
  if (live == nullptr || key == nullptr || key_index >= live->keys().size()) {
    return TERRACE_INVALID;
  }
  *key = ToCKey(live->keys()[key_index]);
  return TERRACE_OK;
}

uint32_t terrace_write_lease_keys(const terrace_write_lease* lease, terrace_reserved_key* keys,
                                  uint32_t key_capacity) {
  const WriteLease* live = Live(lease);
  if (live == nullptr) return 0;
  const std::span<const protocol::ReservedKey> all = live->keys();
  const size_t count = keys == nullptr ? 0 : std::min<size_t>(all.size(), key_capacity);
  std::ranges::transform(all.first(count), keys, ToCKey);
  return static_cast<uint32_t>(all.size());
}

terrace_id terrace_write_lease_token(const terrace_write_lease* lease) {
  const WriteLease* live = Live(lease);
  return live == nullptr ? kNoId : ToC(live->token());
}

int terrace_write_lease_is_valid(const terrace_write_lease* lease) {
  const WriteLease* live = Live(lease);
  return live != nullptr && live->is_valid() ? 1 : 0;
}

void* terrace_write_lease_slot(const terrace_write_lease* lease, uint32_t key_index,
                               uint32_t member, uint64_t* slot_bytes) {
  if (slot_bytes != nullptr) *slot_bytes = 0;
  const WriteLease* live = Live(lease);
  if (live == nullptr) return nullptr;
  const std::span<std::byte> slot = live->slot(key_index, member);
  if (slot_bytes != nullptr) *slot_bytes = slot.size();
  return slot.data();
}

terrace_status terrace_write_lease_write_part(terrace_write_lease* lease, uint32_t key_index,
                                              uint32_t member, uint32_t part_index,
                                              const void* from, size_t from_bytes) {
  WriteLease* live = Live(lease);
  if (live == nullptr || from == nullptr) return TERRACE_INVALID;
  return Guarded([&] {
    return ToC(live->WritePart(key_index, member, part_index,
                               {static_cast<const std::byte*>(from), from_bytes}));
  });
}

terrace_status terrace_write_lease_write_blocks(terrace_write_lease* lease, uint32_t member,
                                                uint32_t first_key, uint32_t key_count,
                                                const void* const* from) {
  WriteLease* live = Live(lease);
  if (live == nullptr || from == nullptr || uint64_t{first_key} + key_count > live->keys().size()) {
    return TERRACE_INVALID;
  }
  return Guarded([&] {
    const std::span<const uint64_t> part_bytes = live->part_bytes(member);
    if (part_bytes.empty()) return terrace_status{TERRACE_INVALID};
    Status not_encoded;
    for (uint32_t key = 0; key < key_count; ++key) {
      if (!live->is_reserved(first_key + key)) continue;
      for (uint32_t part = 0; part < part_bytes.size(); ++part) {
        const std::byte* bytes =
            static_cast<const std::byte*>(from[key * part_bytes.size() + part]);
        if (bytes == nullptr) return terrace_status{TERRACE_INVALID};
        const Status status =
            live->WritePart(first_key + key, member, part, {bytes, part_bytes[part]});
        if (status.code() == StatusCode::kUnsupported) {  // of what is in it: others may be fine
          not_encoded = status;
          break;
        }
        if (!status.ok()) return ToC(status);
      }
    }
    return ToC(not_encoded);
  });
}

terrace_status terrace_write_lease_checksum_part(terrace_write_lease* lease, uint32_t key_index,
                                                 uint32_t member, uint32_t part_index) {
  WriteLease* live = Live(lease);
  if (live == nullptr) return TERRACE_INVALID;
  return Guarded([&] { return ToC(live->ChecksumWrittenPart(key_index, member, part_index)); });
}

terrace_status terrace_write_lease_mark_part(terrace_write_lease* lease, uint32_t key_index,
                                             uint32_t member, uint32_t part_index) {
  WriteLease* live = Live(lease);
  if (live == nullptr) return TERRACE_INVALID;
  return Guarded([&] { return ToC(live->MarkWrittenPart(key_index, member, part_index)); });
}

terrace_status terrace_write_lease_mark_absent(terrace_write_lease* lease, uint32_t key_index,
                                               uint32_t member) {
  WriteLease* live = Live(lease);
  if (live == nullptr) return TERRACE_INVALID;
  return Guarded([&] { return ToC(live->MarkAbsent(key_index, member)); });
}

void terrace_write_lease_abort(terrace_write_lease* lease) { EndLease<WriteLease>(lease); }
