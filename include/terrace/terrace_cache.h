/* terrace_cache.h: clients, Spaces, requests and leases in the C ABI. Included by terrace.h, whose
 * page says what holds for every function: errors, units, memory, versions, threads, fork.
 *
 * OWNERSHIP: a client is the caller's to destroy; a lease lies in the caller's memory and is to be
 * released or aborted, before or after its client is destroyed.
 * THREADING: one lease object is one thread's at a time; any thread may call the rest.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TERRACE_API __attribute__((visibility("default")))
#else
#define TERRACE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TERRACE_ABI_VERSION 4u

/* What the caller does next; the same numbers as on the wire. */
typedef int32_t terrace_status;
enum {
  TERRACE_OK = 0,
  TERRACE_NOT_FOUND = 1,  /* recompute */
  TERRACE_EXISTS = 2,     /* somebody committed these bytes already: drop yours */
  TERRACE_NO_SPACE = 3,   /* skip caching; also a buffer of the caller's that is too small */
  TERRACE_BUSY = 4,       /* skip, or retry later; also a passed deadline */
  TERRACE_INVALID = 5,    /* the caller is wrong: fix it */
  TERRACE_CORRUPT = 6,    /* checksum mismatch: a miss, counted */
  TERRACE_IO = 7,         /* the operating system said no */
  TERRACE_GONE = 8,       /* stale boot, lease or generation: start again */
  TERRACE_UNSUPPORTED = 9 /* this build, machine or configuration cannot do it */
};

/* 128 bits; BlockKeys, ids of Spaces and groups, lease tokens. */
typedef struct terrace_id {
  uint64_t low;
  uint64_t high;
} terrace_id;

typedef struct terrace_client terrace_client;

/* Names an opened SpaceGroup for as long as its client lives. */
typedef uint32_t terrace_group;
#define TERRACE_GROUP_NONE 0xFFFFFFFFu

/* TERRACE_ABI_VERSION of the library: it serves callers of this version and of older ones. */
TERRACE_API uint32_t terrace_abi_version(void);
/* "not found", … of a status, "unknown" of any other number; never NULL, and not to be freed. */
TERRACE_API const char* terrace_status_name(terrace_status status);

/* ---- The client ------------------------------------------------------------------------------ */

typedef struct terrace_client_options {
  uint32_t struct_bytes;
  uint32_t default_deadline_us;      /* for calls that name none */
  const char* socket_path;           /* the domain's socket; required */
  const char* client_name;           /* shown by `terrace status`; at most 31 bytes */
  uint32_t reconnect_backoff_ms_max; /* retries grow from 10 ms to this, with jitter */
  uint32_t pending_requests_max;     /* further requests answer TERRACE_BUSY */
  uint64_t send_buffer_bytes_max;    /* unsent bytes kept; beyond: TERRACE_BUSY */
  uint32_t reply_spin_us;            /* a blocking caller polls this long before it sleeps */
  uint32_t reserved;                 /* 0 */
  /* Since ABI version 2; a shorter struct has no limit. */
  uint64_t pinned_bytes_max; /* of terrace_client_pin_arena, at a time; 0: nothing is registered */
  /* The device whose memory terraced keeps blocks in, too (hbm.device): this client maps it, and
   * has blocks copied there and back when terraced asks. NULL: none. A daemon without such a tier
   * says so in terrace_client_last_error, and everything else works. The client keeps the device.
   */
  const struct terrace_device* device;
} terrace_client_options;
#define TERRACE_CLIENT_OPTIONS_INIT                                                         \
  {                                                                                         \
    sizeof(terrace_client_options), 50000u, NULL, "engine", 1000u, 256u, 8u << 20, 50u, 0u, \
        UINT64_MAX, NULL                                                                    \
  }

/* Starts connecting in the background, on a thread of the client's, and returns at once: an absent
 * daemon is no error. *client is the caller's, for terrace_client_destroy. TERRACE_INVALID for bad
 * options, TERRACE_NO_SPACE or TERRACE_IO without a thread or descriptors, with the sentence in
 * `why` (why_bytes of room, always terminated; NULL with 0 is allowed). */
TERRACE_API terrace_status terrace_client_create(const terrace_client_options* options,
                                                 terrace_client** client, char* why,
                                                 size_t why_bytes);
/* Everything pending ends first, with TERRACE_GONE; callbacks have returned when it returns. Leases
 * that are still held stay mapped until they are released. From a callback, too: its thread ends
 * soon after. No other thread may be in a call of this client. NULL is allowed. */
TERRACE_API void terrace_client_destroy(terrace_client* client);
/* TERRACE_OK once there is a connection; TERRACE_BUSY at the deadline, though it is still tried;
 * TERRACE_INVALID, _UNSUPPORTED or _IO when the daemon or the system refused for good:
 * terrace_client_last_error has the sentence. deadline_us 0: only looks. */
TERRACE_API terrace_status terrace_client_wait_connected(terrace_client* client,
                                                         uint64_t deadline_us);
/* 1 while there is a connection, else 0. */
TERRACE_API int terrace_client_is_connected(const terrace_client* client);
/* 0 while not connected; another value means another daemon. */
TERRACE_API uint64_t terrace_client_boot_id(const terrace_client* client);
/* The last sentence for a person: the thing, the value, the limit, the remedy. One a client, of
 * whichever thread's call came last; an everyday answer leaves it as it was. Copies what there is
 * room for, always terminated. Returns its bytes without the terminator, also when `text` had no
 * room for all of them; NULL with 0 is allowed. */
TERRACE_API size_t terrace_client_last_error(const terrace_client* client, char* text,
                                             size_t text_bytes);

/* Since ABI version 4. 1 while an operator has the domain bypassed (`terrace drain --bypass`), else
 * 0: then lookups are misses, every key of a reserve is TERRACE_NO_SPACE and commits are dropped,
 * all at once and without the daemon; what is held stays readable, and there is nothing to do until
 * it is over. *request_count: requests answered so since the client began; NULL is allowed. */
TERRACE_API int terrace_client_is_bypassed(const terrace_client* client, uint64_t* request_count);

/* Since ABI version 4. 1 if this process may not store, as its user is not among the domain's
 * writer_uids, else 0, and before the first connection: memory is mapped to be read only;
 * reserving, joining to write, committing, evicting, pinning, resetting, and touching with hints of
 * the blocks, are TERRACE_UNSUPPORTED with the daemon's sentence; everything else works. */
TERRACE_API int terrace_client_is_reader(const terrace_client* client);

/* ---- Spaces ---------------------------------------------------------------------------------- */

enum {
  TERRACE_ATTENTION_MHA = 0,
  TERRACE_ATTENTION_GQA = 1,
  TERRACE_ATTENTION_MLA = 2,
  TERRACE_ATTENTION_SLIDING = 3,
  TERRACE_ATTENTION_STATE = 4,
  TERRACE_ATTENTION_CHUNKED = 5
};

/* One rank's share of one attention group of one model; every field is part of its identity.
 * space.h says what each means. Strings may be NULL where they may be empty. */
typedef struct terrace_space {
  uint32_t struct_bytes;
  uint32_t attention; /* TERRACE_ATTENTION_… */
  const char* model;
  const char* revision;
  const char* adapter;
  const char* dtype;
  const char* quantisation;
  const char* layout;
  const char* salt;
  const uint64_t* part_bytes; /* bytes of each part in a slot, in layer order */
  uint32_t part_count;        /* 1 … 128 */
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t head_size;
  uint32_t window_tokens; /* > 0 exactly for SLIDING, STATE and CHUNKED */
  uint32_t block_tokens;
  uint32_t tp_rank, tp_size;
  uint32_t pp_rank, pp_size;
  uint32_t cp_rank, cp_size;
  uint32_t attention_group;
  uint32_t is_remote; /* 1: this member's bytes live on another host */
} terrace_space;
#define TERRACE_SPACE_INIT                                                                        \
  {                                                                                               \
    sizeof(terrace_space), TERRACE_ATTENTION_GQA, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        0u, 0u, 0u, 0u, 0u, 0u, 0u, 1u, 0u, 1u, 0u, 1u, 0u, 0u                                    \
  }

/* All ranks and attention groups of one model instance, ranks in order. */
typedef struct terrace_group_spec {
  uint32_t struct_bytes;
  uint32_t member_count;
  const char* name; /* for people; equal members are one group, under the name it first had */
  const terrace_space* const* members;
} terrace_group_spec;
#define TERRACE_GROUP_SPEC_INIT \
  { sizeof(terrace_group_spec), 0u, NULL, NULL }

/* Checks a spec and gives the id of its group, *id, which names the same Spaces everywhere. Needs
 * no daemon. TERRACE_INVALID with the field, the value, the limit and the remedy in `why`. */
TERRACE_API terrace_status terrace_group_spec_check(const terrace_group_spec* spec, terrace_id* id,
                                                    char* why, size_t why_bytes);
/* Where part `part_index` lies in a slot, in bytes from its beginning, and the bytes of the slot.
 * Either may be NULL. TERRACE_INVALID if the Space cannot be, or has fewer parts. Needs no daemon.
 */
TERRACE_API terrace_status terrace_space_layout(const terrace_space* space, uint32_t part_index,
                                                uint64_t* part_offset_bytes, uint64_t* slot_bytes);
/* Of a Space whose quantisation names a codec of Terrace's ("terrace:int8", "terrace:fp8" or
 * "terrace:int4"), cut in its part_count parts: the part_bytes to declare, whatever it has there,
 * and the bytes that are written and copied, which the library encodes and decodes. Of a Space of
 * chunks (layout "chunk-nhd") the same, part 0 its blocks' header. Of any other Space both are its
 * part_bytes. Either may be NULL; needs no daemon. */
TERRACE_API terrace_status terrace_space_codec_parts(const terrace_space* space,
                                                     uint64_t* slot_part_bytes,
                                                     uint64_t* engine_part_bytes, char* why,
                                                     size_t why_bytes);
/* Declares the group, and waits for a connection if there is none. self_mask: bit m for every
 * member m of this process. *group stays valid while the client lives, over reconnects, too. A spec
 * that cannot be, and the daemon's refusal (a Space of that name with another spec), are
 * TERRACE_INVALID with the field and both values in `why`; TERRACE_NO_SPACE beyond 256 groups. */
TERRACE_API terrace_status terrace_open(terrace_client* client, const terrace_group_spec* spec,
                                        uint64_t self_mask, uint64_t deadline_us,
                                        terrace_group* group, char* why, size_t why_bytes);

/* One key per full block of `tokens`, which follow the block `parent` (NULL: a prompt's start, or,
 * in a group of chunks, a chunk's, wherever that stands).
 * A block is the block_tokens of the group; what does not fill one has no key. Writes at most
 * key_capacity keys, and to *key_count how many it has written. TERRACE_GONE while there is no
 * connection: the keys need the domain's secret. */
TERRACE_API terrace_status terrace_hash_tokens(terrace_client* client, terrace_group group,
                                               const terrace_id* parent, const uint32_t* tokens,
                                               size_t token_count, terrace_id* keys,
                                               size_t key_capacity, size_t* key_count);
/* Keys of an engine's own digests, digest_bytes (16 … 32) each, one behind the other; writes
 * digest_count keys. TERRACE_GONE while there is no connection. */
TERRACE_API terrace_status terrace_hash_digests(terrace_client* client, terrace_group group,
                                                const void* digests, size_t digest_bytes,
                                                size_t digest_count, terrace_id* keys);

/* ---- Requests -------------------------------------------------------------------------------- */

#define TERRACE_KEYS_FLAT 1u         /* keys are independent, not a chain */
#define TERRACE_ACQUIRE_FOLLOW 2u    /* also blocks that are being written, part by part */
#define TERRACE_EVICT_DRY_RUN 8u     /* count, evict nothing */
#define TERRACE_EVICT_SUBTREE 16u    /* with every descendant */
#define TERRACE_PIN_CLEAR 32u        /* unpin */
#define TERRACE_ACQUIRE_BY_PARTS 64u /* tell of parts of blocks that come from a lower tier */
/* Slots may be answered where they lie in the memory of the client's device. They are addresses of
 * the device's: kernels and terrace_pages_load read them, this process's threads only where the
 * device is the host. */
#define TERRACE_ACQUIRE_DEVICE 128u
#define TERRACE_COMMIT_RELEASE 1u /* a commit's: the lease ends with it */

#define TERRACE_HINT_PIN 1u              /* keep until unpinned or past its ttl_s */
#define TERRACE_HINT_NO_STORE 2u         /* never write these blocks below DRAM */
#define TERRACE_HINT_EXACT 4u            /* refuse blocks under a lossy codec, and chunks */
#define TERRACE_HINT_TTL_FROM_HITS 8u    /* ttl_s counts from the last hit */
#define TERRACE_HINT_TTL_OF_PRIORITY 16u /* ttl_s is how long the priority holds */

#define TERRACE_PRIORITY_UNSET 255u

enum {
  TERRACE_END_UNKNOWN = 0,
  TERRACE_END_TOOL_CALL = 1,
  TERRACE_END_OF_TURN = 2,
  TERRACE_END_LENGTH = 3,
  TERRACE_END_ABORTED = 4
};

/* Options and hints of one request; NULL stands for TERRACE_REQUEST_INIT. A hint that a verb has no
 * use for is TERRACE_INVALID, by name: docs/PROTOCOL.md, Hints. */
typedef struct terrace_request {
  uint32_t struct_bytes;
  uint32_t flags;
  uint64_t deadline_us;            /* 0: the client's default */
  uint64_t member_mask;            /* whose slots; 0: the self_mask of the group */
  terrace_id parent;               /* key before the first one; zero at a prompt's start */
  uint32_t first_position;         /* of the first key, in blocks */
  uint32_t recompute_ns_per_token; /* what a miss costs the engine */
  uint64_t session_hash;           /* the conversation this request belongs to */
  uint32_t ttl_s;                  /* forget after so many seconds; 0: never */
  uint32_t min_tokens;             /* answer 0 rather than a shorter prefix */
  uint32_t expected_reuse_ms;      /* 0: unknown */
  uint8_t end_reason;              /* TERRACE_END_… */
  uint8_t priority;                /* 0 first to go … 100 last, or TERRACE_PRIORITY_UNSET */
  uint8_t hint_flags;              /* TERRACE_HINT_… */
  uint8_t reserved;                /* 0 */
  const uint64_t* event_hashes;    /* reserve: the engine's own hash of each key, or NULL */
  uint64_t load_deadline_us;       /* acquire, prefetch: until when blocks below DRAM may come,
                                    * relative to the call, while the answer is due by deadline_us;
                                    * 0: 10 s, or deadline_us if that is later */
} terrace_request;
#define TERRACE_REQUEST_INIT                                                                    \
  {                                                                                             \
    sizeof(terrace_request), 0u, 0u, 0u, {0u, 0u}, 0u, 0u, 0u, 0u, 0u, 0u, TERRACE_END_UNKNOWN, \
        TERRACE_PRIORITY_UNSET, 0u, 0u, NULL, 0u                                                \
  }

/* What terrace_match answers. */
typedef struct terrace_match_result {
  uint32_t struct_bytes;
  uint32_t block_count;
  uint32_t token_count;
  uint32_t is_bound; /* 1: a remote member is unknown, an upper bound */
} terrace_match_result;
/* How far the prefix is there, on this host; pins and moves nothing, so it may be gone a moment
 * later. keys: a chain from request->parent on, at most keys_per_request_max of the daemon. A miss
 * is TERRACE_OK with 0 blocks. */
TERRACE_API terrace_status terrace_match(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request,
                                         terrace_match_result* result);
/* Brings the prefix to DRAM without pinning it. *block_count: on their way or there. What comes
 * comes until request->load_deadline_us; whether it came nobody tells. */
TERRACE_API terrace_status terrace_prefetch(terrace_client* client, terrace_group group,
                                            const terrace_id* keys, size_t key_count,
                                            const terrace_request* request, uint32_t* block_count);

/* ---- Reading --------------------------------------------------------------------------------- */

/* The right to read blocks, in the caller's memory. Zero it before its first use; a call that fills
 * it releases what it held. Do not use two copies of one. */
typedef struct terrace_read_lease {
  uint64_t opaque[4];
} terrace_read_lease;

/* Pins the prefix that is there, and returns at the first reply: blocks below DRAM may still be
 * coming (terrace_wait_ready, terrace_read_lease_ready_count). TERRACE_OK with 0 blocks is a miss.
 * What *lease held before is released. Ends with terrace_read_lease_release. */
TERRACE_API terrace_status terrace_acquire(terrace_client* client, terrace_group group,
                                           const terrace_id* keys, size_t key_count,
                                           const terrace_request* request,
                                           terrace_read_lease* lease);
/* Takes part in another process's lease by its token, for the members of member_mask (0: the
 * group's self_mask). TERRACE_INVALID if the token is a write lease's; what the daemon does not
 * know, or not for this user, it answers as not found or gone. */
TERRACE_API terrace_status terrace_join_read(terrace_client* client, terrace_group group,
                                             terrace_id token, uint64_t member_mask,
                                             terrace_read_lease* lease);
/* The same. flags: TERRACE_ACQUIRE_BY_PARTS, TERRACE_ACQUIRE_DEVICE or 0, whatever it was acquired
 * with: so a rank reads in its own device what a scheduler without one has acquired. */
TERRACE_API terrace_status terrace_join_read_flagged(terrace_client* client, terrace_group group,
                                                     terrace_id token, uint64_t member_mask,
                                                     uint32_t flags, terrace_read_lease* lease);
/* TERRACE_OK once block_count blocks may be read; TERRACE_NOT_FOUND if that many will not come,
 * TERRACE_GONE if the lease is not valid any more, TERRACE_BUSY at the deadline: ask again. */
TERRACE_API terrace_status terrace_wait_ready(terrace_client* client,
                                              const terrace_read_lease* lease, uint32_t block_count,
                                              uint64_t deadline_us);
/* Blocks, and tokens, of the prefix that the lease covers; 0 of a miss. */
TERRACE_API uint32_t terrace_read_lease_block_count(const terrace_read_lease* lease);
TERRACE_API uint32_t terrace_read_lease_token_count(const terrace_read_lease* lease);
/* Blocks [0, ready_count) may be read now. It grows while blocks come, and does not shrink while
 * the lease is valid. */
TERRACE_API uint32_t terrace_read_lease_ready_count(const terrace_read_lease* lease);
/* What another process of the same domain joins by; zero of a miss. */
TERRACE_API terrace_id terrace_read_lease_token(const terrace_read_lease* lease);
/* 0 once the daemon revoked it or went away: what was read before is right if this is still 1 after
 * the read. */
TERRACE_API int terrace_read_lease_is_valid(const terrace_read_lease* lease);
/* 1 where the block was answered in the memory of the client's device (TERRACE_ACQUIRE_DEVICE): its
 * slots are then addresses of the device's. */
TERRACE_API int terrace_read_lease_is_in_device(const terrace_read_lease* lease,
                                                uint32_t block_index);
/* Where the blocks were found when the lease was acquired, and when they were expected. */
enum { TERRACE_SPAN_READY = 0, TERRACE_SPAN_COMING = 1, TERRACE_SPAN_FOLLOWING = 2 };
typedef struct terrace_span {
  uint32_t first_block; /* of the lease */
  uint32_t block_count;
  uint8_t state; /* TERRACE_SPAN_… */
  uint8_t tier;  /* TERRACE_TIER_… */
  uint16_t reserved;
  uint32_t eta_us; /* of what is coming: until its last block is ready, as predicted */
} terrace_span;
/* Writes at most span_capacity spans, in the order of blocks, and returns how many there are; NULL
 * with 0 is allowed. Spans stay as they were answered: ready_count says what has come since. */
TERRACE_API uint32_t terrace_read_lease_spans(const terrace_read_lease* lease, terrace_span* spans,
                                              uint32_t span_capacity);
/* A member's slot in shared memory, read only, valid until the release; NULL (and 0 bytes) if the
 * member has no bytes there, or block_index is not ready. */
TERRACE_API const void* terrace_read_lease_slot(const terrace_read_lease* lease,
                                                uint32_t block_index, uint32_t member,
                                                uint64_t* slot_bytes);
/* 1 if one part of a block may be read already: of a ready block each; else of those that were
 * asked for with TERRACE_ACQUIRE_FOLLOW or TERRACE_ACQUIRE_BY_PARTS what has come, in the order of
 * layers.
 */
TERRACE_API int terrace_read_lease_is_part_ready(const terrace_read_lease* lease,
                                                 uint32_t block_index, uint32_t member,
                                                 uint32_t part_index);
/* Copies one part, decoded where the Space names a codec: to_bytes as terrace_space_codec_parts has
 * them for the engine, any other number is TERRACE_INVALID. TERRACE_BUSY if it is not ready,
 * TERRACE_GONE, and the bytes are not to be used, if the lease was not valid throughout,
 * TERRACE_UNSUPPORTED if it lies in a GPU's memory. Several threads may copy from one lease. */
TERRACE_API terrace_status terrace_read_lease_copy_part(const terrace_read_lease* lease,
                                                        uint32_t block_index, uint32_t member,
                                                        uint32_t part_index, void* to,
                                                        size_t to_bytes);
/* Of a block of chunks: where its first token stood when it was computed. TERRACE_CORRUPT if it has
 * no header; otherwise as terrace_read_lease_copy_part. */
TERRACE_API terrace_status terrace_read_lease_chunk_position(const terrace_read_lease* lease,
                                                             uint32_t block_index, uint32_t member,
                                                             uint32_t* first_token_position);
/* Copies whole blocks of one member: part p of block first_block + b to
 * to[b * part_count + p], which has room for that part. The first part that fails ends it. */
TERRACE_API terrace_status terrace_read_lease_copy_blocks(const terrace_read_lease* lease,
                                                          uint32_t member, uint32_t first_block,
                                                          uint32_t block_count, void* const* to);
/* Says that this process no longer touches the slots, and zeroes *lease. end_reason: TERRACE_END_….
 * Never waits. NULL, and a lease of nothing, are allowed. */
TERRACE_API void terrace_read_lease_release(terrace_read_lease* lease, uint32_t end_reason);

/* ---- Writing --------------------------------------------------------------------------------- */

/* The right to write reserved blocks, in the caller's memory; as terrace_read_lease. */
typedef struct terrace_write_lease {
  uint64_t opaque[4];
} terrace_write_lease;

typedef struct terrace_reserved_key {
  terrace_status status;  /* OK: write it; EXISTS; BUSY: somebody else is; NO_SPACE */
  uint32_t writer_age_ms; /* with TERRACE_BUSY. With TERRACE_NO_SPACE, 1: it passes by, as all that
                           * is there is likelier to be asked for; no use in offering it again */
  uint64_t commit_id;     /* with TERRACE_OK */
} terrace_reserved_key;

/* Asks for the right to write those of the keys that nobody has or writes: terrace_write_lease_keys
 * says of each what became of it. TERRACE_OK also when none is to be written. It waits for room at
 * most until the deadline. What *lease held before is given up. Ends with
 * terrace_write_lease_abort, or a commit with TERRACE_COMMIT_RELEASE. */
TERRACE_API terrace_status terrace_reserve(terrace_client* client, terrace_group group,
                                           const terrace_id* keys, size_t key_count,
                                           const terrace_request* request,
                                           terrace_write_lease* lease);
/* Takes part in another process's reservation by its token: each writes and commits its own
 * members, and a block is there when all are. Errors as terrace_join_read's. */
TERRACE_API terrace_status terrace_join_write(terrace_client* client, terrace_group group,
                                              terrace_id token, uint64_t member_mask,
                                              terrace_write_lease* lease);
/* Keys that were asked for; 0 of a lease of nothing. */
TERRACE_API uint32_t terrace_write_lease_key_count(const terrace_write_lease* lease);
/* What became of one key. TERRACE_INVALID if there are fewer. */
TERRACE_API terrace_status terrace_write_lease_key(const terrace_write_lease* lease,
                                                   uint32_t key_index, terrace_reserved_key* key);
/* Writes what became of at most key_capacity keys, from the first on, and returns how many keys
 * there are; NULL with 0 is allowed. */
TERRACE_API uint32_t terrace_write_lease_keys(const terrace_write_lease* lease,
                                              terrace_reserved_key* keys, uint32_t key_capacity);
/* What another process of the same domain joins by; zero if no key is to be written. */
TERRACE_API terrace_id terrace_write_lease_token(const terrace_write_lease* lease);
/* 0 once the daemon revoked it or went away: what is written from then on is lost. */
TERRACE_API int terrace_write_lease_is_valid(const terrace_write_lease* lease);
/* Where to write, for agents that cannot go through write_part; NULL (and 0 bytes) unless the key
 * was reserved and the lease is valid. Each part that was written is then said by checksum_part or
 * mark_part. A lease whose slot was asked for keeps it until it is aborted, also when revoked. A
 * part that a commit was given is not to be written any more, nor any after a commit with
 * TERRACE_COMMIT_RELEASE: readers have these bytes, and nothing refuses a write through a pointer.
 */
TERRACE_API void* terrace_write_lease_slot(const terrace_write_lease* lease, uint32_t key_index,
                                           uint32_t member, uint64_t* slot_bytes);
/* Copies one part into its slot and remembers its checksum, reading `from` once. from_bytes: the
 * part's, any other number is TERRACE_INVALID, and so is a key that is not to be written. Where the
 * Space names a codec it encodes: TERRACE_UNSUPPORTED if `from` has a NaN or an infinity. Part 0 of
 * a chunk's block is its header, as copies of pages write it: TERRACE_INVALID for other bytes.
 * TERRACE_GONE once the lease is not valid: nothing more is written. Threads may write different
 * parts at once. A part may be written again until a commit was given it; from then on, also where
 * that commit ended with TERRACE_BUSY, it is TERRACE_EXISTS and its bytes stay. TERRACE_BUSY, and
 * nothing is written: another thread writes the part, or pages are being copied into the block.
 * After any error the part is not committed. */
TERRACE_API terrace_status terrace_write_lease_write_part(terrace_write_lease* lease,
                                                          uint32_t key_index, uint32_t member,
                                                          uint32_t part_index, const void* from,
                                                          size_t from_bytes);
/* Writes whole blocks of one member: part p of key first_key + k from from[k * part_count + p].
 * Keys that were not reserved are passed over. A part that the Space's codec does not encode costs
 * its block: the others are written, and TERRACE_UNSUPPORTED is answered then. Any other error of
 * write_part ends it. */
TERRACE_API terrace_status terrace_write_lease_write_blocks(terrace_write_lease* lease,
                                                            uint32_t member, uint32_t first_key,
                                                            uint32_t key_count,
                                                            const void* const* from);
/* For bytes that another agent wrote into the slot: checksum_part reads them; mark_part lets the
 * daemon read them; mark_absent: this windowed member has none for this block. TERRACE_INVALID for
 * a key that is not to be written, a part that is not there, and a member without a window;
 * TERRACE_EXISTS and TERRACE_BUSY as write_part's. */
TERRACE_API terrace_status terrace_write_lease_checksum_part(terrace_write_lease* lease,
                                                             uint32_t key_index, uint32_t member,
                                                             uint32_t part_index);
TERRACE_API terrace_status terrace_write_lease_mark_part(terrace_write_lease* lease,
                                                         uint32_t key_index, uint32_t member,
                                                         uint32_t part_index);
TERRACE_API terrace_status terrace_write_lease_mark_absent(terrace_write_lease* lease,
                                                           uint32_t key_index, uint32_t member);
/* Commits every part written since the last commit; *sealed_count: blocks that became visible,
 * which are those whose last part this was. request->flags: TERRACE_COMMIT_RELEASE; TERRACE_BUSY if
 * a copy of this lease is under way then, which goes on. After TERRACE_BUSY at the deadline the
 * commit may still happen: its parts cannot be written again, and a lease that it releases is not
 * valid any more. Any other answer: the daemon refused a part, and no block became visible. */
TERRACE_API terrace_status terrace_commit(terrace_client* client, terrace_write_lease* lease,
                                          const terrace_request* request, uint32_t* sealed_count);
/* Gives up what was not committed, and zeroes *lease. Never waits. NULL, and a lease of nothing,
 * are allowed. */
TERRACE_API void terrace_write_lease_abort(terrace_write_lease* lease);

/* ---- Asynchronous: after TERRACE_OK exactly one completion follows, by the deadline ------------
 */

enum { TERRACE_ACQUIRED = 1, TERRACE_PREFETCHED = 2, TERRACE_RESERVED = 3, TERRACE_COMMITTED = 4 };

typedef struct terrace_completion {
  uint32_t struct_bytes;
  uint32_t kind; /* TERRACE_ACQUIRED, … */
  uint64_t user_data;
  terrace_status status;
  uint32_t block_count;            /* prefetched: on their way or there; committed: sealed */
  terrace_read_lease read_lease;   /* acquired: the receiver's to release */
  terrace_write_lease write_lease; /* reserved: the receiver's to commit or abort */
} terrace_completion;
#define TERRACE_COMPLETION_INIT                                               \
  {                                                                           \
    sizeof(terrace_completion), 0u, 0u, TERRACE_OK, 0u, {{0u, 0u, 0u, 0u}}, { \
      { 0u, 0u, 0u, 0u }                                                      \
    }                                                                         \
  }

/* Called on the client's background thread; must not block, and may call the client, also to
 * destroy it. A lease that it leaves in *completion is given back when it returns. */
typedef void (*terrace_callback)(void* context, terrace_completion* completion);

/* As the functions without _async, but that they return when the request is sent. With a callback
 * it is called with `context`, once; without one the completion, which has user_data, waits for
 * terrace_poll. Keys and request are read before they return. On any answer but TERRACE_OK nothing
 * follows: TERRACE_BUSY: pending_requests_max requests wait for answers, or four times as many
 * completions for terrace_poll. Keep a write lease until the completion of its commit. */
TERRACE_API terrace_status terrace_acquire_async(terrace_client* client, terrace_group group,
                                                 const terrace_id* keys, size_t key_count,
                                                 const terrace_request* request, uint64_t user_data,
                                                 terrace_callback callback, void* context);
TERRACE_API terrace_status terrace_prefetch_async(terrace_client* client, terrace_group group,
                                                  const terrace_id* keys, size_t key_count,
                                                  const terrace_request* request,
                                                  uint64_t user_data, terrace_callback callback,
                                                  void* context);
TERRACE_API terrace_status terrace_reserve_async(terrace_client* client, terrace_group group,
                                                 const terrace_id* keys, size_t key_count,
                                                 const terrace_request* request, uint64_t user_data,
                                                 terrace_callback callback, void* context);
/* TERRACE_INVALID if one message, half of send_buffer_bytes_max, does not hold all that was
 * written: terrace_commit does that in pieces. */
TERRACE_API terrace_status terrace_commit_async(terrace_client* client, terrace_write_lease* lease,
                                                const terrace_request* request, uint64_t user_data,
                                                terrace_callback callback, void* context);
/* Takes one completion that had no callback; leases that *completion still held are given back
 * first. TERRACE_NOT_FOUND if there is none. */
TERRACE_API terrace_status terrace_poll(terrace_client* client, terrace_completion* completion);
/* The same, waiting for one that is on its way until the deadline. Quicker than waiting for
 * terrace_event_fd: the caller itself reads what comes. */
TERRACE_API terrace_status terrace_poll_until(terrace_client* client, uint64_t deadline_us,
                                              terrace_completion* completion);
/* Readable while terrace_poll has something; the client's, not to be closed. */
TERRACE_API int terrace_event_fd(const terrace_client* client);

/* ---- The rest of the verbs, blocking ----------------------------------------------------------
 */

/* Makes the blocks recent, for eviction, and says of them what the hints say. Keys that are not
 * there are passed over. */
TERRACE_API terrace_status terrace_touch(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request);

enum { TERRACE_BLOCK_ABSENT = 0, TERRACE_BLOCK_RESERVED = 1, TERRACE_BLOCK_SEALED = 2 };
enum { TERRACE_TIER_HBM = 0, TERRACE_TIER_DRAM = 1, TERRACE_TIER_NVME = 2, TERRACE_TIER_REDIS = 3 };
typedef struct terrace_queried_block {
  uint8_t state;     /* TERRACE_BLOCK_… */
  uint8_t tier_mask; /* bit 1 << TERRACE_TIER_… where it is served from */
  uint8_t priority;
  uint8_t flags; /* 1: persisted, 2: pinned, 4: never written below DRAM */
  uint32_t lease_count;
  uint64_t commit_id;
} terrace_queried_block;
/* One answer a key, in order: key_count of them. Pins and moves nothing. */
TERRACE_API terrace_status terrace_query(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request,
                                         terrace_queried_block* blocks);
/* TERRACE_OK once no crash can lose the blocks: all are persisted. TERRACE_BUSY at the deadline. */
TERRACE_API terrace_status terrace_wait_persisted(terrace_client* client, terrace_group group,
                                                  const terrace_id* keys, size_t key_count,
                                                  const terrace_request* request);

typedef struct terrace_evict_result {
  uint32_t struct_bytes;
  uint32_t reserved;
  uint64_t block_count;
  uint64_t byte_count;
  uint64_t skipped_count; /* leased, pinned, or with a child that is */
} terrace_evict_result;
/* Drops the blocks from every tier, and waits until no crash can bring them back; without a
 * deadline of its own up to 3 s longer than other calls. TERRACE_BUSY: dropped, but perhaps not
 * durably. group TERRACE_GROUP_NONE: every group of the domain. No keys with TERRACE_EVICT_SUBTREE:
 * all; of a key that is not here, whatever has lost its parent and may continue it.
 * request->flags: TERRACE_EVICT_…. */
TERRACE_API terrace_status terrace_evict(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request,
                                         terrace_evict_result* result);
/* Keeps the blocks until they are unpinned, or forgotten request->ttl_s seconds from now (0:
 * never). *block_count: how many of the keys are there. request->flags TERRACE_PIN_CLEAR: unpins.
 */
TERRACE_API terrace_status terrace_pin(terrace_client* client, terrace_group group,
                                       const terrace_id* keys, size_t key_count,
                                       const terrace_request* request, uint32_t* block_count);
/* Forgets the whole group, for everybody on this host, and what any host has stored of it in the
 * shared tier. Where weights change see docs/PROTOCOL.md, Epochs. */
TERRACE_API terrace_status terrace_reset(terrace_client* client, terrace_group group);
/* The daemon's figures as JSON (docs/OPERATIONS.md). *needed_bytes: with the terminator;
 * TERRACE_NO_SPACE if json_bytes is less. */
TERRACE_API terrace_status terrace_stats(terrace_client* client, uint64_t deadline_us, char* json,
                                         size_t json_bytes, size_t* needed_bytes);

#ifdef __cplusplus
}
#endif
