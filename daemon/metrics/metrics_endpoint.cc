#include "daemon/metrics/metrics_endpoint.h"

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "daemon/config/listen_address.h"
#include "daemon/log/log.h"
#include "daemon/metrics/exposition.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/page.h"
#include "daemon/metrics/shared_question.h"
#include "src/thread_name.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::chrono::seconds kBindAgain{5};
constexpr std::string_view kPageForm = "text/html; charset=utf-8";
constexpr std::string_view kJsonForm = "application/json";
constexpr char kStarting[] = "the daemon is starting";
constexpr char kNoTurns[] = "the store thread does not answer";
constexpr char kNoDomain[] = "there is no such domain";
constexpr std::string_view kTextForm = "text/plain; version=0.0.4; charset=utf-8";

// systemd's filter drops what it forbids without a word to either end. What it passes to the daemon
// is the socket unit's, which says itself who may connect.
void WarnOfAddressFilter(const std::string& listen) {
  if (std::getenv("INVOCATION_ID") == nullptr) return;
  Log(LogLevel::kWarn, "metrics need an allowed address",
      {{"listen", listen},
       {"why",
        "terraced.service has IPAddressDeny=any, this host's own addresses included: who is not "
        "named in IPAddressAllow= cannot connect, and neither end is told"},
       {"remedy",
        "systemctl enable --now terraced-metrics.socket in place of metrics.listen; or systemctl "
        "edit terraced: [Service] IPAddressAllow=localhost"}});
}

// Which domain is asked about: the first unless it is named. None: it is another's name.
std::optional<uint32_t> DomainOf(const HttpRequest& request,
                                 const std::vector<std::string>& names) {
  constexpr std::string_view kKey = "domain=";
  std::string_view name = request.query;
  if (name.empty() || name == kKey) return 0;
  if (!name.starts_with(kKey)) return std::nullopt;
  name.remove_prefix(kKey.size());  // names need no escapes
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<uint32_t>(found - names.begin());
}

HttpAnswer Refusal(uint32_t status, std::string sentence) {
  return {.status = status, .body = std::move(sentence) + "\n"};
}

}  // namespace

struct MetricsEndpoint::State {
  explicit State(Options opened)
      : options(std::move(opened)),
        server(loop, {.only_local = options.config.allow_remote == MetricsRemote::kOff},
               [this](const HttpRequest& request, HttpServer::Answer answer) {
                 Handle(request, std::move(answer));
               }) {}

  void Run();
  void Listen();
  std::string where() const {
    return options.passed_fd >= 0 ? "a socket of systemd" : options.config.listen;
  }
  void Handle(const HttpRequest& request, HttpServer::Answer answer);
  void AnswerMetrics(HttpServer::Answer answer);
  void AnswerHealth(HttpServer::Answer answer);
  void AnswerReadiness(HttpServer::Answer answer);
  void AnswerStatus(const HttpRequest& request, HttpServer::Answer answer);
  void AnswerPrefixes(const HttpRequest& request, HttpServer::Answer answer);
  // Turn by turn of the store thread.
  void Fill(uint32_t step, std::function<void()> done);
  void FillPages(size_t number, std::function<void()> done);

  const Options options;
  asio::io_context loop{1};
  HttpServer server;
  asio::steady_timer bind_again{loop};
  bool is_trouble_told = false;
  std::atomic<int> listen_error{0};  // of the last try to listen, if it failed
  // Set once, by a task of this thread.
  MetricsSource source;
  bool is_serving = false, is_ending = false;
  // Filled by the store thread while the question is out, read here when it is answered.
  Snapshot snapshot;
  std::string exposition;  // of the snapshot, for all who asked for it; empty: not written yet
  std::vector<uint32_t> pages_asked;       // domains
  std::map<uint32_t, PageSnapshot> pages;  // by domain
  bool is_ready = false;
  std::string health_text;
  std::set<uint32_t> pages_wanted;  // by the next question
  SharedQuestion figures{loop, kSnapshotPace, kStorePatience};
  SharedQuestion page{loop, kPagePace, kStorePatience};
  SharedQuestion health{loop, kSnapshotPace, kStorePatience};
  PrefixSurvey survey{loop, kStorePatience};
  std::thread thread;
};

MetricsEndpoint::MetricsEndpoint(Options options)
    : state_(std::make_unique<State>(std::move(options))) {
  state_->thread = StartThread("terrace-metrics", [state = state_.get()] { state->Run(); });
}

MetricsEndpoint::~MetricsEndpoint() {
  state_->loop.stop();
  state_->thread.join();
}

void MetricsEndpoint::Serve(MetricsSource source) {
  asio::post(state_->loop, [state = state_.get(), source = std::move(source)]() mutable {
    state->source = std::move(source);
    state->figures.SetAsker([state](std::function<void()> done) {
      state->exposition.clear();
      state->Fill(0, std::move(done));
    });
    state->page.SetAsker([state](std::function<void()> done) {
      state->pages_asked.assign(state->pages_wanted.begin(), state->pages_wanted.end());
      state->pages_wanted.clear();
      for (const uint32_t domain : state->pages_asked) state->pages.try_emplace(domain);
      state->FillPages(0, std::move(done));
    });
    state->health.SetAsker([state](std::function<void()> done) {
      state->source.post([state, done = std::move(done)] {
        state->is_ready = state->source.is_ready();
        state->health_text = state->source.health();
        asio::post(state->loop, done);
      });
    });
    state->survey.Begin(state->source.post, state->source.add_groups, state->source.walk);
    state->is_serving = true;
  });
}

void MetricsEndpoint::EndServing() {
  asio::post(state_->loop, [state = state_.get()] { state->is_ending = true; });
}

std::string MetricsEndpoint::Trouble() const {
  const int error = state_->listen_error;
  if (error == 0) return "";
  return state_->where() + ": " + asio::error_code(error, asio::system_category()).message();
}

void MetricsEndpoint::State::Fill(uint32_t step, std::function<void()> done) {
  source.post([this, step, done = std::move(done)]() mutable {
    const uint32_t next = source.fill(&snapshot, step);
    TERRACE_CHECK(next == 0 || next > step, "filling goes on: else the store thread never rests");
    if (next != 0) return Fill(next, std::move(done));
    asio::post(loop, std::move(done));
  });
}

void MetricsEndpoint::State::FillPages(size_t number, std::function<void()> done) {
  if (number == pages_asked.size()) return asio::post(loop, std::move(done));
  source.post([this, number, done = std::move(done)]() mutable {
    const uint32_t domain = pages_asked[number];
    source.fill_page(domain, &pages.at(domain));
    FillPages(number + 1, std::move(done));
  });
}

void MetricsEndpoint::State::Run() {
  const auto work = asio::make_work_guard(loop);
  Listen();
  loop.run();
}

void MetricsEndpoint::State::Listen() {
  const bool is_passed = options.passed_fd >= 0;
  ListenAddress address;
  asio::error_code error;
  if (is_passed) {
    error = server.Adopt(options.passed_fd);
  } else if (ParseListenAddress(options.config.listen, &address)) {
    error = server.Bind(address);
  }
  listen_error = error.value();
  if (!error) {
    Log(LogLevel::kInfo, "metrics", {{"listen", where()}});
    if (!is_passed) WarnOfAddressFilter(where());
    if (!HasExposition()) {
      Log(LogLevel::kWarn, "metrics without figures",
          {{"why",
            "this program was built without prometheus-cpp: /metrics says so to whoever asks"},
           {"remedy", "install prometheus-cpp-dev and build again"}});
    }
    return;
  }
  if (!std::exchange(is_trouble_told, true)) {
    Log(LogLevel::kError, "metrics are not served",
        {{"listen", where()},
         {"why", error.message()},
         {"remedy",
          "free the port or name another in metrics.listen; everything else goes on, and "
          "it is tried again every " +
              std::to_string(kBindAgain.count()) + " s"}});
  }
  if (is_passed) return;
  bind_again.expires_after(kBindAgain);
  bind_again.async_wait([this](const asio::error_code& cancelled) {
    if (!cancelled) Listen();
  });
}

void MetricsEndpoint::State::Handle(const HttpRequest& request, HttpServer::Answer answer) {
  if (request.path == "/metrics") return AnswerMetrics(std::move(answer));
  if (request.path == "/healthz") return AnswerHealth(std::move(answer));
  if (request.path == "/readyz") return AnswerReadiness(std::move(answer));
  if (request.path == "/") {
    return answer({.content_type = kPageForm, .body = std::string(PageText())});
  }
  if (request.path == "/status.json") return AnswerStatus(request, std::move(answer));
  if (request.path == "/prefixes.json") return AnswerPrefixes(request, std::move(answer));
  answer(Refusal(404, "there are /, /metrics, /healthz and /readyz"));
}

void MetricsEndpoint::State::AnswerMetrics(HttpServer::Answer answer) {
  if (!HasExposition()) {
    return answer(Refusal(501, "this terraced was built without prometheus-cpp"));
  }
  if (!is_serving) return answer(Refusal(503, kStarting));
  figures.Ask([this, answer = std::move(answer)](bool is_answered) {
    if (!is_answered) return answer(Refusal(503, kNoTurns));
    if (exposition.empty()) exposition = Exposition(snapshot);
    answer({.content_type = kTextForm, .body = exposition});
  });
}

void MetricsEndpoint::State::AnswerStatus(const HttpRequest& request, HttpServer::Answer answer) {
  if (!is_serving) return answer(Refusal(503, kStarting));
  const std::optional<uint32_t> domain = DomainOf(request, source.domain_names);
  if (!domain) return answer(Refusal(404, kNoDomain));
  pages_wanted.insert(*domain);
  page.Ask([this, domain = *domain, answer = std::move(answer)](bool is_answered) {
    if (!is_answered) return answer(Refusal(503, kNoTurns));
    answer(
        {.content_type = kJsonForm, .body = StatusDocument(source.domain_names, pages.at(domain))});
  });
}

void MetricsEndpoint::State::AnswerPrefixes(const HttpRequest& request, HttpServer::Answer answer) {
  if (!is_serving) return answer(Refusal(503, kStarting));
  const std::optional<uint32_t> domain = DomainOf(request, source.domain_names);
  if (!domain) return answer(Refusal(404, kNoDomain));
  survey.Ask(*domain, [answer = std::move(answer)](const std::string* document) {
    if (document == nullptr) return answer(Refusal(503, "the blocks could not be walked"));
    answer({.content_type = kJsonForm, .body = *document});
  });
}

// Whether to leave the process alone: it is, as long as it starts, or its store thread has turns. A
// degraded daemon serves: another start would not help it.
void MetricsEndpoint::State::AnswerHealth(HttpServer::Answer answer) {
  if (!is_serving) return answer({.body = "starting\n"});
  health.Ask([this, answer = std::move(answer)](bool is_answered) {
    answer(is_answered ? HttpAnswer{.body = health_text + "\n"} : Refusal(503, kNoTurns));
  });
}

// Whether to send clients.
void MetricsEndpoint::State::AnswerReadiness(HttpServer::Answer answer) {
  if (is_ending) return answer(Refusal(503, "stopping"));
  if (!is_serving) return answer(Refusal(503, "starting: what the drives hold is being read"));
  health.Ask([this, answer = std::move(answer)](bool is_answered) {
    if (!is_answered) return answer(Refusal(503, kNoTurns));
    if (!is_ready) return answer(Refusal(503, "starting: memory is being populated"));
    answer({.body = "ready\n"});
  });
}

}  // namespace terrace
