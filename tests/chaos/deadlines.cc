// How far calls overstay their deadlines while the daemon does not answer. Each call has a bare
// ppoll of the same time beside it, in the same thread and the same minute, so that what the
// machine does to any sleeper is not held against the library.
#include <poll.h>
#include <time.h>

#include <cinttypes>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "chaos/roles.h"
#include "chaos/traffic.h"

namespace terrace::chaos {

namespace {

constexpr uint64_t kDeadlinesUs[] = {1'000, 2'000, 5'000, 10'000, 20'000, 50'000};
// No completion after this long counts as none at all.
constexpr uint64_t kAnswerUsMax = 5'000'000;
constexpr uint32_t kCommitKeys = 64;
constexpr int kTriesMax = 100;
constexpr uint64_t kTryAgainUs = 10'000;

uint64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Sleeps in ppoll until `fd` is readable (-1: nothing ever is) or the time is up.
void Sleep(int fd, uint64_t duration_us) {
  pollfd input = {.fd = fd, .events = POLLIN};
  const timespec timeout = {.tv_sec = static_cast<time_t>(duration_us / 1'000'000),
                            .tv_nsec = static_cast<long>(duration_us % 1'000'000 * 1'000)};
  ppoll(&input, 1, &timeout, nullptr);
}

class Measurement {
 public:
  explicit Measurement(Traffic& traffic) : traffic_(traffic) {
    Blocking("match", [this](const RequestOptions& o) {
      return client().Match(group(), keys_, o).status();
    });
    Blocking("acquire", [this](const RequestOptions& o) {
      return client().Acquire(group(), keys_, o).status();
    });
    Blocking("reserve", [this](const RequestOptions& o) {
      return client().Reserve(group(), FreshKeys(2), o).status();
    });
    Blocking("commit",
             [this](const RequestOptions& o) { return client().Commit(lease_, o).status(); });
    Blocking("query", [this](const RequestOptions& o) {
      std::vector<protocol::QueriedBlock> blocks;
      return client().Query(group(), keys_, &blocks, o);
    });
    Blocking("stats",
             [this](const RequestOptions& o) { return client().Stats(o.deadline_us).status(); });
    Async("acquire-async", [this](const RequestOptions& o, uint64_t id) {
      return client().AcquireAsync(group(), keys_, o, id);
    });
    Async("reserve-async", [this](const RequestOptions& o, uint64_t id) {
      return client().ReserveAsync(group(), FreshKeys(2), o, id);
    });
    Async("commit-async", [this](const RequestOptions& o, uint64_t id) {
      return client().CommitAsync(lease_, o, id);
    });
  }

  // While the daemon still answers: a lease whose commits will not be answered.
  bool Prepare() {
    keys_ = traffic_.Keys(traffic_.options().prompt_first, traffic_.options().blocks_max);
    commit_keys_ = FreshKeys(kCommitKeys);
    next_commit_ = 0;
    // A young arena still grows: what it has no room for now it has in a moment.
    for (int i = 0; i < kTriesMax; ++i) {
      auto lease = traffic_.Reserve(commit_keys_, {}, 0);
      if (lease.ok()) lease_ = std::move(lease).value();
      if (IsWhole(lease_)) return true;
      lease_.Abort();
      Sleep(-1, kTryAgainUs);
    }
    return false;
  }

  void Measure(uint64_t repetitions) {
    for (uint64_t i = 0; i < repetitions; ++i) {
      for (const uint64_t deadline_us : kDeadlinesUs) {
        for (const Kind& kind : kinds_) MeasureOne(kind, deadline_us);
      }
    }
    Say("done");
  }

  // After the daemon answers again: everything works, and nothing of the lost calls is left.
  void Recover() {
    lease_.Abort();
    uint32_t resident_count = 0;
    for (int i = 0; i < kTriesMax && resident_count < keys_.size(); ++i) {
      resident_count =
          traffic_.Serve(traffic_.options().prompt_first, traffic_.options().blocks_max);
    }
    traffic_.ReleaseKept();
    ClientCompletion late;
    uint64_t late_count = 0;
    while (client().Poll(&late)) ++late_count;
    Say("recovered %u %" PRIu64, resident_count, late_count);
  }

 private:
  struct Kind {
    const char* name;
    std::function<Status(const RequestOptions&)> run;
  };

  // Room that comes while the daemon reserves goes to the keys behind: the last one says nothing of
  // those before it, and a commit of none is answered without the daemon.
  static bool IsWhole(const WriteLease& lease) {
    for (uint32_t i = 0; i < kCommitKeys; ++i) {
      if (!lease.is_reserved(i)) return false;
    }
    return true;
  }

  Client& client() { return traffic_.client(); }
  GroupRef group() { return traffic_.group(); }

  void Blocking(const char* name, std::function<Status(const RequestOptions&)> run) {
    kinds_.push_back({name, std::move(run)});
  }
  void Async(const char* name, std::function<Status(const RequestOptions&, uint64_t)> begin) {
    kinds_.push_back({name, [this, begin = std::move(begin)](const RequestOptions& options) {
                        const uint64_t id = ++next_id_;
                        const Status begun = begin(options, id);
                        return begun.ok() ? AwaitCompletion(id) : begun;
                      }});
  }

  Status AwaitCompletion(uint64_t id) {
    const uint64_t give_up_ns = NowNs() + kAnswerUsMax * 1000;
    ClientCompletion completion;
    while (NowNs() < give_up_ns) {
      if (!client().Poll(&completion)) {
        Sleep(client().event_fd(), kAnswerUsMax);
        continue;
      }
      if (completion.user_data == id) return completion.status;
    }
    return Status(StatusCode::kIo, "no completion came");
  }

  // A prompt nobody has named before.
  std::span<const BlockKey> FreshKeys(uint32_t count) {
    return traffic_.Keys(traffic_.options().prompt_first + kPromptsPerFamily * ++fresh_prompt_,
                         count);
  }

  void MeasureOne(const Kind& kind, uint64_t deadline_us) {
    traffic_.Write(lease_, commit_keys_, next_commit_ % kCommitKeys,
                   next_commit_ % kCommitKeys + 1);
    ++next_commit_;
    const uint64_t call_began_ns = NowNs();
    const Status status = kind.run({.deadline_us = deadline_us});
    const uint64_t bare_began_ns = NowNs();
    Sleep(-1, deadline_us);
    const uint64_t bare_ended_ns = NowNs();
    Say("sample %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %u", kind.name, deadline_us,
        bare_began_ns - call_began_ns, bare_ended_ns - bare_began_ns,
        static_cast<unsigned>(status.code()));
  }

  Traffic& traffic_;
  std::vector<Kind> kinds_;
  std::span<const BlockKey> keys_;
  std::span<const BlockKey> commit_keys_;
  WriteLease lease_;
  uint32_t next_commit_ = 0;
  uint32_t fresh_prompt_ = 0;
  uint64_t next_id_ = 0;
};

}  // namespace

int RunDeadlines(const Arguments& arguments, Progress* progress) {
  Traffic traffic(Traffic::ReadOptions(arguments), progress);
  if (!traffic.Connect(kConnectUs)) return kExitCannotStart;
  Measurement measurement(traffic);
  Say("ready");
  std::string line;
  while (Listen(&line)) {
    if (line == "prepare") {
      Say(measurement.Prepare() ? "prepared" : "refused");
    } else if (line.rfind("measure ", 0) == 0) {
      measurement.Measure(std::stoul(line.substr(8)));
    } else if (line == "recover") {
      measurement.Recover();
    } else {
      break;
    }
  }
  return progress->blocks_wrong.load() == 0 ? 0 : kExitWrongBytes;
}

}  // namespace terrace::chaos
