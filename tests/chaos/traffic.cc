#include "chaos/traffic.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <thread>
#include <utility>

#include "chaos/roles.h"

namespace terrace::chaos {

namespace {

constexpr size_t kKeptLeasesMax = 4;
constexpr auto kHoldPatience = std::chrono::seconds(30);
constexpr auto kHoldPause = std::chrono::milliseconds(1);

uint64_t NowUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Token `index` of a prompt: the same within a family for its common blocks, else the prompt's own.
uint32_t Token(uint32_t prompt, uint32_t index) {
  const bool is_common = index < kFamilyBlocks * kBlockTokens;
  const uint64_t owner = is_common ? prompt / kPromptsPerFamily : uint64_t{prompt} + (1u << 31);
  return static_cast<uint32_t>(MixBits(MixBits(owner) + index));
}

std::vector<uint64_t> PartBytes(uint64_t small_bytes) {
  if (small_bytes != 0) return {small_bytes, small_bytes + 1};
  return {std::begin(kPartBytes), std::end(kPartBytes)};
}

SpaceSpec ChaosSpace(uint32_t rank, uint64_t small_bytes) {
  return {.model = "chaos",
          .revision = "r1",
          .dtype = "bf16",
          .layers = 2,
          .kv_heads = 1,
          .head_size = 64,
          .layout = "nhd",
          .block_tokens = kBlockTokens,
          .tp_rank = rank,
          .tp_size = kMembers,
          .part_bytes = PartBytes(small_bytes)};
}

}  // namespace

SpaceGroupSpec ChaosGroup(uint64_t small_bytes) {
  SpaceGroupSpec group;
  group.name = "chaos";
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    group.members.push_back({.spec = ChaosSpace(rank, small_bytes)});
  }
  return group;
}

Traffic::Options Traffic::ReadOptions(const Arguments& arguments) {
  Options options;
  options.socket_path = arguments.Text("socket", "");
  options.client_name = arguments.Text("name", options.client_name);
  options.prompt_first = static_cast<uint32_t>(arguments.Number("prompt-first", 0));
  options.prompt_count = static_cast<uint32_t>(arguments.Number("prompts", options.prompt_count));
  options.blocks_max = static_cast<uint32_t>(arguments.Number("blocks", options.blocks_max));
  options.deadline_us = arguments.Number("deadline-us", options.deadline_us);
  options.seed = arguments.Number("seed", options.seed);
  options.die_in = arguments.Number("die-in", options.die_in);
  options.die_after_us = arguments.Number("die-after-us", options.die_after_us);
  options.history_path = arguments.Text("history", "");
  options.small_bytes = arguments.Number("small-bytes", 0);
  return options;
}

Traffic::Traffic(const Options& options, Progress* progress)
    : options_(options),
      progress_(progress),
      spec_(ChaosGroup(options.small_bytes)),
      random_state_(MixBits(options.seed)),
      part_bytes_(PartBytes(options.small_bytes)),
      part_buffer_(part_bytes_.back()),
      history_(options.history_path) {}

bool Traffic::Connect(uint64_t deadline_us) {
  std::string why;
  auto client = Client::Create({.socket_path = options_.socket_path,
                                .client_name = options_.client_name,
                                .reconnect_backoff_ms_max = 50},
                               &why);
  if (!client.ok()) {
    std::fprintf(stderr, "terrace-chaos: no client: %s\n", why.c_str());
    return false;
  }
  client_ = std::move(client).value();
  if (const Status status = client_->WaitConnected(deadline_us); !status.ok()) {
    std::fprintf(stderr, "terrace-chaos: not connected to %s after %" PRIu64 " us: %s\n",
                 options_.socket_path.c_str(), deadline_us, client_->last_error().c_str());
    return false;
  }
  auto group = client_->Open(spec_, (uint64_t{1} << kMembers) - 1, deadline_us);
  if (!group.ok()) {
    std::fprintf(stderr, "terrace-chaos: open: %s\n", client_->last_error().c_str());
    return false;
  }
  group_ = *group;
  NoteBoot();
  return true;
}

void Traffic::Enter(Phase phase) {
  progress_->phase.store(static_cast<uint64_t>(phase), std::memory_order_relaxed);
  if (static_cast<uint64_t>(phase) != options_.die_in) return;
  const auto after_us = static_cast<suseconds_t>(options_.die_after_us);
  const itimerval once = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = after_us}};
  signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
  setitimer(ITIMER_REAL, &once, nullptr);
  options_.die_in = 0;
}

uint64_t Traffic::Draw(uint64_t bound) {
  random_state_ = MixBits(random_state_);
  return random_state_ % bound;
}

std::span<const BlockKey> Traffic::Keys(uint32_t prompt, uint32_t block_count) {
  std::vector<BlockKey>& keys = keys_by_prompt_[prompt];
  if (keys.size() < block_count) {
    const auto hasher = client_->Hasher(group_);
    if (!hasher.ok()) return {};
    std::vector<uint32_t> tokens(size_t{block_count} * kBlockTokens);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = Token(prompt, i);
    keys.clear();
    hasher->AppendKeys(tokens, &keys);
  }
  return std::span<const BlockKey>(keys).first(block_count);
}

template <typename Call>
auto Traffic::Timed(Phase phase, Call call) {
  Enter(phase);
  const uint64_t began_us = NowUs();
  auto answer = call();
  const uint64_t call_us = NowUs() - began_us;
  Enter(Phase::kIdle);
  Count(progress_->statuses[static_cast<size_t>(answer.code())]);
  if (call_us > progress_->call_us_max.load(std::memory_order_relaxed)) {
    progress_->call_us_max.store(call_us, std::memory_order_relaxed);
  }
  if (call_us > options_.deadline_us + kLateUs) Count(progress_->calls_late);
  return answer;
}

Result<ReadLease> Traffic::Acquire(std::span<const BlockKey> keys) {
  return Timed(Phase::kAcquire, [&] {
    return client_->Acquire(group_, keys, {.deadline_us = options_.deadline_us});
  });
}

void Traffic::WaitReady(const ReadLease& lease) {
  if (lease.ready_count() >= lease.block_count()) return;
  // What does not come in time is a miss like any other.
  (void)client_->WaitReady(lease, lease.block_count(), options_.deadline_us);
}

Result<WriteLease> Traffic::Reserve(std::span<const BlockKey> keys, const BlockKey& parent,
                                    uint32_t first_position) {
  return Timed(Phase::kReserve, [&] {
    return client_->Reserve(
        group_, keys,
        {.deadline_us = options_.deadline_us, .parent = parent, .first_position = first_position});
  });
}

Result<uint32_t> Traffic::Commit(WriteLease& lease) {
  auto sealed = Timed(Phase::kCommit, [&] {
    return client_->Commit(lease, {.deadline_us = options_.deadline_us});
  });
  if (sealed.ok()) Count(progress_->blocks_committed, *sealed);
  return sealed;
}

CommitId Traffic::ReadBlock(const ReadLease& lease, uint32_t block_index, const BlockKey& key,
                            bool* is_wrong) {
  CommitId commit_id = 0;
  for (uint32_t member = 0; member < kMembers; ++member) {
    for (uint32_t part = 0; part < kPartsPerSlot; ++part) {
      const bool is_copied = Draw(2) == 0;
      const std::span<const std::byte> bytes = is_copied
                                                   ? CopyOfPart(lease, block_index, member, part)
                                                   : PartInPlace(lease, block_index, member, part);
      const PatternName name = bytes.empty() ? PatternName{} : ReadPatternName(bytes);
      const size_t wrong_at = bytes.empty() ? 0 : FirstWrongByte(bytes);
      if (member == 0 && part == 0) commit_id = name.commit_id;
      if (wrong_at == kPatternIntact && name == PatternName{key, commit_id, member, part}) {
        Count(progress_->bytes_verified, bytes.size());
        continue;
      }
      // A revoked lease may refuse a copy; what it shows stays right until it is released.
      *is_wrong = !bytes.empty() || lease.is_valid();
      if (!*is_wrong) return 0;
      std::fprintf(stderr,
                   "WRONG block %s member %u part %u (%s, %zu bytes): it says block %s commit "
                   "%016" PRIx64 " member %u part %u, first part says commit %016" PRIx64
                   ", first wrong byte %zd\n",
                   ToHex(key).c_str(), member, part, is_copied ? "copied" : "in place",
                   bytes.size(), ToHex(name.key).c_str(), name.commit_id, name.member,
                   name.part_index, commit_id, static_cast<ssize_t>(wrong_at));
      return 0;
    }
  }
  return commit_id;
}

std::span<const std::byte> Traffic::PartInPlace(const ReadLease& lease, uint32_t block_index,
                                                uint32_t member, uint32_t part) const {
  const std::span<const std::byte> slot = lease.slot(block_index, member);
  const uint64_t offset_bytes = spec_.members[member].spec.part_offset_bytes(part);
  if (slot.size() < offset_bytes + part_bytes_[part]) return {};
  return slot.subspan(offset_bytes, part_bytes_[part]);
}

std::span<const std::byte> Traffic::CopyOfPart(const ReadLease& lease, uint32_t block_index,
                                               uint32_t member, uint32_t part) {
  const std::span<std::byte> copy = std::span(part_buffer_).first(part_bytes_[part]);
  if (!lease.CopyPart(block_index, member, part, copy).ok()) return {};
  return copy;
}

uint32_t Traffic::Verify(const ReadLease& lease, std::span<const BlockKey> keys,
                         std::vector<CommitId>* ids) {
  Enter(Phase::kVerify);
  const uint32_t ready_count = std::min<uint32_t>(lease.ready_count(), keys.size());
  uint32_t wrong_count = 0;
  bool is_unbroken = true;
  for (uint32_t i = 0; i < ready_count; ++i) {
    bool is_wrong = false;
    const CommitId id = ReadBlock(lease, i, keys[i], &is_wrong);
    wrong_count += is_wrong ? 1 : 0;
    is_unbroken = is_unbroken && id != 0;
    if (ids != nullptr && is_unbroken) ids->push_back(id);
  }
  Count(progress_->blocks_verified, ready_count);
  Count(progress_->blocks_wrong, wrong_count);
  Enter(Phase::kIdle);
  return wrong_count;
}

uint32_t Traffic::Write(WriteLease& lease, std::span<const BlockKey> keys, size_t from, size_t to,
                        uint32_t first_member) {
  Enter(Phase::kWrite);
  uint32_t written_count = 0;
  for (size_t i = from; i < to; ++i) {
    if (!lease.is_reserved(i)) continue;
    for (uint32_t member = first_member; member < kMembers; ++member) {
      for (uint32_t part = 0; part < kPartsPerSlot; ++part) {
        const PatternName name{keys[i], lease.keys()[i].commit_id, member, part};
        const uint64_t offset_bytes = spec_.members[member].spec.part_offset_bytes(part);
        Status status;
        if (Draw(2) == 0) {
          const std::span<std::byte> copy = std::span(part_buffer_).first(part_bytes_[part]);
          FillPattern(name, copy);
          status = lease.WritePart(i, member, part, copy);
        } else if (const auto slot = lease.slot(i, member); !slot.empty()) {
          FillPattern(name, slot.subspan(offset_bytes, part_bytes_[part]));
          status = lease.ChecksumWrittenPart(i, member, part);
        }
        if (!status.ok()) Count(progress_->statuses[static_cast<size_t>(status.code())]);
      }
    }
    ++written_count;
  }
  Enter(Phase::kIdle);
  return written_count;
}

void Traffic::CommitRange(WriteLease& lease, Event place, size_t from, size_t to) {
  ids_.clear();
  for (size_t i = from; i < to; ++i) {
    if (lease.is_reserved(i)) ids_.push_back(lease.keys()[i].commit_id);
  }
  place.kind = EventKind::kCommit;
  const size_t at = history_.Begin(place, ids_);
  const auto sealed = Commit(lease);  // counted; a refusal costs a later hit
  history_.End(at, {.status = sealed.code(), .asked = sealed.ok() ? *sealed : 0});
}

void Traffic::Store(uint32_t prompt, std::span<const BlockKey> keys, uint32_t resident_count) {
  const BlockKey parent = resident_count == 0 ? BlockKey{} : keys[resident_count - 1];
  const std::span<const BlockKey> missing = keys.subspan(resident_count);
  Event place{.kind = EventKind::kReserve,
              .first = static_cast<uint16_t>(resident_count),
              .prompt = prompt};
  const size_t at = history_.Begin(place);
  auto lease = Reserve(missing, parent, resident_count);
  ids_.clear();
  for (size_t i = 0; lease.ok() && i < missing.size(); ++i) {
    ids_.push_back(lease->is_reserved(i) ? lease->keys()[i].commit_id : 0);
  }
  history_.End(at, {.status = lease.code(), .ids = ids_});
  if (!lease.ok()) return;
  const size_t middle = Draw(4) == 0 ? missing.size() / 2 : missing.size();
  if (Draw(4) == 0) {  // the last member's parts first: nobody may see a block of these alone
    Write(*lease, missing, 0, middle, kMembers - 1);
    (void)Commit(*lease);
  }
  Write(*lease, missing, 0, middle);
  if (Draw(8) == 0) {  // given up, half of the time without a word
    Enter(Phase::kAbort);
    if (Draw(2) == 0) lease->Abort();
    return;
  }
  CommitRange(*lease, place, 0, middle);
  if (middle == missing.size()) return;
  Write(*lease, missing, middle, missing.size());
  CommitRange(*lease, place, middle, missing.size());
}

Traffic::Kept Traffic::Read(uint32_t prompt, std::span<const BlockKey> keys, uint32_t first) {
  const size_t at = history_.Begin({.kind = EventKind::kRead,
                                    .first = static_cast<uint16_t>(first),
                                    .asked = static_cast<uint16_t>(keys.size()),
                                    .prompt = prompt});
  Kept kept{Timed(Phase::kAcquire,
                  [&] {
                    return client_->Acquire(group_, keys.subspan(first),
                                            {.deadline_us = options_.deadline_us,
                                             .parent = first == 0 ? BlockKey{} : keys[first - 1],
                                             .first_position = first});
                  }),
            prompt, first, at};
  const uint64_t ended_ns = MonotonicNs();
  ids_.clear();
  StatusCode status = kept.lease.code();
  if (kept.lease.ok()) {
    WaitReady(*kept.lease);
    Verify(*kept.lease, keys.subspan(first), &ids_);
    // What did not come, or went meanwhile, is no word on what is there.
    if (ids_.size() < kept.lease->block_count()) status = StatusCode::kBusy;
  }
  history_.End(at, {.status = status, .ids = ids_, .ended_ns = ended_ns});
  return kept;
}

void Traffic::LetGo(Kept& kept) {
  if (kept.read_at != SIZE_MAX) {
    const uint32_t count = kept.first + kept.lease->ready_count();
    const auto keys = Keys(kept.prompt, count).subspan(kept.first);
    const size_t at = history_.Begin({.kind = EventKind::kHeld,
                                      .first = static_cast<uint16_t>(kept.first),
                                      .prompt = kept.prompt,
                                      .earlier = static_cast<uint32_t>(kept.read_at)});
    ids_.clear();
    Verify(*kept.lease, keys, &ids_);
    const bool is_valid = kept.lease->is_valid();
    history_.End(at, {.status = is_valid ? StatusCode::kOk : StatusCode::kGone, .ids = ids_});
  }
  Enter(Phase::kRelease);
  kept.lease->Release();
  Enter(Phase::kIdle);
}

void Traffic::Keep(Kept kept) {
  if (kept_.size() == kKeptLeasesMax) {
    const size_t leaving = Draw(kept_.size());
    LetGo(kept_[leaving]);
    std::swap(kept_[leaving], kept_.back());
    kept_.pop_back();
  }
  kept_.push_back(std::move(kept));
}

void Traffic::ReleaseKept() {
  for (Kept& kept : kept_) LetGo(kept);
  kept_.clear();
}

uint32_t Traffic::Serve(uint32_t prompt, uint32_t block_count) {
  const std::span<const BlockKey> keys = Keys(prompt, block_count);
  if (keys.empty()) return 0;
  NoteBoot();
  const uint64_t boot_id = client_->boot_id();
  uint32_t resident_count = 0;
  if (Kept kept = Read(prompt, keys, 0); kept.lease.ok()) {
    resident_count = kept.lease->ready_count();
    if (resident_count > 0 && Draw(4) == 0) {
      Keep(std::move(kept));
    } else {
      Enter(Phase::kRelease);
      kept.lease->Release();
    }
  }
  if (boot_id != 0 && boot_id == client_->boot_id()) {
    Count(progress_->blocks_since_boot, resident_count);
  }
  if (resident_count < keys.size()) Store(prompt, keys, resident_count);
  Count(progress_->ops);
  return resident_count;
}

bool Traffic::Hold(uint32_t prompt, std::vector<ReadLease>* leases) {
  const uint32_t block_count = options_.blocks_max;
  const auto end = std::chrono::steady_clock::now() + kHoldPatience;
  for (; !IsTold() && std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(kHoldPause)) {
    Serve(prompt, block_count);
    auto lease = Acquire(Keys(prompt, block_count));
    if (!lease.ok() || lease->ready_count() < block_count) continue;
    leases->push_back(std::move(lease).value());
    return true;
  }
  std::fprintf(stderr, "terrace-chaos: prompt %u could not be stored and leased whole\n", prompt);
  return false;
}

void Traffic::Peek(uint32_t prompt, uint32_t first, uint32_t block_count) {
  const std::span<const BlockKey> keys = Keys(prompt, block_count);
  if (keys.empty()) return;
  NoteBoot();
  Kept kept = Read(prompt, keys, first);
  if (kept.lease.ok()) kept.lease->Release();
  Count(progress_->ops);
}

Result<protocol::EvictReply> Traffic::Erase(uint32_t prompt, uint32_t first, uint64_t deadline_us) {
  const std::span<const BlockKey> keys = Keys(prompt, options_.blocks_max);
  const size_t at = history_.Begin({.kind = EventKind::kErase,
                                    .first = static_cast<uint16_t>(first),
                                    .asked = static_cast<uint16_t>(keys.size()),
                                    .prompt = prompt});
  auto reply = client_->Evict(group_, keys.subspan(std::min<size_t>(first, keys.size())),
                              {.deadline_us = deadline_us, .flags = protocol::kEvictSubtree});
  Count(progress_->statuses[static_cast<size_t>(reply.code())]);
  // What is leased stays: not all of it has gone.
  const bool is_whole = !reply.ok() || reply->skipped_count == 0;
  history_.End(at, {.status = is_whole ? reply.code() : StatusCode::kBusy});
  return reply;
}

void Traffic::NoteBoot() {
  const uint64_t boot_id = client_->boot_id();
  if (boot_id == 0 || boot_id == progress_->boot_id.load(std::memory_order_relaxed)) return;
  progress_->blocks_since_boot.store(0, std::memory_order_relaxed);
  progress_->boot_id.store(boot_id, std::memory_order_relaxed);
  Count(progress_->boots_seen);
}

}  // namespace terrace::chaos
