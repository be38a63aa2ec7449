#include "daemon/policy/eviction/hazard.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kLookedAtFirst = 64;  // candidates, for a shortlist of fewer than kShortlistMin
constexpr uint32_t kLookedAt = 24;
constexpr uint64_t kRankHoldsUs = 10'000;  // ranks move with idle times, far longer than this
constexpr uint64_t kExpectedWithinUsMin = 500'000;
constexpr uint32_t kFollowMax = 48;  // blocks that go with a choice
constexpr uint32_t kShortlistMin = 4;
constexpr uint32_t kShortlistMax = 24;
constexpr uint32_t kSamplesPerBlock = 16;     // ghosts, as a multiple of the capacity
constexpr uint32_t kObservedPerRequest = 96;  // samples put to the model, per request
constexpr uint64_t kUsPerS = 1000000;
constexpr size_t kPausedMax = 64;     // requests
constexpr size_t kMissedMax = 64;     // lookups
constexpr size_t kWatchedMax = 1024;  // blocks of one
constexpr size_t kWaitedMax = 256;
constexpr float kReasonsRemembered = 64;  // requests
constexpr float kReasonShareMin = 0.01f;  // of those; rarer ones are left out

uint8_t LogClass(uint32_t log, uint32_t class_count) {
  return static_cast<uint8_t>(std::min(log, class_count - 1));
}

uint32_t Log2(uint32_t value) { return static_cast<uint32_t>(std::bit_width(value)); }

}  // namespace

HazardPolicy::HazardPolicy(const HazardOptions& options)
    : sample_count_max_(static_cast<uint32_t>(
          std::min<uint64_t>(uint64_t{options.capacity_blocks} * kSamplesPerBlock, kSamplesMax))),
      guard_(options.capacity_blocks),
      waiting_counts_(kWaitingCounts),
      random_(options.seed * 2 + 1) {
  TERRACE_CHECK(options.capacity_blocks > 0, "a tier of no blocks has no policy");
  samples_.reserve(sample_count_max_);
  waiting_.reserve(sample_count_max_);
  shortlist_.reserve(kShortlistMax);
  paused_.reserve(kPausedMax + 1);
}

// ---- what is known about a block ----

uint8_t HazardPolicy::GapOf(uint64_t from_us, uint64_t to_us) {
  const uint64_t gap_s = (to_us - std::min(from_us, to_us)) / kUsPerS;
  return LogClass(1 + (static_cast<uint32_t>(std::bit_width(gap_s)) + 1) / 2, ReuseTraits::kGaps);
}

uint32_t HazardPolicy::FingerprintOf(const BlockKey& key) {
  return static_cast<uint32_t>(key.low >> 8);
}

ReuseTraits HazardPolicy::TraitsOf(BlockId id) const {
  return TraitsOf(states_[id], requests_[states_[id].request]);
}

ReuseTraits HazardPolicy::TraitsOf(const BlockState& state, const Request& request) {
  ReuseTraits traits;
  traits.gap = state.was_used ? state.gap : request.gap;
  traits.is_shared = state.branches >= 2;
  traits.reason = request.reason;
  traits.fork = request.fork;
  traits.fresh = LogClass(Log2(request.fresh_count), ReuseTraits::kFreshes);
  traits.turn = LogClass(Log2(request.turn), ReuseTraits::kTurns);
  traits.depth = LogClass(Log2(request.depth) / 2, ReuseTraits::kDepths);
  traits.kind =
      state.branches >= 2 ? state.branches : (state.was_used || request.is_return ? 1 : 0);
  return traits;
}

float HazardPolicy::IndexOf(const BlockState& state, const Request& request) const {
  const uint64_t idle_us = now_us_ - std::min(now_us_, request.time_us);
  const float learned = model_.index(TraitsOf(state, request), HazardModel::AgeOf(idle_us));
  if (now_us_ >= request.expected_us) return learned;
  // One hit, for all the time that is left.
  const uint64_t left_us = std::max(request.expected_us - now_us_, kExpectedWithinUsMin);
  return std::max(learned, 1e6f / static_cast<float>(left_us));
}

HazardPolicy::LastRequest HazardPolicy::last_request(BlockId id) const {
  const uint32_t request = states_[id].request;
  return {.index = request, .time_us = requests_[request].time_us};
}

// ---- requests ----

void HazardPolicy::Advance(uint64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  if (now_us_ >= ranked_us_ + kRankHoldsUs) choice_ = kBlockNone;
  is_choice_gone_ = false;
}

void HazardPolicy::OpenRequest(uint64_t now_us) {
  CloseRequest();
  if (free_requests_.empty()) {
    open_.request = request_count_++;
    requests_.Reach(open_.request);
  } else {
    open_.request = free_requests_.back();
    free_requests_.pop_back();
  }
  requests_[open_.request] = Request{.time_us = now_us, .is_open = true};
}

void HazardPolicy::CloseRequest() {
  if (open_.request == kNone) return;
  Ongoing closed = std::exchange(open_, {});
  if (closed.are_left() || closed.more_count == 0 || requests_[closed.request].is_ended) {
    return EndRequest(closed);
  }
  guard_.OnPause();
  closed.told_count = closed.arrived_count = 0;
  paused_.push_back(closed);
  if (paused_.size() <= kPausedMax) return;
  EndRequest(paused_.front());
  paused_.erase(paused_.begin());
}

bool HazardPolicy::GoOnUnder(BlockId parent) {
  const uint32_t request = states_[parent].request;
  const auto found = std::ranges::find(paused_, request, &Ongoing::request);
  if (found == paused_.end() || requests_[request].tip != parent) return false;
  const Ongoing paused = *found;
  paused_.erase(found);
  CloseRequest();
  open_ = paused;
  return true;
}

void HazardPolicy::EndRequest(const Ongoing& ended) {
  Request& request = requests_[ended.request];
  request.is_open = false;
  guard_.OnRequest(request.depth);
  for (uint8_t reason = 0; reason < reason_shares_.size(); ++reason) {
    const float is_it = request.reason == reason ? 1 : 0;
    reason_shares_[reason] += (is_it - reason_shares_[reason]) / kReasonsRemembered;
  }
  const BlockId tip = request.tip;
  const auto is_last_used_by_it = [&](BlockId id) {
    return id != kBlockNone && states_[id].request == ended.request;
  };
  if (ended.are_left()) {
    AddSample({.request = ended.request, .fingerprint = ended.tip}, true);
    if (ended.any != 0 && ended.any != ended.tip) {
      AddSample({.request = ended.request, .fingerprint = ended.any}, false);
    }
  } else if (is_last_used_by_it(tip)) {
    AddSample(tip);
  }
  for (const BlockId watched : {ended.watched_hit, ended.watched_new}) {
    if (is_last_used_by_it(watched) && watched != tip) AddSample(watched);
  }
  if (request.block_count == 0) free_requests_.push_back(ended.request);
  LearnSome();
}

void HazardPolicy::Assign(BlockId id, uint32_t request) {
  const uint32_t old = states_[id].request;
  if (old == request) return;
  if (old != kNone) {
    TERRACE_CHECK(requests_[old].block_count > 0, "a request is free when its last block has left");
    if (--requests_[old].block_count == 0 && !requests_[old].is_open) free_requests_.push_back(old);
  }
  states_[id].request = request;
  if (request != kNone) ++requests_[request].block_count;
}

// The open request goes on under `parent`, or, if it ended there, another one begins.
void HazardPolicy::JoinRequest(BlockId parent, const BlockTraits& traits, uint64_t now_us) {
  BlockState& state = states_[parent];
  const Request before = requests_[state.request];
  if (before.tip != parent || before.is_ended || state.request != open_.request) {
    OpenRequest(now_us);
    Request& request = requests_[open_.request];
    request.turn = before.turn + 1;
    request.gap = GapOf(before.time_us, now_us);
    request.depth = before.depth;
  }
  const auto mark = static_cast<uint8_t>(traits.key.low);
  const bool is_other_child = state.branches == 0 || state.child_mark != mark;
  state.child_mark = mark;
  if (!is_other_child) return;
  if (state.branches > 0) {  // another chain begins here
    requests_[open_.request].turn = 0;
    requests_[open_.request].gap = 0;
  }
  state.branches = std::min<uint32_t>(state.branches + 1, 3);
}

void HazardPolicy::EnterRequest(const BlockTraits& traits, uint64_t now_us) {
  if (traits.parent == kBlockNone || traits.parent >= states_.reach() ||
      states_[traits.parent].request == kNone) {
    OpenRequest(now_us);
  } else {
    JoinRequest(traits.parent, traits, now_us);
  }
}

HazardPolicy::Sample HazardPolicy::TakeGhost(uint32_t fingerprint) {
  if (guard_.IsSampled(fingerprint)) guard_.OnUse(fingerprint, LruGuard::Outcome::kStored);
  const Sample* const waited = EndWait(fingerprint);
  return waited == nullptr ? Sample() : *waited;
}

void HazardPolicy::TakeTurn(const Sample& ghost, uint64_t now_us, uint32_t behind_count) {
  if (!ghost.is_tip) return;
  // The chain ended here when it was last seen: what follows is new.
  Request& request = requests_[open_.request];
  request.turn = ghost.turn + 1;
  request.gap = GapOf(ghost.time_us, now_us);
  request.fresh_count = behind_count;
  request.is_return = true;
}

// What is told of once more, since it comes in several parts, is counted once.
void HazardPolicy::OnComing(std::span<const BlockKey> keys, const BlockTraits& first,
                            uint32_t more_count, uint64_t now_us) {
  if (keys.empty()) return;
  EndRun();
  Advance(now_us);
  const bool has_parent = first.parent != kBlockNone && first.parent < states_.reach();
  const bool goes_on =
      has_parent && ((open_.request != kNone && requests_[open_.request].tip == first.parent &&
                      open_.left_count() > 0 && !requests_[open_.request].is_ended) ||
                     GoOnUnder(first.parent));
  if (!goes_on) EnterRequest(first, now_us);
  const Missed missed = TakeMissed(FingerprintOf(keys.front()));
  const uint32_t told_count = goes_on ? open_.left_count() : 0;
  const uint32_t count =
      std::max({static_cast<uint32_t>(keys.size()) + more_count, missed.count, told_count});
  Request& request = requests_[open_.request];
  request.fresh_count += count - told_count;
  request.depth += count - told_count;
  request.time_us = now_us;
  if (missed.count == count) {
    open_.tip = missed.tip;
    open_.any = missed.any;
  } else if (told_count < count) {
    open_.tip = FingerprintOf(keys.back());
  }
  coming_keys_.assign(keys.begin(), keys.end());
  open_.told_count = static_cast<uint32_t>(keys.size());
  open_.arrived_count = 0;
  open_.more_count = count - static_cast<uint32_t>(keys.size());
  open_.priority = first.priority;
  for (const uint32_t fingerprint : missed.watched) {
    guard_.OnUse(fingerprint, LruGuard::Outcome::kMiss);
  }
  for (const Missed::Waited& waited : missed.waited) {
    if (const Sample* const ghost = EndWait(waited.fingerprint)) {
      TakeTurn(Sample(*ghost), now_us, waited.behind_count);
    }
  }
  uint32_t behind_count = count;
  for (const BlockKey& key : keys) TakeTurn(TakeGhost(FingerprintOf(key)), now_us, --behind_count);
}

void HazardPolicy::OnMissed(std::span<const BlockKey> keys, const MissedRest& rest) {
  if (keys.empty()) return;
  if (missed_.size() == kMissedMax) missed_.pop_front();
  uint32_t behind_count = static_cast<uint32_t>(keys.size()) + rest.count;
  missed_.push_back({.first = FingerprintOf(keys.front()),
                     .tip = FingerprintOf(rest.count == 0 ? keys.back() : rest.last),
                     .any = FingerprintOf(keys[Random() % keys.size()]),
                     .count = behind_count,
                     .watched = {},
                     .waited = {}});
  Missed& missed = missed_.back();
  for (const BlockKey& key : keys) {
    const uint32_t fingerprint = FingerprintOf(key);
    --behind_count;
    if (guard_.IsSampled(fingerprint) && missed.watched.size() < kWatchedMax) {
      missed.watched.push_back(fingerprint);
    }
    if (missed.waited.size() < kWaitedMax && IsWaitedFor(fingerprint)) {
      missed.waited.push_back({fingerprint, behind_count});
    }
  }
}

HazardPolicy::Missed HazardPolicy::TakeMissed(uint32_t first) {
  const auto found = std::find_if(missed_.rbegin(), missed_.rend(),
                                  [&](const Missed& missed) { return missed.first == first; });
  if (found == missed_.rend()) return {};
  Missed missed = std::move(*found);
  missed_.erase(std::next(found).base());
  return missed;
}

bool HazardPolicy::PassesBy() const {
  if (!open_.are_left() || IsByAge() || open_.priority > lowest_priority_) return false;
  const BlockId victim = Victim();
  if (victim == kBlockNone) return false;
  return open_.priority < lowest_priority_ || IndexOfNewcomer() < IndexOf(victim);
}

// Why its request will end is not known: as the late ones ended.
float HazardPolicy::IndexOfNewcomer() const {
  Request request = requests_[open_.request];
  float sum = 0, weight = 0;
  for (uint8_t reason = 0; reason < reason_shares_.size(); ++reason) {
    if (reason_shares_[reason] < kReasonShareMin) continue;
    request.reason = reason;
    sum += reason_shares_[reason] * IndexOf(BlockState{.request = open_.request}, request);
    weight += reason_shares_[reason];
  }
  return sum / weight;
}

void HazardPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) {
  EndRun();
  Advance(now_us);
  states_.Reach(id);
  states_[id] = BlockState{.fingerprint = FingerprintOf(traits.key), .priority = traits.priority};
  ++resident_count_;
  if (IsNext(traits.key)) {
    ++open_.arrived_count;
    if (states_[id].fingerprint == open_.any) {
      open_.any = 0;
      open_.watched_new = id;
    }
  } else {
    const Sample ghost = TakeGhost(states_[id].fingerprint);
    EnterRequest(traits, now_us);
    ++requests_[open_.request].depth;
    ++requests_[open_.request].fresh_count;
    TakeTurn(ghost, now_us, 0);
  }
  Request& request = requests_[open_.request];
  request.time_us = now_us;
  request.tip = request.end = id;
  Assign(id, open_.request);
}

void HazardPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  if (run.empty()) return;
  Advance(context.now_us);
  const uint32_t before = states_[run.back()].request;
  if (context.end_reason != protocol::EndReason::kUnknown) {
    Request& request = requests_[before];
    const bool is_tool_call = context.end_reason == protocol::EndReason::kToolCall;
    const bool is_end_of_turn = context.end_reason == protocol::EndReason::kEndOfTurn;
    request.reason = is_tool_call ? 1 : (is_end_of_turn ? 2 : 0);
    request.is_ended = true;
    const auto paused = std::ranges::find(paused_, before, &Ongoing::request);
    if (paused != paused_.end()) {
      EndRequest(*paused);
      paused_.erase(paused);
    }
    return;
  }
  // Whoever came in between has made two requests of it.
  const bool is_rest = context.behind != kBlockNone && run_.last == context.behind;
  uint32_t depth = static_cast<uint32_t>(run.size());
  if (is_rest) {
    depth += requests_[open_.request].depth;
  } else {
    EndRun();
  }
  const uint32_t turn = requests_[before].turn + 1;
  const uint8_t tip_gap = GapOf(requests_[before].time_us, context.now_us);
  if (!is_rest) OpenRequest(context.now_us);
  Request& opened = requests_[open_.request];
  opened.tip = opened.end = run.back();
  opened.turn = turn;
  opened.gap = tip_gap;
  opened.depth = depth;
  if (!is_rest || Random() % depth < run.size()) open_.watched_hit = run[Random() % run.size()];
  run_ = {.last = run.back(), .before = before};
  Use(run, context.now_us);
  if (!context.goes_on) EndRun();
}

void HazardPolicy::Use(std::span<const BlockId> run, uint64_t now_us) {
  for (size_t i = run.size(); i-- > 0;) {
    const uint32_t fingerprint = states_[run[i]].fingerprint;
    if (guard_.IsSampled(fingerprint)) guard_.OnUse(fingerprint, LruGuard::Outcome::kHit);
  }
  uint32_t last_request = kNone;
  uint8_t gap = 0;
  for (const BlockId id : run) {
    BlockState& state = states_[id];
    if (state.is_sampled) {
      EndWait(state.fingerprint);
      state.is_sampled = false;
    }
    if (state.request != last_request) {
      last_request = state.request;
      gap = GapOf(requests_[last_request].time_us, now_us);
    }
    state.gap = gap;
    state.was_used = true;
    Assign(id, open_.request);
  }
}

void HazardPolicy::EndRun() {
  const Run run = std::exchange(run_, {});
  if (run.last == kBlockNone || states_[run.last].branches >= 2) return;
  LeavePath(run.before, requests_[open_.request].depth);
}

// A chat that was edited, an agent that shortened its context: what is behind is left for good,
// mostly. How often, the model learns.
void HazardPolicy::LeavePath(uint32_t request, uint32_t used_count) {
  Request& left = requests_[request];
  if (left.end == kBlockNone || states_[left.end].request != request || left.fork != 0) return;
  left.fork = 2 * uint64_t{used_count} < left.depth ? 1 : 2;
  const auto found = waiting_.find(left.tip_fingerprint);
  if (found != waiting_.end()) {
    Sample& sample = samples_[found->second];
    if (sample.time_us == left.time_us) {
      sample.fork = left.fork;
      sample.fork_idle_us = now_us_ - std::min(now_us_, sample.time_us);
    }
  }
  const BlockState& end = states_[left.end];
  if (end.place != kNone && end.priority == lowest_priority_) LookAt(left.end);
}

// Engines guess: the word holds for twice the wait.
void HazardPolicy::OnExpected(std::span<const BlockId> run, uint64_t at_us, uint64_t now_us) {
  Advance(now_us);
  const uint64_t until_us = at_us + (at_us - std::min(at_us, now_us));
  for (const BlockId id : run) requests_[states_[id].request].expected_us = until_us;
  shortlist_.clear();  // ranked without it
  choice_ = kBlockNone;
}

void HazardPolicy::OnErase(BlockId id) {
  TERRACE_CHECK(states_[id].place == kNone,
                "a candidate is held first: else its id is named again");
  TERRACE_CHECK(resident_count_ > 0,
                "who goes had come: below 0 the guard's LRU would never evict");
  const uint32_t request = states_[id].request;
  if (request != kNone && requests_[request].is_open && requests_[request].tip == id) {
    AddSample(id);  // it passes by
  }
  Assign(id, kNone);
  guard_.OnFull(--resident_count_);
  if (open_.watched_hit == id) open_.watched_hit = kBlockNone;
  if (open_.watched_new == id) open_.watched_new = kBlockNone;
  if (newest_ == id) newest_ = kBlockNone;
}

// ---- candidates ----

void HazardPolicy::OnCandidate(BlockId id) {
  BlockState& state = states_[id];
  TERRACE_CHECK(state.place == kNone, "a candidate has one place: the other would outlive it");
  Candidates& peers = candidates_[state.priority];
  state.place = peers.count++;
  peers.ids.Reach(state.place);
  peers.ids[state.place] = id;
  requests_[state.request].end = id;
  const bool is_next_of_choice = is_choice_gone_;
  is_choice_gone_ = false;
  if (is_next_of_choice && GoesWithChoice(state)) {
    lowest_priority_ = std::min<uint32_t>(lowest_priority_, state.priority);
    choice_ = id;
    ++followed_count_;
    return;
  }
  if (state.request == open_.request) newest_ = id;
  choice_ = kBlockNone;
  if (state.priority < lowest_priority_) {
    lowest_priority_ = state.priority;
    choice_ = kBlockNone;
  } else if (is_next_of_choice && state.priority == lowest_priority_) {
    LookAt(id);  // what the one that left hung on
  }
}

void HazardPolicy::OnHeld(BlockId id) {
  BlockState& state = states_[id];
  Candidates& peers = candidates_[state.priority];
  TERRACE_CHECK(state.place < peers.count, "a candidate is among those of its priority");
  const BlockId last = peers.ids[--peers.count];
  peers.ids[state.place] = last;
  states_[last].place = state.place;
  state.place = kNone;
  while (lowest_priority_ + 1 < candidates_.size() && candidates_[lowest_priority_].count == 0) {
    ++lowest_priority_;
  }
  is_choice_gone_ = choice_ == id;
  choice_ = kBlockNone;
}

void HazardPolicy::SetPriority(BlockId id, uint8_t priority) {
  const bool is_candidate = states_[id].place != kNone;
  if (is_candidate) OnHeld(id);
  states_[id].priority = priority;
  is_choice_gone_ = false;
  if (is_candidate) OnCandidate(id);
}

bool HazardPolicy::GoesWithChoice(const BlockState& state) const {
  return state.request == chosen_.request && state.priority == chosen_.priority &&
         state.was_used == chosen_.was_used && state.gap == chosen_.gap &&
         state.branches == chosen_.branches && followed_count_ < kFollowMax;
}

uint64_t HazardPolicy::Random() const {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

BlockId HazardPolicy::Victim() const {
  const Candidates& lowest = candidates_[lowest_priority_];
  if (lowest.count == 0) return kBlockNone;
  if (choice_ == kBlockNone || states_[choice_].request != chosen_.request) Shortlist(lowest);
  return choice_;
}

uint32_t HazardPolicy::EraseVictims(BlockRange run) {
  BlockId id = run.first + run.block_count;
  do {
    OnHeld(--id);
    OnErase(id);
    while (id > run.first && GoesWithChoice(states_[id - 1])) {  // a candidate for no longer
      ++followed_count_;
      OnErase(--id);
    }
    if (id == run.first) break;
    OnCandidate(id - 1);
  } while (Victim() == id - 1 && !PassesBy());
  return run.first + run.block_count - id;
}

bool HazardPolicy::IsShortlisted(BlockId id) const {
  return std::any_of(shortlist_.begin(), shortlist_.end(),
                     [id](const Ranked& ranked) { return ranked.id == id; });
}

// The highest of a full shortlist makes room for what ranks below it.
void HazardPolicy::LookAt(BlockId id) const {
  const Ranked ranked{.id = id,
                      .time_us = requests_[states_[id].request].time_us,
                      .index = is_shortlist_by_age_ ? 0 : IndexOf(id)};
  const bool is_full = shortlist_.size() == kShortlistMax;
  if (is_full && !GoesBefore(ranked, shortlist_[highest_])) return;
  if (IsShortlisted(id)) return;
  if (is_full) {
    shortlist_[highest_] = ranked;
  } else {
    shortlist_.push_back(ranked);
  }
  if (shortlist_.size() == kShortlistMax) FindHighest();
}

void HazardPolicy::FindHighest() const {
  const auto highest = std::max_element(
      shortlist_.begin(), shortlist_.end(),
      [this](const Ranked& left, const Ranked& right) { return GoesBefore(left, right); });
  highest_ = static_cast<size_t>(highest - shortlist_.begin());
}

// Where each is written waits for memory, so all are asked for before any is looked at.
void HazardPolicy::LookAtSome(const Candidates& candidates, uint32_t count) const {
  std::array<uint32_t, kLookedAtFirst> places;
  const bool is_all = candidates.count <= count;
  count = std::min(count, candidates.count);
  for (uint32_t i = 0; i < count; ++i) {
    places[i] = is_all ? i : static_cast<uint32_t>(Random() % candidates.count);
    candidates.ids.Prefetch(places[i]);
  }
  for (uint32_t i = 0; i < count; ++i) states_.Prefetch(candidates.ids[places[i]]);
  for (uint32_t i = 0; i < count; ++i) {
    requests_.Prefetch(states_[candidates.ids[places[i]]].request);
  }
  for (uint32_t i = 0; i < count; ++i) LookAt(candidates.ids[places[i]]);
}

void HazardPolicy::RefreshShortlist() const {
  const bool is_stale = now_us_ >= ranked_us_ + kRankHoldsUs;
  if (is_stale) ranked_us_ = now_us_;
  std::erase_if(shortlist_, [this, is_stale](Ranked& ranked) {
    const BlockState& state = states_[ranked.id];
    if (state.place == kNone || state.priority != lowest_priority_) return true;
    const uint64_t time_us = requests_[state.request].time_us;
    if (!is_stale && time_us == ranked.time_us) return false;
    ranked.time_us = time_us;
    ranked.index = is_shortlist_by_age_ ? 0 : IndexOf(ranked.id);
    return false;
  });
  if (shortlist_.size() == kShortlistMax) FindHighest();
}

void HazardPolicy::Shortlist(const Candidates& candidates) const {
  if (IsByAge() != is_shortlist_by_age_) {
    is_shortlist_by_age_ = !is_shortlist_by_age_;
    shortlist_.clear();
  }
  RefreshShortlist();
  const uint32_t looked_at = shortlist_.size() < kShortlistMin ? kLookedAtFirst : kLookedAt;
  LookAtSome(candidates, looked_at);
  if (newest_ != kBlockNone && states_[newest_].place != kNone &&
      states_[newest_].priority == lowest_priority_) {
    LookAt(newest_);
  }
  TERRACE_CHECK(!shortlist_.empty(), "where there are candidates one at least is looked at");
  choice_ = std::min_element(
                shortlist_.begin(), shortlist_.end(),
                [this](const Ranked& left, const Ranked& right) { return GoesBefore(left, right); })
                ->id;
  chosen_ = states_[choice_];
  followed_count_ = 0;
}

// ---- learning ----

void HazardPolicy::AddSample(BlockId id) {
  AddSample(states_[id], requests_[states_[id].request].tip == id);
  states_[id].is_sampled = true;
}

void HazardPolicy::AddSample(const BlockState& state, bool is_tip) {
  const uint32_t place = static_cast<uint32_t>(sample_count_++ % sample_count_max_);
  if (place == samples_.size()) {
    samples_.emplace_back();
  } else if (samples_[place].waited_us == 0) {
    const uint32_t forgotten = samples_[place].fingerprint;
    waiting_counts_[forgotten % kWaitingCounts] -= waiting_.erase(forgotten);
  }
  EndWait(state.fingerprint);
  Request& request = requests_[state.request];
  samples_[place] = {.time_us = request.time_us,
                     .fingerprint = state.fingerprint,
                     .turn = request.turn,
                     .traits = TraitsOf(state, request),
                     .is_tip = is_tip};
  if (is_tip) request.tip_fingerprint = state.fingerprint;
  waiting_[state.fingerprint] = place;
  ++waiting_counts_[state.fingerprint % kWaitingCounts];
  TERRACE_CHECK(waiting_.size() <= samples_.size(), "who waits has a place in the ring, its own");
}

bool HazardPolicy::IsWaitedFor(uint32_t fingerprint) const {
  return waiting_counts_[fingerprint % kWaitingCounts] != 0 && waiting_.contains(fingerprint);
}

const HazardPolicy::Sample* HazardPolicy::EndWait(uint32_t fingerprint) {
  if (waiting_counts_[fingerprint % kWaitingCounts] == 0) return nullptr;
  const auto found = waiting_.find(fingerprint);
  if (found == waiting_.end()) return nullptr;
  Sample& sample = samples_[found->second];
  sample.waited_us = std::max<uint64_t>(now_us_ - std::min(now_us_, sample.time_us), 1);
  waiting_.erase(found);
  --waiting_counts_[fingerprint % kWaitingCounts];
  return &sample;
}

// A pass over the whole window, a few samples at a time, then the model moves.
void HazardPolicy::LearnSome() {
  for (uint32_t i = 0; i < kObservedPerRequest && !samples_.empty(); ++i) {
    const Sample& sample = samples_[next_observed_];
    const bool has_come = sample.waited_us != 0;
    const uint64_t idle_us = has_come ? sample.waited_us : now_us_ - sample.time_us;
    const auto outcome = has_come ? HazardModel::Outcome::kUsed : HazardModel::Outcome::kWaits;
    ReuseTraits traits = sample.traits;
    if (sample.fork != 0) {
      model_.Observe(traits, sample.fork_idle_us, HazardModel::Outcome::kWaits);
      traits.fork = sample.fork;
    }
    model_.ObserveFrom(traits, sample.fork_idle_us, idle_us, outcome);
    if (++next_observed_ < samples_.size()) continue;
    next_observed_ = 0;
    model_.Fit();
    break;
  }
  model_.RefreshSome();
}

}  // namespace terrace
