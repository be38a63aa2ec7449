#include "tiers/redis_blocks.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "terrace/check.h"
#include "tiers/redis_chunks.h"
#include "tiers/redis_slot.h"

namespace terrace {
namespace {

// Chunks outlive the manifest that names them.
constexpr uint64_t kChunkTtlMarginMs = 60'000;

// The manifest goes if it is still the one that was read, or is no string at all.
constexpr std::string_view kRepairScript =
    "local v=redis.pcall('GET',KEYS[1]) "
    "if type(v)=='table' or v==ARGV[1] then return redis.call('UNLINK',KEYS[1]) end return 0";
constexpr std::string_view kClearScript =
    "if redis.call('EXISTS',KEYS[1])==0 then "
    "return redis.call('SETBIT',KEYS[2],ARGV[1],0) end return 0";

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

bool IsStatusOk(const RedisAnswer& answer) {
  return answer.status.ok() && answer.reply.kind == RedisReply::Kind::kStatus &&
         answer.reply.text == "OK";
}

// What a command that was not answered as it should be comes to.
Status TroubleOf(const RedisAnswer& answer) {
  if (!answer.status.ok()) return answer.status;
  if (answer.reply.kind == RedisReply::Kind::kError) return StatusOfRedisError(answer.error);
  return Status(StatusCode::kIo, "a Redis server gave an answer of another kind");
}

}  // namespace

struct RedisBlocks::StoreJob {
  RedisBlockName name;
  RedisManifest manifest;
  std::span<const std::byte> from;
  StoreDone done;
  size_t answers_due = 0;
  uint64_t ttl_ms = 0;
  Status status;
};

struct RedisBlocks::FetchJob {
  RedisBlockName name;
  std::span<std::byte> into;
  FetchDone done;
  std::string manifest_text;  // as the server has it
  RedisManifest manifest;
  size_t answers_due = 0;
  bool is_broken = false;
  Status status;
};

struct RedisBlocks::ProbeJob {
  std::vector<RedisBlockName> names;
  ProbeDone done;
  std::vector<bool> is_present;
  size_t answers_due = 0;
  Status status;
};

RedisBlocks::RedisBlocks(Options options)
    : options_(std::move(options)),
      names_(options_.prefix, options_.secret),
      random_(std::random_device{}()) {}

void RedisBlocks::SendSmall(const std::string& key, RedisCommand command, OnAnswer on_answer) {
  options_.servers->Send({.command = std::move(command),
                          .lane = RedisLane::kSmall,
                          .slot = RedisSlotOf(key),
                          .done = std::move(on_answer)});
}

// ---- store ----

uint64_t RedisBlocks::TtlMs(const RedisManifest& manifest) const {
  if (manifest.expires_at_s == 0) return options_.ttl_ms;
  const uint64_t now_s = options_.unix_seconds();
  if (manifest.expires_at_s <= now_s) return 0;
  return std::min(options_.ttl_ms, (manifest.expires_at_s - now_s) * 1000);
}

void RedisBlocks::Store(const RedisBlockName& name, RedisManifest manifest,
                        std::span<const std::byte> from, StoreDone done) {
  auto job = std::make_shared<StoreJob>(StoreJob{
      .name = name, .manifest = std::move(manifest), .from = from, .done = std::move(done)});
  job->manifest.length_bytes = from.size();
  job->manifest.write_id = random_();
  job->ttl_ms = TtlMs(job->manifest);
  const std::vector<uint32_t> lengths = CutIntoChunks(from.size());
  if (lengths.empty()) {
    EndStore(*job, Status(StatusCode::kInvalid, "a block of no length, or beyond the limit"));
    return;
  }
  if (job->ttl_ms == 0) {
    EndStore(*job, Status(StatusCode::kNotFound, "the block has expired"));
    return;
  }
  if (RedisNowUs() < writes_paused_until_us_) {
    EndStore(*job, Status(StatusCode::kNoSpace, "the Redis server takes no writes now"));
    return;
  }
  for (const uint32_t length_bytes : lengths) {
    job->manifest.chunks.push_back({.length_bytes = length_bytes});
  }
  if (lengths.back() <= kRedisTailBytesMax) {
    job->manifest.chunks.pop_back();
    const std::span tail = from.last(lengths.back());
    job->manifest.tail.assign(tail.begin(), tail.end());
  }
  const std::string key = names_.Manifest(name);
  SendSmall(key, FormatRedisCommand({"EXISTS", key}), [this, job](const RedisAnswer& answer) {
    if (!answer.status.ok() || answer.reply.kind != RedisReply::Kind::kInteger) {
      EndStore(*job, TroubleOf(answer));
    } else if (answer.reply.integer != 0) {
      MarkPresent(job->name, job->ttl_ms);
      EndStore(*job, Status(StatusCode::kExists, "somebody stored this block before"));
    } else {
      SendChunks(job);
    }
  });
}

void RedisBlocks::SendChunks(const std::shared_ptr<StoreJob>& job) {
  job->answers_due = job->manifest.chunks.size();
  if (job->answers_due == 0) Publish(job);
  size_t offset_bytes = 0;
  for (uint32_t i = 0; i < job->manifest.chunks.size(); ++i) {
    RedisChunk& chunk = job->manifest.chunks[i];
    const std::span bytes = job->from.subspan(offset_bytes, chunk.length_bytes);
    offset_bytes += chunk.length_bytes;
    chunk.checksum = RedisChunkChecksum(options_.secret, job->manifest, i, bytes);
    const std::string key = names_.Chunk(job->name, job->manifest, i);
    options_.servers->Send(
        {.command = FormatRedisSet(key, bytes, job->ttl_ms + kChunkTtlMarginMs),
         .lane = RedisLane::kPayload,
         .slot = RedisSlotOf(key),
         .done = [this, job, length_bytes = bytes.size()](const RedisAnswer& answer) {
           if (IsStatusOk(answer)) {
             counts_.written_bytes += length_bytes;
           } else {
             job->status = TroubleOf(answer);
             if (IsWriteRefusal(answer.error)) {
               writes_paused_until_us_ = RedisNowUs() + options_.write_pause_us;
             }
           }
           if (--job->answers_due > 0) return;
           if (job->status.ok()) {
             Publish(job);
           } else {
             UnlinkChunks(job->name, job->manifest);
             EndStore(*job, job->status);
           }
         }});
  }
}

void RedisBlocks::Publish(const std::shared_ptr<StoreJob>& job) {
  const std::string key = names_.Manifest(job->name);
  const std::vector<std::byte> manifest = EncodeManifest(job->manifest, options_.secret);
  SendSmall(
      key,
      FormatRedisCommand({"SET", key, TextOf(manifest), "NX", "PX", std::to_string(job->ttl_ms)}),
      [this, job](const RedisAnswer& answer) {
        if (IsStatusOk(answer)) {
          MarkPresent(job->name, job->ttl_ms);
          EndStore(*job, Status::Ok());
        } else if (answer.status.ok()) {
          // It was not set, for whatever reason: nobody will ever read these chunks.
          UnlinkChunks(job->name, job->manifest);
          EndStore(*job, answer.reply.kind == RedisReply::Kind::kNil
                             ? Status(StatusCode::kExists, "somebody else was first")
                             : TroubleOf(answer));
        } else {
          EndStore(*job, answer.status);  // it may be there: the chunks stay
        }
      });
}

void RedisBlocks::EndStore(StoreJob& job, Status status) {
  if (status.ok()) {
    ++counts_.stores_done;
  } else if (status.code() == StatusCode::kExists) {
    ++counts_.stores_existing;
  } else {
    ++counts_.stores_failed;
  }
  job.done(status);
}

void RedisBlocks::MarkPresent(const RedisBlockName& name, uint64_t ttl_ms) {
  const std::string key = names_.Presence(name);
  const auto ignore = [](const RedisAnswer&) {};
  SendSmall(
      key,
      FormatRedisCommand({"SETBIT", key, std::to_string(RedisKeyNames::PresenceBit(name)), "1"}),
      ignore);
  SendSmall(key, FormatRedisCommand({"PEXPIRE", key, std::to_string(ttl_ms + kChunkTtlMarginMs)}),
            ignore);
}

void RedisBlocks::UnlinkChunks(const RedisBlockName& name, const RedisManifest& manifest) {
  for (uint32_t i = 0; i < manifest.chunks.size(); ++i) {
    const std::string key = names_.Chunk(name, manifest, i);
    SendSmall(key, FormatRedisCommand({"UNLINK", key}), [](const RedisAnswer&) {});
  }
}

void RedisBlocks::Erase(const RedisBlockName& name, StoreDone done) {
  const std::string key = names_.Manifest(name);
  SendSmall(key, FormatRedisCommand({"UNLINK", key}),
            [this, name, done = std::move(done)](const RedisAnswer& answer) {
              const bool is_erased =
                  answer.status.ok() && answer.reply.kind == RedisReply::Kind::kInteger;
              if (is_erased) ClearPresence(name);
              done(is_erased ? Status::Ok() : TroubleOf(answer));
            });
}

// ---- fetch ----

void RedisBlocks::Fetch(const RedisBlockName& name, std::span<std::byte> into, FetchDone done) {
  auto job =
      std::make_shared<FetchJob>(FetchJob{.name = name, .into = into, .done = std::move(done)});
  const std::string key = names_.Manifest(name);
  SendSmall(key, FormatRedisCommand({"GET", key}),
            [this, job](const RedisAnswer& answer) { OnManifest(job, answer); });
}

void RedisBlocks::OnManifest(const std::shared_ptr<FetchJob>& job, const RedisAnswer& answer) {
  if (answer.status.ok() && answer.reply.kind == RedisReply::Kind::kNil) {
    ClearPresence(job->name);
    EndFetch(*job, Status(StatusCode::kNotFound, "the block is not on the Redis server"));
    return;
  }
  const bool is_other_type = answer.error == RedisError::kWrongType;
  if (!is_other_type && (!answer.status.ok() || answer.reply.kind != RedisReply::Kind::kString)) {
    EndFetch(*job, TroubleOf(answer));
    return;
  }
  job->manifest_text = answer.reply.text;
  const Result<RedisManifest> manifest =
      DecodeManifest(BytesOf(job->manifest_text), options_.secret);
  job->is_broken = is_other_type || !manifest.ok();
  if (!job->is_broken) {
    job->manifest = *manifest;
    job->is_broken = manifest->group != job->name.group || manifest->space != job->name.space ||
                     manifest->key != job->name.key;
  }
  if (job->is_broken) {
    job->manifest.chunks.clear();  // of whom they are is not known
    EndFetch(*job, Status::Ok());
    return;
  }
  if (job->manifest.length_bytes != job->into.size()) {  // whole, but of no use here
    EndFetch(*job,
             Status(StatusCode::kNotFound, "the block on the Redis server has another length"));
    return;
  }
  FetchChunks(job);
}

void RedisBlocks::FetchChunks(const std::shared_ptr<FetchJob>& job) {
  const RedisManifest& manifest = job->manifest;
  std::ranges::copy(manifest.tail, job->into.last(manifest.tail.size()).begin());
  job->answers_due = manifest.chunks.size();
  if (job->answers_due == 0) EndFetch(*job, Status::Ok());
  size_t offset_bytes = 0;
  for (uint32_t i = 0; i < manifest.chunks.size(); ++i) {
    const std::span into = job->into.subspan(offset_bytes, manifest.chunks[i].length_bytes);
    offset_bytes += into.size();
    const std::string key = names_.Chunk(job->name, manifest, i);
    options_.servers->Send({.command = FormatRedisCommand({"GET", key}),
                            .into = into,
                            .lane = RedisLane::kPayload,
                            .slot = RedisSlotOf(key),
                            .done = [this, job, i, into](const RedisAnswer& answer) {
                              OnChunk(*job, i, into, answer);
                              if (--job->answers_due == 0) EndFetch(*job, job->status);
                            }});
  }
}

// Missing, of another length, of another type, not of its checksum: the block is broken. An answer
// that did not come says nothing of the block.
void RedisBlocks::OnChunk(FetchJob& job, size_t index, std::span<const std::byte> bytes,
                          const RedisAnswer& answer) {
  if (!answer.status.ok()) {
    job.status = answer.status;
    return;
  }
  switch (answer.reply.kind) {
    case RedisReply::Kind::kPayload:
      counts_.read_bytes += static_cast<uint64_t>(answer.reply.integer);
      if (static_cast<uint64_t>(answer.reply.integer) != bytes.size() ||
          RedisChunkChecksum(options_.secret, job.manifest, static_cast<uint32_t>(index), bytes) !=
              job.manifest.chunks[index].checksum) {
        job.is_broken = true;
      }
      return;
    case RedisReply::Kind::kNil:
      job.is_broken = true;
      return;
    default:
      if (answer.error == RedisError::kWrongType) {
        job.is_broken = true;
      } else {
        job.status = TroubleOf(answer);
      }
      return;
  }
}

void RedisBlocks::EndFetch(FetchJob& job, Status status) {
  if (job.is_broken) {
    ++counts_.fetches_broken;
    Repair(job);
    job.done(Status(StatusCode::kCorrupt, "a block on the Redis server was broken"), job.manifest);
    return;
  }
  if (status.ok()) {
    ++counts_.fetches_found;
  } else if (status.code() == StatusCode::kNotFound) {
    ++counts_.fetches_missed;
  } else {
    ++counts_.fetches_failed;
  }
  job.done(status, job.manifest);
}

// Chunks carry the id of their write: no other manifest than the broken one names them.
void RedisBlocks::Repair(const FetchJob& job) {
  ++counts_.repairs;
  const std::string key = names_.Manifest(job.name);
  SendSmall(key, FormatRedisCommand({"EVAL", kRepairScript, "1", key, job.manifest_text}),
            [this, name = job.name](const RedisAnswer& answer) {
              if (answer.status.ok()) ClearPresence(name);
            });
  UnlinkChunks(job.name, job.manifest);
}

void RedisBlocks::ClearPresence(const RedisBlockName& name) {
  const std::string manifest = names_.Manifest(name);
  SendSmall(manifest,
            FormatRedisCommand({"EVAL", kClearScript, "2", manifest, names_.Presence(name),
                                std::to_string(RedisKeyNames::PresenceBit(name))}),
            [](const RedisAnswer&) {});
}

// ---- probe ----

void RedisBlocks::Probe(std::vector<RedisBlockName> names, ProbeDone done) {
  auto job =
      std::make_shared<ProbeJob>(ProbeJob{.names = std::move(names), .done = std::move(done)});
  job->is_present.resize(job->names.size());
  std::unordered_map<std::string, std::vector<size_t>> runs;
  for (size_t i = 0; i < job->names.size(); ++i) {
    runs[names_.Presence(job->names[i])].push_back(i);
  }
  job->answers_due = runs.size();
  if (runs.empty()) job->done(Status::Ok(), job->is_present);
  for (auto& [key, indices] : runs) {
    SendSmall(key, FormatRedisCommand({"GET", key}),
              [job, indices = std::move(indices)](const RedisAnswer& answer) {
                const bool is_bitmap =
                    answer.status.ok() && answer.reply.kind == RedisReply::Kind::kString;
                const bool is_none =
                    answer.status.ok() && (answer.reply.kind == RedisReply::Kind::kNil ||
                                           answer.error == RedisError::kWrongType);
                if (!is_bitmap && !is_none) job->status = TroubleOf(answer);
                for (const size_t index : indices) {
                  const uint32_t bit = RedisKeyNames::PresenceBit(job->names[index]);
                  job->is_present[index] =
                      is_bitmap && bit / 8 < answer.reply.text.size() &&
                      (static_cast<uint8_t>(answer.reply.text[bit / 8]) >> (7 - bit % 8) & 1) != 0;
                }
                if (--job->answers_due == 0) job->done(job->status, job->is_present);
              });
  }
}

}  // namespace terrace
