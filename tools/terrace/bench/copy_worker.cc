#include "tools/terrace/bench/copy_worker.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "terrace/units.h"
#include "tools/terrace/bench/block_pattern.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kFillAttemptsMax = 200;
constexpr uint32_t kFillPauseUs = 50'000;
constexpr uint64_t kPrivateBytesMax = 128 * kMiB;        // of one client
constexpr uint64_t kPrivateBytesOfAllMax = 1024 * kMiB;  // of all clients together

class CopyWorker : public Worker {
 public:
  CopyWorker(const CopyWorkload& workload, uint32_t index, std::unique_ptr<BenchClient> client)
      : workload_(workload), index_(index), client_(std::move(client)) {
    for (uint32_t p = index; p < shape().prompt_count; p += workload.client_count) {
      own_prompts_.push_back(p);
    }
  }

  bool MapMemory(std::string* why) {
    floor_ = workload_.floor->Map(why);
    if (floor_ == nullptr) return false;
    // Requests move through several prompts' worth of private memory, as an engine's do through its
    // pages; in a buffer that stays in a cache a plain memcpy would win by that alone.
    const uint64_t private_bytes =
        std::min(kPrivateBytesMax, kPrivateBytesOfAllMax / workload_.client_count);
    buffer_prompts_ =
        std::clamp<uint64_t>(private_bytes / shape().prompt_bytes(), 1, shape().prompt_count);
    buffer_ = MappedMemory::Map(-1, buffer_prompts_ * shape().prompt_bytes(), why);
    return buffer_ != nullptr;
  }

  void Run(const PhaseCommand& command, PhaseReport* report) override {
    switch (command.phase) {
      case Phase::kPrepare:
        return Prepare(report);
      case Phase::kFloor:
        return Repeat(command, report, &CopyWorker::MeasureFloor);
      case Phase::kTerrace:
        return Repeat(command, report,
                      is_storing() ? &CopyWorker::MeasureStore : &CopyWorker::MeasureLoad);
      case Phase::kCheck:
        return EvictOwn(report);
      case Phase::kQuit:
        return;
    }
  }

 private:
  using Measure = void (CopyWorker::*)(uint32_t prompt, PhaseReport* report);

  const BenchShape& shape() const { return workload_.shape; }
  bool is_storing() const { return workload_.direction == CopyDirection::kStore; }
  bool is_verified() const { return workload_.verify == CopyWorkload::Verify::kYes; }
  std::span<std::byte> BufferBlock(uint32_t block) const {
    return buffer_->block(buffer_prompt_ * shape().prompt_blocks + block, shape().block_bytes);
  }

  // Prompts of one pass, in the order of this worker.
  uint32_t PassLength() const {
    return is_storing() ? static_cast<uint32_t>(own_prompts_.size()) : shape().prompt_count;
  }
  uint32_t PromptAt(uint64_t turn) const {
    if (is_storing()) return own_prompts_[turn % own_prompts_.size()];
    const uint64_t first = uint64_t{index_} * shape().prompt_count / workload_.client_count;
    return static_cast<uint32_t>((first + turn) % shape().prompt_count);
  }

  // Bytes of a stored prompt: the keys' patterns, so that anybody can check them.
  void FillBuffer(std::span<const BlockKey> keys) {
    for (uint32_t i = 0; i < keys.size(); ++i) FillPattern(keys[i], BufferBlock(i));
  }

  void Prepare(PhaseReport* report) {
    MoveKeysOn();
    // Loads need every prompt there. Stores begin on memory that has been used before, as those of
    // a daemon in service do; their first pass is not measured.
    for (uint32_t prompt : own_prompts_) {
      if (!StoreUntilResident(prompt, report)) return;
    }
    if (is_storing()) EvictOwn(report);
  }

  // The arena may still be growing in the background, so the first attempts may find no space.
  bool StoreUntilResident(uint32_t prompt, PhaseReport* report) {
    const std::vector<BlockKey>& keys = KeysOf(prompt);
    FillBuffer(keys);
    for (uint32_t attempt = 0; attempt < kFillAttemptsMax; ++attempt) {
      if (!StoreRest(keys, report)) return false;
      Result<MatchResult> match = client_->client().Match(client_->group(), keys);
      if (match.ok() && match->block_count == keys.size()) return true;
      usleep(kFillPauseUs);
    }
    report->Fail(
        fmt::format("the daemon does not keep {} prompts of {} bytes: prompt {} is not whole "
                    "after {} attempts. Give it more memory, or use fewer --prompts",
                    shape().prompt_count, shape().prompt_bytes(), prompt, kFillAttemptsMax));
    return false;
  }

  // Stores what the daemon does not have of the prompt in the buffer.
  bool StoreRest(std::span<const BlockKey> keys, PhaseReport* report) {
    Result<WriteLease> lease = client_->Reserve(keys);
    if (!lease.ok()) {
      if (lease.code() == StatusCode::kNoSpace || lease.code() == StatusCode::kBusy) return true;
      report->Fail(client_->Explain("Reserve failed", lease.status()));
      return false;
    }
    for (uint32_t i = 0; i < keys.size(); ++i) {
      if (!lease->is_reserved(i)) continue;
      if (Status status = client_->WriteBlock(*lease, i, BufferBlock(i)); !status.ok()) {
        report->Fail(client_->Explain("WritePart failed", status));
        return false;
      }
    }
    if (Result<uint32_t> sealed = client_->Commit(*lease); !sealed.ok()) {
      report->Fail(client_->Explain("Commit failed", sealed.status()));
      return false;
    }
    return true;
  }

  void Repeat(const PhaseCommand& command, PhaseReport* report, Measure measure) {
    const bool is_store_of_new_keys = measure == &CopyWorker::MeasureStore;
    for (uint64_t turn = 0; report->op_count < command.op_count_max &&
                            report->busy_ns < command.busy_ns_max && !report->is_failed;
         ++turn) {
      if (PassLength() == 0) return;  // fewer prompts than clients
      buffer_prompt_ = turn % buffer_prompts_;
      (this->*measure)(PromptAt(turn), report);
      ++report->op_count;
      // The next pass stores under new keys, into the slots of this one.
      if (is_store_of_new_keys && (turn + 1) % PassLength() == 0) EvictOwn(report);
    }
    if (is_store_of_new_keys && !report->is_failed) EvictOwn(report);
  }

  void AddCopied(uint64_t began_ns, uint64_t block_count, PhaseReport* report) {
    const uint64_t took_ns = NowNs() - began_ns;
    report->busy_ns += took_ns;
    report->latencies.Add(took_ns);
    report->block_count += block_count;
    report->byte_count += block_count * shape().block_bytes;
  }

  void MeasureFloor(uint32_t prompt, PhaseReport* report) {
    const uint64_t first = uint64_t{prompt} * shape().prompt_blocks;
    const uint64_t began_ns = NowNs();
    for (uint32_t i = 0; i < shape().prompt_blocks; ++i) {
      std::span<std::byte> shared = floor_->block(first + i, shape().block_bytes);
      std::span<std::byte> own = BufferBlock(i);
      std::byte* to = is_storing() ? shared.data() : own.data();
      const std::byte* from = is_storing() ? own.data() : shared.data();
      std::memcpy(to, from, shape().block_bytes);
    }
    AddCopied(began_ns, shape().prompt_blocks, report);
  }

  void MeasureStore(uint32_t prompt, PhaseReport* report) {
    const std::vector<BlockKey>& keys = KeysOf(prompt);
    if (is_verified()) FillBuffer(keys);
    const uint64_t began_ns = NowNs();
    Result<WriteLease> lease = client_->Reserve(keys);
    if (!lease.ok()) return report->Fail(client_->Explain("Reserve failed", lease.status()));
    uint32_t written = 0;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      if (!lease->is_reserved(i)) continue;
      if (Status status = client_->WriteBlock(*lease, i, BufferBlock(i)); !status.ok()) {
        return report->Fail(client_->Explain("WritePart failed", status));
      }
      ++written;
    }
    Result<uint32_t> sealed = client_->Commit(*lease);
    if (!sealed.ok()) return report->Fail(client_->Explain("Commit failed", sealed.status()));
    AddCopied(began_ns, written, report);
    report->blocks_stored += *sealed;
    report->blocks_refused += keys.size() - written;
    if (is_verified()) ReadBack(keys, report);
  }

  void MeasureLoad(uint32_t prompt, PhaseReport* report) {
    const std::vector<BlockKey>& keys = KeysOf(prompt);
    const uint64_t began_ns = NowNs();
    Result<ReadLease> lease = client_->Acquire(keys);
    if (!lease.ok()) return report->Fail(client_->Explain("Acquire failed", lease.status()));
    const uint32_t count = lease->ready_count();
    for (uint32_t i = 0; i < count; ++i) {
      if (Status status = client_->CopyBlock(*lease, i, BufferBlock(i)); !status.ok()) {
        return report->Fail(client_->Explain("CopyPart failed", status));
      }
    }
    const bool is_valid = lease->is_valid();
    lease->Release();
    AddCopied(began_ns, count, report);
    report->blocks_asked += keys.size();
    report->blocks_hit += count;
    if (!is_verified() || !is_valid) return;
    for (uint32_t i = 0; i < count; ++i) {
      if (!VerifyBlock(keys[i], BufferBlock(i), report)) return;
    }
  }

  void ReadBack(std::span<const BlockKey> keys, PhaseReport* report) {
    Result<ReadLease> lease = client_->Acquire(keys);
    if (!lease.ok()) return report->Fail(client_->Explain("Acquire failed", lease.status()));
    for (uint32_t i = 0; i < lease->ready_count(); ++i) {
      std::memset(BufferBlock(i).data(), 0, shape().block_bytes);
      if (Status status = client_->CopyBlock(*lease, i, BufferBlock(i)); !status.ok()) {
        return report->Fail(client_->Explain("CopyPart failed", status));
      }
      if (lease->is_valid() && !VerifyBlock(keys[i], BufferBlock(i), report)) return;
    }
  }

  // Keys of one pass, made before it is measured. All workers load the keys of pass 0.
  const std::vector<BlockKey>& KeysOf(uint32_t prompt) const { return keys_[prompt]; }

  void MoveKeysOn() {
    keys_.resize(shape().prompt_count);
    for (uint32_t p = 0; p < shape().prompt_count; ++p) {
      if (is_storing() && p % workload_.client_count != index_) continue;
      keys_[p] = client_->PromptKeys(workload_.salt + pass_, p);
    }
    ++pass_;
  }

  void EvictOwn(PhaseReport* report) {
    std::vector<BlockKey> first_keys;
    for (uint32_t prompt : own_prompts_) first_keys.push_back(keys_[prompt][0]);
    if (!first_keys.empty()) {
      if (Status status = client_->EvictChain(first_keys); !status.ok()) {
        return report->Fail(client_->Explain("Evict failed", status));
      }
    }
    if (is_storing()) MoveKeysOn();
  }

  CopyWorkload workload_;
  uint32_t index_;
  std::unique_ptr<BenchClient> client_;
  std::unique_ptr<MappedMemory> floor_;
  std::unique_ptr<MappedMemory> buffer_;  // this process's own: buffer_prompts_ prompts
  uint64_t buffer_prompts_ = 1;
  uint64_t buffer_prompt_ = 0;  // the one in use
  std::vector<uint32_t> own_prompts_;
  std::vector<std::vector<BlockKey>> keys_;  // by prompt
  uint64_t pass_ = 0;
};

}  // namespace

std::unique_ptr<Worker> MakeCopyWorker(const CopyWorkload& workload, uint32_t index,
                                       std::string* why) {
  std::unique_ptr<BenchClient> client =
      BenchClient::Connect(workload.connection, workload.shape, why);
  if (client == nullptr) return nullptr;
  auto worker = std::make_unique<CopyWorker>(workload, index, std::move(client));
  if (!worker->MapMemory(why)) return nullptr;
  return worker;
}

}  // namespace terrace::tools
