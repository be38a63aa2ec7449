// Error: one outcome that a person may have to read: a Status, and the sentence that names the
// thing, the value, the limit and what to do. Where no person reads, a Status alone is enough.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "terrace/check.h"
#include "terrace/status.h"

namespace terrace {

class [[nodiscard]] Error {
 public:
  Error() = default;                         // kOk
  Error(Status status) : status_(status) {}  // NOLINT: its words are the sentence
  Error(StatusCode code, std::string sentence) : Error(Status(code), std::move(sentence)) {}
  // `status` says the same in words that hold no values.
  Error(Status status, std::string sentence) : status_(status), sentence_(std::move(sentence)) {
    TERRACE_CHECK(!status.ok(), "an Error with a sentence is none of kOk");
  }

  bool ok() const { return status_.ok(); }
  StatusCode code() const { return status_.code(); }
  Status status() const { return status_; }
  std::string sentence() const { return sentence_.empty() ? status_.what() : sentence_; }

 private:
  Status status_;
  std::string sentence_;
};

// As TERRACE_RETURN_IF_ERROR, of an Error.
#define TERRACE_RETURN_IF_REFUSED(expression)                                                \
  do {                                                                                       \
    if (::terrace::Error terrace_error_ = (expression); !terrace_error_.ok()) [[unlikely]] { \
      return terrace_error_;                                                                 \
    }                                                                                        \
  } while (false)

}  // namespace terrace
