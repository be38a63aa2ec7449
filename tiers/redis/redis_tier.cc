#include "tiers/redis/redis_tier.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "tiers/disk/left_behind.h"
#include "tiers/redis/redis_chunks.h"
#include "tiers/redis/redis_tier_state.h"

namespace terrace {

using Answer = RedisTierAnswer;

namespace {

const Status kOwed(StatusCode::kUnsupported, "the Redis server is to erase the block first");
// Of a tier that goes without having been stopped.
constexpr uint64_t kUnwindUs = 10 * kUsPerSecond;

}  // namespace

RedisTier::RedisTier(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<RedisTier>> RedisTier::Open(Options options, std::string* why) {
  TERRACE_CHECK(
      options.post != nullptr && options.listener != nullptr && options.unix_us != nullptr,
      "a Redis tier without a way back");
  const std::shared_ptr<State> state = std::make_shared<State>(std::move(options));
  if (state->options.endpoints.empty()) {
    *why = "no address of a Redis server is given";
    return Status(StatusCode::kInvalid, "a Redis tier without a server");
  }
  if (state->options.is_tls) {
    Result<std::unique_ptr<RedisTls>> tls = RedisTls::Open(state->options.tls, why);
    if (!tls.ok()) return tls.status();
    state->tls = std::move(*tls);
  }
  if (!state->options.credentials_file.empty()) {
    RedisCredentials unused;
    TERRACE_RETURN_IF_ERROR(ReadRedisCredentials(state->options.credentials_file, &unused, why));
  }
  state->servers = std::make_unique<RedisServers>(RedisServers::Options{
      .node = {.loop = &state->loop,
               .connection = {.credentials_file = state->options.credentials_file,
                              .tls = state->tls.get(),
                              .permission_key = state->options.permission_key(),
                              .timeouts = state->options.timeouts},
               .connections = state->options.connections,
               .breaker = state->options.breaker},
      .topology = state->options.topology,
      .endpoints = state->options.endpoints,
      .master_name = state->options.master_name,
      .look_key = state->options.look_key(),
      .health_changed = [raw = state.get()] { raw->PublishStats(); }});
  state->blocks =
      std::make_unique<RedisBlocks>(RedisBlocks::Options{.secret = state->options.secret,
                                                         .prefix = state->options.prefix,
                                                         .ttl_ms = state->options.ttl_ms,
                                                         .unix_us = state->options.unix_us,
                                                         .servers = state->servers.get(),
                                                         .ring = state->options.ring,
                                                         .random = state->options.random});
  state->generations = std::make_unique<RedisGenerations>(
      RedisGenerations::Options{.secret = state->options.secret,
                                .prefix = state->options.prefix,
                                .version = state->options.version(),
                                .unix_us = state->options.unix_us,
                                .steady_us = RedisNowUs,
                                .servers = state->servers.get()});
  // Whoever gives it work, or asks, goes on first.
  try {
    state->thread = StartThread(
        "terrace-redis", [raw = state.get()] { raw->Run(); }, Waking::kPatient);
  } catch (...) {  // there are no more threads to be had
    state->Unwind();
    throw;
  }
  return std::unique_ptr<RedisTier>(new RedisTier(state));
}

RedisTier::~RedisTier() {
  BeginStop();
  (void)EndThread(kUnwindUs);
}

Status RedisTier::Fetch(TransferId transfer_id, const RedisBlockName& name,
                        std::span<std::byte> into) {
  TERRACE_CHECK(!into.empty(), "a fetch of nothing");
  const Result<bool> must_ask = state_->MustAsk(name.group, false);
  if (!must_ask.ok()) return must_ask.status();
  if (state_->IsBarred(name)) return kOwed;
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kFetch,
                                         .group = name.group,
                                         .caller_id = transfer_id,
                                         .length_bytes = into.size(),
                                         .names = {name}},
                                        &id));
  const auto fetch = [state = state_.get(), id, name, into, is_asked = *must_ask](
                         Status status, const State::Agreed& agreed) {
    Answer answer{.kind = Answer::Kind::kFetch, .id = id, .status = status};
    if (!status.ok()) return state->Put(std::move(answer));
    if (is_asked) answer.heard = state->HeardNow(agreed);
    answer.names_generation = agreed.generation;
    RedisBlockName named = name;
    named.generation = agreed.generation;
    state->blocks->Fetch(named, into,
                         [state, answer](Status status, RedisManifest manifest) mutable {
                           answer.status = status;
                           answer.manifest = std::move(manifest);
                           state->Put(std::move(answer));
                         });
  };
  state_->Give([state = state_.get(), known = state_->QuestionOf(name.group), must_ask = *must_ask,
                fetch] { state->WithGeneration(known, must_ask, fetch); });
  return Status::Ok();
}

Status RedisTier::Store(TransferId transfer_id, const BlockKey& run, const BlockRecord& record,
                        std::span<const std::byte> from) {
  TERRACE_CHECK(!from.empty(), "a store of nothing");
  if (from.size() > kRedisBlockBytesMax || record.part_checksums.size() > kPartsPerSpaceMax) {
    return Status(StatusCode::kInvalid, "a block beyond what a Redis server is given");
  }
  const Result<bool> must_ask = state_->MustAsk(record.group, true);
  if (!must_ask.ok()) return must_ask.status();
  const State::Known& known = state_->KnownOf(record.group);
  if (known.heard.at_us == 0 && RedisGenerations::HasRisen(known.heard.generation)) {
    state_->StartLook(record.group);
    return Status(StatusCode::kUnsupported, "the group's blocks here may be of before");
  }
  const RedisBlockName name{.group = record.group,
                            .space = record.space,
                            .key = record.key,
                            .run = run,
                            .position = record.position,
                            .generation = known.heard.generation};
  if (state_->IsBarred(name)) return kOwed;
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kStore,
                                         .group = name.group,
                                         .caller_id = transfer_id,
                                         .length_bytes = from.size(),
                                         .names = {name}},
                                        &id));
  const auto store = [state = state_.get(), id, name, from, manifest = ManifestOf(record),
                      is_asked = *must_ask](Status status, const State::Agreed& agreed) {
    Answer answer{.kind = Answer::Kind::kStore, .id = id, .status = status};
    if (!status.ok()) return state->Put(std::move(answer));
    if (is_asked) answer.heard = state->HeardNow(agreed);
    if (agreed.generation != name.generation && RedisGenerations::HasRisen(agreed.generation)) {
      // These bytes are of before.
      answer.status = Status(StatusCode::kGone, kForgottenMeanwhile);
      return state->Put(std::move(answer));
    }
    answer.names_generation = agreed.generation;
    RedisBlockName named = name;
    named.generation = agreed.generation;
    state->blocks->Store(named, manifest, from, [state, answer](Status status) mutable {
      answer.status = status;
      state->Put(std::move(answer));
    });
  };
  state_->Give([state = state_.get(), known = state_->QuestionOf(name.group), must_ask = *must_ask,
                store] { state->WithGeneration(known, must_ask, store); });
  return Status::Ok();
}

Status RedisTier::Probe(uint64_t probe_id, std::span<const RedisBlockName> names) {
  if (names.size() > state_->options.probe_names_max) {
    return Status(StatusCode::kInvalid, "more names than one probe takes");
  }
  const GroupId group = names.empty() ? GroupId{} : names.front().group;
  const Result<bool> must_ask = state_->MustAsk(group, true);
  if (!must_ask.ok()) return must_ask.status();
  const RedisGenerations::Question known = state_->QuestionOf(group);
  State::Operation operation{.kind = Answer::Kind::kProbe,
                             .group = group,
                             .caller_id = probe_id,
                             .names_total = names.size()};
  const uint64_t now_us = RedisNowUs();
  for (size_t i = 0; i < names.size(); ++i) {
    TERRACE_CHECK(names[i].group == group, "one probe is of one group");
    RedisBlockName name = names[i];
    name.generation = known.at_least;
    if (state_->absence.IsAbsent(name, now_us) || state_->IsBarred(name)) continue;
    operation.names.push_back(name);
    operation.asked.push_back(i);
  }
  std::vector<RedisBlockName> asked = operation.names;
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit(std::move(operation), &id));
  state_->probes += names.size();
  state_->probes_remembered += names.size() - asked.size();
  const auto probe = [state = state_.get(), id, asked = std::move(asked), is_asked = *must_ask](
                         Status status, const State::Agreed& agreed) {
    Answer answer{.kind = Answer::Kind::kProbe, .id = id, .status = status};
    if (!status.ok()) return state->Put(std::move(answer));
    if (is_asked) answer.heard = state->HeardNow(agreed);
    answer.names_generation = agreed.generation;
    std::vector<RedisBlockName> named = asked;
    for (RedisBlockName& name : named) name.generation = agreed.generation;
    state->blocks->Probe(
        std::move(named),
        [state, answer](Status status, const std::vector<bool>& is_present) mutable {
          answer.status = status;
          answer.is_present = is_present;
          state->Put(std::move(answer));
        });
  };
  state_->Give([state = state_.get(), known, must_ask = *must_ask, probe] {
    state->WithGeneration(known, must_ask, probe);
  });
  return Status::Ok();
}

void RedisTier::Erase(const RedisBlockName& name) {
  state_->Erase(name, OwedErasures::Scope::kName);
  // It may have been stored in no chain before.
  if (name.run != name.key) state_->Erase(name.Alone(), OwedErasures::Scope::kName);
}

void RedisTier::EraseByKey(const RedisBlockName& name) {
  state_->Erase(name, OwedErasures::Scope::kKey);
}

Status RedisTier::EraseInAnyGroup(std::span<const BlockKey> keys) {
  return state_->EraseInAnyGroup(keys);
}

void RedisTier::Drop(const RedisBlockName& name) {
  const Result<bool> must_ask = state_->MustAsk(name.group, false);
  if (!must_ask.ok()) return;
  RedisBlockName named = name;
  named.generation = state_->KnownOf(name.group).heard.generation;
  uint64_t id = 0;
  State::Operation operation{.kind = Answer::Kind::kDrop, .group = name.group, .names = {named}};
  if (!state_->Admit(std::move(operation), &id).ok()) return;
  state_->absence.Remember(named, RedisNowUs());
  const auto drop = [state = state_.get(), id, named](Status status, const State::Agreed& agreed) {
    if (!status.ok()) return state->Put({.kind = Answer::Kind::kDrop, .id = id, .status = status});
    RedisBlockName found = named;
    found.generation = agreed.generation;
    state->blocks->Erase(found, [state, id](Status status) {
      state->Put({.kind = Answer::Kind::kDrop, .id = id, .status = status});
    });
  };
  state_->Give([state = state_.get(), known = state_->QuestionOf(name.group), must_ask = *must_ask,
                drop] { state->WithGeneration(known, must_ask, drop); });
}

void RedisTier::Forget(const GroupId& group) {
  if (!state_->is_stopped) state_->Owe(group);
}

void RedisTier::ForgetAll() { state_->ForgetAll(); }

SharedErasureMark RedisTier::MarkErasures() const {
  return {.erasures = state_->erasures.begun(), .forgets = state_->keep_revision};
}

bool RedisTier::IsDurable(const SharedErasureMark& mark) const {
  if (state_->options.keep == nullptr) return true;
  const bool is_forgotten = state_->owed_count == 0 || state_->kept_revision >= mark.forgets;
  return is_forgotten && state_->erasures.AreSafe(mark.erasures);
}

void RedisTier::Kept(uint64_t revision) {
  TERRACE_CHECK(revision <= state_->keep_revision,
                "what was not given is not kept: an erasure would be called durable");
  state_->kept_revision = std::max(state_->kept_revision, revision);
  state_->erasures.OnKept(revision);
}

void RedisTier::SetRing(std::shared_ptr<const KeyRing> ring) {
  state_->Give([state = state_.get(), ring = std::move(ring)] { state->blocks->SetRing(ring); });
}

void RedisTier::ReadTlsFiles() {
  if (!state_->options.is_tls || state_->is_stopped) return;
  state_->Give([state = state_.get()] {
    state->tls->Refresh();
    state->PublishStats();
  });
}

uint64_t RedisTier::fetches_locked() const {
  return state_->fetches_locked.load(std::memory_order_relaxed);
}

void RedisTier::Tick() {
  state_->StartRises();
  if (state_->is_stopped) return;
  state_->LookAtRisen();
  state_->erasures.Age(RedisNowUs(), OwedErasures::kPatienceUs);
  state_->EraseSoon();
  // Of a thread that hangs they would grow in number for ever.
  if (state_->is_looking.exchange(true)) return;
  state_->Give([state = state_.get()] {
    state->is_looking = false;
    state->servers->LookForWrites();
  });
}

uint64_t RedisTier::PredictReadUs(uint64_t length_bytes) const {
  if (!state_->is_ready.load(std::memory_order_relaxed)) {
    return std::numeric_limits<uint64_t>::max();
  }
  return state_->speed.PredictUs(state_->read_bytes_in_flight + length_bytes, RedisNowUs());
}

SharedTierStats RedisTier::stats() const {
  // Whoever is pushed aside while it holds the lock is not waited for: what was last seen will do.
  if (const std::unique_lock lock(state_->mutex, std::try_to_lock); lock.owns_lock()) {
    state_->stats_seen = state_->shared_stats;
  }
  SharedTierStats stats = state_->stats_seen;
  stats.operations_in_flight = state_->operations.size();
  stats.begun_anew = state_->begun_anew;
  stats.generations_lost = state_->generations_lost;
  stats.forgotten_elsewhere = state_->forgotten_elsewhere;
  stats.bytes_in_flight = state_->bytes_in_flight;
  stats.probes = state_->probes;
  stats.probes_remembered = state_->probes_remembered;
  stats.forgets = state_->forgets_done;
  stats.forgets_owed = state_->owed_count;
  stats.erasures_owed = state_->erasures.blocks_owed();
  return stats;
}

void RedisTier::BeginStop() {
  if (state_->is_stopped) return;
  state_->KeepChanges();
  state_->is_stopped = true;
  state_->Give([state = state_.get()] {
    state->Unwind();
    std::lock_guard lock(state->mutex);
    state->end = RedisEnd::kResolverHangs;  // nothing else is waited for any more
  });
}

// The loop returns once the C library's resolver has, which nobody can call off.
RedisEnd RedisTier::EndThread(uint64_t within_us) {
  TERRACE_CHECK(state_->is_stopped, "BeginStop comes before the end of the thread");
  std::unique_lock lock(state_->mutex);
  if (!state_->thread.joinable()) return state_->end;
  const bool has_ended =
      state_->has_ended.wait_for(lock, std::chrono::microseconds(within_us),
                                 [this] { return state_->end == RedisEnd::kEnded; });
  const RedisEnd end = state_->end;
  lock.unlock();
  if (has_ended) {
    state_->thread.join();
    state_->operations.clear();
  } else {
    state_->thread.detach();
    LeaveBehind(state_);
  }
  return end;
}

}  // namespace terrace
