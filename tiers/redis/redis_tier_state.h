// What a RedisTier is made of: what the store thread knows, what the Redis thread runs, and what
// they leave to each other, without a lock.
#pragma once

#include <asio/io_context.hpp>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tiers/loop_inbox.h"
#include "tiers/redis/fetch_speed.h"
#include "tiers/redis/owed_erasures.h"
#include "tiers/redis/redis_absence.h"
#include "tiers/redis/redis_blocks.h"
#include "tiers/redis/redis_generations.h"
#include "tiers/redis/redis_tier.h"
#include "tiers/redis/wire/redis_servers.h"

namespace terrace {

inline constexpr char kForgottenMeanwhile[] = "the group's blocks were forgotten meanwhile";

// A group's generation, as the server has said it.
struct HeardGeneration {
  uint64_t generation = 0;
  uint64_t at_us = 0;      // when; 0: never
  uint64_t of_return = 0;  // `returns` then
  bool is_lost = false;    // as RedisGenerations::Agreed
};

// What a server, or several questions to it, came to.
struct RedisTierAnswer {
  enum class Kind : uint8_t { kFetch, kStore, kProbe, kDrop, kErase, kLook, kRise };
  Kind kind = Kind::kFetch;
  uint64_t id = 0;  // of the operation, ours
  Status status;
  RedisManifest manifest;
  std::vector<bool> is_present;              // of a probe; of an erasure: it may be there yet
  std::optional<HeardGeneration> heard;      // of its group, if the server was asked
  std::optional<uint64_t> names_generation;  // of a fetch, store or probe: in its names
};

// What both threads see.
struct RedisTier::State : std::enable_shared_from_this<RedisTier::State> {
  using Answer = RedisTierAnswer;
  struct Operation {
    Answer::Kind kind = Answer::Kind::kFetch;
    GroupId group;
    uint64_t caller_id = 0;
    uint64_t length_bytes = 0;
    uint64_t began_us = 0;
    std::vector<RedisBlockName> names;  // of a probe or erasure: all; else one
    std::vector<size_t> asked;          // of a probe: the indices that the servers were asked about
    size_t names_total = 0;
    uint64_t forgets = 0;    // of a rise: the group's when it began
    bool is_erased = false;  // of a fetch: since it began
  };
  struct Known {
    HeardGeneration heard;  // never, with a generation: as a predecessor knew it
    uint64_t forgets = 0;   // asked of this process
    uint64_t begun_us = 0;  // when a look or a rise was begun last, whatever came of it
    bool is_owed = false;
    bool is_rising = false;
    bool has_failed = false;  // the last rise
    bool is_looking = false;
  };
  using Then = RedisGenerations::Done;
  using Agreed = RedisGenerations::Agreed;

  explicit State(Options given);

  // ---- store thread ----
  Status Admit(Operation operation, uint64_t* id);
  void Give(std::function<void()> work) { inbox->Post(std::move(work)); }
  // ---- generations ----
  Known& KnownOf(const GroupId& group);
  // kUnsupported: the group is not to be used now. Else whether the server is to be asked first,
  // which costs a round trip; `is_look` wants to know what others have done since.
  Result<bool> MustAsk(const GroupId& group, bool is_look);
  RedisGenerations::Question QuestionOf(const GroupId& group);
  void StartLook(const GroupId& group);
  // A server may have lost what it was told, and others may have begun anew: who knows better says
  // so, though nobody uses the group here.
  void LookAtRisen();
  void StartRise(const GroupId& group);
  // All that are owed. Who was not tried for longest comes first: a server that tells nobody keeps
  // no other's waiting.
  void StartRises();
  // The group's generation is to rise, whatever becomes of this process.
  void Owe(const GroupId& group);
  // ---- erasures ----
  void Erase(const RedisBlockName& name, OwedErasures::Scope scope);
  Status EraseInAnyGroup(std::span<const BlockKey> keys);
  void ForgetAll();
  // It is not to be believed now, and erased under this name as well.
  bool IsBarred(const RedisBlockName& name);
  void KeepChanges() {
    if (erasures.is_changed()) Keep();
  }
  // At the end of this turn: what is due is begun, what changed is kept.
  void EraseSoon();

  // ---- Redis thread ----
  // `then` with what the server says of the group's generation, or with what is known.
  void WithGeneration(const RedisGenerations::Question& known_before, bool must_ask, Then then);
  void Run();
  // Run ends, if it has begun.
  void Unwind();
  void Put(Answer answer);
  HeardGeneration HeardNow(const RedisGenerations::Agreed& agreed) const;
  void PublishStats();

 private:
  // ---- store thread ----
  void TakeAnswers(std::vector<Answer>& answers);
  void Deliver(Answer& answer);
  void SetOwed(Known* one, bool is_owed) {
    owed_count += is_owed ? 1 : 0;
    owed_count -= one->is_owed ? 1 : 0;
    one->is_owed = is_owed;
  }
  void LoseOneGroup();
  void LearnGeneration(const GroupId& group, const HeardGeneration& heard);
  // What its generation is, from the server as it is now.
  bool HasHeard(const Known& group_known) const;
  static bool IsOld(const Known& group_known, uint64_t now_us);
  void EndRise(const Operation& operation, const Answer& answer);
  void Keep();
  void OweInAnyGroup(std::span<const BlockKey> keys);
  OwedErasures::Times ErasureTimes() const;
  // What was erased of it by now need not be remembered any more. Makes room.
  void ForgetLargest();
  void EraseDue();
  void EndErase(const Operation& operation, const Answer& answer);
  void EndFetch(const Operation& operation, bool is_of_before, Answer* answer);
  void EndProbe(const Operation& operation, bool is_of_before, const Answer& answer);
  // Transfers of the name, of that kind.
  std::vector<Operation*> UnderWay(const RedisBlockName& name, Answer::Kind kind);
  // ---- Redis thread ----
  void EraseAll(const std::vector<RedisBlockName>& names, Answer answer);
  void HandOver();

 public:
  const Options options;

  // ---- store thread ----
  std::unordered_map<uint64_t, Operation> operations;
  uint64_t next_id = 1;
  uint64_t bytes_in_flight = 0, read_bytes_in_flight = 0;
  uint64_t probes = 0, probes_remembered = 0;
  FetchSpeed speed;
  RedisAbsence absence;
  bool is_stopped = false;
  std::unordered_map<GroupId, Known> known;  // walked only where the order does not matter
  uint64_t keep_revision = 0, kept_revision = 0;
  uint64_t owed_count = 0;  // of known
  uint64_t forgets_done = 0;
  uint64_t begun_anew = 0, generations_lost = 0, forgotten_elsewhere = 0;
  OwedErasures erasures;
  SharedTierStats stats_seen;
  bool has_learnt = false;       // generations, in this turn
  bool is_erasing = false;       // a server is being asked to
  bool is_erasing_soon = false;  // EraseSoon
  // Of fetches and stores: those of a key.
  std::unordered_multimap<BlockKey, uint64_t> under_way;

  // ---- Redis thread ----
  asio::io_context loop{1};
  const std::shared_ptr<LoopInbox> inbox = LoopInbox::Open(loop);  // of the store thread
  std::unique_ptr<RedisTls> tls;
  std::unique_ptr<RedisServers> servers;
  std::unique_ptr<RedisBlocks> blocks;
  std::unique_ptr<RedisGenerations> generations;
  std::vector<Answer> finished;  // in this turn of the loop

  // ---- both ----
  std::atomic<bool> is_ready{false};
  std::atomic<uint64_t> returns{0};     // as RedisServersStats: a server may have begun empty
  std::atomic<bool> is_looking{false};  // Tick's look is still to come
  std::atomic<uint64_t> fetches_locked{0};
  std::mutex mutex;  // of what follows
  SharedTierStats shared_stats;
  RedisEnd end = RedisEnd::kFileHangs;  // what it would be if it were waited for no longer
  std::condition_variable has_ended;

  std::thread thread;
};

}  // namespace terrace
