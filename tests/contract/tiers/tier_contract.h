// The contract every Tier keeps, as one suite. A tier joins it by a harness and one line:
//   INSTANTIATE_TEST_SUITE_P(Memory, TierContract, testing::Values(TierFactory{"memory", &Make}));
//
// The harness gives a fresh tier of some ten megabytes and makes time pass for it; completions may
// only arrive inside Settle().
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tiers/tier.h"

namespace terrace {

class TierHarness {
 public:
  virtual ~TierHarness() = default;
  virtual Tier& tier() = 0;
  // Returns once no transfer is in flight, all completions were reported, and what the tier does in
  // the background is done.
  virtual void Settle() = 0;
  // `length_bytes` of memory that the tier can transfer to and from, aligned to 4 KiB.
  virtual std::span<std::byte> Buffer(uint64_t length_bytes) = 0;
  // Transfers the tier accepts before it answers kBusy.
  virtual uint32_t queue_max() const = 0;
  // The longest extent the tier can hold; at least 8 MiB fit into its capacity.
  virtual uint64_t length_bytes_max() const { return 8 << 20; }
};

struct TierFactory {
  std::string name;
  std::function<std::unique_ptr<TierHarness>(TierListener& listener)> make;
};
inline void PrintTo(const TierFactory& factory, std::ostream* out) { *out << factory.name; }

// Buffers in plain memory, for tiers that transfer to and from anywhere.
class PlainBuffers {
 public:
  std::span<std::byte> Take(uint64_t length_bytes);

 private:
  struct FreeAligned {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::vector<std::unique_ptr<std::byte, FreeAligned>> buffers_;
};

class TierContract : public testing::TestWithParam<TierFactory>, public TierListener {
 protected:
  struct Completion {
    TransferId transfer_id = 0;
    Status status;
  };

  void SetUp() override;
  void TearDown() override;
  void OnTransferDone(TransferId transfer_id, Status status) override;
  void OnPersisted(uint32_t, uint32_t, CommitId, uint32_t) override {}
  void OnRoom(uint32_t) override {}

  Tier& tier() { return harness_->tier(); }
  // Of domain 0, in one part; waits while the tier answers that room is being made.
  Result<Extent> Allocate(uint64_t length_bytes);
  // Begins a transfer that must be accepted, and checks that nothing completes inside the call.
  TransferId BeginWrite(const Extent& extent, std::span<const std::byte> from);
  TransferId BeginRead(const Extent& extent, std::span<std::byte> into);
  // Settles; every transfer begun must have completed exactly once, with kOk.
  void SettleAndExpectAllOk();
  // A buffer of bytes that no other (length, seed) gives.
  std::span<std::byte> Pattern(uint64_t length_bytes, uint64_t seed);
  std::vector<Extent> FillWith(uint64_t length_bytes);

  std::unique_ptr<TierHarness> harness_;
  std::vector<Completion> completions_;
  std::vector<TransferId> begun_;
  bool is_settling_ = false;
};

}  // namespace terrace
