// The C ABI: the client, Spaces, keys.
#include "client/c/c_api.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "terrace/codec.h"

using namespace terrace;
using namespace terrace::client;

namespace terrace::client {

size_t WriteText(std::string_view text, char* to, size_t to_bytes) {
  if (to != nullptr && to_bytes > 0) {
    const size_t copied_bytes = std::min(text.size(), to_bytes - 1);
    std::memcpy(to, text.data(), copied_bytes);
    to[copied_bytes] = '\0';
  }
  return text.size();
}

}  // namespace terrace::client

namespace {

const terrace_client_options kClientOptions = TERRACE_CLIENT_OPTIONS_INIT;
constexpr size_t kFirstClientOptionsBytes = offsetof(terrace_client_options, pinned_bytes_max);
const terrace_space kSpace = TERRACE_SPACE_INIT;
const terrace_group_spec kGroupSpec = TERRACE_GROUP_SPEC_INIT;

}  // namespace

terrace_status terrace::client::ReadSpace(const terrace_space* from, SpaceGroupMember* member,
                                          std::string* why) {
  terrace_space space = kSpace;
  const terrace_status status = ReadStruct(from, sizeof(terrace_space), &space);
  if (status != TERRACE_OK) {
    *why = "a terrace_space has a wrong struct_bytes: begin with TERRACE_SPACE_INIT";
    return status;
  }
  if (space.attention > TERRACE_ATTENTION_CHUNKED) {
    *why = "attention is " + std::to_string(space.attention) + ": use a TERRACE_ATTENTION_ value";
    return TERRACE_INVALID;
  }
  if (space.part_bytes == nullptr || space.part_count > kPartsPerSpaceMax) {
    *why = "part_bytes is missing, or part_count " + std::to_string(space.part_count) +
           " is above " + std::to_string(kPartsPerSpaceMax);
    return TERRACE_INVALID;
  }
  SpaceSpec& spec = member->spec;
  spec.model = TextOf(space.model);
  spec.revision = TextOf(space.revision);
  spec.adapter = TextOf(space.adapter);
  spec.dtype = TextOf(space.dtype);
  spec.quantisation = TextOf(space.quantisation);
  spec.layout = TextOf(space.layout);
  spec.salt = TextOf(space.salt);
  spec.layers = space.layers;
  spec.kv_heads = space.kv_heads;
  spec.head_size = space.head_size;
  spec.attention = static_cast<AttentionKind>(space.attention);
  spec.window_tokens = space.window_tokens;
  spec.block_tokens = space.block_tokens;
  spec.tp_rank = space.tp_rank;
  spec.tp_size = space.tp_size;
  spec.pp_rank = space.pp_rank;
  spec.pp_size = space.pp_size;
  spec.cp_rank = space.cp_rank;
  spec.cp_size = space.cp_size;
  spec.attention_group = space.attention_group;
  spec.part_bytes.assign(space.part_bytes, space.part_bytes + space.part_count);
  member->is_remote = space.is_remote != 0;
  return TERRACE_OK;
}

namespace {

terrace_status ReadGroupSpec(const terrace_group_spec* from, SpaceGroupSpec* spec,
                             std::string* why) {
  terrace_group_spec group = kGroupSpec;
  const terrace_status status = ReadStruct(from, sizeof(terrace_group_spec), &group);
  if (status != TERRACE_OK) {
    *why = "a terrace_group_spec has a wrong struct_bytes: begin with TERRACE_GROUP_SPEC_INIT";
    return status;
  }
  if (group.members == nullptr || group.member_count > kGroupMembersMax) {
    *why = "members is missing, or member_count " + std::to_string(group.member_count) +
           " is above " + std::to_string(kGroupMembersMax);
    return TERRACE_INVALID;
  }
  spec->name = TextOf(group.name);
  spec->members.resize(group.member_count);
  for (uint32_t i = 0; i < group.member_count; ++i) {
    const terrace_status member = ReadSpace(group.members[i], &spec->members[i], why);
    if (member != TERRACE_OK) return member;
  }
  return ToC(spec->Validate(why));
}

}  // namespace

uint32_t terrace_abi_version() { return TERRACE_ABI_VERSION; }

const char* terrace_status_name(terrace_status status) {
  if (status < 0 || status >= kStatusCodeCount) return "unknown";
  return StatusCodeName(static_cast<StatusCode>(status)).data();
}

// ---- The client ----

terrace_status terrace_client_create(const terrace_client_options* options, terrace_client** client,
                                     char* why, size_t why_bytes) {
  WriteText("", why, why_bytes);
  if (client == nullptr) return Refuse("client is NULL", why, why_bytes);
  *client = nullptr;
  return Guarded([&] {
    terrace_client_options read = kClientOptions;
    const terrace_status status = ReadStruct(options, kFirstClientOptionsBytes, &read);
    if (status != TERRACE_OK) {
      return Refuse(
          "terrace_client_options has a wrong struct_bytes: begin with TERRACE_CLIENT_OPTIONS_INIT",
          why, why_bytes, status);
    }
    std::shared_ptr<const Device> device;
    if (read.device != nullptr && (device = DeviceOf(*read.device)) == nullptr) {
      return Refuse("device is the parent's: a forked child opens its own", why, why_bytes,
                    TERRACE_GONE);
    }
    std::string sentence;
    auto made = std::make_unique<terrace_client>();
    Result<std::unique_ptr<Client>> created =
        Client::Create({.socket_path = TextOf(read.socket_path),
                        .client_name = TextOf(read.client_name),
                        .default_deadline_us = read.default_deadline_us,
                        .reconnect_backoff_ms_max = read.reconnect_backoff_ms_max,
                        .pending_requests_max = read.pending_requests_max,
                        .send_buffer_bytes_max = read.send_buffer_bytes_max,
                        .reply_spin_us = read.reply_spin_us,
                        .device = std::move(device),
                        .pinned_bytes_max = read.pinned_bytes_max},
                       &sentence);
    if (!created.ok()) return Refuse(sentence, why, why_bytes, ToC(created.status()));
    made->client = std::move(*created);
    *client = made.release();
    return terrace_status{TERRACE_OK};
  });
}

void terrace_client_destroy(terrace_client* client) { delete client; }

terrace_status terrace_client_wait_connected(terrace_client* client, uint64_t deadline_us) {
  if (client == nullptr) return TERRACE_INVALID;
  return Guarded([&] { return ToC(client->client->WaitConnected(deadline_us)); });
}

int terrace_client_is_connected(const terrace_client* client) {
  return client != nullptr && client->client->is_connected() ? 1 : 0;
}

uint64_t terrace_client_boot_id(const terrace_client* client) {
  return client == nullptr ? 0 : client->client->boot_id();
}

int terrace_client_is_bypassed(const terrace_client* client, uint64_t* request_count) {
  if (request_count != nullptr) {
    *request_count = client == nullptr ? 0 : client->client->bypassed_count();
  }
  return client != nullptr && client->client->is_bypassed() ? 1 : 0;
}

int terrace_client_is_reader(const terrace_client* client) {
  return client != nullptr && client->client->is_reader() ? 1 : 0;
}

size_t terrace_client_last_error(const terrace_client* client, char* text, size_t text_bytes) {
  WriteText("", text, text_bytes);
  if (client == nullptr) return 0;
  size_t sentence_bytes = 0;
  (void)Guarded([&] {
    sentence_bytes = WriteText(client->client->last_error(), text, text_bytes);
    return terrace_status{TERRACE_OK};
  });
  return sentence_bytes;
}

// ---- Spaces ----

terrace_status terrace_group_spec_check(const terrace_group_spec* spec, terrace_id* id, char* why,
                                        size_t why_bytes) {
  WriteText("", why, why_bytes);
  return Guarded([&] {
    SpaceGroupSpec group;
    std::string sentence;
    const terrace_status status = ReadGroupSpec(spec, &group, &sentence);
    if (status != TERRACE_OK) return Refuse(sentence, why, why_bytes, status);
    if (id != nullptr) *id = ToC(group.Id());
    return status;
  });
}

terrace_status terrace_space_layout(const terrace_space* space, uint32_t part_index,
                                    uint64_t* part_offset_bytes, uint64_t* slot_bytes) {
  return Guarded([&] {
    SpaceGroupMember member;
    std::string sentence;
    terrace_status status = ReadSpace(space, &member, &sentence);
    if (status == TERRACE_OK) status = ToC(member.spec.Validate(&sentence));
    if (status != TERRACE_OK) return status;
    if (part_index >= member.spec.part_bytes.size()) return terrace_status{TERRACE_INVALID};
    if (part_offset_bytes != nullptr) {
      *part_offset_bytes = member.spec.part_offset_bytes(part_index);
    }
    if (slot_bytes != nullptr) *slot_bytes = member.spec.slot_bytes();
    return status;
  });
}

terrace_status terrace_space_codec_parts(const terrace_space* space, uint64_t* slot_part_bytes,
                                         uint64_t* engine_part_bytes, char* why, size_t why_bytes) {
  WriteText("", why, why_bytes);
  return Guarded([&] {
    SpaceGroupMember member;
    std::string sentence;
    const terrace_status read = ReadSpace(space, &member, &sentence);
    if (read != TERRACE_OK) return Refuse(sentence, why, why_bytes, read);
    std::vector<uint64_t> in_slots = member.spec.part_bytes;
    std::vector<uint64_t> engine = in_slots;
    if (IsLossy(member.spec) || IsOfChunks(member.spec)) {
      SpaceCodec codec;
      const auto part_count = static_cast<uint32_t>(in_slots.size());
      const Status named = SpaceCodec::Named(member.spec, part_count, &codec, &sentence);
      if (!named.ok()) return Refuse(sentence, why, why_bytes, ToC(named));
      in_slots = codec.EncodedPartBytes();
      engine = codec.RawPartBytes();
    }
    if (slot_part_bytes != nullptr) std::copy(in_slots.begin(), in_slots.end(), slot_part_bytes);
    if (engine_part_bytes != nullptr) std::copy(engine.begin(), engine.end(), engine_part_bytes);
    return terrace_status{TERRACE_OK};
  });
}

terrace_status terrace_open(terrace_client* client, const terrace_group_spec* spec,
                            uint64_t self_mask, uint64_t deadline_us, terrace_group* group,
                            char* why, size_t why_bytes) {
  WriteText("", why, why_bytes);
  if (client == nullptr || group == nullptr) {
    return Refuse("client or group is NULL", why, why_bytes);
  }
  *group = TERRACE_GROUP_NONE;
  return Guarded([&] {
    SpaceGroupSpec read;
    std::string sentence;
    const terrace_status status = ReadGroupSpec(spec, &read, &sentence);
    if (status != TERRACE_OK) return Refuse(sentence, why, why_bytes, status);
    const Result<GroupRef> opened = client->client->Open(read, self_mask, deadline_us);
    if (!opened.ok()) {
      return Refuse(client->client->last_error(), why, why_bytes, ToC(opened.status()));
    }
    *group = opened->index;
    return terrace_status{TERRACE_OK};
  });
}

// ---- Keys ----

terrace_status terrace_hash_tokens(terrace_client* client, terrace_group group,
                                   const terrace_id* parent, const uint32_t* tokens,
                                   size_t token_count, terrace_id* keys, size_t key_capacity,
                                   size_t* key_count) {
  if (client == nullptr || key_count == nullptr || (tokens == nullptr && token_count > 0) ||
      (keys == nullptr && key_capacity > 0)) {
    return TERRACE_INVALID;
  }
  *key_count = 0;
  return Guarded([&] {
    const Result<PrefixHasher> hasher = client->client->Hasher({.index = group});
    if (!hasher.ok()) return ToC(hasher.status());
    const uint32_t block_tokens = hasher->block_tokens();
    const size_t count = std::min(token_count / block_tokens, key_capacity);
    BlockKey key = parent == nullptr ? hasher->Root() : FromC<BlockKey>(*parent);
    for (size_t i = 0; i < count; ++i) {
      key = hasher->Next(key, {tokens + i * block_tokens, block_tokens});
      keys[i] = ToC(key);
    }
    *key_count = count;
    return terrace_status{TERRACE_OK};
  });
}

terrace_status terrace_hash_digests(terrace_client* client, terrace_group group,
                                    const void* digests, size_t digest_bytes, size_t digest_count,
                                    terrace_id* keys) {
  if (client == nullptr || ((digests == nullptr || keys == nullptr) && digest_count > 0)) {
    return TERRACE_INVALID;
  }
  return Guarded([&] {
    const Result<PrefixHasher> hasher = client->client->Hasher({.index = group});
    if (!hasher.ok()) return ToC(hasher.status());
    const std::byte* bytes = static_cast<const std::byte*>(digests);
    for (size_t i = 0; i < digest_count; ++i) {
      const Result<BlockKey> key = hasher->FromDigest({bytes + i * digest_bytes, digest_bytes});
      if (!key.ok()) return ToC(key.status());
      keys[i] = ToC(*key);
    }
    return terrace_status{TERRACE_OK};
  });
}
