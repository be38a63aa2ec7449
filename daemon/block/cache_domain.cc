#include "daemon/block/cache_domain.h"

#include <algorithm>

#include "daemon/block/keyed_group_files.h"
#include "daemon/policy/admission.h"
#include "daemon/policy/eviction/policies.h"
#include "terrace/check.h"

namespace terrace {

static uint64_t CapacityBelow(const DomainOptions& options) {
  return options.lower_tiers.empty() ? 0 : options.lower_tiers[0]->stats().capacity_bytes;
}

CacheDomain::CacheDomain(uint32_t domain_index_in_store, DomainOptions domain_options,
                         const StoreOptions& store_options, const StoreSeams& store_seams)
    : own_options_(std::move(domain_options)),
      domain_index(domain_index_in_store),
      limits(store_options),
      seams(store_seams),
      slots({.segment_bytes = options.segment_bytes,
             .segments_max = options.segments_max,
             .slot_table = options.slot_table,
             .table_seed = options.table_seed}),
      index({.blocks_max = store_options.blocks_max, .hash_seed = store_seams.random.Next()}),
      readiness(store_options.blocks_max),
      dram_policy(MakeEvictionPolicy(store_options.eviction_policy, store_options.blocks_max)),
      admission(MakeAdmissionPolicy(store_options.admission_policy,
                                    {.capacity_blocks = store_options.blocks_max,
                                     .write_bytes_per_day = options.write_bytes_per_day})),
      meter({.dram_bytes = options.segments_max * options.segment_bytes,
             .below_bytes = CapacityBelow(options),
             .seed = options.table_seed}),
      shared_copies(domain_index, options.shared.tier == nullptr ? 0 : options.shared.copies_max,
                    store_seams.deadlines) {
  TERRACE_CHECK(dram_policy != nullptr, "eviction_policy is one of EvictionPolicyNames()");
  TERRACE_CHECK(admission != nullptr, "admission_policy is one of AdmissionPolicyNames()");
  TERRACE_CHECK(
      options.lower_tiers.size() + (options.device.tier != nullptr ? 1 : 0) <= kLowerTiersMax,
      "at most three tiers beside DRAM");
  for (Tier* tier : options.lower_tiers) {
    if (tier->is_persistent()) {
      TERRACE_CHECK(persistent_tier == kLowerTiersMax, "at most one persistent tier a domain");
      persistent_tier = static_cast<uint32_t>(lower.size());
    }
    lower.push_back({.tier = tier,
                     .policy = MakeEvictionPolicy(store_options.lower_eviction_policy,
                                                  store_options.blocks_max)});
    TERRACE_CHECK(lower.back().policy != nullptr,
                  "lower_eviction_policy is one of EvictionPolicyNames()");
  }
  if (options.device.tier != nullptr) AddDevice();
}

// A server keeps it for a time from when it was given. One that was found may have been there long:
// it is looked at again soon.
void CacheDomain::NoteSharedCopy(BlockId id, uint64_t at_us, SharedOrigin origin) {
  constexpr uint64_t kFoundShare = 8;
  const Block& b = block(id);
  const RadixIndex::Node& node = index.node(id);
  const Group& group = group_of(b);
  const uint64_t window_us =
      options.shared.window_us / (origin == SharedOrigin::kFound ? kFoundShare : 1);
  const uint64_t until_us = options.shared.window_us == 0 ? kNever : at_us + window_us;
  SharedCopies::Copy copy{.event_hash = b.event_hash, .stream = group.kv_event_stream};
  if (node.parent != kBlockNone) copy.parent_hash = block(node.parent).event_hash;
  shared_copies.Note({group.id(), node.key}, copy, std::min(until_us, b.expires_us));
}

void CacheDomain::AddDevice() {
  device_tier = static_cast<uint32_t>(lower.size());
  // What the policy of other tiers costs to keep pays where places are many; here they are few.
  lower.push_back(
      {.tier = options.device.tier, .policy = MakeEvictionPolicy("lru", limits.blocks_max)});
}

void CopyTunable(const DomainOptions& from, DomainOptions* to) {
  to->segments_guaranteed = from.segments_guaranteed;
  to->segments_lent_max = from.segments_lent_max;
  to->borrow_priority = from.borrow_priority;
  to->ttl_default_s = from.ttl_default_s;
  to->write_bytes_per_day = from.write_bytes_per_day;
  to->scrub_bytes_per_second = from.scrub_bytes_per_second;
  to->scrub_interval_us = from.scrub_interval_us;
  to->allow_models = from.allow_models;
  to->shared.is_storing = from.shared.is_storing;
  to->shared.is_fetching = from.shared.is_fetching;
  to->shared.is_storing_hits_only = from.shared.is_storing_hits_only;
  to->shared.queue_bytes_max = from.shared.queue_bytes_max;
  to->shared.seek_us = from.shared.seek_us;
  to->device.hits_min = from.device.hits_min;
}

void CopyTunable(const StoreOptions& from, StoreOptions* to) {
  to->segments_total = from.segments_total;
  to->segments_spare = from.segments_spare;
  to->leases_per_session_max = from.leases_per_session_max;
  to->lease_blocks_per_session_max = from.lease_blocks_per_session_max;
  to->lease_blocks_max = from.lease_blocks_max;
  to->pending_per_session_max = from.pending_per_session_max;
  to->fenced_bytes_max = from.fenced_bytes_max;
  to->admission_policy = from.admission_policy;
  to->read_ahead_blocks = from.read_ahead_blocks;
  to->default_deadline_us = from.default_deadline_us;
  to->deadline_us_max = from.deadline_us_max;
}

void CacheDomain::Retune(const DomainOptions& tuned, const std::string& admission_before) {
  const uint64_t budget_before = options.write_bytes_per_day;
  CopyTunable(tuned, &own_options_);
  if (admission_before == limits.admission_policy && budget_before == options.write_bytes_per_day) {
    return;
  }
  const std::vector<std::byte> learned = admission->Learned();
  admission = MakeAdmissionPolicy(
      limits.admission_policy,
      {.capacity_blocks = limits.blocks_max, .write_bytes_per_day = options.write_bytes_per_day});
  TERRACE_CHECK(admission != nullptr, "admission_policy is one of AdmissionPolicyNames()");
  if (admission_before == limits.admission_policy) (void)admission->StartFrom(learned);
}

ErasureMark CacheDomain::MarkErasures() const {
  const SharedTier* const shared = options.shared.tier;
  return {.below = erased_below.begun(),
          .shared = shared == nullptr ? SharedErasureMark() : shared->MarkErasures()};
}

bool CacheDomain::IsGivenToTier(ErasureMark* mark) const {
  if (persistent_tier == kLowerTiersMax || mark->tier) return true;
  if (erased_below.ended() < mark->below) return false;
  mark->tier = lower[persistent_tier].tier->erasures().begun;
  return true;
}

void CacheDomain::NoteRefuted(const RefutedWriter& refuted) {
  refuted_us = NowUs();
  if (refuted.session == 0) return;
  const auto known = std::ranges::find(refuted_writers, refuted.session, &RefutedWriter::session);
  RefutedWriter writer = refuted;
  if (known != refuted_writers.end()) {
    writer = std::move(*known);
    writer.block_count += refuted.block_count;
    refuted_writers.erase(known);
  } else if (limits.describe_writer) {
    limits.describe_writer(&writer);
  }
  writer.unix_s = seams.clock.UnixSeconds();
  if (refuted_writers.size() == kRefutedWritersMax) {
    refuted_writers.erase(refuted_writers.begin());
  }
  refuted_writers.push_back(std::move(writer));
  if (limits.on_refuted) limits.on_refuted(domain_index, refuted_writers.back());
}

bool CacheDomain::IsErased(ErasureMark* mark) const {
  const SharedTier* const shared = options.shared.tier;
  if (shared != nullptr && !shared->IsDurable(mark->shared)) return false;
  if (mark->is_for_absent && !limits.absent_places->HasNoted(domain_index)) return false;
  if (persistent_tier == kLowerTiersMax) return true;
  const KeyedGroupFiles* const files = KeyedFilesOf(limits.group_files);
  if (files != nullptr && !files->AreKeysDestroyed(domain_index)) return false;
  return IsGivenToTier(mark) && lower[persistent_tier].tier->erasures().ended >= *mark->tier;
}

uint32_t CacheDomain::FastestTier(const Block& block) const {
  if (IsOnDevice(block) && !lower[device_tier].is_off) return device_tier;
  for (uint32_t t = 0; t < lower.size(); ++t) {
    if (block.lower[t].is_readable() && !lower[t].is_off) return t;
  }
  return kLowerTiersMax;
}

BlockTraits CacheDomain::TraitsOf(BlockId id) const {
  const Block& b = blocks[id];
  const RadixIndex::Node& node = index.node(id);
  const Group& group = *groups[b.group_index];
  return {.key = node.key,
          .byte_count = group.block_bytes(),
          .position = node.position,
          .block_tokens = group.block_tokens(),
          .recompute_ns_per_token = b.recompute_ns_per_token,
          .priority = b.priority,
          .parent = node.parent};
}

uint64_t CacheDomain::UnixSecondsOf(uint64_t expires_us) const {
  const uint64_t now_us = NowUs();
  const uint64_t left_us = expires_us > now_us ? expires_us - now_us : 0;
  return seams.clock.UnixSeconds() + (left_us + kUsPerSecond - 1) / kUsPerSecond;
}

BlockRecord CacheDomain::RecordOf(BlockId id, const LocalMember& local) const {
  BlockRecord record{Describe(id)};
  record.space = local.space;
  record.member = static_cast<uint16_t>(local.member);
  record.domain_index = domain_index;
  record.owner = id;
  record.part_checksums = roots_of(block(id)).subspan(local.first_root, local.part_count);
  record.part_bytes = local.part_bytes;
  return record;
}

TouchContext CacheDomain::ContextOf(const protocol::Hints& hints) const {
  return {.now_us = NowUs(), .session_hash = hints.session_hash, .end_reason = hints.end_reason};
}

}  // namespace terrace
