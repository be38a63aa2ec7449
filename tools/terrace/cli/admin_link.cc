#include "tools/terrace/cli/admin_link.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace terrace::tools {

using protocol::FrameHeader;

std::unique_ptr<AdminLink> AdminLink::Open(const DaemonAddress& address) {
  std::unique_ptr<AdminLink> link;
  std::string why;
  if (!Connect(address, &link, &why).ok()) {
    Fail(why);
    return nullptr;
  }
  return link;
}

bool AdminLink::Lives(const DaemonAddress& address) {
  std::unique_ptr<AdminLink> link;
  std::string why;
  return Connect(address, &link, &why).code() != StatusCode::kIo;
}

Status AdminLink::Connect(const DaemonAddress& address, std::unique_ptr<AdminLink>* link,
                          std::string* why) {
  const std::string path = address.path();
  const Status no_connection(StatusCode::kIo, "nobody has answered");
  if (*why = WhyNobodyListens(path); !why->empty()) return no_connection;
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  link->reset(new AdminLink(fd, address.timeout_ms));
  const timeval limit{.tv_sec = static_cast<time_t>(address.timeout_ms / 1000),
                      .tv_usec = static_cast<suseconds_t>(address.timeout_ms % 1000 * 1000)};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // connect() waits for room, too
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    *why = fmt::format("cannot connect to {}: {}", path, std::strerror(errno));
    return no_connection;
  }
  const Status hello = (*link)->Hello();
  if (hello.code() == StatusCode::kIo) {
    *why = fmt::format(
        "no handshake with the daemon on {}: {}. If it hangs or is starting, see its "
        "log (`journalctl -u terraced`)",
        path, (*link)->why_);
  } else if (!hello.ok()) {
    *why = fmt::format("terraced at {} refused this client: {}", path, (*link)->why_);
  }
  return hello;
}

AdminLink::~AdminLink() {
  if (fd_ >= 0) close(fd_);
}

Status AdminLink::Hello() {
  // It maps nothing, whatever it may do.
  protocol::HelloRequest hello{.flags = protocol::kHelloReader,
                               .pid = static_cast<uint32_t>(getpid())};
  std::string_view("terrace").copy(hello.client_name, sizeof(hello.client_name) - 1);
  const auto body = Ask(protocol::Verb::kHello, std::as_bytes(std::span(&hello, 1)));
  if (!body.ok()) return body.status();
  protocol::HelloReply reply;
  if (body->size() != sizeof(reply)) return Broken("its Hello has another size: another release?");
  std::memcpy(&reply, body->data(), sizeof(reply));
  std::copy(std::begin(reply.secret), std::end(reply.secret), secret_.begin());
  key_hash_ = static_cast<KeyHash>(reply.key_hash);
  reply.domain_name[sizeof(reply.domain_name) - 1] = '\0';
  domain_name_ = reply.domain_name;
  return Status::Ok();
}

Result<std::vector<std::byte>> AdminLink::Ask(protocol::Verb verb,
                                              std::span<const std::byte> body) {
  why_.clear();
  deadline_ = std::chrono::steady_clock::now() + timeout_;
  TERRACE_RETURN_IF_ERROR(Send(verb, body));
  std::vector<std::byte> answer;
  TERRACE_RETURN_IF_ERROR(Receive(&answer));
  protocol::ReplyPrefix prefix;
  if (answer.size() < sizeof(prefix)) return Broken("the answer is too short");
  std::memcpy(&prefix, answer.data(), sizeof(prefix));
  answer.erase(answer.begin(), answer.begin() + sizeof(prefix));
  if (prefix.status == 0) return answer;
  why_.assign(reinterpret_cast<const char*>(answer.data()), answer.size());
  return Status(
      prefix.status < kStatusCodeCount ? static_cast<StatusCode>(prefix.status) : StatusCode::kIo,
      "the daemon refused the request");
}

Status AdminLink::Broken(std::string why) {
  why_ = std::move(why);
  return Status(StatusCode::kIo, "the connection failed");
}

Status AdminLink::Send(protocol::Verb verb, std::span<const std::byte> body) {
  ++request_id_;
  do {
    constexpr size_t kBodyBytesMax = protocol::kFrameBytesMax - sizeof(FrameHeader);
    const std::span<const std::byte> page = body.first(std::min(body.size(), kBodyBytesMax));
    body = body.subspan(page.size());
    const FrameHeader header{
        .frame_bytes = static_cast<uint32_t>(sizeof(FrameHeader) + page.size()),
        .verb = verb,
        .flags = body.empty() ? uint16_t{0} : protocol::kFrameMore,
        .request_id = request_id_};
    std::vector<std::byte> frame(sizeof(header) + page.size());
    std::memcpy(frame.data(), &header, sizeof(header));
    std::copy(page.begin(), page.end(), frame.begin() + sizeof(header));
    for (std::span<const std::byte> left = frame; !left.empty();) {
      TERRACE_RETURN_IF_ERROR(Await(POLLOUT));
      const ssize_t sent = send(fd_, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (sent <= 0) return Broken(fmt::format("sending failed: {}", std::strerror(errno)));
      left = left.subspan(static_cast<size_t>(sent));
    }
  } while (!body.empty());
  return Status::Ok();
}

Status AdminLink::Receive(std::vector<std::byte>* body) {
  while (true) {
    FrameHeader header;
    TERRACE_RETURN_IF_ERROR(ReceiveBytes(std::as_writable_bytes(std::span(&header, 1))));
    if (header.frame_bytes < sizeof(header) || header.frame_bytes > protocol::kFrameBytesMax) {
      return Broken(fmt::format("the answer is a frame of {} bytes", header.frame_bytes));
    }
    std::vector<std::byte> page(header.frame_bytes - sizeof(header));
    TERRACE_RETURN_IF_ERROR(ReceiveBytes(page));
    // Anything else is news that nobody here waits for; request id 0 says why nobody is served.
    if (header.request_id != request_id_ && header.request_id != 0) continue;
    if (body->size() + page.size() > protocol::kMessageBytesMax) {
      return Broken("the answer is longer than any message");
    }
    body->insert(body->end(), page.begin(), page.end());
    if ((header.flags & protocol::kFrameMore) == 0) return Status::Ok();
  }
}

Status AdminLink::ReceiveBytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    // The descriptors that come with Hello are of no use here: without room for them they go.
    TERRACE_RETURN_IF_ERROR(Await(POLLIN));
    const ssize_t received = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (received == 0) return Broken("the daemon closed the connection");
    if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (received < 0) return Broken(fmt::format("receiving failed: {}", std::strerror(errno)));
    bytes = bytes.subspan(static_cast<size_t>(received));
  }
  return Status::Ok();
}

Status AdminLink::Await(short events) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    pollfd waited{.fd = fd_, .events = events, .revents = 0};
    const int ready = left.count() > 0 ? poll(&waited, 1, static_cast<int>(left.count())) : 0;
    if (ready > 0) return Status::Ok();
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return Broken(fmt::format("poll failed: {}", std::strerror(errno)));
    if (goes_on_ && goes_on_()) {
      deadline_ = std::chrono::steady_clock::now() + timeout_;
      continue;
    }
    return Broken(
        fmt::format("the daemon did not answer within {} ms: if it is busy, raise --timeout-ms",
                    timeout_.count()));
  }
}

}  // namespace terrace::tools
