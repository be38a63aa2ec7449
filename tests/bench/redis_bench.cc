// RedisTier beside plain hiredis loops against one private server, by block size, both ways.
//
//   tier       blocks stored and fetched through RedisTier: chunks, manifests, checksums, bitmaps
//   full loop  one value a block by hiredis, copied to where it belongs and checksummed
//   bare loop  the same without copy and checksum
//
// All have the same number of payload connections and of blocks under way, and are measured one
// after another in every round, so that what the machine does meanwhile meets all of them.
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "redis/redis_process.h"
#include "terrace/checksum.h"
#include "tiers/redis/redis_tier.h"

namespace terrace {
namespace {

struct Settings {
  uint32_t connections = 4;
  uint32_t depth = 16;
  uint64_t bytes = 256 * kMiB;  // of one measurement
  uint32_t rounds = 5;
  bool is_tcp = false;
};

DomainSecret SecretOfBench() {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(i * 37 + 11);
  return secret;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- the tier ----

class TierRunner final : public SharedTierListener {
 public:
  TierRunner(const Settings& settings, const RedisEndpoint& endpoint) : settings_(settings) {
    std::string why;
    tier_ = std::move(*RedisTier::Open(
        {.secret = SecretOfBench(),
         .endpoints = {endpoint},
         .timeouts = {.connect_us = 5'000'000, .command_us = 5'000'000},
         .connections = settings.connections + 1,
         .post =
             [this](std::function<void()> call) {
               std::lock_guard lock(mutex_);
               calls_.push_back(std::move(call));
               has_calls_.notify_one();
             },
         .unix_us = [] { return static_cast<uint64_t>(std::time(nullptr)) * kUsPerSecond; },
         .listener = this},
        &why));
    while (!tier_->stats().is_ready) Turn();
  }
  ~TierRunner() { tier_.reset(); }  // before what it writes to

  double Store(std::vector<std::vector<std::byte>>& slots, size_t count, uint64_t series) {
    return Run(slots, count, [&](size_t i, std::span<std::byte> slot) {
      const RedisBlockName name = NameOf(i, series);
      BlockRecord record;
      record.group = name.group;
      record.space = name.space;
      record.key = name.key;
      record.commit_id = series + 1;
      record.position = name.position;
      return tier_->Store(i, name.run, record, slot);
    });
  }
  double Fetch(std::vector<std::vector<std::byte>>& slots, size_t count, uint64_t series) {
    return Run(slots, count, [&](size_t i, std::span<std::byte> slot) {
      return tier_->Fetch(i, NameOf(i, series), slot);
    });
  }

  void OnSharedFetched(TransferId id, Status status, const BlockRecord&) override {
    End(id, status);
  }
  void OnSharedStored(TransferId id, Status status) override { End(id, status); }
  void OnSharedProbed(uint64_t, Status, const std::vector<bool>&) override {}
  void OnSharedForgotten(const GroupId&) override {}

 private:
  static RedisBlockName NameOf(size_t i, uint64_t series) {
    const auto position = static_cast<uint32_t>(i);
    return {.group = {1, 1},
            .space = {2, 2},
            .key = {i * 0x9E3779B97F4A7C15, series},
            .run = {series, i / kRedisRunBlocks},
            .position = position};
  }

  template <typename Begin>
  double Run(std::vector<std::vector<std::byte>>& slots, size_t count, const Begin& begin) {
    free_.clear();
    for (size_t i = 0; i < slots.size(); ++i) free_.push_back(i);
    slot_of_.assign(count, 0);
    size_t next = 0;
    done_ = 0;
    const auto start = std::chrono::steady_clock::now();
    while (done_ < count) {
      while (next < count && !free_.empty()) {
        slot_of_[next] = free_.back();
        const Status status = begin(next, slots[free_.back()]);
        if (!status.ok()) Fail(status);
        free_.pop_back();
        ++next;
      }
      Turn();
    }
    return SecondsSince(start);
  }

  void Turn() {
    std::deque<std::function<void()>> calls;
    {
      std::unique_lock lock(mutex_);
      has_calls_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !calls_.empty(); });
      calls.swap(calls_);
    }
    for (const std::function<void()>& call : calls) call();
  }

  void End(TransferId id, Status status) {
    if (!status.ok()) Fail(status);
    free_.push_back(slot_of_[id]);
    ++done_;
  }

  [[noreturn]] static void Fail(Status status) {
    std::fprintf(stderr, "the tier failed: %s\n", status.what());
    std::exit(1);
  }

  const Settings settings_;
  std::mutex mutex_;
  std::condition_variable has_calls_;
  std::deque<std::function<void()>> calls_;
  std::vector<size_t> free_;
  std::vector<size_t> slot_of_;
  size_t done_ = 0;
  std::unique_ptr<RedisTier> tier_;
};

// ---- the loops ----

class HiredisLoop {
 public:
  HiredisLoop(const Settings& settings, const RedisEndpoint& endpoint) : settings_(settings) {
    for (uint32_t i = 0; i < settings.connections; ++i) {
      contexts_.push_back(endpoint.unix_path.empty()
                              ? redisConnect(endpoint.host.c_str(), endpoint.port)
                              : redisConnectUnix(endpoint.unix_path.c_str()));
    }
  }
  ~HiredisLoop() {
    for (redisContext* const context : contexts_) redisFree(context);
  }

  double Store(std::vector<std::vector<std::byte>>& slots, size_t count, bool is_full) {
    const auto start = std::chrono::steady_clock::now();
    Pipeline(
        count,
        [&](redisContext* context, size_t i) {
          const std::vector<std::byte>& slot = slots[i % slots.size()];
          if (is_full) sum_ ^= ChecksumPart(slot, i).low;
          const std::string key = KeyOf(i);
          const char* words[] = {"SET", key.data(), reinterpret_cast<const char*>(slot.data()),
                                 "PX", "100000"};
          const size_t lengths[] = {3, key.size(), slot.size(), 2, 6};
          redisAppendCommandArgv(context, 5, words, lengths);
        },
        [](size_t, redisReply*) {});
    return SecondsSince(start);
  }

  double Fetch(std::vector<std::vector<std::byte>>& slots, size_t count, bool is_full) {
    const auto start = std::chrono::steady_clock::now();
    Pipeline(
        count,
        [&](redisContext* context, size_t i) {
          const std::string key = KeyOf(i);
          const char* words[] = {"GET", key.data()};
          const size_t lengths[] = {3, key.size()};
          redisAppendCommandArgv(context, 2, words, lengths);
        },
        [&](size_t i, redisReply* reply) {
          if (!is_full) return;
          std::vector<std::byte>& slot = slots[i % slots.size()];
          std::memcpy(slot.data(), reply->str, slot.size());
          sum_ ^= ChecksumPart(slot, i).low;
        });
    return SecondsSince(start);
  }

 private:
  static std::string KeyOf(size_t i) { return std::string("loop:").append(std::to_string(i)); }

  // `depth` commands under way, spread over the connections; each answer makes room for another.
  template <typename Append, typename Take>
  void Pipeline(size_t count, const Append& append, const Take& take) {
    const size_t window = std::min<size_t>(settings_.depth, count);
    for (size_t i = 0; i < window; ++i) append(contexts_[i % contexts_.size()], i);
    for (size_t i = 0; i < count; ++i) {
      redisContext* const context = contexts_[i % contexts_.size()];
      if (i < contexts_.size()) {
        // Let all connections have work before the first answer is waited for.
        for (redisContext* const each : contexts_) Flush(each);
      }
      void* reply = nullptr;
      if (redisGetReply(context, &reply) != REDIS_OK) {
        std::fprintf(stderr, "hiredis failed: %s\n", context->errstr);
        std::exit(1);
      }
      take(i, static_cast<redisReply*>(reply));
      freeReplyObject(reply);
      if (i + window < count) {
        redisContext* const next = contexts_[(i + window) % contexts_.size()];
        append(next, i + window);
        Flush(next);
      }
    }
  }

  static void Flush(redisContext* context) {
    int is_done = 0;
    while (is_done == 0 && redisBufferWrite(context, &is_done) == REDIS_OK) {
    }
  }

  const Settings settings_;
  std::vector<redisContext*> contexts_;
  uint64_t sum_ = 0;
};

struct Rates {
  std::vector<double> tier, full, bare;  // MiB a second, one a round
  std::vector<double> tier_us, full_us;  // CPU of this process, a block
  std::vector<double> tier_server_us, full_server_us;
};

// CPU that a process has used.
double CpuUs(pid_t pid) {
  clockid_t clock = 0;
  timespec used{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) * 1e6 + static_cast<double>(used.tv_nsec) / 1e3;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Of each round's own ratio: what slowed the machine down slowed both.
double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

void Print(const char* way, size_t block_bytes, const Rates& rates) {
  std::printf(
      "%-5s %5zu KiB  tier %6.0f  full loop %6.0f  bare loop %6.0f MiB/s  "
      "tier/full %.2f  tier/bare %.2f  CPU us a block, client + server: tier %.1f + %.1f  "
      "full loop %.1f + %.1f\n",
      way, block_bytes / kKiB, Median(rates.tier), Median(rates.full), Median(rates.bare),
      MedianRatio(rates.tier, rates.full), MedianRatio(rates.tier, rates.bare),
      Median(rates.tier_us), Median(rates.tier_server_us), Median(rates.full_us),
      Median(rates.full_server_us));
  std::fflush(stdout);
}

void Measure(const Settings& settings, size_t block_bytes, const testing::RedisProcess& server) {
  const RedisEndpoint endpoint = settings.is_tcp ? server.tcp_endpoint() : server.unix_endpoint();
  TierRunner tier(settings, endpoint);
  HiredisLoop loop(settings, endpoint);
  const std::unique_ptr<testing::RawRedis> raw = server.Connect();
  const size_t count = settings.bytes / block_bytes;
  std::vector<std::vector<std::byte>> slots(settings.depth, std::vector<std::byte>(block_bytes));
  for (size_t i = 0; i < slots.size(); ++i) std::memset(slots[i].data(), static_cast<int>(i), 8);
  const double mib = static_cast<double>(count * block_bytes) / static_cast<double>(kMiB);
  Rates store, fetch;
  for (uint32_t round = 0; round <= settings.rounds; ++round) {
    for (uint32_t turn = 0; turn < 3; ++turn) {
      raw->Command({"FLUSHALL"});
      const uint32_t who = (round + turn) % 3;
      for (Rates* const rates : {&store, &fetch}) {
        const double us = CpuUs(getpid()), server_us = CpuUs(server.pid());
        double seconds = 0;
        if (who == 0) {
          seconds =
              rates == &store ? tier.Store(slots, count, round) : tier.Fetch(slots, count, round);
        } else {
          seconds = rates == &store ? loop.Store(slots, count, who == 1)
                                    : loop.Fetch(slots, count, who == 1);
        }
        if (round == 0) continue;  // the server's memory is new
        const auto blocks = static_cast<double>(count);
        (who == 0 ? rates->tier : who == 1 ? rates->full : rates->bare).push_back(mib / seconds);
        if (who == 2) continue;
        (who == 0 ? rates->tier_us : rates->full_us).push_back((CpuUs(getpid()) - us) / blocks);
        (who == 0 ? rates->tier_server_us : rates->full_server_us)
            .push_back((CpuUs(server.pid()) - server_us) / blocks);
      }
    }
  }
  Print("store", block_bytes, store);
  Print("fetch", block_bytes, fetch);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  terrace::Settings settings;
  uint64_t mib = 256;
  std::vector<size_t> block_kib = {64, 128, 256, 512, 1024, 2048};
  CLI::App app{"RedisTier beside plain hiredis loops, on a private redis-server"};
  app.add_option("--connections", settings.connections, "for payloads");
  app.add_option("--depth", settings.depth, "blocks under way");
  app.add_option("--mib", mib, "moved by one measurement");
  app.add_option("--rounds", settings.rounds, "of all three, one after another");
  app.add_option("--kib", block_kib, "a block, one size after another");
  app.add_flag("--tcp", settings.is_tcp, "loopback instead of a Unix socket");
  CLI11_PARSE(app, argc, argv);
  settings.bytes = mib * terrace::kMiB;
  if (terrace::testing::FindProgram("redis-server").empty()) {
    std::fprintf(stderr, "redis-server is not installed: run tools/setup\n");
    return 77;
  }
  const terrace::testing::RedisProcess server;
  for (const size_t kib : block_kib) {
    terrace::Measure(settings, kib * terrace::kKiB, server);
  }
  return 0;
}
