// Fields of a record that is kept as bytes, on a disk or on a server: little-endian, at offsets,
// 128-bit ids as their low half and then their high half.
//
// Pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "terrace/block_key.h"

namespace terrace {

// Fields are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little);

// REQUIRES, of all four: the field lies inside `bytes`.
template <typename T>
void Put(std::span<std::byte> bytes, size_t offset, const T& value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

template <typename T>
T Get(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename Tag>
void PutId(std::span<std::byte> bytes, size_t offset, const Id128<Tag>& id) {
  Put(bytes, offset, id.low);
  Put(bytes, offset + 8, id.high);
}

template <typename Id>
Id GetId(std::span<const std::byte> bytes, size_t offset) {
  return {Get<uint64_t>(bytes, offset), Get<uint64_t>(bytes, offset + 8)};
}

}  // namespace terrace
