/* terrace_pages.h: paged caches in the C ABI: copies between an engine's pages, on a GPU or in its
 * own memory, and the slots of leases. Included by terrace.h, whose page says what holds for every
 * function: errors, units, memory, versions, threads, fork. docs/DEVICE.md tells what each edge
 * prevents.
 *
 * OWNERSHIP: a device, its pages and copies are the caller's to destroy, in any order; tensors and
 * the leases that are copied from or to outlive the copies.
 * THREADING: one copy is one thread's at a time; any thread may do the rest.
 */
#pragma once

#include "terrace/terrace_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What copies: a backend and one of its devices. Whatever was made from it may outlive it: the last
 * of them lets it go. */
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

/* Opens a device, which may take seconds, while a driver starts. TERRACE_UNSUPPORTED, with the
 * reason in `why`, where the backend that was asked for does not work here; TERRACE_INVALID for
 * options that cannot be. The caller's, for terrace_device_destroy. */
TERRACE_API terrace_status terrace_device_create(const terrace_device_options* options,
                                                 terrace_device** device, char* why,
                                                 size_t why_bytes);
/* NULL is allowed. */
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
 * beside 2 planes): a guess would be wrong for every prompt. A pure function: needs no device. */
TERRACE_API terrace_status terrace_pages_read_tensor(const terrace_tensor* tensor,
                                                     terrace_pages_layout* layout, char* why,
                                                     size_t why_bytes);

/* An engine's paged cache, described once. Several threads may store and load at once. */
typedef struct terrace_pages terrace_pages;

/* Pages, and the Space whose slots hold them: its layout is "nhd" or "hnd", or the engine's where
 * pages are opaque. Under a codec of Terrace's ("terrace:int8") pages are encoded and decoded on
 * their way. TERRACE_INVALID, with field and values in `why`, where the two do not fit. Tensors
 * must outlive it. */
TERRACE_API terrace_status terrace_pages_create(const terrace_device* device,
                                                const terrace_pages_layout* layout,
                                                const terrace_space* space, terrace_pages** pages,
                                                char* why, size_t why_bytes);
/* What it still copies is waited for by its copies. NULL is allowed. */
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
/* Of a store: `engine` may write to the pages again after this. An edge of the host waits.
 * TERRACE_INVALID for a load, TERRACE_BUSY while the stream is being captured into a graph. */
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
/* The same, waiting; TERRACE_BUSY at the deadline, and it is still under way. */
TERRACE_API terrace_status terrace_copy_wait(terrace_copy* copy, uint64_t deadline_us);
/* Waits for what is still under way: memory may be touched until it returns. A store that nobody
 * has polled to its end is not written. NULL is allowed. */
TERRACE_API void terrace_copy_destroy(terrace_copy* copy);

#ifdef __cplusplus
}
#endif
