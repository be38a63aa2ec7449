#include "daemon/shell/shell.h"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>
#include <csignal>

#include "daemon/config/config_text.h"
#include "daemon/handover/supervisor.h"
#include "daemon/shell/shell_state.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::chrono::seconds kHousekeepingInterval{1};
// A clean stop lets what is on its way to the disks arrive, for so long at most.
constexpr uint64_t kDrainUs = 10'000'000;
constexpr std::chrono::milliseconds kDrainStep{5};

}  // namespace

Shell::Shell(DaemonConfig config, ConfigSource source)
    : state_(std::make_unique<State>(std::move(config), std::move(source))) {}

Shell::~Shell() {  // other threads stop before what they touch goes
  (void)StopRedis(state_->redis);
  if (state_->offload != nullptr) state_->offload->Stop();
  state_->inbox->Close();
}

// ---- turns --------------------------------------------------------------------------------------

void Shell::State::EndTurn(const char* name, uint64_t began_us) {
  for (const std::unique_ptr<DomainNvme>& domain : nvme) domain->Flush();
  ArmTimer();
  ScheduleWork();
  AnnounceReady();
  const uint64_t now_us = clock.NowUs();
  const TurnCost turn = turn_meter.End(began_us, now_us);
  metrics.CountTurn(turn);
  if (turn.took_us > kTurnLimitUs) slow_turns.Note(name, turn, now_us);
}

// Set anew only when it is due earlier: one that fires too early looks again. Leftovers would wait.
void Shell::State::ArmTimer() {
  const uint64_t next_us = store->events().NextTimerUs();
  if (next_us == 0 || next_us >= timer_us) return;
  timer_us = next_us;
  timer.expires_at(asio::steady_timer::time_point(std::chrono::microseconds(next_us)));
  timer.async_wait([this](const asio::error_code& error) {
    if (!error) OnTimer();
  });
}

void Shell::State::OnTimer() {
  timer_us = kNever;
  Turn("timer", [this] {
    if (store->events().NextTimerUs() > clock.NowUs()) return;
    store->events().OnTimer();
    sessions->Flush();
  });
}

void Shell::State::ScheduleWork() {
  if (is_work_scheduled || (!sessions->has_work() && store->events().NextTimerUs() > 0)) return;
  is_work_scheduled = true;
  asio::post(loop, [this] {
    is_work_scheduled = false;
    if (sessions->has_work()) Turn("long request", [this] { sessions->OnTurn(); });
    if (store->events().NextTimerUs() == 0) OnTimer();
  });
}

void Shell::State::Housekeep() {
  housekeeping.expires_after(kHousekeepingInterval);
  housekeeping.async_wait([this](const asio::error_code& error) {
    if (error) return;
    transport->CloseOverdue(clock.NowUs());
    inheritance->Retry();
    lost_pages.Tell();
    AnnounceReady();
    figures->watch().Look();
    for (const std::unique_ptr<DomainRedis>& domain : redis) domain->LogHealth();
    for (const auto& domain : nvme) domain->KeepLearned(store->restoration());
    slow_turns.Tell(clock.NowUs());
    sessions->TellSlow(clock.NowUs());
    Housekeep();
  });
}

void Shell::State::PingWatchdog() {
  TellSupervisor("WATCHDOG=1");
  watchdog.expires_after(std::chrono::microseconds(watchdog_us / 2));
  watchdog.async_wait([this](const asio::error_code& error) {
    if (!error) PingWatchdog();
  });
}

void Shell::State::AnnounceReady() {
  if (is_ready_announced || !store->is_ready()) return;
  is_ready_announced = TellSupervisor("READY=1\nSTATUS=DRAM " + FormatBytes(config.dram_bytes));
  if (!is_ready_announced) return;
  Log(LogLevel::kInfo, "ready",
      {{"version", TERRACE_VERSION},
       {"domains", config.domains.size()},
       {"dram_bytes", config.dram_bytes},
       {"start_ms", (clock.NowUs() - metrics.started_us) / kUsPerMs}});
}

// ---- connections --------------------------------------------------------------------------------

void Shell::State::OnPeer(uint32_t domain_index, const Acceptor::Peer& peer) {
  const uint64_t began_us = clock.NowUs();
  SessionId session = 0;
  while (session == 0) session = random.Next();
  if (!transport->Add({session, domain_index, peer.socket_fd, peer.pidfd, began_us})) {
    return OnRefused(config.domains[domain_index], ConnectionRefusal::kDescriptors,
                     peer.credentials,
                     "epoll_ctl: no more is watched; raise fs.epoll.max_user_watches");
  }
  sessions->OnAccept(
      session,
      {.domain_index = domain_index, .uid = peer.credentials.uid, .pid = peer.credentials.pid});
  ++metrics.connections_accepted;
  Log(LogLevel::kDebug, "connection",
      {{"session", SessionText(session)},
       {"domain", config.domains[domain_index].name},
       {"uid", peer.credentials.uid},
       {"pid", peer.credentials.pid},
       {"has_pidfd", peer.pidfd >= 0}});
  EndTurn("accept", began_us);
}

void Shell::State::OnRefused(const DomainConfig& domain, ConnectionRefusal refusal,
                             const PeerCredentials& peer, const std::string& why) {
  ++metrics.connections_refused[static_cast<size_t>(refusal)];
  uint64_t held_back = 0;
  if (!refused_gate.Open(clock.NowUs(), &held_back)) return;
  Log(LogLevel::kWarn, "connection refused",
      {{"domain", domain.name},
       {"uid", peer.uid},
       {"gid", peer.gid},
       {"pid", peer.pid},
       {"why", why},
       {"not_told", held_back}});
}

// ---- run and stop -------------------------------------------------------------------------------

bool Shell::Run() {
  State& state = *state_;
  TERRACE_CHECK(!state.acceptors.empty(), "who runs has been started, and every domain has a door");
  state.signals.add(SIGTERM);
  state.signals.add(SIGINT);
  state.signals.async_wait([&state](const asio::error_code& error, int signal) {
    if (!error) state.Stop(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  });
  if (sd_watchdog_enabled(0, &state.watchdog_us) > 0) state.PingWatchdog();
  state.administration->AwaitHangUps();
  state.Housekeep();
  state.Turn("start", [] {});
  state.loop.run();
  return state.CloseTiers();
}

bool Shell::State::CloseTiers() {
  const bool has_redis_ended = CloseRedis(redis, *store, loop, config.redis.drain_ms);
  store->StopScrub();
  const uint64_t end_us = clock.NowUs() + kDrainUs;
  const auto has_arrived = [this] {
    const auto is_idle = [](const auto& domain) { return domain->is_idle(); };
    return nvme.empty() || (store->is_settled() && std::all_of(nvme.begin(), nvme.end(), is_idle));
  };
  while (!has_arrived() && clock.NowUs() < end_us) {
    loop.restart();
    loop.run_for(kDrainStep);
  }
  bool has_ended = group_files == nullptr || group_files->Drain(kDrainUs);
  const bool is_late = !has_arrived();
  if (is_late) {  // what arrives later no catalog would know
    Log(LogLevel::kWarn, "disks are late: the next start reads their tables", {});
  }
  for (const std::unique_ptr<DomainNvme>& domain : nvme) {
    if (!is_late) domain->Close(store->restoration());
    has_ended = domain->EndThreads() && has_ended;
  }
  if (!has_ended) {
    Log(LogLevel::kError, "a disk hangs: ending as after a kill",
        {{"remedy", "see whether the drive or its file system hangs"}});
  }
  return administration->EndReload() && has_ended && has_redis_ended;
}

void Shell::State::Stop(const char* reason) {
  TellSupervisor("STOPPING=1");
  if (endpoint != nullptr) endpoint->EndServing();
  Log(LogLevel::kInfo, "stopping", {{"why", reason}});
  acceptors.clear();
  transport->CloseAll();
  loop.stop();
}

}  // namespace terrace
