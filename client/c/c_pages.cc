// The C ABI: devices, paged caches, and copies between pages and leases.
#include <array>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "client/c/c_api.h"
#include "client/link/cancel_deferred.h"
#include "client/link/fork_guard.h"
#include "client/paged/paged_cache.h"
#include "cuda/host/device_loader.h"
#include "cuda/kernels/rope.h"

using namespace terrace;
using namespace terrace::client;

// A child of fork() has none of the threads that end copies: there handles are left as they are.
struct terrace_device {
  struct Open {
    Open(Device opened, std::string why) : device(std::move(opened)), reason(std::move(why)) {}

    const Device device;
    const std::string reason;
    const uint32_t fork_generation = ForkGeneration();
    // Of the one client whose arena is registered with it. Its owner keeps this alive.
    mutable std::mutex lock;
    mutable std::weak_ptr<HostPins> pins;
  };
  std::shared_ptr<const Open> open;
};

struct terrace_pages {
  std::shared_ptr<const terrace_device::Open> open;
  std::shared_ptr<PagedCache> cache;
};

struct terrace_copy {
  std::shared_ptr<const terrace_device::Open> open;
  std::shared_ptr<PagedCache> cache;
  std::unique_ptr<PagedCopy> copy;
};

static_assert(TERRACE_PAGE_NONE == kNoPage && TERRACE_PAGES_PER_CALL_MAX == kPagesPerCallMax);

std::shared_ptr<const Device> terrace::client::DeviceOf(const terrace_device& device) {
  if (device.open->fork_generation != ForkGeneration()) return nullptr;
  return {device.open, &device.open->device};
}

namespace {

const terrace_device_options kDeviceOptions = TERRACE_DEVICE_OPTIONS_INIT;
const terrace_pages_layout kPagesLayout = TERRACE_PAGES_LAYOUT_INIT;
const terrace_tensor kTensor = TERRACE_TENSOR_INIT;
const terrace_page_list kPageList = TERRACE_PAGE_LIST_INIT;
const terrace_rope kRope = TERRACE_ROPE_INIT;
// Of ABI 2.
constexpr size_t kFirstPagesLayoutBytes = offsetof(terrace_pages_layout, rope);
constexpr size_t kFirstPageListBytes = offsetof(terrace_page_list, positions);

template <typename Handle>
bool IsForked(const Handle& handle) {
  return handle.open->fork_generation != ForkGeneration();
}

template <typename Handle>
void Destroy(Handle* handle) {
  const CancelDeferred deferred;  // it waits for what is under way
  if (handle != nullptr && !IsForked(*handle)) delete handle;
}

std::string WrongStruct(const char* name, const char* init) {
  return std::string(name) + " has a wrong struct_bytes: begin with " + init;
}

terrace_status OpenDevice(const terrace_device_options& options, terrace_device** device,
                          std::string* why) {
  const Result<DeviceBackend> backend = ParseDeviceBackend(TextOf(options.backend));
  if (!backend.ok()) {
    *why = "backend is '" + TextOf(options.backend) + "': use auto, host or cuda";
    return ToC(backend.status());
  }
  const Result<ChosenBackend> chosen = ChooseBackend(*backend, TextOf(options.plugin_path), why);
  if (!chosen.ok()) return ToC(chosen.status());
  Result<Device> opened = Device::Open(
      *chosen->ops, {.device_index = options.device_index, .worker_count = options.worker_count});
  if (!opened.ok()) {
    *why = std::string(chosen->ops->backend) + ", device_index " +
           std::to_string(options.device_index) + ", worker_count " +
           std::to_string(options.worker_count) + ": " + opened.status().what();
    return ToC(opened.status());
  }
  *device = new terrace_device{
      std::make_shared<const terrace_device::Open>(std::move(opened).value(), chosen->why)};
  return TERRACE_OK;
}

bool HasSplitPlanes(const terrace_pages_layout& layout) {
  return layout.plane_count > 1 &&
         layout.address_count == uint64_t{layout.layer_count} * layout.plane_count;
}

terrace_status ReadLayout(const terrace_pages_layout* from, terrace_pages_layout* read,
                          std::string* why) {
  *read = kPagesLayout;
  const terrace_status status = ReadStruct(from, kFirstPagesLayoutBytes, read);
  if (status != TERRACE_OK) *why = WrongStruct("layout", "TERRACE_PAGES_LAYOUT_INIT");
  return status;
}

terrace_status LayoutOf(const terrace_pages_layout& from, PagedLayout* layout, std::string* why) {
  if (from.addresses == nullptr || from.address_count > kPagedRowsMax ||
      from.layer_count > kPagedRowsMax) {
    *why = "addresses is NULL, or address_count " + std::to_string(from.address_count) +
           " or layer_count " + std::to_string(from.layer_count) + " is above " +
           std::to_string(kPagedRowsMax);
    return TERRACE_INVALID;
  }
  *layout = {.layer_count = from.layer_count,
             .plane_count = from.plane_count,
             .page_tokens = from.page_tokens,
             .block_tokens = from.block_tokens,
             .page_count = from.page_count,
             .head_count = from.head_count,
             .head_bytes = from.head_bytes,
             .block_stride_bytes = from.block_stride_bytes,
             .plane_stride_bytes = from.plane_stride_bytes,
             .token_stride_bytes = from.token_stride_bytes,
             .head_stride_bytes = from.head_stride_bytes,
             .bases = {from.addresses, from.addresses + from.address_count}};
  for (uint32_t layer = 1; from.address_count == 1 && layer < from.layer_count; ++layer) {
    const uint64_t base = layout->bases.back() + from.layer_stride_bytes;
    if (base < from.layer_stride_bytes) {
      *why = "layer_stride_bytes is " + std::to_string(from.layer_stride_bytes) +
             ": with it layer " + std::to_string(layer) + " begins past 2^64";
      return TERRACE_INVALID;
    }
    layout->bases.push_back(base);
  }
  return TERRACE_OK;
}

// As the model declares it; a rot_dim of 0 needs no more than that.
terrace_status RopeOf(const terrace_rope* from, std::optional<RopeSpec>* rope, std::string* why) {
  if (from == nullptr) return TERRACE_OK;
  terrace_rope read = kRope;
  const terrace_status status = ReadStruct(from, sizeof(terrace_rope), &read);
  if (status != TERRACE_OK) {
    *why = WrongStruct("rope", "TERRACE_ROPE_INIT");
    return status;
  }
  constexpr uint32_t kFlags = TERRACE_ROPE_PER_LAYER | TERRACE_ROPE_MULTIDIMENSIONAL;
  const bool has_frequencies = read.rot_dim == 0 || read.inv_freq != nullptr;
  if ((read.flags & ~kFlags) != 0 || read.rot_dim > kCodecHeadDimMax || !has_frequencies) {
    *why = "rope has flags " + std::to_string(read.flags) + ", rot_dim " +
           std::to_string(read.rot_dim) + " and " + (has_frequencies ? "its" : "no") +
           " inv_freq: TERRACE_ROPE_… flags, at most " + std::to_string(kCodecHeadDimMax) +
           ", and rot_dim / 2 numbers";
    return TERRACE_INVALID;
  }
  rope->emplace();
  if (read.rot_dim == 0) return TERRACE_OK;
  const std::string pairing = read.pairing == nullptr ? "neox" : read.pairing;
  const std::string scaling = TextOf(read.scaling);
  const Result<RopePairing> checked =
      CheckRope({.pairing = pairing,
                 .scaling = scaling,
                 .is_per_layer = (read.flags & TERRACE_ROPE_PER_LAYER) != 0,
                 .is_multidimensional = (read.flags & TERRACE_ROPE_MULTIDIMENSIONAL) != 0},
                why);
  if (!checked.ok()) return ToC(checked.status());
  **rope = {.pairing = *checked,
            .rot_dim = read.rot_dim,
            .rot_offset = read.rot_offset,
            .inv_freq = {read.inv_freq, read.inv_freq + read.rot_dim / 2}};
  return TERRACE_OK;
}

terrace_status ReadTensor(const terrace_tensor* from, TensorView* tensor, std::string* why) {
  terrace_tensor read = kTensor;
  const terrace_status status = ReadStruct(from, sizeof(terrace_tensor), &read);
  if (status != TERRACE_OK) {
    *why = WrongStruct("tensor", "TERRACE_TENSOR_INIT");
    return status;
  }
  if (read.shape == nullptr || read.stride_bytes == nullptr || read.dimension_count > 5 ||
      read.item_bytes == 0) {
    *why = "shape or stride_bytes is NULL, dimension_count " +
           std::to_string(read.dimension_count) + " is above 5, or item_bytes is 0";
    return TERRACE_INVALID;
  }
  tensor->shape.assign(read.shape, read.shape + read.dimension_count);
  tensor->stride_bytes.assign(read.stride_bytes, read.stride_bytes + read.dimension_count);
  tensor->item_bytes = read.item_bytes;
  tensor->axes = TextOf(read.axes);
  return TERRACE_OK;
}

// Strides alone are asked for: the address of one layer stands for all.
Result<PagedLayout> StridesOf(const TensorView& tensor, const terrace_pages_layout& layout,
                              std::string* why) {
  const std::array<uint64_t, 1> address = {1};
  return LayoutOfTensor(tensor, address,
                        {.page_count = layout.page_count,
                         .page_tokens = layout.page_tokens,
                         .block_tokens = layout.block_tokens,
                         .head_count = layout.head_count,
                         .head_size = static_cast<uint32_t>(layout.head_bytes / tensor.item_bytes),
                         .plane_count = HasSplitPlanes(layout) ? 1 : layout.plane_count},
                        why);
}

// What a wait on an engine's stream needs; `name` is the argument's.
Result<Stream> AdoptStream(const Device& device, const terrace_edge& edge, const char* name,
                           std::string* why) {
  Result<Stream> stream = Stream::Adopt(device, edge.stream);
  if (!stream.ok()) {
    *why = std::string(name) + " is TERRACE_EDGE_STREAM, and the " + device.ops().backend +
           " backend cannot use it: " + stream.status().what() +
           ". Wait for the engine, and say TERRACE_EDGE_HOST";
  }
  return stream;
}

terrace_status RefuseEdge(const terrace_edge& edge, const char* name, std::string* why) {
  *why = std::string(name) + " has kind " + std::to_string(edge.kind) +
         ": say TERRACE_EDGE_STREAM and the stream, or TERRACE_EDGE_HOST";
  return TERRACE_INVALID;
}

// The edge that a copy takes: KvWritten or DestinationFree.
template <typename Edge, typename Queue>
terrace_status WithEdge(terrace_pages& pages, const terrace_edge& edge, const char* name,
                        std::string* why, Queue queue) {
  if (edge.kind == TERRACE_EDGE_HOST) return queue(Edge::Already());
  if (edge.kind != TERRACE_EDGE_STREAM) return RefuseEdge(edge, name, why);
  Result<Stream> stream = AdoptStream(pages.open->device, edge, name, why);
  if (!stream.ok()) return ToC(stream.status());
  const Result<Edge> after = Edge::After(pages.cache->events(), *stream);
  if (!after.ok()) {
    *why = std::string(name) + ": " + after.status().what();
    return ToC(after.status());
  }
  return queue(*after);
}

// Store and load: their arguments, and what they hand out.
template <typename Edge, typename CLease, typename Copy>
terrace_status BeginCopy(terrace_pages* pages, CLease* lease, const terrace_page_list* list,
                         const terrace_edge& edge, const char* edge_name, terrace_copy** copy,
                         std::string* why, Copy begin) {
  if (pages == nullptr || copy == nullptr || lease == nullptr) {
    *why = "pages, lease or copy is NULL";
    return TERRACE_INVALID;
  }
  *copy = nullptr;
  if (IsForked(*pages)) {
    *why = "pages are the parent's: a forked child describes its own";
    return TERRACE_GONE;
  }
  terrace_page_list read = kPageList;
  const terrace_status status = ReadStruct(list, kFirstPageListBytes, &read);
  if (status != TERRACE_OK || read.page_indexes == nullptr) {
    *why = status != TERRACE_OK ? WrongStruct("list", "TERRACE_PAGE_LIST_INIT")
                                : "page_indexes is NULL";
    return status != TERRACE_OK ? status : TERRACE_INVALID;
  }
  PageList asked{.member = read.member,
                 .first_block = read.first,
                 .page_indexes = {read.page_indexes, read.count}};
  if (read.positions != nullptr) asked.first_token_positions = {read.positions, read.count};
  return WithEdge<Edge>(*pages, edge, edge_name, why, [&](const Edge& ordered) {
    auto made = std::make_unique<terrace_copy>(terrace_copy{pages->open, pages->cache, nullptr});
    Result<std::unique_ptr<PagedCopy>> begun = begin(asked, ordered);
    if (!begun.ok()) return ToC(begun.status());
    made->copy = std::move(begun).value();
    *copy = made.release();
    return terrace_status{TERRACE_OK};
  });
}

// A call that may say why it failed.
template <typename Call>
terrace_status Explained(char* why, size_t why_bytes, Call call) {
  WriteText("", why, why_bytes);
  return client::Guarded([&] {
    std::string sentence;
    const terrace_status status = call(&sentence);
    return status == TERRACE_OK ? status : Refuse(sentence, why, why_bytes, status);
  });
}

// An edge that a copy gives: `gate` lets the engine's stream wait, `await` this thread.
template <typename Gate, typename Await>
terrace_status GiveEdge(const terrace_copy& copy, const terrace_edge& edge, Gate gate,
                        Await await) {
  if (edge.kind == TERRACE_EDGE_HOST) return ToC(await());
  if (edge.kind != TERRACE_EDGE_STREAM) return TERRACE_INVALID;
  Result<Stream> stream = Stream::Adopt(copy.open->device, edge.stream);
  return ToC(stream.ok() ? gate(*stream) : stream.status());
}

}  // namespace

// ---- Devices ----

terrace_status terrace_device_create(const terrace_device_options* options, terrace_device** device,
                                     char* why, size_t why_bytes) {
  if (device == nullptr) return Refuse("device is NULL", why, why_bytes);
  *device = nullptr;
  return Explained(why, why_bytes, [&](std::string* sentence) {
    terrace_device_options read = kDeviceOptions;
    const terrace_status status = ReadStruct(options, sizeof(terrace_device_options), &read);
    if (status == TERRACE_OK) return OpenDevice(read, device, sentence);
    *sentence = WrongStruct("options", "TERRACE_DEVICE_OPTIONS_INIT");
    return status;
  });
}

void terrace_device_destroy(terrace_device* device) { Destroy(device); }

const char* terrace_device_backend(const terrace_device* device) {
  return device == nullptr ? "" : device->open->device.ops().backend;
}

size_t terrace_device_reason(const terrace_device* device, char* text, size_t text_bytes) {
  return WriteText(device == nullptr ? "" : device->open->reason, text, text_bytes);
}

// ---- The pinned arena ----

terrace_status terrace_client_pin_arena(terrace_client* client, const terrace_device* device,
                                        char* why, size_t why_bytes) {
  if (client == nullptr || device == nullptr) {
    return Refuse("client or device is NULL", why, why_bytes);
  }
  if (IsForked(*device)) {
    return Refuse("device is the parent's: a forked child opens its own", why, why_bytes,
                  TERRACE_GONE);
  }
  return Explained(why, why_bytes, [&](std::string* sentence) {
    const std::shared_ptr<const terrace_device::Open>& open = device->open;
    const std::lock_guard guard(open->lock);
    if (!open->pins.expired()) {
      *sentence = "an arena is registered with this device already: open a device a client";
      return terrace_status{TERRACE_EXISTS};
    }
    const Result<std::shared_ptr<HostPins>> pins =
        client->client->PinArena(DeviceOf(*device), open->reason);
    if (!pins.ok()) {
      *sentence = pins.status().what();
      return ToC(pins.status());
    }
    open->pins = *pins;
    return terrace_status{TERRACE_OK};
  });
}

terrace_status terrace_client_pause_pinning(terrace_client* client, uint64_t deadline_us) {
  if (client == nullptr) return TERRACE_INVALID;
  return client::Guarded([&] { return ToC(client->client->PausePinning(deadline_us)); });
}

void terrace_client_resume_pinning(terrace_client* client) {
  if (client != nullptr) client->client->ResumePinning();
}

// ---- Pages ----

terrace_status terrace_pages_read_tensor(const terrace_tensor* tensor, terrace_pages_layout* layout,
                                         char* why, size_t why_bytes) {
  return Explained(why, why_bytes, [&](std::string* sentence) {
    terrace_pages_layout known;
    TensorView view;
    terrace_status status = ReadLayout(layout, &known, sentence);
    if (status == TERRACE_OK) status = ReadTensor(tensor, &view, sentence);
    if (status != TERRACE_OK) return status;
    const Result<PagedLayout> read = StridesOf(view, known, sentence);
    if (!read.ok()) return ToC(read.status());
    layout->block_stride_bytes = read->block_stride_bytes;
    layout->plane_stride_bytes = read->plane_stride_bytes;
    layout->token_stride_bytes = read->token_stride_bytes;
    layout->head_stride_bytes = read->head_stride_bytes;
    return status;
  });
}

terrace_status terrace_pages_create(const terrace_device* device,
                                    const terrace_pages_layout* layout, const terrace_space* space,
                                    terrace_pages** pages, char* why, size_t why_bytes) {
  if (device == nullptr || pages == nullptr) {
    return Refuse("device or pages is NULL", why, why_bytes);
  }
  *pages = nullptr;
  if (IsForked(*device)) {
    return Refuse("device is the parent's: a forked child opens its own", why, why_bytes,
                  TERRACE_GONE);
  }
  return Explained(why, why_bytes, [&](std::string* sentence) {
    terrace_pages_layout read;
    SpaceGroupMember member;
    PagedCacheOptions options;
    terrace_status status = ReadLayout(layout, &read, sentence);
    if (status == TERRACE_OK) status = ReadSpace(space, &member, sentence);
    if (status == TERRACE_OK) status = LayoutOf(read, &options.layout, sentence);
    if (status == TERRACE_OK) status = RopeOf(read.rope, &options.rope, sentence);
    if (status != TERRACE_OK) return status;
    if ((read.flags & ~TERRACE_PAGES_OPAQUE) != 0) {
      *sentence = "flags is " + std::to_string(read.flags) + ": TERRACE_PAGES_OPAQUE or 0";
      return terrace_status{TERRACE_INVALID};
    }
    options.is_opaque = (read.flags & TERRACE_PAGES_OPAQUE) != 0;
    options.space = member.spec;
    {
      const std::lock_guard guard(device->open->lock);
      options.pins = device->open->pins.lock();
    }
    Result<std::unique_ptr<PagedCache>> cache =
        PagedCache::Create(device->open->device, options, sentence);
    if (!cache.ok()) return ToC(cache.status());
    *pages = new terrace_pages{device->open, std::move(cache).value()};
    return status;
  });
}

void terrace_pages_destroy(terrace_pages* pages) { Destroy(pages); }

terrace_status terrace_pages_store(terrace_pages* pages, terrace_write_lease* lease,
                                   const terrace_page_list* list, terrace_edge kv_written,
                                   terrace_copy** copy, char* why, size_t why_bytes) {
  return Explained(why, why_bytes, [&](std::string* sentence) {
    return BeginCopy<KvWritten>(pages, lease, list, kv_written, "kv_written", copy, sentence,
                                [&](const PageList& asked, const KvWritten& written) {
                                  const WriteLease* live = LiveLease<WriteLease>(lease);
                                  const WriteLease none;
                                  return pages->cache->Store(live == nullptr ? none : *live, asked,
                                                             written, sentence);
                                });
  });
}

terrace_status terrace_pages_load(terrace_pages* pages, const terrace_read_lease* lease,
                                  const terrace_page_list* list, terrace_edge destination_free,
                                  terrace_copy** copy, char* why, size_t why_bytes) {
  return Explained(why, why_bytes, [&](std::string* sentence) {
    return BeginCopy<DestinationFree>(
        pages, lease, list, destination_free, "destination_free", copy, sentence,
        [&](const PageList& asked, const DestinationFree& free) {
          const ReadLease* live = LiveLease<ReadLease>(lease);
          const ReadLease none;
          return pages->cache->Load(live == nullptr ? none : *live, asked, free, sentence);
        });
  });
}

// ---- Copies ----

terrace_status terrace_copy_page_reuse(terrace_copy* copy, terrace_edge engine) {
  if (copy == nullptr || !copy->copy->is_store()) return TERRACE_INVALID;
  if (IsForked(*copy)) return TERRACE_GONE;
  return client::Guarded([&] {
    PageReuse* const reuse = copy->copy->page_reuse();
    return GiveEdge(
        *copy, engine,
        [&](Stream& stream) { return reuse == nullptr ? Status::Ok() : reuse->Gate(stream); },
        [&] { return reuse == nullptr ? Status::Ok() : reuse->AwaitOnHost(); });
  });
}

terrace_status terrace_copy_layer_ready(terrace_copy* copy, uint32_t layer, terrace_edge engine) {
  if (copy == nullptr || layer >= copy->copy->layer_count()) return TERRACE_INVALID;
  if (IsForked(*copy)) return TERRACE_GONE;
  return client::Guarded([&] {
    LayerReady* const ready = copy->copy->layer_ready();
    return GiveEdge(
        *copy, engine,
        [&](Stream& stream) {
          return ready == nullptr ? Status::Ok() : ready->Gate(layer, stream);
        },
        [&] { return ready == nullptr ? Status::Ok() : ready->AwaitOnHost(layer); });
  });
}

terrace_status terrace_copy_poll(terrace_copy* copy) {
  if (copy == nullptr) return TERRACE_INVALID;
  return client::Guarded([&] { return ToC(copy->copy->Poll()); });
}

terrace_status terrace_copy_wait(terrace_copy* copy, uint64_t deadline_us) {
  if (copy == nullptr) return TERRACE_INVALID;
  return client::Guarded([&] { return ToC(copy->copy->Wait(deadline_us)); });
}

void terrace_copy_destroy(terrace_copy* copy) { Destroy(copy); }
