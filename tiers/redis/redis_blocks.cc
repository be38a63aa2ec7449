#include "tiers/redis/redis_blocks.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "terrace/check.h"
#include "tiers/redis/redis_chunks.h"
#include "tiers/redis/redis_payload.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

// After a small block was there already, so many are looked for before their bytes are sent: the
// same prompts are being stored by somebody else, or were before a restart.
constexpr uint32_t kLookFirst = 64;

// Chunks outlive the manifest that names them.
constexpr uint64_t kChunkTtlMarginMs = 60'000;

// The manifest goes if it is still the one that was read, or nothing that we ever wrote: no string,
// or beyond any limit.
constexpr std::string_view kRepairScript =
    "if redis.call('TYPE',KEYS[1]).ok~='string' "
    "or redis.call('STRLEN',KEYS[1])>tonumber(ARGV[2]) or redis.call('GET',KEYS[1])==ARGV[1] "
    "then return redis.call('UNLINK',KEYS[1]) end return 0";
// The same of a small block, whose chunks go with their manifest, and whatever is beyond any limit.
// Chunks without a manifest go as well. 1: there is none any more.
constexpr std::string_view kRepairSmallScript =
    "local ours=redis.call('TYPE',KEYS[1]).ok=='string' "
    "for i=1,#KEYS do ours=ours and (redis.call('TYPE',KEYS[i]).ok~='string' "
    "or redis.call('STRLEN',KEYS[i])<=tonumber(ARGV[2])) end "
    "if ours and redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end "
    "redis.call('UNLINK',unpack(KEYS)) return 1";
// The bitmap goes if it is none.
constexpr std::string_view kRepairPresenceScript =
    "if redis.call('TYPE',KEYS[1]).ok~='string' "
    "or redis.call('STRLEN',KEYS[1])>tonumber(ARGV[1]) "
    "then return redis.call('UNLINK',KEYS[1]) end return 0";
// Of a small block, if they are new: the one that was first decides how long it stays. What
// PEXPIRE … NX says to servers from 7 on, in a third of the time.
constexpr std::string_view kExpireSmallScript =
    "for i=1,#KEYS do if redis.call('PTTL',KEYS[i])==-1 then "
    "redis.call('PEXPIRE',KEYS[i],ARGV[1]) end end return 1";
constexpr std::string_view kClearScript =
    "if redis.call('TYPE',KEYS[1]).ok=='string' then return 0 end "
    "redis.call('UNLINK',KEYS[1]) "
    "if redis.call('EXISTS',KEYS[2])==0 then return 0 end "
    "return redis.call('SETBIT',KEYS[2],ARGV[1],0)";

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

bool IsSmall(uint64_t block_bytes) { return block_bytes <= kRedisSmallBlockBytesMax; }

// Without the last bytes of a block that lie in its manifest.
std::vector<uint32_t> ChunkLengths(uint64_t block_bytes) {
  std::vector<uint32_t> lengths = CutIntoChunks(block_bytes);
  if (!lengths.empty() && lengths.back() <= kRedisTailBytesMax) lengths.pop_back();
  return lengths;
}

bool IsStatusOk(const RedisAnswer& answer) {
  return answer.status.ok() && answer.reply.kind == RedisReply::Kind::kStatus &&
         answer.reply.text == "OK";
}

// The server takes no writes, not from us, or not here: nothing of a transaction was done.
bool IsAborted(RedisError error) {
  return IsWriteRefusal(error) || IsSoftRedisError(error) || IsHardRedisError(error) ||
         error == RedisError::kTryAgain;
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
  std::unique_ptr<std::byte[]> encrypted;  // what `from` is then
  size_t answers_due = 0;
  uint64_t ttl_ms = 0;
  bool has_swept = false;
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
      names_(options_.prefix, options_.secret,
             options_.ring == nullptr ? kRedisFormatVersion : kRedisEncryptedVersion),
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
  const uint64_t now_s = options_.unix_us() / kUsPerSecond;
  if (manifest.expires_at_s <= now_s) return 0;
  return std::min(options_.ttl_ms, (manifest.expires_at_s - now_s) * 1000);
}

void RedisBlocks::Store(const RedisBlockName& name, RedisManifest manifest,
                        std::span<const std::byte> from, StoreDone done) {
  auto job = std::make_shared<StoreJob>(StoreJob{
      .name = name, .manifest = std::move(manifest), .from = from, .done = std::move(done)});
  job->manifest.length_bytes = from.size();
  job->manifest.generation = name.generation;
  job->manifest.write_id = random_();
  job->ttl_ms = TtlMs(job->manifest);
  if (from.empty() || from.size() > kRedisBlockBytesMax) {
    EndStore(*job, Status(StatusCode::kInvalid, "a block of no length, or beyond the limit"));
    return;
  }
  if (job->ttl_ms == 0) {
    EndStore(*job, Status(StatusCode::kNotFound, "the block has expired"));
    return;
  }
  const std::string key = names_.Manifest(name);
  if (!options_.servers->TakesWrites(RedisSlotOf(key))) {
    EndStore(*job, Status(StatusCode::kNoSpace, "the Redis server takes no writes now"));
    return;
  }
  std::span tail = from;
  for (const uint32_t length_bytes : ChunkLengths(from.size())) {
    TERRACE_CHECK(length_bytes <= tail.size(), "chunks and tail make up the block");
    job->manifest.chunks.push_back({.length_bytes = length_bytes});
    tail = tail.subspan(length_bytes);
  }
  job->manifest.tail.assign(tail.begin(), tail.end());
  if (IsSmall(from.size()) && looks_first_ == 0) {
    SendSmallBlock(job);
    return;
  }
  if (looks_first_ > 0) --looks_first_;
  SendSmall(key, FormatRedisCommand({"EXISTS", key}), [this, job](const RedisAnswer& answer) {
    if (!answer.status.ok() || answer.reply.kind != RedisReply::Kind::kInteger) {
      EndStore(*job, TroubleOf(answer));
    } else if (answer.reply.integer != 0) {
      MarkPresent(job->name);
      EndStore(*job, Status(StatusCode::kExists, "somebody stored this block before"));
    } else if (IsSmall(job->from.size())) {
      SendSmallBlock(job);
    } else {
      SendChunks(job);
    }
  });
}

bool RedisBlocks::Encrypt(StoreJob& job) {
  if (options_.ring == nullptr || job.encrypted != nullptr) return true;
  job.encrypted = std::make_unique_for_overwrite<std::byte[]>(job.from.size());
  const std::span<std::byte> into(job.encrypted.get(), job.from.size());
  const Status status =
      EncryptRedisPayload(*options_.ring, options_.random, job.from, into, &job.manifest);
  if (!status.ok()) EndStore(job, status);
  job.from = into;
  return status.ok();
}

std::span<const std::byte> RedisBlocks::SealChunk(StoreJob& job, uint32_t index) const {
  uint64_t offset_bytes = 0;
  for (uint32_t i = 0; i < index; ++i) offset_bytes += job.manifest.chunks[i].length_bytes;
  RedisChunk& chunk = job.manifest.chunks[index];
  TERRACE_CHECK(offset_bytes + chunk.length_bytes <= job.from.size(),
                "a chunk is a piece of its block");
  const std::span bytes = job.from.subspan(offset_bytes, chunk.length_bytes);
  chunk.checksum = RedisChunkChecksum(options_.secret, job.manifest, index, bytes);
  return bytes;
}

// Manifest and chunks in one moment, or nothing if any of them is there. The first chunk, most of
// the block, goes from where it lies.
void RedisBlocks::SendSmallBlock(const std::shared_ptr<StoreJob>& job) {
  if (!Encrypt(*job)) return;
  const size_t chunk_count = job->manifest.chunks.size();
  std::vector<std::span<const std::byte>> chunks;
  for (uint32_t i = 0; i < chunk_count; ++i) chunks.push_back(SealChunk(*job, i));
  const std::vector<std::byte> manifest = EncodeManifest(job->manifest, options_.secret);
  const std::vector<std::string> keys = names_.Small(job->name, chunk_count);
  std::vector<std::string_view> rest;
  for (size_t i = 1; i < chunk_count; ++i) {
    rest.push_back(keys[1 + i]);
    rest.push_back(TextOf(chunks[i]));
  }
  RedisCommand set =
      chunk_count == 0
          ? FormatRedisCommand({"MSETNX", keys[0], TextOf(manifest)})
          : FormatRedisCommand({"MSETNX", keys[0], TextOf(manifest), keys[1]}, chunks[0], rest);
  const std::string presence = names_.Presence(job->name);
  std::vector<RedisCommand> others = FormatExpireNew(keys, job->ttl_ms);
  others.push_back(FormatMark(presence, job->name));
  others.push_back(FormatRedisCommand({"PEXPIRE", presence, PresenceTtl()}));
  const auto answers = static_cast<uint32_t>(kRedisTransactionAnswers + others.size());
  options_.servers->Send(
      {.command = FormatRedisTransaction(std::move(set), others),
       .answers = answers,
       .lane = RedisLane::kPayload,
       .slot = RedisSlotOf(presence),
       .is_write = true,
       .done = [this, job](const RedisAnswer& answer) { OnSmallBlockSent(job, answer); }});
}

RedisCommand RedisBlocks::FormatExpireScript(std::span<const std::string> keys, uint64_t ttl_ms) {
  const std::string ttl = std::to_string(ttl_ms);
  const std::string count = std::to_string(keys.size());
  std::vector<std::string_view> words = {"EVAL", kExpireSmallScript, count};
  words.insert(words.end(), keys.begin(), keys.end());
  words.push_back(ttl);
  return FormatRedisCommand(words);
}

std::vector<RedisCommand> RedisBlocks::FormatExpireNew(std::span<const std::string> keys,
                                                       uint64_t ttl_ms) const {
  if (!options_.servers->knows_expire_nx()) return {FormatExpireScript(keys, ttl_ms)};
  const std::string ttl = std::to_string(ttl_ms);
  std::vector<RedisCommand> commands;
  for (const std::string& key : keys) {
    commands.push_back(FormatRedisCommand({"PEXPIRE", key, ttl, "NX"}));
  }
  return commands;
}

void RedisBlocks::OnSmallBlockSent(const std::shared_ptr<StoreJob>& job,
                                   const RedisAnswer& answer) {
  const std::vector<RedisReply>& done = answer.reply.elements;
  const auto is_error = [](const RedisReply& one) { return one.kind == RedisReply::Kind::kError; };
  // The last two are the bitmap's, a hint.
  const bool has_ttl = done.size() > 3 && std::none_of(done.begin() + 1, done.end() - 2, is_error);
  if (answer.status.ok() && !has_ttl && !IsAborted(answer.error)) ExpireAnyway(*job);
  if (!answer.status.ok() || done.empty() || done[0].kind != RedisReply::Kind::kInteger) {
    EndStore(*job, TroubleOf(answer));
  } else if (done[0].integer != 0) {
    counts_.written_bytes += job->from.size();
    EndStore(*job, Status::Ok());
  } else if (job->has_swept) {
    EndStore(*job, Status(StatusCode::kExists, "somebody else was first"));
  } else {
    // Or there are chunks whose manifest was evicted, or a broken block that is just being taken
    // away.
    job->has_swept = true;
    SendSmall(names_.Presence(job->name),
              FormatSmallRepair(job->name, job->manifest.chunks.size(), ""),
              [this, job](const RedisAnswer& swept) {
                if (swept.status.ok() && swept.reply.kind == RedisReply::Kind::kInteger &&
                    swept.reply.integer != 0) {
                  SendSmallBlock(job);
                } else {
                  EndStore(*job, Status(StatusCode::kExists, "somebody else was first"));
                }
              });
  }
}

// A server that refused a part of the transaction may have done the rest.
void RedisBlocks::ExpireAnyway(const StoreJob& job) {
  std::vector<std::string> keys = names_.Small(job.name, job.manifest.chunks.size());
  keys.push_back(names_.Presence(job.name));
  SendSmall(keys.back(), FormatExpireScript(keys, job.ttl_ms), [](const RedisAnswer&) {});
}

RedisCommand RedisBlocks::FormatSmallRepair(const RedisBlockName& name, size_t chunk_count,
                                            const std::string& manifest_text) const {
  const std::vector<std::string> keys = names_.Small(name, chunk_count);
  const std::string count = std::to_string(keys.size());
  std::vector<std::string_view> words = {"EVAL", kRepairSmallScript, count};
  words.insert(words.end(), keys.begin(), keys.end());
  words.push_back(manifest_text);
  const std::string limit = std::to_string(kRedisReplyBytesMax);
  words.push_back(limit);
  return FormatRedisCommand(words);
}

void RedisBlocks::SendChunks(const std::shared_ptr<StoreJob>& job) {
  if (!Encrypt(*job)) return;
  job->answers_due = job->manifest.chunks.size();
  if (job->answers_due == 0) Publish(job);
  const std::string ttl_ms = std::to_string(job->ttl_ms + kChunkTtlMarginMs);
  for (uint32_t i = 0; i < job->manifest.chunks.size(); ++i) {
    const std::span bytes = SealChunk(*job, i);
    const std::string key = names_.Chunk(job->name, job->manifest, i);
    options_.servers->Send(
        {.command =
             FormatRedisCommand({"SET", key}, bytes, std::array<std::string_view, 2>{"PX", ttl_ms}),
         .lane = RedisLane::kPayload,
         .slot = RedisSlotOf(key),
         .is_write = true,
         .done = [this, job, length_bytes = bytes.size()](const RedisAnswer& answer) {
           if (IsStatusOk(answer)) {
             counts_.written_bytes += length_bytes;
           } else {
             job->status = TroubleOf(answer);
           }
           TERRACE_CHECK(job->answers_due > 0,
                         "a chunk is answered once: a block is published once");
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
  options_.servers->Send({.command = FormatRedisCommand({"SET", key, TextOf(manifest), "NX", "PX",
                                                         std::to_string(job->ttl_ms)}),
                          .slot = RedisSlotOf(key),
                          .is_write = true,
                          .done = [this, job](const RedisAnswer& answer) {
                            if (IsStatusOk(answer)) {
                              MarkPresent(job->name);
                              EndStore(*job, Status::Ok());
                            } else if (answer.status.ok()) {
                              // It was not set, for whatever reason: nobody will ever read these
                              // chunks.
                              UnlinkChunks(job->name, job->manifest);
                              EndStore(*job,
                                       answer.reply.kind == RedisReply::Kind::kNil
                                           ? Status(StatusCode::kExists, "somebody else was first")
                                           : TroubleOf(answer));
                            } else {
                              EndStore(*job, answer.status);  // it may be there: the chunks stay
                            }
                          }});
}

void RedisBlocks::EndStore(StoreJob& job, Status status) {
  if (status.ok()) {
    ++counts_.stores_done;
  } else if (status.code() == StatusCode::kExists) {
    ++counts_.stores_existing;
    looks_first_ = kLookFirst;
  } else {
    ++counts_.stores_failed;
  }
  job.done(status);
}

RedisCommand RedisBlocks::FormatMark(const std::string& key, const RedisBlockName& name) {
  return FormatRedisCommand({"SETBIT", key, std::to_string(RedisKeyNames::PresenceBit(name)), "1"});
}

// As long as any block of the run can be there.
std::string RedisBlocks::PresenceTtl() const {
  return std::to_string(options_.ttl_ms + kChunkTtlMarginMs);
}

void RedisBlocks::MarkPresent(const RedisBlockName& name) {
  const std::string key = names_.Presence(name);
  const auto ignore = [](const RedisAnswer&) {};
  SendSmall(key, FormatMark(key, name), ignore);
  SendSmall(key, FormatRedisCommand({"PEXPIRE", key, PresenceTtl()}), ignore);
}

void RedisBlocks::UnlinkChunks(const RedisBlockName& name, const RedisManifest& manifest) {
  if (IsSmall(manifest.length_bytes)) return;  // they go with their manifest
  for (uint32_t i = 0; i < manifest.chunks.size(); ++i) {
    const std::string key = names_.Chunk(name, manifest, i);
    SendSmall(key, FormatRedisCommand({"UNLINK", key}), [](const RedisAnswer&) {});
  }
}

void RedisBlocks::Erase(const RedisBlockName& name, StoreDone done) {
  // How long it is nobody says: its chunks, if it is small, are some of these.
  const std::vector<std::string> keys = names_.Small(name, kRedisSmallChunksMax);
  std::vector<std::string_view> words = {"UNLINK"};
  words.insert(words.end(), keys.begin(), keys.end());
  SendSmall(keys[0], FormatRedisCommand(words),
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
  if (IsSmall(into.size())) {
    FetchSmallBlock(job);
    return;
  }
  SendSmall(key, FormatRedisCommand({"GET", key}),
            [this, job](const RedisAnswer& answer) { OnManifest(job, answer); });
}

// One command: what answers it is of one moment, so one writer's or none. The manifest comes last:
// the reader knows where a payload begins that nothing of unknown length comes before.
void RedisBlocks::FetchSmallBlock(const std::shared_ptr<FetchJob>& job) {
  std::vector<uint32_t> lengths = ChunkLengths(job->into.size());
  const std::vector<std::string> keys = names_.Small(job->name, lengths.size());
  std::vector<std::string_view> words = {"MGET"};
  words.insert(words.end(), keys.begin() + 1, keys.end());
  words.push_back(keys[0]);
  const uint64_t chunks_bytes = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
  options_.servers->Send(
      {.command = FormatRedisCommand(words),
       .into = job->into.first(chunks_bytes),
       .fields = std::move(lengths),
       .lane = RedisLane::kPayload,
       .slot = RedisSlotOf(keys[0]),
       .done = [this, job](const RedisAnswer& answer) { OnSmallBlock(*job, answer); }});
}

void RedisBlocks::OnSmallBlock(FetchJob& job, const RedisAnswer& answer) {
  if (answer.status.ok() && answer.reply.kind == RedisReply::Kind::kPayload &&
      answer.reply.text.empty()) {
    Repair(job);
    EndFetch(job, Status(StatusCode::kNotFound, "a part of the block is not on the Redis server"));
    return;
  }
  if (!TakeManifest(job, answer, RedisReply::Kind::kPayload)) return;
  const std::vector<RedisChunk>& chunks = job.manifest.chunks;
  const auto landed_bytes = static_cast<uint64_t>(answer.reply.integer);
  counts_.read_bytes += landed_bytes;
  // That there are as many chunks, as long as the fields, is what their checksums say.
  job.is_broken = landed_bytes + job.manifest.tail.size() != job.into.size() ||
                  chunks.size() != ChunkLengths(job.into.size()).size();
  std::span rest = job.into;
  for (uint32_t i = 0; i < chunks.size() && !job.is_broken; ++i) {
    const std::span bytes = rest.first(chunks[i].length_bytes);
    rest = rest.subspan(bytes.size());
    job.is_broken =
        RedisChunkChecksum(options_.secret, job.manifest, i, bytes) != chunks[i].checksum;
  }
  if (!job.is_broken) std::ranges::copy(job.manifest.tail, rest.begin());
  EndFetch(job, Status::Ok());
}

// False: the fetch has ended.
bool RedisBlocks::TakeManifest(FetchJob& job, const RedisAnswer& answer, RedisReply::Kind kind) {
  if (answer.status.ok() && answer.reply.kind == RedisReply::Kind::kNil) {
    ClearPresence(job.name);
    EndFetch(job, Status(StatusCode::kNotFound, "the block is not on the Redis server"));
    return false;
  }
  const bool is_foreign = IsForeignRedisValue(answer.error);
  if (!is_foreign && (!answer.status.ok() || answer.reply.kind != kind)) {
    EndFetch(job, TroubleOf(answer));
    return false;
  }
  job.manifest_text = answer.reply.text;
  Result<RedisManifest> manifest =
      DecodeManifest(BytesOf(job.manifest_text), options_.secret, job.name.generation);
  job.is_broken = is_foreign || !manifest.ok();
  if (!job.is_broken) {
    job.manifest = std::move(*manifest);
    job.is_broken = job.manifest.group != job.name.group || job.manifest.space != job.name.space ||
                    job.manifest.key != job.name.key ||
                    job.manifest.encryption.has_value() != (options_.ring != nullptr);
  }
  if (job.is_broken) {
    job.manifest.chunks.clear();  // of whom they are is not known
    EndFetch(job, Status::Ok());
    return false;
  }
  if (job.manifest.length_bytes != job.into.size()) {  // whole, but of no use here
    EndFetch(job,
             Status(StatusCode::kNotFound, "the block on the Redis server has another length"));
    return false;
  }
  if (job.manifest.encryption &&
      options_.ring->Find(job.manifest.encryption->key_id) == nullptr) {  // others may have it
    ++counts_.fetches_locked;
    EndFetch(job, Status(StatusCode::kNotFound, "the block is under a key that is not here"));
    return false;
  }
  return true;
}

void RedisBlocks::OnManifest(const std::shared_ptr<FetchJob>& job, const RedisAnswer& answer) {
  if (!TakeManifest(*job, answer, RedisReply::Kind::kString)) return;
  const RedisManifest& manifest = job->manifest;
  std::ranges::copy(manifest.tail, job->into.last(manifest.tail.size()).begin());
  job->answers_due = manifest.chunks.size();
  if (job->answers_due == 0) EndFetch(*job, Status::Ok());
  size_t offset_bytes = 0;
  for (uint32_t i = 0; i < manifest.chunks.size(); ++i) {
    const std::span into = job->into.subspan(offset_bytes, manifest.chunks[i].length_bytes);
    offset_bytes += into.size();
    const std::string key = names_.Chunk(job->name, manifest, i);
    options_.servers->Send(
        {.command = FormatRedisCommand({"GET", key}),
         .into = into,
         .lane = RedisLane::kPayload,
         .slot = RedisSlotOf(key),
         .done = [this, job, i, into](const RedisAnswer& answer) {
           OnChunk(*job, i, into, answer);
           TERRACE_CHECK(job->answers_due > 0,
                         "a chunk is answered once: after the last the memory is not ours");
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
      if (IsForeignRedisValue(answer.error)) {
        job.is_broken = true;
      } else {
        job.status = TroubleOf(answer);
      }
      return;
  }
}

void RedisBlocks::EndFetch(FetchJob& job, Status status) {
  if (!job.is_broken && status.ok() && job.manifest.encryption) {
    status = DecryptRedisPayload(*options_.ring, job.manifest, job.into);
    job.is_broken = status.code() == StatusCode::kCorrupt;
  }
  if (job.is_broken) {
    ++counts_.fetches_broken;
    Repair(job);
    job.done(Status(StatusCode::kCorrupt, "a block on the Redis server was broken"),
             std::move(job.manifest));
    return;
  }
  if (status.ok()) {
    ++counts_.fetches_found;
  } else if (status.code() == StatusCode::kNotFound) {
    ++counts_.fetches_missed;
  } else {
    ++counts_.fetches_failed;
  }
  job.done(status, std::move(job.manifest));
}

// Chunks carry the id of their write: no other manifest than the broken one names them.
void RedisBlocks::Repair(const FetchJob& job) {
  ++counts_.repairs;
  const std::string key = names_.Manifest(job.name);
  const size_t length_bytes = job.into.size();
  SendSmall(key,
            IsSmall(length_bytes)
                ? FormatSmallRepair(job.name, ChunkLengths(length_bytes).size(), job.manifest_text)
                : FormatRedisCommand({"EVAL", kRepairScript, "1", key, job.manifest_text,
                                      std::to_string(kRedisReplyBytesMax)}),
            [](const RedisAnswer&) {});
  ClearPresence(job.name);  // one connection, so one after the other
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
              [this, job, key = key, indices = std::move(indices)](const RedisAnswer& answer) {
                const bool is_bitmap =
                    answer.status.ok() && answer.reply.kind == RedisReply::Kind::kString;
                const bool is_foreign =
                    IsForeignRedisValue(answer.error) ||
                    (is_bitmap && answer.reply.text.size() > kRedisPresenceBytes);
                const bool is_none = answer.status.ok() &&
                                     (answer.reply.kind == RedisReply::Kind::kNil || is_foreign);
                if (is_foreign) RepairPresence(key);
                if (!is_bitmap && !is_none) job->status = TroubleOf(answer);
                for (const size_t index : indices) {
                  const uint32_t bit = RedisKeyNames::PresenceBit(job->names[index]);
                  job->is_present[index] =
                      is_bitmap && bit / 8 < answer.reply.text.size() &&
                      (static_cast<uint8_t>(answer.reply.text[bit / 8]) >> (7 - bit % 8) & 1) != 0;
                }
                TERRACE_CHECK(job->answers_due > 0, "a run is answered once: a probe ends once");
                if (--job->answers_due == 0) job->done(job->status, job->is_present);
              });
  }
}

void RedisBlocks::RepairPresence(const std::string& key) {
  SendSmall(key,
            FormatRedisCommand(
                {"EVAL", kRepairPresenceScript, "1", key, std::to_string(kRedisPresenceBytes)}),
            [](const RedisAnswer&) {});
}

}  // namespace terrace
