#include "unit/client/scripted_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "terrace/check.h"

namespace terrace {
namespace {

using protocol::FrameHeader;
using protocol::Verb;

constexpr uint32_t kSlotPages = 4;
constexpr auto kPatience = std::chrono::seconds(10);

bool ReadAll(int fd, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t count = recv(fd, to.data(), to.size(), 0);
    if (count <= 0) return false;
    to = to.subspan(static_cast<size_t>(count));
  }
  return true;
}

// A whole message; false at the end of the stream.
bool ReadMessage(int fd, PeerMessage* message) {
  message->body.clear();
  while (true) {
    FrameHeader header;
    if (!ReadAll(fd, std::as_writable_bytes(std::span(&header, 1)))) return false;
    const size_t before = message->body.size();
    message->body.resize(before + header.frame_bytes - sizeof(header));
    if (!ReadAll(fd, std::span(message->body).subspan(before))) return false;
    message->verb = header.verb;
    message->request_id = header.request_id;
    if ((header.flags & protocol::kFrameMore) == 0) return true;
  }
}

}  // namespace

ScriptedDaemon::ScriptedDaemon(const Options& options)
    : options_(options), boot_id_(options.boot_id) {
  directory_ = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
  TERRACE_CHECK(mkdtemp(directory_.data()) != nullptr, "a test needs a directory");
  socket_path_ = (std::filesystem::path(directory_) / "s").string();
  const auto arena_bytes = static_cast<off_t>(options.segment_bytes * options.segments_max);
  arena_fd_ = memfd_create("scripted", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  TERRACE_CHECK(ftruncate(arena_fd_, arena_bytes) == 0, "a test needs memory");
  if (options.is_sealed) fcntl(arena_fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  arena_ = static_cast<std::byte*>(mmap(nullptr, static_cast<size_t>(arena_bytes),
                                        PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd_, 0));
  notices_fd_ = memfd_create("notices", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  TERRACE_CHECK(ftruncate(notices_fd_, kNoticePageBytes) == 0, "a test needs memory");
  notices_ = static_cast<NoticePage*>(
      mmap(nullptr, kNoticePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, notices_fd_, 0));
  notices_->magic = kNoticeMagic;
  if (options.notices == Options::Notices::kSealed) {
    fcntl(notices_fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  }
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  TERRACE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                    listen(listener_, 16) == 0,
                "a test needs a socket");
  thread_ = std::thread([this] { Run(); });
}

ScriptedDaemon::~ScriptedDaemon() {
  is_stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  Disconnect();
  thread_.join();
  for (const int life : lives_) close(life);
  close(listener_);
  close(arena_fd_);
  munmap(arena_, options_.segment_bytes * options_.segments_max);
  close(notices_fd_);
  munmap(notices_, kNoticePageBytes);
  std::filesystem::remove_all(directory_);
}

void ScriptedDaemon::set_handler(Handler handler) {
  const std::lock_guard guard(mutex_);
  handler_ = std::move(handler);
}

void ScriptedDaemon::Run() {
  while (!is_stopping_) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    {
      const std::lock_guard guard(mutex_);
      connection_ = fd;
      ++connection_count_;
    }
    if (!is_stopping_) Serve(fd);
    const std::lock_guard sending(send_mutex_);
    const std::lock_guard guard(mutex_);
    connection_ = -1;
    close(fd);
  }
}

void ScriptedDaemon::Serve(int fd) {
  PeerMessage message;
  while (ReadMessage(fd, &message)) {
    const std::lock_guard reading(reading_mutex_);
    Handler handler;
    {
      const std::lock_guard guard(mutex_);
      received_.push_back(message);
      handler = handler_;
    }
    changed_.notify_all();
    if (handler != nullptr && handler(*this, message)) continue;
    if (message.verb == Verb::kHello) {
      SayHello(fd, message);
    } else {
      AnswerAsUsual(message);
    }
  }
}

void ScriptedDaemon::SayHello(int fd, const PeerMessage& message) {
  int life[2];
  TERRACE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life) == 0, "out of sockets");
  protocol::HelloReply reply;
  reply.session_id = connection_count_;
  reply.version = protocol::kVersion;
  reply.node_count = 1;
  reply.segment_bytes = options_.segment_bytes;
  reply.segments_max = reply.segments_per_node = options_.segments_max;
  reply.lease_ttl_ms = options_.lease_ttl_ms;
  BodyBuilder body;
  body.Add(reply);
  std::vector<std::byte> frames =
      Frames(Verb::kHello, message.request_id, StatusCode::kOk, body.bytes());
  const bool has_notices = options_.notices != Options::Notices::kNone &&
                           (message.Head<protocol::HelloRequest>().flags & protocol::kHelloNotices);
  const int to_read = open(("/proc/self/fd/" + std::to_string(arena_fd_)).c_str(), O_RDONLY);
  const int fds[3] = {options_.is_to_read ? to_read : arena_fd_, life[1], notices_fd_};
  const size_t fds_bytes = (has_notices ? 3 : 2) * sizeof(int);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
  iovec iov{frames.data(), frames.size()};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(fds_bytes);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fds_bytes);
  std::memcpy(CMSG_DATA(rights), fds, fds_bytes);
  sendmsg(fd, &header, MSG_NOSIGNAL);
  close(life[1]);
  close(to_read);
  const std::lock_guard guard(mutex_);
  lives_.push_back(life[0]);
  changed_.notify_all();
}

std::vector<std::byte> ScriptedDaemon::Frames(Verb verb, uint64_t request_id, StatusCode status,
                                              std::span<const std::byte> body,
                                              size_t frame_bytes_max) const {
  BodyBuilder whole;
  protocol::ReplyPrefix prefix;
  prefix.boot_id = boot_id_;
  prefix.status = static_cast<uint8_t>(status);
  whole.Add(prefix);
  std::vector<std::byte> rest = whole.bytes();
  rest.insert(rest.end(), body.begin(), body.end());
  std::vector<std::byte> frames;
  size_t sent = 0;
  do {
    const size_t piece = std::min(rest.size() - sent, frame_bytes_max - sizeof(FrameHeader));
    FrameHeader header;
    header.frame_bytes = static_cast<uint32_t>(piece + sizeof(header));
    header.verb = verb;
    header.request_id = request_id;
    header.flags = sent + piece < rest.size() ? protocol::kFrameMore : 0;
    const auto header_bytes = std::as_bytes(std::span(&header, 1));
    frames.insert(frames.end(), header_bytes.begin(), header_bytes.end());
    frames.insert(frames.end(), rest.begin() + static_cast<ptrdiff_t>(sent),
                  rest.begin() + static_cast<ptrdiff_t>(sent + piece));
    sent += piece;
  } while (sent < rest.size());
  return frames;
}

void ScriptedDaemon::Answer(const PeerMessage& message, StatusCode status,
                            std::span<const std::byte> body) {
  Tell(message.verb, message.request_id, status, body);
}

void ScriptedDaemon::AnswerAsUsual(const PeerMessage& message) {
  Answer(message, StatusCode::kOk, UsualBody(message));
}

void ScriptedDaemon::Tell(Verb verb, uint64_t request_id, StatusCode status,
                          std::span<const std::byte> body) {
  SendBytes(Frames(verb, request_id, status, body));
}

void ScriptedDaemon::SendBytes(std::span<const std::byte> bytes) {
  const std::lock_guard sending(send_mutex_);
  int fd = -1;
  {
    const std::lock_guard guard(mutex_);
    fd = connection_;
  }
  while (fd >= 0 && !bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

void ScriptedDaemon::Disconnect() {
  const std::lock_guard guard(mutex_);
  if (connection_ >= 0) shutdown(connection_, SHUT_RDWR);
}

void ScriptedDaemon::StopReading(std::function<void()> meanwhile) {
  const std::lock_guard reading(reading_mutex_);
  meanwhile();
}

std::vector<PeerMessage> ScriptedDaemon::Received(Verb verb) {
  const std::lock_guard guard(mutex_);
  std::vector<PeerMessage> found;
  for (const PeerMessage& message : received_) {
    if (message.verb == verb) found.push_back(message);
  }
  return found;
}

bool ScriptedDaemon::WaitFor(Verb verb, size_t count) {
  std::unique_lock guard(mutex_);
  return changed_.wait_for(guard, kPatience, [&] {
    size_t found = 0;
    for (const PeerMessage& message : received_) found += message.verb == verb ? 1 : 0;
    return found >= count;
  });
}

bool ScriptedDaemon::WaitLifeEnds(uint32_t connection) {
  int life = -1;
  {
    // A client may be connected before this thread has noted its life.
    std::unique_lock guard(mutex_);
    if (!changed_.wait_for(guard, kPatience, [&] { return lives_.size() > connection; })) {
      return false;
    }
    life = lives_[connection];
  }
  pollfd entry{life, POLLIN, 0};
  return poll(&entry, 1, 10'000) > 0;
}

bool ScriptedDaemon::IsLifeOver(uint32_t connection) {
  const std::lock_guard guard(mutex_);
  pollfd entry{lives_.at(connection), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

std::vector<std::byte> ScriptedDaemon::OpenBody(const PeerMessage& message) {
  const auto request = message.Head<protocol::OpenRequest>();
  size_t offset = sizeof(request) + request.name_bytes;
  std::vector<protocol::OpenedMember> members;
  SpaceGroupSpec group;
  for (uint32_t i = 0; i < request.member_count; ++i) {
    protocol::OpenMember member;
    std::memcpy(&member, message.body.data() + offset, sizeof(member));
    offset += sizeof(member);
    const std::string text(reinterpret_cast<const char*>(message.body.data() + offset),
                           member.text_bytes);
    offset += member.text_bytes;
    std::string why;
    SpaceSpec spec;
    TERRACE_CHECK(SpaceSpec::Parse(text, &spec, &why).ok(), "clients send canonical texts");
    members.push_back({.space = spec.Id(), .slot_bytes = spec.slot_bytes()});
    group.members.push_back({.spec = spec});
  }
  BodyBuilder body;
  body.Add(protocol::OpenReply{
      .group = group.Id(), .group_handle = 5, .member_count = request.member_count});
  for (const auto& member : members) body.Add(member);
  return body.bytes();
}

std::vector<std::byte> ScriptedDaemon::AcquireBody(uint32_t block_count, uint32_t ready_count,
                                                   protocol::SpanState rest) {
  protocol::AcquireReply reply;
  reply.token = {++last_token_, 7};
  reply.member_mask = 1;
  reply.block_count = reply.slot_count = block_count;
  reply.token_count = block_count * 16;
  std::vector<protocol::BlockSpan> spans;
  if (ready_count > 0) spans.push_back({.first_block = 0, .block_count = ready_count});
  if (ready_count < block_count) {
    spans.push_back(
        {.first_block = ready_count, .block_count = block_count - ready_count, .state = rest});
  }
  reply.span_count = static_cast<uint32_t>(spans.size());
  if (block_count == 0) reply.token = {};
  BodyBuilder body;
  body.Add(reply);
  for (const auto& span : spans) body.Add(span);
  for (uint32_t block = 0; block < block_count; ++block) {
    body.Add(SlotAddress{.segment = 0, .page = block % 100 * kSlotPages});
  }
  return body.bytes();
}

std::vector<std::byte> ScriptedDaemon::ReserveBody(uint32_t key_count) {
  protocol::ReserveReply reply;
  reply.token = {++last_token_, 7};
  reply.member_mask = 1;
  reply.key_count = reply.slot_count = key_count;
  BodyBuilder body;
  body.Add(reply);
  for (uint32_t key = 0; key < key_count; ++key) {
    body.Add(protocol::ReservedKey{.commit_id = 1000 + key});
  }
  for (uint32_t key = 0; key < key_count; ++key) {
    body.Add(SlotRef{
        .address = {.segment = 1, .page = key % 100 * kSlotPages}, .row = key, .generation = 9});
  }
  return body.bytes();
}

std::vector<std::byte> ScriptedDaemon::UsualBody(const PeerMessage& message) {
  const auto keys = message.Head<protocol::KeysRequest>();
  BodyBuilder body;
  switch (message.verb) {
    case Verb::kOpen:
      return OpenBody(message);
    case Verb::kMatch:
    case Verb::kPrefetch:
      body.Add(
          protocol::MatchReply{.block_count = keys.key_count, .token_count = keys.key_count * 16});
      return body.bytes();
    case Verb::kAcquire:
      return AcquireBody(keys.key_count, keys.key_count);
    case Verb::kReserve:
      return ReserveBody(keys.key_count);
    case Verb::kCommit: {
      const auto commit = message.Head<protocol::CommitRequest>();
      body.Add(protocol::CommitReply{.entry_count = commit.entry_count,
                                     .sealed_count = commit.entry_count});
      for (uint32_t i = 0; i < commit.entry_count; ++i) body.Add(uint8_t{0});
      return body.bytes();
    }
    case Verb::kQuery:
      for (uint32_t i = 0; i < keys.key_count; ++i) {
        body.Add(protocol::QueriedBlock{.state = protocol::BlockState::kSealed, .commit_id = i});
      }
      return body.bytes();
    case Verb::kEvict:
      body.Add(protocol::EvictReply{.block_count = keys.key_count});
      return body.bytes();
    case Verb::kPin:
      body.Add(protocol::PinReply{.block_count = keys.key_count});
      return body.bytes();
    case Verb::kStats:
      body.AddText("{}");
      return body.bytes();
    case Verb::kList:
      body.Add(protocol::ListReply{.cursor = 0, .entry_count = 1}).Add(protocol::ListEntry());
      return body.bytes();
    default:
      return {};
  }
}

SpaceGroupSpec TestGroup(uint32_t parts, uint64_t part_bytes) {
  SpaceGroupSpec group;
  group.name = "test";
  SpaceSpec& spec = group.members.emplace_back().spec;
  spec.model = "tiny";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = parts;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.part_bytes.assign(parts, part_bytes);
  return group;
}

std::vector<BlockKey> TestKeys(uint32_t count) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = i + 1, .high = 42});
  return keys;
}

ClientOptions TestOptions(const ScriptedDaemon& daemon) {
  ClientOptions options;
  options.socket_path = daemon.socket_path();
  options.client_name = "unit test";
  options.default_deadline_us = 10'000'000;
  options.reconnect_backoff_ms_max = 1;
  return options;
}

}  // namespace terrace
