// What the rest of a daemon does for its sessions: records requests, checks drives, drains, takes
// configurations, and says who is an admin and who may store. What it has begun is answered when
// the script says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/session/admin_verbs.h"
#include "daemon/session/session.h"
#include "fuzz/fuzz.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::fuzz {

class SessionHooks {
 public:
  struct Options {
    bool has_records = false;  // of requests, drives and configurations
    bool has_names = false;    // nobody is an admin but root, nobody stores but kNamedWriterUid
  };
  SessionHooks(test::SessionHarness& world, const Options& options);

  static constexpr uint32_t kNamedWriterUid = 1000;
  // Who stores nothing, and was told so with the answer to its Hello.
  bool IsReader(uint32_t uid) const { return writers_.has_value() && uid != kNamedWriterUid; }

  // One answer to what has been asked: [of a check or a configuration; how it ended]
  void Answer(Choices& choices);
  // All of them; and the domain serves.
  void End();

 private:
  struct Check {
    SessionId session = 0;
    SessionTable::FsckHooks::Done done;
  };

  void KeepRecords();
  static void JudgeRecord(const TracedRequest& request);
  void Cancel(SessionId session);
  void Configure(protocol::ConfigAction action, const std::string& text,
                 const AdminVerbs::Hooks::ConfigDone& done);

  test::SessionHarness& world_;
  AdminVerbs::Uids admins_, writers_;
  std::vector<Check> checks_;
  std::vector<AdminVerbs::Hooks::ConfigDone> changes_;
};

}  // namespace terrace::fuzz
