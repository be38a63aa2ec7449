// ForgottenKeys: why a key that was here is gone, for as many keys as there is room for. So a miss
// of something new can be told from one of something that did not stay.
//
// THREADING: one thread. LIMITS: kKeysMax keys of 16 bytes each, the oldest of eight that share a
// place make room; another key is taken for a forgotten one once in 2^40.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "terrace/block_key.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

class ForgottenKeys {
 public:
  static constexpr uint32_t kKeysMax = 1 << 18;

  struct Entry {
    uint64_t fingerprint = 0;
    uint32_t time_s = 0;  // 0: none
    protocol::MissCause cause = protocol::MissCause::kCold;
    bool has_passed_by = false;  // it was not let in
    uint8_t reserved[2] = {};
  };
  static_assert(sizeof(Entry) == 16);

  ForgottenKeys();

  enum class Was : uint8_t { kHere, kPassingBy };
  void Remember(uint32_t group_index, const BlockKey& key, protocol::MissCause cause,
                uint64_t now_us, Was was = Was::kHere);
  // Null if nothing is known of it.
  const Entry* Find(uint32_t group_index, const BlockKey& key) const;

 private:
  static constexpr uint32_t kWays = 8;

  static uint64_t HashOf(uint32_t group_index, const BlockKey& key);
  Entry* PlaceOf(uint64_t hash) const { return &entries_[hash % (kKeysMax / kWays) * kWays]; }

  // Memory of the system's, which costs nothing before it is used.
  struct Free {
    void operator()(Entry* entries) const { std::free(entries); }
  };
  std::unique_ptr<Entry[], Free> entries_;
};

}  // namespace terrace
