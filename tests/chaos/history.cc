#include "chaos/history.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace terrace::chaos {

uint64_t MonotonicNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

History::History(const std::string& path) {
  if (path.empty()) return;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, kWordsMax * sizeof(uint64_t)) == 0) {
    memory = mmap(nullptr, kWordsMax * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "terrace-chaos: history %s: %s\n", path.c_str(), std::strerror(errno));
  } else {
    words_ = static_cast<uint64_t*>(memory);
  }
  if (fd >= 0) close(fd);
}

History::~History() {
  if (words_ != nullptr) munmap(words_, kWordsMax * sizeof(uint64_t));
}

size_t History::Begin(const Event& event, std::span<const CommitId> ids) {
  if (words_ == nullptr || is_full()) return SIZE_MAX;
  Event begun = event;
  begun.id_count = static_cast<uint16_t>(ids.size());
  begun.began_ns = MonotonicNs();
  uint64_t words[kEventWords];
  std::memcpy(words, &begun, sizeof(begun));
  uint64_t* const place = words_ + at_;
  std::copy(words + 1, words + kEventWords, place + 1);
  std::copy(ids.begin(), ids.end(), place + kEventWords);
  // The kind comes last: a history that ends here ends with a whole event.
  std::atomic_ref<uint64_t>(place[0]).store(words[0], std::memory_order_release);
  const size_t began_at = at_;
  at_ += kEventWords + ids.size();
  return began_at;
}

void History::End(size_t at, const Answer& answer) {
  if (at == SIZE_MAX) return;
  Event event;
  std::memcpy(static_cast<void*>(&event), words_ + at, sizeof(event));
  event.status = answer.status;
  event.ended_ns = answer.ended_ns != 0 ? answer.ended_ns : MonotonicNs();
  if (answer.asked != 0) event.asked = static_cast<uint16_t>(answer.asked);
  if (!answer.ids.empty()) {
    event.id_count = static_cast<uint16_t>(answer.ids.size());
    std::copy(answer.ids.begin(), answer.ids.end(), words_ + at + kEventWords);
    at_ = at + kEventWords + answer.ids.size();
  }
  std::memcpy(words_ + at, &event, sizeof(event));
}

bool HistoryReader::Next(EventView* view) {
  constexpr size_t kEventWords = sizeof(Event) / sizeof(uint64_t);
  if (at_ + kEventWords > words_.size()) return false;
  std::memcpy(static_cast<void*>(&view->event), words_.data() + at_, sizeof(Event));
  if (view->event.kind == EventKind::kNone) return false;
  if (at_ + kEventWords + view->event.id_count > words_.size()) return false;
  view->at = at_;
  view->ids = words_.subspan(at_ + kEventWords, view->event.id_count);
  at_ += kEventWords + view->event.id_count;
  return true;
}

}  // namespace terrace::chaos
