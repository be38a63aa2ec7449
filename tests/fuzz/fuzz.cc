#include "fuzz/fuzz.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/allocator_interface.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace terrace::fuzz {
namespace {

// Memory that a sanitizer's hooks see. Another thread's is nobody's input.
thread_local bool is_metered = false;
thread_local int64_t held_bytes = 0;
thread_local int64_t peak_held_bytes = 0;

#ifdef __SANITIZE_ADDRESS__
void OnAllocate(const volatile void*, size_t size_bytes) {
  if (!is_metered) return;
  held_bytes += static_cast<int64_t>(size_bytes);
  peak_held_bytes = std::max(peak_held_bytes, held_bytes);
}

void OnFree(const volatile void* memory) {
  if (!is_metered || memory == nullptr) return;
  held_bytes -=
      static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
}

// False: no room for them, and every bound would hold.
bool InstallHooks() { return __sanitizer_install_malloc_and_free_hooks(OnAllocate, OnFree) != 0; }
#else
bool InstallHooks() { return true; }  // there are none: every bound holds
#endif

std::vector<Target>& Registered() {
  static std::vector<Target> targets;
  return targets;
}

}  // namespace

Registration::Registration(const Target& target) { Registered().push_back(target); }

const std::vector<Target>& Targets() { return Registered(); }

void Require(bool holds, std::string_view sentence) {
  if (holds) return;
  std::fprintf(stderr, "==FUZZ== %.*s\n", static_cast<int>(sentence.size()), sentence.data());
  std::abort();
}

HeapMeter::HeapMeter() {
  static const bool is_hooked = InstallHooks();
  Require(is_hooked, "the sanitizer takes no hooks of the heap");
  Require(!is_metered, "one meter at a time");
  is_metered = true;
  held_bytes = peak_held_bytes = 0;
}

HeapMeter::~HeapMeter() { is_metered = false; }

uint64_t HeapMeter::peak_bytes() const { return static_cast<uint64_t>(peak_held_bytes); }

void HeapMeter::RequireAtMost(uint64_t fixed_bytes, uint64_t factor, uint64_t input_bytes) const {
  const uint64_t bytes_max = fixed_bytes + factor * input_bytes;
  if (peak_bytes() <= bytes_max) return;
  is_metered = false;
  Require(false, std::to_string(peak_bytes()) + " bytes were taken from the heap for an input of " +
                     std::to_string(input_bytes) + "; the limit is " + std::to_string(bytes_max));
}

const DomainSecret& FuzzSecret() {
  static const DomainSecret secret = [] {
    DomainSecret made;
    for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(3 + 7 * i);
    return made;
  }();
  return secret;
}

}  // namespace terrace::fuzz
