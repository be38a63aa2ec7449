// The C ABI: requests, blocking and not.
#include <cstddef>
#include <string>
#include <vector>

#include "client/c/c_api.h"
#include "terrace/protocol_retention.h"

using namespace terrace;
using namespace terrace::client;

namespace terrace::client {

static_assert(TERRACE_KEYS_FLAT == protocol::kKeysFlat);
static_assert(TERRACE_ACQUIRE_FOLLOW == protocol::kAcquireFollow);
static_assert(TERRACE_ACQUIRE_BY_PARTS == protocol::kAcquireByParts);
static_assert(TERRACE_EVICT_DRY_RUN == protocol::kEvictDryRun);
static_assert(TERRACE_EVICT_SUBTREE == protocol::kEvictSubtree);
static_assert(TERRACE_PIN_CLEAR == protocol::kPinClear);
static_assert(TERRACE_COMMIT_RELEASE == protocol::kCommitRelease);
static_assert(TERRACE_HINT_PIN == protocol::kHintPin);
static_assert(TERRACE_HINT_NO_STORE == protocol::kHintNoStore);
static_assert(TERRACE_HINT_EXACT == protocol::kHintExact);
static_assert(TERRACE_HINT_TTL_FROM_HITS == protocol::kHintTtlFromHits);
static_assert(TERRACE_HINT_TTL_OF_PRIORITY == protocol::kHintTtlOfPriority);
static_assert(TERRACE_PRIORITY_UNSET == protocol::kPriorityUnset);
static_assert(TERRACE_END_ABORTED == static_cast<int>(protocol::EndReason::kAborted));
static_assert(TERRACE_UNSUPPORTED == static_cast<int>(StatusCode::kUnsupported));
static_assert(TERRACE_ATTENTION_CHUNKED == static_cast<int>(AttentionKind::kChunked));
static_assert(TERRACE_TIER_REDIS == static_cast<int>(protocol::TierKind::kRedis));
static_assert(TERRACE_BLOCK_SEALED == static_cast<int>(protocol::BlockState::kSealed));
static_assert(sizeof(terrace_queried_block) == sizeof(protocol::QueriedBlock));

// Its first version ended there.
constexpr size_t kRequestBytesMin = offsetof(terrace_request, load_deadline_us);

terrace_status ReadRequest(const terrace_request* from, size_t key_count, RequestOptions* options) {
  terrace_request request = TERRACE_REQUEST_INIT;
  if (from != nullptr) {
    const terrace_status status = ReadStruct(from, kRequestBytesMin, &request);
    if (status != TERRACE_OK) return status;
  }
  if (request.end_reason > TERRACE_END_ABORTED ||
      (request.priority > protocol::kPriorityMax && request.priority != TERRACE_PRIORITY_UNSET)) {
    return TERRACE_INVALID;
  }
  options->deadline_us = request.deadline_us;
  options->member_mask = request.member_mask;
  options->parent = FromC<BlockKey>(request.parent);
  options->first_position = request.first_position;
  options->flags = request.flags;
  options->hints.recompute_ns_per_token = request.recompute_ns_per_token;
  options->hints.session_hash = request.session_hash;
  options->hints.ttl_s = request.ttl_s;
  options->hints.min_tokens = request.min_tokens;
  options->hints.expected_reuse_ms = request.expected_reuse_ms;
  options->hints.end_reason = static_cast<protocol::EndReason>(request.end_reason);
  options->hints.priority = request.priority;
  options->hints.flags = request.hint_flags;
  options->load_deadline_us = request.load_deadline_us;
  if (request.event_hashes != nullptr) options->event_hashes = {request.event_hashes, key_count};
  return TERRACE_OK;
}

}  // namespace terrace::client

namespace {

// One call with keys: checks what came from C and runs `call(client, group, keys, options)`.
template <typename Call>
terrace_status WithKeys(terrace_client* client, terrace_group group, const terrace_id* keys,
                        size_t key_count, const terrace_request* request, Call call) {
  if (client == nullptr || (keys == nullptr && key_count > 0)) return TERRACE_INVALID;
  return Guarded([&] {
    RequestOptions options;
    const terrace_status status = ReadRequest(request, key_count, &options);
    if (status != TERRACE_OK) return status;
    return call(*client->client, GroupRef{.index = group}, KeysOf(keys, key_count), options);
  });
}

// Gives `made` to the caller's lease, or says why there is none.
template <typename Lease, typename CLease>
terrace_status Hand(Result<Lease> made, CLease* lease) {
  if (!made.ok()) return ToC(made.status());
  PutLease(std::move(*made), lease);
  return TERRACE_OK;
}

template <typename Value>
terrace_status HandValue(const Result<Value>& made, Value* value) {
  if (!made.ok()) return ToC(made.status());
  if (value != nullptr) *value = *made;
  return TERRACE_OK;
}

uint32_t KindOf(protocol::Verb verb) {
  switch (verb) {
    case protocol::Verb::kAcquire:
      return TERRACE_ACQUIRED;
    case protocol::Verb::kPrefetch:
      return TERRACE_PREFETCHED;
    case protocol::Verb::kReserve:
      return TERRACE_RESERVED;
    default:
      return TERRACE_COMMITTED;
  }
}

terrace_completion CompletionOf(ClientCompletion&& from) {
  terrace_completion completion = TERRACE_COMPLETION_INIT;
  completion.kind = KindOf(from.verb);
  completion.user_data = from.user_data;
  completion.status = ToC(from.status);
  completion.block_count = from.block_count;
  if (from.status.ok() && completion.kind == TERRACE_ACQUIRED) {
    PutLease(std::move(from.read_lease), &completion.read_lease);
  }
  if (from.status.ok() && completion.kind == TERRACE_RESERVED) {
    PutLease(std::move(from.write_lease), &completion.write_lease);
  }
  return completion;
}

void EndLeases(terrace_completion* completion) {
  EndLease<ReadLease>(&completion->read_lease);
  EndLease<WriteLease>(&completion->write_lease);
}

// `take(client, taken)` is false if there is no completion.
template <typename Take>
terrace_status TakeCompletion(terrace_client* client, terrace_completion* completion, Take take) {
  if (client == nullptr || completion == nullptr ||
      completion->struct_bytes < sizeof(terrace_completion)) {
    return TERRACE_INVALID;
  }
  return Guarded([&] {
    EndLeases(completion);
    ClientCompletion finished;
    if (!take(*client->client, &finished)) return terrace_status{TERRACE_NOT_FOUND};
    return WriteStruct(CompletionOf(std::move(finished)), sizeof(terrace_completion), completion);
  });
}

// Two words: a std::function keeps them without allocating.
struct CallC {
  terrace_callback callback;
  void* context;

  void operator()(ClientCompletion&& from) const {
    terrace_completion completion = CompletionOf(std::move(from));
    callback(context, &completion);
    EndLeases(&completion);
  }
};

CompletionCallback CallbackOf(terrace_callback callback, void* context) {
  if (callback == nullptr) return nullptr;
  return CallC{.callback = callback, .context = context};
}

}  // namespace

// ---- Reading ----

terrace_status terrace_match(terrace_client* client, terrace_group group, const terrace_id* keys,
                             size_t key_count, const terrace_request* request,
                             terrace_match_result* result) {
  if (result == nullptr) return TERRACE_INVALID;
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    const Result<MatchResult> matched = c.Match(g, k, o);
    if (!matched.ok()) return ToC(matched.status());
    return WriteStruct({.struct_bytes = 0,
                        .block_count = matched->block_count,
                        .token_count = matched->token_count,
                        .is_bound = matched->is_bound ? 1u : 0u},
                       sizeof(terrace_match_result), result);
  });
}

terrace_status terrace_prefetch(terrace_client* client, terrace_group group, const terrace_id* keys,
                                size_t key_count, const terrace_request* request,
                                uint32_t* block_count) {
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return HandValue(c.Prefetch(g, k, o), block_count);
  });
}

terrace_status terrace_acquire(terrace_client* client, terrace_group group, const terrace_id* keys,
                               size_t key_count, const terrace_request* request,
                               terrace_read_lease* lease) {
  if (lease == nullptr) return TERRACE_INVALID;
  EndLease<ReadLease>(lease);
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return Hand(c.Acquire(g, k, o), lease);
  });
}

terrace_status terrace_join_read(terrace_client* client, terrace_group group, terrace_id token,
                                 uint64_t member_mask, terrace_read_lease* lease) {
  return terrace_join_read_flagged(client, group, token, member_mask, 0, lease);
}

terrace_status terrace_join_read_flagged(terrace_client* client, terrace_group group,
                                         terrace_id token, uint64_t member_mask, uint32_t flags,
                                         terrace_read_lease* lease) {
  if (client == nullptr || lease == nullptr) return TERRACE_INVALID;
  EndLease<ReadLease>(lease);
  return Guarded([&] {
    return Hand(
        client->client->JoinRead({.index = group}, FromC<LeaseToken>(token), member_mask, flags),
        lease);
  });
}

terrace_status terrace_wait_ready(terrace_client* client, const terrace_read_lease* lease,
                                  uint32_t block_count, uint64_t deadline_us) {
  const ReadLease* live = LiveLease<ReadLease>(lease);
  if (client == nullptr || live == nullptr) return TERRACE_INVALID;
  return Guarded([&] { return ToC(client->client->WaitReady(*live, block_count, deadline_us)); });
}

// ---- Writing ----

terrace_status terrace_reserve(terrace_client* client, terrace_group group, const terrace_id* keys,
                               size_t key_count, const terrace_request* request,
                               terrace_write_lease* lease) {
  if (lease == nullptr) return TERRACE_INVALID;
  EndLease<WriteLease>(lease);
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return Hand(c.Reserve(g, k, o), lease);
  });
}

terrace_status terrace_join_write(terrace_client* client, terrace_group group, terrace_id token,
                                  uint64_t member_mask, terrace_write_lease* lease) {
  if (client == nullptr || lease == nullptr) return TERRACE_INVALID;
  EndLease<WriteLease>(lease);
  return Guarded([&] {
    return Hand(client->client->JoinWrite({.index = group}, FromC<LeaseToken>(token), member_mask),
                lease);
  });
}

terrace_status terrace_commit(terrace_client* client, terrace_write_lease* lease,
                              const terrace_request* request, uint32_t* sealed_count) {
  if (sealed_count != nullptr) *sealed_count = 0;
  WriteLease* live = LiveLease<WriteLease>(lease);
  if (live == nullptr) return TERRACE_INVALID;
  return WithKeys(
      client, TERRACE_GROUP_NONE, nullptr, 0, request,
      [&](auto& c, auto, auto, auto& o) { return HandValue(c.Commit(*live, o), sealed_count); });
}

// ---- Asynchronous ----

terrace_status terrace_acquire_async(terrace_client* client, terrace_group group,
                                     const terrace_id* keys, size_t key_count,
                                     const terrace_request* request, uint64_t user_data,
                                     terrace_callback callback, void* context) {
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return ToC(c.AcquireAsync(g, k, o, user_data, CallbackOf(callback, context)));
  });
}

terrace_status terrace_prefetch_async(terrace_client* client, terrace_group group,
                                      const terrace_id* keys, size_t key_count,
                                      const terrace_request* request, uint64_t user_data,
                                      terrace_callback callback, void* context) {
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return ToC(c.PrefetchAsync(g, k, o, user_data, CallbackOf(callback, context)));
  });
}

terrace_status terrace_reserve_async(terrace_client* client, terrace_group group,
                                     const terrace_id* keys, size_t key_count,
                                     const terrace_request* request, uint64_t user_data,
                                     terrace_callback callback, void* context) {
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return ToC(c.ReserveAsync(g, k, o, user_data, CallbackOf(callback, context)));
  });
}

terrace_status terrace_commit_async(terrace_client* client, terrace_write_lease* lease,
                                    const terrace_request* request, uint64_t user_data,
                                    terrace_callback callback, void* context) {
  WriteLease* live = LiveLease<WriteLease>(lease);
  if (live == nullptr) return TERRACE_INVALID;
  return WithKeys(client, TERRACE_GROUP_NONE, nullptr, 0, request,
                  [&](auto& c, auto, auto, auto& o) {
                    return ToC(c.CommitAsync(*live, o, user_data, CallbackOf(callback, context)));
                  });
}

terrace_status terrace_poll(terrace_client* client, terrace_completion* completion) {
  return TakeCompletion(client, completion,
                        [](Client& from, ClientCompletion* taken) { return from.Poll(taken); });
}

terrace_status terrace_poll_until(terrace_client* client, uint64_t deadline_us,
                                  terrace_completion* completion) {
  return TakeCompletion(client, completion, [deadline_us](Client& from, ClientCompletion* taken) {
    return from.PollUntil(taken, deadline_us);
  });
}

int terrace_event_fd(const terrace_client* client) {
  return client == nullptr ? -1 : client->client->event_fd();
}

// ---- The rest ----

terrace_status terrace_touch(terrace_client* client, terrace_group group, const terrace_id* keys,
                             size_t key_count, const terrace_request* request) {
  return WithKeys(client, group, keys, key_count, request,
                  [&](auto& c, auto g, auto k, auto& o) { return ToC(c.Touch(g, k, o)); });
}

terrace_status terrace_query(terrace_client* client, terrace_group group, const terrace_id* keys,
                             size_t key_count, const terrace_request* request,
                             terrace_queried_block* blocks) {
  if (blocks == nullptr && key_count > 0) return TERRACE_INVALID;
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    std::vector<protocol::QueriedBlock> queried;
    const Status status = c.Query(g, k, &queried, o);
    if (!status.ok()) return ToC(status);
    if (queried.size() != k.size()) return terrace_status{TERRACE_IO};
    for (size_t i = 0; i < queried.size(); ++i) {
      blocks[i] = {.state = static_cast<uint8_t>(queried[i].state),
                   .tier_mask = queried[i].tier_mask,
                   .priority = queried[i].priority,
                   .flags = queried[i].flags,
                   .lease_count = queried[i].lease_count,
                   .commit_id = queried[i].commit_id};
    }
    return terrace_status{TERRACE_OK};
  });
}

terrace_status terrace_wait_persisted(terrace_client* client, terrace_group group,
                                      const terrace_id* keys, size_t key_count,
                                      const terrace_request* request) {
  return WithKeys(client, group, keys, key_count, request,
                  [&](auto& c, auto g, auto k, auto& o) { return ToC(c.WaitPersisted(g, k, o)); });
}

terrace_status terrace_evict(terrace_client* client, terrace_group group, const terrace_id* keys,
                             size_t key_count, const terrace_request* request,
                             terrace_evict_result* result) {
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    const Result<protocol::EvictReply> evicted = c.Evict(g, k, o);
    if (!evicted.ok()) return ToC(evicted.status());
    if (result == nullptr) return terrace_status{TERRACE_OK};
    return WriteStruct({.struct_bytes = 0,
                        .reserved = 0,
                        .block_count = evicted->block_count,
                        .byte_count = evicted->byte_count,
                        .skipped_count = evicted->skipped_count},
                       sizeof(terrace_evict_result), result);
  });
}

terrace_status terrace_pin(terrace_client* client, terrace_group group, const terrace_id* keys,
                           size_t key_count, const terrace_request* request,
                           uint32_t* block_count) {
  return WithKeys(client, group, keys, key_count, request, [&](auto& c, auto g, auto k, auto& o) {
    return HandValue(c.Pin(g, k, o), block_count);
  });
}

terrace_status terrace_reset(terrace_client* client, terrace_group group) {
  if (client == nullptr) return TERRACE_INVALID;
  return Guarded([&] { return ToC(client->client->Reset({.index = group})); });
}

terrace_status terrace_stats(terrace_client* client, uint64_t deadline_us, char* json,
                             size_t json_bytes, size_t* needed_bytes) {
  if (needed_bytes != nullptr) *needed_bytes = 0;
  if (client == nullptr || (json == nullptr && json_bytes > 0)) return TERRACE_INVALID;
  return Guarded([&] {
    const Result<std::string> stats = client->client->Stats(deadline_us);
    if (!stats.ok()) return ToC(stats.status());
    const size_t text_bytes = WriteText(*stats, json, json_bytes);
    if (needed_bytes != nullptr) *needed_bytes = text_bytes + 1;
    return terrace_status{text_bytes < json_bytes ? TERRACE_OK : TERRACE_NO_SPACE};
  });
}
