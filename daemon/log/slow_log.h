// SlowLog: the requests of late that took longer than they should, of each domain, in memory: who
// asked what, and where the time went. Plain data: no key, token or byte of a block is in it. Each
// is a line of the log as well; of many in a minute the first few, and one line about the rest.
//
// THREADING: store thread. LIMITS: kRowsMax rows a domain, taken at its first; the oldest go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/log/request_phases.h"
#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/status.h"
#include "terrace/units.h"

namespace terrace {

struct SlowRequest {
  RequestPhases times;
  uint64_t session = 0;
  uint64_t request_id = 0;
  uint64_t byte_count = 0;  // of key_count blocks, where its group is known
  uint32_t key_count = 0;   // blocks asked; of a Commit its entries
  GroupId group;            // zero: none, or not known
  uint32_t uid = 0;
  uint32_t pid = 0;
  protocol::Verb verb = protocol::Verb::kHello;
  StatusCode status = StatusCode::kOk;
  std::array<char, 32> client_name{};  // printable
};

class SlowLog {
 public:
  static constexpr uint32_t kRowsMax = 256;
  static constexpr uint32_t kLinesPerMinuteMax = 10;

  // From when on a request is slow, from now on; 0: none is.
  void SetLimit(uint32_t limit_ms) { limit_ms_ = limit_ms; }
  // As the log's lines call them, in the order of their indices; else by number.
  void NameDomains(std::vector<std::string> names) { names_ = std::move(names); }
  // A request has ended, slow or not.
  void Note(uint32_t domain_index, const SlowRequest& request) {
    if (limit_ms_ > 0 && request.times.total_us() >= limit_ms_ * kUsPerMs) {
      Add(domain_index, request);
    }
  }
  void Reset(uint32_t domain_index);
  // A JSON document, the latest first.
  std::string Answer(uint32_t domain_index, uint64_t now_us, uint32_t row_count_max) const;
  // Into the log, a minute after the first of those that had no line. Call about once a second.
  void Tell(uint64_t now_us);

 private:
  void Add(uint32_t domain_index, const SlowRequest& request);

  struct Domain {
    std::vector<SlowRequest> rows;  // a ring
    uint64_t request_count = 0;     // ever: the next one's place
    uint64_t kept_from = 0;         // those before were reset
  };
  uint32_t limit_ms_ = 0;
  std::vector<std::string> names_;
  std::vector<Domain> domains_;
  uint64_t minute_began_us_ = 0;
  uint32_t minute_count_ = 0;
  uint64_t longest_us_ = 0;  // of those without a line
};

}  // namespace terrace
