#include "daemon/metrics/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/ip/v6_only.hpp>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

using asio::ip::tcp;

// Until another try, when descriptors have run out, or nobody can be spared.
constexpr std::chrono::milliseconds kPause{20};
constexpr int kUnreadPiecesMax = 16;
constexpr std::string_view kHeadEnd = "\r\n\r\n";

std::string HeadOf(const HttpAnswer& answer) {
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " ";
  head += HttpReason(answer.status);
  head += "\r\nContent-Type: ";
  head += answer.content_type;
  head += "\r\nContent-Length: " + std::to_string(answer.body.size());
  // The page is of one piece, and nobody else's; what it may load is said, and that is nothing.
  head +=
      "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
      "\r\nX-Frame-Options: DENY\r\nContent-Security-Policy: default-src 'none'; "
      "script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
      "img-src data:\r\n\r\n";
  return head;
}

}  // namespace

class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(HttpServer& server, tcp::socket socket)
      : server_(&server), socket_(std::move(socket)), patience_(socket_.get_executor()) {}

  void Begin() {
    AwaitPeer(server_->limits_.ask_max);
    Read();
  }
  // From when on another may have its place: since when its other end has been waited for, or until
  // when it may wait for its answer.
  Clock::time_point spared_until() const { return spared_until_; }
  // It is not the server's any more; what still holds it finds a closed socket.
  void End() {
    server_ = nullptr;
    asio::error_code ignored;
    patience_.cancel();
    socket_.close(ignored);
  }

 private:
  void WaitAtMost(std::chrono::milliseconds limit) {
    patience_.expires_after(limit);
    patience_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->Leave();
    });
  }
  void AwaitPeer(std::chrono::milliseconds limit) {
    spared_until_ = Clock::now();
    WaitAtMost(limit);
  }

  void Read() {
    socket_.async_read_some(
        asio::buffer(piece_),
        [self = shared_from_this()](const asio::error_code& error, size_t byte_count) {
          if (self->server_ == nullptr) return;
          if (error) return self->Leave();
          self->OnRead(byte_count);
        });
  }

  void OnRead(size_t byte_count) {
    const size_t looked_at = asked_.size() - std::min(asked_.size(), kHeadEnd.size() - 1);
    asked_.append(piece_.data(), byte_count);
    const size_t end = asked_.find(kHeadEnd, looked_at);
    if (end == asked_.npos && asked_.size() <= kHttpHeadBytesMax) return Read();
    spared_until_ = Clock::now() + server_->limits_.spared;
    answer_due_ = Clock::now() + server_->limits_.answer_max;
    WaitAtMost(server_->limits_.answer_max);
    const auto answer = [self = shared_from_this()](HttpAnswer answered) {
      if (self->server_ != nullptr) self->Send(std::move(answered));
    };
    HttpRequest request;
    const uint32_t refused =
        end == asked_.npos
            ? 431
            : ReadHttpRequest(std::string_view(asked_).substr(0, end + kHeadEnd.size()),
                              server_->limits_.only_local, &request);
    if (refused != 0) {
      return answer({.status = refused, .body = HttpRefusal(refused)});
    }
    is_head_ = request.is_head;
    server_->handler_(request, answer);
  }

  void Send(HttpAnswer answered) {
    answer_ = HeadOf(answered);
    if (!is_head_) answer_ += answered.body;
    Write();
  }

  // Piece by piece, as the other end takes them.
  void Write() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(answer_due_ - Clock::now());
    AwaitPeer(std::min(left, server_->limits_.stall_max));
    socket_.async_write_some(
        asio::buffer(answer_) + written_count_,
        [self = shared_from_this()](const asio::error_code& error, size_t byte_count) {
          if (self->server_ == nullptr) return;
          self->written_count_ += byte_count;
          if (error || self->written_count_ == self->answer_.size()) return self->Leave();
          self->Write();
        });
  }

  void Leave() {
    if (server_ == nullptr) return;
    // What is unread when a connection is closed would destroy the answer on its way.
    asio::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    socket_.non_blocking(true, ignored);
    for (int i = 0; i < kUnreadPiecesMax && !ignored; ++i) {
      socket_.read_some(asio::buffer(piece_), ignored);
    }
    HttpServer& server = *server_;
    const auto self = shared_from_this();
    End();
    server.connections_.remove(self);
    server.Admit();
  }

  HttpServer* server_;  // null: it has ended
  tcp::socket socket_;
  asio::steady_timer patience_;
  std::array<char, 2048> piece_;
  std::string asked_;
  std::string answer_;
  size_t written_count_ = 0;
  Clock::time_point spared_until_{};
  Clock::time_point answer_due_{};
  bool is_head_ = false;
};

HttpServer::HttpServer(asio::io_context& loop, const HttpLimits& limits, Handler handler)
    : limits_(limits), handler_(std::move(handler)), acceptor_(loop), pause_(loop) {}

HttpServer::~HttpServer() {
  for (const std::shared_ptr<Connection>& connection : connections_) connection->End();
}

asio::error_code HttpServer::Bind(const ListenAddress& address) {
  asio::error_code error;
  const tcp::endpoint endpoint(asio::ip::make_address(address.host, error), address.port);
  if (error) return error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && address.is_v6) acceptor_.set_option(asio::ip::v6_only(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  // Whoever comes is accepted at once, and Accept says who goes: in a short queue the kernel would
  // let a probe wait a second for its next try.
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  asio::error_code ignored;
  if (error) {
    acceptor_.close(ignored);
    return error;
  }
  Accept();
  return error;
}

asio::error_code HttpServer::Adopt(int socket_fd) {
  asio::error_code error;
  fcntl(socket_fd, F_SETFD, FD_CLOEXEC);
  int family = AF_INET;
  socklen_t family_bytes = sizeof(family);
  getsockopt(socket_fd, SOL_SOCKET, SO_DOMAIN, &family, &family_bytes);
  acceptor_.assign(family == AF_INET6 ? tcp::v6() : tcp::v4(), socket_fd, error);
  if (!error) Accept();
  return error;
}

void HttpServer::Accept() {
  acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      pause_.expires_after(kPause);
      pause_.async_wait([this](const asio::error_code& cancelled) {
        if (!cancelled) Accept();
      });
      return;
    }
    fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    TERRACE_CHECK(!newcomer_, "who waits for a place would be hung up on by the next");
    newcomer_ = std::move(socket);
    Admit();
  });
}

void HttpServer::Admit() {
  if (!newcomer_) return;
  if (connections_.size() >= limits_.connections_max && !MakeRoom()) {
    pause_.expires_after(kPause);
    pause_.async_wait([this](const asio::error_code& cancelled) {
      if (!cancelled) Admit();
    });
    return;
  }
  connections_.push_back(
      std::make_shared<Connection>(*this, *std::exchange(newcomer_, std::nullopt)));
  connections_.back()->Begin();
  Accept();
}

bool HttpServer::MakeRoom() {
  TERRACE_CHECK(!connections_.empty(), "connections_max is 1 at least: with 0 nobody has a place");
  const auto slowest = std::ranges::min_element(
      connections_, {}, [](const auto& connection) { return connection->spared_until(); });
  if ((*slowest)->spared_until() > Connection::Clock::now()) return false;
  (*slowest)->End();
  connections_.erase(slowest);
  return true;
}

}  // namespace terrace
