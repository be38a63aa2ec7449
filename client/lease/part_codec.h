// Parts of a member whose Space names a lossy codec: layer by layer between the engine's bytes and
// the slot.
//
// THREADING: any thread. `is_valid` is the lease's: once it is false, nothing more is touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/codec.h"
#include "terrace/status.h"

namespace terrace::client {

// kUnsupported at the first piece the codec refuses; kGone if the lease ended. Either way the slot
// holds no part. REQUIRES: codec.IsEncoded the part; sizes are those of
// codec.RawPartBytes() and codec.EncodedPartBytes().
Status EncodePart(const SpaceCodec& codec, std::span<const std::byte> from, std::span<std::byte> to,
                  const std::atomic<bool>& is_valid);
Status DecodePart(const SpaceCodec& codec, std::span<const std::byte> from, std::span<std::byte> to,
                  const std::atomic<bool>& is_valid);

}  // namespace terrace::client
