// The smallest Space there is a use for: a layer, a head, blocks of 16 tokens. What a test needs
// otherwise it changes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "terrace/space.h"

namespace terrace::test {

inline SpaceSpec SmallSpace(std::vector<uint64_t> part_bytes, std::string model = "m",
                            std::string revision = "r") {
  SpaceSpec spec;
  spec.model = std::move(model);
  spec.revision = std::move(revision);
  spec.dtype = "bf16";
  spec.layers = 1;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.part_bytes = std::move(part_bytes);
  return spec;
}

}  // namespace terrace::test
