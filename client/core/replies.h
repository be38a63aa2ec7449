// Checks and takes apart the bodies of answers. A daemon may be another release, or broken: every
// count is compared with the bytes that are there and with what was asked, before anything is used.
//
// Each returns null if the body is right, else what is wrong with it, for a sentence. Those that
// fill vectors may throw std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/arena_layout.h"
#include "terrace/protocol.h"

namespace terrace::client {

// What the request allows its answer to say.
struct Asked {
  protocol::Verb verb = protocol::Verb::kHello;
  uint32_t key_count = 0;    // Join: protocol::kKeysPerRequestMax
  uint32_t entry_count = 0;  // Commit's entries, List's entry_count_max
  uint32_t flags = 0;        // of KeysRequest, and protocol::kJoinPaged
  uint32_t first_block = 0;  // Join: of this page; pages before it have been decoded
  LeaseToken joined;         // Join: the lease of a first page; a later one is of a joined lease
};

struct AcquireAnswer {
  protocol::AcquireReply reply;
  std::vector<protocol::BlockSpan>* spans = nullptr;
  std::vector<SlotAddress>* slots = nullptr;
};
// Slots are added behind those of the pages before.
const char* DecodeAcquire(std::span<const std::byte> body, const Asked& asked,
                          AcquireAnswer* answer);

struct ReserveAnswer {
  protocol::ReserveReply reply;
  std::vector<protocol::ReservedKey>* keys = nullptr;
  std::vector<SlotRef>* slots = nullptr;
};
// Keys and slots, likewise.
const char* DecodeReserve(std::span<const std::byte> body, const Asked& asked,
                          ReserveAnswer* answer);

// The answer, of that many flags, is a page of a Join, and others follow.
bool HasMore(uint32_t reply_flags, const Asked& asked);

const char* DecodeMatch(std::span<const std::byte> body, const Asked& asked,
                        protocol::MatchReply* reply);

// `*entries` is one StatusCode a byte, inside `body`.
const char* DecodeCommit(std::span<const std::byte> body, const Asked& asked,
                         protocol::CommitReply* reply, std::span<const std::byte>* entries);

const char* DecodeList(std::span<const std::byte> body, const Asked& asked,
                       protocol::ListReply* reply, std::span<const std::byte>* entries);

// Sizes and counts of an answer that its caller takes apart.
const char* CheckAnswer(std::span<const std::byte> body, const Asked& asked);

}  // namespace terrace::client
