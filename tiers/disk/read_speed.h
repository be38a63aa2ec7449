// ReadSpeed: how long reads from a disk take, as they lately did: a latency, and so many µs for
// each byte that was in flight when they began. Reads that began nearly alone say what the latency
// is, the others what a byte takes; of both the median counts, for a machine that stumbles over one
// read says nothing of the disk. Before the first of a kind a middling drive is taken for it, so
// that a new one is tried; and a slow one is doubted while nothing is read (SpeedDoubt), so that it
// is tried again.
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
  void OnReadDone(const Read& read, uint64_t now_us);
  // Of a read that ends with the last of so many bytes.
  uint64_t PredictUs(uint64_t behind_bytes, uint64_t now_us) const;

 private:
  struct Recent {
    std::array<Read, kReadsMax> reads;
    size_t count = 0;  // so far
  };

  static constexpr double kFirstLatencyUs = 100;
  static constexpr double kFirstUsPerByte = 1.0 / 2000;

  void Settle() const;
  double LatencyUs(uint64_t now_us) const;
  double UsPerByte(uint64_t now_us) const;

  Recent alone_, beside_;
  uint64_t measured_us_ = 0;
  // Settled when they are asked for.
  mutable bool is_settled_ = true;
  mutable double latency_us_ = kFirstLatencyUs;
  mutable double us_per_byte_ = kFirstUsPerByte;
};

}  // namespace terrace
