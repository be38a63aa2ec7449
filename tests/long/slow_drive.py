"""A drive as slow as a test wants it: a library that is loaded before the daemon holds what that
reads and writes (by threads: `nvme.io = "threads"`) to a speed which is changed while it runs.
"""
import mmap
import os
import pathlib
import struct
import subprocess

# Reads and writes of a page and more come one after the other, at the MB/s that a shared file says;
# 0: as fast as they are, below 0: not before that has changed. Where a second number says N, each
# N-th takes 5 s; where a fourth says N, each N-th fails with the third.
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static volatile long long* speed;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static long long free_ns;
__attribute__((constructor)) static void Begin(void) {
  const int file = open(getenv("SLOW_CONTROL"), O_RDWR);
  speed = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
  close(file);
}
static long long NowNs(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}
static void SleepUntil(long long when_ns) {
  const struct timespec at = {when_ns / 1000000000LL, when_ns % 1000000000LL};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}
static int Fails(size_t byte_count) {
  static volatile long long count;
  const long long nth = speed[3];
  if (byte_count < 4096 || nth <= 0) return 0;
  if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) % nth != 0) return 0;
  errno = speed[2];
  return 1;
}
static void Wait(ssize_t byte_count) {
  static volatile long long count;
  if (byte_count < 4096) return;
  const long long nth = speed[1];
  if (nth > 0 && __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) % nth == 0) {
    for (int i = 0; i < 500 && speed[1] > 0; ++i) usleep(10000);
  }
  while (*speed < 0) usleep(1000);
  if (*speed == 0) return;
  pthread_mutex_lock(&turn);
  long long now_ns = NowNs();
  if (free_ns < now_ns) free_ns = now_ns;
  free_ns += byte_count * 1000LL / *speed;
  const long long mine_ns = free_ns;
  pthread_mutex_unlock(&turn);
  for (; now_ns < mine_ns && *speed != 0; now_ns = NowNs()) {
    SleepUntil(now_ns + 1000000 < mine_ns ? now_ns + 1000000 : mine_ns);
  }
  if (*speed == 0) free_ns = 0;
}
ssize_t pread64(int file, void* into, size_t byte_count, off64_t offset) {
  static ssize_t (*real)(int, void*, size_t, off64_t);
  if (real == NULL) real = dlsym(RTLD_NEXT, "pread64");
  if (Fails(byte_count)) return -1;
  const ssize_t got = real(file, into, byte_count, offset);
  Wait(got);
  return got;
}
ssize_t pread(int file, void* into, size_t byte_count, off_t offset) {
  return pread64(file, into, byte_count, offset);
}
ssize_t pwrite64(int file, const void* from, size_t byte_count, off64_t offset) {
  static ssize_t (*real)(int, const void*, size_t, off64_t);
  if (real == NULL) real = dlsym(RTLD_NEXT, "pwrite64");
  if (Fails(byte_count)) return -1;
  const ssize_t put = real(file, from, byte_count, offset);
  Wait(put);
  return put;
}
ssize_t pwrite(int file, const void* from, size_t byte_count, off_t offset) {
  return pwrite64(file, from, byte_count, offset);
}
"""


class SlowDrive:
    """The library, built into `directory`, and what it looks at. At first it slows nothing."""

    def __init__(self, directory):
        self._control = pathlib.Path(directory) / "speed"
        self._control.write_bytes(bytes(4096))
        with open(self._control, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)
        source = pathlib.Path(directory) / "slow.c"
        source.write_text(SOURCE)
        self._library = source.with_suffix(".so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", self._library, "-ldl",
                        "-lpthread"], check=True)

    def set(self, megabytes_s, stumble_nth=0):
        """Of 10^6 bytes; 0: as fast as it is, below 0: it hangs."""
        self._page[:16] = struct.pack("<qq", megabytes_s, stumble_nth)

    def fail(self, error, nth):
        """Each N-th request fails with that errno; 0: none."""
        self._page[16:32] = struct.pack("<qq", error, nth)

    @property
    def environment(self):
        """Of a process whose drive it is to be."""
        return {**os.environ, "LD_PRELOAD": str(self._library),
                "SLOW_CONTROL": str(self._control)}
