// HttpServer: answers GET and HEAD of a few small documents. Each connection is one request and one
// answer; whoever is slow loses it, and cannot keep others away: of more connections than there may
// be the oldest that has not finished asking is closed.
//
// THREADING: the thread that runs `loop`. LIMITS: HttpLimits.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/config/listen_address.h"
#include "daemon/metrics/http_request.h"

namespace terrace {

struct HttpLimits {
  bool only_local = true;  // see ReadHttpRequest
  uint32_t connections_max = 16;
  std::chrono::milliseconds ask_max{5'000};      // from connecting to the end of the request's head
  std::chrono::milliseconds answer_max{15'000};  // from there until the answer has been taken
};

struct HttpAnswer {
  uint32_t status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";  // a literal
  std::string body;
};

class HttpServer {
 public:
  // Calls `answer` once, now or later, on the server's thread. The server outlives the call.
  using Answer = std::function<void(HttpAnswer answer)>;
  using Handler = std::function<void(const HttpRequest& request, Answer answer)>;

  HttpServer(asio::io_context& loop, const HttpLimits& limits, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens at the address, or says what went wrong. Again after a failure, if wanted.
  asio::error_code Bind(const ListenAddress& address);
  // Takes over a socket that listens.
  asio::error_code Adopt(int socket_fd);

  size_t connection_count() const { return connections_.size(); }

 private:
  class Connection;
  using Connections = std::list<std::shared_ptr<Connection>>;  // in the order they came

  void Accept();
  void MakeRoom();

  const HttpLimits limits_;
  const Handler handler_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  Connections connections_;
};

}  // namespace terrace
