// What anybody may say to the daemon's metrics port: heads of requests, and connections that bring
// them in pieces. A request that is believed means the same when it is written again; whoever
// asks gets one whole answer or none; a Host that a page in a browser can have is not local.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <cerrno>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/metrics/http_request.h"
#include "daemon/metrics/http_server.h"
#include "fuzz/descriptors.h"
#include "fuzz/fuzz.h"
#include "terrace/units.h"

namespace terrace::fuzz::http {

constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::array<uint32_t, 6> kRefusals = {400, 405, 413, 421, 431, 505};
constexpr uint64_t kHeapBytesMax = 16 * kKiB;
constexpr size_t kLongBytes = kMiB;   // of an answer: more than a socket takes at once
constexpr uint64_t kHeapFactor = 16;  // fields are kept once more, each with its own record

bool IsWithoutSpace(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) > ' '; });
}

void JudgeHead(const std::string& head) {
  HttpRequest request, again;
  uint32_t status = 0;
  {
    HeapMeter meter;
    status = ReadHttpRequest(head, false, &request);
    meter.RequireAtMost(kHeapBytesMax, kHeapFactor, head.size());
  }
  const uint32_t local_status = ReadHttpRequest(head, true, &again);
  if (status != 0) {
    Require(std::ranges::find(kRefusals, status) != kRefusals.end() &&
                (local_status == status || local_status == 421),
            "a refusal that is none");
    Require(!HttpReason(status).empty() && HttpRefusal(status).starts_with(HttpReason(status)) &&
                HttpRefusal(status).ends_with('\n'),
            "a refusal without a reason");
    return;
  }
  Require(local_status == 0 || local_status == 421, "what is local is read in another way");
  if (local_status != 0) Require(HttpRefusal(local_status).ends_with('\n'), "another reason");
  Require(request.path.starts_with('/') && IsWithoutSpace(request.path) &&
              IsWithoutSpace(request.query) && request.path.find('?') == std::string::npos,
          "a path that is none");
  const std::string written = std::string(request.is_head ? "HEAD " : "GET ") + request.path + "?" +
                              request.query + " HTTP/1.1" + std::string(kHeadEnd);
  Require(ReadHttpRequest(written, true, &again) == 0 && again.path == request.path &&
              again.query == request.query && again.is_head == request.is_head,
          "a request that was read means something else when it is written");
}

void TryHead(Choices& choices) {
  std::string head(TextOf(choices.Rest()));
  if (head.find(kHeadEnd) == std::string::npos) head += kHeadEnd;
  JudgeHead(head);
}

// [text of a Host field; what stands there]
void TryHost(Choices& choices) {
  const std::string host(TextOf(choices.Rest()));
  if (!IsWithoutSpace(host)) return;
  HttpRequest request;
  const std::string head = "GET / HTTP/1.1\r\nHost: " + host + std::string(kHeadEnd);
  if (ReadHttpRequest(head, true, &request) != 0) return;
  // An address or "localhost", and a port perhaps.
  const size_t name_end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  const std::string_view rest =
      name_end >= host.size() ? std::string_view() : std::string_view(host).substr(name_end);
  const bool is_port =
      rest.empty() || (rest.front() == ':' && std::ranges::all_of(rest.substr(1), [](char c) {
                         return c >= '0' && c <= '9';
                       }));
  Require(is_port, "a Host with something behind its address is taken for local");
}

// ---- connections ----

class Server {
 public:
  Server() { Require(!server_.Adopt(ListenAt(path_, SOCK_STREAM)), "nobody can listen"); }

  // −1: so many wait already as the socket takes, behind visitors who are not answered yet.
  int Connect() {
    const int fd = ConnectTo(path_, SOCK_STREAM | SOCK_NONBLOCK);
    Require(fd >= 0 || errno == EAGAIN, "nobody listens");
    Turn();
    return fd;
  }
  void Turn() {
    loop_.restart();
    loop_.poll();
  }
  size_t connection_count() const { return server_.connection_count(); }
  void AnswerLate() {
    if (late_) std::exchange(late_, nullptr)({.body = "late"});
    Turn();
  }

 private:
  void Answer(const HttpRequest& request, HttpServer::Answer answer) {
    if (request.path == "/late") {
      late_ = std::move(answer);
    } else if (request.path == "/long") {
      answer({.body = std::string(kLongBytes, 'l')});
    } else {
      answer({.status = request.query.empty() ? 200u : 404u, .body = request.path});
    }
  }

  const std::string path_ = PathInNoFolder("http");
  asio::io_context loop_{1};
  HttpServer::Answer late_;
  HttpServer server_{
      loop_, {.connections_max = 3}, [this](const HttpRequest& request, HttpServer::Answer answer) {
        Answer(request, std::move(answer));
      }};
};

// What there is, and what comes when that has been taken.
std::string Hear(Server& server, int fd) {
  static std::array<char, 64 * kKiB> piece;
  std::string heard;
  ssize_t count = 0;
  while ((count = recv(fd, piece.data(), piece.size(), MSG_DONTWAIT)) > 0) {
    heard.append(piece.data(), static_cast<size_t>(count));
    server.Turn();
  }
  return heard;
}

void JudgeAnswer(const std::string& heard) {
  if (heard.empty()) return;
  const size_t head_end = heard.find(kHeadEnd);
  constexpr std::string_view kLength = "Content-Length: ";
  const size_t length_at = heard.find(kLength);
  Require(heard.starts_with("HTTP/1.1 ") && head_end != std::string::npos && length_at < head_end,
          "an answer that is none");
  const size_t body_bytes = heard.size() - head_end - kHeadEnd.size();
  Require(body_bytes == 0 ||
              std::to_string(body_bytes) ==
                  heard.substr(length_at + kLength.size(),
                               heard.find("\r\n", length_at) - length_at - kLength.size()),
          "an answer of another length than it says");
}

// Up to four visitors: [whom; what: says, hangs up, or the late answer comes; how much]
void TryConnections(Choices& choices) {
  Server server;
  std::array<int, 4> visitors;
  for (int& fd : visitors) fd = server.Connect();
  while (!choices.is_empty()) {
    int& fd = visitors[choices.Below(visitors.size())];
    switch (choices.Below(4)) {
      case 0:
        JudgeAnswer(Hear(server, fd));
        close(fd);
        fd = server.Connect();
        break;
      case 1:
        server.AnswerLate();
        break;
      default: {
        const auto said = choices.Take(choices.Byte());
        (void)!send(fd, said.data(), said.size(), MSG_NOSIGNAL);
        server.Turn();
      }
    }
    Require(server.connection_count() <= 3, "more connections than there may be");
  }
  server.AnswerLate();
  for (const int fd : visitors) {
    JudgeAnswer(Hear(server, fd));
    close(fd);
    server.Turn();
  }
}

constexpr void (*kTries[])(Choices&) = {TryHead, TryHost, TryConnections};

std::vector<Seed> Seeds() {
  const auto seed = [](const std::string& name, uint8_t kind, std::string_view text) {
    return Seed{name, ChoiceWriter().Byte(kind).Append(text).Take()};
  };
  const std::string get = "GET /late HTTP/1.1\r\nHost: localhost:9090\r\n\r\n";
  ChoiceWriter talk;
  talk.Byte(2);
  for (const size_t at : {0, 20}) {
    const std::string_view piece = std::string_view(get).substr(at, 20 + 30 * (at / 20));
    talk.Byte(0).Byte(2).Byte(static_cast<uint8_t>(piece.size())).Append(piece);
  }
  talk.Byte(0).Byte(1).Byte(1).Byte(2).Byte(19).Append("GET / HTTP/1.1\r\n\r\nx").Byte(1).Byte(0);
  ChoiceWriter long_talk;
  const std::string get_long = "GET /long HTTP/1.0\r\n\r\n";
  long_talk.Byte(2).Byte(3).Byte(2).Byte(static_cast<uint8_t>(get_long.size())).Append(get_long);
  return {seed("get", 0, "GET /metrics?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9090\r\nAccept: */*"),
          seed("head", 0, "HEAD /healthz HTTP/1.0\r\nHost: [::1]"),
          seed("post", 0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
          seed("chunked", 0, "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"),
          seed("whole_url", 0, "GET http://x/ HTTP/1.1\r\nHost: x"),
          seed("folded", 0, "GET / HTTP/1.1\r\nA: b\r\n c\r\nConnection: keep-alive, upgrade"),
          seed("other_version", 0, "GET / HTTP/2.0"),
          seed("host", 1, "127.0.0.1:80"),
          seed("host_v6", 1, "[fe80::1]:80"),
          seed("host_v6_cut", 1, "[::1"),
          seed("get_elsewhere", 0, "GET / HTTP/1.1\r\nHost: evil.example"),
          seed("host_elsewhere", 1, "evil.example"),
          seed("too_long", 0, "GET / HTTP/1.1\r\nA: " + std::string(kHttpHeadBytesMax, 'a')),
          {"connections", talk.Take()},
          {"long_answer", long_talk.Take()}};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 requests of metrics
const Registration registration({"http", Run, Seeds});

}  // namespace terrace::fuzz::http
