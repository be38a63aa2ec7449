#include "tiers/redis/redis_generations.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "terrace/units.h"
#include "tiers/redis/redis_slot.h"

namespace terrace {
namespace {

// Longer than any block of the generation before it can be there: whoever stores one looked at the
// key a moment ago, which made it stay.
constexpr uint64_t kTtlMarginMs = 10 * 60'000;

// It becomes ARGV[2] if it is ARGV[1], or nothing if that is empty. What is no string, or a longer
// one, was never ours.
constexpr std::string_view kReplaceScript =
    "local kind=redis.call('TYPE',KEYS[1]).ok "
    "if kind~='none' and (kind~='string' or redis.call('STRLEN',KEYS[1])>64) "
    "then redis.call('UNLINK',KEYS[1]) end "
    "if (redis.call('GET',KEYS[1]) or '')~=ARGV[1] then return 0 end "
    "redis.call('SET',KEYS[1],ARGV[2],'PX',ARGV[3]) return 1";

Status TroubleOf(const RedisAnswer& answer) {
  if (!answer.status.ok()) return answer.status;
  if (answer.reply.kind == RedisReply::Kind::kError) return StatusOfRedisError(answer.error);
  return Status(StatusCode::kIo, "a Redis server gave an answer of another kind");
}

}  // namespace

RedisGenerations::RedisGenerations(Options options)
    : options_(std::move(options)), names_(options_.prefix, options_.secret, options_.version) {}

void RedisGenerations::Send(const std::string& key, RedisCommand command,
                            std::function<void(const RedisAnswer&)> on_answer) {
  options_.servers->Send({.command = std::move(command),
                          .lane = RedisLane::kSmall,
                          .slot = RedisSlotOf(key),
                          .done = std::move(on_answer)});
}

std::string RedisGenerations::TtlMs() const {
  return std::to_string(2 * options_.ttl_ms + kTtlMarginMs);
}

// Also beyond what a server had that has lost it since: clocks have gone on.
uint64_t RedisGenerations::Beyond(uint64_t generation) const {
  return std::max(generation + 1, options_.unix_us());
}

void RedisGenerations::Agree(const Question& question, Done done) {
  auto job = std::make_shared<Job>(Job{.question = question, .done = std::move(done)});
  job->key = names_.Generation(question.group);
  Look(job);
}

void RedisGenerations::Look(const std::shared_ptr<Job>& job) {
  if (job->try_count++ == kTriesMax) {
    job->done(Status(StatusCode::kBusy, "a group's generation changes all the while"), 0);
    return;
  }
  Send(job->key, FormatRedisCommand({"GET", job->key}),
       [this, job](const RedisAnswer& answer) { OnFound(job, answer); });
}

void RedisGenerations::OnFound(const std::shared_ptr<Job>& job, const RedisAnswer& answer) {
  const bool is_foreign = IsForeignRedisValue(answer.error);
  const bool is_nil = answer.status.ok() && answer.reply.kind == RedisReply::Kind::kNil;
  const bool is_text = answer.status.ok() && answer.reply.kind == RedisReply::Kind::kString;
  if (!is_foreign && !is_nil && !is_text) return job->done(TroubleOf(answer), 0);
  job->found = is_text && !is_foreign ? answer.reply.text : "";
  const Question& asked = job->question;
  // What nobody wrote who knows the secret says nothing.
  const Result<uint64_t> read = DecodeGeneration(job->found, asked.group, options_.secret);
  const uint64_t known = std::max(read.ok() ? *read : 0, asked.at_least);
  const uint64_t wanted = asked.is_rise ? Beyond(known) : known;
  if ((read.ok() && *read == wanted) || (is_nil && wanted == 0)) {
    if (read.ok()) {
      Send(job->key, FormatRedisCommand({"PEXPIRE", job->key, TtlMs()}), [](const RedisAnswer&) {});
    }
    return job->done(Status::Ok(), wanted);
  }
  const std::string text = EncodeGeneration(asked.group, wanted, options_.secret);
  const std::string ttl = TtlMs();
  Send(job->key, FormatRedisCommand({"EVAL", kReplaceScript, "1", job->key, job->found, text, ttl}),
       [this, job, wanted](const RedisAnswer& replaced) {
         if (!replaced.status.ok() || replaced.reply.kind != RedisReply::Kind::kInteger) {
           job->done(TroubleOf(replaced), 0);
         } else if (replaced.reply.integer == 1) {
           job->done(Status::Ok(), wanted);
         } else {
           Look(job);
         }
       });
}

}  // namespace terrace
