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

// As many as there may be, which ask for more than a socket holds, and do not read.
TEST_F(HttpServerTest, OnesThatDoNotReadKeepNobodyAway) {
  constexpr uint32_t kMax = 4;
  Serve({.connections_max = kMax,
         .stall_max = milliseconds(60'000),
         .answer_max = milliseconds(60'000)},
        std::string(16 << 20, 'x'));
  std::vector<std::unique_ptr<Visitor>> deaf;
  for (uint32_t i = 0; i < 3 * kMax; ++i) {
    deaf.push_back(std::make_unique<Visitor>(port_));
    deaf.back()->Say(kGet);
    ASSERT_THAT(deaf.back()->HearSome(), StartsWith("HTTP/1.1 200")) << i;
  }
  EXPECT_GT(Ask(kGet).size(), size_t{16} << 20) << "beside them another has its answer, whole";
  EXPECT_LT(deaf.front()->Hear().size(), size_t{16} << 20) << "the oldest made room";
}

TEST_F(HttpServerTest, WhoTakesNothingLosesTheConnectionAndWhoIsSlowDoesNot) {
  Serve({.stall_max = milliseconds(400)}, std::string(16 << 20, 'x'));
  Visitor deaf(port_), slow(port_);
  deaf.Say(kGet);
  slow.Say(kGet);
  size_t heard_bytes = 0;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    for (int piece = 0; piece < 200; ++piece) heard_bytes += slow.HearSome().size();
  }
  EXPECT_GT(std::chrono::steady_clock::now() - began, milliseconds(800)) << "longer than a stall";
  EXPECT_GT(heard_bytes + slow.Hear().size(), size_t{16} << 20);
  EXPECT_LT(deaf.Hear().size(), size_t{16} << 20);
}

// Who waits for an answer is spared for a while; who comes meanwhile waits, and is not turned away.
TEST_F(HttpServerTest, OnesThatWaitForTheirAnswerAreSparedForAWhile) {
  constexpr uint32_t kMax = 4;
  Serve({.connections_max = kMax, .spared = milliseconds(500)});
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Visitor>> waiting;
  for (uint32_t i = 0; i < kMax; ++i) {
    waiting.push_back(std::make_unique<Visitor>(port_));
    waiting.back()->Say("GET /never HTTP/1.1\r\n\r\n");
  }
  EXPECT_THAT(Ask(kGet), EndsWith("/metricstext"));
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(took, milliseconds(500));
  EXPECT_LT(took, milliseconds(5'000));
  EXPECT_EQ(waiting.front()->Hear(), "");
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
