#include "sim/world.h"

#include <cstring>
#include <utility>

#include "tiers/arena/slot_table.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kSegmentBytes = 2 * kMiB;
constexpr uint32_t kSegmentsPerDomain = 3;
constexpr uint32_t kSegmentsGuaranteed = 1;
constexpr uint32_t kFullWalkEvery = 64;
constexpr uint32_t kStepsToTell = 32;  // at least a retry's time
constexpr uint32_t kTierFaultPpm = 20'000;
constexpr const char* kPolicies[] = {"lru", "hazard", "arc", "s3fifo"};
constexpr const char* kAdmissions[] = {"all", "second_use", "predicted"};
constexpr uint64_t kRestUs = 60'000'000;
constexpr uint64_t kServerKeepsUs = 3'000'000;  // as far as its users are told
constexpr uint64_t kSlabBytes = 2 * kMiB;
constexpr uint32_t kSlabs = 1;

// Uses of the seed and of a step's streams.
enum Use : uint64_t {
  kOfWorld,
  kOfDaemon,
  kOfProcesses,
  kOfActors,
  kOfBackground,
  kOfTime,
  kOfTiers
};

// Processes of three users, some in one domain.
uint32_t UidOf(uint32_t process) { return 1000 + process % 3; }

SpaceSpec MakeSpace(const Swarm& swarm, const std::string& model,
                    std::vector<uint64_t> part_bytes) {
  for (uint64_t& bytes : part_bytes) bytes = bytes * swarm.value(Kind::kPartPercent) / 100;
  SpaceSpec space;
  space.model = model;
  space.revision = "1";
  space.dtype = "bf16";
  space.layers = static_cast<uint32_t>(part_bytes.size());
  space.kv_heads = 1;
  space.head_size = 64;
  space.layout = "nhd";
  space.block_tokens = 16;
  space.part_bytes = std::move(part_bytes);
  return space;
}

}  // namespace

World::World(const WorldOptions& options)
    : options_(options),
      dice_(options.seed, options.swarm),
      daemon_random_(HashOf(options.seed, kOfDaemon)) {
  BeginStep(true);
  TakeConfiguration();
  MakeUniverse();
  MakeDomains();
  MakeStore();
  OpenOperators();
  for (uint32_t p = 0; p < options_.swarm.value(Kind::kProcesses); ++p) {
    processes_.push_back(std::make_unique<SimProcess>(SimProcess::Options{
        .number = p,
        .uid = UidOf(p),
        .domain_index = p % 2,
        .self_mask = 1 + HashOf(options_.seed, kOfProcesses, p) % 3,
        .never_expires = has_successors(),  // a second after a restart is not exact
        .keeps_worth = has_drives() && ending() == Ending::kPowerLoss,
        .has_device = options_.has_device && p / 2 % 2 == 0,
        .host = this}));
    Connect(p);
  }
}

World::~World() = default;

// Group 0: one member. Group 1: two ranks of four parts, read in three steps. Group 2: a full
// member of two parts and a windowed one. Chains share prefixes, as prompts do: chain c branches
// off an earlier one at a random position.
void World::MakeUniverse() {
  const Swarm& swarm = options_.swarm;
  groups_.resize(kSimGroups);
  groups_[0] = {.name = "one", .members = {{MakeSpace(swarm, "one", {65'000})}}};
  groups_[1].name = "two ranks";
  for (uint32_t rank = 0; rank < 2; ++rank) {
    SpaceSpec space = MakeSpace(swarm, "two", {20'000, 12'288, 9'000, 19'000});
    space.tp_rank = rank;
    space.tp_size = 2;
    groups_[1].members.push_back({space});
  }
  SpaceSpec full = MakeSpace(swarm, "hybrid", {40'000, 50'000});
  SpaceSpec windowed = MakeSpace(swarm, "hybrid", {30'000});
  windowed.attention = AttentionKind::kSliding;
  windowed.window_tokens = static_cast<uint32_t>(swarm.value(Kind::kWindowTokens));
  windowed.attention_group = 1;
  groups_[2] = {.name = "hybrid", .members = {{full}, {windowed}}};
  spaces_.resize(kSimGroups);
  for (uint32_t g = 0; g < kSimGroups; ++g) {
    for (const SpaceGroupMember& member : groups_[g].members) {
      spaces_[g].push_back(member.spec.Id());
    }
  }
  SimRandom names(options_.seed ^ 0xC0FFEE);
  for (uint32_t c = 0; c < kSimChains; ++c) {
    std::vector<BlockKey> chain;
    if (c > 0 && names.Pick(100) < 70) {
      const auto& other = chains_[names.Pick(c)];
      chain.assign(other.begin(), other.begin() + 1 + static_cast<long>(names.Pick(other.size())));
    }
    const size_t block_count = chain.size() + 1 + names.Pick(swarm.value(Kind::kChainBlocks));
    while (chain.size() < block_count) chain.push_back({names.Next(), names.Next()});
    chains_.push_back(std::move(chain));
  }
}

void World::MakeDomains() {
  domains_.resize(2);
  secrets_.resize(2);
  ShareDrives();
  for (uint32_t d = 0; d < 2; ++d) {
    Domain& domain = domains_[d];
    for (size_t i = 0; i < secrets_[d].size(); ++i) {
      secrets_[d][i] = static_cast<std::byte>(HashOf(options_.seed, kOfWorld, TrustOf(d), i));
    }
    MakeArena(&domain);
    if (options_.has_device) MakeDevice(d);
    if (has_drives()) {
      domain.drive =
          std::make_unique<Drive>(Drive::Options{.domain_index = d,
                                                 .secret = secrets_[d],
                                                 .seed = HashOf(options_.seed, kOfTiers, d),
                                                 .fault_rates_ppm = DriveFaultRates(),
                                                 .clock = &clock_,
                                                 .is_encrypted = options_.has_encrypted_drives},
                                  *shares_);
    }
    if (options_.below == WorldOptions::Below::kMemory) MakeMemoryTier(d);
    if (options_.has_server) domain.shared = std::make_unique<MemorySharedTier>(server_);
  }
}

void World::MakeMemoryTier(uint32_t domain_index) {
  const Swarm& swarm = options_.swarm;
  Domain& domain = domains_[domain_index];
  domain.memory_tier = std::make_unique<MemoryTier>(
      MemoryTier::Options{.capacity_bytes = swarm.value(Kind::kTierBytes),
                          .queue_max = static_cast<uint32_t>(swarm.value(Kind::kTierQueue)),
                          .bytes_per_us = swarm.value(Kind::kTierBytesPerUs),
                          .seed = HashOf(options_.seed, kOfTiers, domain_index, 1)});
  domain.fault_tier = std::make_unique<FaultTier>(*domain.memory_tier,
                                                  HashOf(options_.seed, kOfTiers, domain_index, 2));
  domain.memory_tier->SetListener(domain.fault_tier.get());
  static_assert(static_cast<size_t>(Kind::kTierOff) - static_cast<size_t>(Kind::kTierReadFails) ==
                kFaultCount);
  for (size_t fault = 0; fault < kFaultCount; ++fault) {
    const auto kind = static_cast<Kind>(static_cast<size_t>(Kind::kTierReadFails) + fault);
    domain.fault_tier->SetRate(static_cast<Fault>(fault), swarm.Ppm(kind, kTierFaultPpm));
  }
}

std::array<uint32_t, kDiskFaultCount> World::DriveFaultRates() const {
  std::array<uint32_t, kDiskFaultCount> rates_ppm = {};
  static_assert(static_cast<size_t>(Kind::kTierBelow) -
                    static_cast<size_t>(Kind::kDriveReadFails) ==
                kDiskFaultCount);
  const auto plain_ppm = static_cast<uint32_t>(options_.swarm.value(Kind::kDriveFaultPpm));
  for (size_t fault = 0; fault < kDiskFaultCount; ++fault) {
    const auto kind = static_cast<Kind>(static_cast<size_t>(Kind::kDriveReadFails) + fault);
    rates_ppm[fault] = options_.swarm.Ppm(kind, plain_ppm);
  }
  return rates_ppm;
}

void World::MakeArena(Domain* domain) {
  domain->arena = std::make_unique<SimArenaMemory>(kSegmentBytes, kSegmentsPerDomain);
  domain->slot_table.assign(SlotTableBytes(kSegmentBytes, kSegmentsPerDomain), std::byte{0});
}

void World::MakeDevice(uint32_t domain_index) {
  Domain& domain = domains_[domain_index];
  domain.slabs.resize(kSlabs * kSlabBytes);
  domain.device = std::make_unique<HbmTier>(HbmTier::Options{
      .domain_index = domain_index,
      .slab_bytes = kSlabBytes,
      .slab_count = kSlabs,
      .locate =
          [arena = domain.arena.get()](const std::byte* slot) {
            for (uint32_t segment = 0; segment < kSegmentsPerDomain; ++segment) {
              const std::byte* const base = arena->SegmentBase(segment);
              if (base == nullptr || slot < base || slot >= base + kSegmentBytes) continue;
              const auto offset_bytes = static_cast<uint64_t>(slot - base);
              return SlotAddress{segment, static_cast<uint32_t>(offset_bytes / kArenaPageBytes)};
            }
            return SlotAddress{};
          },
      .now_us = [this] { return clock_.NowUs(); },
      .order_deadline_us = options_.swarm.value(Kind::kOrderDeadlineUs)});
}

// What a configuration says, as the last reload left it.
StoreOptions World::MakeStoreOptions() {
  const Swarm& swarm = options_.swarm;
  StoreOptions store;
  store.segments_total = tuned_.segments_total;
  store.lease_ttl_ms = static_cast<uint32_t>(swarm.value(Kind::kLeaseTtlMs));
  store.sessions.sessions_max = 64;
  store.groups_max = 8;
  // What a successor finds has to fit.
  store.blocks_max =
      has_successors() ? 4'096 : static_cast<uint32_t>(swarm.value(Kind::kBlocksMax));
  store.leases_per_session_max = static_cast<uint32_t>(tuned_.session_leases);
  store.pending_per_session_max = static_cast<uint32_t>(tuned_.session_pending);
  store.fenced_bytes_max = tuned_.fenced_bytes;
  store.eviction_policy = kPolicies[swarm.value(Kind::kEvictionPolicy)];
  store.lower_eviction_policy = kPolicies[swarm.value(Kind::kLowerPolicy)];
  store.admission_policy = kAdmissions[tuned_.admission];
  store.read_ahead_blocks = static_cast<uint32_t>(tuned_.read_ahead);
  store.part_read_bytes_min = swarm.value(Kind::kPartReadBytes);
  if (has_successors()) store.group_files = &kept_groups_;
  if (has_drives()) store.absent_places = &missed_by_drives_;
  for (uint32_t d = 0; d < domains_.size(); ++d) store.domains.push_back(MakeDomainOptions(d));
  return store;
}

DomainOptions World::MakeDomainOptions(uint32_t domain_index) {
  const Domain& of = domains_[domain_index];
  DomainOptions domain;
  domain.name = "domain" + std::to_string(domain_index);
  domain.secret = secrets_[domain_index];
  domain.kv_events = &router_;
  domain.segment_bytes = kSegmentBytes;
  domain.segments_guaranteed = kSegmentsGuaranteed;
  domain.segments_lent_max =
      static_cast<uint32_t>(tuned_.segments_lent_halves * kSegmentsGuaranteed / 2);
  domain.segments_max = kSegmentsPerDomain;
  domain.ttl_default_s = static_cast<uint32_t>(tuned_.ttl_default_s);
  domain.arena = of.arena.get();
  domain.slot_table = domains_[domain_index].slot_table;
  for (uint32_t segment = 0; segment < kSegmentsPerDomain; ++segment) {
    if (of.arena->is_populated(segment)) domain.populated_segments.push_back(segment);
  }
  if (of.fault_tier) domain.lower_tiers = {of.fault_tier.get()};
  if (of.drive) {
    domain.lower_tiers = {&of.drive->tier()};
    domain.scrub_bytes_per_second = tuned_.scrub_bytes;
  }
  domain.shared.tier = of.shared.get();
  domain.shared.window_us = kServerKeepsUs;
  if (of.device) {
    domain.device = {.tier = of.device.get(),
                     .device = kSimDevice,
                     .hits_min = static_cast<uint32_t>(tuned_.device_hits)};
  }
  return domain;
}

void World::MakeStore() {
  StoreOptions store_options = MakeStoreOptions();
  SessionTableOptions session_options;
  for (const DomainOptions& domain : store_options.domains) {
    session_options.domains.push_back({.name = domain.name,
                                       .secret = domain.secret,
                                       .segment_bytes = domain.segment_bytes,
                                       .segments_max = domain.segments_max,
                                       .segments_per_node = domain.segments_max});
  }
  session_options.boot_id = daemon_random_.Next() | 1;
  session_options.lease_ttl_ms = store_options.lease_ttl_ms;
  session_options.pending_per_session_max = store_options.pending_per_session_max;
  sessions_ = std::make_unique<SessionTable>(std::move(session_options), *this,
                                             [](uint32_t) { return std::string("{}"); });
  store_ = std::make_unique<Store>(std::move(store_options), clock_, daemon_random_, offload_,
                                   *sessions_);
  sessions_->Serve(*store_);
  for (Domain& domain : domains_) {
    if (domain.fault_tier) domain.fault_tier->SetListener(&store_->events());
    if (domain.drive) domain.drive->tier().SetListener(&drive_reports_);
    const auto d = static_cast<uint32_t>(&domain - domains_.data());
    if (domain.shared) domain.shared->SetListener(&store_->events().shared_listener(d));
  }
}

void World::Trace(uint64_t word) {
  trace_hash_ = (trace_hash_ ^ word) * 0x100000001B3;
  trace_hash_ ^= trace_hash_ >> 29;
}

void World::TraceBytes(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    trace_hash_ = (trace_hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  }
  Trace(bytes.size());
}

void World::Fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ =
      "step " + std::to_string(steps_) + ", " + std::to_string(clock_.NowUs()) + " us: " + what;
}

bool World::IsInThatUse(uint32_t domain_index, const SlotRef& slot) {
  const uint64_t rows_per_segment = kSegmentBytes / kArenaPageBytes;
  SlotRow row;
  std::memcpy(
      &row,
      &domains_[domain_index]
           .slot_table[(slot.address.segment * rows_per_segment + slot.row) * kSlotRowBytes],
      sizeof(row));
  return row.state != SlotState::kFree && row.generation == slot.generation;
}

std::byte* World::SlotMemory(uint32_t domain_index, const SlotAddress& address) {
  SimArenaMemory& arena = *domains_[domain_index].arena;
  const uint32_t slab = address.segment - protocol::kDeviceSegmentFirst;
  if (domains_[domain_index].device && slab < kSlabs) {
    return &domains_[domain_index].slabs[slab * kSlabBytes + address.page * kArenaPageBytes];
  }
  if (address.segment < kSegmentsPerDomain && arena.is_populated(address.segment)) {
    return arena.SegmentBase(address.segment) + uint64_t{address.page} * kArenaPageBytes;
  }
  Fail("handed out a slot in a segment that is not there");
  nowhere_.resize(kSegmentBytes);
  return nowhere_.data();
}

// Whatever other threads of the daemon have finished.
void World::RunBackground() {
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    Domain& domain = domains_[d];
    if (domain.arena->has_pending() && background_random_.Pick(3) == 0) {
      const auto done = domain.arena->Finish();
      if (done.is_populate) {
        store_->events().OnSegmentPopulated(d, done.segment, Status::Ok());
      } else {
        store_->events().OnSegmentPunched(d, done.segment, Status::Ok());
      }
    }
    if (domain.memory_tier) domain.memory_tier->RunUntil(clock_.NowUs());
    if (domain.shared) RunServer(domain);
    if (!domain.fault_tier) continue;
    if (background_random_.Pick(50) == 0) domain.fault_tier->ReleaseHung();
    if (dice_.Happens(Kind::kTierOff, 2'500)) domain.fault_tier->SwitchOff();
    if (background_random_.Pick(40) == 0) domain.fault_tier->SwitchOn();
  }
  RunDrives();
  while (offload_.has_pending() && background_random_.Pick(2) == 0) {
    OffloadId id = 0;
    const std::vector<Checksum> roots = offload_.Finish(&id);
    store_->events().OnChecksumsDone(id, roots);
  }
}

void World::Advance(uint64_t us) {
  world_us_ += us;
  if (steps_ >= stalled_until_step_) clock_.Advance(us);
  DeliverDue();
  RunBackground();
  if (store_->events().NextTimerUs() <= clock_.NowUs()) store_->events().OnTimer();
  sessions_->Flush();
  while (sessions_->has_work()) sessions_->OnTurn();
  for (const SessionId session : std::exchange(resumed_, {})) {
    if (closed_.contains(session)) continue;
    auto& held_back = held_back_[session];
    if (!held_back.empty()) held_back.pop_front();
    while (!held_back.empty() && sessions_->OnBytes(session, held_back.front())) {
      held_back.pop_front();
    }
  }
  CheckPopulated();
}

// What is above a cap that was lowered only ever falls.
void World::CheckPopulated() {
  uint32_t held = 0;
  for (const Domain& domain : domains_) held += domain.arena->held_count();
  if (held > segments_held_max_) Fail("more segments populated than the cap allows");
  segments_held_max_ = std::max(held, tuned_.segments_total);
}

void World::ActOnce() {
  if (!ghosts_.empty() && random_.Pick(3) == 0) return HauntOnce();
  const uint64_t turn = steps_ / options_.swarm.value(Kind::kBurst);
  SimProcess& client = *processes_[HashOf(options_.seed, kOfActors, turn) % processes_.size()];
  Trace(uint64_t{client.options().number} << 8 | static_cast<uint64_t>(client.life));
  switch (client.life) {
    case SimProcess::Life::kRunning:
      if (dice_.Happens(Kind::kKills, 3'300)) return Kill(client);
      if (MaybeGarble(client, 1'000)) return;
      if (dice_.Happens(Kind::kStops, 5'000)) {
        client.life = SimProcess::Life::kStopped;
        return;
      }
      return client.Act();
    case SimProcess::Life::kStopped:
      if (random_.Pick(12) != 0) return;
      client.StrayWrite();  // it goes on in the middle of its copy, before it looks at its inbox
      client.life = SimProcess::Life::kRunning;
      return;
    case SimProcess::Life::kDying:
      return client.StrayWrite();
    case SimProcess::Life::kGone: {
      const SimProcess::Options options = client.options();
      processes_[options.number] = std::make_unique<SimProcess>(options);
      Connect(options.number);
      MaybeGarble(*processes_[options.number], 20'000);
      return;
    }
  }
}

void World::BeginStep(bool is_live) {
  dice_.BeginStep(steps_, is_live);
  random_ = SimRandom(dice_.SeedOf(kOfProcesses));
  background_random_ = SimRandom(dice_.SeedOf(kOfBackground));
  time_random_ = SimRandom(dice_.SeedOf(kOfTime));
  if (options_.step != nullptr) *options_.step = static_cast<uint32_t>(steps_);
}

// Most steps are microseconds apart; some let deadlines, leases and blocks run out.
uint64_t World::DrawStepUs() {
  const bool is_quick = time_random_.Pick(100) < options_.swarm.value(Kind::kQuickSteps);
  const uint64_t us = time_random_.Pick(is_quick ? 200 : 4'000);
  return dice_.Happens(Kind::kTimeLeaps, 20'000) ? time_random_.Pick(900'000) : us;
}

void World::Step() {
  ++steps_;
  const bool is_live = options_.acts.contains(static_cast<uint32_t>(steps_));
  BeginStep(is_live);
  if (is_live) ActOnce();
  MaybeReload();
  MaybeSetClocks();
  Advance(DrawStepUs());
  const uint64_t steps_since_check = steps_ % kFullWalkEvery;
  store_->CheckInvariants(steps_since_check == 0 ? CheckScope::kFull : CheckScope::kIncremental);
  router_check_due_ |= steps_since_check == 0;
  // While the clock stands, and a few turns behind it, a router is not told what is late.
  if (router_check_due_ && steps_ >= stalled_until_step_ + kStepsToTell) {
    CheckRouter();
    router_check_due_ = false;
  }
  if (options_.resizes_drives && dice_.Happens(Kind::kDriveResizes, 6'700)) ResizeDrives();
  if (has_drives()) CheckShares();
  MaybeLoseEvents(steps_since_check);
  MaybeCrash();
}

std::string World::Run() {
  for (uint32_t e = 0; e < options_.events && failure_.empty(); ++e) Step();
  if (failure_.empty()) LetEverybodyGo();
  if (failure_.empty()) CheckRest();
  return failure_;
}

// Everybody who still lives releases what it holds; then all end, in good order or by a kill.
void World::LetEverybodyGo() {
  stalled_until_step_ = 0;
  for (Domain& domain : domains_) {
    if (domain.drive) domain.drive->Heal();
  }
  CloseOperators();
  if (!router_.is_well()) LetRouterCatchUp();
  for (auto& process : processes_) {
    if (process->life == SimProcess::Life::kStopped) process->life = SimProcess::Life::kRunning;
    if (process->life == SimProcess::Life::kRunning) process->ReleaseAll();
  }
  for (int i = 0; i < 50; ++i) Advance(100);
  for (auto& process : processes_) {
    if (process->life == SimProcess::Life::kRunning) Kill(*process);
  }
  const uint64_t end_us = clock_.NowUs() + kRestUs;
  while (clock_.NowUs() < end_us && failure_.empty()) {
    for (Domain& domain : domains_) {
      if (domain.fault_tier) domain.fault_tier->ReleaseHung();
      if (domain.shared) domain.shared->is_away = domain.shared->is_full = false;
    }
    Advance(200'000);
    store_->CheckInvariants(CheckScope::kIncremental);
  }
  store_->CheckInvariants(CheckScope::kFull);
}

// At rest only Sealed blocks hold memory; once they are evicted nothing does.
void World::CheckRest() {
  if (has_drives()) {
    CheckShares();
    if (!AreDrivesDown()) {
      Fail("the drives never come down to what they may hold" + DescribeShares());
    }
  }
  for (const DomainStats& stats : store_->Stats()) {
    if (stats.lease_count != 0) Fail("a lease is left at rest in " + stats.name);
    if (stats.fenced_slot_count != 0 || stats.fenced_bytes != 0) {
      Fail("a fence is left at rest in " + stats.name);
    }
    if (stats.reserved_count != 0) Fail("a Reserved block is left at rest in " + stats.name);
    if (stats.inherited_bytes != 0) Fail("inherited slots are left at rest in " + stats.name);
    if (stats.session_count != 0) Fail("a session is left at rest in " + stats.name);
  }
  EvictEverything();
  store_->CheckInvariants(CheckScope::kFull);
  if (!router_.view().empty()) Fail("a router believes in a block after all were evicted");
  for (const DomainStats& stats : store_->Stats()) {
    if (stats.block_count != 0) Fail("a block is left after evicting all in " + stats.name);
    if (stats.slot_bytes_used != 0) Fail("leaked slots in " + stats.name);
    for (const auto& tier : stats.lower_tiers) {
      if (tier.stats.used_bytes != 0) Fail("leaked extents below " + stats.name);
    }
  }
  if (has_successors()) CheckNothingComesBack();
}

// An operator's last word, through a session of each domain.
void World::EvictEverything() {
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    const SessionId session = next_session_id_++;
    if (!store_->sessions().Open({.id = session, .domain_index = d, .uid = 0}).ok()) {
      return Fail("no session for the operator");
    }
    for (const std::vector<BlockKey>& chain : chains_) {
      const KeysQuery unpin{.session = session,
                            .group_index = kAllGroups,
                            .flags = protocol::kPinClear,
                            .keys = chain};
      protocol::PinReply unpinned;
      if (!store_->operators().Pin(unpin, &unpinned).ok()) return Fail("Pin refused");
    }
    KeysQuery all{.session = session, .group_index = kAllGroups, .flags = protocol::kEvictSubtree};
    protocol::EvictReply reply;
    EvictOperation evict = store_->operators().Evict(&reply);
    for (Progress progress = Progress::kStays; progress != Progress::kDone;) {
      const Result<Progress> stepped = evict.Step(all);
      if (!stepped.ok()) return Fail("Evict refused");
      progress = *stepped;
    }
    store_->sessions().ProofOfDeath(session);
  }
  const uint64_t end_us = clock_.NowUs() + kRestUs;
  while (clock_.NowUs() < end_us) {
    for (Domain& domain : domains_) {
      if (domain.fault_tier) domain.fault_tier->ReleaseHung();
      if (domain.shared) domain.shared->is_away = domain.shared->is_full = false;
    }
    Advance(200'000);
  }
}

void World::AddCounters(Coverage* sum) const {
  for (const DomainStats& stats : store_->Stats()) {
    sum->blocks_sealed += stats.blocks_sealed;
    sum->blocks_evicted += stats.blocks_evicted;
    sum->acquire_blocks_hit += stats.acquire_blocks_hit();
    sum->promotions += stats.promotions;
    sum->leases_revoked += stats.leases_revoked;
    sum->commits_gone += stats.commits_gone;
    sum->scrub_members += stats.scrub_members;
    sum->relocated += stats.blocks_relocated;
    sum->blocks_adopted += stats.blocks_adopted;
    sum->blocks_refuted += stats.blocks_refuted;
    if (stats.shared) sum->blocks_fetched += stats.shared->blocks_fetched;
    if (stats.shared) sum->blocks_given += stats.shared->blocks_stored;
    if (!stats.device) continue;
    sum->orders_issued += stats.device->orders.issued;
    sum->orders_reissued += stats.device->orders.reissued;
    sum->orders_wrong += stats.device->orders.wrong;
    sum->orders_expired += stats.device->orders.expired;
  }
}

Coverage World::coverage() const {
  Coverage sum = lived_;
  AddCounters(&sum);
  sum.parts_judged = oracle_.parts_judged();
  sum.parts_told = oracle_.parts_told();
  sum.parts_claimed_wrongly = oracle_.parts_claimed_wrongly();
  sum.slots_on_device = oracle_.slots_on_device();
  sum.restarts = restarts_;
  sum.events_told = router_.event_count();
  sum.router_checks = router_checks_;
  sum.slabs_given = slabs_given_;
  sum.shrinks = shrinks_;
  sum.forgotten_checked = forgotten_us_.size();
  sum.messages_garbled = messages_garbled_;
  sum.garblers_refused = garblers_refused_;
  sum.reloads = reloads_;
  sum.stalls = stalls_;
  sum.wall_jumps = wall_jumps_;
  sum.blocks_restored = blocks_restored_;
  sum.survivors_checked = survival_.survivors_checked();
  sum.erased_checked = survival_.erased_checked();
  return sum;
}

}  // namespace terrace::sim
