// Who hears what becomes of blocks. All classes of this room that change blocks tell the same ones.
//
// THREADING: store thread.
#pragma once

#include "daemon/block/kv_event_source.h"
#include "terrace/status.h"

namespace terrace {

// What becomes of blocks, for those who wait for them. May let go of leases and hold others, but
// must not erase blocks.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  // Sealed with a readable DRAM copy: just now.
  virtual void OnBlockReady(BlockId id) = 0;
  // More parts of a promotion under way are in and verified: Block::steps_in.
  virtual void OnStepsIn(BlockId id) = 0;
  // A promotion failed, or nobody can find the block any more.
  virtual void OnBlockLost(BlockId id, StatusCode why) = 0;
  // The copy in the persistent tier is complete, and outlives the process.
  virtual void OnBlockPersisted(BlockId id) = 0;
};

// Who keeps blocks under a name.
class PinObserver {
 public:
  virtual ~PinObserver() = default;
  // Nobody can find this block any more, which a name keeps.
  virtual void OnLeave(BlockId id) = 0;
};

struct BlockObservers {
  BlockObserver* waiting = nullptr;    // those who wait; set before the first block is born
  KvEventSource* kv_events = nullptr;  // none: routers are told nothing
  PinObserver* pins = nullptr;         // none: no block is pinned by name
};

}  // namespace terrace
