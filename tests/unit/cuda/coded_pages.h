// Pages under a codec: what paged copies with a codec are compared with, piece by piece on the
// host, from naive copies.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/host/copy_lane.h"
#include "cuda/host/page_codes.h"
#include "cuda/kernels/codec.h"
#include "cuda/kernels/rope.h"
#include "tests/sim/paged_world.h"

namespace terrace {

// Kinds of caches whose layers are keys and values of their own.
inline std::vector<std::string> CodedKinds() {
  std::vector<std::string> kinds = CacheKinds();
  std::erase_if(kinds,
                [](const std::string& kind) { return kind == "mla" || kind == "kv_side_by_side"; });
  return kinds;
}

// And those of chunks, which latents may be, too.
inline std::vector<std::string> ChunkKinds() {
  std::vector<std::string> kinds = CodedKinds();
  kinds.push_back("mla");
  return kinds;
}

// Numbers below 2, whichever the type of element is.
inline TestCache MakeFiniteCache(const std::string& kind, const CacheShape& shape, uint32_t seed) {
  TestCache cache = MakeCache(kind, shape, seed);
  for (size_t i = 1; i < cache.memory.size(); i += 2) cache.memory[i] &= std::byte{0xBF};
  return cache;
}

inline SpaceCodec CodecOf(Codec codec, ElementType element, const CacheShape& shape,
                          uint32_t part_count) {
  const PieceShape keys{element, PieceRole::kKeys, shape.page_tokens, shape.head_count,
                        static_cast<uint32_t>(shape.head_bytes / ElementBytes(element))};
  PieceShape values = keys;
  values.role = PieceRole::kValues;
  return {codec, keys, values, shape.layer_count, part_count};
}

// Of pages of one of ChunkKinds(): latents as they are, and no values.
inline SpaceCodec ChunkCodecOf(const std::string& kind, Codec codec, ElementType element,
                               const CacheShape& shape, uint32_t layer_parts) {
  const bool is_mla = kind == "mla";
  SpaceCodec space = CodecOf(is_mla ? Codec::kRaw : codec, element, shape, layer_parts + 1);
  space.has_chunk_header = true;
  if (!is_mla) return space;
  space.values.tokens = 0;
  space.keys.heads = space.values.heads = 1;
  return space;
}

// A window of heads of that many elements, which has to be 6 or more, that begins at the second.
inline RopeSpec RopeOf(uint32_t head_dim, RopePairing pairing) {
  RopeSpec rope{.pairing = pairing, .rot_dim = head_dim / 2 / 2 * 2, .rot_offset = 2};
  for (uint32_t i = 0; i < rope.rot_dim / 2; ++i) rope.inv_freq.push_back(1.0 / (1 + 3.0 * i));
  return rope;
}

inline PagedNest CompileForCodec(const PagedLayout& layout) {
  std::string why;
  Result<PagedNest> nest =
      CompileNest(layout, {.order = SlotOrder::kNhd, .layers_per_part = layout.layer_count}, &why);
  EXPECT_TRUE(nest.ok()) << why;
  return std::move(nest).value();
}

// A page and its slot, where the layout's addresses can be read. `layers` are the slot's.
class NaiveCoded {
 public:
  NaiveCoded(const PagedLayout& layout, const SpaceCodec& codec)
      : layout_(layout),
        codec_(codec),
        layers_(SlotLayers::Of(codec)),
        nest_(CompileForCodec(layout)) {}

  const SlotLayers& layers() const { return layers_; }

  // False at the first layer whose bytes differ, or that the codec refuses.
  bool IsEncoded(uint64_t page_index, const std::byte* slot) const {
    std::vector<std::byte> raw(nest_.slot_bytes);
    NaiveGather(layout_, nest_, SlotOrder::kNhd, page_index, raw.data());
    std::vector<std::byte> encoded(layers_.layer_bytes);
    for (uint32_t layer = 0; layer < layout_.layer_count; ++layer) {
      const std::span<const std::byte> bytes(&raw[layer * nest_.layer_bytes], nest_.layer_bytes);
      const uint64_t keys_bytes = codec_.keys.raw_bytes();
      const uint64_t coded_keys_bytes = LayoutOf(codec_.codec, codec_.keys).encoded_bytes;
      const std::span<std::byte> to(encoded);
      if (!EncodePiece(codec_.codec, codec_.keys, bytes.first(keys_bytes),
                       to.first(coded_keys_bytes))
               .ok() ||
          (codec_.has_values() &&
           !EncodePiece(codec_.codec, codec_.values, bytes.subspan(keys_bytes),
                        to.subspan(coded_keys_bytes))
                .ok())) {
        return false;
      }
      const std::byte* const in_slot = slot + layers_.offset_bytes[layer];
      if (std::memcmp(in_slot, encoded.data(), encoded.size()) != 0) return false;
    }
    return true;
  }

  // Writes to the page what its slot decodes to, the keys turned.
  void Decode(uint64_t page_index, const std::byte* slot, const RopeTable* table = nullptr) const {
    std::vector<std::byte> raw(nest_.slot_bytes);
    for (uint32_t layer = 0; layer < layout_.layer_count; ++layer) {
      const std::span<std::byte> bytes(&raw[layer * nest_.layer_bytes], nest_.layer_bytes);
      const std::span<const std::byte> from(slot + layers_.offset_bytes[layer],
                                            layers_.layer_bytes);
      const uint64_t keys_bytes = codec_.keys.raw_bytes();
      const uint64_t coded_keys_bytes = LayoutOf(codec_.codec, codec_.keys).encoded_bytes;
      DecodeTurnScatter(codec_.codec, codec_.keys, from.first(coded_keys_bytes), table,
                        {bytes.data(), keys_bytes / codec_.keys.tokens});
      if (!codec_.has_values()) continue;
      DecodePiece(codec_.codec, codec_.values, from.subspan(coded_keys_bytes),
                  bytes.subspan(keys_bytes));
    }
    NaiveScatter(layout_, nest_, SlotOrder::kNhd, page_index, raw.data());
  }
  // The same of a page as it is asked for.
  void Decode(const PageSlot& page, const RopeSpec& rope) const {
    const RopeTable table(rope, page.key_delta);
    Decode(page.page_index, page.slot, &table);
  }

 private:
  const PagedLayout layout_;
  const SpaceCodec codec_;
  const SlotLayers layers_;
  const PagedNest nest_;
};

}  // namespace terrace
