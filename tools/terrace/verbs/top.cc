// `terrace top`: what a domain does now, again and again, on one screen.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/verb.h"
#include "tools/terrace/top/frame.h"
#include "tools/terrace/top/sample.h"
#include "tools/terrace/top/screen.h"

namespace terrace::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr double kIntervalSMin = 0.1, kIntervalSMax = 3600;
constexpr uint64_t kMsPerSecond = 1000;
// How long keys wait for a daemon that hangs, and a daemon that is back for its picture.
constexpr uint64_t kPatienceMs = 1000;

class TopVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb =
        parent.AddVerb("top",
                       "What a domain does now: tiers, rates, sessions, the busiest groups\n\n"
                       "Draws the screen anew until q or Ctrl-C. Without a terminal it prints one "
                       "picture, as with\n"
                       "--once: of two answers of the daemon, --interval apart.");
    verb.AddOption("--interval", frame_.interval_s, "Seconds from one picture to the next")
        .Type("SECONDS")
        .ShowDefault()
        .Between(kIntervalSMin, kIntervalSMax);
    verb.AddFlag("--once", is_once_, "Print one picture and end");
    DeclareAddress(verb, &address_);
    verb.AddFlag("--json", is_json_, "Print one picture as one JSON document");
    return verb;
  }

  ExitCode Run() override {
    if (is_once_ || is_json_ || !Screen::IsUsable()) return RunOnce();
    std::string why;
    // Before the client's threads: they are to leave the signals alone.
    std::unique_ptr<Screen> screen = Screen::Open(&why);
    if (screen == nullptr) return Fail("cannot draw on this terminal: " + why + ". Use --once");
    const bool has_run = RunLive(*screen, &why);
    screen.reset();  // what is said stays on the terminal
    return has_run ? kExitOk : Fail(why);
  }

 private:
  uint64_t interval_ms() const {
    return static_cast<uint64_t>(frame_.interval_s * static_cast<double>(kMsPerSecond));
  }

  ExitCode RunOnce() {
    const std::unique_ptr<Client> client = ConnectOrExplain(address_);
    if (client == nullptr) return kExitFailed;
    for (int look = 0; look < 2; ++look) {
      if (look > 0) std::this_thread::sleep_for(milliseconds(interval_ms()));
      const std::optional<StatsView> stats = FetchStats(*client, address_.deadline_us());
      if (!stats) return kExitFailed;
      Take(*stats);
    }
    if (is_json_) {
      PrintJson(ToJson(frame_));
    } else {
      for (const std::string& line : RenderFrame(frame_, kNoFrameLimits)) PrintText(line + "\n");
    }
    return kExitOk;
  }

  // Until somebody ends it; false with `*why` if it cannot begin.
  bool RunLive(Screen& screen, std::string* why) {
    ClientOptions options;
    options.socket_path = address_.path();
    options.client_name = "terrace";
    const Result<std::unique_ptr<Client>> client = Client::Create(options, why);
    if (!client.ok()) {
      *why = fmt::format("cannot use socket {}: {}", options.socket_path, *why);
      return false;
    }
    (void)(*client)->WaitConnected(kPatienceMs * 1000);
    while (true) {
      Look(**client);
      const uint64_t wait_ms =
          frame_.away.empty() ? interval_ms() : std::min(interval_ms(), kPatienceMs);
      const auto until = steady_clock::now() + milliseconds(wait_ms);
      for (auto event = Screen::Event::kRedraw; event != Screen::Event::kTimeout;) {
        screen.Draw(RenderFrame(frame_, screen.size()));
        const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
        event = screen.Await(static_cast<uint64_t>(std::max<int64_t>(left, 0)));
        if (event == Screen::Event::kQuit) return true;
      }
    }
  }

  void Look(Client& client) {
    const uint64_t deadline_us = std::min(address_.deadline_us(), kPatienceMs * 1000);
    const Result<std::string> text = client.Stats(deadline_us);
    if (text.ok()) {
      std::string why;
      const Result<StatsView> stats = StatsView::Parse(*text, &why);
      if (stats.ok()) return Take(*stats);
      frame_.away = fmt::format("the answer of {} to Stats {}", address_.path(), why);
      return;
    }
    frame_.away = WhyNobodyListens(address_.path());
    if (frame_.away.empty()) {
      frame_.away =
          fmt::format("{} does not answer: {}", address_.path(), DescribeStatus(text.status()));
    }
  }

  void Take(const StatsView& stats) {
    Sample sample = SampleOf(stats);
    frame_.away.clear();
    frame_.rates.reset();
    if (frame_.sample) frame_.rates = RatesBetween(*frame_.sample, sample);
    frame_.sample = std::move(sample);
  }

  DaemonAddress address_;
  bool is_once_ = false;
  bool is_json_ = false;
  Frame frame_{.sample = {}, .rates = {}, .away = "", .interval_s = 2};
};

}  // namespace

std::unique_ptr<Verb> MakeTopVerb() { return std::make_unique<TopVerb>(); }

}  // namespace terrace::tools
