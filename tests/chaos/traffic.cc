#include "chaos/traffic.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <utility>

namespace terrace::chaos {

namespace {

constexpr size_t kKeptLeasesMax = 4;

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

SpaceSpec ChaosSpace(uint32_t rank) {
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
          .part_bytes = {std::begin(kPartBytes), std::end(kPartBytes)}};
}

}  // namespace

SpaceGroupSpec ChaosGroup() {
  SpaceGroupSpec group;
  group.name = "chaos";
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    group.members.push_back({.spec = ChaosSpace(rank)});
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
  return options;
}

Traffic::Traffic(const Options& options, Progress* progress)
    : options_(options),
      progress_(progress),
      spec_(ChaosGroup()),
      random_state_(MixBits(options.seed)),
      part_buffer_(*std::max_element(std::begin(kPartBytes), std::end(kPartBytes))) {}

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

bool Traffic::IsBlockRight(const ReadLease& lease, uint32_t block_index, const BlockKey& key) {
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
      if (bytes.empty() && !lease.is_valid()) return true;
      std::fprintf(stderr,
                   "WRONG block %s member %u part %u (%s, %zu bytes): it says block %s commit "
                   "%016" PRIx64 " member %u part %u, first part says commit %016" PRIx64
                   ", first wrong byte %zd\n",
                   ToHex(key).c_str(), member, part, is_copied ? "copied" : "in place",
                   bytes.size(), ToHex(name.key).c_str(), name.commit_id, name.member,
                   name.part_index, commit_id, static_cast<ssize_t>(wrong_at));
      return false;
    }
  }
  return true;
}

std::span<const std::byte> Traffic::PartInPlace(const ReadLease& lease, uint32_t block_index,
                                                uint32_t member, uint32_t part) const {
  const std::span<const std::byte> slot = lease.slot(block_index, member);
  const uint64_t offset_bytes = spec_.members[member].spec.part_offset_bytes(part);
  if (slot.size() < offset_bytes + kPartBytes[part]) return {};
  return slot.subspan(offset_bytes, kPartBytes[part]);
}

std::span<const std::byte> Traffic::CopyOfPart(const ReadLease& lease, uint32_t block_index,
                                               uint32_t member, uint32_t part) {
  const std::span<std::byte> copy = std::span(part_buffer_).first(kPartBytes[part]);
  if (!lease.CopyPart(block_index, member, part, copy).ok()) return {};
  return copy;
}

uint32_t Traffic::Verify(const ReadLease& lease, std::span<const BlockKey> keys) {
  Enter(Phase::kVerify);
  const uint32_t ready_count = std::min<uint32_t>(lease.ready_count(), keys.size());
  uint32_t wrong_count = 0;
  for (uint32_t i = 0; i < ready_count; ++i) {
    if (!IsBlockRight(lease, i, keys[i])) ++wrong_count;
  }
  Count(progress_->blocks_verified, ready_count);
  Count(progress_->blocks_wrong, wrong_count);
  Enter(Phase::kIdle);
  return wrong_count;
}

uint32_t Traffic::Write(WriteLease& lease, std::span<const BlockKey> keys, size_t from, size_t to) {
  Enter(Phase::kWrite);
  uint32_t written_count = 0;
  for (size_t i = from; i < to; ++i) {
    if (!lease.is_reserved(i)) continue;
    for (uint32_t member = 0; member < kMembers; ++member) {
      for (uint32_t part = 0; part < kPartsPerSlot; ++part) {
        const PatternName name{keys[i], lease.keys()[i].commit_id, member, part};
        const uint64_t offset_bytes = spec_.members[member].spec.part_offset_bytes(part);
        Status status;
        if (Draw(2) == 0) {
          const std::span<std::byte> copy = std::span(part_buffer_).first(kPartBytes[part]);
          FillPattern(name, copy);
          status = lease.WritePart(i, member, part, copy);
        } else if (const auto slot = lease.slot(i, member); !slot.empty()) {
          FillPattern(name, slot.subspan(offset_bytes, kPartBytes[part]));
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

void Traffic::Store(std::span<const BlockKey> keys, uint32_t resident_count) {
  const BlockKey parent = resident_count == 0 ? BlockKey{} : keys[resident_count - 1];
  const std::span<const BlockKey> missing = keys.subspan(resident_count);
  auto lease = Reserve(missing, parent, resident_count);
  if (!lease.ok()) return;
  const size_t middle = Draw(4) == 0 ? missing.size() / 2 : missing.size();
  Write(*lease, missing, 0, middle);
  if (Draw(8) == 0) {  // given up, half of the time without a word
    Enter(Phase::kAbort);
    if (Draw(2) == 0) lease->Abort();
    return;
  }
  (void)Commit(*lease);  // counted; a refusal costs a later hit
  if (middle == missing.size()) return;
  Write(*lease, missing, middle, missing.size());
  (void)Commit(*lease);
}

void Traffic::Keep(ReadLease lease) {
  if (kept_leases_.size() == kKeptLeasesMax) {
    const size_t leaving = Draw(kept_leases_.size());
    kept_leases_[leaving].Release();
    std::swap(kept_leases_[leaving], kept_leases_.back());
    kept_leases_.pop_back();
  }
  kept_leases_.push_back(std::move(lease));
}

uint32_t Traffic::Serve(uint32_t prompt, uint32_t block_count) {
  const std::span<const BlockKey> keys = Keys(prompt, block_count);
  if (keys.empty()) return 0;
  NoteBoot();
  const uint64_t boot_id = client_->boot_id();
  uint32_t resident_count = 0;
  {
    auto lease = Acquire(keys);
    if (lease.ok()) {
      WaitReady(*lease);
      resident_count = lease->ready_count();
      Verify(*lease, keys);
      if (resident_count > 0 && Draw(4) == 0) {
        Keep(std::move(lease).value());
      } else {
        Enter(Phase::kRelease);
        lease->Release();
      }
    }
  }
  if (boot_id != 0 && boot_id == client_->boot_id()) {
    Count(progress_->blocks_since_boot, resident_count);
  }
  if (resident_count < keys.size()) Store(keys, resident_count);
  Count(progress_->ops);
  return resident_count;
}

void Traffic::NoteBoot() {
  const uint64_t boot_id = client_->boot_id();
  if (boot_id == 0 || boot_id == progress_->boot_id.load(std::memory_order_relaxed)) return;
  progress_->blocks_since_boot.store(0, std::memory_order_relaxed);
  progress_->boot_id.store(boot_id, std::memory_order_relaxed);
  Count(progress_->boots_seen);
}

}  // namespace terrace::chaos
