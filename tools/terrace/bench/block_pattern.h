// The bytes of a benchmark's block follow from its key alone, so that any process can check any
// block that any other process stored, without keeping a copy.
//
// Word i of the block is mix(seed(key) + i · odd constant): every 8 bytes differ from their
// neighbours, from the same place in another block, and from any other offset of this block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "terrace/block_key.h"

namespace terrace::tools {

void FillPattern(const BlockKey& key, std::span<std::byte> block);

// Offset of the first byte that is not as FillPattern(key, …) writes it.
std::optional<uint64_t> FirstMismatch(const BlockKey& key, std::span<const std::byte> block);

// The pattern's byte at one offset, for a message.
std::byte PatternByte(const BlockKey& key, uint64_t offset_bytes);

}  // namespace terrace::tools
