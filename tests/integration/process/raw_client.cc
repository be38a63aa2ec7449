#include "integration/process/raw_client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace terrace::test {
namespace {

constexpr int kDeadlineMs = 30'000;
constexpr size_t kPageBytes = protocol::kFrameBytesMax - sizeof(protocol::FrameHeader);

template <typename T>
void Append(std::vector<std::byte>* bytes, const T& value) {
  const auto view = BytesOf(value);
  bytes->insert(bytes->end(), view.begin(), view.end());
}

// What Call answers when nothing came: no status at all.
RawReply NoReply() {
  RawReply reply;
  reply.prefix.status = 0xFF;
  return reply;
}

}  // namespace

RawClient::~RawClient() {
  CloseControl();
  for (const int fd : received_fds_) close(fd);
}

void RawClient::CloseControl() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void RawClient::CloseLife() {
  close(received_fds_.back());
  received_fds_.pop_back();
}

bool RawClient::Connect(const std::string& socket_path) {
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  std::strcpy(address.sun_path, socket_path.c_str());
  return connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

bool RawClient::Attach(const std::string& socket_path, uint16_t hello_flags) {
  if (!Connect(socket_path)) return false;
  protocol::HelloRequest hello;
  hello.flags = hello_flags;
  std::strcpy(hello.client_name, "raw");
  const RawReply reply = Call(protocol::Verb::kHello, BytesOf(hello));
  hello_ = reply.At<protocol::HelloReply>();
  last_text_ = reply.text();
  return reply.status() == StatusCode::kOk;
}

uint32_t RawClient::Open(const std::string& name, uint64_t slot_bytes) {
  SpaceSpec spec{.model = "m",
                 .revision = "r",
                 .dtype = "bf16",
                 .layers = 1,
                 .kv_heads = 1,
                 .head_size = 64,
                 .layout = "nhd",
                 .block_tokens = 16,
                 .part_bytes = {slot_bytes}};
  const std::string text = spec.CanonicalText();
  std::vector<std::byte> body;
  Append(&body,
         protocol::OpenRequest{
             .name_bytes = static_cast<uint32_t>(name.size()), .member_count = 1, .self_mask = 1});
  const auto append_text = [&body](const std::string& bytes) {
    const auto view = std::as_bytes(std::span(bytes));
    body.insert(body.end(), view.begin(), view.end());
  };
  append_text(name);
  Append(&body, protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())});
  append_text(text);
  const RawReply reply = Call(protocol::Verb::kOpen, body);
  last_text_ = reply.text();
  return reply.status() == StatusCode::kOk ? reply.At<protocol::OpenReply>().group_handle : 0;
}

void RawClient::SendBytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

uint64_t RawClient::Send(protocol::Verb verb, std::span<const std::byte> body) {
  const uint64_t request_id = next_request_id_++;
  do {
    const auto page = body.first(std::min(body.size(), kPageBytes));
    body = body.subspan(page.size());
    std::vector<std::byte> frame;
    Append(&frame, protocol::FrameHeader{.frame_bytes = static_cast<uint32_t>(
                                             sizeof(protocol::FrameHeader) + page.size()),
                                         .verb = verb,
                                         .flags = body.empty() ? uint16_t{0} : protocol::kFrameMore,
                                         .request_id = request_id});
    frame.insert(frame.end(), page.begin(), page.end());
    SendBytes(frame);
  } while (!body.empty());
  return request_id;
}

uint64_t RawClient::SendKeys(protocol::Verb verb, uint32_t group_handle,
                             std::span<const BlockKey> keys) {
  std::vector<std::byte> body;
  Append(&body, protocol::KeysRequest{.group_handle = group_handle,
                                      .key_count = static_cast<uint32_t>(keys.size())});
  const auto view = std::as_bytes(keys);
  body.insert(body.end(), view.begin(), view.end());
  return Send(verb, body);
}

bool RawClient::ReadExactly(void* to, size_t size_bytes) {
  auto* at = static_cast<std::byte*>(to);
  while (size_bytes > 0) {
    pollfd poll_fd{.fd = fd_, .events = POLLIN};
    if (poll(&poll_fd, 1, kDeadlineMs) != 1) return false;
    iovec piece{at, size_bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
    msghdr message{.msg_iov = &piece, .msg_iovlen = 1};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      const size_t had = received_fds_.size();
      received_fds_.resize(had + count);
      std::memcpy(received_fds_.data() + had, CMSG_DATA(c), count * sizeof(int));
    }
    at += got;
    size_bytes -= static_cast<size_t>(got);
  }
  return true;
}

std::optional<RawReply> RawClient::Receive() {
  RawReply reply;
  std::vector<std::byte> message;
  do {
    if (!ReadExactly(&reply.header, sizeof(reply.header))) return std::nullopt;
    const size_t had = message.size();
    message.resize(had + reply.header.frame_bytes - sizeof(reply.header));
    if (!ReadExactly(message.data() + had, message.size() - had)) return std::nullopt;
  } while ((reply.header.flags & protocol::kFrameMore) != 0);
  if (message.size() < sizeof(reply.prefix)) return std::nullopt;
  std::memcpy(&reply.prefix, message.data(), sizeof(reply.prefix));
  reply.body.assign(message.begin() + sizeof(reply.prefix), message.end());
  return reply;
}

RawReply RawClient::Call(protocol::Verb verb, std::span<const std::byte> body) {
  Send(verb, body);
  return Receive().value_or(NoReply());
}

RawReply RawClient::CallKeys(protocol::Verb verb, uint32_t group_handle,
                             std::span<const BlockKey> keys) {
  SendKeys(verb, group_handle, keys);
  return Receive().value_or(NoReply());
}

bool RawClient::IsEnded() {
  pollfd poll_fd{.fd = fd_, .events = POLLIN};
  if (poll(&poll_fd, 1, kDeadlineMs) != 1) return false;
  std::byte byte;
  return recv(fd_, &byte, 1, MSG_PEEK) <= 0;
}

protocol::CommitReply Store(RawClient& client, uint32_t group_handle,
                            std::span<const BlockKey> keys) {
  const RawReply reserved = client.CallKeys(protocol::Verb::kReserve, group_handle, keys);
  EXPECT_EQ(reserved.status(), StatusCode::kOk) << reserved.text();
  const auto head = reserved.At<protocol::ReserveReply>();
  const size_t slots_at = sizeof(head) + head.key_count * sizeof(protocol::ReservedKey);
  std::vector<std::byte> body;
  const auto append = [&body](const auto& value) {
    const auto view = BytesOf(value);
    body.insert(body.end(), view.begin(), view.end());
  };
  append(protocol::CommitRequest{
      .token = head.token, .entry_count = head.slot_count, .flags = protocol::kCommitRelease});
  uint32_t slot = 0;
  for (uint32_t i = 0; i < head.key_count; ++i) {
    const auto key =
        reserved.At<protocol::ReservedKey>(sizeof(head) + i * sizeof(protocol::ReservedKey));
    if (key.status != 0) continue;
    const auto ref = reserved.At<SlotRef>(slots_at + slot++ * sizeof(SlotRef));
    append(protocol::CommitEntry{.key_index = i,
                                 .part_count = 1,
                                 .row = ref.row,
                                 .segment = ref.address.segment,
                                 .generation = ref.generation});
  }
  EXPECT_EQ(slot, head.slot_count);
  const RawReply committed = client.Call(protocol::Verb::kCommit, body);
  EXPECT_EQ(committed.status(), StatusCode::kOk) << committed.text();
  return committed.At<protocol::CommitReply>();
}

std::vector<BlockKey> MakeKeys(size_t count, uint64_t seed) {
  std::vector<BlockKey> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = {.low = seed * 1'000'003 + i + 1, .high = seed};
  return keys;
}

}  // namespace terrace::test
