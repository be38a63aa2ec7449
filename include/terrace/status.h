// Status and Result<T>: how every fallible call in Terrace answers. Ten codes, grouped by what the
// caller does next; the same byte travels on the wire and through the C ABI.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "terrace/check.h"

namespace terrace {

enum class StatusCode : uint8_t {
  kOk = 0,
  kNotFound = 1,     // recompute; also what a foreign domain answers
  kExists = 2,       // somebody committed these bytes already: drop yours
  kNoSpace = 3,      // skip caching
  kBusy = 4,         // skip or retry later; also a passed deadline
  kInvalid = 5,      // the caller is wrong: fix it
  kCorrupt = 6,      // checksum mismatch: a miss, counted
  kIo = 7,           // the operating system said no; detail() is the errno
  kGone = 8,         // stale boot, lease or generation: start again
  kUnsupported = 9,  // this build, machine or configuration cannot do it
};
inline constexpr uint8_t kStatusCodeCount = 10;

std::string_view StatusCodeName(StatusCode code);

// One outcome in 16 bytes: a code, a detail (errno for kIo, else 0 or call-specific), and a static
// sentence. Trivially copyable; never owns memory. Messages that name values are built where a
// person reads them.
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  // `what` must outlive the process: a string literal.
  constexpr explicit Status(StatusCode code, const char* what = "", int32_t detail = 0)
      : what_(what), detail_(detail), code_(code) {}

  static constexpr Status Ok() { return Status(); }

  constexpr bool ok() const { return code_ == StatusCode::kOk; }
  constexpr StatusCode code() const { return code_; }
  constexpr int32_t detail() const { return detail_; }
  constexpr const char* what() const { return what_; }

 private:
  const char* what_ = "";
  int32_t detail_ = 0;
  StatusCode code_ = StatusCode::kOk;
};
static_assert(sizeof(Status) == 16 && std::is_trivially_copyable_v<Status>);

// Either a T or a Status that is not kOk.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(status) {  // NOLINT: a Status is an answer
    TERRACE_CHECK(!status.ok(), "a Result without a value needs a reason");
  }
  Result(T value) : value_(std::move(value)) {}  // NOLINT: a T is an answer

  bool ok() const { return value_.has_value(); }
  Status status() const { return status_; }
  StatusCode code() const { return status_.code(); }

  // REQUIRES: ok().
  T& value() & {
    TERRACE_CHECK(value_.has_value(), "value() of a failed Result");
    return *value_;
  }
  const T& value() const& {
    TERRACE_CHECK(value_.has_value(), "value() of a failed Result");
    return *value_;
  }
  T&& value() && {
    TERRACE_CHECK(value_.has_value(), "value() of a failed Result");
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define TERRACE_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                          \
    if (::terrace::Status terrace_status_ = (expression); !terrace_status_.ok()) [[unlikely]] { \
      return terrace_status_;                                                                   \
    }                                                                                           \
  } while (false)

}  // namespace terrace
