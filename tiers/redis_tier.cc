#include "tiers/redis_tier.h"

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
#include "tiers/redis_absence.h"
#include "tiers/redis_blocks.h"
#include "tiers/redis_chunks.h"
#include "tiers/redis_servers.h"

namespace terrace {
namespace {

constexpr uint64_t kFirstGuessPsPerByte = 2'000;  // 500 MB/s, until a fetch was seen
constexpr uint64_t kFirstGuessRoundTripUs = 500;

struct Answer {
  enum class Kind : uint8_t { kFetch, kStore, kProbe, kErase };
  Kind kind = Kind::kFetch;
  uint64_t id = 0;  // of the operation, ours
  Status status;
  RedisManifest manifest;
  std::vector<bool> is_present;
};

BlockRecord RecordOf(const RedisManifest& manifest) {
  return {.group = manifest.group,
          .space = manifest.space,
          .key = manifest.key,
          .parent = manifest.parent,
          .commit_id = manifest.commit_id,
          .event_hash = manifest.event_hash,
          .expires_at_s = manifest.expires_at_s,
          .position = manifest.position,
          .recompute_ns_per_token = manifest.recompute_ns_per_token,
          .member = manifest.member,
          .priority = manifest.priority,
          .part_checksums = manifest.part_checksums};
}

RedisManifest ManifestOf(const BlockRecord& record) {
  return {.group = record.group,
          .space = record.space,
          .key = record.key,
          .parent = record.parent,
          .commit_id = record.commit_id,
          .event_hash = record.event_hash,
          .expires_at_s = record.expires_at_s,
          .position = record.position,
          .recompute_ns_per_token = record.recompute_ns_per_token,
          .member = record.member,
          .priority = record.priority,
          .part_checksums = {record.part_checksums.begin(), record.part_checksums.end()}};
}

}  // namespace

// What both threads see. Whoever puts the first thing into an empty box wakes the other side.
struct RedisTier::State : std::enable_shared_from_this<RedisTier::State> {
  struct Operation {
    Answer::Kind kind = Answer::Kind::kFetch;
    uint64_t caller_id = 0;
    uint64_t length_bytes = 0;
    uint64_t began_us = 0;
    std::vector<RedisBlockName> names;  // of a probe: all; else one
    std::vector<size_t> asked;          // of a probe: the indices that the servers were asked about
    size_t names_total = 0;
  };

  explicit State(Options given) : options(std::move(given)), absence(options.absence_us) {}

  // ---- store thread ----
  Status Admit(Operation operation, uint64_t* id);
  void Give(std::function<void()> work);
  void TakeAnswers();
  void Deliver(Answer& answer);
  void Learn(const Operation& operation);

  // ---- Redis thread ----
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
  uint64_t ps_per_byte = kFirstGuessPsPerByte;
  uint64_t round_trip_us = kFirstGuessRoundTripUs;
  uint64_t last_fetch_us = 0;
  RedisAbsence absence;
  bool is_stopped = false;
  std::vector<Answer> opened;  // keeps its capacity

  // ---- Redis thread ----
  asio::io_context loop{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::unique_ptr<RedisTls> tls;
  std::unique_ptr<RedisServers> servers;
  std::unique_ptr<RedisBlocks> blocks;
  std::vector<std::function<void()>> begun;  // keeps its capacity
  std::vector<Answer> finished;              // in this turn of the loop

  // ---- both ----
  std::atomic<bool> is_ready{false};
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
  if (operation.kind == Answer::Kind::kFetch) read_bytes_in_flight += operation.length_bytes;
  operation.began_us = RedisNowUs();
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
  bytes_in_flight -= operation.length_bytes;
  const uint64_t now_us = RedisNowUs();
  switch (operation.kind) {
    case Answer::Kind::kFetch:
      read_bytes_in_flight -= operation.length_bytes;
      if (answer.status.ok()) Learn(operation);
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
      std::vector<bool> is_present(operation.names_total);
      for (size_t i = 0; answer.status.ok() && i < operation.asked.size(); ++i) {
        is_present[operation.asked[i]] = answer.is_present[i];
        if (!answer.is_present[i]) absence.Remember(operation.names[i], now_us);
      }
      if (answer.status.ok() && !operation.asked.empty()) {
        round_trip_us = (7 * round_trip_us + (now_us - operation.began_us)) / 8;
      }
      options.listener->OnSharedProbed(operation.caller_id, answer.status, is_present);
      return;
    }
    case Answer::Kind::kErase:
      return;
  }
}

// Fetches overlap: the time since the one before, if that is later than the own beginning, is what
// this one's bytes took.
void RedisTier::State::Learn(const Operation& operation) {
  const uint64_t now_us = RedisNowUs();
  const uint64_t took_us = now_us - std::max(operation.began_us, last_fetch_us);
  last_fetch_us = now_us;
  const uint64_t seen = took_us * 1'000'000 / operation.length_bytes;
  ps_per_byte = (7 * ps_per_byte + seen) / 8;
}

// ---- Redis thread ----

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
  shared_stats.read_bytes = counts.read_bytes;
  shared_stats.written_bytes = counts.written_bytes;
  shared_stats.fetches_found = counts.fetches_found;
  shared_stats.fetches_missed = counts.fetches_missed;
  shared_stats.fetches_broken = counts.fetches_broken;
  shared_stats.fetches_failed = counts.fetches_failed;
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
                              .permission_key = RedisKeyNames::Permission(state->options.prefix),
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
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kFetch,
                                         .caller_id = transfer_id,
                                         .length_bytes = into.size(),
                                         .names = {name}},
                                        &id));
  state_->Give([state = state_.get(), id, name, into] {
    state->blocks->Fetch(name, into, [state, id](Status status, RedisManifest manifest) {
      state->Put({.kind = Answer::Kind::kFetch,
                  .id = id,
                  .status = status,
                  .manifest = std::move(manifest)});
    });
  });
  return Status::Ok();
}

Status RedisTier::Store(TransferId transfer_id, const BlockKey& run, const BlockRecord& record,
                        std::span<const std::byte> from) {
  TERRACE_CHECK(!from.empty(), "a store of nothing");
  if (from.size() > kRedisBlockBytesMax || record.part_checksums.size() > kPartsPerSpaceMax) {
    return Status(StatusCode::kInvalid, "a block beyond what a Redis server is given");
  }
  const RedisBlockName name{.group = record.group,
                            .space = record.space,
                            .key = record.key,
                            .run = run,
                            .position = record.position};
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kStore,
                                         .caller_id = transfer_id,
                                         .length_bytes = from.size(),
                                         .names = {name}},
                                        &id));
  state_->Give([state = state_.get(), id, name, from, manifest = ManifestOf(record)] {
    state->blocks->Store(name, manifest, from, [state, id](Status status) {
      state->Put({.kind = Answer::Kind::kStore, .id = id, .status = status});
    });
  });
  return Status::Ok();
}

Status RedisTier::Probe(uint64_t probe_id, std::span<const RedisBlockName> names) {
  if (names.size() > state_->options.probe_names_max) {
    return Status(StatusCode::kInvalid, "more names than one probe takes");
  }
  State::Operation operation{
      .kind = Answer::Kind::kProbe, .caller_id = probe_id, .names_total = names.size()};
  const uint64_t now_us = RedisNowUs();
  for (size_t i = 0; i < names.size(); ++i) {
    if (state_->absence.IsAbsent(names[i], now_us)) continue;
    operation.names.push_back(names[i]);
    operation.asked.push_back(i);
  }
  std::vector<RedisBlockName> asked = operation.names;
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit(std::move(operation), &id));
  state_->probes += names.size();
  state_->probes_remembered += names.size() - asked.size();
  state_->Give([state = state_.get(), id, asked = std::move(asked)] {
    state->blocks->Probe(asked, [state, id](Status status, const std::vector<bool>& is_present) {
      state->Put(
          {.kind = Answer::Kind::kProbe, .id = id, .status = status, .is_present = is_present});
    });
  });
  return Status::Ok();
}

Status RedisTier::Erase(const RedisBlockName& name) {
  uint64_t id = 0;
  TERRACE_RETURN_IF_ERROR(state_->Admit({.kind = Answer::Kind::kErase, .names = {name}}, &id));
  state_->absence.Remember(name, RedisNowUs());
  state_->Give([state = state_.get(), id, name] {
    state->blocks->Erase(name, [state, id](Status status) {
      state->Put({.kind = Answer::Kind::kErase, .id = id, .status = status});
    });
  });
  return Status::Ok();
}

uint64_t RedisTier::PredictReadUs(uint64_t length_bytes) const {
  if (!state_->is_ready.load(std::memory_order_relaxed)) {
    return std::numeric_limits<uint64_t>::max();
  }
  const uint64_t bytes = state_->read_bytes_in_flight + length_bytes;
  return 2 * state_->round_trip_us + bytes * state_->ps_per_byte / 1'000'000;
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
