#include "client/session/handshake.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace terrace::client {
namespace {

constexpr const char* kSameRelease =
    "update libterrace or terraced so that both are of one release";
constexpr size_t kFdsPerMessageMax = 253;  // the kernel's own limit

// What a person does about a failed connect.
const char* RemedyFor(int error) {
  switch (error) {
    case ENOENT:
      return "is terraced running, and is that its domain's socket?";
    case ECONNREFUSED:
      return "nobody listens there: start terraced";
    case ENOTSOCK:
      return "socket_path is to name its domain's socket, which terraced makes";
    case EPERM:
      return "this user may not: add it to the socket's group, or ask for a domain of its own";
    case EAGAIN:
      return "too many clients are connecting at once: it is tried again";
    default:
      return "check socket_path and terraced's log";
  }
}

// The kernel refuses a connection to anything else as one to a socket at which nobody listens.
bool IsNoSocket(const std::string& path) {
  struct stat facts {};
  return stat(path.c_str(), &facts) == 0 && !S_ISSOCK(facts.st_mode);
}

// Who may open what this user may not. By number: names would have to be looked up in files and
// services, from a thread of somebody else's process.
std::string RemedyForDenied(const std::string& socket_path) {
  std::string path = socket_path;
  struct stat facts {};
  while (stat(path.c_str(), &facts) != 0) {  // in a directory that this user may not enter
    const size_t slash = path.rfind('/');
    if (errno != EACCES || slash == path.npos || slash == 0) return RemedyFor(EPERM);
    path.resize(slash);
  }
  const bool is_directory = S_ISDIR(facts.st_mode);
  const bool lets_group_in = (facts.st_mode & (is_directory ? S_IXGRP : S_IWGRP)) != 0;
  const std::string gid = std::to_string(facts.st_gid);
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(facts.st_mode & 07777));
  std::string remedy =
      "add the user to group " + gid + " (`getent group " + gid + "` names it) and log in anew";
  if (!lets_group_in) {
    remedy = std::string("let its group in (chmod ") + (is_directory ? "g+x" : "g+w") +
             "), with the user in it";
  } else if (facts.st_gid == 0) {
    remedy = "run terraced under a group of its own, and add the user to that";
  }
  return "uid " + std::to_string(geteuid()) +
         " may not: " + (is_directory ? "directory " : "socket ") + path + " is of uid " +
         std::to_string(facts.st_uid) + " and gid " + gid + ", mode " + mode + "; " + remedy +
         ", or ask for a domain of its own";
}

std::string Quoted(std::span<const std::byte> text) {
  const size_t bytes = std::min<size_t>(text.size(), protocol::kErrorTextBytesMax);
  return std::string(reinterpret_cast<const char*>(text.data()), bytes);
}

// As many as there is room for; the rest are closed.
void TakeFds(const msghdr& message, std::vector<GuardedFd>* fds) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&message), control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(fd));
      GuardedFd guarded(fd);
      if (fds->size() < fds->capacity()) fds->push_back(std::move(guarded));
    }
  }
}

}  // namespace

bool Handshake::Refuse(Status status, std::string text, Refusal* refusal) const {
  refusal->status = status;
  refusal->text = std::move(text);
  return false;
}

bool Handshake::Run(Refusal* refusal) { return Connect(refusal) && Hello(refusal); }

bool Handshake::Connect(Refusal* refusal) {
  int error = 0;
  {
    FdCreation creation;
    socket_ = GuardedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = errno;
  }
  if (!socket_.is_open()) {
    return Refuse(Status(StatusCode::kIo, "no socket", error),
                  std::string("no descriptor for a socket: ") + std::strerror(error) +
                      "; raise this process's descriptor limit",
                  refusal);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, options_.socket_path.data(), options_.socket_path.size());
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return true;
  }
  error = errno;
  if (error == ECONNREFUSED && IsNoSocket(options_.socket_path)) error = ENOTSOCK;
  refusal->is_final = error == EACCES || error == EPERM || error == ENOTDIR ||
                      error == EPROTOTYPE || error == ENOTSOCK;
  return Refuse(Status(StatusCode::kIo, "the daemon's socket cannot be connected to", error),
                "cannot connect to " + options_.socket_path + ": " + std::strerror(error) + "; " +
                    (error == EACCES ? RemedyForDenied(options_.socket_path) : RemedyFor(error)),
                refusal);
}

bool Handshake::Hello(Refusal* refusal) {
  protocol::HelloRequest request;
  request.flags = protocol::kHelloNotices | protocol::kHelloReader;
  request.pid = static_cast<uint32_t>(getpid());
  std::memcpy(request.client_name, options_.client_name.data(),
              std::min(options_.client_name.size(), sizeof(request.client_name) - 1));
  Outgoing message;
  message.verb = protocol::Verb::kHello;
  message.request_id = next_request_id_++;
  message.parts[0] = BytesOf(request);
  Message answer;
  if (!Send(message, refusal) || !Receive(&answer, refusal)) return false;
  // Who is turned away before it has asked is told so under request id 0.
  const bool is_turned_away = answer.request_id == 0 && !answer.status().ok();
  if (answer.verb != message.verb || (answer.request_id != message.request_id && !is_turned_away)) {
    return Refuse(Status(StatusCode::kUnsupported, "the peer does not answer Hello"),
                  options_.socket_path + " answers Hello with verb " +
                      std::to_string(static_cast<int>(answer.verb)) +
                      ": is it terraced's socket? If so, " + kSameRelease,
                  refusal);
  }
  refusal->is_final = true;
  if (!answer.status().ok()) {
    return Refuse(answer.status(),
                  "terraced at " + options_.socket_path + " refused this client: " +
                      (answer.body.empty() ? std::string(StatusCodeName(answer.status().code()))
                                           : Quoted(answer.body)),
                  refusal);
  }
  Attachment::Granted granted;
  BodyReader body(answer.body);
  if (!body.Read(&granted.reply) || granted.reply.version < protocol::kVersionMin ||
      granted.reply.version > protocol::kVersion) {
    return Refuse(Status(StatusCode::kUnsupported, "no common frame version"),
                  "terraced at " + options_.socket_path + " speaks frame version " +
                      std::to_string(granted.reply.version) + "; this library speaks " +
                      std::to_string(protocol::kVersionMin) + " to " +
                      std::to_string(protocol::kVersion) + ": " + kSameRelease,
                  refusal);
  }
  granted.boot_id = answer.prefix.boot_id;
  if (fds_.size() == granted.reply.node_count + 2u) {
    notices_ = std::move(fds_.back());
    fds_.pop_back();
  }
  granted.fds = std::move(fds_);
  std::string why;
  Result<std::shared_ptr<Attachment>> attachment = Attachment::Create(std::move(granted), &why);
  if (!attachment.ok()) return Refuse(attachment.status(), std::move(why), refusal);
  attachment_ = std::move(attachment).value();
  reader_.set_frame_bytes_max(attachment_->geometry().frame_bytes_max);
  refusal->is_final = false;
  return true;
}

bool Handshake::Open(Group& group, uint32_t connection, Refusal* refusal) {
  Outgoing message;
  message.verb = protocol::Verb::kOpen;
  message.request_id = next_request_id_++;
  message.parts[0] = group.open_body();
  Message answer;
  if (!Ask(message, &answer, refusal)) return false;
  if (answer.request_id != message.request_id || answer.verb != message.verb ||
      answer.prefix.boot_id != attachment_->boot_id()) {
    return Refuse(
        Status(StatusCode::kUnsupported, "the answers are out of order"),
        "terraced answered Open with another request's answer: " + std::string(kSameRelease),
        refusal);
  }
  if (!answer.status().ok()) {
    refusal->status = answer.status();
    refusal->text =
        "terraced does not open SpaceGroup " + group.name() + " again: " + Quoted(answer.body);
    return true;
  }
  const Result<uint32_t> handle = group.DecodeOpenReply(answer.body, &refusal->text);
  refusal->status = handle.status();
  if (handle.ok()) group.Bind(connection, *handle);
  return true;
}

bool Handshake::AttachDevice(std::string_view device_name, Refusal* refusal) {
  protocol::DeviceAttachRequest request;
  device_name.copy(request.device, sizeof(request.device) - 1);
  Outgoing message;
  message.verb = protocol::kVerbDeviceAttach;
  message.request_id = next_request_id_++;
  message.parts[0] = BytesOf(request);
  Message answer;
  fds_.clear();
  if (!Ask(message, &answer, refusal)) return false;
  if (!answer.status().ok()) {
    refusal->status = answer.status();
    refusal->text = "terraced gives this client no device memory: " + Quoted(answer.body);
    return true;
  }
  protocol::DeviceAttachReply reply;
  if (answer.verb != message.verb || !BodyReader(answer.body).Read(&reply)) {
    return Refuse(Status(StatusCode::kUnsupported, "the answers are out of order"),
                  "terraced answered DeviceAttach with another request's answer: " +
                      std::string(kSameRelease),
                  refusal);
  }
  refusal->status = attachment_->GrantSlabs(
      reply, std::move(fds_), {.device = options_.device, .name = std::string(device_name)},
      &refusal->text);
  return true;
}

bool Handshake::Ask(const Outgoing& message, Message* answer, Refusal* refusal) {
  if (!Send(message, refusal)) return false;
  while (Receive(answer, refusal)) {
    if (answer->verb == protocol::Verb::kSegmentRevoke) {
      if (!AcknowledgeRevoke(*answer, refusal)) return false;
    } else if (answer->verb < protocol::Verb::kCompletion &&
               (answer->request_id & kUnawaitedSlot) != kUnawaitedSlot) {
      return true;
    }
  }
  return false;
}

// Nothing is mapped yet.
bool Handshake::AcknowledgeRevoke(const Message& message, Refusal* refusal) {
  protocol::SegmentRevoke revoke;
  if (!BodyReader(message.body).Read(&revoke)) return true;
  const protocol::UnmappedRequest unmapped{.segment = revoke.segment};
  Outgoing acknowledgement;
  acknowledgement.verb = protocol::Verb::kUnmapped;
  acknowledgement.request_id = next_request_id_++ << 16 | kUnawaitedSlot;
  acknowledgement.parts[0] = BytesOf(unmapped);
  return Send(acknowledgement, refusal);
}

bool Handshake::Send(const Outgoing& message, Refusal* refusal) {
  const uint64_t deadline_us = MonotonicUs() + kAnswerUsMax;
  FrameSender sender(attachment_ == nullptr ? protocol::kFrameBytesMax
                                            : attachment_->geometry().frame_bytes_max);
  Status status = sender.Send(socket_.get(), message, protocol::kMessageBytesMax);
  while (status.ok() && sender.unsent_bytes() > 0) {
    if (!WaitFor(POLLOUT, deadline_us, refusal)) return false;
    if (sender.Flush(socket_.get()).code() == StatusCode::kGone) {
      status = Status(StatusCode::kGone, "the daemon closed the connection");
    }
  }
  return status.ok() || Refuse(status,
                               "terraced at " + options_.socket_path +
                                   " closed the connection during the handshake: see its log",
                               refusal);
}

bool Handshake::Receive(Message* message, Refusal* refusal) {
  const uint64_t deadline_us = MonotonicUs() + kAnswerUsMax;
  while (true) {
    std::string why;
    switch (reader_.Take(message, &why)) {
      case FrameReader::Next::kMessage:
        return true;
      case FrameReader::Next::kGarbled:
        refusal->is_final = true;
        return Refuse(Status(StatusCode::kUnsupported, "the peer does not speak frames"),
                      options_.socket_path + ": " + why, refusal);
      case FrameReader::Next::kNeedsBytes:
        if (!WaitFor(POLLIN, deadline_us, refusal) || !ReceiveBytes(deadline_us, refusal)) {
          return false;
        }
    }
  }
}

bool Handshake::ReceiveBytes(uint64_t deadline_us, Refusal* refusal) {
  const std::span<std::byte> space = reader_.WritableSpace();
  fds_.reserve(kFdsPerMessageMax);
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessageMax * sizeof(int))];
  iovec iov{space.data(), space.size()};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t received = 0;
  int error = 0;
  {
    FdCreation creation;
    received = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    error = errno;
    if (received >= 0) TakeFds(header, &fds_);
  }
  if (received > 0) {
    reader_.Advance(static_cast<size_t>(received));
    return true;
  }
  if (received < 0 && (error == EAGAIN || error == EINTR) && MonotonicUs() < deadline_us) {
    return true;
  }
  return Refuse(Status(StatusCode::kGone, "the daemon closed the connection"),
                "terraced at " + options_.socket_path +
                    " closed the connection during the handshake without a word: it is stopping, "
                    "or this user connects faster than it admits (its log says so): keep "
                    "connections open",
                refusal);
}

bool Handshake::WaitFor(short events, uint64_t deadline_us, Refusal* refusal) const {
  while (!stopping_.load()) {
    const uint64_t now_us = MonotonicUs();
    if (now_us >= deadline_us) break;
    pollfd entries[2] = {{socket_.get(), events, 0}, {wake_fd_, POLLIN, 0}};
    const int count = poll(entries, 2, static_cast<int>((deadline_us - now_us + 999) / 1'000));
    if (count <= 0) continue;
    // First: a daemon that sends a byte at a time keeps nobody else waiting.
    if (entries[1].revents != 0) {
      eventfd_t ignored;
      eventfd_read(wake_fd_, &ignored);
      on_wake_();
    }
    if (entries[0].revents != 0) return true;
  }
  return Refuse(Status(StatusCode::kBusy, "the daemon does not answer"),
                "terraced at " + options_.socket_path + " did not answer the handshake within " +
                    std::to_string(kAnswerUsMax / 1'000'000) +
                    " s: it is stopped or starting, or that is no terraced",
                refusal);
}

}  // namespace terrace::client
