#include "daemon/socket/refused_peers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "daemon/session/frame_codec.h"
#include "terrace/check.h"

namespace terrace {

void RefusedPeers::TurnAway(int socket_fd, Status status, std::string why) {
  TERRACE_CHECK(!status.ok(), "whom nothing is wrong with is served");
  const uint64_t number = next_number_++;
  auto waiting = std::make_unique<Waiting>(loop_);
  asio::error_code error;
  waiting->socket.assign(asio::local::stream_protocol(), socket_fd, error);
  if (error) {
    close(socket_fd);  // the kernel does not watch it: its peer sees the end without a sentence
    return;
  }
  waiting->status = status;
  waiting->why = std::move(why);
  Waiting& entry = *waiting;
  waiting_.emplace(number, std::move(waiting));
  if (waiting_.size() > kWaitingMax) return Answer(number);
  entry.socket.async_wait(asio::socket_base::wait_read,
                          [this, number](const asio::error_code& error) {
                            if (!error) Answer(number);
                          });
  entry.patience.expires_after(kWait);
  entry.patience.async_wait([this, number](const asio::error_code& error) {
    if (!error) Answer(number);
  });
}

void RefusedPeers::Answer(uint64_t number) {
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;
  const std::unique_ptr<Waiting> entry = std::move(found->second);
  waiting_.erase(found);
  const int fd = entry->socket.native_handle();
  protocol::FrameHeader asked;
  const bool has_asked =
      recv(fd, &asked, sizeof(asked), MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(asked));
  Reply reply;
  reply.Begin(protocol::Verb::kHello, has_asked ? asked.request_id : 0, boot_id_, entry->status);
  reply.AddText(entry->why);
  std::vector<std::byte> frame;
  reply.AppendPage(&frame);
  (void)send(fd, frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // What the peer has sent already must be read, or closing destroys our sentence.
  shutdown(fd, SHUT_RDWR);
  std::byte unread[4096];
  while (recv(fd, unread, sizeof(unread), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace terrace
