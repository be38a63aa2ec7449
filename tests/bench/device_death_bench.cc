// How long a device goes on writing to memory of the host after the process that asked for it has
// been killed: what proof of death has to wait for.
//
//   device_death_bench [host | PLUGIN] [kills, default 20] [MiB, default 256]
//
// A process of its own registers a shared memory file and has the device copy to it from two
// buffers in turns, so that every byte changes with every copy. It is killed in the middle. From
// then on this process compares one word a page with what it was at the last look, until half a
// second after the kernel has said that the process is gone (pidfd). Per kill and at most: the last
// change seen, after the hang-up of its socket and after the pidfd. Exit status 1 if anything
// changed after the pidfd: then slots of the dead may not be used again at once.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/host/device_loader.h"
#include "cuda/host/host_device.h"
#include "cuda/host/stream.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPageBytes = 4096;
constexpr auto kWatched = std::chrono::milliseconds(500);
constexpr uint32_t kAliveUsMax = 100'000;
constexpr int kCopiesUnderWay = 4;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "device_death_bench: %s\n", what.c_str());
  std::exit(2);
}

template <typename T>
T Take(Result<T> result, const char* what) {
  if (!result.ok()) Fail(std::string(what) + ": " + result.status().what());
  return std::move(result).value();
}

const DeviceOps& OpsOf(const std::string& backend) {
  if (backend == "host") return HostDeviceOps();
  std::string why;
  const Result<ChosenBackend> chosen = ChooseBackend(DeviceBackend::kCuda, backend, &why);
  if (!chosen.ok()) Fail(why);
  return *chosen->ops;
}

// Copies until it is killed; a byte on the socket says that it has begun.
[[noreturn]] void Copy(const std::string& backend, int file, uint64_t byte_count, int socket) {
  const Device device = Take(Device::Open(OpsOf(backend)), "opening the device");
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  void* address = nullptr;
  if (device.ops().register_host(device.handle(), memory, byte_count, &address).code != 0) {
    Fail("the shared memory cannot be registered");
  }
  Stream stream = Take(Stream::Create(device, StreamPriority::kStore), "a stream");
  std::vector<DeviceBuffer> buffers;
  std::vector<Event> events;
  for (int i = 0; i < 2; ++i) {
    std::memset(memory, 0x11 * (i + 1), byte_count);
    buffers.push_back(
        Take(DeviceBuffer::Allocate(device, DeviceMemory::kDevice, byte_count), "device memory"));
    const CopyPiece down{buffers[i].address(), memory, byte_count};
    if (!stream.Copy(CopyDirection::kToDevice, {&down, 1}).ok()) Fail("a copy was refused");
    Event filled = Take(Event::Create(device), "an event");
    if (!filled.Record(stream).ok() || !filled.Await().ok()) Fail("a copy failed");
  }
  for (int i = 0; i < kCopiesUnderWay; ++i) events.push_back(Take(Event::Create(device), "event"));
  for (uint64_t n = 0;; ++n) {
    Event& event = events[n % events.size()];
    if (n >= events.size() && !event.Await().ok()) Fail("a copy failed");
    const CopyPiece up{memory, buffers[n % 2].address(), byte_count};
    if (!stream.Copy(CopyDirection::kToHost, {&up, 1}).ok()) Fail("a copy was refused");
    if (!event.Record(stream).ok()) Fail("an event was refused");
    if (n == events.size() && write(socket, "r", 1) != 1) Fail("nobody listens");
  }
}

struct Death {
  double change_after_hang_up_ms = 0;  // negative: before it
  double change_after_pidfd_ms = 0;
};

bool IsReadable(int fd) {
  pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) == 1;
}

Death KillOne(const char* self, const std::string& backend, uint64_t byte_count,
              uint32_t delay_us) {
  const int file = memfd_create("device-death", 0);
  int ends[2];
  if (file < 0 || ftruncate(file, static_cast<off_t>(byte_count)) != 0 ||
      socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
    Fail(std::strerror(errno));
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    const std::string numbers[] = {std::to_string(file), std::to_string(byte_count),
                                   std::to_string(ends[1])};
    execl(self, self, "--copy", backend.c_str(), numbers[0].c_str(), numbers[1].c_str(),
          numbers[2].c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  char begun = 0;
  if (pidfd < 0 || read(ends[0], &begun, 1) != 1) Fail("the copying process did not begin");
  const auto* const memory = static_cast<const volatile std::byte*>(
      mmap(nullptr, byte_count, PROT_READ, MAP_SHARED, file, 0));
  const auto killed_at = Clock::now() + std::chrono::microseconds(delay_us);
  std::vector<std::byte> seen(byte_count / kPageBytes);
  do {
    for (uint64_t page = 0; page < seen.size(); ++page) seen[page] = memory[page * kPageBytes];
  } while (Clock::now() < killed_at);
  kill(pid, SIGKILL);
  Clock::time_point hang_up, gone, changed = Clock::now();
  for (;;) {
    if (hang_up == Clock::time_point() && IsReadable(ends[0])) hang_up = Clock::now();
    if (gone == Clock::time_point() && IsReadable(pidfd)) gone = Clock::now();
    if (gone != Clock::time_point() && Clock::now() > gone + kWatched) break;
    bool is_changed = false;
    for (uint64_t page = 0; page < seen.size(); ++page) {
      const std::byte now = memory[page * kPageBytes];
      is_changed |= now != seen[page];
      seen[page] = now;
    }
    if (is_changed) changed = Clock::now();
  }
  waitpid(pid, nullptr, 0);
  munmap(const_cast<std::byte*>(memory), byte_count);
  for (const int fd : {file, ends[0], pidfd}) close(fd);
  const auto ms = [&](Clock::time_point since) {
    return std::chrono::duration<double, std::milli>(changed - since).count();
  };
  return {ms(hang_up), ms(gone)};
}

int Run(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "host";
  const int kills = argc > 2 ? std::atoi(argv[2]) : 20;
  const uint64_t byte_count = (argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 256) * kMiB;
  if (kills < 1 || byte_count == 0) Fail("kills and MiB are positive numbers");
  std::mt19937 random(1);
  Death last{-1e9, -1e9};
  for (int i = 0; i < kills; ++i) {
    const Death death = KillOne("/proc/self/exe", backend, byte_count, random() % kAliveUsMax);
    std::printf("kill %d: last change %.2f ms after the hang-up, %.2f ms after the pidfd\n", i + 1,
                death.change_after_hang_up_ms, death.change_after_pidfd_ms);
    last.change_after_hang_up_ms =
        std::max(last.change_after_hang_up_ms, death.change_after_hang_up_ms);
    last.change_after_pidfd_ms = std::max(last.change_after_pidfd_ms, death.change_after_pidfd_ms);
  }
  std::printf(
      "%d kills, %.0f MiB, %s: the last change at most %.2f ms after the hang-up, %.2f ms "
      "after the pidfd\n",
      kills, static_cast<double>(byte_count) / kMiB, backend.c_str(), last.change_after_hang_up_ms,
      last.change_after_pidfd_ms);
  return last.change_after_pidfd_ms > 0 ? 1 : 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc == 6 && std::string_view(argv[1]) == "--copy") {
    terrace::Copy(argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10),
                  std::atoi(argv[5]));
  }
  return terrace::Run(argc, argv);
}
