// The two clients that go on touching memory after the daemon has given them up: one whose control
// connection is cut under a running copy, and one that slept through its lease's time to live.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kFdsMax = 4096;
// What a copy writes that goes on after its lease was lost: no reader may ever see it.
constexpr CommitId kStrayCommit = 0xDEADDEADDEADDEADu;

// Cuts every connection of this process to `socket_path`, as a fault outside of it would.
int CutConnections(const std::string& socket_path) {
  int cut_count = 0;
  for (int fd = 3; fd < kFdsMax; ++fd) {
    sockaddr_un peer = {};
    socklen_t peer_bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) continue;
    if (peer.sun_family != AF_UNIX || socket_path != peer.sun_path) continue;
    if (shutdown(fd, SHUT_RDWR) == 0) ++cut_count;
  }
  return cut_count;
}

// A writer and a reader with leases they hold on to. Slots are taken as plain memory, so that a
// copy into them asks nobody, as a DMA engine would not.
struct Copier {
  Traffic* traffic;
  ReadLease read_lease;
  WriteLease write_lease;
  std::span<const BlockKey> read_keys;
  std::span<const BlockKey> write_keys;
  std::vector<std::span<std::byte>> slots;

  bool Begin() {
    const Traffic::Options& options = traffic->options();
    read_keys = traffic->Keys(options.prompt_first, options.blocks_max);
    write_keys = traffic->Keys(options.prompt_first + kPromptsPerFamily, options.blocks_max);
    for (int tries = 0; tries < 100; ++tries) {
      if (traffic->Serve(options.prompt_first, options.blocks_max) < options.blocks_max) continue;
      auto reading = traffic->Acquire(read_keys);
      if (!reading.ok() || reading->ready_count() == 0) continue;
      // Whoever awaits blocks is let in, however wanted those are that go for them.
      auto writing = traffic->client().Reserve(
          traffic->group(), write_keys,
          {.deadline_us = options.deadline_us, .hints = {.expected_reuse_ms = 1000}});
      if (!writing.ok()) continue;
      read_lease = std::move(reading).value();
      write_lease = std::move(writing).value();
      for (uint32_t i = 0; i < write_keys.size(); ++i) {
        for (uint32_t member = 0; member < kMembers; ++member) {
          const auto slot = write_lease.slot(i, member);
          if (!slot.empty()) slots.push_back(slot);
        }
      }
      return !slots.empty();
    }
    std::fprintf(stderr, "terrace-chaos: no leases on %u blocks to read and as many to write\n",
                 options.blocks_max);
    return false;
  }

  void CopyOnce(uint64_t pass) {
    for (size_t i = 0; i < slots.size(); ++i) {
      FillPattern({write_keys[0], kStrayCommit, static_cast<uint32_t>(pass), 0}, slots[i]);
    }
    traffic->Verify(read_lease, read_keys);
  }
  uint64_t bytes() const { return slots.empty() ? 0 : slots.size() * slots[0].size(); }
};

bool HasLine() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&input, 1, 0) > 0;
}

}  // namespace

int RunHangUp(const Arguments& arguments, Progress* progress) {
  Traffic traffic(Traffic::ReadOptions(arguments), progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Copier copier{.traffic = &traffic};
  if (!copier.Begin()) return kExitCannotStart;
  Say("copying %llu", static_cast<unsigned long long>(copier.bytes()));
  const auto linger = std::chrono::milliseconds(arguments.Number("linger-ms", 200));
  uint64_t pass = 0;
  copier.CopyOnce(pass++);
  const auto end = SteadyClock::now() + linger;
  int cut_count = 0;
  std::thread cutter([&] { cut_count = CutConnections(traffic.options().socket_path); });
  while (SteadyClock::now() < end) copier.CopyOnce(pass++);
  cutter.join();
  Say("ended %d %llu", cut_count, static_cast<unsigned long long>(pass));
  // As a crash would: no destructor, no word to the daemon.
  _exit(progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes);
}

int RunFrozen(const Arguments& arguments, Progress* progress) {
  Traffic traffic(Traffic::ReadOptions(arguments), progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Copier copier{.traffic = &traffic};
  if (!copier.Begin()) return kExitCannotStart;
  Say("copying %llu", static_cast<unsigned long long>(copier.bytes()));
  for (uint64_t pass = 0; !HasLine(); ++pass) copier.CopyOnce(pass);
  std::string line;
  if (!Listen(&line)) return kExitCannotStart;
  traffic.Write(copier.write_lease, copier.write_keys, 0, copier.write_keys.size());
  const Status committed = traffic.Commit(copier.write_lease).status();
  Say("commit %u valid %d", static_cast<unsigned>(committed.code()),
      copier.write_lease.is_valid() || copier.read_lease.is_valid() ? 1 : 0);
  if (!Listen(&line)) return kExitCannotStart;
  copier.write_lease.Abort();
  copier.read_lease.Release();
  traffic.ReleaseKept();
  Say("acknowledged");
  if (!Listen(&line)) return kExitCannotStart;
  const uint32_t prompt = traffic.options().prompt_first + 2 * kPromptsPerFamily;
  for (int tries = 0; tries < 100 && traffic.Serve(prompt, 2) < 2; ++tries) continue;
  const uint32_t served_count = traffic.Serve(prompt, 2);
  Say("served %u", served_count);
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
