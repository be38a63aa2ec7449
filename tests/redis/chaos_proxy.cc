#include "redis/chaos_proxy.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <atomic>
#include <charconv>
#include <chrono>
#include <deque>
#include <filesystem>
#include <future>
#include <random>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "terrace/check.h"

namespace terrace::testing {
namespace {

using Unix = asio::local::stream_protocol;
using Tcp = asio::ip::tcp;

// The length of the first reply of `text`; 0: it is not all there.
size_t ReplyLength(std::string_view text) {
  const size_t line_end = text.find("\r\n");
  if (line_end == std::string_view::npos) return 0;
  size_t length = line_end + 2;
  long long number = 0;
  std::from_chars(text.data() + 1, text.data() + line_end, number);
  if (text[0] == '$' && number >= 0) {
    length += static_cast<size_t>(number) + 2;
    return length <= text.size() ? length : 0;
  }
  for (long long i = 0; text[0] == '*' && i < number; ++i) {
    const size_t element = length < text.size() ? ReplyLength(text.substr(length)) : 0;
    if (element == 0) return 0;
    length += element;
  }
  return length;
}

}  // namespace

struct ChaosProxy::State {
  struct Link : std::enable_shared_from_this<Link> {
    Link(State* owner, Tcp::socket near_socket)
        : state(*owner), near(std::move(near_socket)), far(owner->loop), timer(owner->loop) {}

    void Start();
    void PumpCommands();
    void PumpReplies();
    void TakeReplies();
    // One reply, spoiled as chance has it. False: the link has ended.
    bool Spoil(std::string reply);
    void Send(std::string bytes);
    void WriteSome();
    void Reset();
    void End();

    State& state;
    Tcp::socket near;
    Unix::socket far;
    asio::steady_timer timer;
    std::array<char, 64 * 1024> command_bytes, reply_bytes;
    std::string incoming;           // from the server, not a whole reply yet
    std::deque<std::string> whole;  // replies that wait for a delay to end, or are held
    std::string swapped;            // waits for the one behind it
    std::string outgoing, sending;
    bool is_delayed = false, is_writing = false, is_swallowed = false, has_ended = false;
    bool ends_when_written = false;
  };

  State(const RedisEndpoint& given, uint64_t seed)
      : upstream(given), acceptor(loop), random(seed), work(asio::make_work_guard(loop)) {
    acceptor.open(Tcp::v4());
    acceptor.bind(Tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    acceptor.listen();
    port = acceptor.local_endpoint().port();
    Accept();
    thread = std::thread([this] { loop.run(); });
  }

  void Accept() {
    acceptor.async_accept([this](const asio::error_code& error, Tcp::socket socket) {
      if (error) return;
      ++connections;
      const auto link = std::make_shared<Link>(this, std::move(socket));
      if (is_refusing) {
        link->Reset();
      } else {
        links.insert(link);
        link->Start();
      }
      Accept();
    });
  }

  void Replace(std::span<char> commands) {
    if (replaced.empty()) return;
    const std::string_view text(commands.data(), commands.size());
    for (size_t at = 0; (at = text.find(replaced, at)) != std::string_view::npos;
         ++replaced_count) {
      std::ranges::copy(replacing, commands.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  bool is_holding() const { return replies >= hold_from; }

  // On the proxy's thread, and done when it returns.
  void Do(const std::function<void()>& work_item) {
    std::promise<void> done;
    asio::post(loop, [&] {
      work_item();
      done.set_value();
    });
    done.get_future().wait();
  }

  const RedisEndpoint upstream;
  asio::io_context loop{1};
  Tcp::acceptor acceptor;
  uint16_t port = 0;
  std::mt19937_64 random;
  Faults faults;
  std::string replaced, replacing;
  uint64_t hold_from = UINT64_MAX;  // a count of replies
  bool is_refusing = false;
  std::set<std::shared_ptr<Link>> links;
  std::atomic<uint64_t> fault_count{0}, replies{0}, connections{0}, held{0}, replaced_count{0};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::thread thread;
};

void ChaosProxy::State::Link::Start() {
  asio::error_code error;
  far.connect(Unix::endpoint(state.upstream.unix_path), error);
  if (error) {
    Reset();
    return;
  }
  near.set_option(Tcp::no_delay(true), error);
  PumpCommands();
  PumpReplies();
}

void ChaosProxy::State::Link::PumpCommands() {
  near.async_read_some(asio::buffer(command_bytes),
                       [self = shared_from_this()](const asio::error_code& error, size_t n) {
                         if (error || self->has_ended) {
                           self->End();
                           return;
                         }
                         self->state.Replace(std::span(self->command_bytes).first(n));
                         asio::async_write(self->far, asio::buffer(self->command_bytes.data(), n),
                                           [self](const asio::error_code& write_error, size_t) {
                                             write_error ? self->End() : self->PumpCommands();
                                           });
                       });
}

void ChaosProxy::State::Link::PumpReplies() {
  far.async_read_some(asio::buffer(reply_bytes), [self = shared_from_this()](
                                                     const asio::error_code& error, size_t n) {
    if (error || self->has_ended) {
      self->End();
      return;
    }
    self->incoming.append(self->reply_bytes.data(), n);
    size_t length = 0;
    size_t at = 0;
    while (at < self->incoming.size() &&
           (length = ReplyLength(std::string_view(self->incoming).substr(at))) > 0) {
      self->whole.push_back(self->incoming.substr(at, length));
      at += length;
      if (self->state.is_holding()) ++self->state.held;
    }
    self->incoming.erase(0, at);
    self->TakeReplies();
    if (!self->has_ended) self->PumpReplies();
  });
}

void ChaosProxy::State::Link::TakeReplies() {
  while (!has_ended && !is_delayed && !state.is_holding() && !whole.empty()) {
    std::string reply = std::move(whole.front());
    whole.pop_front();
    ++state.replies;
    if (is_swallowed) continue;
    if (!swapped.empty()) {
      Send(std::move(reply));
      Send(std::exchange(swapped, {}));
    } else if (!Spoil(std::move(reply))) {
      return;
    }
  }
}

bool ChaosProxy::State::Link::Spoil(std::string reply) {
  std::mt19937_64& random = state.random;
  const Faults& faults = state.faults;
  uint64_t draw = random() % 1000;
  const auto is_drawn = [&](uint32_t share) {
    const bool is_it = draw < share;
    draw = is_it ? 1000 : draw - share;
    state.fault_count += is_it;
    return is_it;
  };
  if (is_drawn(faults.reset)) {
    Reset();
    return false;
  }
  if (is_drawn(faults.cut)) {
    reply.resize(random() % reply.size());
    ends_when_written = true;
  } else if (is_drawn(faults.shortened)) {
    const size_t at = random() % reply.size();
    reply.erase(at, 1 + random() % 100);
  } else if (is_drawn(faults.wrong_length) && reply.front() == '$') {
    const size_t digit = 1 + random() % std::max<size_t>(1, reply.find('\r') - 1);
    reply[digit] = static_cast<char>('0' + random() % 10);
  } else if (is_drawn(faults.garbled)) {
    for (uint64_t i = 0; i <= random() % 5; ++i) {
      reply[random() % reply.size()] = static_cast<char>(random());
    }
  } else if (is_drawn(faults.swapped)) {
    swapped = std::move(reply);
    return true;
  } else if (is_drawn(faults.swallowed)) {
    is_swallowed = true;
    return true;
  } else if (is_drawn(faults.delayed)) {
    is_delayed = true;
    whole.push_front(std::move(reply));
    timer.expires_after(std::chrono::milliseconds(
        faults.delay_ms_min + random() % (1 + faults.delay_ms_max - faults.delay_ms_min)));
    timer.async_wait([self = shared_from_this()](const asio::error_code&) {
      self->is_delayed = false;
      if (!self->has_ended && !self->whole.empty()) {
        self->Send(std::move(self->whole.front()));
        self->whole.pop_front();
        self->TakeReplies();
      }
    });
    return true;
  }
  Send(std::move(reply));
  return true;
}

void ChaosProxy::State::Link::Send(std::string bytes) {
  outgoing += bytes;
  if (!is_writing) WriteSome();
}

void ChaosProxy::State::Link::WriteSome() {
  sending = std::exchange(outgoing, {});
  if (sending.empty()) {
    if (ends_when_written) End();
    return;
  }
  is_writing = true;
  asio::async_write(near, asio::buffer(sending),
                    [self = shared_from_this()](const asio::error_code& error, size_t) {
                      self->is_writing = false;
                      if (error) {
                        self->End();
                      } else if (!self->has_ended) {
                        self->WriteSome();
                      }
                    });
}

void ChaosProxy::State::Link::Reset() {
  asio::error_code ignored;
  near.set_option(asio::socket_base::linger(true, 0), ignored);
  End();
}

void ChaosProxy::State::Link::End() {
  if (has_ended) return;
  has_ended = true;
  asio::error_code ignored;
  near.close(ignored);
  far.close(ignored);
  timer.cancel();
  state.links.erase(shared_from_this());
}

ChaosProxy::ChaosProxy(const RedisEndpoint& upstream, uint64_t seed)
    : state_(std::make_unique<State>(upstream, seed)) {}

ChaosProxy::~ChaosProxy() {
  state_->Do([this] {
    asio::error_code ignored;
    state_->acceptor.close(ignored);
    while (!state_->links.empty()) std::shared_ptr(*state_->links.begin())->End();
  });
  state_->work.reset();
  state_->thread.join();
}

RedisEndpoint ChaosProxy::endpoint() const { return {.host = "127.0.0.1", .port = state_->port}; }

void ChaosProxy::ReplaceInCommands(std::string text, std::string other) {
  TERRACE_CHECK(text.size() == other.size() && text != other, "commands keep their lengths");
  state_->Do([&] {
    state_->replaced = std::move(text);
    state_->replacing = std::move(other);
  });
}

void ChaosProxy::SetFaults(const Faults& faults) {
  state_->Do([&] { state_->faults = faults; });
}

void ChaosProxy::HoldReplies(uint64_t after) {
  state_->Do([this, after] {
    state_->hold_from = state_->replies + after;
    state_->held = 0;
  });
}

void ChaosProxy::ReleaseReplies() {
  state_->Do([this] {
    state_->hold_from = UINT64_MAX;
    for (const auto& link : std::vector(state_->links.begin(), state_->links.end())) {
      link->TakeReplies();
    }
  });
}

void ChaosProxy::Refuse() {
  state_->Do([this] {
    state_->is_refusing = true;
    while (!state_->links.empty()) std::shared_ptr(*state_->links.begin())->Reset();
  });
}

void ChaosProxy::Accept() {
  state_->Do([this] { state_->is_refusing = false; });
}

uint64_t ChaosProxy::faults_count() const { return state_->fault_count; }
uint64_t ChaosProxy::replaced_count() const { return state_->replaced_count; }
uint64_t ChaosProxy::replies_count() const { return state_->replies; }
uint64_t ChaosProxy::connections_count() const { return state_->connections; }
uint64_t ChaosProxy::held_replies_count() const { return state_->held; }

}  // namespace terrace::testing
