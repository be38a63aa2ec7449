// SendQueue: the bytes that a socket did not take yet, oldest first. In chunks, so that what has
// left leaves memory too: a client that reads, but never catches up, costs what it has not read.
//
// THREADING: store thread. INVARIANT: memory held ≤ size_bytes() + 2 chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "terrace/units.h"

namespace terrace {

class SendQueue {
 public:
  static constexpr size_t kChunkBytes = 64 * kKiB;

  void Append(std::span<const std::byte> bytes);
  // The oldest bytes that lie together. Empty if there are none.
  std::span<const std::byte> Front() const;
  // `byte_count` of Front() were sent.
  void Pop(size_t byte_count);
  void Clear();

  size_t size_bytes() const { return size_bytes_; }
  size_t chunk_count() const { return chunks_.size(); }

 private:
  std::deque<std::unique_ptr<std::byte[]>> chunks_;
  size_t begin_bytes_ = 0;  // offset of the oldest byte in the first chunk
  size_t size_bytes_ = 0;
};

}  // namespace terrace
