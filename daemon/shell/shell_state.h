// What the shell holds, in the order in which it comes: shell_start.cc makes it, shell.cc runs it.
#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/arenas/domain_arena.h"
#include "daemon/arenas/inheritance.h"
#include "daemon/config/config.h"
#include "daemon/domain/domain_checks.h"
#include "daemon/domain/domain_device.h"
#include "daemon/domain/domain_nvme.h"
#include "daemon/domain/domain_quotas.h"
#include "daemon/domain/domain_redis.h"
#include "daemon/domain/domain_traces.h"
#include "daemon/domain/known_drives.h"
#include "daemon/events/kv_event_publisher.h"
#include "daemon/log/log.h"
#include "daemon/metrics/metrics_endpoint.h"
#include "daemon/persist/group_files_on_paths.h"
#include "daemon/persist/missed_erasures.h"
#include "daemon/process/state_dir_lock.h"
#include "daemon/session/session.h"
#include "daemon/shell/administration.h"
#include "daemon/shell/daemon_figures.h"
#include "daemon/shell/live_config.h"
#include "daemon/shell/offload_pool.h"
#include "daemon/shell/refuted_log.h"
#include "daemon/shell/shell.h"
#include "daemon/shell/system_seams.h"
#include "daemon/socket/acceptor.h"
#include "daemon/socket/domain.h"
#include "daemon/socket/refused_peers.h"
#include "daemon/socket/socket_transport.h"
#include "daemon/store/store.h"
#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/slow_turns.h"
#include "daemon/telemetry/turn_meter.h"
#include "terrace/domain_secret.h"
#include "tiers/loop_inbox.h"

namespace terrace {

struct Shell::State {
  State(DaemonConfig daemon_config, ConfigSource source)
      : config(std::move(daemon_config)), config_source(std::move(source)) {}

  // Start, step by step.
  Status CheckMemory(std::string* why);
  Status OpenListeners(std::string* why);
  Status LoadSecrets(std::string* why);
  void TakeRings(const KeyRings& now);
  Status CreateArenas(std::string* why);
  Status OpenNvme(std::string* why);
  Status OpenKvEvents(std::string* why);
  LoopInbox::Poster PostTurns(const char* name);  // each of what other threads leave is a turn
  void OpenTransport();
  void BuildCore();
  void RestoreNvme();
  void AdoptArenas();
  void PostGroupFilesChanged(uint32_t domain_index);  // any thread
  StoreOptions MakeStoreOptions();
  void BeginAccepting();

  // One turn of the store thread: `work`, then whatever it made due.
  template <typename Work>
  void Turn(const char* name, Work&& work) {
    const uint64_t began_us = clock.NowUs();
    turn_meter.Begin(began_us);
    work();
    EndTurn(name, began_us);
  }
  void EndTurn(const char* name, uint64_t began_us);
  void ArmTimer();
  void OnTimer();
  void ScheduleWork();
  void Housekeep();
  void PingWatchdog();
  void AnnounceReady();
  void OnPeer(uint32_t domain_index, const Acceptor::Peer& peer);
  void OnRefused(const DomainConfig& domain, ConnectionRefusal refusal, const PeerCredentials& peer,
                 const std::string& why);
  void OpenMetrics(int passed_fd);
  void Stop(const char* reason);
  bool CloseTiers();

  DaemonConfig config;         // live keys of it: Administration
  ConfigSource config_source;  // until Administration has it
  // Threads and memory, in the order they come and, reversed, go.
  asio::io_context loop{1};
  std::shared_ptr<LoopInbox> inbox = LoopInbox::Open(loop);
  SystemClock clock;
  SystemRandom random;
  ProcessMetrics metrics;
  StateDirLock state_dir_lock;
  std::vector<DomainSecret> secrets;
  std::vector<Listener> listeners;
  std::map<std::string, int> stored_fds;  // systemd's, until the FdStore has them
  std::vector<std::unique_ptr<DomainArena>> arenas;
  std::unique_ptr<Inheritance> inheritance;
  std::optional<DomainQuotas> quotas;
  std::shared_ptr<FileBudget> slab_files;              // of all domains
  std::vector<std::unique_ptr<DomainNvme>> nvme;       // one a domain, or none at all
  std::vector<std::unique_ptr<DomainRedis>> redis;     // the same
  std::vector<std::unique_ptr<DomainDevice>> devices;  // the same
  std::unique_ptr<GroupFilesOnPaths> group_files;      // if blocks may outlive the daemon
  KnownDrives drives;
  std::unique_ptr<MissedErasures> missed_erasures;
  std::unique_ptr<KvEventPublisher> kv_events;  // if routers are told
  std::unique_ptr<SocketTransport> transport;
  std::unique_ptr<SessionTable> sessions;
  std::unique_ptr<OffloadPool> offload;
  std::unique_ptr<DomainTraces> traces;
  std::unique_ptr<Store> store;
  std::optional<Administration> administration;
  std::optional<DaemonFigures> figures;
  std::unique_ptr<DomainChecks> checks;  // if there are drives
  std::unique_ptr<RefusedPeers> refused_peers;
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::unique_ptr<MetricsEndpoint> endpoint;  // if anybody may ask

  asio::steady_timer timer{loop};
  asio::steady_timer housekeeping{loop};
  asio::steady_timer watchdog{loop};
  asio::signal_set signals{loop};
  uint64_t timer_us = kNever;  // when `timer` fires
  uint64_t watchdog_us = 0;    // 0: systemd does not watch
  bool is_work_scheduled = false, is_ready_announced = false;
  TurnMeter turn_meter{ThreadProcessorUs, kTurnLimitUs};
  SlowTurns slow_turns;
  LostPagesLog lost_pages;
  LogGate refused_gate, closed_gate;
};

}  // namespace terrace
