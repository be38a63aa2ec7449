// The end of tiers whose resolver of host names does not answer.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "redis/redis_rig.h"

namespace terrace {
namespace {

using testing::RedisRig;
using testing::RedisTestName;

constexpr char kSilentHost[] = "redis.silent";

// So long at most, so that a tier that waits for it is seen to, and does not hang the test.
constexpr std::chrono::seconds kSilence{60};

struct Resolver {
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0, given_up = 0;
  bool answers = false;  // else it keeps silent

  int Resolve() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    if (!changed.wait_for(lock, kSilence, [this] { return answers; })) ++given_up;
    --waiting;
    changed.notify_all();
    return EAI_AGAIN;
  }
  bool WaitFor(int count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::minutes(1), [&] { return waiting == count; });
  }
  int waiting_now() {
    const std::lock_guard lock(mutex);
    return waiting;
  }
  void SetAnswers(bool now) {
    const std::lock_guard lock(mutex);
    answers = now;
    changed.notify_all();
  }
};

// Never destroyed: threads that were left behind use it.
Resolver& SilentResolver() {
  static auto* const resolver = new Resolver;
  return *resolver;
}

// Of this process.
size_t RedisThreads() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "terrace-redis") ++count;
  }
  return count;
}

bool Eventually(const std::function<bool()>& is_true) {
  for (int i = 0; i < 6'000 && !is_true(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return is_true();
}

TEST(RedisResolver, ATierEndsWhileItDoesNotAnswerAndLeavesBehindWhatItsThreadUses) {
  Resolver& resolver = SilentResolver();
  resolver.SetAnswers(false);
  {
    RedisRig a(RedisRig::Options({.host = kSilentHost, .port = 6379}));
    RedisRig b(RedisRig::Options({.host = kSilentHost, .port = 6379}));
    ASSERT_TRUE(resolver.WaitFor(2));
    for (RedisRig* const rig : {&a, &b}) {
      rig->tier().BeginStop();
      EXPECT_NE(rig->tier().EndThread(10'000), RedisEnd::kEnded);
      EXPECT_TRUE(Eventually([rig] {  // what else it had to do is over
        return rig->tier().EndThread(0) == RedisEnd::kResolverHangs;
      }));
    }
    EXPECT_EQ(resolver.waiting_now(), 2) << "the end has waited for it";
    // A daemon's store goes on asking until the drives are closed.
    std::vector<std::byte> into(1'000);
    EXPECT_EQ(a.tier().Fetch(1, RedisTestName(1, 0), into).code(), StatusCode::kUnsupported);
    a.tier().Tick();
    EXPECT_FALSE(a.tier().stats().is_ready);
  }
  EXPECT_EQ(resolver.waiting_now(), 2) << "the tiers are gone, their threads are not";
  const size_t threads = RedisThreads();
  resolver.SetAnswers(true);
  // Those that asked end, in what was kept for them; those that were asked for them stay.
  EXPECT_TRUE(Eventually([&] { return RedisThreads() + 2 == threads; }));
  EXPECT_EQ(resolver.given_up, 0);
}

}  // namespace
}  // namespace terrace

// In place of the C library's, for this program.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  if (host != nullptr && std::strcmp(host, terrace::kSilentHost) == 0) {
    return terrace::SilentResolver().Resolve();
  }
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, hints, found);
}
