#include "tools/terrace/bench/rtt_worker.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/terrace/bench/block_pattern.h"
#include "tools/terrace/bench/cpu_pin.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kFillAttemptsMax = 200;
constexpr uint32_t kFillPauseUs = 50'000;

bool SendAll(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

bool ReceiveAll(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = recv(socket, bytes.data(), bytes.size(), 0);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// The other process of the floor. It learns the sizes from its first 16 bytes.
struct EchoSizes {
  uint64_t request_bytes = 0;
  uint64_t reply_bytes = 0;
};

class EchoProcess {
 public:
  // REQUIRES: this process has one thread.
  static std::unique_ptr<EchoProcess> Start(int cpu, std::string* why) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
      *why = fmt::format("cannot make a socket pair: {}", std::strerror(errno));
      return nullptr;
    }
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(sockets[0]);
      std::string unused;
      if (PinThisThread(cpu, &unused)) Echo(sockets[1]);
      _exit(0);
    }
    close(sockets[1]);
    if (pid < 0) {
      *why = fmt::format("cannot start the echoing process: {}", std::strerror(errno));
      close(sockets[0]);
      return nullptr;
    }
    return std::unique_ptr<EchoProcess>(new EchoProcess(pid, sockets[0]));
  }
  ~EchoProcess() {
    close(socket_);
    waitpid(pid_, nullptr, 0);
  }
  EchoProcess(const EchoProcess&) = delete;
  EchoProcess& operator=(const EchoProcess&) = delete;

  bool Prepare(const EchoSizes& sizes) {
    request_.resize(sizes.request_bytes);
    reply_.resize(sizes.reply_bytes);
    return SendAll(socket_, std::as_bytes(std::span(&sizes, 1)));
  }
  bool Exchange() { return SendAll(socket_, request_) && ReceiveAll(socket_, reply_); }

 private:
  EchoProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  static void Echo(int socket) {
    EchoSizes sizes;
    if (!ReceiveAll(socket, std::as_writable_bytes(std::span(&sizes, 1)))) return;
    std::vector<std::byte> request(sizes.request_bytes);
    const std::vector<std::byte> reply(sizes.reply_bytes);
    while (ReceiveAll(socket, request) && SendAll(socket, reply)) {
    }
  }

  pid_t pid_;
  int socket_;
  std::vector<std::byte> request_;
  std::vector<std::byte> reply_;
};

class RttWorker : public Worker {
 public:
  RttWorker(const BenchShape& shape, std::unique_ptr<EchoProcess> echo,
            std::unique_ptr<BenchClient> client)
      : shape_(shape), echo_(std::move(echo)), client_(std::move(client)) {}

  void Run(const PhaseCommand& command, PhaseReport* report) override {
    switch (command.phase) {
      case Phase::kPrepare:
        return Prepare(report);
      case Phase::kFloor:
        return MeasureEcho(command.op_count_max, report);
      case Phase::kTerrace:
        return MeasureAcquire(command.op_count_max, report);
      case Phase::kCheck:
        if (Status status = client_->EvictChain(std::span(keys_).first(1)); !status.ok()) {
          report->Fail(client_->Explain("Evict failed", status));
        }
        return;
      case Phase::kQuit:
        return;
    }
  }

 private:
  void Prepare(PhaseReport* report) {
    keys_ = client_->PromptKeys(static_cast<uint64_t>(getpid()), NowNs());
    if (!StoreUntilResident(report)) return;
    Result<ReadLease> lease = client_->Acquire(keys_);
    if (!lease.ok() || lease->block_count() != keys_.size()) {
      return report->Fail(client_->Explain("cannot acquire what was just stored", lease.status()));
    }
    // What one Acquire puts on the socket in each direction; one member, so a slot a block.
    const EchoSizes sizes{
        .request_bytes = sizeof(protocol::FrameHeader) + sizeof(protocol::KeysRequest) +
                         keys_.size() * sizeof(BlockKey),
        .reply_bytes = sizeof(protocol::FrameHeader) + sizeof(protocol::ReplyPrefix) +
                       sizeof(protocol::AcquireReply) +
                       lease->spans().size() * sizeof(protocol::BlockSpan) +
                       keys_.size() * sizeof(SlotAddress)};
    report->request_bytes = sizes.request_bytes;
    report->reply_bytes = sizes.reply_bytes;
    if (!echo_->Prepare(sizes)) report->Fail("the echoing process is gone");
  }

  bool StoreUntilResident(PhaseReport* report) {
    std::vector<std::byte> block(shape_.block_bytes);
    for (uint32_t attempt = 0; attempt < kFillAttemptsMax; ++attempt) {
      Result<WriteLease> lease = client_->Reserve(keys_);
      for (uint32_t i = 0; lease.ok() && i < keys_.size(); ++i) {
        if (!lease->is_reserved(i)) continue;
        FillPattern(keys_[i], block);
        if (Status status = client_->WriteBlock(*lease, i, block); !status.ok()) {
          report->Fail(client_->Explain("WritePart failed", status));
          return false;
        }
      }
      if (lease.ok()) (void)client_->Commit(*lease);
      Result<MatchResult> match = client_->client().Match(client_->group(), keys_);
      if (match.ok() && match->block_count == keys_.size()) return true;
      usleep(kFillPauseUs);
    }
    report->Fail(fmt::format("the daemon does not keep {} blocks of {} bytes. Give it more memory",
                             keys_.size(), shape_.block_bytes));
    return false;
  }

  void MeasureEcho(uint64_t op_count, PhaseReport* report) {
    for (uint64_t i = 0; i < op_count; ++i) {
      const uint64_t began_ns = NowNs();
      if (!echo_->Exchange()) return report->Fail("the echoing process is gone");
      report->latencies.Add(NowNs() - began_ns);
    }
  }

  void MeasureAcquire(uint64_t op_count, PhaseReport* report) {
    for (uint64_t i = 0; i < op_count; ++i) {
      const uint64_t began_ns = NowNs();
      Result<ReadLease> lease = client_->Acquire(keys_);
      const uint64_t took_ns = NowNs() - began_ns;
      if (!lease.ok() || lease->ready_count() != keys_.size()) {
        return report->Fail(client_->Explain("Acquire did not find every block", lease.status()));
      }
      report->latencies.Add(took_ns);
      lease->Release();
      // Release is not answered; a small request after it is. So the daemon is idle again when the
      // next Acquire is measured.
      (void)client_->client().Match(client_->group(), std::span(keys_).first(1));
    }
  }

  BenchShape shape_;
  std::unique_ptr<EchoProcess> echo_;
  std::unique_ptr<BenchClient> client_;
  std::vector<BlockKey> keys_;
};

}  // namespace

std::unique_ptr<Worker> MakeRttWorker(const RttWorkload& workload, std::string* why) {
  std::unique_ptr<EchoProcess> echo = EchoProcess::Start(workload.echo_cpu, why);
  if (echo == nullptr) return nullptr;
  auto client = BenchClient::Connect(workload.connection, workload.shape, why);
  if (client == nullptr) return nullptr;
  return std::make_unique<RttWorker>(workload.shape, std::move(echo), std::move(client));
}

}  // namespace terrace::tools
