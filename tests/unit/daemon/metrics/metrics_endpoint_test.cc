#include "daemon/metrics/metrics_endpoint.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/metrics/exposition.h"
#include "daemon/metrics/page.h"
#include "tests/unit/daemon/metrics/visitor.h"

namespace terrace {
namespace {

using nlohmann::json;
using test::Get;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A store thread that works what is posted, or hangs.
class StoreThread {
 public:
  StoreThread() : thread_([this] { Run(); }) {}
  ~StoreThread() {
    Hang(false);
    Post(nullptr);
    thread_.join();
  }
  void Post(std::function<void()> work) {
    const std::lock_guard guard(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void Hang(bool is_hanging) {
    const std::lock_guard guard(mutex_);
    is_hanging_ = is_hanging;
    changed_.notify_all();
  }

 private:
  void Run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !is_hanging_ && !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (work == nullptr) return;
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_hanging_ = false;
  std::thread thread_;
};

class MetricsEndpointTest : public testing::Test {
 protected:
  MetricsEndpointTest() {
    const int fd = test::ListenAnywhere(&port_);
    endpoint_.emplace(MetricsEndpoint::Options{.config = {}, .passed_fd = fd});
  }
  void Serve() {
    MetricsSource source;
    source.post = [this](std::function<void()> work) { store_.Post(std::move(work)); };
    source.domain_names = {"a", "b"};
    source.fill = [this](Snapshot* snapshot, uint32_t step) -> uint32_t {
      if (step == 0) return 1;
      snapshot->domains.resize(2);
      ++fill_count_;
      return 0;
    };
    source.fill_page = [this](uint32_t domain, PageSnapshot* page) {
      ++page_count_;
      page->domain.name = domain == 0 ? "a" : "b";
    };
    source.is_ready = [this] { return is_ready_.load(); };
    source.health = [this] { return std::string(is_degraded_ ? "degraded: a: drive_off" : "ok"); };
    source.add_groups = [this](uint32_t, uint32_t first, auto* groups) -> uint32_t {
      ++group_step_count_;
      groups->push_back({.name = "g" + std::to_string(first),
                         .id = {.low = first + 1},
                         .block_tokens = 16,
                         .recompute_ns_per_token = 1000});
      return first < 2 ? first + 1 : 0;
    };
    source.walk = [this](uint32_t domain, uint64_t* cursor, auto* entries) {
      return Walk(domain, cursor, entries);
    };
    endpoint_->Serve(std::move(source));
  }
  // Ten chains of 256 blocks, a chain a step.
  Status Walk(uint32_t domain, uint64_t* cursor, std::vector<protocol::ListEntry>* entries) {
    ++step_count_;
    entries->clear();
    for (uint64_t i = 0; i < 256; ++i) {
      entries->push_back({.key = {.low = i + 1, .high = *cursor + 1},
                          .parent = {.low = i, .high = i == 0 ? 0 : *cursor + 1},
                          .group = {.low = 2},
                          .byte_count = 1024,
                          .position = static_cast<uint32_t>(i),
                          .hit_count = domain == 0 ? static_cast<uint32_t>(*cursor) : 0,
                          .child_count = i == 255 ? 0u : 1u,
                          .tier_mask = 2});
    }
    *cursor = *cursor == 9 ? 0 : *cursor + 1;
    return walk_status_;
  }

  uint16_t port_ = 0;
  std::atomic<bool> is_ready_ = true;
  std::atomic<bool> is_degraded_ = false;
  std::atomic<uint32_t> fill_count_ = 0, page_count_ = 0, group_step_count_ = 0, step_count_ = 0;
  Status walk_status_;
  std::optional<MetricsEndpoint> endpoint_;  // goes before what it asks
  StoreThread store_;
};

TEST_F(MetricsEndpointTest, ADaemonThatStartsIsHealthyAndNotReady) {
  EXPECT_EQ(Get(port_, "/healthz").status, 200u);
  EXPECT_EQ(Get(port_, "/readyz").status, 503u);
  EXPECT_THAT(Get(port_, "/readyz").body, HasSubstr("starting"));
  EXPECT_EQ(Get(port_, "/metrics").status, HasExposition() ? 503u : 501u);
  is_ready_ = false;
  Serve();
  EXPECT_THAT(Get(port_, "/readyz").body, HasSubstr("memory"));
  is_ready_ = true;
  EXPECT_EQ(Get(port_, "/readyz").status, 200u);
  EXPECT_EQ(Get(port_, "/healthz").body, "ok\n");
  endpoint_->EndServing();
  EXPECT_THAT(Get(port_, "/readyz").body, HasSubstr("stopping"));
}

TEST_F(MetricsEndpointTest, ADegradedDaemonServesAndSaysWhatHolds) {
  Serve();
  is_degraded_ = true;
  EXPECT_EQ(Get(port_, "/healthz").status, 200u) << "another start would not help it";
  EXPECT_EQ(Get(port_, "/healthz").body, "degraded: a: drive_off\n");
  EXPECT_EQ(Get(port_, "/readyz").status, 200u);
  is_degraded_ = false;
  EXPECT_EQ(Get(port_, "/healthz").body, "ok\n");
}

// PROMISE: T27 health
TEST_F(MetricsEndpointTest, AStoreThreadWithoutTurnsIsNotHealthy) {
  Serve();
  EXPECT_EQ(Get(port_, "/healthz").status, 200u);
  store_.Hang(true);
  for (const char* path : {"/healthz", "/readyz", "/status.json"}) {
    EXPECT_EQ(Get(port_, path).status, 503u) << path;
    EXPECT_THAT(Get(port_, path).body, HasSubstr("store thread")) << path;
  }
  store_.Hang(false);
  EXPECT_EQ(Get(port_, "/healthz").status, 200u);
}

// So many ask at once, again and again.
void AskByMany(uint16_t port, const std::string& path) {
  constexpr int kAskers = 12, kTimes = 4;
  std::vector<std::thread> askers;
  std::atomic<int> answered_count = 0;
  for (int i = 0; i < kAskers; ++i) {
    askers.emplace_back([&] {
      for (int j = 0; j < kTimes; ++j) answered_count += Get(port, path).status == 200;
    });
  }
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(answered_count, kAskers * kTimes);
}

TEST_F(MetricsEndpointTest, HoweverManyScrapeTheStoreThreadIsAskedAtItsPace) {
  if (!HasExposition()) GTEST_SKIP() << "built without prometheus-cpp";
  Serve();
  const auto began = std::chrono::steady_clock::now();
  AskByMany(port_, "/metrics");
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LE(fill_count_, took / MetricsEndpoint::kSnapshotPace + 2);
  EXPECT_EQ(page_count_, 0u) << "a scrape does not pay for the page";
}

TEST_F(MetricsEndpointTest, HoweverManyLookAtThePageTheStoreThreadIsAskedAtItsPace) {
  Serve();
  const auto began = std::chrono::steady_clock::now();
  AskByMany(port_, "/status.json");
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LE(page_count_, took / MetricsEndpoint::kPagePace + 2);
  EXPECT_EQ(fill_count_, 0u);
}

// Domains that are asked for at once are one question.
TEST_F(MetricsEndpointTest, EachDomainIsShownToWhoAsksForIt) {
  Serve();
  std::vector<std::thread> askers;
  std::atomic<int> right_count = 0;
  for (const char* name : {"a", "b", "a", "b"}) {
    askers.emplace_back([this, name, &right_count] {
      for (int i = 0; i < 4; ++i) {
        const std::string body = Get(port_, std::string("/status.json?domain=") + name).body;
        right_count += json::parse(body)["status"]["domain"]["name"] == name;
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(right_count, 16);
}

TEST_F(MetricsEndpointTest, EachDomainIsShownItself) {
  Serve();
  const json a = json::parse(Get(port_, "/status.json").body);
  EXPECT_EQ(a["domains"], json({"a", "b"}));
  EXPECT_EQ(a["status"]["domain"]["name"], "a") << "the first unless it is named";
  const json b = json::parse(Get(port_, "/status.json?domain=b").body);
  EXPECT_EQ(b["status"]["domain"]["name"], "b");
  EXPECT_EQ(Get(port_, "/status.json?domain=c").status, 404u);
  EXPECT_EQ(Get(port_, "/prefixes.json?domain=c").status, 404u);
  EXPECT_EQ(Get(port_, "/nothing").status, 404u);
  EXPECT_THAT(Get(port_, "/").body, AllOf(HasSubstr("<!doctype html>"), HasSubstr("</html>")));
}

TEST_F(MetricsEndpointTest, PrefixesAreSurveyedOnceForAWhileInShortSteps) {
  Serve();
  const json found = json::parse(Get(port_, "/prefixes.json?domain=a").body);
  EXPECT_EQ(found["block_count"], 2560);
  EXPECT_EQ(found["run_count"], 10);
  EXPECT_EQ(found["is_cut"], false);
  EXPECT_EQ(group_step_count_, 3u) << "groups come before blocks";
  EXPECT_EQ(step_count_, 10u);
  EXPECT_EQ(found["top"][0]["group"], "g1");
  // The best chain: 256 blocks of 9 hits, of 16 tokens at 1 us each, in 256 KiB.
  ASSERT_EQ(found["top"].size(), 9u) << "one was never hit";
  EXPECT_EQ(found["top"][0]["hit_count"], 256 * 9);
  EXPECT_DOUBLE_EQ(found["top"][0]["saved_s"], 256 * 9 * 16e-6);
  EXPECT_DOUBLE_EQ(found["top"][0]["saved_s_per_gib"], 256 * 9 * 16e-6 * 4096);
  EXPECT_EQ(found["top"][0]["tiers"], json({"dram"}));
  EXPECT_EQ(found["tree"].size(), 10u);
  EXPECT_EQ(json::parse(Get(port_, "/prefixes.json?domain=a").body), found);
  EXPECT_EQ(step_count_, 10u) << "what was found a moment ago is told again";
  EXPECT_EQ(json::parse(Get(port_, "/prefixes.json?domain=b").body)["top"].size(), 0u);
}

TEST_F(MetricsEndpointTest, AWalkThatIsLostIsSaidToBe) {
  walk_status_ = Status(StatusCode::kGone);
  Serve();
  EXPECT_EQ(Get(port_, "/prefixes.json").status, 503u);
}

}  // namespace
}  // namespace terrace
