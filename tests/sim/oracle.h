// The oracle of the simulation: it knows every byte any client ever committed, and judges every
// byte any client is handed. Block contents are a function of their identity and CommitId, so a
// read names its own expectation; what the oracle adds is which parts were really committed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "terrace/block_key.h"

namespace terrace::sim {

// A part of one member's bytes of one block, as one commit wrote it.
struct PartName {
  uint32_t domain_index = 0;
  uint32_t group_number = 0;
  BlockKey key;
  CommitId commit_id = 0;
  uint32_t member = 0;
  uint32_t part = 0;
};

// Writes the bytes that PartName's commit stores: the CommitId, then a pattern of the whole name.
void FillPart(const PartName& name, std::span<std::byte> bytes);
// The CommitId the bytes claim to be of. REQUIRES: bytes.size() ≥ 8.
CommitId ClaimedCommit(std::span<const std::byte> bytes);
bool HoldsPart(const PartName& name, std::span<const std::byte> bytes);

class Oracle {
 public:
  // A client is about to send this part's commit: from now on the bytes may be served.
  void PartCommitted(const PartName& name);
  // The checksum that goes with it is of other bytes. Only users of the writer's uid may ever be
  // handed the part: nobody has compared it yet, and whoever does finds out. Other members of its
  // block may be had by whoever does not ask for this one.
  void PartClaimedWrongly(const PartName& name, uint32_t writer_uid);
  // A client of `uid` holds `bytes` under a lease (or copied them under one). Returns an empty
  // string if they are what was committed under that name, else a sentence. name.commit_id is
  // ignored: the bytes claim one.
  std::string Judge(PartName name, std::span<const std::byte> bytes, uint32_t uid) const;

  // A client was told that a part of a block that is being promoted may be read.
  void PartTold() { ++parts_told_; }

  // A client was given a slot in the device's memory.
  void SlotOnDevice() { ++slots_on_device_; }

  uint64_t slots_on_device() const { return slots_on_device_; }
  uint64_t parts_claimed_wrongly() const { return parts_claimed_wrongly_; }
  uint64_t parts_judged() const { return parts_judged_; }
  uint64_t parts_told() const { return parts_told_; }

 private:
  using Commit = std::tuple<uint32_t, uint32_t, BlockKey, CommitId>;
  std::map<Commit, std::map<uint32_t, uint64_t>> committed_;  // member → mask of parts
  // The writer's uid, by member and part.
  std::map<Commit, std::map<std::pair<uint32_t, uint32_t>, uint32_t>> wrong_claims_;
  uint64_t parts_claimed_wrongly_ = 0;
  mutable uint64_t parts_judged_ = 0;
  uint64_t parts_told_ = 0;
  uint64_t slots_on_device_ = 0;
};

}  // namespace terrace::sim
