#include "tests/cuda_emulator/fibers.h"

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/cuda_emulator/kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace terrace::emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "cuda emulator: %s\n", what);
  std::abort();
}

// What AddressSanitizer has to be told of a switch from one stack to another.
#if defined(__SANITIZE_ADDRESS__)
void Leave(void** own, const void* stack, size_t stack_bytes) {
  __sanitizer_start_switch_fiber(own, stack, stack_bytes);
}
void Arrive(void* own, const void** from, size_t* from_bytes) {
  __sanitizer_finish_switch_fiber(own, from, from_bytes);
}
#else
void Leave(void**, const void*, size_t) {}
void Arrive(void*, const void**, size_t*) {}
#endif

// A stack that runs lanes, one after another, until one waits. Stacks are made by ucontext and
// changed by longjmp, which asks nothing of the kernel.
struct Fiber {
  jmp_buf place;
  bool is_begun = false;
  void* sanitizer = nullptr;
  const std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  uint32_t lane = 0;
  bool is_waiting = false;
  uint32_t mask = 0;
  uint32_t value = 0;
  uint32_t distance = 0;
};

// Stacks are kept for the next warp.
thread_local std::array<std::unique_ptr<Fiber>, kWarpLanes> t_fibers;

class Warp {
 public:
  Warp(uint32_t lane_count, const std::function<void(uint32_t)>& enter,
       const std::function<void()>& run)
      : lane_count_(lane_count), enter_(enter), run_(run) {}

  void Run();
  uint32_t Exchange(uint32_t mask, uint32_t value, uint32_t distance);

 private:
  static void Begin();
  void RunLanes();
  void Resume(Fiber* fiber);
  void Suspend(Fiber* fiber);
  bool ExchangeAll();

  const uint32_t lane_count_;
  const std::function<void(uint32_t)>& enter_;
  const std::function<void()>& run_;
  uint32_t next_lane_ = 0;
  uint32_t ended_count_ = 0;
  uint32_t fiber_count_ = 0;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
  void* scheduler_sanitizer_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

thread_local Warp* t_warp = nullptr;

// A fiber's life: the lanes of one warp after those of another.
void Warp::Begin() {
  Fiber* const fiber = t_warp->current_;
  Arrive(nullptr, &t_warp->scheduler_stack_, &t_warp->scheduler_stack_bytes_);
  for (;;) {
    t_warp->RunLanes();
    t_warp->Suspend(fiber);
  }
}

void Warp::RunLanes() {
  Fiber* const fiber = current_;
  while (next_lane_ < lane_count_) {
    fiber->lane = next_lane_++;
    enter_(fiber->lane);
    run_();
    ++ended_count_;
  }
}

void Warp::Resume(Fiber* fiber) {
  current_ = fiber;
  Leave(&scheduler_sanitizer_, fiber->stack.get(), kStackBytes);
  if (_setjmp(scheduler_) == 0) {
    if (fiber->is_begun) _longjmp(fiber->place, 1);
    fiber->is_begun = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = fiber->stack.get();
    first.uc_stack.ss_size = kStackBytes;
    first.uc_link = nullptr;
    makecontext(&first, &Warp::Begin, 0);
    setcontext(&first);
  }
  Arrive(scheduler_sanitizer_, nullptr, nullptr);
}

void Warp::Suspend(Fiber* fiber) {
  Leave(&fiber->sanitizer, scheduler_stack_, scheduler_stack_bytes_);
  if (_setjmp(fiber->place) == 0) _longjmp(scheduler_, 1);
  Warp* const warp = t_warp;  // perhaps another one by now
  Arrive(fiber->sanitizer, &warp->scheduler_stack_, &warp->scheduler_stack_bytes_);
}

uint32_t Warp::Exchange(uint32_t mask, uint32_t value, uint32_t distance) {
  Fiber* const fiber = current_;
  if ((mask >> fiber->lane & 1) == 0) Die("a lane exchanges outside of its mask");
  fiber->mask = mask;
  fiber->value = value;
  fiber->distance = distance;
  fiber->is_waiting = true;
  Suspend(fiber);
  enter_(fiber->lane);
  return fiber->value;
}

// Gives every waiting lane its partner's value and takes it up again; false where none waits.
bool Warp::ExchangeAll() {
  std::array<Fiber*, kWarpLanes> lanes = {};
  uint32_t mask = 0;
  for (uint32_t i = 0; i < fiber_count_; ++i) {
    Fiber* const fiber = t_fibers[i].get();
    if (!fiber->is_waiting) continue;
    lanes[fiber->lane] = fiber;
    mask |= fiber->mask;
  }
  if (mask == 0) return false;
  std::array<uint32_t, kWarpLanes> values = {};
  for (uint32_t i = 0; i < kWarpLanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    if (lanes[i] == nullptr) Die("a warp exchanges with a lane that has ended");
    if (lanes[i]->mask != mask) Die("a warp's lanes exchange with different masks");
    values[i] = lanes[i]->value;
  }
  for (uint32_t i = 0; i < kWarpLanes; ++i) {
    if (lanes[i] == nullptr) continue;
    const uint32_t partner = i ^ lanes[i]->distance;
    if (partner >= kWarpLanes) Die("a lane exchanges with one beyond its warp");
    lanes[i]->value = values[partner];
    lanes[i]->is_waiting = false;
  }
  for (Fiber* lane : lanes) {
    if (lane != nullptr) Resume(lane);
  }
  return true;
}

void Warp::Run() {
  t_warp = this;
  // Where a lane waits, the next fiber goes on with the lanes that are left. All have then begun
  // before any exchange, so that a lane which is missing has ended.
  while (next_lane_ < lane_count_) {
    std::unique_ptr<Fiber>& fiber = t_fibers[fiber_count_++];
    if (fiber == nullptr) fiber = std::make_unique<Fiber>();
    fiber->is_waiting = false;
    Resume(fiber.get());
  }
  while (ExchangeAll()) continue;
  t_warp = nullptr;
  if (ended_count_ != lane_count_) Die("a lane never ended");
}

}  // namespace

void RunWarp(uint32_t lane_count, const std::function<void(uint32_t)>& enter,
             const std::function<void()>& run) {
  Warp(lane_count, enter, run).Run();
}

uint32_t ExchangeXor(uint32_t mask, uint32_t value, uint32_t distance) {
  if (t_warp == nullptr) Die("an exchange outside of a kernel");
  return t_warp->Exchange(mask, value, distance);
}

}  // namespace terrace::emulator
