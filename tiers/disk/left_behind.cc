#include "tiers/disk/left_behind.h"

#include <mutex>
#include <utility>
#include <vector>

namespace terrace {

void LeaveBehind(std::shared_ptr<const void> what) {
  static std::mutex mutex;
  static auto* const left = new std::vector<std::shared_ptr<const void>>;  // never destroyed
  std::lock_guard lock(mutex);
  left->push_back(std::move(what));
}

}  // namespace terrace
