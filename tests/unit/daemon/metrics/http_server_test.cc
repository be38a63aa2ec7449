#include "daemon/metrics/http_server.h"

#include <gmock/gmock.h>

#include <asio/executor_work_guard.hpp>
#include <thread>

#include "tests/unit/daemon/metrics/visitor.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

using test::ListenAnywhere;
using test::Visitor;

class HttpServerTest : public testing::Test {
 protected:
  void Serve(const HttpLimits& limits, std::string body = "text") {
    server_ = std::make_unique<HttpServer>(
        loop_, limits, [body](const HttpRequest& request, HttpServer::Answer answer) {
          if (request.path == "/never") return;
          answer({.body = request.path + body});
        });
    const int fd = ListenAnywhere(&port_);
    ASSERT_FALSE(server_->Adopt(fd));
    thread_ = std::thread([this] {
      const auto work = asio::make_work_guard(loop_);
      loop_.run();
    });
  }
  ~HttpServerTest() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }
  std::string Ask(std::string_view text) {
    Visitor visitor(port_);
    visitor.Say(text);
    return visitor.Hear();
  }

  asio::io_context loop_{1};
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  uint16_t port_ = 0;
};

TEST_F(HttpServerTest, ARequestIsAnsweredAndTheConnectionEnds) {
  Serve({});
  const std::string answer = Ask(kGet);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 12\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n/metricstext"));
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n")) << "no body of a HEAD";
}

TEST_F(HttpServerTest, ARequestMayComeByteByByte) {
  Serve({});
  Visitor visitor(port_);
  for (const char byte : std::string_view(kGet)) visitor.Say({&byte, 1});
  EXPECT_THAT(visitor.Hear(), EndsWith("/metricstext"));
}

TEST_F(HttpServerTest, ALongAnswerArrivesWhole) {
  Serve({}, std::string(8 << 20, 'x'));
  EXPECT_GT(Ask(kGet).size(), size_t{8} << 20);
}

TEST_F(HttpServerTest, WhatIsRefusedIsToldWhy) {
  Serve({});
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), StartsWith("HTTP/1.1 421"));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /" + std::string(20'000, 'a')), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpServerTest, WhoIsSlowToAskLosesTheConnection) {
  Serve({.ask_max = milliseconds(50)});
  Visitor visitor(port_);
  visitor.Say("GET /metrics HTT");
  EXPECT_EQ(visitor.Hear(), "");
}

TEST_F(HttpServerTest, WhoIsNotAnsweredInTimeLosesTheConnection) {
  Serve({.answer_max = milliseconds(50)});
  EXPECT_EQ(Ask("GET /never HTTP/1.1\r\n\r\n"), "");
}

// As many as there may be, which ask a byte a while, and never finish.
TEST_F(HttpServerTest, SlowOnesKeepNobodyAway) {
  constexpr uint32_t kMax = 4;
  Serve({.connections_max = kMax, .ask_max = milliseconds(60'000)});
  std::vector<std::unique_ptr<Visitor>> slow;
  for (uint32_t i = 0; i < 3 * kMax; ++i) {
    slow.push_back(std::make_unique<Visitor>(port_));
    slow.back()->Say("GET /m");
    EXPECT_THAT(Ask(kGet), EndsWith("/metricstext"));
  }
  EXPECT_EQ(slow.front()->Hear(), "") << "the oldest made room";
}

TEST_F(HttpServerTest, APortThatIsTakenIsSaidAndNothingElse) {
  uint16_t port = 0;
  const int fd = ListenAnywhere(&port);
  HttpServer server(loop_, {}, [](const HttpRequest&, const HttpServer::Answer&) {});
  const ListenAddress address{.host = "127.0.0.1", .port = port};
  EXPECT_EQ(server.Bind(address), asio::error::address_in_use);
  close(fd);
  EXPECT_FALSE(server.Bind(address)) << "and again, once it is free";
}

}  // namespace
}  // namespace terrace
