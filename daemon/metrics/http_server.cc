#include "daemon/metrics/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/ip/v6_only.hpp>
#include <asio/write.hpp>
#include <utility>

namespace terrace {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kPause{100};  // when descriptors have run out
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
  Connection(HttpServer& server, tcp::socket socket)
      : server_(&server), socket_(std::move(socket)), patience_(socket_.get_executor()) {}

  void Begin() {
    WaitAtMost(server_->limits_.ask_max);
    Read();
  }
  bool has_asked() const { return has_asked_; }
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
    has_asked_ = true;
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
      return answer({.status = refused, .body = std::string(HttpReason(refused)) + "\n"});
    }
    is_head_ = request.is_head;
    server_->handler_(request, answer);
  }

  void Send(HttpAnswer answered) {
    head_ = HeadOf(answered);
    body_ = is_head_ ? std::string() : std::move(answered.body);
    asio::async_write(
        socket_, std::array<asio::const_buffer, 2>{asio::buffer(head_), asio::buffer(body_)},
        [self = shared_from_this()](const asio::error_code&, size_t) { self->Leave(); });
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
    Connections& all = server_->connections_;
    const auto self = shared_from_this();
    End();
    all.remove(self);
  }

  HttpServer* server_;  // null: it has ended
  tcp::socket socket_;
  asio::steady_timer patience_;
  std::array<char, 2048> piece_;
  std::string asked_;
  std::string head_, body_;
  bool has_asked_ = false;
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
    MakeRoom();
    if (connections_.size() < limits_.connections_max) {
      connections_.push_back(std::make_shared<Connection>(*this, std::move(socket)));
      connections_.back()->Begin();
    }
    Accept();
  });
}

void HttpServer::MakeRoom() {
  if (connections_.size() < limits_.connections_max) return;
  const auto slow = std::ranges::find_if(
      connections_, [](const auto& connection) { return !connection->has_asked(); });
  if (slow == connections_.end()) return;  // the new one goes
  (*slow)->End();
  connections_.erase(slow);
}

}  // namespace terrace
