#include "daemon/session/message_body.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace terrace {

MessageBody& MessageBody::operator=(MessageBody&& other) noexcept {
  borrowed_ = std::exchange(other.borrowed_, {});
  chunks_ = std::move(other.chunks_);
  other.chunks_.clear();
  owned_bytes_ = std::exchange(other.owned_bytes_, 0);
  return *this;
}

void MessageBody::Append(std::span<const std::byte> bytes) {
  Own();
  while (!bytes.empty()) {
    const size_t used_bytes = owned_bytes_ % kChunkBytes;
    if (used_bytes == 0)
      chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kChunkBytes));
    const size_t step_bytes = std::min(bytes.size(), kChunkBytes - used_bytes);
    std::memcpy(chunks_.back().get() + used_bytes, bytes.data(), step_bytes);
    owned_bytes_ += step_bytes;
    bytes = bytes.subspan(step_bytes);
  }
}

void MessageBody::Own() {
  if (borrowed_.empty()) return;
  const std::span<const std::byte> bytes = std::exchange(borrowed_, {});
  Append(bytes);
}

void MessageBody::Clear() {
  borrowed_ = {};
  chunks_.clear();
  owned_bytes_ = 0;
}

void MessageBody::CopyTo(size_t offset_bytes, std::span<std::byte> to) const {
  if (to.empty()) return;
  TERRACE_CHECK(offset_bytes <= size_bytes() && to.size() <= size_bytes() - offset_bytes,
                "who copies from a body knows how long it is");
  if (!borrowed_.empty()) {
    std::memcpy(to.data(), borrowed_.data() + offset_bytes, to.size());
    return;
  }
  while (!to.empty()) {
    const size_t begin_bytes = offset_bytes % kChunkBytes;
    const size_t step_bytes = std::min(to.size(), kChunkBytes - begin_bytes);
    std::memcpy(to.data(), chunks_[offset_bytes / kChunkBytes].get() + begin_bytes, step_bytes);
    offset_bytes += step_bytes;
    to = to.subspan(step_bytes);
  }
}

}  // namespace terrace
