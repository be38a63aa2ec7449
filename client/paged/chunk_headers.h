// The first part of blocks that are used away from their prompt: written where they are stored, and
// read where they are loaded, for how far their keys have to turn.
//
// THREADING: Write any thread; SetDeltas one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/host/copy_lane.h"
#include "cuda/host/stream.h"
#include "cuda/kernels/rope.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace::client {

inline constexpr uint64_t kFetchUsMax = 20'000;

class ChunkHeaders {
 public:
  // A rope with a rot_dim of 0: the keys have no positions. `reaches_slots`: the CPU reads the
  // device's memory, too. The device outlives it.
  static Result<std::unique_ptr<ChunkHeaders>> Create(const Device& device, bool reaches_slots,
                                                      const SpaceSpec& space, const RopeSpec& rope);

  // Waits for what did not come in time.
  ~ChunkHeaders();
  ChunkHeaders(const ChunkHeaders&) = delete;
  ChunkHeaders& operator=(const ChunkHeaders&) = delete;

  void Write(std::byte* slot, uint32_t first_token_position) const;
  // Sets key_delta of pages, one position and one block (which errors name) a page. kCorrupt with
  // `*why` for a slot without a header; kUnsupported for keys that another rope made, or that stood
  // too far away; kBusy where slots lie in the device's own memory and it does not answer within
  // kFetchUsMax.
  Status SetDeltas(std::span<const uint32_t> first_token_positions,
                   std::span<const uint32_t> blocks, std::span<PageSlot> pages, std::string* why);

 private:
  ChunkHeaders(bool reaches_slots, uint32_t block_tokens, uint64_t rope_digest)
      : reaches_slots_(reaches_slots), block_tokens_(block_tokens), rope_digest_(rope_digest) {}
  // Where the CPU reads the headers of these pages, in their order.
  Status Fetch(std::span<const PageSlot> pages, std::vector<const std::byte*>* headers);

  const bool reaches_slots_;
  const uint32_t block_tokens_;
  const uint64_t rope_digest_;
  std::optional<DeviceBuffer> fetched_;
  std::optional<Stream> stream_;
  std::optional<Event> copied_;
};

}  // namespace terrace::client
