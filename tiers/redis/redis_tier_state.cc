#include "tiers/redis/redis_tier_state.h"

#include <algorithm>
#include <asio/post.hpp>
#include <utility>

#include "terrace/check.h"

namespace terrace {

using Answer = RedisTierAnswer;

namespace {

// Of one question to the servers.
constexpr size_t kErasedAtOnceMax = 256;
// A second, at groups that have risen.
constexpr size_t kLooksAtOnceMax = 16;
// Beside the time to live: what was on its way when it was erased.
constexpr uint64_t kUntilMarginUs = 60 * kUsPerSecond;
constexpr uint64_t kTtlUsualUs = 24 * 3600 * kUsPerSecond;  // redis.ttl_s where nobody sets it

bool IsTransfer(Answer::Kind kind) {
  return kind == Answer::Kind::kFetch || kind == Answer::Kind::kStore;
}

bool IsStored(const Status& status) { return status.ok() || status.code() == StatusCode::kExists; }

// Whether it was done, or will not be any more.
bool IsStoreOver(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kExists:
    case StatusCode::kNoSpace:
    case StatusCode::kNotFound:
    case StatusCode::kInvalid:
    case StatusCode::kGone:
      return true;
    default:
      return false;
  }
}

}  // namespace

// ---- store thread ----

RedisTier::State::State(Options given) : options(std::move(given)), absence(options.absence_us) {
  for (const GroupGeneration& kept : options.memory.generations) {
    Known& one = known[kept.group];
    one.heard.generation = kept.generation;
    SetOwed(&one, kept.is_owed);
  }
  const uint64_t now_us = RedisNowUs(), now_s = options.unix_us() / kUsPerSecond;
  for (const bool is_of_any : {true, false}) {
    for (const KeptErasure& kept : options.memory.erasures) {
      const bool is_over = kept.until_s != 0 && kept.until_s <= now_s;
      if (kept.group.is_zero() != is_of_any || is_over) continue;
      const uint64_t left_s = kept.until_s - std::min(now_s, kept.until_s);
      erasures.Restore(kept, {.now_us = now_us,
                              .until_us = now_us + left_s * kUsPerSecond,
                              .until_s = kept.until_s,
                              .until_s_untold = kept.until_s});
    }
  }
}

Status RedisTier::State::Admit(Operation operation, uint64_t* id) {
  if (is_stopped || !is_ready.load(std::memory_order_relaxed)) {
    return Status(StatusCode::kUnsupported, "the Redis server does not work now");
  }
  const bool has_room = operations.size() < options.operations_max &&
                        bytes_in_flight + operation.length_bytes <= options.bytes_max;
  if (!has_room && operation.kind != Answer::Kind::kErase) {  // one at a time, and owed
    return Status(StatusCode::kBusy, "enough is under way to the Redis server");
  }
  *id = next_id++;
  bytes_in_flight += operation.length_bytes;
  operation.began_us = RedisNowUs();
  if (operation.kind == Answer::Kind::kFetch) {
    read_bytes_in_flight += operation.length_bytes;
    speed.OnFetchBegun(operation.began_us);
  }
  if (IsTransfer(operation.kind)) under_way.emplace(operation.names.front().key, *id);
  operations.emplace(*id, std::move(operation));
  return Status::Ok();
}

void RedisTier::State::TakeAnswers(std::vector<Answer>& answers) {
  for (Answer& answer : answers) {
    if (is_stopped) return;  // maybe from inside an answer
    Deliver(answer);
  }
  if (std::exchange(has_learnt, false)) Keep();  // of many groups at once
}

void RedisTier::State::Deliver(Answer& answer) {
  const auto found = operations.find(answer.id);
  TERRACE_CHECK(found != operations.end(), "an answer to nothing");
  Operation operation = std::move(found->second);
  operations.erase(found);
  if (IsTransfer(operation.kind)) {
    const auto [first, last] = under_way.equal_range(operation.names.front().key);
    under_way.erase(
        std::find_if(first, last, [&](const auto& one) { return one.second == answer.id; }));
  }
  TERRACE_CHECK(bytes_in_flight >= operation.length_bytes &&
                    (!operations.empty() || bytes_in_flight == operation.length_bytes),
                "bytes in flight are those of the operations: a rest would stay for ever");
  bytes_in_flight -= operation.length_bytes;
  if (operation.kind == Answer::Kind::kRise) return EndRise(operation, answer);
  if (answer.heard) LearnGeneration(operation.group, *answer.heard);
  const Known& group_known = KnownOf(operation.group);
  for (RedisBlockName& name : operation.names) name.generation = group_known.heard.generation;
  // Begun before the group was forgotten, by this host's order or, as it has heard meanwhile, by
  // another's: what comes is of before, and says nothing of the names of now.
  const bool is_of_before =
      answer.names_generation &&
      (group_known.is_owed || *answer.names_generation != group_known.heard.generation);
  switch (operation.kind) {
    case Answer::Kind::kLook:
      KnownOf(operation.group).is_looking = false;
      return;
    case Answer::Kind::kFetch:
      return EndFetch(operation, is_of_before, &answer);
    case Answer::Kind::kStore:
      if (is_of_before && IsStored(answer.status)) {
        answer.status = Status(StatusCode::kGone, kForgottenMeanwhile);
      }
      if (IsStored(answer.status)) {
        absence.Forget(operation.names.front());
        erasures.NoteStored(operation.names.front());
      }
      if (!IsStoreOver(answer.status)) erasures.NoteLost(operation.names.front());
      if (erasures.names_owed() > 0 || erasures.is_changed()) EraseSoon();
      options.listener->OnSharedStored(operation.caller_id, answer.status);
      return;
    case Answer::Kind::kProbe:
      return EndProbe(operation, is_of_before, answer);
    case Answer::Kind::kErase:
      return EndErase(operation, answer);
    case Answer::Kind::kDrop:
    case Answer::Kind::kRise:
      return;
  }
}

void RedisTier::State::EndFetch(const Operation& operation, bool is_of_before, Answer* answer) {
  const uint64_t now_us = RedisNowUs();
  const RedisBlockName& name = operation.names.front();
  read_bytes_in_flight -= operation.length_bytes;
  speed.OnFetchEnded(now_us);
  if (answer->status.ok()) {
    speed.OnFetched(operation.began_us, operation.length_bytes, now_us);
  }
  if (is_of_before) {
    if (answer->status.ok()) answer->status = Status(StatusCode::kNotFound, kForgottenMeanwhile);
  } else if (answer->status.ok() && (operation.is_erased || IsBarred(name))) {
    answer->status = Status(StatusCode::kNotFound, "the block was erased meanwhile");
  } else if (answer->status.ok()) {
    erasures.NoteStored(name);
  } else if (answer->status.code() == StatusCode::kNotFound ||
             answer->status.code() == StatusCode::kCorrupt) {
    absence.Remember(name, now_us);
  }
  options.listener->OnSharedFetched(operation.caller_id, answer->status,
                                    RecordOf(answer->manifest));
}

void RedisTier::State::EndProbe(const Operation& operation, bool is_of_before,
                                const Answer& answer) {
  TERRACE_CHECK(!answer.status.ok() || answer.is_present.size() == operation.asked.size(),
                "a probe is answered name by name: else one is taken for another");
  const uint64_t now_us = RedisNowUs();
  std::vector<bool> is_present(operation.names_total);
  const bool is_said = answer.status.ok() && !is_of_before;
  for (size_t i = 0; is_said && i < operation.asked.size(); ++i) {
    is_present[operation.asked[i]] = answer.is_present[i] && !IsBarred(operation.names[i]);
    if (!answer.is_present[i]) absence.Remember(operation.names[i], now_us);
  }
  if (answer.status.ok() && !operation.asked.empty()) speed.OnProbed(operation.began_us, now_us);
  options.listener->OnSharedProbed(operation.caller_id, answer.status, is_present);
}

// ---- generations ----

RedisTier::State::Known& RedisTier::State::KnownOf(const GroupId& group) {
  const auto found = known.find(group);
  if (found != known.end()) return found->second;
  while (known.size() >= kRedisGroupsMax) LoseOneGroup();
  Known& added = known[group];
  SetOwed(&added, options.is_memory_lost || erasures.has_all_in_any_group());
  return added;
}

// What is not remembered of a group any more, a rise that the server may have lost or that it is
// owed, is made good when the group is met again: it is forgotten then.
void RedisTier::State::LoseOneGroup() {
  const auto cost = [](const auto& one) {
    if (one.second.is_rising || one.second.is_looking) return 4;
    if (one.second.is_owed) return 3;
    if (RedisGenerations::HasRisen(one.second.heard.generation)) return 2;
    return one.second.heard.generation != 0 ? 1 : 0;
  };
  auto lost = known.begin();
  for (auto one = known.begin(); one != known.end() && cost(*lost) > 0; ++one) {
    if (cost(*one) < cost(*lost)) lost = one;
  }
  const bool is_missed = cost(*lost) > 1;
  SetOwed(&lost->second, false);
  known.erase(lost);
  const BlockKey all;
  if (is_missed && !erasures.has_all_in_any_group()) OweInAnyGroup({&all, 1});
}

Result<bool> RedisTier::State::MustAsk(const GroupId& group, bool is_look) {
  const Known& group_known = KnownOf(group);
  if (group_known.is_owed) {
    return Status(StatusCode::kUnsupported, "the Redis server is to forget the group's blocks");
  }
  return !HasHeard(group_known) || (is_look && IsOld(group_known, RedisNowUs()));
}

bool RedisTier::State::HasHeard(const Known& group_known) const {
  return group_known.heard.at_us != 0 &&
         group_known.heard.of_return == returns.load(std::memory_order_relaxed);
}

bool RedisTier::State::IsOld(const Known& group_known, uint64_t now_us) {
  return now_us - group_known.heard.at_us >= kRedisAskAgainUs;
}

RedisGenerations::Question RedisTier::State::QuestionOf(const GroupId& group) {
  const Known& group_known = KnownOf(group);
  const HeardGeneration& heard = group_known.heard;
  return {.group = group,
          .at_least = heard.generation,
          .is_from_just_now = heard.at_us != 0 && RedisNowUs() - heard.at_us <= kRedisBelievedUs,
          .is_first_since_return = !HasHeard(group_known)};
}

void RedisTier::State::LearnGeneration(const GroupId& group, const HeardGeneration& heard) {
  Known& group_known = KnownOf(group);
  const HeardGeneration before = group_known.heard;
  if (group_known.is_owed || heard.generation < before.generation) return;
  // What is here of a group that was never ordered to be forgotten is of now. Of another it may be
  // of before: a predecessor of this process left it, or it came before the server was asked.
  const bool has_risen = RedisGenerations::HasRisen(heard.generation);
  group_known.heard = heard;
  if (heard.generation == before.generation && !(before.at_us == 0 && has_risen)) return;
  has_learnt = true;
  if (before.generation != 0 && heard.generation != before.generation) {
    ++(heard.is_lost ? generations_lost : has_risen ? forgotten_elsewhere : begun_anew);
  }
  if (has_risen) options.listener->OnSharedForgotten(group);
}

void RedisTier::State::StartLook(const GroupId& group) {
  Known& group_known = KnownOf(group);
  if (group_known.is_looking) return;
  uint64_t id = 0;
  if (!Admit({.kind = Answer::Kind::kLook, .group = group}, &id).ok()) return;
  group_known.is_looking = true;
  group_known.begun_us = RedisNowUs();
  Give([this, id, known_before = QuestionOf(group)] {
    generations->Agree(known_before, [this, id](Status status, const Agreed& agreed) {
      Answer answer{.kind = Answer::Kind::kLook, .id = id, .status = status};
      if (status.ok()) answer.heard = HeardNow(agreed);
      Put(std::move(answer));
    });
  });
}

void RedisTier::State::LookAtRisen() {
  if (!is_ready.load(std::memory_order_relaxed)) return;
  const uint64_t now_us = RedisNowUs();
  std::vector<std::pair<uint64_t, GroupId>> due;
  for (const auto& [group, one] : known) {
    const bool is_due = !HasHeard(one) || IsOld(one, now_us);
    const bool has_risen = RedisGenerations::HasRisen(one.heard.generation);
    if (has_risen && !one.is_owed && !one.is_looking && is_due) {
      due.emplace_back(std::max(one.heard.at_us, one.begun_us), group);
    }
  }
  const auto last = due.begin() + static_cast<ptrdiff_t>(std::min(due.size(), kLooksAtOnceMax));
  std::partial_sort(due.begin(), last, due.end());
  for (auto one = due.begin(); one != last; ++one) StartLook(one->second);
}

void RedisTier::State::StartRise(const GroupId& group) {
  Known& group_known = KnownOf(group);
  if (!group_known.is_owed || group_known.is_rising) return;
  uint64_t id = 0;
  const Status admitted =
      Admit({.kind = Answer::Kind::kRise, .group = group, .forgets = group_known.forgets}, &id);
  if (!admitted.ok()) return;  // Tick
  group_known.is_rising = true;
  group_known.begun_us = RedisNowUs();
  Give([this, id, group, at_least = group_known.heard.generation,
        is_again = group_known.has_failed] {
    generations->Agree(
        {.group = group, .at_least = at_least, .is_again = is_again, .is_rise = true},
        [this, id](Status status, const Agreed& agreed) {
          Put({.kind = Answer::Kind::kRise, .id = id, .status = status, .heard = HeardNow(agreed)});
        });
  });
}

void RedisTier::State::StartRises() {
  std::vector<std::pair<uint64_t, GroupId>> owed;
  for (const auto& [group, one] : known) {
    if (one.is_owed && !one.is_rising) owed.emplace_back(one.begun_us, group);
  }
  std::ranges::sort(owed);
  for (const auto& [begun_us, group] : owed) StartRise(group);
}

void RedisTier::State::EndRise(const Operation& operation, const Answer& answer) {
  const GroupId group = operation.group;
  if (!answer.status.ok()) {
    Known& failed = KnownOf(group);
    failed.is_rising = false;
    failed.has_failed = true;
    return;  // Tick
  }
  // Others may have given such an order since this host did, and the server may have lost that one:
  // what is here now may be of before theirs.
  options.listener->OnSharedForgotten(group);
  Known& group_known = KnownOf(group);
  group_known.is_rising = group_known.has_failed = false;
  if (answer.heard->generation >= group_known.heard.generation) group_known.heard = *answer.heard;
  SetOwed(&group_known, group_known.forgets != operation.forgets);
  if (!group_known.is_owed) ++forgets_done;
  Keep();
  StartRise(group);
}

// Nothing of before has a name then: what is owed of it need not be erased one by one.
void RedisTier::State::Owe(const GroupId& group) {
  Known& group_known = KnownOf(group);
  ++group_known.forgets;
  SetOwed(&group_known, true);
  erasures.ReplaceGroup(group, keep_revision + 1);
  Keep();
  StartRise(group);
}

void RedisTier::State::Keep() {
  if (options.keep == nullptr) return;
  RedisMemory memory;
  for (const auto& [group, one] : known) {
    if (one.heard.generation == 0 && !one.is_owed) continue;
    memory.generations.push_back({group, one.heard.generation, one.is_owed});
  }
  std::ranges::sort(memory.generations, {}, &GroupGeneration::group);
  memory.erasures = erasures.TakeKept(++keep_revision);
  options.keep(keep_revision, std::move(memory));
}

// ---- erasures ----

std::vector<RedisTier::State::Operation*> RedisTier::State::UnderWay(const RedisBlockName& name,
                                                                     Answer::Kind kind) {
  std::vector<Operation*> found;
  const auto [first, last] = under_way.equal_range(name.key);
  for (auto one = first; one != last; ++one) {
    Operation& operation = operations.at(one->second);
    const RedisBlockName& other = operation.names.front();
    if (operation.kind == kind && other.group == name.group && other.space == name.space) {
      found.push_back(&operation);
    }
  }
  return found;
}

void RedisTier::State::Erase(const RedisBlockName& name, OwedErasures::Scope scope) {
  if (is_stopped) return;
  if (Known& group_known = KnownOf(name.group); group_known.is_owed) {
    // The rise that is to come takes it along. One that is under way may have been made before
    // others stored the block: another follows it.
    if (group_known.is_rising) ++group_known.forgets;
    return;
  }
  for (Operation* const fetch : UnderWay(name, Answer::Kind::kFetch)) fetch->is_erased = true;
  const OwedErasures::Times times = ErasureTimes();
  while (!KnownOf(name.group).is_owed && !erasures.Add(name, scope, times)) ForgetLargest();
  EraseSoon();
}

Status RedisTier::State::EraseInAnyGroup(std::span<const BlockKey> keys) {
  if (is_stopped) return Status::Ok();
  const size_t owed = erasures.in_any_group_count() + erasures.CountNewInAnyGroup(keys);
  if (owed > OwedErasures::kInAnyGroupMax) {
    static_assert(OwedErasures::kInAnyGroupMax == 4096, "the sentence says so");
    return Status(StatusCode::kNoSpace,
                  "at most 4,096 keys of groups that are not known here are remembered until "
                  "engines open these: what was evicted by now stays so; for the others evict all "
                  "of their group, or of the domain");
  }
  OweInAnyGroup(keys);
  EraseSoon();
  return Status::Ok();
}

// Groups that are met later are forgotten when they are; those of a predecessor, now.
void RedisTier::State::ForgetAll() {
  if (is_stopped) return;
  const BlockKey all;
  OweInAnyGroup({&all, 1});
  for (auto& [group, one] : known) {
    ++one.forgets;
    SetOwed(&one, true);
    erasures.ReplaceGroup(group, keep_revision + 1);
  }
  Keep();
}

void RedisTier::State::OweInAnyGroup(std::span<const BlockKey> keys) {
  OwedErasures::Times times = ErasureTimes();
  // No server can be told before somebody names the group.
  times.until_s_untold = times.until_s;
  for (const BlockKey& key : keys) {
    while (!erasures.AddInAnyGroup(key, times)) ForgetLargest();
  }
}

// Other hosts may let blocks stay for longer, or this one did before.
OwedErasures::Times RedisTier::State::ErasureTimes() const {
  const uint64_t left_us = std::max(options.ttl_ms * 1000, kTtlUsualUs) + kUntilMarginUs;
  const uint64_t now_us = RedisNowUs(), now_s = options.unix_us() / kUsPerSecond;
  return {.now_us = now_us,
          .until_us = now_us + left_us,
          .until_s = now_s + left_us / kUsPerSecond + 1,
          .until_s_untold = now_s + kRedisTtlSecondsMax};
}

void RedisTier::State::ForgetLargest() {
  const GroupId largest = erasures.LargestGroup();
  Owe(largest);
  options.post([self = shared_from_this(), largest] {
    if (!self->is_stopped) self->options.listener->OnSharedForgotten(largest);
  });
}

bool RedisTier::State::IsBarred(const RedisBlockName& name) {
  if (!erasures.IsOwed(name)) return false;
  erasures.Name(name, RedisNowUs());
  EraseSoon();
  return true;
}

void RedisTier::State::EraseSoon() {
  if (std::exchange(is_erasing_soon, true)) return;
  options.post([self = shared_from_this()] {
    self->is_erasing_soon = false;
    if (self->is_stopped) return;
    self->EraseDue();
    self->KeepChanges();
  });
}

// One question at a time, about many: what is erased meanwhile is the next one's. An erasure comes
// behind the stores of its block that are under way: before them it would be for nothing. The
// generation is asked for each time: others may have stored the block in one that this host has not
// heard of, and will.
void RedisTier::State::EraseDue() {
  const uint64_t now_us = RedisNowUs();
  if (!is_ready.load(std::memory_order_relaxed)) return erasures.Age(now_us, 0);
  erasures.NoteReady(now_us);
  if (is_erasing) return;
  std::vector<RedisBlockName> names = erasures.TakeDue(
      now_us, kErasedAtOnceMax,
      [this](const RedisBlockName& name) { return UnderWay(name, Answer::Kind::kStore).empty(); });
  if (names.empty()) return;
  const GroupId group = names.front().group;
  uint64_t id = 0;
  if (KnownOf(group).is_owed ||
      !Admit({.kind = Answer::Kind::kErase, .group = group, .names = names}, &id).ok()) {
    for (const RedisBlockName& name : names) erasures.EndAsked(name, false, now_us);
    return;
  }
  is_erasing = true;
  const auto erase = [this, id, names = std::move(names)](Status status, const Agreed& agreed) {
    Answer answer{.kind = Answer::Kind::kErase, .id = id, .status = status};
    if (!status.ok()) return Put(std::move(answer));
    answer.heard = HeardNow(agreed);
    std::vector<RedisBlockName> named = names;
    for (RedisBlockName& name : named) name.generation = agreed.generation;
    EraseAll(named, std::move(answer));
  };
  Give([this, known_before = QuestionOf(group), erase] {
    WithGeneration(known_before, true, erase);
  });
}

void RedisTier::State::EndErase(const Operation& operation, const Answer& answer) {
  is_erasing = false;
  const uint64_t now_us = RedisNowUs();
  for (size_t i = 0; i < operation.names.size(); ++i) {
    const bool is_erased = answer.status.ok() && !answer.is_present[i];
    erasures.EndAsked(operation.names[i], is_erased, now_us);
  }
  EraseSoon();
}

// ---- Redis thread ----

void RedisTier::State::WithGeneration(const RedisGenerations::Question& known_before, bool must_ask,
                                      Then then) {
  if (!must_ask) return then(Status::Ok(), {.generation = known_before.at_least});
  generations->Agree(known_before, std::move(then));
}

void RedisTier::State::EraseAll(const std::vector<RedisBlockName>& names, Answer answer) {
  struct Job {
    Answer answer;
    size_t answers_due = 0;
  };
  const auto job = std::make_shared<Job>(Job{std::move(answer), names.size()});
  job->answer.is_present.resize(names.size(), true);
  for (size_t i = 0; i < names.size(); ++i) {
    blocks->Erase(names[i], [this, job, i](Status status) {
      job->answer.is_present[i] = !status.ok();
      TERRACE_CHECK(job->answers_due > 0, "an erasure is answered once");
      if (--job->answers_due == 0) Put(std::move(job->answer));
    });
  }
}

void RedisTier::State::Put(Answer answer) {
  if (finished.empty()) asio::post(loop, [this] { HandOver(); });
  finished.push_back(std::move(answer));
}

HeardGeneration RedisTier::State::HeardNow(const Agreed& agreed) const {
  return {.generation = agreed.generation,
          .at_us = RedisNowUs(),
          .of_return = returns.load(std::memory_order_relaxed),
          .is_lost = agreed.is_lost};
}

// What one turn of the loop has finished is one turn of the store thread.
void RedisTier::State::HandOver() {
  PublishStats();
  options.post([self = shared_from_this(), answers = std::exchange(finished, {})]() mutable {
    self->TakeAnswers(answers);
  });
}

void RedisTier::State::PublishStats() {
  const RedisServersStats server = servers->stats();
  const RedisBlocksCounts& counts = blocks->counts();
  returns.store(server.returns, std::memory_order_relaxed);
  is_ready.store(server.is_ready, std::memory_order_relaxed);
  std::lock_guard lock(mutex);
  shared_stats.is_ready = server.is_ready;
  shared_stats.is_refused = server.refusal == RedisRefusal::kLogin ||
                            server.refusal == RedisRefusal::kCertificate || server.is_denied;
  shared_stats.is_tls_refused = server.refusal == RedisRefusal::kCertificate;
  shared_stats.is_of_another_kind = server.refusal == RedisRefusal::kKind;
  shared_stats.tls_trouble = tls == nullptr ? "" : tls->trouble();
  shared_stats.trouble = server.trouble;
  shared_stats.is_full = server.write_refusal == RedisError::kOutOfMemory;
  shared_stats.write_trouble = server.write_trouble;
  shared_stats.part_trouble = server.is_ready ? server.part_trouble : "";
  shared_stats.read_bytes = counts.read_bytes;
  shared_stats.written_bytes = counts.written_bytes;
  shared_stats.fetches_found = counts.fetches_found;
  shared_stats.fetches_missed = counts.fetches_missed;
  shared_stats.fetches_broken = counts.fetches_broken;
  shared_stats.fetches_failed = counts.fetches_failed;
  fetches_locked.store(counts.fetches_locked, std::memory_order_relaxed);
  shared_stats.stores_done = counts.stores_done;
  shared_stats.stores_existing = counts.stores_existing;
  shared_stats.stores_failed = counts.stores_failed;
  shared_stats.repairs = counts.repairs;
  shared_stats.connections = server.counts.connections;
  shared_stats.connection_attempts = server.counts.attempts;
  shared_stats.connections_lost = server.counts.connections_lost;
  shared_stats.breaker_opened = server.counts.breaker_opened;
}

void RedisTier::State::Unwind() {
  servers->Close(Status(StatusCode::kGone, "the Redis tier ends"));
  inbox->Close();
}

void RedisTier::State::Run() {
  servers->Start();
  loop.run();
  std::lock_guard lock(mutex);
  end = RedisEnd::kEnded;
  has_ended.notify_all();
}

}  // namespace terrace
