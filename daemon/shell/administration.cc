#include "daemon/shell/administration.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include "daemon/arenas/host_memory.h"
#include "daemon/config/config_keys.h"
#include "daemon/log/log.h"
#include "daemon/process/process_guard.h"
#include "daemon/shell/store_options.h"

namespace terrace {
namespace {

// Of a change that somebody asked for by a socket; the document has each key's old and new value.
void TellOutcome(const PeerIdentity& peer, protocol::ConfigAction action, const Error& refused,
                 const std::string& document) {
  if (!refused.ok()) {
    Log(LogLevel::kWarn, "configuration not changed",
        {{"uid", peer.uid}, {"pid", peer.pid}, {"why", refused.sentence()}});
    return;
  }
  const bool is_reload = action == protocol::ConfigAction::kReload;
  Log(LogLevel::kInfo, is_reload ? "configuration reloaded" : "configuration changed",
      {{"uid", peer.uid}, {"pid", peer.pid}, {"what", document}});
}

}  // namespace

Administration::Administration(Parts parts, ConfigSource source)
    : parts_(std::move(parts)),
      hang_ups_(parts_.loop),
      next_look_(parts_.loop),
      serving_(parts_.config, parts_.clock),
      config_(
          std::move(source), parts_.config,
          {.apply = [this] { Apply(); }, .take_rings = parts_.take_rings, .post = parts_.post}) {}

void Administration::Serve(const Served& served) {
  store_ = &served.store;
  sessions_ = &served.sessions;
  quotas_ = &served.quotas;
  nvme_ = &served.nvme;
  nvme_capacity_bytes_ = parts_.config.nvme.capacity_bytes;
  LookAtMemory();
  serving_.Serve(served.store, served.nvme);
  served.sessions.SetAdmin(
      {.admin_uids = [this]() -> const AdminVerbs::Uids& { return parts_.config.admin_uids; },
       .writer_uids = [this](uint32_t domain_index) -> const AdminVerbs::Uids& {
         return parts_.config.domains[domain_index].writer_uids;
       },
       .drain = [this](const PeerIdentity& peer,
                       protocol::DrainAction action) { return serving_.Drain(peer, action); },
       .config =
           [this](const PeerIdentity& peer, protocol::ConfigAction action, const std::string& text,
                  const AdminVerbs::Hooks::ConfigDone& done) {
             if (action == protocol::ConfigAction::kQuota) {
               return done({}, quotas_->Document(parts_.config, store_->statistics()));
             }
             if (action == protocol::ConfigAction::kGet) return config_.Ask(action, text, done);
             Log(LogLevel::kWarn, "configuration is asked to change",
                 {{"uid", peer.uid}, {"pid", peer.pid}, {"keys", ShownKeys(text)}});
             config_.Ask(action, text,
                         [peer, action, done](const Error& refused, const std::string& document) {
                           TellOutcome(peer, action, refused, document);
                           done(refused, document);
                         });
           }});
}

void Administration::AwaitHangUps() {
  asio::error_code ignored;
  hang_ups_.add(SIGHUP, ignored);
  HoldHangUps(false);
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

bool Administration::EndReload() {
  constexpr std::chrono::milliseconds kEndWait(500);
  if (config_.EndReading(kEndWait)) return true;
  Log(LogLevel::kError, "a reload hangs: its thread is left behind, and the end is as after a kill",
      {{"remedy",
        "see whether the file system hangs that the configuration, or a file that it "
        "names, is on"}});
  return false;
}

void Administration::Apply() {
  const DaemonConfig& config = parts_.config;
  SetLog(config.log_level, config.log_format);
  Retune();
  const uint64_t capacity_bytes = config.nvme.capacity_bytes;
  const bool is_other = nvme_capacity_bytes_ != capacity_bytes;
  if (std::exchange(nvme_capacity_bytes_, capacity_bytes) < capacity_bytes) {
    for (const std::unique_ptr<DomainNvme>& domain : *nvme_) domain->NoteCapacity(capacity_bytes);
  }
  if (is_other && !nvme_->empty()) nvme_->front()->NoteFiles(config);
  sessions_->SetLimits(SessionLimitsOf(config));
  if (!is_looking_) LookAtMemory();
}

uint64_t Administration::Retune() {
  const DaemonConfig& config = parts_.config;
  StoreOptions tuned = StoreOptionsOf(config);
  uint32_t guaranteed = 0;
  for (size_t i = 0; i < config.domains.size(); ++i) {
    tuned.domains.push_back(DomainOptionsOf(config, i));
    guaranteed += tuned.domains[i].segments_guaranteed;
  }
  const uint64_t limit =
      std::max<uint64_t>(yield_.limit_bytes() / config.segment_bytes, guaranteed);
  tuned.segments_total = static_cast<uint32_t>(std::min<uint64_t>(tuned.segments_total, limit));
  quotas_->Retune(config);
  store_->Retune(tuned);
  return tuned.segments_total * config.segment_bytes;
}

void Administration::LookAtMemory() {
  const DaemonConfig& config = parts_.config;
  const uint64_t before_bytes = std::min(yield_.limit_bytes(), config.dram_bytes);
  const bool is_looked_at = config.memory_reserve_bytes > 0;
  const HostMemory host = is_looked_at ? ReadHostMemory() : HostMemory();
  uint32_t held = 0, leaving = 0;
  store_->statistics().CountSegments(&held, &leaving);
  const uint64_t limit_bytes = yield_.Look(host,
                                           {.held_bytes = held * config.segment_bytes,
                                            .leaving_bytes = leaving * config.segment_bytes,
                                            .segment_bytes = config.segment_bytes,
                                            .now_us = parts_.clock.NowUs()},
                                           config.memory_reserve_bytes, config.dram_bytes);
  if (limit_bytes != before_bytes) {
    // Told when it begins and when all is held again; in between at level debug.
    const bool is_told = std::max(before_bytes, limit_bytes) == config.dram_bytes;
    const uint64_t kept_bytes = Retune();  // not less than what is guaranteed
    Log(is_told ? LogLevel::kInfo : LogLevel::kDebug,
        limit_bytes < before_bytes ? "memory is given back: others need it"
                                   : "memory is taken again",
        {{"dram_at_most", FormatBytes(kept_bytes)},
         {"available", is_looked_at ? FormatBytes(RoundDown(host.available_bytes, kMiB)) : "?"},
         {"memory_reserve_bytes", FormatBytes(config.memory_reserve_bytes)}});
  }
  is_looking_ = is_looked_at;
  if (!is_looking_) return;
  next_look_.expires_after(kLookPeriod);
  next_look_.async_wait([this](const asio::error_code& error) {
    // As a turn: what leaves has timers that a turn's end sets.
    if (!error) parts_.post([this] { LookAtMemory(); });
  });
}

}  // namespace terrace
