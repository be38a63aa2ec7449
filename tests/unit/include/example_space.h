// The Spaces of the golden vectors in docs/PROTOCOL.md: two tensor-parallel ranks of one model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "terrace/checksum.h"
#include "terrace/space.h"

namespace terrace {

inline SpaceSpec ExampleSpace(uint32_t tp_rank) {
  SpaceSpec spec;
  spec.model = "llama-3=70b/\xC3\xA9";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = 80;
  spec.kv_heads = 4;
  spec.head_size = 128;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.tp_rank = tp_rank;
  spec.tp_size = 2;
  spec.part_bytes.assign(7, 327680);
  spec.part_bytes.push_back(65536);
  return spec;
}

inline SpaceGroupSpec ExampleGroup() {
  SpaceGroupSpec group;
  group.name = "llama3-70b";
  group.members = {{.spec = ExampleSpace(0)}, {.spec = ExampleSpace(1)}};
  return group;
}

// Byte i is 7i + 3 modulo 256.
inline DomainSecret ExampleSecret() {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(7 * i + 3);
  return secret;
}

}  // namespace terrace
