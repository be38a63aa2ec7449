// Bodies of requests, from choices: of every verb of the daemon's table, right where the choices
// are 0 and otherwise anything. What the daemon gave out (leases, orders, segments) is remembered
// and asked for again.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/session/verb_table.h"
#include "fuzz/fuzz.h"
#include "terrace/protocol.h"
#include "terrace/protocol_device.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::fuzz {

// The groups that sessions open, by number: "one" member, "two", the second windowed, and one whose
// blocks are "lossy".
SpaceGroupSpec FuzzGroup(uint32_t number);
inline constexpr uint32_t kFuzzGroups = 3;
Bytes OpenBody(const SpaceGroupSpec& group, uint64_t self_mask);

class SessionBodies {
 public:
  // A body of `row`'s verb.
  Bytes Make(const VerbRow& row, Choices& choices);
  static Bytes Hello(Choices& choices);
  // What a message from the daemon gives to ask for later.
  void Learn(const test::FakeMessage& message);

 private:
  struct WriteLease {
    LeaseToken token;
    std::vector<protocol::CommitEntry> entries;
  };
  struct Order {
    protocol::WorkOrder told;
    std::vector<uint64_t> part_bytes;
  };

  Bytes Open(Choices& choices) const;
  uint32_t KeyCount(Choices& choices);
  std::vector<BlockKey> TakeKeys(Choices& choices, uint32_t* first_position, BlockKey* parent);
  Bytes Keys(const VerbRow& row, Choices& choices);
  Bytes Commit(Choices& choices) const;
  Bytes OrderDone(Choices& choices) const;
  Bytes OfLease(const VerbRow& row, Choices& choices);
  Bytes OfOperator(const VerbRow& row, Choices& choices);
  LeaseToken Token(Choices& choices) const;
  void LearnReserve(const test::FakeMessage& message);

  std::array<LeaseToken, 8> tokens_;
  std::array<WriteLease, 4> writes_;
  std::vector<Order> orders_;
  uint32_t token_count_ = 0, write_count_ = 0;
  uint32_t revoked_segment_ = 0;
  bool has_asked_all_ = false;  // for as many keys as there may be, or one more: once, for its time
};

}  // namespace terrace::fuzz
