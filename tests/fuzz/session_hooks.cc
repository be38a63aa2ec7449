#include "fuzz/session_hooks.h"

#include <algorithm>
#include <utility>

#include "terrace/protocol_admin.h"
#include "terrace/protocol_introspection.h"

namespace terrace::fuzz {

using protocol::Verb;

SessionHooks::SessionHooks(test::SessionHarness& world, const Options& options) : world_(world) {
  if (options.has_names) {
    admins_.emplace();
    writers_.emplace({kNamedWriterUid});
  }
  AdminVerbs::Hooks hooks;
  if (options.has_names) {
    hooks.admin_uids = [this]() -> const AdminVerbs::Uids& { return admins_; };
    hooks.writer_uids = [this](uint32_t) -> const AdminVerbs::Uids& { return writers_; };
  }
  if (options.has_records) {
    KeepRecords();
    hooks.drain = [this](const PeerIdentity& peer, protocol::DrainAction action) {
      constexpr protocol::ServingMode kModes[] = {
          protocol::ServingMode::kServing, protocol::ServingMode::kDraining,
          protocol::ServingMode::kBypassed, protocol::ServingMode::kServing};
      OperatorVerbs& operators = world_.store->operators();
      if (action != protocol::DrainAction::kStatus) {
        operators.SetServing(peer.domain_index, kModes[static_cast<uint32_t>(action)]);
      }
      return protocol::DrainReply{.mode = operators.serving(peer.domain_index)};
    };
    hooks.config = [this](const PeerIdentity&, protocol::ConfigAction action,
                          const std::string& text, const AdminVerbs::Hooks::ConfigDone& done) {
      Configure(action, text, done);
    };
  }
  world_.sessions->SetAdmin(std::move(hooks));
}

void SessionHooks::KeepRecords() {
  world_.sessions->SetTrace(
      {.is_recording = [](uint32_t) { return true; },
       .record = [](uint32_t, const TracedRequest& request) { JudgeRecord(request); },
       .control = [](uint32_t, protocol::TraceAction) { return protocol::TraceRecordReply{}; }});
  world_.sessions->SetFsck(
      {.begin =
           [this](uint32_t, SessionId session, const protocol::FsckRequest&,
                  SessionTable::FsckHooks::Done done) {
             checks_.push_back({session, std::move(done)});
           },
       .cancel = [this](uint32_t, SessionId session) { Cancel(session); },
       .erased =
           [](const PeerIdentity&, const std::string&, const ErasureSummary& erased) {
             Require(erased.is_whole || erased.counts.block_count > 0 || erased.key_count > 0 ||
                         !erased.filter.empty(),
                     "an audit of nothing");
           }});
}

void SessionHooks::JudgeRecord(const TracedRequest& request) {
  const bool is_of_lease = request.verb == Verb::kRelease || request.verb == Verb::kCommit;
  Require(request.good_count <= request.key_count || request.verb == Verb::kRelease,
          "a record of more that was good than was asked for");
  if (is_of_lease) return Require(request.keys.empty(), "a lease's record names keys");
  Require(request.verb == Verb::kMatch || request.verb == Verb::kAcquire ||
              request.verb == Verb::kReserve || request.verb == Verb::kTouch,
          "a record of a verb that none is kept of");
  Require(request.block_tokens > 0 && !request.group.is_zero(), "a record of no group");
  Require(request.keys.size() == std::min(request.key_count, TraceRecorder::kTracedKeysMax),
          "a record of other keys than were asked for");
}

void SessionHooks::Cancel(SessionId session) {
  const auto found = std::ranges::find(checks_, session, &Check::session);
  Require(found != checks_.end(), "a check is cancelled that is not under way");
  checks_.erase(found);
}

// What sets nothing is answered at once.
void SessionHooks::Configure(protocol::ConfigAction action, const std::string& text,
                             const AdminVerbs::Hooks::ConfigDone& done) {
  if (action != protocol::ConfigAction::kGet) return changes_.push_back(done);
  done(text.empty() ? Error() : Error(StatusCode::kInvalid, "a Get with a text"), "{}");
}

void SessionHooks::Answer(Choices& choices) {
  const bool is_check = choices.Below(2) == 0;
  const bool is_refused = choices.Below(2) == 1;
  if (is_check && !checks_.empty()) {
    const Check check = std::move(checks_.front());
    checks_.erase(checks_.begin());
    check.done(Status(is_refused ? StatusCode::kIo : StatusCode::kOk), "{}");
  } else if (!is_check && !changes_.empty()) {
    const AdminVerbs::Hooks::ConfigDone done = std::move(changes_.front());
    changes_.erase(changes_.begin());
    done(is_refused ? Error(StatusCode::kInvalid, "it is not set") : Error(), "{}");
    world_.sessions->Flush();
  }
}

void SessionHooks::End() {
  Require(checks_.empty(), "a check of nobody's is under way");
  for (const auto& done : std::exchange(changes_, {})) done({}, "{}");
  world_.store->operators().SetServing(0, protocol::ServingMode::kServing);
}

}  // namespace terrace::fuzz
