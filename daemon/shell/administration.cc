#include "daemon/shell/administration.h"

#include <csignal>
#include <string>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/shell/store_options.h"

namespace terrace {

Administration::Administration(Parts parts, ConfigSource source)
    : parts_(std::move(parts)),
      hang_ups_(parts_.loop),
      serving_(parts_.config, parts_.clock),
      config_(std::move(source), parts_.config,
              {.apply = [this] { Apply(); }, .post = parts_.post}) {}

void Administration::Serve(Store& store, SessionTable& sessions,
                           const std::vector<std::unique_ptr<DomainNvme>>& nvme) {
  store_ = &store;
  sessions_ = &sessions;
  serving_.Serve(store, nvme);
  sessions.SetAdmin(
      {.admin_uids = [this]() -> const AdminVerbs::Uids& { return parts_.config.admin_uids; },
       .drain = [this](const PeerIdentity& peer,
                       protocol::DrainAction action) { return serving_.Drain(peer, action); },
       .config =
           [this](const PeerIdentity& peer, protocol::ConfigAction action, const std::string& text,
                  const AdminVerbs::Hooks::ConfigDone& done) {
             if (action != protocol::ConfigAction::kGet) {
               Log(LogLevel::kWarn, "configuration is asked to change",
                   {{"uid", peer.uid}, {"pid", peer.pid}, {"set", text}});
             }
             config_.Ask(action, text, done);
           }});
}

void Administration::AwaitHangUps() {
  asio::error_code ignored;
  hang_ups_.add(SIGHUP, ignored);
  hang_ups_.async_wait([this](const asio::error_code& error, int) {
    if (error) return;
    config_.Ask(protocol::ConfigAction::kReload, "",
                [](const Error& refused, const std::string& document) {
                  if (refused.ok()) {
                    Log(LogLevel::kInfo, "configuration reloaded", {{"what", document}});
                  } else {
                    Log(LogLevel::kError, "configuration not reloaded: nothing has changed",
                        {{"why", refused.sentence()}});
                  }
                });
    AwaitHangUps();
  });
}

void Administration::Apply() {
  const DaemonConfig& config = parts_.config;
  SetLog(config.log_level, config.log_format);
  StoreOptions tuned = StoreOptionsOf(config);
  for (size_t i = 0; i < config.domains.size(); ++i) {
    tuned.domains.push_back(DomainOptionsOf(config, i));
  }
  store_->Retune(tuned);
  sessions_->SetLimits(SessionLimitsOf(config));
}

}  // namespace terrace
