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

// The groups that sessions open, by number: "one" member, and "two", the second windowed.
SpaceGroupSpec FuzzGroup(uint32_t number);
inline constexpr uint32_t kFuzzGroups = 2;
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
  Bytes Keys(const VerbRow& row, Choices& choices) const;
  Bytes Commit(Choices& choices) const;
  Bytes OrderDone(Choices& choices) const;
  Bytes OfLease(const VerbRow& row, Choices& choices) const;
  Bytes OfOperator(const VerbRow& row, Choices& choices) const;
  LeaseToken Token(Choices& choices) const;
  void LearnReserve(const test::FakeMessage& message);

  std::array<LeaseToken, 8> tokens_;
  std::array<WriteLease, 4> writes_;
  std::vector<Order> orders_;
  uint32_t token_count_ = 0, write_count_ = 0;
  uint32_t revoked_segment_ = 0;
};

}  // namespace terrace::fuzz
