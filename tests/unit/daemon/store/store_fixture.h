// A Store with everything around it faked, and verbs short enough to tell a story in a few lines.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/store/store.h"
#include "sim/fakes.h"
#include "sim/fault_tier.h"
#include "sim/memory_tier.h"
#include "terrace/checksum.h"
#include "tiers/arena/slot_table.h"

namespace terrace {

inline constexpr uint64_t kSlotBytes = 256 * kKiB;
inline constexpr uint32_t kSlotsPerSegment = 8;  // 2 MiB segments

struct WorldOptions {
  uint32_t domain_count = 1;
  uint32_t segments_max = 1;  // of each domain
  uint32_t segments_guaranteed = 0;
  uint32_t segments_lent_max = 0;
  uint32_t segments_total = 0;  // 0: all that all domains may have
  uint32_t lower_tier_count = 0;
  uint64_t lower_capacity_bytes = 16 * kMiB;
  uint64_t fenced_bytes_max = 1 * kGiB;
  uint32_t blocks_max = 4096;
  uint32_t groups_max = 256;
  uint64_t scrub_bytes_per_second = 0;
  uint64_t scrub_interval_us = 0;
  std::function<std::unique_ptr<sim::MemoryTier>(const sim::MemoryTier::Options&)> make_tier =
      [](const sim::MemoryTier::Options& tier) { return std::make_unique<sim::MemoryTier>(tier); };
  uint32_t lease_blocks_per_session_max = 4096;
  uint64_t lease_blocks_max = 1 << 24;
  std::string eviction_policy = "lru";  // of every tier
  KvEventSink* kv_events = nullptr;
  SharedUse shared;  // by the first domain
  DeviceUse device;  // likewise
  uint64_t part_read_bytes_min = 256 * kKiB;
  uint32_t read_ahead_blocks = 0;
};

// Remembers groups as long as the test lasts.
class PlainGroupFiles final : public GroupFiles {
 public:
  void Keep(uint32_t domain_index, const SpaceGroupSpec& spec) override {
    kept.emplace_back(domain_index, spec);
  }
  void Drop(uint32_t domain_index, const GroupId& id) override {
    std::erase_if(kept, [&](const auto& group) {
      return group.first == domain_index && group.second.Id() == id;
    });
  }
  State StateOf(uint32_t domain_index, const GroupId& id) const override {
    const bool is_kept = std::ranges::any_of(kept, [&](const auto& group) {
      return group.first == domain_index && group.second.Id() == id;
    });
    if (is_kept && coming.contains(id)) return State::kComing;
    return is_kept ? state_of_kept : State::kFailed;
  }
  std::set<GroupId> coming;
  State state_of_kept = State::kKept;
  std::vector<std::pair<uint32_t, SpaceGroupSpec>> kept;
};

// One member's Space of `part_count` parts that together fill a slot of kSlotBytes.
inline SpaceSpec TestSpace(uint32_t rank, uint32_t window_blocks = 0, uint32_t part_count = 1) {
  SpaceSpec spec;
  spec.model = std::string("test");
  spec.revision = std::string("r1");
  spec.dtype = std::string("bf16");
  spec.layers = 4;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = std::string("nhd");
  spec.block_tokens = 16;
  spec.tp_rank = rank;
  spec.tp_size = 8;
  if (window_blocks > 0) {
    spec.attention = AttentionKind::kSliding;
    spec.window_tokens = window_blocks * spec.block_tokens;
    spec.attention_group = 1;
  }
  spec.part_bytes.assign(part_count, kSlotBytes / part_count);
  return spec;
}

inline SpaceGroupSpec TestGroup(const std::string& name, std::vector<SpaceSpec> spaces) {
  SpaceGroupSpec group;
  group.name = name;
  for (SpaceSpec& space : spaces) {
    space.model = name;
    group.members.push_back({.spec = std::move(space)});
  }
  return group;
}

class StoreWorld {
 public:
  explicit StoreWorld(const WorldOptions& options = {}) : options_(options) {
    for (uint32_t i = 0; i < options.domain_count * options.lower_tier_count; ++i) {
      const uint32_t t = i % options.lower_tier_count;
      tiers.push_back(options.make_tier({.kind = t == 0 ? TierKind::kNvme : TierKind::kRedis,
                                         .is_persistent = t == 0,
                                         .capacity_bytes = options.lower_capacity_bytes,
                                         .seed = t + 1}));
      faults.push_back(std::make_unique<sim::FaultTier>(*tiers.back(), t + 100));
      tiers.back()->SetListener(faults.back().get());
    }
    MakeStore();
    Run();
  }
  ~StoreWorld() { Check(); }

  // A store above the tiers there are, its DRAM cold or as the last one left it.
  enum class Dram { kCold, kKept };
  void MakeStore(Dram dram = Dram::kCold) {
    const WorldOptions& options = options_;
    StoreOptions store_options;
    uint32_t segments_total = 0;
    if (dram == Dram::kCold) {
      arenas.clear();
      slot_tables_.clear();
    }
    secrets_.clear();
    for (uint32_t d = 0; d < options.domain_count; ++d) {
      DomainOptions domain;
      if (dram == Dram::kCold) {
        arenas.push_back(std::make_unique<sim::PlainArena>(kSegmentBytesMin, options.segments_max));
        slot_tables_.emplace_back(SlotTableBytes(kSegmentBytesMin, options.segments_max));
      }
      sim::PlainArena::Work abandoned;
      while (arenas[d]->TakeWork(&abandoned)) {
      }
      for (uint32_t segment = 0; segment < options.segments_max; ++segment) {
        if (arenas[d]->IsPopulated(segment)) domain.populated_segments.push_back(segment);
      }
      domain.name = std::string(1, static_cast<char>('a' + d));
      domain.segment_bytes = kSegmentBytesMin;
      domain.segments_max = options.segments_max;
      domain.segments_guaranteed = options.segments_guaranteed;
      domain.segments_lent_max = options.segments_lent_max;
      domain.arena = arenas[d].get();
      domain.slot_table = slot_tables_[d];
      domain.table_seed = TableSeed(d);
      for (size_t i = 0; i < domain.secret.size(); ++i) domain.secret[i] = std::byte(i + d);
      domain.kv_events = options.kv_events;
      domain.scrub_bytes_per_second = options.scrub_bytes_per_second;
      domain.scrub_interval_us = options.scrub_interval_us;
      for (uint32_t t = 0; t < options.lower_tier_count; ++t) {
        domain.lower_tiers.push_back(faults[d * options.lower_tier_count + t].get());
      }
      if (d == 0) domain.shared = options.shared;
      if (d == 0) domain.device = options.device;
      secrets_.push_back(domain.secret);
      store_options.domains.push_back(domain);
      segments_total += options.segments_max;
    }
    store_options.segments_total =
        options.segments_total == 0 ? segments_total : options.segments_total;
    store_options.fenced_bytes_max = options.fenced_bytes_max;
    store_options.blocks_max = options.blocks_max;
    store_options.groups_max = options.groups_max;
    store_options.group_files = &group_files;
    store_options.eviction_policy = options.eviction_policy;
    store_options.lower_eviction_policy = options.eviction_policy;
    store_options.read_ahead_blocks = options.read_ahead_blocks;
    store_options.part_read_bytes_min = options.part_read_bytes_min;
    store_options.lease_blocks_per_session_max = options.lease_blocks_per_session_max;
    store_options.lease_blocks_max = options.lease_blocks_max;
    made = store_options;
    store = std::make_unique<Store>(store_options, clock, random, offload, listener);
    for (const auto& tier : faults) tier->SetListener(&store->events());
  }

  // kill -9, and a successor that finds what the first tier of each domain still has.
  std::vector<RestoreSummary> Restart() {
    Kill();
    MakeStore();
    const std::vector<RestoreSummary> summaries = Restore();
    Run();
    return summaries;
  }
  // kill -9, and a successor of the only domain that finds DRAM, too. `sessions` live on.
  AdoptSummary RestartWarm(const std::vector<SessionId>& sessions = {}) {
    Kill();
    MakeStore(Dram::kKept);
    Restore();
    const AdoptSummary summary = store->restoration().AdoptSlots(0, sessions);
    Check();
    return summary;
  }
  void Kill() {
    store.reset();
    offload = {};
  }
  std::vector<RestoreSummary> Restore() {
    std::vector<RestoreSummary> summaries;
    for (const auto& [domain, spec] : group_files.kept) {
      EXPECT_TRUE(store->restoration().RestoreGroup(domain, spec).ok());
    }
    if (tiers.empty()) return summaries;
    for (uint32_t d = 0; d < options_.domain_count; ++d) {
      sim::FaultTier& fault = *faults[d * options_.lower_tier_count];
      sim::MemoryTier& tier = *tiers[d * options_.lower_tier_count];
      fault.Forget();
      tier.KillProcess();
      tier.Restore([&](const BlockRecord& record, const Extent& extent) {
        return fault.OnRestored(extent, store->restoration().RestoreCopy(d, 0, record, extent));
      });
      summaries.push_back(store->restoration().FinishRestore(d));
    }
    return summaries;
  }

  static uint64_t TableSeed(uint32_t domain) { return 77 + domain; }
  std::span<SlotRow> rows(uint32_t domain = 0) {
    return {reinterpret_cast<SlotRow*>(slot_tables_[domain].data()),
            slot_tables_[domain].size() / kSlotRowBytes};
  }
  WorldOptions& options() { return options_; }  // of the next store
  void Check() { store->CheckInvariants(CheckScope::kFull); }

  // Everything that is due now, and whatever follows from it.
  void Run() {
    bool is_busy = true;
    while (is_busy) {
      is_busy = RunArenas();
      while (!holds_checksums && offload.RunOne(store.get())) is_busy = true;
      for (const auto& tier : tiers) {
        if (holds_transfers) continue;
        is_busy |= tier->NextCompletionUs() <= clock.NowUs();
        tier->RunUntil(clock.NowUs());
      }
      if (store->events().NextTimerUs() <= clock.NowUs()) {
        store->events().OnTimer();
        is_busy = true;
      }
      Check();
    }
  }
  bool RunArenas() {
    bool is_busy = false;
    for (uint32_t d = 0; d < arenas.size(); ++d) {
      sim::PlainArena::Work work;
      while (!holds_arena && arenas[d]->TakeWork(&work)) {
        is_busy = true;
        if (work.is_punch) {
          store->events().OnSegmentPunched(d, work.segment, Status::Ok());
        } else {
          store->events().OnSegmentPopulated(d, work.segment, Status::Ok());
        }
      }
    }
    return is_busy;
  }
  void Advance(uint64_t by_us) {
    const uint64_t until_us = clock.NowUs() + by_us;
    Run();
    while (clock.NowUs() < until_us) {
      uint64_t next_us = std::min(until_us, store->events().NextTimerUs());
      for (const auto& tier : tiers) {
        if (!holds_transfers) next_us = std::min(next_us, tier->NextCompletionUs());
      }
      clock.AdvanceTo(std::max(next_us, clock.NowUs() + 1));
      Run();
    }
  }

  // ---- verbs ----
  SessionId Open(uint32_t domain = 0, uint32_t uid = 1) {
    const SessionId id = ++last_session_;
    EXPECT_TRUE(store->sessions().Open({.id = id, .domain_index = domain, .uid = uid}).ok());
    domain_of_session_.resize(id + 1);
    domain_of_session_[id] = domain;
    return id;
  }
  uint32_t OpenGroup(SessionId session, const SpaceGroupSpec& spec) {
    OpenedGroup group;
    const Error opened = store->sessions().OpenGroup(session, spec, &group);
    EXPECT_TRUE(opened.ok()) << opened.sentence();
    if (!opened.ok()) return 0;
    if (group.group_index >= specs_.size()) specs_.resize(group.group_index + 1);
    specs_[group.group_index] = spec;
    Run();
    return group.group_index;
  }
  uint32_t OpenSimple(SessionId session) {
    return OpenGroup(session, TestGroup("simple", {TestSpace(0)}));
  }

  static std::vector<BlockKey> Keys(uint32_t count, uint64_t chain = 1) {
    std::vector<BlockKey> keys;
    for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = chain * 100'000 + i, .high = 9});
    return keys;
  }
  KeysQuery Query(SessionId session, uint32_t group, const std::vector<BlockKey>& keys,
                  uint32_t flags = 0) {
    return {.session = session,
            .request_id = ++last_request_,
            .group_index = group,
            .flags = flags,
            .member_mask = ~uint64_t{0},
            .keys = keys};
  }

  ReserveResult Reserve(const KeysQuery& query) {
    ReserveResult result;
    ReserveOperation reserve = store->storing().Reserve(&result);
    Result<Progress> stepped = reserve.Step(query);
    for (; stepped.ok() && *stepped == Progress::kStays; stepped = reserve.Step(query)) {
      store->events().OnTimer();
    }
    EXPECT_TRUE(stepped.ok());
    Check();
    return result;
  }
  ReserveResult Reserve(SessionId session, uint32_t group, const std::vector<BlockKey>& keys) {
    return Reserve(Query(session, group, keys));
  }
  AcquireResult Acquire(const KeysQuery& query) {
    AcquireResult result;
    EXPECT_TRUE(store->prefixes().Acquire(&result).Step(query).ok());
    Check();
    return result;
  }
  AcquireResult Acquire(SessionId session, uint32_t group, const std::vector<BlockKey>& keys,
                        uint32_t flags = 0) {
    return Acquire(Query(session, group, keys, flags));
  }
  // As for a session that reads no slots itself: the short way first.
  AcquireResult AcquireUnread(SessionId session, uint32_t group,
                              const std::vector<BlockKey>& keys) {
    KeysQuery query = Query(session, group, keys);
    query.member_mask = 0;
    AcquireResult result;
    AcquireOperation acquire = store->prefixes().Acquire(&result);
    EXPECT_TRUE(acquire.StepReady(query).ok());
    Check();
    if (const uint32_t held_count = result.walk.walked_count; held_count < keys.size()) {
      query.keys = query.keys.subspan(held_count);
      query.first_position = held_count;
      if (held_count > 0) query.parent = keys[held_count - 1];
      EXPECT_TRUE(acquire.Step(query).ok());
    }
    Check();
    return result;
  }
  // To its end; kOk, or why it failed.
  Status Join(const JoinQuery& query, JoinResult* result) {
    Result<JoinOperation> join = store->leases().Join(query, result);
    if (!join.ok()) return join.status();
    Result<Progress> progress = join->Step();
    while (progress.ok() && *progress != Progress::kDone) progress = join->Step();
    Check();
    return progress.status();
  }
  JoinResult Join(SessionId session, const protocol::JoinRequest& request) {
    JoinResult result;
    EXPECT_TRUE(Join({session, ++last_request_, request}, &result).ok());
    return result;
  }
  AcquireResult JoinRead(SessionId session, uint32_t group, const LeaseToken& token) {
    return Join(session, {.token = token, .member_mask = ~uint64_t{0}, .group_handle = group}).read;
  }
  protocol::EvictReply Evict(const KeysQuery& query) {
    protocol::EvictReply reply;
    EvictOperation evict = store->operators().Evict(&reply);
    Result<Progress> progress = evict.Step(query);
    while (progress.ok() && *progress != Progress::kDone) progress = evict.Step(query);
    EXPECT_TRUE(progress.ok());
    return reply;
  }
  void Reset(SessionId session, uint32_t group) {
    ResetOperation reset = store->operators().Reset(session, group);
    Result<Progress> progress = reset.Step();
    while (progress.ok() && *progress != Progress::kDone) progress = reset.Step();
    EXPECT_TRUE(progress.ok());
  }
  PrefixMatch Match(SessionId session, uint32_t group, const std::vector<BlockKey>& keys) {
    const KeysQuery query = Query(session, group, keys);
    PrefixMatch result;
    EXPECT_TRUE(store->prefixes().Match(&result).Step(query).ok());
    return result;
  }
  uint32_t MatchCount(SessionId session, uint32_t group, const std::vector<BlockKey>& keys) {
    return Match(session, group, keys).reply.block_count;
  }

  // The bytes that a writer puts into a part: different for whatever can be told apart.
  static std::vector<std::byte> Content(const BlockKey& key, uint32_t member, uint32_t part,
                                        uint64_t byte_count) {
    std::vector<std::byte> bytes(byte_count);
    uint64_t word = (key.low * 0x9E3779B97F4A7C15) ^ (member * 1000 + part);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      word = word * 6364136223846793005 + 1442695040888963407;
      std::memcpy(&bytes[i], &word, 8);
    }
    return bytes;
  }
  std::byte* Address(SessionId session, const SlotAddress& slot) {
    return arenas[domain_of_session_[session]]->SegmentBase(slot.segment) +
           slot.page * kArenaPageBytes;
  }

  // What a commit of one member's parts would say; writes the bytes.
  struct Written {
    protocol::CommitEntry entry;
    std::vector<Checksum> checksums;
  };
  Written Write(SessionId session, uint32_t group, const BlockKey& key, uint32_t key_index,
                uint32_t member, CommitId commit_id, const SlotRef& slot) {
    const SpaceSpec& spec = specs_[group].members[member].spec;
    Written written{.entry = {.key_index = key_index,
                              .member = static_cast<uint16_t>(member),
                              .part_count = static_cast<uint16_t>(spec.part_bytes.size()),
                              .row = slot.row,
                              .segment = slot.address.segment,
                              .generation = slot.generation}};
    for (uint32_t part = 0; part < spec.part_bytes.size(); ++part) {
      const std::vector<std::byte> bytes = Content(key, member, part, spec.part_bytes[part]);
      std::memcpy(Address(session, slot.address) + spec.part_offset_bytes(part), bytes.data(),
                  bytes.size());
      const uint64_t seed = ChecksumSeed(
          secrets_[domain_of_session_[session]],
          {.space = spec.Id(), .key = key, .commit_id = commit_id, .part_index = part});
      written.checksums.push_back(ChecksumPart(bytes, seed));
    }
    return written;
  }
  // Writes and commits every reserved block of a result, all members; checksums unless told not to.
  enum class Checksums { kClient, kDaemon };
  CommitResult CommitAll(SessionId session, uint32_t group, const std::vector<BlockKey>& keys,
                         const ReserveResult& reserved, Checksums checksums = Checksums::kClient,
                         uint32_t flags = 0, const protocol::Hints& hints = {}) {
    protocol::CommitRequest request{.token = reserved.reply.token, .flags = flags, .hints = hints};
    std::vector<protocol::CommitEntry> entries;
    std::vector<Checksum> roots;
    const uint32_t members = static_cast<uint32_t>(std::popcount(reserved.reply.member_mask));
    size_t slot = 0;
    for (uint32_t i = 0; i < reserved.keys.size(); ++i) {
      if (reserved.keys[i].status != 0) continue;
      for (uint32_t m = 0; m < members; ++m) {
        Written written = Write(session, group, keys[i], i, m, reserved.keys[i].commit_id,
                                reserved.slots[slot++]);
        if (checksums == Checksums::kClient) {
          written.entry.flags |= protocol::kCommitHasChecksums;
          roots.insert(roots.end(), written.checksums.begin(), written.checksums.end());
        }
        entries.push_back(written.entry);
      }
    }
    return Commit(session, request, entries, roots);
  }
  CommitResult Commit(SessionId session, protocol::CommitRequest request,
                      const std::vector<protocol::CommitEntry>& entries,
                      const std::vector<Checksum>& checksums = {}) {
    request.entry_count = static_cast<uint32_t>(entries.size());
    CommitResult result;
    EXPECT_TRUE(store->storing().Commit(session, request, entries, checksums, &result).ok());
    Check();
    return result;
  }
  // Reserve, write, commit and release; the number of blocks that became visible.
  uint32_t Put(SessionId session, uint32_t group, const std::vector<BlockKey>& keys,
               const protocol::Hints& commit_hints = {}) {
    const ReserveResult reserved = Reserve(session, group, keys);
    if (reserved.reply.token.is_zero()) return 0;
    return CommitAll(session, group, keys, reserved, Checksums::kClient, protocol::kCommitRelease,
                     commit_hints)
        .reply.sealed_count;
  }
  // True if the slot holds what Write() put there.
  bool Holds(SessionId session, uint32_t group, const BlockKey& key, uint32_t member,
             const SlotAddress& slot) {
    const SpaceSpec& spec = specs_[group].members[member].spec;
    for (uint32_t part = 0; part < spec.part_bytes.size(); ++part) {
      const std::vector<std::byte> bytes = Content(key, member, part, spec.part_bytes[part]);
      if (std::memcmp(Address(session, slot) + spec.part_offset_bytes(part), bytes.data(),
                      bytes.size()) != 0) {
        return false;
      }
    }
    return true;
  }
  StatusCode Release(SessionId session, const LeaseToken& token) {
    const Status status = store->leases().Release(session, {.token = token});
    Check();
    return status.code();
  }
  DomainStats Stats(uint32_t domain = 0) { return store->Stats()[domain]; }
  uint64_t last_request() const { return last_request_; }
  static StatusCode CodeOf(const protocol::ReservedKey& key) {
    return static_cast<StatusCode>(key.status);
  }

  sim::VirtualClock clock;
  sim::SeededRandom random{1};
  sim::PlainOffload offload;
  sim::RecordingListener listener;
  PlainGroupFiles group_files;
  std::vector<std::unique_ptr<sim::PlainArena>> arenas;
  std::vector<std::unique_ptr<sim::MemoryTier>> tiers;  // domain by domain
  std::vector<std::unique_ptr<sim::FaultTier>> faults;  // around each of them
  std::unique_ptr<Store> store;
  StoreOptions made;  // what it was made with
  bool holds_checksums = false;
  bool holds_transfers = false;
  bool holds_arena = false;

 private:
  WorldOptions options_;
  std::vector<std::vector<std::byte>> slot_tables_;
  std::vector<DomainSecret> secrets_;
  std::vector<SpaceGroupSpec> specs_;
  std::vector<uint32_t> domain_of_session_;
  SessionId last_session_ = 0;
  uint64_t last_request_ = 0;
};

}  // namespace terrace
