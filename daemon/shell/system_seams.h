// Clock and Random of the real world.
//
// THREADING: store thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/block/seams.h"

namespace terrace {

class SystemClock : public Clock {
 public:
  uint64_t NowUs() const override;
  uint64_t UnixSeconds() const override;
  uint64_t UnixUs() const;
};

// The calling thread's processor time so far.
uint64_t ThreadProcessorUs();

// The kernel's random bits, fetched a few hundred words at a time.
class SystemRandom : public Random {
 public:
  SystemRandom();
  uint64_t Next() override;

 private:
  void Refill();

  std::array<uint64_t, 256> words_;
  size_t next_ = 0;
};

}  // namespace terrace
