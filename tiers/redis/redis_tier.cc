#include "tiers/redis/redis_tier.h"

#include <pthread.h>

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "terrace/check.h"
#include "tiers/redis/fetch_speed.h"
#include "tiers/redis/redis_absence.h"
#include "tiers/redis/redis_blocks.h"
#include "tiers/redis/redis_chunks.h"
#include "tiers/redis/redis_generations.h"
#include "tiers/redis/redis_operation.h"
#include "tiers/redis/redis_servers.h"

namespace terrace {

using Answer = TierAnswer;

// What both threads see. Whoever puts the first thing into an empty box wakes the other side.
struct RedisTier::State : std::enable_shared_from_this<RedisTier::State> {
  using Operation = TierOperation;

  struct Known {
    uint64_t generation = 0;
    uint64_t asked_us = 0;  // when the server said so last; 0: never
    uint64_t forgets = 0;   // asked of this process
    bool is_owed = false;
    bool is_rising = false;
    bool is_looking = false;
  };
  using Then = std::function<void(Status, uint64_t generation)>;

  explicit State(Options given) : options(std::move(given)), absence(options.absence_us) {
    for (const GroupGeneration& kept : options.generations) {
      Known& one = known[kept.group];
      one.generation = kept.generation;
      SetOwed(&one, kept.is_owed);
    }
  }

  // ---- store thread ----
  Status Admit(Operation operation, uint64_t* id);
  void Give(std::function<void()> work);
  void TakeAnswers();
  void Deliver(Answer& answer);
  // ---- generations ----
  Known& KnownOf(const GroupId& group);
  void SetOwed(Known* one, bool is_owed) {
    owed_count += is_owed ? 1 : 0;
    owed_count -= one->is_owed ? 1 : 0;
    one->is_owed = is_owed;
  }
  Status StartErase(const RedisBlockName& name, uint32_t tries);
  void EndErase(const Operation& operation, Status status);
  // The group's generation is to rise, whatever becomes of this process.
  void Owe(const GroupId& group);
  void LearnGeneration(const GroupId& group, uint64_t generation);
  // kUnsupported: the group is not to be used now. Else whether the server is to be asked first,
  // which costs a round trip; `is_look` wants to know what others have done since.
  Result<bool> MustAsk(const GroupId& group, bool is_look);
  void StartLook(const GroupId& group);
  void StartRise(const GroupId& group);
  void EndRise(const Operation& operation, const Answer& answer);
  void Keep();

  // ---- Redis thread ----
  // `then` with what the server says of the group's generation, or with `generation`.
  void WithGeneration(const GroupId& group, uint64_t generation, bool must_ask, Then then);
  void Run();
  void Put(Answer answer);
  void HandOver();
  void PublishStats();

  const Options options;

  // ---- store thread ----
  std::unordered_map<uint64_t, Operation> operations;
  uint64_t next_id = 1;
  uint64_t bytes_in_flight = 0, read_bytes_in_flight = 0;
  uint64_t probes = 0, probes_remembered = 0;
  uint64_t erases_in_flight = 0;
  FetchSpeed speed;
  RedisAbsence absence;
  bool is_stopped = false;
  std::vector<Answer> opened;                // keeps its capacity
  std::unordered_map<GroupId, Known> known;  // walked only where the order does not matter
  uint64_t keep_revision = 0, kept_revision = 0;
  uint64_t owed_count = 0;  // of known
  uint64_t forgets_done = 0;

  // ---- Redis thread ----
  asio::io_context loop{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::unique_ptr<RedisTls> tls;
  std::unique_ptr<RedisServers> servers;
  std::unique_ptr<RedisBlocks> blocks;
  std::unique_ptr<RedisGenerations> generations;
  std::vector<std::function<void()>> begun;  // keeps its capacity
  std::vector<Answer> finished;              // in this turn of the loop

  // ---- both ----
  std::atomic<bool> is_ready{false};
  std::atomic<uint64_t> fetches_locked{0};
  std::mutex mutex;  // of what follows
  std::vector<std::function<void()>> inbox;
  std::vector<Answer> outbox;
  bool is_open = true;  // answers are still wanted
  SharedTierStats shared_stats;

  std::thread thread;
};

// ---- store thread ----

Status RedisTier::State::Admit(Operation operation, uint64_t* id) {
  if (is_stopped || !is_ready.load(std::memory_order_relaxed)) {
    return Status(StatusCode::kUnsupported, "the Redis server does not work now");
  }
  if (operations.size() >= options.operations_max ||
      bytes_in_flight + operation.length_bytes > options.bytes_max) {
    return Status(StatusCode::kBusy, "enough is under way to the Redis server");
  }
  *id = next_id++;
  bytes_in_flight += operation.length_bytes;
  operation.began_us = RedisNowUs();
  if (operation.kind == Answer::Kind::kFetch) {
    read_bytes_in_flight += operation.length_bytes;
    speed.OnFetchBegun(operation.began_us);
  }
  operations.emplace(*id, std::move(operation));
  return Status::Ok();
}

void RedisTier::State::Give(std::function<void()> one) {
  bool is_first = false;
  {
    std::lock_guard lock(mutex);
    is_first = inbox.empty();
    inbox.push_back(std::move(one));
  }
  if (!is_first) return;
  asio::post(loop, [this] {
    {
      std::lock_guard lock(mutex);
      begun.swap(inbox);
    }
    for (const std::function<void()>& begin : begun) begin();
    begun.clear();
  });
}

void RedisTier::State::TakeAnswers() {
  {
    std::lock_guard lock(mutex);
    if (!is_open) return;
    opened.swap(outbox);
  }
  for (Answer& answer : opened) {
    if (is_stopped) break;  // from inside an answer
    Deliver(answer);
  }
  opened.clear();
}

void RedisTier::State::Deliver(Answer& answer) {
  const auto found = operations.find(answer.id);
  TERRACE_CHECK(found != operations.end(), "an answer to nothing");
  Operation operation = std::move(found->second);
  operations.erase(found);
  TERRACE_CHECK(bytes_in_flight >= operation.length_bytes &&
                    (!operations.empty() || bytes_in_flight == operation.length_bytes),
                "bytes in flight are those of the operations: a rest would stay for ever");
  bytes_in_flight -= operation.length_bytes;
  const uint64_t now_us = RedisNowUs();
  if (operation.kind == Answer::Kind::kRise) return EndRise(operation, answer);
  if (answer.generation) LearnGeneration(operation.group, *answer.generation);
  for (RedisBlockName& name : operation.names) {
    name.generation = KnownOf(operation.group).generation;
  }
  switch (operation.kind) {
    case Answer::Kind::kLook:
      KnownOf(operation.group).is_looking = false;
      return;
    case Answer::Kind::kFetch:
      read_bytes_in_flight -= operation.length_bytes;
      speed.OnFetchEnded(now_us);
      if (answer.status.ok()) {
        speed.OnFetched(operation.began_us, operation.length_bytes, now_us);
      }
      if (answer.status.code() == StatusCode::kNotFound ||
          answer.status.code() == StatusCode::kCorrupt) {
        absence.Remember(operation.names.front(), now_us);
      }
      options.listener->OnSharedFetched(operation.caller_id, answer.status,
                                        RecordOf(answer.manifest));
      return;
    case Answer::Kind::kStore:
      if (answer.status.ok() || answer.status.code() == StatusCode::kExists) {
        absence.Forget(operation.names.front());
      }
      options.listener->OnSharedStored(operation.caller_id, answer.status);
      return;
    case Answer::Kind::kProbe: {
      TERRACE_CHECK(!answer.status.ok() || answer.is_present.size() == operation.asked.size(),
                    "a probe is answered name by name: else one is taken for another");
      std::vector<bool> is_present(operation.names_total);
      for (size_t i = 0; answer.status.ok() && i < operation.asked.size(); ++i) {
        is_present[operation.asked[i]] = answer.is_present[i];
        if (!answer.is_present[i]) absence.Remember(operation.names[i], now_us);
      }
      if (answer.status.ok() && !operation.asked.empty()) {
        speed.OnProbed(operation.began_us, now_us);
      }
      options.listener->OnSharedProbed(operation.caller_id, answer.status, is_present);
      return;
    }
    case Answer::Kind::kErase:
      return EndErase(operation, answer.status);
    case Answer::Kind::kRise:
      return;
  }
}

Status RedisTier::State::StartErase(const RedisBlockName& name, uint32_t tries) {
  const Result<bool> must_ask = MustAsk(name.group, false);
  if (!must_ask.ok()) return must_ask.status();
  RedisBlockName named = name;
  named.generation = KnownOf(name.group).generation;
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(Admit(
      {.kind = Answer::Kind::kErase, .group = name.group, .names = {named}, .tries = tries}, &id));
  ++erases_in_flight;
  absence.Remember(named, RedisNowUs());
  const auto erase = [this, id, named](Status agreed, uint64_t generation) {
    if (!agreed.ok()) return Put({.kind = Answer::Kind::kErase, .id = id, .status = agreed});
    RedisBlockName found = named;
    found.generation = generation;
    blocks->Erase(found, [this, id](Status status) {
      Put({.kind = Answer::Kind::kErase, .id = id, .status = status});
    });
  };
  Give([this, named, must_ask = *must_ask, erase] {
    WithGeneration(named.group, named.generation, must_ask, erase);
  });
  return Status::Ok();
}

// Nobody has been told yet that it is erased. Where the server does not do it, it may be there yet,
// and be found when the server is back: its group is forgotten.
void RedisTier::State::EndErase(const Operation& operation, Status status) {
  --erases_in_flight;
  if (status.ok() || is_stopped) return;
  if (operation.tries < kErasesAgain && StartErase(operation.names[0], operation.tries + 1).ok()) {
    return;
  }
  Owe(operation.group);
  options.listener->OnSharedForgotten(operation.group);
}

void RedisTier::State::Owe(const GroupId& group) {
  Known& group_known = KnownOf(group);
  ++group_known.forgets;
  SetOwed(&group_known, true);
  Keep();
  StartRise(group);
}

// ---- generations ----

RedisTier::State::Known& RedisTier::State::KnownOf(const GroupId& group) {
  const auto found = known.find(group);
  if (found != known.end()) return found->second;
  if (known.size() >= kRedisGroupsMax) {
    // The server says it again when it is used again.
    const auto idle = std::ranges::find_if(known, [](const auto& one) {
      return !one.second.is_owed && !one.second.is_rising && !one.second.is_looking;
    });
    if (idle != known.end()) known.erase(idle);
  }
  Known& added = known[group];
  SetOwed(&added, options.is_memory_lost);
  return added;
}

Result<bool> RedisTier::State::MustAsk(const GroupId& group, bool is_look) {
  const Known& group_known = KnownOf(group);
  if (group_known.is_owed) {
    return Status(StatusCode::kUnsupported, "the Redis server is to forget the group's blocks");
  }
  return group_known.asked_us == 0 ||
         (is_look && RedisNowUs() - group_known.asked_us >= kRedisAskAgainUs);
}

void RedisTier::State::LearnGeneration(const GroupId& group, uint64_t generation) {
  Known& group_known = KnownOf(group);
  if (group_known.is_owed || generation < group_known.generation) return;
  // What a predecessor of this process left here may be of any generation but the first.
  const bool is_heir = group_known.asked_us == 0 && generation != 0;
  group_known.asked_us = RedisNowUs();
  if (generation == group_known.generation && !is_heir) return;
  group_known.generation = generation;
  Keep();
  options.listener->OnSharedForgotten(group);
}

void RedisTier::State::StartLook(const GroupId& group) {
  Known& group_known = KnownOf(group);
  if (group_known.is_looking) return;
  uint64_t id = 0;
  if (!Admit({.kind = Answer::Kind::kLook, .group = group}, &id).ok()) return;
  group_known.is_looking = true;
  Give([this, id, group, at_least = group_known.generation] {
    generations->Agree({.group = group, .at_least = at_least},
                       [this, id](Status status, uint64_t generation) {
                         Answer answer{.kind = Answer::Kind::kLook, .id = id, .status = status};
                         if (status.ok()) answer.generation = generation;
                         Put(std::move(answer));
                       });
  });
}

void RedisTier::State::StartRise(const GroupId& group) {
  Known& group_known = KnownOf(group);
  if (!group_known.is_owed || group_known.is_rising) return;
  uint64_t id = 0;
  const Status admitted =
      Admit({.kind = Answer::Kind::kRise, .group = group, .forgets = group_known.forgets}, &id);
  if (!admitted.ok()) return;  // Tick
  group_known.is_rising = true;
  Give([this, id, group, at_least = group_known.generation] {
    generations->Agree(
        {.group = group, .at_least = at_least, .is_rise = true},
        [this, id](Status status, uint64_t generation) {
          Put({.kind = Answer::Kind::kRise, .id = id, .status = status, .generation = generation});
        });
  });
}

void RedisTier::State::EndRise(const Operation& operation, const Answer& answer) {
  Known& group_known = KnownOf(operation.group);
  group_known.is_rising = false;
  if (!answer.status.ok()) return;  // Tick
  if (group_known.asked_us == 0) options.listener->OnSharedForgotten(operation.group);
  group_known.generation = std::max(group_known.generation, *answer.generation);
  group_known.asked_us = RedisNowUs();
  SetOwed(&group_known, group_known.forgets != operation.forgets);
  if (!group_known.is_owed) ++forgets_done;
  Keep();
  StartRise(operation.group);
}

void RedisTier::State::Keep() {
  if (options.keep == nullptr) return;
  std::vector<GroupGeneration> all;
  for (const auto& [group, one] : known) {
    if (one.generation != 0 || one.is_owed) all.push_back({group, one.generation, one.is_owed});
  }
  std::ranges::sort(all, {}, &GroupGeneration::group);
  options.keep(++keep_revision, std::move(all));
}

// ---- Redis thread ----

void RedisTier::State::WithGeneration(const GroupId& group, uint64_t generation, bool must_ask,
                                      Then then) {
  if (!must_ask) return then(Status::Ok(), generation);
  generations->Agree({.group = group, .at_least = generation}, std::move(then));
}

void RedisTier::State::Put(Answer answer) {
  if (finished.empty()) asio::post(loop, [this] { HandOver(); });
  finished.push_back(std::move(answer));
}

// What one turn of the loop has finished wakes the store thread once.
void RedisTier::State::HandOver() {
  PublishStats();
  bool is_first = false;
  {
    std::lock_guard lock(mutex);
    if (is_open) {
      is_first = outbox.empty();
      std::ranges::move(finished, std::back_inserter(outbox));
    }
  }
  finished.clear();
  if (is_first) options.post([self = shared_from_this()] { self->TakeAnswers(); });
}

void RedisTier::State::PublishStats() {
  const RedisServersStats server = servers->stats();
  const RedisBlocksCounts& counts = blocks->counts();
  is_ready.store(server.is_ready, std::memory_order_relaxed);
  std::lock_guard lock(mutex);
  shared_stats.is_ready = server.is_ready;
  shared_stats.is_refused = server.is_refused;
  shared_stats.trouble = server.last_trouble.ok() ? "" : server.last_trouble.what();
  shared_stats.is_full = blocks->write_refusal() == RedisError::kOutOfMemory;
  shared_stats.write_trouble = StatusOfRedisError(blocks->write_refusal()).what();
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

void RedisTier::State::Run() {
  servers->Start();
  loop.run();
}

// ---- the tier ----

RedisTier::RedisTier(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<RedisTier>> RedisTier::Open(Options options, std::string* why) {
  TERRACE_CHECK(
      options.post != nullptr && options.listener != nullptr && options.unix_seconds != nullptr,
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
      .health_changed = [raw = state.get()] { raw->PublishStats(); }});
  state->blocks = std::make_unique<RedisBlocks>(
      RedisBlocks::Options{.secret = state->options.secret,
                           .prefix = state->options.prefix,
                           .ttl_ms = state->options.ttl_ms,
                           .unix_seconds = state->options.unix_seconds,
                           .servers = state->servers.get(),
                           .ring = state->options.ring,
                           .random = state->options.random});
  state->generations = std::make_unique<RedisGenerations>(
      RedisGenerations::Options{.secret = state->options.secret,
                                .prefix = state->options.prefix,
                                .version = state->options.version(),
                                .ttl_ms = state->options.ttl_ms,
                                .unix_seconds = state->options.unix_seconds,
                                .servers = state->servers.get()});
  state->work.emplace(asio::make_work_guard(state->loop));
  state->thread = std::thread([raw = state.get()] { raw->Run(); });
  pthread_setname_np(state->thread.native_handle(), "terrace-redis");
  return std::unique_ptr<RedisTier>(new RedisTier(state));
}

RedisTier::~RedisTier() { Stop(); }

Status RedisTier::Fetch(TransferId transfer_id, const RedisBlockName& name,
                        std::span<std::byte> into) {
  TERRACE_CHECK(!into.empty(), "a fetch of nothing");
  const Result<bool> must_ask = state_->MustAsk(name.group, false);
  if (!must_ask.ok()) return must_ask.status();
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kFetch,
                                         .group = name.group,
                                         .caller_id = transfer_id,
                                         .length_bytes = into.size(),
                                         .names = {name}},
                                        &id));
  const auto fetch = [state = state_.get(), id, name, into, is_asked = *must_ask](
                         Status agreed, uint64_t generation) {
    Answer answer{.kind = Answer::Kind::kFetch, .id = id, .status = agreed};
    if (!agreed.ok()) return state->Put(std::move(answer));
    if (is_asked) answer.generation = generation;
    RedisBlockName named = name;
    named.generation = generation;
    state->blocks->Fetch(named, into,
                         [state, answer](Status status, RedisManifest manifest) mutable {
                           answer.status = status;
                           answer.manifest = std::move(manifest);
                           state->Put(std::move(answer));
                         });
  };
  state_->Give([state = state_.get(), group = name.group, must_ask = *must_ask,
                known = state_->KnownOf(name.group).generation,
                fetch] { state->WithGeneration(group, known, must_ask, fetch); });
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
  if (known.asked_us == 0 && known.generation != 0) {
    state_->StartLook(record.group);
    return Status(StatusCode::kUnsupported, "the group's blocks here may be of before");
  }
  const RedisBlockName name{.group = record.group,
                            .space = record.space,
                            .key = record.key,
                            .run = run,
                            .position = record.position,
                            .generation = known.generation};
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kStore,
                                         .group = name.group,
                                         .caller_id = transfer_id,
                                         .length_bytes = from.size(),
                                         .names = {name}},
                                        &id));
  const auto store = [state = state_.get(), id, name, from, manifest = ManifestOf(record),
                      is_asked = *must_ask](Status agreed, uint64_t generation) {
    Answer answer{.kind = Answer::Kind::kStore, .id = id, .status = agreed};
    if (!agreed.ok()) return state->Put(std::move(answer));
    if (is_asked) answer.generation = generation;
    if (generation != name.generation) {  // these bytes are of before
      answer.status = Status(StatusCode::kGone, "the group's blocks were forgotten meanwhile");
      return state->Put(std::move(answer));
    }
    state->blocks->Store(name, manifest, from, [state, answer](Status status) mutable {
      answer.status = status;
      state->Put(std::move(answer));
    });
  };
  state_->Give([state = state_.get(), must_ask = *must_ask, name, store] {
    state->WithGeneration(name.group, name.generation, must_ask, store);
  });
  return Status::Ok();
}

Status RedisTier::Probe(uint64_t probe_id, std::span<const RedisBlockName> names) {
  if (names.size() > state_->options.probe_names_max) {
    return Status(StatusCode::kInvalid, "more names than one probe takes");
  }
  const GroupId group = names.empty() ? GroupId{} : names.front().group;
  const Result<bool> must_ask = state_->MustAsk(group, true);
  if (!must_ask.ok()) return must_ask.status();
  const uint64_t known = state_->KnownOf(group).generation;
  State::Operation operation{.kind = Answer::Kind::kProbe,
                             .group = group,
                             .caller_id = probe_id,
                             .names_total = names.size()};
  const uint64_t now_us = RedisNowUs();
  for (size_t i = 0; i < names.size(); ++i) {
    TERRACE_CHECK(names[i].group == group, "one probe is of one group");
    RedisBlockName name = names[i];
    name.generation = known;
    if (state_->absence.IsAbsent(name, now_us)) continue;
    operation.names.push_back(name);
    operation.asked.push_back(i);
  }
  std::vector<RedisBlockName> asked = operation.names;
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit(std::move(operation), &id));
  state_->probes += names.size();
  state_->probes_remembered += names.size() - asked.size();
  const auto probe = [state = state_.get(), id, asked = std::move(asked), is_asked = *must_ask](
                         Status agreed, uint64_t generation) {
    Answer answer{.kind = Answer::Kind::kProbe, .id = id, .status = agreed};
    if (!agreed.ok()) return state->Put(std::move(answer));
    if (is_asked) answer.generation = generation;
    std::vector<RedisBlockName> named = asked;
    for (RedisBlockName& name : named) name.generation = generation;
    state->blocks->Probe(
        std::move(named),
        [state, answer](Status status, const std::vector<bool>& is_present) mutable {
          answer.status = status;
          answer.is_present = is_present;
          state->Put(std::move(answer));
        });
  };
  state_->Give([state = state_.get(), group, known, must_ask = *must_ask, probe] {
    state->WithGeneration(group, known, must_ask, probe);
  });
  return Status::Ok();
}

Status RedisTier::Erase(const RedisBlockName& name) { return state_->StartErase(name, 0); }

void RedisTier::Forget(const GroupId& group) {
  if (!state_->is_stopped) state_->Owe(group);
}

bool RedisTier::is_forgetting_durable() const {
  const State& s = *state_;
  const bool is_kept = s.options.keep == nullptr || s.kept_revision == s.keep_revision;
  return s.erases_in_flight == 0 && (is_kept || s.owed_count == 0);
}

void RedisTier::Kept(uint64_t revision) {
  TERRACE_CHECK(revision <= state_->keep_revision,
                "what was not given is not kept: an erasure would be called durable");
  state_->kept_revision = std::max(state_->kept_revision, revision);
}

void RedisTier::SetRing(std::shared_ptr<const KeyRing> ring) {
  state_->Give([state = state_.get(), ring = std::move(ring)] { state->blocks->SetRing(ring); });
}

uint64_t RedisTier::fetches_locked() const {
  return state_->fetches_locked.load(std::memory_order_relaxed);
}

void RedisTier::Tick() {
  std::vector<GroupId> owed;
  for (const auto& [group, known] : state_->known)
    if (known.is_owed) owed.push_back(group);
  for (const GroupId& group : owed) state_->StartRise(group);
  if (state_->is_stopped) return;
  state_->Give(
      [state = state_.get()] { state->blocks->LookForWrites([state] { state->PublishStats(); }); });
}

uint64_t RedisTier::PredictReadUs(uint64_t length_bytes) const {
  if (!state_->is_ready.load(std::memory_order_relaxed)) {
    return std::numeric_limits<uint64_t>::max();
  }
  return state_->speed.PredictUs(state_->read_bytes_in_flight + length_bytes, RedisNowUs());
}

SharedTierStats RedisTier::stats() const {
  SharedTierStats stats;
  {
    std::lock_guard lock(state_->mutex);
    stats = state_->shared_stats;
  }
  stats.operations_in_flight = state_->operations.size();
  stats.bytes_in_flight = state_->bytes_in_flight;
  stats.probes = state_->probes;
  stats.probes_remembered = state_->probes_remembered;
  stats.forgets = state_->forgets_done;
  stats.forgets_owed = state_->owed_count;
  return stats;
}

void RedisTier::Stop() {
  if (state_->is_stopped) return;
  state_->is_stopped = true;
  {
    std::lock_guard lock(state_->mutex);
    state_->is_open = false;
  }
  state_->Give([state = state_.get()] {
    state->servers->Close(Status(StatusCode::kGone, "the Redis tier ends"));
    state->work.reset();
  });
  state_->thread.join();
  state_->operations.clear();
}

}  // namespace terrace
