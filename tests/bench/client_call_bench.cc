// What Client::Acquire of 128 blocks costs beside a bare blocking round trip of as many bytes,
// between two processes on two CPUs and on one. The peers answer from memory, so what is compared
// is the way.
//
// usage: client_call_bench [calls per batch]
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "terrace/client.h"

namespace {

using namespace terrace;
using protocol::FrameHeader;
using protocol::ReplyPrefix;
using protocol::Verb;

constexpr uint32_t kBlocks = 128;
constexpr int kBatches = 15;
constexpr size_t kRequestBytes =
    sizeof(FrameHeader) + sizeof(protocol::KeysRequest) + kBlocks * sizeof(BlockKey);
constexpr size_t kReplyBytes = sizeof(FrameHeader) + sizeof(ReplyPrefix) +
                               sizeof(protocol::AcquireReply) + sizeof(protocol::BlockSpan) +
                               kBlocks * sizeof(SlotAddress);

void PinTo(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) std::perror("sched_setaffinity");
}

// False at the end of the stream.
bool ReceiveAll(int fd, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = recv(fd, at, bytes, 0);
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

void ServeBare(int fd) {
  std::vector<char> request(kRequestBytes);
  const std::vector<char> reply(kReplyBytes);
  while (ReceiveAll(fd, request.data(), request.size())) {
    if (send(fd, reply.data(), reply.size(), 0) < 0) return;
  }
}

SpaceGroupSpec BenchGroup() {
  SpaceGroupSpec group;
  group.name = "bench";
  SpaceSpec& spec = group.members.emplace_back().spec;
  spec.model = spec.revision = spec.layout = "bench";
  spec.dtype = "bf16";
  spec.layers = spec.kv_heads = spec.head_size = 1;
  spec.block_tokens = 16;
  spec.part_bytes = {4096};
  return group;
}

class Reply {
 public:
  Reply(Verb verb, uint64_t request_id) {
    FrameHeader header;
    header.verb = verb;
    header.request_id = request_id;
    Add(header);
    ReplyPrefix prefix;
    prefix.boot_id = 1;
    Add(prefix);
  }
  template <typename T>
  void Add(const T& value) {
    bytes_.resize(bytes_.size() + sizeof(value));
    std::memcpy(bytes_.data() + bytes_.size() - sizeof(value), &value, sizeof(value));
  }
  void SetRequest(uint64_t request_id) {
    std::memcpy(bytes_.data() + offsetof(FrameHeader, request_id), &request_id, sizeof(request_id));
  }
  void Send(int fd, std::vector<int> fds = {}) {
    const auto frame_bytes = static_cast<uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &frame_bytes, sizeof(frame_bytes));
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    iovec iov{bytes_.data(), bytes_.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    // The client may have left.
    static_cast<void>(sendmsg(fd, &message, MSG_NOSIGNAL));
  }

 private:
  std::vector<char> bytes_;
};

void SayHello(int fd, uint64_t request_id) {
  const int arena = memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int life[2];
  if (ftruncate(arena, kSegmentBytesMin) != 0 || fcntl(arena, F_ADD_SEALS, F_SEAL_SHRINK) != 0 ||
      socketpair(AF_UNIX, SOCK_STREAM, 0, life) != 0) {
    std::exit(1);
  }
  protocol::HelloReply hello;
  hello.version = protocol::kVersion;
  hello.node_count = 1;
  hello.segment_bytes = kSegmentBytesMin;
  hello.segments_max = hello.segments_per_node = 1;
  Reply reply(Verb::kHello, request_id);
  reply.Add(hello);
  reply.Send(fd, {arena, life[1]});
}

void OpenGroup(int fd, uint64_t request_id) {
  const SpaceGroupSpec group = BenchGroup();
  Reply reply(Verb::kOpen, request_id);
  reply.Add(protocol::OpenReply{.group = group.Id(), .group_handle = 1, .member_count = 1});
  reply.Add(protocol::OpenedMember{.space = group.members[0].spec.Id(), .slot_bytes = 4096});
  reply.Send(fd);
}

Reply AcquireReplyFrame() {
  Reply reply(Verb::kAcquire, 0);
  reply.Add(protocol::AcquireReply{.token = {.low = 1, .high = 1},
                                   .member_mask = 1,
                                   .block_count = kBlocks,
                                   .token_count = kBlocks * 16,
                                   .span_count = 1,
                                   .slot_count = kBlocks});
  reply.Add(protocol::BlockSpan{.block_count = kBlocks});
  for (uint32_t block = 0; block < kBlocks; ++block) {
    reply.Add(SlotAddress{.segment = 0, .page = block});
  }
  return reply;
}

// Reads as the bare peer does, one recv a request as a rule.
void ServeClient(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  std::vector<char> input(1 << 16);
  size_t begin = 0;
  size_t end = 0;
  Reply acquired = AcquireReplyFrame();
  while (true) {
    FrameHeader header;
    if (end - begin >= sizeof(header)) {
      std::memcpy(&header, input.data() + begin, sizeof(header));
      if (end - begin >= header.frame_bytes) {
        begin += header.frame_bytes;
        if (header.verb == Verb::kAcquire) {
          acquired.SetRequest(header.request_id);
          acquired.Send(fd);
        } else if (header.verb == Verb::kHello) {
          SayHello(fd, header.request_id);
        } else if (header.verb == Verb::kOpen) {
          OpenGroup(fd, header.request_id);
        } else {
          Reply(header.verb, header.request_id).Send(fd);
        }
        continue;
      }
    }
    std::memmove(input.data(), input.data() + begin, end - begin);
    end -= begin;
    begin = 0;
    const ssize_t count = recv(fd, input.data() + end, input.size() - end, 0);
    if (count <= 0) return;
    end += static_cast<size_t>(count);
  }
}

template <typename Serve>
void Spawn(int cpu, Serve serve) {
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PinTo(cpu);
  serve();
  _exit(0);
}

template <typename Call>
double MeanUs(int calls, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  return spent.count() / calls;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// `release_too` is the time of the lease's end as well, whose answer the next call reads.
void Run(const char* name, int own_cpu, int peer_cpu, int calls) {
  int bare[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bare) != 0) std::exit(1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/terrace-bench-%d-%d", getpid(),
                peer_cpu);
  unlink(address.sun_path);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener, 1) != 0) {
    std::exit(1);
  }
  Spawn(peer_cpu, [&] { ServeBare(bare[1]); });
  Spawn(peer_cpu, [&] { ServeClient(listener); });
  PinTo(own_cpu);
  ClientOptions options;
  options.socket_path = address.sun_path;
  Result<std::unique_ptr<Client>> client = Client::Create(options);
  if (!client.ok() || !(*client)->WaitConnected(5'000'000).ok()) std::exit(1);
  const Result<GroupRef> group = (*client)->Open(BenchGroup(), 1);
  if (!group.ok()) std::exit(1);
  const std::vector<BlockKey> keys(kBlocks, BlockKey{.low = 1, .high = 2});
  std::vector<char> request(kRequestBytes);
  std::vector<char> reply(kReplyBytes);
  std::vector<double> bare_us;
  std::vector<double> match_us;
  std::vector<double> acquire_us;
  uint64_t blocks = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    bare_us.push_back(MeanUs(calls, [&] {
      if (send(bare[0], request.data(), request.size(), 0) < 0) std::exit(1);
      if (!ReceiveAll(bare[0], reply.data(), reply.size())) std::exit(1);
    }));
    std::vector<ReadLease> leases(static_cast<size_t>(calls));
    size_t next = 0;
    match_us.push_back(MeanUs(calls, [&] {
      Result<ReadLease> lease = (*client)->Acquire(*group, keys);
      if (!lease.ok()) std::exit(1);
      blocks += lease->ready_count();
      leases[next++] = std::move(lease).value();
    }));
    leases.clear();
    acquire_us.push_back(MeanUs(calls, [&] {
      Result<ReadLease> lease = (*client)->Acquire(*group, keys);
      if (!lease.ok()) std::exit(1);
      blocks += lease->ready_count();
    }));
  }
  std::printf(
      "%-9s bare %6.2f us | Acquire %6.2f us, %.2f of it, %+.2f us | with Release %6.2f us\n", name,
      Median(bare_us), Median(match_us), Median(match_us) / Median(bare_us),
      Median(match_us) - Median(bare_us), Median(acquire_us));
  if (blocks != uint64_t{kBatches} * static_cast<uint64_t>(calls) * kBlocks * 2) std::exit(1);
  unlink(address.sun_path);
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 400;
  Run("two CPUs", 0, 1, calls);
  Run("one CPU", 0, 0, calls);
  return 0;
}
