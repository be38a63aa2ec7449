// SpmcQueue: values of one thread for many, without a lock: whoever is pushed aside in the middle
// of a Take keeps nobody from what waits. Its place alone stays in use, and when that one's turn
// comes round the queue is full, whatever waits. The oldest comes first.
//
// THREADING: Put on one thread, Take on any.
// LIMITS: `capacity` values, whose places are made at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "terrace/check.h"

namespace terrace {

template <typename T>
class SpmcQueue {
 public:
  // REQUIRES: capacity ≥ 2.
  explicit SpmcQueue(size_t capacity) : places_(capacity) {
    TERRACE_CHECK(capacity > 1, "with one place a value that is there looks like a free place");
    for (size_t i = 0; i < places_.size(); ++i) places_[i].turn = i;
  }

  // False: it is full.
  bool Put(T value) {
    Place& place = places_[put_count_ % places_.size()];
    if (place.turn != put_count_) return false;
    place.value = std::move(value);
    place.turn = ++put_count_;
    return true;
  }

  // False: it is empty, and what was put before is another's already.
  bool Take(T* value) {
    size_t count = taken_count_;
    while (true) {
      Place& place = places_[count % places_.size()];
      const size_t turn = place.turn;
      if (turn == count + 1) {
        if (!taken_count_.compare_exchange_weak(count, count + 1)) continue;
        *value = std::exchange(place.value, T());
        place.turn = count + places_.size();
        return true;
      }
      const size_t now = taken_count_;
      if (now == count) return false;
      count = now;  // others were here meanwhile
    }
  }

 private:
  struct Place {
    // The count of puts at which a value may be put here; one more: it is here.
    std::atomic<size_t> turn{0};
    T value{};
  };

  std::vector<Place> places_;
  size_t put_count_ = 0;
  std::atomic<size_t> taken_count_{0};
};

}  // namespace terrace
