// PagedCache: an engine's pages on one side, the slots of leases on the other, and a copier between
// them. PagedCopy: one store or load under way, which holds its lease's slots until the host has
// seen its end.
//
// A store marks nothing as written before that, so there is nothing of it that a Commit could
// commit; and it is counted as a copy of its lease, so no end of the lease is sent before it.
//
// THREADING: any thread may store and load; a PagedCopy and its edges are one thread's at a time.
// OWNERSHIP: the device outlives the cache, and the cache its copies and the edges made for them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/lease/leases.h"
#include "client/paged/chunk_headers.h"
#include "cuda/copy/paged_copier.h"
#include "terrace/client.h"
#include "terrace/space.h"

namespace terrace::client {

inline constexpr uint64_t kNoPage = UINT64_MAX;  // a block that is passed over

struct PageList {
  uint32_t member = 0;
  uint32_t first_block = 0;                // of the lease's blocks or keys
  std::span<const uint64_t> page_indexes;  // of the blocks from there on
  // Of chunks, one a page: where the block's first token stands in the prompt whose pages these
  // are. Of other Spaces none.
  std::span<const uint32_t> first_token_positions = {};
};

struct PagedCacheOptions {
  PagedLayout layout;
  SpaceSpec space;  // whose slots hold the pages
  // Bytes in the engine's own order, which the Space's layout names: layers are runs of memory.
  bool is_opaque = false;
  // Which slots the device reaches by itself (Client::PinArena). None: none of them. Of no meaning
  // to the host, which reaches all, and where `copier` says more.
  std::shared_ptr<HostPins> pins;
  // Of a Space of chunks, and of no other: how the model turns its keys; a rot_dim of 0 if these
  // have no positions. Loads turn them from where they stood to where they are wanted.
  std::optional<RopeSpec> rope;
  // None: paths by TransferPlan's rule, and a stage that holds a layer.
  std::optional<CopierOptions> copier;
};

class PagedCopy {
 public:
  ~PagedCopy();
  PagedCopy(const PagedCopy&) = delete;
  PagedCopy& operator=(const PagedCopy&) = delete;

  bool is_store() const { return is_store_; }
  // Of a load; 0 of a store.
  uint32_t layer_count() const { return layer_count_; }
  // The edges that the copy gives; null where nothing was to be copied, or of the other kind.
  PageReuse* page_reuse() { return store_ ? &store_->page_reuse : nullptr; }
  LayerReady* layer_ready() { return load_ ? &load_->layer_ready : nullptr; }

  // kBusy: under way. kOk: the parts of a store are written, and may be committed; all bytes of a
  // load are in their pages. kGone: the lease was not valid throughout. kUnsupported, of a store: a
  // lossy codec refused a page; the other blocks' parts are written. Others: the device failed, and
  // what the copy still does shows when it is destroyed: the lease does not end before.
  Status Poll();
  // The same; kBusy at the deadline, which is relative to the call.
  Status Wait(uint64_t deadline_us);

 private:
  friend class PagedCache;
  PagedCopy(std::shared_ptr<LeaseState> lease, uint32_t member, bool is_store);
  Status QueryEvents();
  Status RememberWritten();
  Status Finish(Status copied);

  // From first to last: tickets wait for their copies, then the copy is no longer counted, then the
  // lease may go.
  const std::shared_ptr<LeaseState> lease_;
  std::optional<LeaseCopy> counted_;
  const uint32_t member_;
  const bool is_store_;
  bool has_slots_ = false;  // of a store: nobody else writes there, and nobody commits
  uint32_t layer_count_ = 0;
  std::vector<uint32_t> blocks_;  // ascending
  std::vector<uint64_t> pages_;   // of a store: the blocks' pages
  std::optional<StoreTicket> store_;
  std::optional<LoadTicket> load_;
  std::optional<Status> end_;
};

class PagedCache {
 public:
  // kInvalid and kUnsupported with field and values in `*why` where layout and Space do not fit.
  static Result<std::unique_ptr<PagedCache>> Create(const Device& device,
                                                    const PagedCacheOptions& options,
                                                    std::string* why);
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  EventPool& events() { return copier_->events(); }
  const PagedNest& nest() const { return copier_->nest(); }

  // Keys that were not reserved are passed over. With `*why`: kInvalid; kGone if the lease is not
  // valid, kExists for a block that it has committed, kBusy for one that is being stored.
  Result<std::unique_ptr<PagedCopy>> Store(const WriteLease& lease, const PageList& list,
                                           const KvWritten& written, std::string* why);
  // With `*why`: kInvalid; kGone; kBusy for a block that is not ready. Of chunks, for one block
  // that is to be computed again: kUnsupported, kCorrupt. Chunks in the device's memory are asked
  // for their headers: kBusy if it does not answer within kFetchUsMax.
  Result<std::unique_ptr<PagedCopy>> Load(const ReadLease& lease, const PageList& list,
                                          const DestinationFree& free, std::string* why);

 private:
  PagedCache(SpaceId space, std::string device_name, std::unique_ptr<PagedCopier> copier,
             std::unique_ptr<ChunkHeaders> headers)
      : space_(space),
        device_name_(std::move(device_name)),
        reaches_slots_(device_name_ == "host"),
        copier_(std::move(copier)),
        headers_(std::move(headers)) {}
  Status CheckLease(const LeaseState* lease, const PageList& list, uint32_t block_count,
                    std::string* why) const;
  Status CheckPositions(const PageList& list, std::string* why) const;
  PageSlot SlotOf(uint64_t page_index, std::byte* slot) const;
  // Of the lease's slots in the memory of a GPU: whether they are of this cache's device.
  Status CheckDevice(const LeaseState& lease, std::string* why) const;

  const SpaceId space_;
  const std::string device_name_;
  const bool reaches_slots_;  // kernels reach any memory of the process
  const std::unique_ptr<PagedCopier> copier_;
  const std::unique_ptr<ChunkHeaders> headers_;  // of chunks
  std::mutex store_lock_;
  std::mutex load_lock_;
};

}  // namespace terrace::client
