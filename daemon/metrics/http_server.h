// HttpServer: answers GET and HEAD of a few small documents. Each connection is one request and one
// answer; whoever is slow loses it, and cannot keep others away: where all places are taken, a
// newcomer has that of the connection whose other end has been waited for longest, be it for the
// rest of its request or to take its answer. One that waits for its answer is spared for a while;
// where all are, the newcomer waits.
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
#include <optional>
#include <string>
#include <string_view>

#include "daemon/config/listen_address.h"
#include "daemon/metrics/http_request.h"

namespace terrace {

struct HttpLimits {
  bool only_local = true;  // see ReadHttpRequest
  uint32_t connections_max = 16;
  std::chrono::milliseconds ask_max{5'000};      // from connecting to the end of the request's head
  std::chrono::milliseconds spared{1'500};       // while its answer is being found
  std::chrono::milliseconds stall_max{2'000};    // without a byte of the answer being taken
  std::chrono::milliseconds answer_max{15'000};  // from having asked until the answer was taken
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
  // Gives the newcomer a place if there is one, or somebody can be spared. No other is accepted
  // before.
  void Admit();
  bool MakeRoom();

  const HttpLimits limits_;
  const Handler handler_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  Connections connections_;
  std::optional<asio::ip::tcp::socket> newcomer_;
};

}  // namespace terrace
