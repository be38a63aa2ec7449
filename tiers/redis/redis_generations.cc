#include "tiers/redis/redis_generations.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "terrace/units.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

// Longer than any block of the generation before it can be there, whatever ttl_s the host has that
// stored it: whoever stores one looked at the key a moment ago, which made it stay.
std::string TtlMs() { return std::to_string(2 * kRedisTtlSecondsMax * 1000); }

// It becomes ARGV[2] if it is ARGV[1], or nothing if that is empty. What is no string, or a longer
// one, was never ours. A full server refuses a script its first write, if that takes memory, and
// none behind one that takes none: so it takes a rise (ARGV[4]), which is as long as what it was.
constexpr std::string_view kReplaceScript =
    "local kind=redis.call('TYPE',KEYS[1]).ok "
    "if kind~='none' and (kind~='string' or redis.call('STRLEN',KEYS[1])>64) "
    "then redis.call('UNLINK',KEYS[1]) end "
    "if (redis.call('GET',KEYS[1]) or '')~=ARGV[1] then return 0 end "
    "if ARGV[4]=='1' then redis.call('UNLINK',KEYS[1]) end "
    "redis.call('SET',KEYS[1],ARGV[2],'PX',ARGV[3]) return 1";

const Status kNoWrites(StatusCode::kNoSpace, "the Redis server takes no writes now");

Status TroubleOf(const RedisAnswer& answer) {
  if (!answer.status.ok()) return answer.status;
  if (answer.reply.kind == RedisReply::Kind::kError) return StatusOfRedisError(answer.error);
  return Status(StatusCode::kIo, "a Redis server gave an answer of another kind");
}

}  // namespace

RedisGenerations::RedisGenerations(Options options)
    : options_(std::move(options)), names_(options_.prefix, options_.secret, options_.version) {}

void RedisGenerations::Send(const std::string& key, RedisCommand command, Kind kind,
                            std::function<void(const RedisAnswer&)> on_answer) {
  options_.servers->Send({.command = std::move(command),
                          .lane = RedisLane::kSmall,
                          .slot = RedisSlotOf(key),
                          .is_rise = kind == Kind::kRise,
                          .is_write = kind == Kind::kWrite,
                          .done = std::move(on_answer)});
}

// Also beyond what a server had that has lost it since: clocks have gone on.
uint64_t RedisGenerations::Beyond(uint64_t generation, bool is_rise) const {
  const uint64_t next = std::max(generation + 1, options_.unix_us());
  if (!is_rise) return next | kBegun;
  return HasRisen(next) ? next : next + 1;
}

bool RedisGenerations::IsRefused(const GroupId& group) const {
  if (options_.steady_us() - refused_since_us_ >= kUsPerSecond) return false;
  return refused_.size() >= kRefusedMax || refused_.contains(group);
}

void RedisGenerations::NoteRefusal(const Job& job, const RedisAnswer& answer) {
  refusal_ = TroubleOf(answer);
  // Who takes no writes is not given any, whoever asks, but rises.
  if (!answer.status.ok() || (IsWriteRefusal(answer.error) && !job.is_rise)) return;
  const uint64_t now_us = options_.steady_us();
  if (now_us - refused_since_us_ >= kUsPerSecond) {
    refused_since_us_ = now_us;
    refused_.clear();
  }
  refused_.insert(job.question.group);
}

void RedisGenerations::Agree(const Question& question, Done done) {
  auto job = std::make_shared<Job>(Job{.question = question, .done = std::move(done)});
  job->key = names_.Generation(question.group);
  if (question.is_rise && question.is_again &&
      !options_.servers->TakesRise(RedisSlotOf(job->key))) {
    return job->done(kNoWrites, {});
  }
  Look(job);
}

void RedisGenerations::Look(const std::shared_ptr<Job>& job) {
  if (job->try_count++ == kTriesMax) {
    job->done(Status(StatusCode::kBusy, "a group's generation changes all the while"), {});
    return;
  }
  Send(job->key, FormatRedisCommand({"GET", job->key}), Kind::kOther,
       [this, job](const RedisAnswer& answer) { OnFound(job, answer); });
}

void RedisGenerations::OnFound(const std::shared_ptr<Job>& job, const RedisAnswer& answer) {
  const bool is_foreign = IsForeignRedisValue(answer.error);
  const bool is_nil = answer.status.ok() && answer.reply.kind == RedisReply::Kind::kNil;
  const bool is_text = answer.status.ok() && answer.reply.kind == RedisReply::Kind::kString;
  if (!is_foreign && !is_nil && !is_text) return job->done(TroubleOf(answer), {});
  job->found = is_text && !is_foreign ? answer.reply.text : "";
  const Question& asked = job->question;
  // What nobody wrote who knows the secret says nothing.
  const Result<uint64_t> read = DecodeGeneration(job->found, asked.group, options_.secret);
  const uint64_t said = read.ok() ? *read : 0, known = std::max(said, asked.at_least);
  // Begun anew, of a server that had lost what hosts knew: nobody knew that it was forgotten.
  const bool is_anew = !HasRisen(asked.at_least) && asked.is_from_just_now;
  const bool is_agreed = read.ok() && (said == asked.at_least || asked.at_least == 0 ||
                                       (said > asked.at_least && (HasRisen(said) || is_anew)));
  if (is_agreed && !asked.is_rise) return Lengthen(job, said);
  // A server that says less has lost rises, and one that says nothing, or what somebody has begun
  // since, may have. Of what this host heard a moment ago it has lost none.
  const bool is_kept = !asked.is_rise && !read.ok() && asked.is_from_just_now && asked.at_least > 0;
  const bool is_first = !asked.is_rise && known == 0;
  const uint64_t wanted = is_kept ? known : Beyond(known, !is_first);
  job->is_rise = !is_first && !is_kept;
  const bool takes_writes = options_.servers->TakesWrites(RedisSlotOf(job->key));
  if (!takes_writes && !job->is_rise) return job->done(kNoWrites, {});
  if (!asked.is_rise && IsRefused(asked.group)) return job->done(refusal_, {});
  Write(job, wanted);
}

// It stays for as long again. Who asks a server that has too few replicas for the first time since
// it came back is told nothing: it may have become the master before it had heard of a rise, and
// nobody can tell it.
void RedisGenerations::Lengthen(const std::shared_ptr<Job>& job, uint64_t said) {
  const bool is_first = job->question.is_first_since_return;
  Send(job->key, FormatRedisCommand({"PEXPIRE", job->key, TtlMs()}), Kind::kOther,
       [job, said, is_first](const RedisAnswer& answer) {
         if (!is_first) return;
         if (!answer.status.ok()) return job->done(answer.status, {});
         if (answer.error == RedisError::kNoReplicas) return job->done(TroubleOf(answer), {});
         job->done(Status::Ok(), {.generation = said});
       });
  if (!is_first) job->done(Status::Ok(), {.generation = said});
}

// Of a rise that a server takes it does not follow that it takes blocks.
void RedisGenerations::Write(const std::shared_ptr<Job>& job, uint64_t wanted) {
  const GroupId& group = job->question.group;
  const std::string text = EncodeGeneration(group, wanted, options_.secret);
  const bool is_lost = job->is_rise && !job->question.is_rise;
  Send(job->key,
       FormatRedisCommand({"EVAL", kReplaceScript, "1", job->key, job->found, text, TtlMs(),
                           job->is_rise ? "1" : "0"}),
       job->is_rise ? Kind::kRise : Kind::kWrite,
       [this, job, wanted, is_lost](const RedisAnswer& replaced) {
         if (!replaced.status.ok() || replaced.reply.kind != RedisReply::Kind::kInteger) {
           NoteRefusal(*job, replaced);
           job->done(TroubleOf(replaced), {});
         } else if (replaced.reply.integer == 1) {
           job->done(Status::Ok(), {.generation = wanted, .is_lost = is_lost});
         } else {
           Look(job);
         }
       });
}

}  // namespace terrace
