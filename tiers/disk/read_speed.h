// ReadSpeed: how long reads from a disk take, as they lately did: a latency, and so many µs for
// each byte that was in flight when they began. Reads that began nearly alone say what the latency
// is, the others what a byte takes; of both the median counts, for a machine that stumbles over one
// read says nothing of the disk. Before the first of a kind a middling drive is taken for it, so
// that a new one is tried.
//
// THREADING: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace terrace {

class ReadSpeed {
 public:
  static constexpr size_t kReadsMax = 25;  // remembered of each kind: more than half say it

  struct Read {
    uint64_t length_bytes = 0;
    uint64_t behind_bytes = 0;  // in flight when it began, itself included
    uint64_t duration_us = 0;
  };
  void OnReadDone(const Read& read);
  // Of a read that ends with the last of so many bytes.
  uint64_t PredictUs(uint64_t behind_bytes) const;

 private:
  struct Recent {
    std::array<Read, kReadsMax> reads;
    size_t count = 0;  // so far
  };

  void Settle() const;

  Recent alone_, beside_;
  // Settled when they are asked for.
  mutable bool is_settled_ = true;
  mutable double latency_us_ = 100;
  mutable double us_per_byte_ = 1.0 / 2000;
};

}  // namespace terrace
