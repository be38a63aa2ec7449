#include "daemon/socket/send_queue.h"

#include <algorithm>
#include <cstring>

#include "terrace/check.h"

namespace terrace {

void SendQueue::Append(std::span<const std::byte> bytes) {
  TERRACE_CHECK(begin_bytes_ + size_bytes_ <= chunks_.size() * kChunkBytes,
                "what is unsent lies in chunks: else its place would be written again");
  while (!bytes.empty()) {
    const size_t end_bytes = begin_bytes_ + size_bytes_;
    const size_t used_bytes = end_bytes % kChunkBytes;
    if (end_bytes == chunks_.size() * kChunkBytes) {
      chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kChunkBytes));
    }
    const size_t step_bytes = std::min(bytes.size(), kChunkBytes - used_bytes);
    std::memcpy(chunks_.back().get() + used_bytes, bytes.data(), step_bytes);
    bytes = bytes.subspan(step_bytes);
    size_bytes_ += step_bytes;
  }
}

std::span<const std::byte> SendQueue::Front() const {
  if (size_bytes_ == 0) return {};
  return {chunks_.front().get() + begin_bytes_, std::min(size_bytes_, kChunkBytes - begin_bytes_)};
}

void SendQueue::Pop(size_t byte_count) {
  TERRACE_CHECK(byte_count <= Front().size(), "only what Front() showed can have been sent");
  begin_bytes_ += byte_count;
  size_bytes_ -= byte_count;
  if (size_bytes_ == 0) return Clear();
  if (begin_bytes_ < kChunkBytes) return;
  chunks_.pop_front();
  begin_bytes_ = 0;
}

void SendQueue::Clear() {
  chunks_.clear();
  begin_bytes_ = size_bytes_ = 0;
}

}  // namespace terrace
