#include "daemon/metrics/http_request.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

uint32_t Read(const std::string& head, HttpRequest* request, bool only_local = true) {
  return ReadHttpRequest(head, only_local, request);
}
uint32_t StatusOf(const std::string& head, bool only_local = true) {
  HttpRequest request;
  return Read(head, &request, only_local);
}

TEST(HttpRequest, PathAndQueryAreReadOfGetAndHead) {
  HttpRequest request;
  EXPECT_EQ(Read("GET /page.json?domain=a&b HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n", &request),
            0u);
  EXPECT_EQ(request.path, "/page.json");
  EXPECT_EQ(request.query, "domain=a&b");
  EXPECT_FALSE(request.is_head);
  EXPECT_EQ(Read("HEAD / HTTP/1.0\r\n\r\n", &request), 0u);
  EXPECT_EQ(request.path, "/");
  EXPECT_EQ(request.query, "");
  EXPECT_TRUE(request.is_head);
}

TEST(HttpRequest, WhatIsNoRequestIsRefused) {
  EXPECT_EQ(StatusOf("\r\n\r\n"), 400u);
  EXPECT_EQ(StatusOf("GET\r\n\r\n"), 400u);
  EXPECT_EQ(StatusOf("GET metrics HTTP/1.1\r\n\r\n"), 400u);
  EXPECT_EQ(StatusOf("GET http://elsewhere/ HTTP/1.1\r\n\r\n"), 400u);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHo\x01st: x\r\n\r\n"), 400u);
  EXPECT_EQ(StatusOf(std::string("GET /\0 HTTP/1.1\r\n\r\n", 20)), 400u);
  EXPECT_EQ(StatusOf("GET / HTTP/2.0\r\n\r\n"), 505u);
  EXPECT_EQ(StatusOf("PUT / HTTP/1.1\r\n\r\n"), 405u);
  EXPECT_EQ(StatusOf("DELETE / HTTP/1.1\r\n\r\n"), 405u);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), 413u);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 413u);
  EXPECT_EQ(StatusOf("GET /" + std::string(kHttpHeadBytesMax, 'a') + " HTTP/1.1\r\n\r\n"), 431u);
}

TEST(HttpRequest, OfTwoHostsNeitherIsBelieved) {
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"), 400u);
}

// A name that anybody can have point here is not this host's.
TEST(HttpRequest, OnlyAddressesAndLocalhostAreThisHost) {
  const auto of_host = [](const std::string& host, bool only_local = true) {
    return StatusOf("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n", only_local);
  };
  for (const char* host : {"localhost", "localhost:9464", "127.0.0.1", "10.1.2.3:80", "[::1]:9464",
                           "[::1]", "", "localhost:"}) {
    EXPECT_EQ(of_host(host), 0u) << host;
  }
  for (const char* host : {"evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[::1",
                           "[evil]", "localhost.evil.example", "[::1].evil.example", "[::1]evil",
                           "localhost:9464.evil.example", ":evil.example"}) {
    EXPECT_EQ(of_host(host), 421u) << host;
    EXPECT_EQ(of_host(host, false), 0u) << host;
  }
}

}  // namespace
}  // namespace terrace
