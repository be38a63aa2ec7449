// FaultTier: any Tier, misbehaving by a seed. It stands between a tier and its listener and makes
// transfers fail, come short, lie, hang, or be refused; what the interface promises (one completion
// for each accepted transfer, never inside the call) it keeps.
//
// THREADING: one thread. OWNERSHIP: the tier and the listener outlive it.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tiers/tier.h"

namespace terrace::sim {

enum class Fault : uint8_t {
  kReadFails,        // kIo
  kWriteFails,       // kIo, though the bytes may have arrived
  kReadShort,        // kIo, the buffer's second half untouched
  kWriteShort,       // kIo, the extent's second half garbage
  kReadFlipsBit,     // kOk, one bit wrong
  kReadMisdirected,  // kOk, the bytes of another extent of equal length
  kHangs,            // no completion until ReleaseHung()
  kBusy,             // the call answers kBusy
  kNoSpace,          // the call answers kNoSpace
  kMakesRoom,        // Allocate answers kBusy, and OnRoom comes with ReleaseHung()
};
inline constexpr size_t kFaultCount = 10;

class FaultTier : public Tier, public TierListener {
 public:
  // Make this object the listener of `tier`. No fault strikes before SetRate.
  FaultTier(Tier& tier, uint64_t seed) : tier_(tier), seed_(seed), random_(seed) {}

  void SetListener(TierListener* listener) { listener_ = listener; }
  // How often `fault` strikes, of a million calls it can strike. A transfer suffers one at most.
  void SetRate(Fault fault, uint32_t rate_ppm) {
    rates_ppm_[static_cast<size_t>(fault)] = rate_ppm;
  }
  // How often it struck so far.
  uint64_t struck(Fault fault) const { return struck_[static_cast<size_t>(fault)]; }
  // Off: nothing new begins (kUnsupported); what was begun finishes.
  void SwitchOff() { is_off_ = true; }
  void SwitchOn() { is_off_ = false; }
  // Reports all transfers that hang, and room. Not from inside a call that began one.
  void ReleaseHung();
  // The process that used it was killed.
  void Forget();
  // The tier below found `extent` again, and its user answered with `owner`; the answer to give
  // below.
  uint32_t OnRestored(const Extent& extent, uint32_t owner);

  TierKind kind() const override { return tier_.kind(); }
  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override;
  void Free(const Extent& extent) override;
  void Quarantine(const Extent& extent) override;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override;
  bool reads_ranges() const override { return tier_.reads_ranges(); }
  Status ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                   std::span<std::byte> into) override;
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override;
  uint64_t PredictReadUs(uint64_t length_bytes) const override {
    return tier_.PredictReadUs(length_bytes);
  }
  uint64_t SilentUs(std::span<const Extent> extents) const override {
    return tier_.SilentUs(extents);
  }
  void Amend(const Extent& extent, const BlockRecord& record) override;
  bool is_persistent() const override { return tier_.is_persistent(); }
  ErasureProgress erasures() const override;
  bool AppendOwnersToGive(std::vector<uint32_t>* owners) override;
  bool AppendOwnersToMove(std::vector<uint32_t>* owners) override;
  bool IsToMove(const Extent& extent) const override { return tier_.IsToMove(extent); }
  MovedState StateOfMoved(const Extent& extent) const override {
    return tier_.StateOfMoved(extent);
  }
  void GiveUpMoving() override { tier_.GiveUpMoving(); }
  void AppendOwnersToDrop(uint64_t length_bytes, uint32_t part_count,
                          std::vector<uint32_t>* owners) override;
  void Tick() override { tier_.Tick(); }
  TierStats stats() const override;

  void OnTransferDone(TransferId transfer_id, Status status) override;
  void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                   uint32_t member) override;
  void OnRecordInDoubt(uint32_t domain_index, uint32_t owner) override {
    listener_->OnRecordInDoubt(domain_index, owner);
  }
  void OnRoom(uint32_t domain_index) override { listener_->OnRoom(domain_index); }

 private:
  void AppendOwnersOf(const std::vector<uint32_t>& names, std::vector<uint32_t>* owners) const;
  // A write, as the tier below names its owner to this one.
  struct Record {
    Extent extent;
    uint32_t owner = kOwnerNone;
    bool is_done = false;       // reported as kOk
    bool is_persisted = false;  // below; told when it is done
    struct Early {
      uint32_t domain_index = 0;
      CommitId commit_id = 0;
      uint32_t member = 0;
    } early;
  };
  struct Transfer {
    uint32_t record = kOwnerNone;  // a write's
    std::optional<Fault> fault;
    Extent extent;                   // the caller's
    Extent moved;                    // another one if misdirected
    std::span<std::byte> into;       // a read's
    std::vector<std::byte> scratch;  // a short transfer's bytes
  };
  struct Live {
    Extent extent;
    uint32_t transfer_count = 0;   // of the caller, hanging ones included
    uint32_t borrower_count = 0;   // reads misdirected to it
    bool is_freed = false;         // by the caller, while borrowed
    bool is_bad = false;           // quarantined
    uint32_t record = kOwnerNone;  // of its last write
  };
  using Place = std::pair<uint32_t, uint64_t>;  // shard, position

  bool Strikes(Fault fault);
  std::optional<Fault> FirstToStrike(std::initializer_list<Fault> faults);
  Live* FindLive(const Extent& extent);
  const Extent* OtherOfEqualLength(const Extent& extent);
  Status Began(TransferId transfer_id, Status status);
  void EndBorrowing(const Extent& extent);
  void GiveBack(const Extent& extent, bool is_bad);
  BlockRecord Renamed(const BlockRecord& record, uint32_t name) const;
  void Report(TransferId transfer_id, const Transfer& transfer, Status status);

  Tier& tier_;
  const uint64_t seed_;
  TierListener* listener_ = nullptr;
  std::array<uint32_t, kFaultCount> rates_ppm_ = {};
  std::array<uint64_t, kFaultCount> draws_ = {};  // each fault's stream is its own
  std::array<uint64_t, kFaultCount> struck_ = {};
  std::mt19937_64 random_;
  bool is_off_ = false;
  std::map<Place, Live> live_;
  std::map<TransferId, Transfer> transfers_;
  std::map<uint32_t, Record> records_;
  uint32_t next_record_ = 0;
  struct Hung {
    TransferId transfer_id = 0;
    Transfer transfer;
    Status status;
  };
  std::vector<Hung> hung_;
  std::set<uint32_t> domains_without_room_;
  uint64_t failed_transfers_ = 0;
};

}  // namespace terrace::sim
