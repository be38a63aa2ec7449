#include "tools/terrace/bench/prompt_worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "tools/terrace/bench/block_pattern.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kPromptsPerHead = 4;

// A worker whose requests are whole prompts.
class PromptWorker : public Worker {
 public:
  PromptWorker(const PromptWorkload& workload, std::unique_ptr<BenchClient> client)
      : workload_(workload), client_(std::move(client)), buffer_(workload.shape.block_bytes) {}

 protected:
  const PromptWorkload& workload() const { return workload_; }
  const BenchClient& client() const { return *client_; }

  // Load the head, store the rest. False with a failed report.
  bool Request(std::span<const BlockKey> keys, const protocol::Hints& hints, PhaseReport* report) {
    const uint64_t began_ns = NowNs();
    protocol::Hints asked = hints;
    asked.end_reason = protocol::EndReason::kUnknown;  // its release says it
    Result<ReadLease> lease = client_->Acquire(keys, asked);
    report->latencies.Add(NowNs() - began_ns);
    // kBusy is an answer too: the engine recomputes.
    if (!lease.ok() && lease.code() != StatusCode::kBusy) {
      report->Fail(client_->Explain("Acquire failed", lease.status()));
      return false;
    }
    uint32_t hit_count = 0;
    if (lease.ok()) {
      hit_count = lease->ready_count();
      if (!LoadAll(*lease, keys, report)) return false;
      lease->Release(hints.end_reason);
    }
    ++report->op_count;
    report->blocks_asked += keys.size();
    report->blocks_hit += hit_count;
    return hit_count == keys.size() || StoreRest(keys, hit_count, hints, report);
  }

 private:
  bool LoadAll(const ReadLease& lease, std::span<const BlockKey> keys, PhaseReport* report) {
    if (workload_.bytes == PromptBytes::kUntouched) return true;
    for (uint32_t i = 0; i < lease.ready_count(); ++i) {
      if (Status status = client_->CopyBlock(lease, i, buffer_); !status.ok()) {
        if (status.code() == StatusCode::kGone) return true;  // revoked: what is missing is a miss
        report->Fail(client_->Explain("CopyPart failed", status));
        return false;
      }
      // Bytes read under a lease that was revoked meanwhile say nothing.
      if (workload_.bytes == PromptBytes::kVerified && lease.is_valid() &&
          !VerifyBlock(keys[i], buffer_, report)) {
        return false;
      }
      report->byte_count += buffer_.size();
      ++report->block_count;
    }
    return true;
  }

  bool StoreRest(std::span<const BlockKey> keys, uint32_t first_block, const protocol::Hints& hints,
                 PhaseReport* report) {
    Result<WriteLease> lease = client_->Reserve(keys, first_block, hints);
    const uint32_t wanted = static_cast<uint32_t>(keys.size()) - first_block;
    if (!lease.ok()) {
      if (lease.code() == StatusCode::kNoSpace || lease.code() == StatusCode::kBusy) {
        report->blocks_refused += wanted;
        return true;
      }
      report->Fail(client_->Explain("Reserve failed", lease.status()));
      return false;
    }
    uint32_t written = 0;
    for (uint32_t i = 0; i < wanted; ++i) {
      if (!lease->is_reserved(i)) continue;
      if (workload_.bytes == PromptBytes::kVerified) FillPattern(keys[first_block + i], buffer_);
      if (Status status = client_->WriteBlock(*lease, i, buffer_); !status.ok()) {
        if (status.code() == StatusCode::kGone) break;
        report->Fail(client_->Explain("WritePart failed", status));
        return false;
      }
      ++written;
      report->byte_count += buffer_.size();
      ++report->block_count;
    }
    report->blocks_refused += wanted - written;
    if (written == 0) return true;
    Result<uint32_t> sealed = client_->Commit(*lease, hints);
    if (sealed.ok()) report->blocks_stored += *sealed;
    if (!sealed.ok() && sealed.code() != StatusCode::kGone && sealed.code() != StatusCode::kBusy) {
      report->Fail(client_->Explain("Commit failed", sealed.status()));
      return false;
    }
    return true;
  }

  PromptWorkload workload_;
  std::unique_ptr<BenchClient> client_;
  std::vector<std::byte> buffer_;  // one block
};

class MixedWorker : public PromptWorker {
 public:
  MixedWorker(const PromptWorkload& workload, std::unique_ptr<BenchClient> client, uint64_t salt,
              uint32_t index)
      : PromptWorker(workload, std::move(client)), salt_(salt), random_(salt + index) {}

  void Run(const PhaseCommand& command, PhaseReport* report) override {
    if (command.phase != Phase::kTerrace) return;
    const uint64_t began_ns = NowNs();
    std::uniform_int_distribution<uint32_t> any_prompt(0, workload().shape.prompt_count - 1);
    while (report->op_count < command.op_count_max && report->busy_ns < command.busy_ns_max) {
      if (!Request(KeysOf(any_prompt(random_)), {}, report)) return;
      report->busy_ns = NowNs() - began_ns;
    }
  }

 private:
  std::vector<BlockKey> KeysOf(uint32_t prompt) const {
    const uint32_t shared_blocks = workload().shape.prompt_blocks / 2;
    const uint64_t head = uint64_t{workload().shape.prompt_count} + prompt / kPromptsPerHead;
    std::vector<BlockKey> keys(workload().shape.prompt_blocks);
    for (uint32_t i = 0; i < keys.size(); ++i) {
      keys[i] =
          client().Key({.salt = salt_, .chain = i < shared_blocks ? head : prompt, .block = i});
    }
    return keys;
  }

  uint64_t salt_;
  std::mt19937_64 random_;
};

class ReplayWorker : public PromptWorker {
 public:
  ReplayWorker(const ReplayWorkload& workload, std::unique_ptr<BenchClient> client, uint32_t index)
      : PromptWorker(workload, std::move(client)),
        trace_(*workload.trace),
        speed_(workload.speed),
        index_(index) {}

  void Run(const PhaseCommand& command, PhaseReport* report) override {
    if (command.phase != Phase::kTerrace) return;
    const uint64_t began_ns = NowNs();
    std::vector<BlockKey> keys;
    for (uint64_t i = 0; i < trace_.requests.size(); ++i) {
      const TraceRequest& request = trace_.requests[i];
      const uint64_t owner = request.session_hash != 0 ? request.session_hash : i;
      if (owner % workload().client_count != index_) continue;
      WaitForTurn(request, began_ns);
      keys.clear();
      // Equal ids mean equal prefixes: an id names its block wherever it stands.
      for (uint64_t id : trace_.ids_of(request)) keys.push_back(client().Key({.chain = id}));
      protocol::Hints hints;
      hints.session_hash = request.session_hash;
      hints.end_reason = request.end_reason;
      if (!keys.empty() && !Request(keys, hints, report)) return;
      report->busy_ns = NowNs() - began_ns;
    }
  }

 private:
  void WaitForTurn(const TraceRequest& request, uint64_t began_ns) const {
    if (speed_ <= 0) return;
    const uint64_t since_first_ms = request.timestamp_ms - trace_.requests.front().timestamp_ms;
    const uint64_t due_ns =
        began_ns + static_cast<uint64_t>(static_cast<double>(since_first_ms) * 1e6 / speed_);
    const uint64_t now_ns = NowNs();
    if (due_ns > now_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(due_ns - now_ns));
  }

  const Trace& trace_;
  double speed_;
  uint32_t index_;
};

}  // namespace

std::unique_ptr<Worker> MakeMixedWorker(const PromptWorkload& workload, uint64_t salt,
                                        uint32_t index, std::string* why) {
  auto client = BenchClient::Connect(workload.connection, workload.shape, why);
  if (client == nullptr) return nullptr;
  return std::make_unique<MixedWorker>(workload, std::move(client), salt, index);
}

std::unique_ptr<Worker> MakeReplayWorker(const ReplayWorkload& workload, uint32_t index,
                                         std::string* why) {
  auto client = BenchClient::Connect(workload.connection, workload.shape, why);
  if (client == nullptr) return nullptr;
  return std::make_unique<ReplayWorker>(workload, std::move(client), index);
}

}  // namespace terrace::tools
