// A client that speaks frames by hand, so that it can also speak them wrongly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/protocol.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace::test {

struct RawReply {
  protocol::FrameHeader header;
  protocol::ReplyPrefix prefix;
  std::vector<std::byte> body;  // behind the prefix, all pages

  StatusCode status() const { return static_cast<StatusCode>(prefix.status); }
  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
  // The struct at `offset_bytes` of the body; zeros if the body is shorter.
  template <typename T>
  T At(size_t offset_bytes = 0) const {
    T value{};
    if (offset_bytes + sizeof(T) <= body.size()) {
      __builtin_memcpy(&value, body.data() + offset_bytes, sizeof(T));
    }
    return value;
  }
};

class RawClient {
 public:
  RawClient() = default;
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Connect(const std::string& socket_path);
  // Goes on with a socket that another process has connected.
  void Adopt(int fd) { fd_ = fd; }
  // Connects and says Hello; keeps the descriptors that come with the reply.
  bool Attach(const std::string& socket_path, uint16_t hello_flags = 0);
  // Opens a group of one member with slots of `slot_bytes`; returns its handle, 0 on failure.
  uint32_t Open(const std::string& name, uint64_t slot_bytes);

  void SendBytes(std::span<const std::byte> bytes);
  // Sends one message, paged as needed; returns its request id.
  uint64_t Send(protocol::Verb verb, std::span<const std::byte> body);
  // Sends a key verb.
  uint64_t SendKeys(protocol::Verb verb, uint32_t group_handle, std::span<const BlockKey> keys);
  // The next whole message, or nothing at the end of the connection or the deadline.
  std::optional<RawReply> Receive();
  RawReply Call(protocol::Verb verb, std::span<const std::byte> body);
  RawReply CallKeys(protocol::Verb verb, uint32_t group_handle, std::span<const BlockKey> keys);

  // What the last refused Open or Attach said.
  const std::string& last_text() const { return last_text_; }
  int fd() const { return fd_; }
  // True once the daemon has ended the connection.
  bool IsEnded();
  const protocol::HelloReply& hello() const { return hello_; }
  const std::vector<int>& received_fds() const { return received_fds_; }
  void CloseControl();
  void CloseLife();

 private:
  bool ReadExactly(void* to, size_t size_bytes);

  int fd_ = -1;
  uint64_t next_request_id_ = 1;
  std::string last_text_;
  protocol::HelloReply hello_;
  std::vector<int> received_fds_;  // arena memfds, the life socket, the notice page if asked for
};

// Reserves `keys` of a group of one member and one part, then commits every slot that was given.
protocol::CommitReply Store(RawClient& client, uint32_t group_handle,
                            std::span<const BlockKey> keys);

// A chain of `count` keys that nobody else uses.
std::vector<BlockKey> MakeKeys(size_t count, uint64_t seed);

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

}  // namespace terrace::test
