#include "daemon/store/deferred_hits.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

void DeferredHits::OnAsked(uint32_t group_index, std::span<const BlockKey> keys) {
  if (keys.empty()) return;
  asked_count_ += static_cast<uint32_t>(keys.size());
  asked_.push_back(
      {.group_index = group_index, .asked_us = d_.NowUs(), .keys = {keys.begin(), keys.end()}});
  while (asked_count_ > kAskedKeysMax) CountFirstAsked();
}

void DeferredHits::CountFirstAsked() {
  const Asked& asked = asked_.front();
  // Its group may have gone, and another have taken the place.
  if (d_.groups[asked.group_index] != nullptr) {
    d_.meter.OnAsked(asked.group_index, asked.keys, d_.groups[asked.group_index]->block_bytes(),
                     asked.asked_us);
  }
  asked_count_ -= static_cast<uint32_t>(asked.keys.size());
  asked_.pop_front();
}

void DeferredHits::CountAsked() {
  while (!asked_.empty()) CountFirstAsked();
}

void DeferredHits::Add(LeaseId lease, const KeysQuery& query, uint32_t block_count) {
  TERRACE_CHECK(has_room(block_count), "what is not noted yet is bounded");
  // Why the request ended is known when its lease is released.
  protocol::Hints hints = query.hints;
  hints.end_reason = protocol::EndReason::kUnknown;
  hits_.push_back({.lease = lease,
                   .session = query.session,
                   .block_count = block_count,
                   .asked_us = d_.NowUs(),
                   .hints = hints,
                   .end_hints = {}});
  waiting_count_ += block_count;
  d_.leases.SetHits(lease, LeaseTable::Hits::kToNote);
}

void DeferredHits::OnRequestEnd(LeaseId lease, const protocol::Hints& hints) {
  for (Hit& hit : hits_) {
    if (hit.lease == lease) hit.end_hints = hints;
  }
}

// Both queues move in each turn, however fast one of them fills.
void DeferredHits::Step() {
  if (!asked_.empty()) CountFirstAsked();
  for (uint32_t left = kBlocksPerStep; left > 0 && !hits_.empty();) {
    Hit& hit = hits_.front();
    const uint32_t end = std::min(hit.block_count, hit.next + left);
    NoteSome(&hit, end);
    waiting_count_ -= end - hit.next;
    left -= end - hit.next;
    hit.next = end;
    if (end < hit.block_count) return;
    Finish(hit);
    hits_.pop_front();
    ++noted_count_;
  }
}

// Blocks [next, end) of it; some may have left the lease, or the cache, meanwhile.
void DeferredHits::NoteSome(Hit* hit, uint32_t end) {
  const Lease& lease = d_.leases.at(hit->lease);
  run_.clear();
  keys_.clear();
  for (uint32_t i = hit->next; i < std::min<size_t>(end, lease.entries.size()); ++i) {
    const BlockId id = lease.entries[i].block;
    if (id == kBlockNone) continue;
    keys_.push_back(d_.index.key(id));
    const Block& b = d_.block(id);
    if (b.phase != BlockPhase::kSealed) continue;
    run_.push_back(id);
    residency_.hints.CountHit(id);
    shared_writer_.Offer(id, SharedWriter::Moment::kServed);
    if (b.writer_session != hit->session) verifier_.CheckServed(id);
  }
  const Group& group = *d_.groups[lease.group_index];
  d_.meter.OnAsked(lease.group_index, keys_, group.block_bytes(), hit->asked_us);
  residency_.hints.Touch(run_, hit->hints,
                         {.behind = hit->last, .goes_on = end < hit->block_count});
  if (!run_.empty()) hit->last = run_.back();
}

void DeferredHits::Finish(const Hit& hit) {
  const Lease& lease = d_.leases.at(hit.lease);
  if (hit.end_hints.end_reason != protocol::EndReason::kUnknown) {
    const BlockId tip = d_.index.Find(lease.group_index, lease.tip);
    if (tip != kBlockNone) residency_.hints.Touch({&tip, 1}, hit.end_hints);
  }
  d_.leases.SetHits(hit.lease, LeaseTable::Hits::kNoted);
  if (lease.phase == LeasePhase::kEnding) {
    d_.lease_backlog.Add(LeaseWork{LeaseWorkKind::kEnd, hit.lease, lease.stamp});
  }
}

}  // namespace terrace
