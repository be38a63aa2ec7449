// DeniedCommands: what a server's ACL does not let this user do, though it lets it log in. Each is
// tried again now and then, and whatever else there is goes on meanwhile.
//
// Pure. LIMITS: one entry for each command that is ever sent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/units.h"

namespace terrace {

class DeniedCommands {
 public:
  static constexpr uint64_t kPauseUs = 5 * kUsPerSecond;

  // What was sent began with `sent`; a transaction or a script may have been denied for another
  // command, which `said`, the server's words, may name.
  void OnDenied(std::string_view sent, std::string_view said, bool is_script, uint64_t now_us);
  // What began with `sent` was not denied. False: nor was it before.
  bool OnLet(std::string_view sent);

  bool is_empty() const { return denied_.empty(); }
  // It need not be asked again yet.
  bool IsPaused(std::string_view sent, uint64_t now_us) const;

  // "does not let user cache run GET, MGET (…)", for a person. Of what reads, or of all else;
  // empty: nothing. An empty `user` is the server's default one.
  std::string TextOfReads(std::string_view user) const { return Text(user, true); }
  std::string TextOfOthers(std::string_view user) const { return Text(user, false); }

 private:
  struct Denied {
    std::string sent;
    std::string_view command;  // empty: unknown
    bool is_script = false;
    bool is_of_keys = false;
    uint64_t until_us = 0;
  };
  std::string Text(std::string_view user, bool is_of_reads) const;

  std::vector<Denied> denied_;
};

}  // namespace terrace
