// Launches of codecs on the CPU: the `host` backend's product and the `sim` backend's device.
#pragma once

#include <cstdint>

#include "cuda/kernels/codec_device.h"
#include "terrace/status.h"

namespace terrace {

enum class CodecDirection { kEncode, kDecode };

// kInvalid, with the reason, for a launch past its limits; kUnsupported for rows with gaps, which
// only a GPU's kernels take.
Status ValidateLaunch(const CodecLaunch& launch, CodecDirection direction);

uint64_t RawBytes(const CodecLaunch& launch);  // of one piece

// Codes pieces [first, first + count). REQUIRES: ValidateLaunch.
void CodePieces(const CodecLaunch& launch, CodecDirection direction, uint32_t first,
                uint32_t count);

}  // namespace terrace
