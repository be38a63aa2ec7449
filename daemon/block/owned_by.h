// OwnedBy: a value that everybody reads and one class changes.
#pragma once

#include <concepts>
#include <utility>

namespace terrace {

template <typename Owner, typename T>
class OwnedBy {
 public:
  OwnedBy() = default;
  template <typename Value>
  requires std::constructible_from<T, Value>
  explicit OwnedBy(Value&& value) : value_(std::forward<Value>(value)) {}
  OwnedBy(OwnedBy&&) = default;
  OwnedBy& operator=(OwnedBy&&) = delete;

  operator const T&() const { return value_; }  // NOLINT: it stands for the value
  // Elements of an array.
  const auto& operator[](auto index) const { return value_[index]; }

 private:
  friend Owner;
  T& of_owner() { return value_; }

  T value_{};
};

}  // namespace terrace
