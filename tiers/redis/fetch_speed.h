// FetchSpeed: how long bytes take from the Redis server, as they lately did: a round trip, and so
// much a byte, doubted while nothing is measured (SpeedDoubt). A server that owes answers and is
// silent will be so for as long again, whatever it did before.
//
// THREADING: one thread.
#pragma once

#include <cstdint>

namespace terrace {

class FetchSpeed {
 public:
  // Until something was measured: 500 MB/s.
  static constexpr uint64_t kFirstPsPerByte = 2'000;
  static constexpr uint64_t kFirstRoundTripUs = 500;

  void OnFetchBegun(uint64_t now_us);
  // Whatever came of it.
  void OnFetchEnded(uint64_t now_us);
  // It brought its bytes.
  void OnFetched(uint64_t begun_us, uint64_t length_bytes, uint64_t now_us);
  void OnProbed(uint64_t begun_us, uint64_t now_us);

  // Of a fetch begun now that ends with the last of so many bytes, those before it included.
  uint64_t PredictUs(uint64_t length_bytes, uint64_t now_us) const;

 private:
  // Each has its own doubt: who probes learns nothing of bytes.
  struct Measured {
    uint64_t value = 0;
    uint64_t first = 0;
    uint64_t measured_us = 0;

    // The last measurement weighs an eighth, all where the ones before are in doubt.
    void Take(uint64_t seen, uint64_t now_us);
    uint64_t Believed(uint64_t now_us) const;
  };
  Measured ps_per_byte_{.value = kFirstPsPerByte, .first = kFirstPsPerByte};
  Measured round_trip_us_{.value = kFirstRoundTripUs, .first = kFirstRoundTripUs};
  uint64_t fetched_us_ = 0;
  uint64_t awaited_ = 0;
  uint64_t silent_since_us_ = 0;  // while something is awaited
};

}  // namespace terrace
