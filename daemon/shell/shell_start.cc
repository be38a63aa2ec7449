// The start of the daemon, step by step.
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/arenas/host_memory.h"
#include "daemon/domain/domain_drives.h"
#include "daemon/domain/recovery.h"
#include "daemon/handover/fd_store.h"
#include "daemon/process/sandbox.h"
#include "daemon/shell/shell_state.h"
#include "daemon/shell/store_options.h"

namespace terrace {

Status Shell::Start(std::string* why) {
  State& state = *state_;
  TERRACE_RETURN_IF_ERROR(OpenFileBudget(state.config, &state.slab_files, why));
  TERRACE_RETURN_IF_ERROR(state.CheckMemory(why));
  TERRACE_RETURN_IF_ERROR(state.OpenListeners(why));
  TERRACE_RETURN_IF_ERROR(state.LoadSecrets(why));
  TERRACE_RETURN_IF_ERROR(state.state_dir_lock.Take(state.config, why));
  TERRACE_RETURN_IF_ERROR(FindDrives(state.config, &state.drives, why));
  state.missed_erasures = OpenMissedErasures(
      state.config, state.state_dir_lock, [&state](uint32_t i) { state.PostGroupFilesChanged(i); });
  TERRACE_RETURN_IF_ERROR(state.CreateArenas(why));
  TERRACE_RETURN_IF_ERROR(state.OpenNvme(why));
  TERRACE_RETURN_IF_ERROR(state.OpenKvEvents(why));
  TERRACE_RETURN_IF_ERROR(OpenRedis(
      state.config, state.secrets, state.config_source.rings, state.PostTurns("redis"),
      [&state] { return state.clock.UnixUs(); }, state.missed_erasures.get(), &state.redis, why));
  TERRACE_RETURN_IF_ERROR(OpenDevices(
      state.config, state.arenas, [&state] { return state.clock.NowUs(); }, &state.devices, why));
  if (!state.nvme.empty() || state.inheritance->is_holding()) {
    state.group_files = OpenGroupFiles(state.config, state.secrets, state.nvme,
                                       [&state](uint32_t i) { state.PostGroupFilesChanged(i); });
  }
  state.BuildCore();
  state.RestoreNvme();
  state.AdoptArenas();
  TERRACE_RETURN_IF_ERROR(ConfineCallsOf(state.config, why));  // all threads and rings are there
  state.BeginAccepting();
  if (state.endpoint) state.endpoint->Serve(state.figures->SourceOf(state.PostTurns("metrics")));
  return Status::Ok();
}

Status Shell::State::CheckMemory(std::string* why) {
  std::string warning;
  const Status status =
      CheckHostMemory(ReadHostMemory(), config.dram_bytes,
                      config.hbm.device == "host" ? config.hbm.capacity_bytes : 0, &warning);
  if (!status.ok()) *why = warning;
  if (status.ok() && !warning.empty()) {
    Log(LogLevel::kWarn, "memory may run out", {{"why", warning}});
  }
  return status;
}

Status Shell::State::OpenListeners(std::string* why) {
  std::map<std::string, int> activated;
  TERRACE_RETURN_IF_ERROR(TakeActivatedSockets(&activated, &stored_fds, why));
  int metrics_fd = -1;
  if (const auto passed = activated.find(kMetricsFdName); passed != activated.end()) {
    metrics_fd = passed->second;
    activated.erase(passed);
  }
  OpenMetrics(metrics_fd);
  // One domain and one socket belong together whatever the unit calls it.
  if (activated.size() == 1 && config.domains.size() == 1) {
    activated = {{config.domains[0].name, activated.begin()->second}};
  }
  for (const DomainConfig& domain : config.domains) {
    const auto passed = activated.find(domain.name);
    Listener listener;
    if (passed != activated.end()) {
      std::string otherwise;
      listener = Listener::Adopt(passed->second, domain, &otherwise);
      activated.erase(passed);
      if (!otherwise.empty()) {
        Log(LogLevel::kWarn, "a socket is not as the configuration says",
            {{"domain", domain.name},
             {"why", otherwise},
             {"remedy", "systemctl edit terraced.socket: ListenStream= and SocketMode= count"}});
      }
    } else {
      TERRACE_RETURN_IF_ERROR(Listener::Bind(domain, &listener, why));
    }
    listeners.push_back(std::move(listener));
  }
  if (activated.empty()) return Status::Ok();
  *why = "socket activation: '" + activated.begin()->first +
         "' is no domain's name: set FileDescriptorName= of the .socket unit to one, or add the "
         "[[domain]]";
  return Status(StatusCode::kInvalid, "a socket of no domain");
}

// As early as can be: who watches a daemon that takes minutes to start sees that it does.
void Shell::State::OpenMetrics(int passed_fd) {
  if (passed_fd < 0 && !config.metrics.is_on()) return;
  endpoint = std::make_unique<MetricsEndpoint>(
      MetricsEndpoint::Options{.config = config.metrics, .passed_fd = passed_fd});
}

Status Shell::State::LoadSecrets(std::string* why) {
  for (const DomainConfig& domain : config.domains) {
    DomainSecret secret;
    TERRACE_RETURN_IF_ERROR(LoadDomainSecret(domain, &secret, why));
    secrets.push_back(secret);
    std::shared_ptr<const KeyRing> ring;
    TERRACE_RETURN_IF_ERROR(LoadKeyRing(domain, &ring, why));
    config_source.rings.push_back(ring);
    Log(LogLevel::kInfo, "domain",
        {{"domain", domain.name},
         {"socket", domain.socket_path},
         {"secret_fingerprint", DomainSecretFingerprint(secret)},
         {"encryption_keys", ring == nullptr ? "none" : ring->Describe()}});
  }
  return Status::Ok();
}

void Shell::State::TakeRings(const KeyRings& now) {
  for (size_t i = 0; i < now.size(); ++i) {
    if (!redis.empty()) redis[i]->OnReload(now[i]);
    if (now[i] != nullptr && !nvme.empty()) nvme[i]->SetRing(now[i], *group_files);
  }
}

Status Shell::State::CreateArenas(std::string* why) {
  inheritance = std::make_unique<Inheritance>(
      loop, MakeFdStore(config.keeper_socket, std::exchange(stored_fds, {})),
      [this](uint32_t domain_index, SessionId session) {
        Turn("predecessor's session", [&] {
          store->restoration().PredecessorSessionEnded(domain_index, session);
          sessions->Flush();
        });
      },
      [this](uint32_t i, uint64_t seed) { return missed_erasures->MayAdopt(i, seed); });
  TERRACE_RETURN_IF_ERROR(inheritance->Take(why));
  std::vector<DomainArena*> all;
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    const DomainArena::Events events{.on_populated =
                                         [this, i](uint32_t segment, Status status) {
                                           Turn("segment populated", [&] {
                                             store->events().OnSegmentPopulated(i, segment, status);
                                             sessions->Flush();
                                           });
                                         },
                                     .on_punched =
                                         [this, i](uint32_t segment, Status status) {
                                           Turn("segment punched", [&] {
                                             store->events().OnSegmentPunched(i, segment, status);
                                             sessions->Flush();
                                           });
                                         }};
    DomainArena::Options options = ArenaOptionsOf(config, i);
    options.secret = secrets[i];
    arenas.push_back(std::make_unique<DomainArena>(options, inbox->poster(), events));
    all.push_back(arenas.back().get());
  }
  TERRACE_RETURN_IF_ERROR(inheritance->Furnish(all, why));
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(arenas[i]->CheckReaders(config.domains[i], why));
  }
  inheritance->Settle();
  return Status::Ok();
}

LoopInbox::Poster Shell::State::PostTurns(const char* name) {
  return [this, name, post = inbox->poster()](std::function<void()> work) {
    post([this, name, work = std::move(work)] {
      Turn(name, [&] {
        work();
        sessions->Flush();
      });
    });
  };
}

Status Shell::State::OpenNvme(std::string* why) {
  quotas.emplace(config);
  TERRACE_RETURN_IF_ERROR(OpenDrives(config,
                                     {.secrets = secrets,
                                      .rings = config_source.rings,
                                      .shares = quotas->nvme(),
                                      .files = slab_files,
                                      .post = PostTurns("disk"),
                                      .now_us = [this] { return clock.NowUs(); },
                                      .random = [this] { return random.Next(); }},
                                     drives, missed_erasures.get(), &nvme, why));
  for (size_t i = 0; i < nvme.size(); ++i) arenas[i]->RegisterWith(nvme[i]->disks());
  return Status::Ok();
}

void Shell::State::PostGroupFilesChanged(uint32_t domain_index) {
  PostTurns("group file")(
      [this, domain_index] { store->events().OnGroupFilesChanged(domain_index); });
}

Status Shell::State::OpenKvEvents(std::string* why) {
  if (!config.kv_events.is_on()) return Status::Ok();
  kv_events = std::make_unique<KvEventPublisher>(config, [this, post = PostTurns("kv events")] {
    post([this] { store->events().RepublishKvEvents(); });
  });
  return kv_events->Start(why);
}

// What the disks still hold is told to the store before anybody may ask for it.
void Shell::State::RestoreNvme() {
  for (const std::unique_ptr<DomainNvme>& domain : nvme) {
    domain->Restore(*store, missed_erasures.get());
    domain->WrapWhatIsOwed(*group_files);
  }
  for (uint32_t i = 0; i < arenas.size(); ++i) {
    missed_erasures->UseMemory(i, arenas[i]->arena().table_seed(), inheritance->is_holding());
  }
  missed_erasures->Begin();
}

// After the disks: a block that is there, too, is one block with two copies.
void Shell::State::AdoptArenas() {
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    if (!inheritance->is_adopted(i)) continue;
    // As the disks would have: blocks are found from the first request on.
    if (nvme.empty()) RestoreGroups(*store, i, KeptGroupsDirectory(config, i), secrets[i]);
    const uint64_t began_us = clock.NowUs();
    const std::vector<SessionId> left = inheritance->SessionsOf(i);
    const AdoptSummary summary = store->restoration().AdoptSlots(i, left);
    Log(LogLevel::kInfo, "adopted",
        {{"domain", config.domains[i].name},
         {"from", std::string(inheritance->holder())},
         {"blocks", summary.blocks},
         {"slots_parked", summary.slots_parked},
         {"slots_dropped", summary.slots_dropped},
         {"slots_fenced", summary.slots_fenced},
         {"torn_slots", summary.torn_slots},
         {"sessions_left", left.size()},
         {"took_ms", (clock.NowUs() - began_us) / kUsPerMs}});
  }
  inheritance->BeginWatch();
}

StoreOptions Shell::State::MakeStoreOptions() {
  StoreOptions options = StoreOptionsOf(config);
  for (size_t i = 0; i < config.domains.size(); ++i) {
    const DomainConfig& domain = config.domains[i];
    DomainOptions entry = DomainOptionsOf(config, i);
    entry.secret = secrets[i];
    entry.segments_max = arenas[i]->segments_max();
    entry.arena = arenas[i].get();
    entry.slot_table = arenas[i]->arena().slot_table();
    entry.table_seed = arenas[i]->arena().table_seed();
    if (inheritance->is_adopted(i)) entry.populated_segments = arenas[i]->PopulatedSegments();
    if (!nvme.empty()) entry.lower_tiers.push_back(&nvme[i]->tier());
    if (domain.kv_events == KvEventsOfDomain::kOn) entry.kv_events = kv_events.get();
    if (!redis.empty()) entry.shared = redis[i]->use(quotas->redis());
    if (!devices.empty()) entry.device = devices[i]->use();
    options.domains.push_back(std::move(entry));
  }
  options.group_files = group_files.get();
  options.absent_places = missed_erasures.get();
  WatchWriters(config, clock, *sessions, &options);
  return options;
}

void Shell::State::OpenTransport() {
  std::vector<SocketTransport::DomainFds> domain_fds;
  for (size_t i = 0; i < arenas.size(); ++i) {
    domain_fds.push_back({.name = arenas[i]->domain_name(),
                          .arena = arenas[i]->arena().fds().nodes,
                          .notices = administration->notice_fd(static_cast<uint32_t>(i))});
    if (!devices.empty()) domain_fds[i].slabs = devices[i]->slab_fds();
  }
  transport = std::make_unique<SocketTransport>(
      loop, std::move(domain_fds),
      SocketTransport::Events{
          .on_bytes =
              [this](SessionId session, std::span<const std::byte> bytes) {
                const uint64_t began_us = clock.NowUs();
                const bool wants_more = sessions->OnBytes(session, bytes, began_us);
                EndTurn("request", began_us);
                return wants_more;
              },
          .on_sent = [this](SessionId session) { sessions->OnSent(session); },
          .on_hang_up =
              [this](SessionId session) { Turn("hang-up", [&] { sessions->OnHangUp(session); }); },
          .on_proof_of_death =
              [this](SessionId session) {
                Turn("proof of death", [&] { sessions->OnProofOfDeath(session); });
                inheritance->ForgetSession(session);
                Log(LogLevel::kDebug, "session gone", {{"session", SessionText(session)}});
              },
          .on_first_slot =
              [this](SessionId session, uint32_t domain_index, int pidfd, int life_fd) {
                inheritance->NoteSession(domain_index, session, pidfd, life_fd);
              },
          .on_close =
              [this](SessionId session, CloseReason reason) {
                ++metrics.sessions_closed[static_cast<size_t>(reason)];
                if (reason == CloseReason::kClientLeft) return;  // as all do
                uint64_t held_back = 0;
                if (!closed_gate.Open(clock.NowUs(), &held_back)) return;
                Log(LogLevel::kWarn, "session closed",
                    {{"session", SessionText(session)},
                     {"why", CloseReasonName(reason)},
                     {"not_told", held_back}});
              },
          .on_forget = [this](SessionId session) { inheritance->ForgetSession(session); }});
}

void Shell::State::BuildCore() {
  while (metrics.boot_id == 0) metrics.boot_id = random.Next();
  metrics.started_us = clock.NowUs();
  metrics.started_unix_s = clock.UnixSeconds();
  administration.emplace(
      Administration::Parts{.loop = loop,
                            .config = config,
                            .clock = clock,
                            .post = PostTurns("administration"),
                            .take_rings = [this](const KeyRings& now) { TakeRings(now); }},
      std::move(config_source));
  OpenTransport();
  sessions = std::make_unique<SessionTable>(
      SessionOptionsOf(config, metrics.boot_id, secrets, arenas), *transport,
      [this](uint32_t domain_index) { return figures->StatsOf(domain_index); });
  offload = std::make_unique<OffloadPool>(
      OffloadPool::Options{.threads = config.offload_threads, .jobs_max = config.offload_jobs_max},
      inbox->poster(), [this](OffloadId id, std::span<const Checksum> roots) {
        Turn("checksums", [&] {
          store->events().OnChecksumsDone(id, roots);
          sessions->Flush();
        });
      });
  store = std::make_unique<Store>(MakeStoreOptions(), clock, random, *offload, *sessions);
  sessions->Serve(*store);
  for (uint32_t i = 0; i < redis.size(); ++i) redis[i]->Serve(store->events().shared_listener(i));
  figures.emplace(DaemonFigures::Sources{.config = config,
                                         .clock = clock,
                                         .metrics = metrics,
                                         .inheritance = *inheritance,
                                         .transport = *transport,
                                         .sessions = *sessions,
                                         .offload = *offload,
                                         .store = *store,
                                         .kv_events = kv_events.get(),
                                         .endpoint = endpoint.get()});
  traces = std::make_unique<DomainTraces>(config, clock);
  sessions->SetTrace(traces->Hooks());
  administration->Serve({*store, *sessions, nvme, *quotas});
  if (nvme.empty()) return;
  checks = std::make_unique<DomainChecks>(
      nvme, store->checks(), clock, [this, post = inbox->poster()](std::function<void()> work) {
        post([this, work = std::move(work)] { Turn("fsck", work); });
      });
  sessions->SetFsck(checks->Hooks());
}

void Shell::State::BeginAccepting() {
  refused_peers = std::make_unique<RefusedPeers>(loop, metrics.boot_id);
  if (::geteuid() == kOverflowUid) {
    Log(LogLevel::kWarn, "clients of this daemon's own user are refused",
        {{"uid", kOverflowUid}, {"remedy", "run it, and them, as another user"}});
  }
  for (uint32_t i = 0; i < config.domains.size(); ++i) {
    const DomainConfig& domain = config.domains[i];
    acceptors.push_back(std::make_unique<Acceptor>(
        loop, clock, domain, *refused_peers, std::move(listeners[i]),
        Acceptor::Events{
            .on_peer = [this, i](const Acceptor::Peer& peer) { OnPeer(i, peer); },
            .on_refused = [this, &domain](
                              ConnectionRefusal refusal, const PeerCredentials& peer,
                              const std::string& why) { OnRefused(domain, refusal, peer, why); }}));
    acceptors.back()->Begin();
  }
}

}  // namespace terrace
