#include "client/paged/chunk_headers.h"

#include <time.h>

#include <utility>

#include "client/link/cancel_deferred.h"
#include "client/link/timed_lock.h"
#include "cuda/copy/paged_copier.h"
#include "terrace/chunk.h"

namespace terrace::client {

namespace {

constexpr long kPollNs = 5'000;

std::string NameOf(uint32_t block) { return "block " + std::to_string(block) + ": "; }

// What comes late is written before anything that is fetched later: one stream brings both.
Status AwaitFetched(const Event& copied) {
  const uint64_t until_us = MonotonicUs() + kFetchUsMax;
  while (true) {
    const Status status = copied.Query();
    if (status.code() != StatusCode::kBusy || MonotonicUs() >= until_us) return status;
    const timespec pause{.tv_sec = 0, .tv_nsec = kPollNs};
    const CancelDeferred deferred;
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Result<std::unique_ptr<ChunkHeaders>> ChunkHeaders::Create(const Device& device, bool reaches_slots,
                                                           const SpaceSpec& space,
                                                           const RopeSpec& rope) {
  const uint64_t digest = rope.rot_dim == 0 ? 0 : rope.Digest();
  std::unique_ptr<ChunkHeaders> headers(
      new ChunkHeaders(reaches_slots, space.block_tokens, digest));
  if (reaches_slots) return headers;
  Result<DeviceBuffer> fetched = DeviceBuffer::Allocate(
      device, DeviceMemory::kPinned, uint64_t{kPagesPerCallMax} * kChunkHeaderBytes);
  if (!fetched.ok()) return fetched.status();
  Result<Stream> stream = Stream::Create(device, StreamPriority::kLoad);
  if (!stream.ok()) return stream.status();
  headers->fetched_.emplace(std::move(fetched).value());
  headers->stream_.emplace(std::move(stream).value());
  Result<Event> copied = Event::Create(device);
  if (!copied.ok()) return copied.status();
  headers->copied_.emplace(std::move(copied).value());
  return headers;
}

ChunkHeaders::~ChunkHeaders() {
  if (copied_) (void)copied_->AwaitAll(*stream_);
}

void ChunkHeaders::Write(std::byte* slot, uint32_t first_token_position) const {
  const ChunkHeader header = {.first_token_position = first_token_position,
                              .token_count = block_tokens_,
                              .rope_digest = rope_digest_};
  header.Write(std::span<std::byte, kChunkHeaderBytes>(slot, kChunkHeaderBytes));
}

Status ChunkHeaders::Fetch(std::span<const PageSlot> pages,
                           std::vector<const std::byte*>* headers) {
  std::vector<CopyPiece> pieces;
  for (const PageSlot& page : pages) {
    if (!page.is_in_device || reaches_slots_) {
      headers->push_back(page.slot);
      continue;
    }
    std::byte* const to = fetched_->address() + pieces.size() * kChunkHeaderBytes;
    pieces.push_back({to, page.slot, kChunkHeaderBytes});
    headers->push_back(to);
  }
  if (pieces.empty()) return Status::Ok();
  TERRACE_RETURN_IF_ERROR(stream_->Copy(CopyDirection::kToHost, pieces));
  TERRACE_RETURN_IF_ERROR(copied_->Record(*stream_));
  return AwaitFetched(*copied_);
}

Status ChunkHeaders::SetDeltas(std::span<const uint32_t> first_token_positions,
                               std::span<const uint32_t> blocks, std::span<PageSlot> pages,
                               std::string* why) {
  std::vector<const std::byte*> headers;
  if (const Status fetched = Fetch(pages, &headers); !fetched.ok()) {
    *why = std::string("headers of chunks were not read: ") + fetched.what();
    return fetched;
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    const Result<ChunkHeader> header = ChunkHeader::Read({headers[i], kChunkHeaderBytes});
    if (!header.ok() || header->token_count != block_tokens_) {
      *why = NameOf(blocks[i]) + "its first part is no header of a chunk of " +
             std::to_string(block_tokens_) + " tokens: compute its keys again";
      return Status(StatusCode::kCorrupt, "a chunk without its header");
    }
    const Result<int32_t> delta = ChunkDelta(*header, first_token_positions[i], rope_digest_, why);
    if (!delta.ok()) {
      *why = NameOf(blocks[i]) + *why;
      return delta.status();
    }
    pages[i].key_delta = *delta;
  }
  return Status::Ok();
}

}  // namespace terrace::client
