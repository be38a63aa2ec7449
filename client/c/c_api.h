// What the C functions share: their structs as the C++ client wants them, and back.
//
// THREADING: pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "client/link/cancel_deferred.h"
#include "terrace/client.h"
#include "terrace/terrace.h"

struct terrace_client {
  std::unique_ptr<terrace::Client> client;
};

namespace terrace::client {

static_assert(sizeof(terrace_id) == sizeof(BlockKey) && alignof(terrace_id) == alignof(BlockKey));

// A struct of a newer caller may be longer: up to this, and only if the rest is zero.
inline constexpr uint32_t kStructBytesMax = 4096;

inline terrace_status ToC(const Status& status) {
  return static_cast<terrace_status>(status.code());
}

template <typename Tag>
terrace_id ToC(const Id128<Tag>& id) {
  return {.low = id.low, .high = id.high};
}
template <typename Id>
Id FromC(const terrace_id& id) {
  return {.low = id.low, .high = id.high};
}

// What `call` answers; an exception (memory is short) is TERRACE_NO_SPACE. A thread is cancelled
// after it.
template <typename Call>
terrace_status Guarded(Call call) noexcept {
  const CancelDeferred deferred;
  try {
    return call();
  } catch (...) {
    return TERRACE_NO_SPACE;
  }
}

// Reads a versioned struct over `defaults`: what the caller does not know keeps its default.
// TERRACE_INVALID if it is null, shorter than the first version's `bytes_min`, or of no struct's
// size; TERRACE_UNSUPPORTED if it says something that only a newer library knows.
template <typename Struct>
terrace_status ReadStruct(const Struct* from, size_t bytes_min, Struct* defaults) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (from == nullptr || from->struct_bytes < bytes_min || from->struct_bytes > kStructBytesMax ||
      from->struct_bytes % alignof(Struct) != 0) {  // or a field would be cut
    return TERRACE_INVALID;
  }
  const std::byte* bytes = reinterpret_cast<const std::byte*>(from);
  for (size_t i = sizeof(Struct); i < from->struct_bytes; ++i) {
    if (bytes[i] != std::byte(0)) return TERRACE_UNSUPPORTED;
  }
  std::memcpy(defaults, from, std::min<size_t>(from->struct_bytes, sizeof(Struct)));
  defaults->struct_bytes = sizeof(Struct);
  return TERRACE_OK;
}

// The other way; the caller's struct_bytes stays.
template <typename Struct>
terrace_status WriteStruct(const Struct& value, size_t bytes_min, Struct* to) {
  if (to->struct_bytes < bytes_min) return TERRACE_INVALID;
  const size_t from_bytes = sizeof(uint32_t);
  const size_t to_bytes = std::min<size_t>(to->struct_bytes, sizeof(Struct));
  std::memcpy(reinterpret_cast<std::byte*>(to) + from_bytes,
              reinterpret_cast<const std::byte*>(&value) + from_bytes, to_bytes - from_bytes);
  return TERRACE_OK;
}

// Cuts to the room there is, and terminates. Returns text.size().
size_t WriteText(std::string_view text, char* to, size_t to_bytes);

// `sentence` for the caller; returns `status`.
inline terrace_status Refuse(std::string_view sentence, char* why, size_t why_bytes,
                             terrace_status status = TERRACE_INVALID) {
  WriteText(sentence, why, why_bytes);
  return status;
}

inline std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

// What the handle has open, kept alive by the answer; c_pages.cc. Null in a forked child.
std::shared_ptr<const Device> DeviceOf(const terrace_device& device);

// What is wrong with the struct, in `*why`; Validate() is the caller's.
terrace_status ReadSpace(const terrace_space* from, SpaceGroupMember* member, std::string* why);

// The keys of a call; an empty span for none.
inline std::span<const BlockKey> KeysOf(const terrace_id* keys, size_t key_count) {
  return {reinterpret_cast<const BlockKey*>(keys), keys == nullptr ? 0 : key_count};
}

// TERRACE_INVALID or TERRACE_UNSUPPORTED if the struct is not one.
terrace_status ReadRequest(const terrace_request* from, size_t key_count, RequestOptions* options);

// A lease in the caller's memory: the C++ lease, and a word that tells it from zeroes.
inline constexpr uint64_t kLeaseLive = 0x7465727261636531;

template <typename Lease, typename CLease>
Lease* LiveLease(const CLease* from) {
  static_assert(sizeof(Lease) <= 3 * sizeof(uint64_t) && alignof(Lease) <= alignof(uint64_t));
  static_assert(sizeof(CLease) == 4 * sizeof(uint64_t));
  if (from == nullptr || from->opaque[3] != kLeaseLive) return nullptr;
  return std::launder(reinterpret_cast<Lease*>(const_cast<uint64_t*>(from->opaque)));
}

template <typename Lease, typename CLease>
void EndLease(CLease* lease) {
  Lease* live = LiveLease<Lease>(lease);
  if (live == nullptr) return;
  live->~Lease();
  *lease = {};
}

template <typename Lease, typename CLease>
void PutLease(Lease&& from, CLease* to) {
  EndLease<std::remove_reference_t<Lease>>(to);
  new (to->opaque) std::remove_reference_t<Lease>(std::move(from));
  to->opaque[3] = kLeaseLive;
}

}  // namespace terrace::client
