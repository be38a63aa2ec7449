// `terrace drain`: has a domain take nothing new, and says what is left; or has its clients go on
// without it. Both until --resume.
#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "terrace/protocol_admin.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/admin_verbs.h"

namespace terrace::tools {
namespace {

using protocol::DrainAction;
using protocol::DrainReply;
using protocol::ServingMode;

constexpr uint32_t kWaitSecondsMax = 86'400;
constexpr std::chrono::milliseconds kDrainLook(100);
constexpr std::array<std::string_view, 3> kModeNames = {"serving", "draining", "bypassed"};

class DrainVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        "drain", "Take nothing new, and say what is left; or have clients go on without the cache");
    verb.AddOption("--domain", domain_, "The domain; without --socket its socket is D.sock")
        .Type("D");
    const Argument bypass = verb.AddFlag(
        "--bypass", is_bypass_, "Clients find and store nothing, and ask nothing, from now on");
    const Argument resume =
        verb.AddFlag("--resume", is_resume_, "Serve again, after either").Excludes(bypass);
    verb.AddFlag("--status", is_status_, "Change nothing, only say what is left")
        .Excludes(bypass)
        .Excludes(resume);
    verb.AddOption("--wait", wait_s_, "Wait until nothing is left, so long at most")
        .Type("SECONDS")
        .Between(uint32_t{0}, kWaitSecondsMax)
        .Excludes(resume);
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (!domain_.empty() && address_.socket_path.empty()) {
      const std::string path = DefaultSocketPath();
      address_.socket_path = path.substr(0, path.rfind('/') + 1) + domain_ + ".sock";
    }
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    if (!domain_.empty() && link->domain_name() != domain_) {
      return Fail(fmt::format(
          "the daemon at {} serves domain '{}' there, not '{}': name that domain's socket with "
          "--socket",
          address_.path(), link->domain_name(), domain_));
    }
    std::optional<DrainReply> reply = Ask(*link, Action());
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(wait_s_);
    while (reply && IsAwaited(*reply) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kDrainLook);
      reply = Ask(*link, DrainAction::kStatus);
    }
    if (!reply) return kExitFailed;
    Print(*link, *reply);
    if (wait_s_ > 0 && reply->mode == ServingMode::kServing) {
      return Fail(fmt::format("domain {} serves, so nothing of it is to be waited for: {}",
                              link->domain_name(),
                              is_status_ ? "`terrace drain` has it take nothing new"
                                         : "somebody has resumed it meanwhile (`terrace log`)"));
    }
    if (wait_s_ == 0 || !IsAwaited(*reply)) return kExitOk;
    return Fail(fmt::format(
        "after {} s of --wait there is left: {}. A lease ends when its engine releases it, or ends "
        "itself; what a drive does not take is lost with the daemon: `terrace status` names the "
        "sessions and the drive's condition; wait longer, or stop the daemon all the same",
        wait_s_, Left(*reply)));
  }

 private:
  DrainAction Action() const {
    if (is_status_) return DrainAction::kStatus;
    if (is_resume_) return DrainAction::kResume;
    return is_bypass_ ? DrainAction::kBypass : DrainAction::kDrain;
  }

  static bool IsAwaited(const DrainReply& reply) {
    return reply.mode != ServingMode::kServing && reply.is_done == 0;
  }

  static std::optional<DrainReply> Ask(AdminLink& link, DrainAction action) {
    const protocol::DrainRequest request{.action = action};
    const auto body = link.Ask(protocol::kVerbDrain, std::as_bytes(std::span(&request, 1)));
    DrainReply reply;
    if (!body.ok()) {
      Fail("the daemon does not drain: " + link.why());
    } else if (body->size() != sizeof(reply)) {
      Fail(
          fmt::format("the answer to Drain has {} bytes, and {} are known: update terrace or "
                      "terraced so that both are of one release",
                      body->size(), sizeof(reply)));
    } else {
      std::memcpy(&reply, body->data(), sizeof(reply));
      return reply;
    }
    return std::nullopt;
  }

  static std::string_view ModeName(const DrainReply& reply) {
    const auto mode = static_cast<size_t>(reply.mode);
    return mode < kModeNames.size() ? kModeNames[mode] : "in a mode newer than this command";
  }

  static std::string Left(const DrainReply& reply) {
    return fmt::format(
        "{} of {} (about {}), {} being written by clients, {} (about {}) to be written below, "
        "{} for the shared tier",
        FormatCount(reply.lease_count, "lease"), FormatCount(reply.leased_blocks, "block"),
        FormatBytes(reply.leased_bytes), FormatCount(reply.reserved_blocks, "block"),
        FormatCount(reply.unwritten_blocks), FormatBytes(reply.unwritten_bytes),
        FormatBytes(reply.shared_bytes));
  }

  void Print(const AdminLink& link, const DrainReply& reply) const {
    if (is_json_) return PrintJson(Document(link, reply));
    std::string text = fmt::format("domain {} is {}", link.domain_name(), ModeName(reply));
    if (reply.mode == ServingMode::kServing) return PrintText(text + "\n");
    text += fmt::format(", as uid {} wanted", reply.by_uid);
    text += reply.is_done != 0 ? ": nothing is left of what it took\n"
                               : fmt::format("\nleft: {}\n", Left(reply));
    if (reply.mode == ServingMode::kBypassed) {
      text +=
          "its clients go on without it, each from its next call on; `terrace drain --resume` "
          "ends that\n";
      if (reply.kept_error != 0) {
        text += fmt::format(
            "a restart of the daemon ends it, too: the file beside the socket that "
            "says so cannot be made: {}\n",
            std::strerror(reply.kept_error));
      }
    }
    if (reply.mode == ServingMode::kBypassed && Action() == DrainAction::kDrain) {
      text += "a drain changes nothing of a bypass: to drain it, `terrace drain --resume` first\n";
    }
    if (reply.is_done != 0 && reply.mode == ServingMode::kDraining) {
      text +=
          "`systemctl stop terraced` ends the daemon and closes its socket: no client starts it "
          "again\n";
    }
    PrintText(text);
  }

  static nlohmann::json Document(const AdminLink& link, const DrainReply& reply) {
    return {{"domain", link.domain_name()},
            {"mode", ModeName(reply)},
            {"is_done", reply.is_done != 0},
            {"since_unix_s", reply.since_unix_s},
            {"by_uid", reply.by_uid},
            {"is_kept", reply.mode == ServingMode::kBypassed && reply.kept_error == 0},
            {"session_count", reply.session_count},
            {"lease_count", reply.lease_count},
            {"leased_blocks", reply.leased_blocks},
            {"leased_bytes", reply.leased_bytes},
            {"reserved_blocks", reply.reserved_blocks},
            {"unwritten_blocks", reply.unwritten_blocks},
            {"unwritten_bytes", reply.unwritten_bytes},
            {"shared_bytes", reply.shared_bytes},
            {"requests_unserved", reply.requests_unserved}};
  }

  DaemonAddress address_;
  std::string domain_;
  uint32_t wait_s_ = 0;
  bool is_bypass_ = false;
  bool is_resume_ = false;
  bool is_status_ = false;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeDrainVerb() { return std::make_unique<DrainVerb>(); }

}  // namespace terrace::tools
