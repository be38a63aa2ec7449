/* terrace.h: the C ABI of libterrace, for any language that can call C. What the verbs mean is told
 * once, in client.h and docs/PROTOCOL.md; this page says how they look from C.
 *
 * Every call answers by its deadline with one of ten status codes, and never throws, aborts, raises
 * a signal or prints. The engine can always recompute: TERRACE_BUSY (time is up, a queue is full),
 * TERRACE_GONE (the daemon went away) and TERRACE_NOT_FOUND are everyday answers.
 *
 * MEMORY: the caller's, throughout: keys, leases, sentences and bytes are read from and written to
 * what the caller passes. Only clients, devices, pages and copies are made and destroyed here.
 * VERSIONS: a struct that may grow begins with struct_bytes, its size as the caller knows it;
 * fields beyond it take their defaults. Fill structs from the TERRACE_..._INIT macros. A library
 * serves every caller that was compiled with the same TERRACE_ABI_VERSION or an older one.
 * THREADING: any thread may call anything; one lease object is used by one thread at a time.
 * FORK: a child of fork() gets TERRACE_GONE from every call and makes a client of its own.
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

#define TERRACE_ABI_VERSION 3u

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

TERRACE_API uint32_t terrace_abi_version(void);
/* "not found", … of a status; never NULL. */
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

/* Starts connecting in the background and returns at once: an absent daemon is no error.
 * TERRACE_INVALID for bad options only, with the sentence in `why` (why_bytes of room, always
 * terminated; NULL with 0 is allowed). */
TERRACE_API terrace_status terrace_client_create(const terrace_client_options* options,
                                                 terrace_client** client, char* why,
                                                 size_t why_bytes);
/* Everything pending ends first; callbacks have returned when it returns. NULL is allowed. */
TERRACE_API void terrace_client_destroy(terrace_client* client);
/* TERRACE_BUSY at the deadline; TERRACE_INVALID, _UNSUPPORTED or _IO when the daemon or the system
 * refused: terrace_client_last_error has the sentence. deadline_us here and below: relative to the
 * call. */
TERRACE_API terrace_status terrace_client_wait_connected(terrace_client* client,
                                                         uint64_t deadline_us);
TERRACE_API int terrace_client_is_connected(const terrace_client* client);
/* 0 while not connected; another value means another daemon. */
TERRACE_API uint64_t terrace_client_boot_id(const terrace_client* client);
/* The last sentence for a person: the thing, the value, the limit, the remedy. Returns its bytes
 * without the terminator, also when `text` had no room for all of them. */
TERRACE_API size_t terrace_client_last_error(const terrace_client* client, char* text,
                                             size_t text_bytes);

/* ---- Spaces ---------------------------------------------------------------------------------- */

enum {
  TERRACE_ATTENTION_MHA = 0,
  TERRACE_ATTENTION_GQA = 1,
  TERRACE_ATTENTION_MLA = 2,
  TERRACE_ATTENTION_SLIDING = 3,
  TERRACE_ATTENTION_STATE = 4
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
  uint32_t window_tokens; /* > 0 exactly for SLIDING and STATE */
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
  const char* name; /* unique in its domain */
  const terrace_space* const* members;
} terrace_group_spec;
#define TERRACE_GROUP_SPEC_INIT \
  { sizeof(terrace_group_spec), 0u, NULL, NULL }

/* Needs no daemon. TERRACE_INVALID with the field, the value, the limit and the remedy in `why`. */
TERRACE_API terrace_status terrace_group_spec_check(const terrace_group_spec* spec, terrace_id* id,
                                                    char* why, size_t why_bytes);
/* Where part `part_index` lies in a slot, and the bytes of the slot; needs no daemon. */
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
/* Declares the group. self_mask: bit m for every member m of this process. A spec that cannot be,
 * and the daemon's refusal (a Space of that name with another spec), are TERRACE_INVALID with the
 * field and both values in `why`. deadline_us 0: the client's default. */
TERRACE_API terrace_status terrace_open(terrace_client* client, const terrace_group_spec* spec,
                                        uint64_t self_mask, uint64_t deadline_us,
                                        terrace_group* group, char* why, size_t why_bytes);

/* One key per full block of `tokens`, which follow the block `parent` (NULL: a prompt's start, or,
 * in a group of chunks, a chunk's, wherever that stands).
 * Writes at most key_capacity keys, and to *key_count how many. TERRACE_GONE before the first
 * connection: the keys need the domain's secret. */
TERRACE_API terrace_status terrace_hash_tokens(terrace_client* client, terrace_group group,
                                               const terrace_id* parent, const uint32_t* tokens,
                                               size_t token_count, terrace_id* keys,
                                               size_t key_capacity, size_t* key_count);
/* Keys of an engine's own digests, digest_bytes (16 … 32) each, one behind the other. */
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

#define TERRACE_HINT_PIN 1u      /* keep until unpinned or past its ttl_s */
#define TERRACE_HINT_NO_STORE 2u /* never write these blocks below DRAM */
#define TERRACE_HINT_EXACT 4u    /* refuse blocks under a lossy codec, and chunks */

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

/* How far the prefix is there; pins nothing. */
typedef struct terrace_match_result {
  uint32_t struct_bytes;
  uint32_t block_count;
  uint32_t token_count;
  uint32_t is_bound; /* 1: a remote member is unknown, an upper bound */
} terrace_match_result;
TERRACE_API terrace_status terrace_match(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request,
                                         terrace_match_result* result);
/* Brings the prefix to DRAM without pinning it; *block_count: on their way or there. */
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
 * coming. TERRACE_OK with 0 blocks is a miss. */
TERRACE_API terrace_status terrace_acquire(terrace_client* client, terrace_group group,
                                           const terrace_id* keys, size_t key_count,
                                           const terrace_request* request,
                                           terrace_read_lease* lease);
/* Takes part in another process's lease by its token. */
TERRACE_API terrace_status terrace_join_read(terrace_client* client, terrace_group group,
                                             terrace_id token, uint64_t member_mask,
                                             terrace_read_lease* lease);
/* The same. flags: TERRACE_ACQUIRE_BY_PARTS, TERRACE_ACQUIRE_DEVICE or 0, whatever it was acquired
 * with: so a rank reads in its own device what a scheduler without one has acquired. */
TERRACE_API terrace_status terrace_join_read_flagged(terrace_client* client, terrace_group group,
                                                     terrace_id token, uint64_t member_mask,
                                                     uint32_t flags, terrace_read_lease* lease);
/* TERRACE_OK once block_count blocks may be read; TERRACE_NOT_FOUND if that many will not come. */
TERRACE_API terrace_status terrace_wait_ready(terrace_client* client,
                                              const terrace_read_lease* lease, uint32_t block_count,
                                              uint64_t deadline_us);
TERRACE_API uint32_t terrace_read_lease_block_count(const terrace_read_lease* lease);
TERRACE_API uint32_t terrace_read_lease_token_count(const terrace_read_lease* lease);
/* Blocks [0, ready_count) may be read now. */
TERRACE_API uint32_t terrace_read_lease_ready_count(const terrace_read_lease* lease);
TERRACE_API terrace_id terrace_read_lease_token(const terrace_read_lease* lease);
/* 0 once the daemon revoked it or went away: what was read before is right if this is still 1 after
 * the read. */
TERRACE_API int terrace_read_lease_is_valid(const terrace_read_lease* lease);
/* 1 where the block was answered in the memory of the client's device (TERRACE_ACQUIRE_DEVICE): its
 * slots are then addresses of the device's. */
TERRACE_API int terrace_read_lease_is_in_device(const terrace_read_lease* lease,
                                                uint32_t block_index);
/* A member's slot in shared memory, read only, valid until the release; NULL (and 0 bytes) if the
 * member has no bytes there, or block_index is not ready. */
TERRACE_API const void* terrace_read_lease_slot(const terrace_read_lease* lease,
                                                uint32_t block_index, uint32_t member,
                                                uint64_t* slot_bytes);
TERRACE_API int terrace_read_lease_is_part_ready(const terrace_read_lease* lease,
                                                 uint32_t block_index, uint32_t member,
                                                 uint32_t part_index);
/* Copies one part, decoded where the Space names a codec: to_bytes as terrace_space_codec_parts has
 * them for the engine. TERRACE_BUSY if it is not ready, TERRACE_GONE, and the bytes are not to be
 * used, if the lease was not valid throughout. */
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
/* Says that this process no longer touches the slots, and zeroes *lease. */
TERRACE_API void terrace_read_lease_release(terrace_read_lease* lease, uint32_t end_reason);

/* ---- Writing --------------------------------------------------------------------------------- */

/* The right to write reserved blocks; as terrace_read_lease. */
typedef struct terrace_write_lease {
  uint64_t opaque[4];
} terrace_write_lease;

typedef struct terrace_reserved_key {
  terrace_status status;  /* OK: write it; EXISTS; BUSY: somebody else is; NO_SPACE */
  uint32_t writer_age_ms; /* with TERRACE_BUSY */
  uint64_t commit_id;     /* with TERRACE_OK */
} terrace_reserved_key;

TERRACE_API terrace_status terrace_reserve(terrace_client* client, terrace_group group,
                                           const terrace_id* keys, size_t key_count,
                                           const terrace_request* request,
                                           terrace_write_lease* lease);
TERRACE_API terrace_status terrace_join_write(terrace_client* client, terrace_group group,
                                              terrace_id token, uint64_t member_mask,
                                              terrace_write_lease* lease);
TERRACE_API uint32_t terrace_write_lease_key_count(const terrace_write_lease* lease);
TERRACE_API terrace_status terrace_write_lease_key(const terrace_write_lease* lease,
                                                   uint32_t key_index, terrace_reserved_key* key);
TERRACE_API terrace_id terrace_write_lease_token(const terrace_write_lease* lease);
TERRACE_API int terrace_write_lease_is_valid(const terrace_write_lease* lease);
/* Where to write; NULL (and 0 bytes) unless the key was reserved and the lease is valid. */
TERRACE_API void* terrace_write_lease_slot(const terrace_write_lease* lease, uint32_t key_index,
                                           uint32_t member, uint64_t* slot_bytes);
/* Copies one part into its slot and remembers its checksum, reading `from` once. Where the Space
 * names a codec it encodes: TERRACE_UNSUPPORTED if `from` has a NaN or an infinity. */
TERRACE_API terrace_status terrace_write_lease_write_part(terrace_write_lease* lease,
                                                          uint32_t key_index, uint32_t member,
                                                          uint32_t part_index, const void* from,
                                                          size_t from_bytes);
/* Writes whole blocks of one member: part p of key first_key + k from from[k * part_count + p].
 * Keys that were not reserved are passed over. */
TERRACE_API terrace_status terrace_write_lease_write_blocks(terrace_write_lease* lease,
                                                            uint32_t member, uint32_t first_key,
                                                            uint32_t key_count,
                                                            const void* const* from);
/* For bytes that another agent wrote into the slot: checksum_part reads them; mark_part lets the
 * daemon read them; mark_absent: this windowed member has none for this block. */
TERRACE_API terrace_status terrace_write_lease_checksum_part(terrace_write_lease* lease,
                                                             uint32_t key_index, uint32_t member,
                                                             uint32_t part_index);
TERRACE_API terrace_status terrace_write_lease_mark_part(terrace_write_lease* lease,
                                                         uint32_t key_index, uint32_t member,
                                                         uint32_t part_index);
TERRACE_API terrace_status terrace_write_lease_mark_absent(terrace_write_lease* lease,
                                                           uint32_t key_index, uint32_t member);
/* Commits every part written since the last commit; *sealed_count: blocks that became visible.
 * request->flags: TERRACE_COMMIT_RELEASE. */
TERRACE_API terrace_status terrace_commit(terrace_client* client, terrace_write_lease* lease,
                                          const terrace_request* request, uint32_t* sealed_count);
/* Gives up what was not committed, and zeroes *lease. */
TERRACE_API void terrace_write_lease_abort(terrace_write_lease* lease);

/* ---- Paged caches: an engine's pages, on a GPU or in its own memory (docs/DEVICE.md) -----------
 */

/* What copies: a backend and one of its devices. Whatever was made from it may outlive it. */
typedef struct terrace_device terrace_device;

typedef struct terrace_device_options {
  uint32_t struct_bytes;
  uint32_t device_index;   /* as the backend counts */
  const char* backend;     /* "auto": cuda where it works, else host; "host"; "cuda", or fail */
  const char* plugin_path; /* of libterrace_cuda.so, absolute; NULL: there is none */
  uint32_t worker_count;   /* host: threads that copy, 1 ... 64 */
  uint32_t reserved;       /* 0 */
} terrace_device_options;
#define TERRACE_DEVICE_OPTIONS_INIT \
  { sizeof(terrace_device_options), 0u, "auto", NULL, 1u, 0u }

/* May take seconds, while a driver starts. */
TERRACE_API terrace_status terrace_device_create(const terrace_device_options* options,
                                                 terrace_device** device, char* why,
                                                 size_t why_bytes);
TERRACE_API void terrace_device_destroy(terrace_device* device);
/* "host" or "cuda"; as long as the device lives. */
TERRACE_API const char* terrace_device_backend(const terrace_device* device);
/* Why it is this one, as terrace_client_last_error. */
TERRACE_API size_t terrace_device_reason(const terrace_device* device, char* text,
                                         size_t text_bytes);

/* From here on the memory in which this client has leases is registered with the device, a segment
 * and a process at a time, in the background. Copies of pages that are described after this call go
 * straight between the GPU and what is registered, and through pinned memory of their own to the
 * rest. The client keeps the device. TERRACE_EXISTS, with the sentence in `why`: the client has a
 * device, or the device a client, already. */
TERRACE_API terrace_status terrace_client_pin_arena(terrace_client* client,
                                                    const terrace_device* device, char* why,
                                                    size_t why_bytes);
/* Nothing is registered, nor taken out, until terrace_client_resume_pinning: for as long as the
 * engine captures a graph. Counts. TERRACE_BUSY: at the deadline a segment is still being
 * registered; resume all the same. */
TERRACE_API terrace_status terrace_client_pause_pinning(terrace_client* client,
                                                        uint64_t deadline_us);
TERRACE_API void terrace_client_resume_pinning(terrace_client* client);

/* Of a terrace_pages_layout: bytes that only the engine understands. A slot holds them in the order
 * in which they lie, and the Space's layout is the engine's own name of it, not nhd nor hnd. Layers
 * are runs of memory (plane_count and head_count 1), tokens what a run is cut into; what is
 * compared with the Space is the size of its parts. */
#define TERRACE_PAGES_OPAQUE 1u

/* How a model turns its keys, for a Space of chunks (layout "chunk-nhd"), whose blocks are loaded
 * to other positions than they stood at. Window [rot_offset, rot_offset + rot_dim) of each head
 * turns, in pairs (i, i + rot_dim / 2) ("neox") or (2i, 2i + 1) ("gptj"); inv_freq[i] is the angle
 * of pair i a token, as the model uses it, its static scaling applied. rot_dim 0: the keys have no
 * positions. What is not among these is TERRACE_UNSUPPORTED, by name. */
#define TERRACE_ROPE_PER_LAYER 1u        /* layers differ: refused */
#define TERRACE_ROPE_MULTIDIMENSIONAL 2u /* mrope: refused */
typedef struct terrace_rope {
  uint32_t struct_bytes;
  uint32_t rot_dim; /* even, at most the Space's head_size */
  uint32_t rot_offset;
  uint32_t flags;         /* TERRACE_ROPE_… */
  const char* pairing;    /* "neox" or "gptj"; NULL: "neox" */
  const char* scaling;    /* NULL or "none", "linear", "yarn", "llama3"; any other is refused */
  const double* inv_freq; /* rot_dim / 2 */
} terrace_rope;
#define TERRACE_ROPE_INIT \
  { sizeof(terrace_rope), 0u, 0u, 0u, NULL, NULL, NULL }

/* Where pages lie. The vector of K or V of one token and one head is head_bytes contiguous bytes at
 * address + block * block_stride + plane * plane_stride + token * token_stride + head * head_stride
 * and a page is page_tokens / block_tokens blocks in a row. */
typedef struct terrace_pages_layout {
  uint32_t struct_bytes;
  uint32_t layer_count;
  uint32_t plane_count;  /* 2: K and V; 1: MLA */
  uint32_t page_tokens;  /* the Space's block_tokens */
  uint32_t block_tokens; /* of the kernels' blocks; divides page_tokens */
  uint32_t head_count;
  uint64_t head_bytes;
  uint64_t page_count;
  uint64_t block_stride_bytes;
  uint64_t plane_stride_bytes; /* where a layer's planes are one tensor */
  uint64_t token_stride_bytes;
  uint64_t head_stride_bytes;
  uint64_t layer_stride_bytes; /* where all layers are one slab, of one address */
  /* Of block 0: one for a slab, one a layer, or, where K and V are tensors of their own, one a
   * plane of a layer, a layer's planes side by side. */
  const uint64_t* addresses;
  uint32_t address_count;
  uint32_t flags;           /* TERRACE_PAGES_… */
  const terrace_rope* rope; /* of a Space of chunks; of others NULL */
} terrace_pages_layout;
#define TERRACE_PAGES_LAYOUT_INIT                                                               \
  {                                                                                             \
    sizeof(terrace_pages_layout), 0u, 2u, 0u, 0u, 1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, NULL, 0u, 0u, \
        NULL                                                                                    \
  }

/* One layer's tensor (of K, where K and V are tensors of their own) as a framework shows it. */
typedef struct terrace_tensor {
  uint32_t struct_bytes;
  uint32_t dimension_count; /* 1 ... 5 */
  const uint64_t* shape;
  const uint64_t* stride_bytes;
  uint64_t item_bytes;
  /* What each dimension is, a letter each: Block, Plane, Token, Head, Dim ("BPTHD"); NULL: found
   * from the sizes, where these leave one reading only. */
  const char* axes;
} terrace_tensor;
#define TERRACE_TENSOR_INIT \
  { sizeof(terrace_tensor), 0u, NULL, NULL, 0u, NULL }

/* Sets the block, plane, token and head strides of a layout whose other fields are set.
 * TERRACE_INVALID, with both readings in `why`, where the sizes can be read in two ways (2 heads
 * beside 2 planes): a guess would be wrong for every prompt. */
TERRACE_API terrace_status terrace_pages_read_tensor(const terrace_tensor* tensor,
                                                     terrace_pages_layout* layout, char* why,
                                                     size_t why_bytes);

typedef struct terrace_pages terrace_pages;

/* Pages, and the Space whose slots hold them: its layout is "nhd" or "hnd", or the engine's where
 * pages are opaque. Under a codec of Terrace's ("terrace:int8") pages are encoded and decoded on
 * their way. TERRACE_INVALID, with field and values in `why`, where the two do not fit. Tensors
 * must outlive it. */
TERRACE_API terrace_status terrace_pages_create(const terrace_device* device,
                                                const terrace_pages_layout* layout,
                                                const terrace_space* space, terrace_pages** pages,
                                                char* why, size_t why_bytes);
/* What it still copies is waited for by its copies. */
TERRACE_API void terrace_pages_destroy(terrace_pages* pages);

/* The engine's side of an ordering. STREAM: what is queued on this stream (a cudaStream_t, NULL its
 * default stream) by the time of the call, or what is queued on it afterwards; TERRACE_BUSY while
 * it is being captured into a graph. HOST: there is nothing to wait for, because the engine's work
 * is over; or this thread itself waits. */
enum { TERRACE_EDGE_STREAM = 1, TERRACE_EDGE_HOST = 2 }; /* 0 is refused */
typedef struct terrace_edge {
  uint32_t kind; /* TERRACE_EDGE_… */
  uint32_t reserved;
  void* stream;
} terrace_edge;

#define TERRACE_PAGE_NONE UINT64_MAX /* this block is passed over */
#define TERRACE_PAGES_PER_CALL_MAX 4096u

/* Block first + i of the lease is page page_indexes[i]. */
typedef struct terrace_page_list {
  uint32_t struct_bytes;
  uint32_t member;
  uint32_t first;
  uint32_t count; /* 1 ... TERRACE_PAGES_PER_CALL_MAX */
  const uint64_t* page_indexes;
  /* Of chunks, `count` of them: where each block's first token stands in the prompt whose pages
   * these are. A load turns the keys from where they stood when they were stored. Else NULL. */
  const uint32_t* positions;
} terrace_page_list;
#define TERRACE_PAGE_LIST_INIT \
  { sizeof(terrace_page_list), 0u, 0u, 0u, NULL, NULL }

/* One store or load under way; one thread's at a time. */
typedef struct terrace_copy terrace_copy;

/* Queues copies of pages into the slots of a write lease; keys that were not reserved are passed
 * over. kv_written: the kernels that wrote the pages. TERRACE_EXISTS: one of the blocks has been
 * committed; TERRACE_BUSY: another store into one of them has not been seen to end. */
TERRACE_API terrace_status terrace_pages_store(terrace_pages* pages, terrace_write_lease* lease,
                                               const terrace_page_list* list,
                                               terrace_edge kv_written, terrace_copy** copy,
                                               char* why, size_t why_bytes);
/* Queues copies of a read lease's blocks, which are ready, into pages. destination_free: the
 * kernels that still read the pages. Of chunks, with the block in `why`: TERRACE_UNSUPPORTED where
 * another rope made its keys, TERRACE_CORRUPT where it has no header; compute it again, and give it
 * TERRACE_PAGE_NONE. Where chunks lie in a GPU's memory the call asks it for their headers:
 * TERRACE_BUSY if it does not answer within 20 ms. */
TERRACE_API terrace_status terrace_pages_load(terrace_pages* pages, const terrace_read_lease* lease,
                                              const terrace_page_list* list,
                                              terrace_edge destination_free, terrace_copy** copy,
                                              char* why, size_t why_bytes);
/* Of a store: `engine` may write to the pages again after this. */
TERRACE_API terrace_status terrace_copy_page_reuse(terrace_copy* copy, terrace_edge engine);
/* Of a load: `engine` may read this layer of the pages after this. It orders: whether the bytes
 * are right says terrace_copy_poll, before anything that was computed from them is used. */
TERRACE_API terrace_status terrace_copy_layer_ready(terrace_copy* copy, uint32_t layer,
                                                    terrace_edge engine);
/* TERRACE_BUSY: under way. TERRACE_OK: of a store its blocks are written, and may be committed;
 * of a load every byte is in its page. TERRACE_GONE: the lease was not valid throughout; what was
 * loaded must not be used. TERRACE_UNSUPPORTED: of a store, the codec of the Space refused a page
 * (a NaN, an infinity, a magnitude above the largest bf16); its block is not written, the others
 * are. */
TERRACE_API terrace_status terrace_copy_poll(terrace_copy* copy);
/* The same, waiting; TERRACE_BUSY at the deadline. */
TERRACE_API terrace_status terrace_copy_wait(terrace_copy* copy, uint64_t deadline_us);
/* Waits for what is still under way. A store that nobody has polled is not written. */
TERRACE_API void terrace_copy_destroy(terrace_copy* copy);

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

/* Called on the client's background thread; must not block. A lease that it leaves in *completion
 * is given back when it returns. */
typedef void (*terrace_callback)(void* context, terrace_completion* completion);

/* With a callback it is called with `context`; without one the completion waits for terrace_poll.
 */
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

TERRACE_API terrace_status terrace_touch(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request);

enum { TERRACE_BLOCK_ABSENT = 0, TERRACE_BLOCK_RESERVED = 1, TERRACE_BLOCK_SEALED = 2 };
enum { TERRACE_TIER_HBM = 0, TERRACE_TIER_DRAM = 1, TERRACE_TIER_NVME = 2, TERRACE_TIER_REDIS = 3 };
typedef struct terrace_queried_block {
  uint8_t state;     /* TERRACE_BLOCK_… */
  uint8_t tier_mask; /* bit 1 << TERRACE_TIER_… where it is served from */
  uint8_t priority;
  uint8_t flags; /* 1: persisted, 2: pinned */
  uint32_t lease_count;
  uint64_t commit_id;
} terrace_queried_block;
/* One answer a key. */
TERRACE_API terrace_status terrace_query(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request,
                                         terrace_queried_block* blocks);
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
/* group TERRACE_GROUP_NONE: every group of the domain. No keys with TERRACE_EVICT_SUBTREE: all. */
TERRACE_API terrace_status terrace_evict(terrace_client* client, terrace_group group,
                                         const terrace_id* keys, size_t key_count,
                                         const terrace_request* request,
                                         terrace_evict_result* result);
/* Keeps the blocks until they are unpinned, or forgotten ttl_s seconds from now (0: never). */
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
