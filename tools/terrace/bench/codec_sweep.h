// What `terrace bench device` measures of the codecs: by the host's CPU, or, where the plugin has
// kernels and there is a GPU, by those, each beside a copy of the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/host/stream.h"
#include "cuda/kernels/codec_device.h"
#include "terrace/codec.h"
#include "terrace/status.h"

namespace terrace::tools {

struct CodecRow {
  Codec codec = Codec::kInt8;
  PieceRole role = PieceRole::kKeys;
  bool is_encode = true;
  std::vector<double> gigabytes_per_second;  // of the engine's bytes
  // Each round's, of what a copy moved in that round; both count bytes read and bytes written.
  std::vector<double> share_of_copy;
};

struct CodecSweep {
  std::string_view where;  // "host" or "cuda"
  std::vector<CodecRow> rows;
  // What the kernels wrote that the host writes otherwise; 0 where there are none.
  uint64_t wrong_bytes = 0;
};

// By kernels if `codecs` is not null, else by this thread. kNoSpace and the like, with `*why`.
Status MeasureCodecs(const Device& device, const CodecOps* codecs, uint64_t call_bytes,
                     uint32_t round_count, CodecSweep* sweep, std::string* why);

}  // namespace terrace::tools
