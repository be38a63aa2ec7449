#include "fuzz/session_seeds.h"

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/session/verb_table.h"
#include "terrace/protocol.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"
#include "terrace/protocol_operator.h"
#include "terrace/protocol_retention.h"

namespace terrace::fuzz::session {

using protocol::Verb;

namespace {

// A record: its operation, and the choices of it.
void PutRecord(uint8_t operation, const std::vector<uint8_t>& choices, ChoiceWriter* writer) {
  writer->Byte(operation).Byte(static_cast<uint8_t>(choices.size()));
  for (const uint8_t choice : choices) writer->Byte(choice);
}
// A request of client 0 that is right.
void PutRequest(Verb verb, std::vector<uint8_t> of_body, ChoiceWriter* writer, uint8_t client = 0) {
  std::vector<uint8_t> choices = {client, static_cast<uint8_t>(static_cast<uint8_t>(verb) - 1)};
  choices.resize(choices.size() + 6);
  choices.insert(choices.end(), of_body.begin(), of_body.end());
  PutRecord(0, choices, writer);
}
// Stored, read by another, released, and looked for by an operator.
Bytes Story(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (int i = 0; i < 3; ++i) {
    PutRequest(Verb::kAcquire, {0, 0, 0, 0, 15}, &writer, 1);
    PutRequest(Verb::kJoin, {1}, &writer);
    PutRequest(Verb::kRelease, {static_cast<uint8_t>(i)}, &writer, 1);
    PutRequest(protocol::kVerbOrderDone, {}, &writer, 1);
    PutRecord(3, {0, 10}, &writer);
  }
  PutRequest(Verb::kQuery, {}, &writer);
  PutRequest(protocol::kVerbExplain, {}, &writer);
  PutRequest(protocol::kVerbNamedPin, {0, 0, 0}, &writer, 2);
  PutRequest(protocol::kVerbEvictWhere, {}, &writer, 2);
  return writer.Take();
}
Bytes EveryVerb(uint8_t kind, uint8_t client) {
  ChoiceWriter writer;
  writer.Byte(kind);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (const VerbRow& row : VerbTable()) {
    if (row.verb != Verb::kHello) PutRequest(row.verb, {}, &writer, client);
  }
  return writer.Take();
}

// A verb of keys with each of its flags, each hint, of either group and of none.
Bytes EveryFlag(Verb verb) {
  ChoiceWriter writer;
  writer.Byte(1);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (const uint8_t group : {0, 1, 2}) {
    for (uint8_t flag = 0; flag < 7; ++flag) {
      const auto flags = static_cast<uint8_t>(1 << flag);
      PutRequest(verb, {group, 0, 0, 0, flags}, &writer, flag % 2);
      PutRequest(verb, {group, 0, 3, 2, flags, 1}, &writer, 2);
    }
    PutRequest(verb, {group, 0, 32}, &writer, 2);  // no keys
  }
  for (uint8_t hint = 0; hint < 8; ++hint) {
    for (const uint8_t value : {1, 101, 255}) {
      const auto hints = static_cast<uint8_t>(1 << hint);
      PutRequest(verb, {0, 0, 0, 0, 0, 0, hints, value, value, value, value}, &writer);
    }
  }
  return writer.Take();
}
// An operator's verb with each word of its head at several values.
Bytes EveryField(const VerbRow& row) {
  const bool has_keys = row.verb == protocol::kVerbExplain || row.verb == protocol::kVerbNamedPin;
  ChoiceWriter writer;
  writer.Byte(3);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (size_t at = 0; at < row.head_bytes && at < 200; at += 4) {
    for (const uint8_t value : {1, 2, 3, 255}) {
      std::vector<uint8_t> body(has_keys ? 3 : 0);
      for (const uint8_t choice : {uint8_t{1}, static_cast<uint8_t>(at), value}) {
        body.push_back(choice);
      }
      body.insert(body.end(), 3, value == 255 ? 255 : 0);
      PutRequest(row.verb, body, &writer, 2);
    }
  }
  return writer.Take();
}
// Leases that are joined, cancelled, aborted and committed in every way.
Bytes Leases(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  for (uint8_t way = 0; way < 8; ++way) {
    PutRequest(Verb::kReserve, {static_cast<uint8_t>(way % 2), way}, &writer);
    PutRequest(Verb::kAcquire, {static_cast<uint8_t>(way % 2), way, 0, 0, 4}, &writer, 1);
    PutRequest(Verb::kWait, {static_cast<uint8_t>(way % 2), way}, &writer, 1);
    PutRequest(Verb::kCancel, {static_cast<uint8_t>(way * 30)}, &writer, 1);
    const std::vector<uint8_t> commit = {way, way, way, way, 0, way, way, way};
    PutRequest(Verb::kCommit, commit, &writer);
    PutRequest(Verb::kAbort, {way, 3, 0, 1, way}, &writer);
    for (const uint8_t flags : {0, 1, 2, 4, 128}) {
      PutRequest(Verb::kJoin, {way, 0, way, flags, static_cast<uint8_t>(way % 3)}, &writer, 1);
    }
    PutRequest(Verb::kTouch, {way % 2 == 0 ? uint8_t{0} : uint8_t{1}, way}, &writer, 1);
    PutRequest(Verb::kRelease, {way, 16, way}, &writer, 1);
    PutRequest(protocol::kVerbOrderDone, {0, way}, &writer, 1);
    PutRecord(3, {0, 20}, &writer);
  }
  return writer.Take();
}
Bytes Groups() {
  ChoiceWriter writer;
  writer.Byte(0);
  for (uint8_t bend = 0; bend < 6; ++bend) {
    for (const uint8_t mask : {0, 1, 4, 255}) {
      PutRequest(Verb::kOpen, {1, mask, bend, 200, 200, 200, 200, 200}, &writer);
    }
  }
  return writer.Take();
}
// Frames as they are: an unknown verb, an empty page that is not the last, a page of another.
Bytes RawFrames() {
  ChoiceWriter writer;
  writer.Byte(0);
  const std::vector<std::vector<uint8_t>> frames = {
      {0, 16, 0, 0, 0, 1, 200, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 17, 0, 0, 0, 1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0,
       9, 16, 0, 0, 0, 1, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 9, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
      {0, 16, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}};
  for (const std::vector<uint8_t>& frame : frames) {
    PutRecord(2, frame, &writer);
    PutRecord(4, {0, 0}, &writer);
  }
  return writer.Take();
}

Bytes Strangers() {
  ChoiceWriter writer;
  writer.Byte(0);
  for (uint8_t i = 0; i < 12; ++i) PutRecord(6, {0, 0, 0}, &writer);
  return writer.Take();
}
// [offset of Hello; what stands there]
Bytes Hellos() {
  ChoiceWriter writer;
  writer.Byte(0);
  PutRecord(6, {0, 0, 0}, &writer);
  for (const uint8_t at : {0, 4, 5, 6, 8, 12, 16}) {
    PutRecord(6, {0, 0, 1, at, 255, 255, 255, 255}, &writer);
  }
  PutRecord(6, {0, 1, 3}, &writer);
  PutRecord(6, {0, 1, 1}, &writer);
  return writer.Take();
}

// A request as others' records have it: without its client.
std::vector<uint8_t> Spoken(Verb verb, const std::vector<uint8_t>& of_body) {
  std::vector<uint8_t> choices(7);
  choices[0] = static_cast<uint8_t>(static_cast<uint8_t>(verb) - 1);
  choices.insert(choices.end(), of_body.begin(), of_body.end());
  return choices;
}
void AddWithLength(const std::vector<uint8_t>& spoken, std::vector<uint8_t>* choices) {
  choices->push_back(static_cast<uint8_t>(spoken.size()));
  choices->insert(choices->end(), spoken.begin(), spoken.end());
}
// Four bytes of a head: [once; where; what]
std::vector<uint8_t> Patched(uint8_t at, uint8_t value, size_t before_count = 0) {
  std::vector<uint8_t> choices(before_count);
  choices.insert(choices.end(), {1, at, value, 0, 0, 0});
  return choices;
}
// A request of a chosen id.
void PutRequestWithId(uint8_t id, Verb verb, const std::vector<uint8_t>& of_body, uint8_t client,
                      ChoiceWriter* writer) {
  std::vector<uint8_t> choices = {client};
  const std::vector<uint8_t> spoken = Spoken(verb, of_body);
  choices.insert(choices.end(), spoken.begin(), spoken.end());
  choices[7] = id;
  PutRecord(0, choices, writer);
}

// The daemon records requests, drains, and takes configurations; an operator has drives checked.
Bytes Records() {
  ChoiceWriter writer;
  writer.Byte(4 + 1);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (const Verb verb : {Verb::kMatch, Verb::kAcquire, Verb::kQuery, Verb::kWait}) {
    PutRequest(verb, {}, &writer, 1);
  }
  PutRequest(Verb::kMatch, {0, 0, 255}, &writer);
  PutRequest(Verb::kMatch, {2}, &writer);  // of no group
  PutRequest(Verb::kRelease, {1}, &writer, 1);
  // Keys, and why the request of them ended.
  PutRequest(Verb::kTouch, {1, 0, 0, 0, 0, 0, 0, 16, 1}, &writer);
  PutRequest(Verb::kEvict, {}, &writer);
  for (uint8_t action = 0; action < 4; ++action) {
    PutRequest(protocol::kVerbTraceRecord, Patched(0, action), &writer, 2);
    PutRequest(protocol::kVerbConfig, Patched(0, action), &writer, 2);
    PutRequest(protocol::kVerbDiagnose, Patched(0, action), &writer, 2);
    PutRequest(protocol::kVerbFsck, {}, &writer, action % 3);
    PutRecord(11, {0, 1, static_cast<uint8_t>(action % 2)}, &writer);
  }
  PutRequest(protocol::kVerbFsck, {}, &writer, 2);
  for (const uint8_t is_refused : {0, 1, 0}) PutRecord(11, {0, 0, is_refused}, &writer);
  PutRequest(protocol::kVerbFsck, {}, &writer, 1);
  PutRecord(4, {1, 0}, &writer);
  for (uint8_t action = 1; action < 5; ++action) {
    PutRequest(protocol::kVerbDrain, Patched(0, action), &writer, 2);
    for (const Verb verb : {Verb::kReserve, Verb::kMatch, Verb::kAcquire, Verb::kPrefetch}) {
      PutRequest(verb, {0, 1, 20}, &writer);
    }
    PutRequest(Verb::kReserve, {0, 1, 250}, &writer);  // more than an answer of misses is made for
  }
  return writer.Take();
}
// Admins and writers are named: client 1 may not store, nor may root.
Bytes Readers() {
  ChoiceWriter writer;
  writer.Byte(8 + 1);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kJoin, {0}, &writer, 1);  // a lease of writers
  PutRequest(Verb::kCommit, {}, &writer);
  for (const VerbRow& row : VerbTable()) {
    if (row.verb == Verb::kHello || row.verb == Verb::kCommit) continue;
    PutRequest(row.verb, {}, &writer, 1);
    PutRequest(row.verb, {}, &writer, 2);
  }
  PutRecord(11, {0}, &writer);
  const uint8_t pin = protocol::kHintPin;
  for (const uint8_t client : {1, 0}) {
    PutRequest(Verb::kTouch, {1}, &writer, client);
    PutRequest(Verb::kTouch, {1, 0, 0, 0, 0, 0, 0, 8, 9}, &writer, client);     // ttl_s
    PutRequest(Verb::kTouch, {1, 0, 0, 0, 0, 0, 0, 32, 50}, &writer, client);   // priority
    PutRequest(Verb::kTouch, {1, 0, 0, 0, 0, 0, 0, 64, pin}, &writer, client);  // for good
    PutRequest(Verb::kTouch, {1, 0, 0, 0, 0, 0, 0, 72, 9, pin}, &writer, client);
    PutRequest(Verb::kReserve, {0, 1, 0, 0, 0, 0, 64, pin}, &writer, client);
    PutRequest(Verb::kCommit, {client, 0, 0, 0, 64, pin}, &writer, client);
    PutRequest(Verb::kEvict, {0, 0, 0, 0, 1}, &writer, client);
    PutRequest(protocol::kVerbNamedPin, Patched(48, 0, 3), &writer, client);
    PutRequest(protocol::kVerbEvictWhere, Patched(24, 1), &writer, client);
  }
  return writer.Take();
}
// As many keys as a request may have, and more. Of each conversation one such request is made.
Bytes AllKeys(Verb verb, const std::vector<uint8_t>& of_body, uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  PutRequest(verb, of_body, &writer, 2);
  return writer.Take();
}
// Of a group of many members their slots would be no answer.
Bytes AllSlots() {
  ChoiceWriter writer;
  writer.Byte(0);
  PutRequest(Verb::kOpen, {1, 0, 6, 20}, &writer);
  PutRequest(Verb::kReserve, {3, 4, 0, 0, 0, 0, 254}, &writer);
  return writer.Take();
}
// More blocks than a turn looks at, of a group whose blocks are small, and their eviction.
Bytes ManyBlocks(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  for (const uint8_t chain : {0, 1, 2}) {
    PutRequest(Verb::kReserve, {3, 3, 0, 0, 0, chain, 250}, &writer);
    PutRequest(Verb::kCommit, {chain, 0, 0, 3}, &writer);
  }
  PutRequest(Verb::kAcquire, {3, 3, 0, 0, 0, 0, 250}, &writer, 1);
  PutRequest(protocol::kVerbEvictWhere, Patched(24, 1), &writer, 2);
  PutRequest(Verb::kEvict, {3, 3, 0, 0, 0, 0, 1, 0, 4}, &writer);  // below the first key
  PutRequest(Verb::kEvict, {2, 0, 32, 0, 4}, &writer, 2);          // everything
  return writer.Take();
}
// Requests that are refused for what their heads say.
Bytes Refused() {
  ChoiceWriter writer;
  writer.Byte(3);
  PutRequest(Verb::kReserve, {}, &writer);
  for (const Verb verb : {Verb::kMatch, Verb::kAcquire, Verb::kReserve, Verb::kEvict}) {
    PutRequest(verb, {0, 0, 0, 0, 128, 0, 0, 0, 64}, &writer);         // flags
    PutRequest(verb, {3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 64, 4}, &writer);  // exact, of a lossy group
    PutRequest(verb, {0, 0, 0, 0, 0, 0, 64, protocol::kHintTtlFromHits}, &writer);
    PutRequest(verb, {0, 0, 0, 0, 0, 0, 72, 9, 24}, &writer);
  }
  PutRequest(Verb::kMatch, {3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 64, protocol::kHintExact}, &writer);
  PutRequest(Verb::kMatch, {3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 64, protocol::kHintExact}, &writer);
  PutRequest(Verb::kMatch, {3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 64, protocol::kHintExact}, &writer);
  PutRequest(Verb::kCommit, {0, 0, 3, 6}, &writer);
  PutRequest(Verb::kJoin, {0, 0, 0, 0, 255}, &writer);
  PutRequest(Verb::kList, Patched(4, 0), &writer);
  PutRequest(protocol::kVerbEvictWhere, Patched(28, 9), &writer, 2);
  PutRequest(protocol::kVerbEvictWhere, Patched(20, 9), &writer, 2);
  PutRequest(protocol::kVerbEvictWhere, Patched(24, 9), &writer, 2);
  for (const uint8_t at : {0, 32, 36, 40, 44, 48, 52, 56, 60}) {
    for (const uint8_t value : {0, 3}) {
      PutRequest(protocol::kVerbNamedPin, Patched(at, value, 3), &writer, 2);
      PutRecord(4, {2, 0}, &writer);
    }
  }
  // An entry of more parts than any block has, and an Abort and groups of other lengths.
  PutRequest(Verb::kCommit, {0, 0, 0, 1, 0, 1, 11, 255}, &writer);
  PutRecord(4, {0, 0}, &writer);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kAbort, {1}, &writer);
  PutRequest(Verb::kAbort, Patched(16, 7, 2), &writer);
  PutRecord(4, {0, 0}, &writer);
  for (const uint8_t value : {2, 4, 255}) {
    PutRequest(Verb::kOpen, Patched(0, value, 3), &writer, 1);
    PutRecord(4, {1, 0}, &writer);
  }
  PutRequest(Verb::kOpen, {0, 0, 0, 1, 0, 255, 255, 0, 0}, &writer, 1);
  PutRequest(Verb::kOpen, Patched(19, 255, 3), &writer, 1);
  return writer.Take();
}
// Several requests in one read, several sessions at once, and one that leaves in the midst.
Bytes AtOnce(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  PutRequest(Verb::kReserve, {}, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  for (const Verb verb :
       {protocol::kVerbHitRate, protocol::kVerbExplain, Verb::kStats, Verb::kList, Verb::kEvict}) {
    std::vector<uint8_t> together = {2};
    for (int i = 0; i < 4; ++i) AddWithLength(Spoken(verb, {0, 31}), &together);
    PutRecord(7, together, &writer);
  }
  std::vector<uint8_t> behind = {1};  // an Explain whose walk begins at a turn's end
  AddWithLength(Spoken(Verb::kMatch, {0, 0, 249}), &behind);
  for (int i = 0; i < 4; ++i) AddWithLength(Spoken(protocol::kVerbExplain, {0, 250}), &behind);
  PutRecord(7, behind, &writer);
  for (const uint8_t is_left : {0, 1}) {
    std::vector<uint8_t> at_once = {1, is_left};
    for (const uint8_t client : {1, 0, 1, 2}) {
      at_once.push_back(client);
      AddWithLength(Spoken(Verb::kReserve, {1, client, 253, 0, 0, 0, 128, 0, 1, 200}), &at_once);
    }
    PutRecord(8, at_once, &writer);
  }
  return writer.Take();
}
// A Reserve that waits for memory, an Evict of more than a turn, leases of a scheduler.
Bytes Long(uint8_t kind) {
  ChoiceWriter writer;
  writer.Byte(kind);
  for (const uint8_t chain : {0, 1}) {
    PutRequest(Verb::kReserve, {0, chain, 251, 0, 0, 0, 128, 0, 1, 200}, &writer);
    PutRequest(Verb::kCommit, {chain}, &writer);
  }
  PutRequest(Verb::kOpen, {0, 254}, &writer, 1);
  PutRequest(Verb::kAcquire, {0, 0, 251}, &writer, 1);
  PutRequest(Verb::kAcquire, {0, 0, 0, 0, 0, 0, 128, 0, 0, 9}, &writer, 1);
  std::vector<uint8_t> at_once = {1, 0};
  for (const uint8_t client : {1, 0}) {
    at_once.push_back(client);
    AddWithLength(Spoken(Verb::kAcquire, {0, client, 251}), &at_once);
  }
  PutRecord(8, at_once, &writer);
  PutRequest(Verb::kEvict, {0, 0, 0, 0, 4}, &writer);      // below the keys
  PutRequest(Verb::kEvict, {2, 0, 32, 0, 4}, &writer, 2);  // everything
  return writer.Take();
}
// Requests that wait for another's blocks, under ids of their own or not, and too many.
Bytes Pending() {
  ChoiceWriter writer;
  writer.Byte(16 + 1);
  PutRequest(Verb::kReserve, {}, &writer);
  for (const uint8_t id : {7, 8, 9}) {
    PutRequestWithId(id, Verb::kWait, {}, 1, &writer);
    PutRequestWithId(id, Verb::kAcquire, {0, 0, 0, 0, 2, 0, 1, 255, 255}, 2, &writer);
  }
  PutRequestWithId(7, Verb::kWait, {}, 1, &writer);
  PutRequest(Verb::kCommit, {}, &writer);
  PutRecord(11, {0}, &writer);
  return writer.Take();
}
// Clients that do not read, or do not stop.
Bytes Buffers() {
  ChoiceWriter writer;
  writer.Byte(0);
  PutRecord(10, {0, 100}, &writer);
  PutRequest(Verb::kStats, {}, &writer);  // more than one may leave unread
  PutRecord(10, {1, 62}, &writer);
  PutRecord(10, {2, 60}, &writer);
  PutRequest(Verb::kStats, {}, &writer, 1);
  PutRequest(Verb::kStats, {}, &writer, 2);
  PutRecord(4, {0, 0}, &writer);
  PutRecord(10, {0, 60}, &writer);
  PutRequest(Verb::kStats, {}, &writer);  // more than all may
  PutRecord(10, {1, 0}, &writer);
  PutRecord(10, {2, 0}, &writer);
  return writer.Take();
}
Bytes WithoutEnd(bool has_work) {
  ChoiceWriter writer;
  writer.Byte(0);
  std::vector<uint8_t> choices = {0, kWithoutEnd};
  const std::vector<uint8_t> spoken = Spoken(Verb::kReserve, {0, 0, 253});
  if (has_work) choices.insert(choices.end(), spoken.begin(), spoken.end());
  PutRecord(9, choices, &writer);
  return writer.Take();
}
// More of them than there may be, who begin to say Hello.
Bytes SilentStrangers() {
  ChoiceWriter writer;
  writer.Byte(0);
  for (uint8_t i = 0; i < 12; ++i) PutRecord(6, {0, 1, 0, 3, i}, &writer);
  return writer.Take();
}

}  // namespace

std::vector<Seed> Seeds() {
  ChoiceWriter many, broken, deaths;
  many.Byte(1);
  for (const uint8_t chain : {0, 1, 2, 3}) {
    PutRequest(Verb::kReserve, {0, chain, 252}, &many);
    PutRequest(Verb::kCommit, {0, 0, 0, 1}, &many);
    PutRequest(Verb::kAcquire, {0, chain, 252, 0, 4, 0, 1, 255}, &many, 1);
  }
  broken.Byte(0);
  for (uint8_t bend = 1; bend < 5; ++bend) {
    PutRecord(0, {0, 3, bend, 20, 0, 7, 0, 0}, &broken);
    PutRecord(4, {0, 0}, &broken);
  }
  PutRecord(2, {0, 16, 0, 0, 0, 1, 18, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, &broken);
  deaths.Byte(3);
  for (const uint8_t client : {0, 1, 2}) {
    PutRequest(Verb::kReserve, {1}, &deaths, client);
    PutRecord(4, {client, client}, &deaths);
    PutRecord(3, {0, 200}, &deaths);
    PutRecord(5, {client}, &deaths);
  }
  std::vector<Seed> seeds = {{"story", Story(0)},
                             {"story_with_a_drive", Story(1)},
                             {"story_with_a_device", Story(3)},
                             {"every_verb", EveryVerb(0, 0)},
                             {"every_verb_of_root", EveryVerb(3, 2)},
                             {"many_keys", many.Take()},
                             {"broken", broken.Take()},
                             {"deaths", deaths.Take()},
                             {"leases", Leases(0)},
                             {"leases_with_a_device", Leases(3)},
                             {"groups", Groups()},
                             {"hellos", Hellos()},
                             {"strangers", Strangers()},
                             {"raw_frames", RawFrames()},
                             {"records", Records()},
                             {"readers", Readers()},
                             {"refused", Refused()},
                             {"at_once", AtOnce(0)},
                             {"at_once_recorded", AtOnce(5)},
                             {"long", Long(0)},
                             {"long_with_a_drive", Long(1)},
                             {"pending", Pending()},
                             {"buffers", Buffers()},
                             {"without_end", WithoutEnd(false)},
                             {"without_end_behind_work", WithoutEnd(true)},
                             {"silent_strangers", SilentStrangers()},
                             {"all_keys", AllKeys(Verb::kMatch, {0, 0, 254}, 4)},
                             {"all_keys_and_one", AllKeys(Verb::kMatch, {0, 0, 255}, 0)},
                             {"all_slots", AllSlots()},
                             {"many_blocks", ManyBlocks(0)},
                             {"many_blocks_of_a_drive", ManyBlocks(1)},
                             {"all_pinned", AllKeys(protocol::kVerbNamedPin, {0, 255}, 0)},
                             {"all_explained", AllKeys(protocol::kVerbExplain, {0, 255}, 0)}};
  for (const VerbRow& row : VerbTable()) {
    const std::string number = std::to_string(static_cast<int>(row.verb));
    if (row.worker == VerbWorker::kKeys) seeds.push_back({"flags_" + number, EveryFlag(row.verb)});
    const bool is_of_devices =
        row.verb == protocol::kVerbDeviceAttach || row.verb == protocol::kVerbPinTurn ||
        row.verb == protocol::kVerbDeviceReport || row.verb == Verb::kUnmapped;
    if (is_of_devices || (row.role != VerbRole::kEngine && row.worker != VerbWorker::kKeys)) {
      seeds.push_back({"fields_" + number, EveryField(row)});
    }
  }
  return seeds;
}

}  // namespace terrace::fuzz::session
