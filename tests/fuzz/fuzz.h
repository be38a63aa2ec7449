// What the fuzz targets share. A target is one file <name>_fuzz.cc: Run, which reads an input and
// judges what the code made of it, and Seeds, the inputs that our own encoders make. What a target
// finds wrong beside a crash ends the process, so that a fuzzer takes it for one.
//
// THREADING: one thread fuzzes; HeapMeter counts its allocations alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "terrace/checksum.h"

namespace terrace::fuzz {

using Bytes = std::vector<std::byte>;

struct Seed {
  std::string name;  // of a file
  Bytes bytes;
};

struct Target {
  std::string_view name;
  // False: the input is none for a corpus.
  bool (*run)(std::span<const std::byte> input) = nullptr;
  std::vector<Seed> (*seeds)() = nullptr;
};
// Each target says so once: `const Registration registration({"slab", Run, Seeds});`
class Registration {
 public:
  explicit Registration(const Target& target);
};
// Those of this program: all, or the one that a fuzzer runs.
const std::vector<Target>& Targets();

// Ends the process, with the sentence, unless `holds`.
void Require(bool holds, std::string_view sentence);

// An input read as choices. Behind its end every choice is 0, so each target's 0 is the plainest.
class Choices {
 public:
  explicit Choices(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool is_empty() const { return rest_.empty(); }
  uint8_t Byte() { return Number<uint8_t>(); }
  template <typename T>
  T Number() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::span<const std::byte> bytes = Take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // Of one byte, so below 256 values at most. REQUIRES: limit > 0.
  uint32_t Below(uint32_t limit) { return Byte() % limit; }
  // As many as there are, at most.
  std::span<const std::byte> Take(size_t count) {
    const std::span<const std::byte> taken =
        rest_.first(count < rest_.size() ? count : rest_.size());
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> Rest() { return Take(rest_.size()); }

 private:
  std::span<const std::byte> rest_;
};

// The other way round, for seeds.
class ChoiceWriter {
 public:
  template <typename T>
  ChoiceWriter& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Append(std::as_bytes(std::span(&value, 1)));
  }
  ChoiceWriter& Byte(uint8_t value) { return Put(value); }
  ChoiceWriter& Append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ChoiceWriter& Append(std::string_view text) { return Append(std::as_bytes(std::span(text))); }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// What this thread takes from the heap from its construction on. Without AddressSanitizer nobody
// tells, and every bound holds.
class HeapMeter {
 public:
  HeapMeter();
  ~HeapMeter();
  HeapMeter(const HeapMeter&) = delete;
  HeapMeter& operator=(const HeapMeter&) = delete;

  // The most that was held at a time, beyond what was held at the beginning.
  uint64_t peak_bytes() const;
  // Ends the process if it passes `fixed_bytes + factor * input_bytes`.
  void RequireAtMost(uint64_t fixed_bytes, uint64_t factor, uint64_t input_bytes) const;
};

// The secret of every target's domain: seals are made anew under it, or no input would pass one.
const DomainSecret& FuzzSecret();

inline std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Bytes BytesOfText(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace terrace::fuzz
