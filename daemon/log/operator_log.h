// OperatorLog: what people have done to a domain's cache of late, in memory: who asked, what, when,
// and how many blocks it was about. It needs no drive and ends with the daemon; each event is a
// line of the log (journald) as well, where it stays. The audit of the catalog (`terrace audit`) is
// another thing: it knows erasures alone, and outlives the daemon.
//
// THREADING: store thread. LIMITS: kOperatorLogMax entries a domain; the oldest go.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/protocol_operator.h"

namespace terrace {

struct OperatorEvent {
  uint64_t at_us = 0;
  protocol::Verb verb = protocol::Verb::kHello;
  uint32_t uid = 0;
  uint32_t pid = 0;
  std::string_view client_name;  // printable
  GroupId group;                 // zero: every group, or none
  uint64_t block_count = 0;
  uint64_t byte_count = 0;
  bool is_whole = true;
  std::string detail;  // printable: "idle_s=7200 tier=nvme"
  StatusCode status = StatusCode::kOk;
  std::string why;  // of another status: for the log's line, since it may quote values
};

class OperatorLog {
 public:
  // As the log's lines call them, in the order of their indices; else by number.
  void NameDomains(std::vector<std::string> names) { names_ = std::move(names); }
  // `verb_name` is for the log's line.
  void Add(uint32_t domain_index, std::string_view verb_name, const OperatorEvent& event);
  // What an OperatorLog of the protocol is answered: OperatorLogReply and its entries.
  std::string Answer(uint32_t domain_index, uint64_t now_us,
                     const protocol::OperatorLogRequest& asked) const;

 private:
  struct Kept {
    uint64_t at_us = 0;
    protocol::OperatorLogEntry entry;
  };
  struct Domain {
    std::deque<Kept> kept;  // the latest first
    uint64_t event_count = 0;
  };
  std::vector<std::string> names_;
  std::vector<Domain> domains_;
};

}  // namespace terrace
