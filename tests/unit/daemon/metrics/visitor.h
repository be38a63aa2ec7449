// Who asks over HTTP in tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace terrace::test {

// A TCP socket that listens at a port of this host of the kernel's choice, or at `*port` if not 0.
inline int ListenAnywhere(uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(*port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t byte_count = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), byte_count), 0);
  EXPECT_EQ(listen(fd, 64), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &byte_count);
  *port = ntohs(address.sin_port);
  return fd;
}

class Visitor {
 public:
  explicit Visitor(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Visitor() { close(fd_); }
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;

  bool is_connected() const { return is_connected_; }
  void Say(std::string_view text) { (void)send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // What has come, at most so much as the first piece: waits for something. Empty: the other end
  // has closed.
  std::string HearSome() {
    char piece[4096];
    const ssize_t count = recv(fd_, piece, sizeof(piece), 0);
    return {piece, static_cast<size_t>(count < 0 ? 0 : count)};
  }
  // All there is until the other end closes.
  std::string Hear() {
    std::string heard;
    char piece[4096];
    for (ssize_t count; (count = recv(fd_, piece, sizeof(piece), 0)) > 0;) {
      heard.append(piece, static_cast<size_t>(count));
    }
    return heard;
  }

 private:
  const int fd_;
  bool is_connected_ = false;
};

struct HttpReply {
  uint32_t status = 0;  // 0: nobody answered
  std::string body;
};

inline HttpReply Get(uint16_t port, const std::string& target) {
  Visitor visitor(port);
  if (!visitor.is_connected()) return {};
  visitor.Say("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string heard = visitor.Hear();
  const size_t end = heard.find("\r\n\r\n");
  if (end == heard.npos) return {};
  return {.status = static_cast<uint32_t>(std::stoul(heard.substr(9, 3))),
          .body = heard.substr(end + 4)};
}

}  // namespace terrace::test
