#include "daemon/kv_event_publisher.h"

#include <endian.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "daemon/kv_event_codec.h"
#include "daemon/log.h"

namespace terrace {
namespace {

constexpr size_t kEventsPerMessageMax = 512;
constexpr int kIoThreads = 1;
// Routers that all begin at once are told once.
constexpr std::chrono::seconds kBetweenRepublications{5};
constexpr uint64_t kEndOfReplay = UINT64_MAX;

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

uint64_t MonotonicUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, HOST_NAME_MAX);
  return name;
}

void Replace(std::string_view name, const std::string& value, std::string* text) {
  for (size_t at = 0; (at = text->find(name, at)) != std::string::npos; at += value.size()) {
    text->replace(at, name.size(), value);
  }
}

}  // namespace

struct KvEventPublisher::Sockets {
  zmq::context_t context{kIoThreads};
  zmq::socket_t events{context, zmq::socket_type::pub};
  zmq::socket_t replay{context, zmq::socket_type::router};
  int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

  ~Sockets() { close(wake_fd); }
};

KvEventPublisher::KvEventPublisher(const DaemonConfig& config, std::function<void()> republish)
    : config_(config.kv_events),
      republish_(std::move(republish)),
      host_name_(HostName()),
      queue_(kQueueMax) {
  for (const DomainConfig& domain : config.domains) domain_names_.push_back(domain.name);
}

KvEventPublisher::~KvEventPublisher() {
  if (!thread_.joinable()) return;
  is_ending_.store(true);
  Wake();
  thread_.join();
}

Status KvEventPublisher::Start(std::string* why) {
  sockets_ = std::make_unique<Sockets>();
  const auto bind = [why](zmq::socket_t& socket, const char* key, const std::string& endpoint) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndhwm, kMessagesPerSubscriberMax);
    try {
      socket.bind(endpoint);
      return Status::Ok();
    } catch (const zmq::error_t& error) {
      *why = std::string("kv_events.") + key + " is '" + endpoint + "', which cannot be bound (" +
             error.what() +
             "): name tcp://*:PORT with a free port, or ipc:// and a path whose "
             "directory exists";
      return Status(StatusCode::kInvalid, "an endpoint of KV events cannot be bound");
    }
  };
  TERRACE_RETURN_IF_ERROR(bind(sockets_->events, "endpoint", config_.endpoint));
  if (!config_.replay_endpoint.empty()) {
    TERRACE_RETURN_IF_ERROR(bind(sockets_->replay, "replay_endpoint", config_.replay_endpoint));
  }
  thread_ = std::thread([this] { Run(); });
  return Status::Ok();
}

// ---- the store thread ----

std::string KvEventPublisher::TopicOf(uint32_t domain_index, const std::string& model) const {
  std::string topic = config_.topic;
  Replace("{host}", host_name_, &topic);
  Replace("{domain}", domain_names_[domain_index], &topic);
  Replace("{model}", model, &topic);
  return topic;
}

uint32_t KvEventPublisher::StreamOf(uint32_t domain_index, const SpaceGroupSpec& spec) {
  const Stream stream{.topic = TopicOf(domain_index, spec.members[0].spec.model),
                      .block_tokens = spec.block_tokens()};
  const std::lock_guard guard(streams_mutex_);
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].topic == stream.topic && streams_[i].block_tokens == stream.block_tokens) {
      return i;
    }
  }
  if (streams_.size() == kStreamsMax) {
    Log(LogLevel::kWarn, "kv events",
        {{"why", "more models than streams: routers do not hear of this one's blocks"},
         {"topic", stream.topic},
         {"streams_max", kStreamsMax}});
    return kStreamNone;
  }
  streams_.push_back(stream);
  return static_cast<uint32_t>(streams_.size() - 1);
}

bool KvEventPublisher::HasRoom(size_t event_count) const {
  const uint64_t waiting =
      added_count_.load(std::memory_order_relaxed) - taken_count_.load(std::memory_order_acquire);
  return waiting + event_count <= kQueueMax;
}

void KvEventPublisher::Publish(std::span<const KvEvent> events) {
  if (has_lost_.load(std::memory_order_acquire) || !HasRoom(events.size())) {
    lost_count_.fetch_add(events.size(), std::memory_order_relaxed);
    has_lost_.store(true, std::memory_order_release);
    return;
  }
  uint64_t place = added_count_.load(std::memory_order_relaxed);
  for (const KvEvent& event : events) queue_[place++ % kQueueMax] = event;
  added_count_.store(place);
  if (is_asleep_.load()) Wake();
}

void KvEventPublisher::Wake() {
  is_asleep_.store(false);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(sockets_->wake_fd, &one, sizeof(one));
}

KvEventCounters KvEventPublisher::counters() const {
  return {.events = event_count_.load(),
          .messages = next_sequence_.load(),
          .lost = lost_count_.load(),
          .replays = replay_count_.load(),
          .republications = republication_count_.load()};
}

// ---- the publisher's thread ----

const KvEventPublisher::Stream& KvEventPublisher::StreamAt(uint32_t stream) const {
  const std::lock_guard guard(streams_mutex_);
  return streams_[stream];
}

void KvEventPublisher::Run() {
  try {
    while (!is_ending_.load()) Turn();
  } catch (const zmq::error_t& error) {
    Log(LogLevel::kError, "kv events have ended",
        {{"why", error.what()}, {"remedy", "restart terraced; blocks are served all the same"}});
  }
}

// Sends what there is, then sleeps until there is more or somebody asks for a replay.
void KvEventPublisher::Turn() {
  const bool was_busy = SendSome();
  if (!was_busy && has_lost_.load(std::memory_order_acquire)) TakeBack();
  std::array<zmq::pollitem_t, 2> items = {
      zmq::pollitem_t{nullptr, sockets_->wake_fd, ZMQ_POLLIN, 0},
      zmq::pollitem_t{sockets_->replay.handle(), 0, ZMQ_POLLIN, 0}};
  is_asleep_.store(true);
  const bool has_more = added_count_.load() != taken_count_.load();
  // Interrupted by a signal it is as if nothing had come.
  if (zmq_poll(items.data(), static_cast<int>(items.size()), has_more ? 0 : -1) < 0) return;
  is_asleep_.store(false);
  uint64_t count = 0;
  if (items[0].revents != 0) {
    [[maybe_unused]] const ssize_t got = read(sockets_->wake_fd, &count, sizeof(count));
  }
  if (items[1].revents != 0) Replay();
}

bool KvEventPublisher::SendSome() {
  const uint64_t added = added_count_.load(std::memory_order_acquire);
  uint64_t taken = taken_count_.load(std::memory_order_relaxed);
  if (added == taken) return false;
  std::vector<KvEvent> events;
  while (taken < added && events.size() < kEventsPerMessageMax &&
         (events.empty() || queue_[taken % kQueueMax].stream == events[0].stream)) {
    events.push_back(queue_[taken++ % kQueueMax]);
  }
  taken_count_.store(taken, std::memory_order_release);
  event_count_.fetch_add(events.size(), std::memory_order_relaxed);
  const Stream& stream = StreamAt(events[0].stream);
  Send(events[0].stream,
       EncodeKvEvents(events, stream.block_tokens, config_.encoding, UnixSeconds()));
  return true;
}

// Some events were lost. Routers forget all, and hear of all there is.
void KvEventPublisher::TakeBack() {
  uint32_t stream_count = 0;
  {
    const std::lock_guard guard(streams_mutex_);
    stream_count = static_cast<uint32_t>(streams_.size());
  }
  for (uint32_t stream = 0; stream < stream_count; ++stream) {
    Send(stream, EncodeKvCleared(config_.encoding, UnixSeconds()));
  }
  has_lost_.store(false, std::memory_order_release);
  republication_count_.fetch_add(1, std::memory_order_relaxed);
  republish_();
}

void KvEventPublisher::Send(uint32_t stream, std::string payload) {
  const uint64_t sequence = next_sequence_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t wire_sequence = htobe64(sequence);
  const std::string& topic = StreamAt(stream).topic;
  const std::array<zmq::const_buffer, 3> frames = {
      zmq::buffer(topic), zmq::buffer(&wire_sequence, sizeof(uint64_t)), zmq::buffer(payload)};
  zmq::send_multipart(sockets_->events, frames);
  kept_bytes_ += payload.size();
  kept_.push_back({.sequence = sequence, .stream = stream, .payload = std::move(payload)});
  while (kept_.size() > config_.replay_batches || kept_bytes_ > kReplayBytesMax) {
    kept_bytes_ -= kept_.front().payload.size();
    kept_.pop_front();
  }
}

// [who, "", first sequence] is answered by every message kept from there on, and a last one.
void KvEventPublisher::Replay() {
  std::vector<zmq::message_t> request;
  if (!zmq::recv_multipart(sockets_->replay, std::back_inserter(request),
                           zmq::recv_flags::dontwait)) {
    return;
  }
  if (request.size() != 3 || request[2].size() != sizeof(uint64_t)) return;
  uint64_t first = 0;
  std::memcpy(&first, request[2].data(), sizeof(first));
  first = be64toh(first);
  replay_count_.fetch_add(1, std::memory_order_relaxed);
  const auto answer = [&](const std::string& topic, uint64_t sequence, const std::string& payload) {
    const uint64_t wire_sequence = htobe64(sequence);
    const std::array<zmq::const_buffer, 5> frames = {
        zmq::buffer(request[0].data(), request[0].size()), zmq::const_buffer{}, zmq::buffer(topic),
        zmq::buffer(&wire_sequence, sizeof(wire_sequence)), zmq::buffer(payload)};
    zmq::send_multipart(sockets_->replay, frames, zmq::send_flags::dontwait);
  };
  for (const Kept& kept : kept_) {
    if (kept.sequence >= first) answer(StreamAt(kept.stream).topic, kept.sequence, kept.payload);
  }
  answer("", kEndOfReplay, "");
  const bool has_all = kept_.empty() ? first >= next_sequence_.load() : first >= kept_[0].sequence;
  const uint64_t now_us = MonotonicUs();
  const auto pause_us = std::chrono::microseconds(kBetweenRepublications).count();
  if (has_all || (republished_us_ != 0 && now_us < republished_us_ + pause_us)) return;
  republished_us_ = now_us;
  republication_count_.fetch_add(1, std::memory_order_relaxed);
  republish_();
}

}  // namespace terrace
