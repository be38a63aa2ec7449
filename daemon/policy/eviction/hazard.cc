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
constexpr uint64_t kUsPerS = 1000000;
constexpr size_t kWatchedMax = 1024;  // blocks of a lookup
constexpr size_t kWaitedMax = 256;
constexpr float kReasonShareMin = 0.01f;  // of late requests; rarer ones are left out

uint8_t LogClass(uint32_t log, uint32_t class_count) {
  return static_cast<uint8_t>(std::min(log, class_count - 1));
}

uint32_t Log2(uint32_t value) { return static_cast<uint32_t>(std::bit_width(value)); }

}  // namespace

HazardPolicy::HazardPolicy(const HazardOptions& options)
    : samples_(options.capacity_blocks),
      guard_(options.capacity_blocks),
      random_(options.seed * 2 + 1) {
  shortlist_.reserve(kShortlistMax);
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
  const float learned =
      samples_.model().index(TraitsOf(state, request), HazardModel::AgeOf(idle_us));
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
  requests_.Begin(now_us);
}

void HazardPolicy::CloseRequest() {
  if (!requests_.has_open()) return;
  const Ongoing closed = requests_.Close();
  if (!requests_.MayGoOn(closed)) return EndRequest(closed);
  guard_.OnPause();
  if (const auto given_up = requests_.Pause(closed)) EndRequest(*given_up);
}

bool HazardPolicy::GoOnUnder(BlockId parent) {
  const uint32_t request = states_[parent].request;
  if (request == kNone || requests_[request].tip != parent) return false;
  const auto paused = requests_.TakePaused(request);
  if (!paused) return false;
  CloseRequest();
  requests_.GoOn(*paused);
  return true;
}

void HazardPolicy::EndRequest(const Ongoing& ended) {
  const Request& request = requests_[ended.request];
  guard_.OnRequest(request.depth);
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
  requests_.End(ended.request);
  samples_.LearnSome(now_us_);
}

void HazardPolicy::Assign(BlockId id, uint32_t request) {
  requests_.MoveBlock(states_[id].request, request);
  states_[id].request = request;
}

// The open request goes on under `parent`, or, if it ended there, another one begins.
void HazardPolicy::JoinRequest(BlockId parent, const BlockTraits& traits, uint64_t now_us) {
  BlockState& state = states_[parent];
  const Request before = requests_[state.request];
  if (before.tip != parent || before.is_ended || state.request != requests_.open().request) {
    OpenRequest(now_us);
    Request& request = requests_[requests_.open().request];
    request.turn = before.turn + 1;
    request.gap = GapOf(before.time_us, now_us);
    request.depth = before.depth;
  }
  const auto mark = static_cast<uint8_t>(traits.key.low);
  const bool is_other_child = state.branches == 0 || state.child_mark != mark;
  state.child_mark = mark;
  if (!is_other_child) return;
  if (state.branches > 0) {  // another chain begins here
    Request& request = requests_[requests_.open().request];
    request.turn = 0;
    request.gap = 0;
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
  const Sample* const waited = samples_.EndWait(fingerprint, now_us_);
  return waited == nullptr ? Sample() : *waited;
}

void HazardPolicy::TakeTurn(const Sample& ghost, uint64_t now_us, uint32_t behind_count) {
  if (!ghost.is_tip) return;
  // The chain ended here when it was last seen: what follows is new.
  Request& request = requests_[requests_.open().request];
  request.turn = ghost.turn + 1;
  request.gap = GapOf(ghost.time_us, now_us);
  request.fresh_count = behind_count;
  request.is_return = true;
}

bool HazardPolicy::IsBehindOpen(BlockId parent) const {
  if (!requests_.has_open() || requests_.open().left_count() == 0) return false;
  const Request& open = requests_[requests_.open().request];
  return open.tip == parent && !open.is_ended;
}

// What is told of once more, since it comes in several parts, is counted once.
void HazardPolicy::OnComing(std::span<const BlockKey> keys, const BlockTraits& first,
                            uint32_t more_count, uint64_t now_us) {
  if (keys.empty()) return;
  EndRun();
  Advance(now_us);
  const bool has_parent = first.parent != kBlockNone && first.parent < states_.reach();
  const bool goes_on = has_parent && (IsBehindOpen(first.parent) || GoOnUnder(first.parent));
  if (!goes_on) EnterRequest(first, now_us);
  Ongoing& open = requests_.open();
  const MissedLookups::Lookup nothing;
  const MissedLookups::Lookup* const found = missed_.Take(FingerprintOf(keys.front()));
  const MissedLookups::Lookup& missed = found == nullptr ? nothing : *found;
  const uint32_t told_count = goes_on ? open.left_count() : 0;
  const uint32_t count =
      std::max({static_cast<uint32_t>(keys.size()) + more_count, missed.count, told_count});
  Request& request = requests_[open.request];
  request.fresh_count += count - told_count;
  request.depth += count - told_count;
  request.time_us = now_us;
  if (missed.count == count) {
    open.tip = missed.tip;
    open.any = missed.any;
  } else if (told_count < count) {
    open.tip = FingerprintOf(keys.back());
  }
  requests_.Tell(keys);
  open.more_count = count - static_cast<uint32_t>(keys.size());
  open.priority = first.priority;
  for (const uint32_t fingerprint : missed.watched) {
    guard_.OnUse(fingerprint, LruGuard::Outcome::kMiss);
  }
  for (const MissedLookups::Waited& waited : missed.waited) {
    if (const Sample* const ghost = samples_.EndWait(waited.fingerprint, now_us_)) {
      TakeTurn(*ghost, now_us, waited.behind_count);
    }
  }
  uint32_t behind_count = count;
  for (const BlockKey& key : keys) TakeTurn(TakeGhost(FingerprintOf(key)), now_us, --behind_count);
}

void HazardPolicy::OnMissed(std::span<const BlockKey> keys, const MissedRest& rest) {
  if (keys.empty()) return;
  uint32_t behind_count = static_cast<uint32_t>(keys.size()) + rest.count;
  MissedLookups::Lookup& missed = missed_.Add();
  missed.first = FingerprintOf(keys.front());
  missed.tip = FingerprintOf(rest.count == 0 ? keys.back() : rest.last);
  missed.any = FingerprintOf(keys[Random() % keys.size()]);
  missed.count = behind_count;
  for (const BlockKey& key : keys) {
    const uint32_t fingerprint = FingerprintOf(key);
    --behind_count;
    if (guard_.IsSampled(fingerprint) && missed.watched.size() < kWatchedMax) {
      missed.watched.push_back(fingerprint);
    }
    if (missed.waited.size() < kWaitedMax && samples_.IsWaitedFor(fingerprint)) {
      missed.waited.push_back({fingerprint, behind_count});
    }
  }
}

bool HazardPolicy::PassesBy() const {
  const Ongoing& open = requests_.open();
  if (!open.are_left() || IsByAge() || open.priority > lowest_priority_) return false;
  const BlockId victim = Victim();
  if (victim == kBlockNone) return false;
  return open.priority < lowest_priority_ || IndexOfNewcomer() < IndexOf(victim);
}

// Why its request will end is not known: as the late ones ended.
float HazardPolicy::IndexOfNewcomer() const {
  const uint32_t open = requests_.open().request;
  const std::span<const float> shares = requests_.reason_shares();
  Request request = requests_[open];
  float sum = 0, weight = 0;
  for (uint8_t reason = 0; reason < shares.size(); ++reason) {
    if (shares[reason] < kReasonShareMin) continue;
    request.reason = reason;
    sum += shares[reason] * IndexOf(BlockState{.request = open}, request);
    weight += shares[reason];
  }
  return sum / weight;
}

void HazardPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) {
  EndRun();
  Advance(now_us);
  states_.Reach(id);
  states_[id] = BlockState{.fingerprint = FingerprintOf(traits.key), .priority = traits.priority};
  ++resident_count_;
  Ongoing& open = requests_.open();
  if (requests_.IsNext(traits.key)) {
    ++open.arrived_count;
    if (states_[id].fingerprint == open.any) {
      open.any = 0;
      open.watched_new = id;
    }
  } else {
    const Sample ghost = TakeGhost(states_[id].fingerprint);
    EnterRequest(traits, now_us);
    ++requests_[open.request].depth;
    ++requests_[open.request].fresh_count;
    TakeTurn(ghost, now_us, 0);
  }
  Request& request = requests_[open.request];
  request.time_us = now_us;
  request.tip = request.end = id;
  Assign(id, open.request);
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
    if (const auto paused = requests_.TakePaused(before)) EndRequest(*paused);
    return;
  }
  // Whoever came in between has made two requests of it.
  const bool is_rest = context.behind != kBlockNone && run_.last == context.behind;
  uint32_t depth = static_cast<uint32_t>(run.size());
  Ongoing& open = requests_.open();
  if (is_rest) {
    depth += requests_[open.request].depth;
  } else {
    EndRun();
  }
  const uint32_t turn = requests_[before].turn + 1;
  const uint8_t tip_gap = GapOf(requests_[before].time_us, context.now_us);
  if (!is_rest) OpenRequest(context.now_us);
  Request& opened = requests_[open.request];
  opened.tip = opened.end = run.back();
  opened.turn = turn;
  opened.gap = tip_gap;
  opened.depth = depth;
  if (!is_rest || Random() % depth < run.size()) open.watched_hit = run[Random() % run.size()];
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
      samples_.EndWait(state.fingerprint, now_us_);
      state.is_sampled = false;
    }
    if (state.request != last_request) {
      last_request = state.request;
      gap = GapOf(requests_[last_request].time_us, now_us);
    }
    state.gap = gap;
    state.was_used = true;
    Assign(id, requests_.open().request);
  }
}

void HazardPolicy::EndRun() {
  const Run run = std::exchange(run_, {});
  if (run.last == kBlockNone || states_[run.last].branches >= 2) return;
  LeavePath(run.before, requests_[requests_.open().request].depth);
}

// A chat that was edited, an agent that shortened its context: what is behind is left for good,
// mostly. How often, the model learns.
void HazardPolicy::LeavePath(uint32_t request, uint32_t used_count) {
  Request& left = requests_[request];
  if (left.end == kBlockNone || states_[left.end].request != request || left.fork != 0) return;
  left.fork = 2 * uint64_t{used_count} < left.depth ? 1 : 2;
  samples_.OnFork({.fingerprint = left.tip_fingerprint, .time_us = left.time_us, .fork = left.fork},
                  now_us_);
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
  Ongoing& open = requests_.open();
  if (open.watched_hit == id) open.watched_hit = kBlockNone;
  if (open.watched_new == id) open.watched_new = kBlockNone;
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
  if (state.request == requests_.open().request) newest_ = id;
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
  Request& request = requests_[state.request];
  samples_.Add({.time_us = request.time_us,
                .fingerprint = state.fingerprint,
                .turn = request.turn,
                .traits = TraitsOf(state, request),
                .is_tip = is_tip},
               now_us_);
  if (is_tip) request.tip_fingerprint = state.fingerprint;
}

}  // namespace terrace
