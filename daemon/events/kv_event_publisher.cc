#include "daemon/events/kv_event_publisher.h"

#include <endian.h>
#include <ifaddrs.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "daemon/events/ipc_path.h"
#include "daemon/events/kv_event_codec.h"
#include "daemon/log/log.h"
#include "src/thread_name.h"
#include "terrace/check.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;

constexpr size_t kEventsPerMessageMax = 512;
static_assert(kKvBatchBytesMax + kEventsPerMessageMax * kKvEventBytesMax <=
              KvEventPublisher::kMessageBytesMax);
// Of blocks that follow each other most of these fit into one message.
constexpr size_t kAnewAtOnceMax = 16'384;
// So long the events that tell all anew are waited for, and what comes behind them waits.
constexpr uint64_t kHeldUsMax = 2'000'000;
constexpr int kIoThreads = 1;
// Routers that all ask at once are told once.
constexpr uint64_t kBetweenRepublicationsUs = 5'000'000;
constexpr uint64_t kAnswerUsMax = 30'000'000;  // then the store is asked again
constexpr milliseconds kPauseMin{100}, kPauseMax{10'000};
// Without an error for so long the next one is a first one.
constexpr std::chrono::seconds kTroubleEnds{60};
constexpr uint64_t kBetweenLooksAtPathsUs = 2'000'000;
constexpr milliseconds kReplayPause{2};  // for room to send on

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

// systemd's filter drops what it forbids without a word to either end.
void WarnOfAddressFilter(const char* key, const std::string& endpoint) {
  if (std::getenv("INVOCATION_ID") == nullptr || !endpoint.starts_with("tcp://")) return;
  Log(LogLevel::kWarn, "kv events over tcp need an allowed address",
      {{"endpoint", std::string("kv_events.") + key + " = " + endpoint},
       {"why",
        "terraced.service has IPAddressDeny=any, this host's own addresses included: who is "
        "not named in IPAddressAllow= cannot connect, and neither end is told"},
       {"remedy",
        "systemctl edit terraced: [Service] IPAddressAllow= with the routers' addresses, "
        "or localhost for those of this host; or an endpoint of ipc://"}});
}

void Replace(std::string_view name, const std::string& value, std::string* text) {
  for (size_t at = 0; (at = text->find(name, at)) != std::string::npos; at += value.size()) {
    text->replace(at, name.size(), value);
  }
}

// Large ones are mapped: once nobody waits for them their memory is the system's again, whatever
// lies around them in the heap.
constexpr size_t kMappedBytesMin = 16 * kKiB;
zmq::message_t MessageOf(const std::string& payload) {
  const size_t bytes = payload.size();
  if (bytes < kMappedBytesMin) return zmq::message_t(payload.data(), bytes);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  std::memcpy(at, payload.data(), bytes);
  const auto unmap = [](void* data, void* hint) { munmap(data, reinterpret_cast<size_t>(hint)); };
  return zmq::message_t(at, bytes, unmap, reinterpret_cast<void*>(bytes));
}

struct NoInterfaces {};
struct NotFree {
  Status status;
  std::string why;
};

// ZeroMQ ends the process where it cannot list the host's interfaces, among which it looks for
// whatever stands before a port, unless that is *.
void Bind(zmq::socket_t* socket, const std::string& endpoint, IpcPath* path) {
  if (endpoint.starts_with("tcp://") && !endpoint.starts_with("tcp://*")) {
    ifaddrs* interfaces = nullptr;
    if (getifaddrs(&interfaces) != 0) throw NoInterfaces();
    freeifaddrs(interfaces);
  }
  NotFree taken;
  taken.status = path->Take(endpoint, &taken.why);
  if (!taken.status.ok()) throw taken;
  socket->bind(endpoint);
  path->NoteBound();
}

}  // namespace

struct KvEventPublisher::Sockets {
  IpcPath events_path, replay_path;  // until ZeroMQ has removed what it put there
  zmq::context_t context{kIoThreads};
  zmq::socket_t events{context, zmq::socket_type::xpub};  // hears who subscribes
  zmq::socket_t replay{context, zmq::socket_type::router};
  KvEventPeers subscribers{context, events, "endpoint"};
  KvEventPeers askers{context, replay, "replay_endpoint"};

  bool has_path() const { return events_path.is_taken() || replay_path.is_taken(); }
};

KvEventPublisher::KvEventPublisher(const DaemonConfig& config, std::function<void()> republish)
    : config_(config.kv_events),
      republish_(std::move(republish)),
      host_name_(HostName()),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      queue_(kQueueMax),
      numbers_(config.state_dir.empty() ? "" : config.state_dir + "/kv-event-numbers"),
      replay_({.batches_max = config.kv_events.replay_batches,
               .requests_per_peer_max = config.kv_events.replay_requests_max,
               .first_sequence = numbers_.First(static_cast<uint64_t>(UnixSeconds() * 1e6)),
               .cleared = EncodeKvCleared(config.kv_events.encoding, UnixSeconds())}) {
  for (const DomainConfig& domain : config.domains) domain_names_.push_back(domain.name);
}

KvEventPublisher::~KvEventPublisher() {
  if (thread_.joinable()) {
    is_ending_.store(true);
    Wake();
    thread_.join();
  }
  close(wake_fd_);
}

Status KvEventPublisher::OpenSockets(std::string* why) {
  const char* key = "endpoint";
  const std::string* endpoint = &config_.endpoint;
  try {
    auto sockets = std::make_unique<Sockets>();
    for (zmq::socket_t* socket : {&sockets->events, &sockets->replay}) {
      socket->set(zmq::sockopt::linger, 0);
      socket->set(zmq::sockopt::maxmsgsize, kPeerMessageBytesMax);
      socket->set(zmq::sockopt::tcp_keepalive, 1);  // or one that lost its power is there for ever
    }
    sockets->events.set(zmq::sockopt::sndhwm, kMessagesPerSubscriberMax);
    sockets->events.set(zmq::sockopt::rcvhwm, kUnreadSubscriptionsMax);
    sockets->events.set(zmq::sockopt::xpub_verbose, 1);  // of each, whoever else has subscribed
    sockets->replay.set(zmq::sockopt::sndhwm, KvEventReplay::kUnreadMessagesMax);
    sockets->replay.set(zmq::sockopt::rcvhwm, KvEventReplay::kUnreadMessagesMax);
    sockets->replay.set(zmq::sockopt::router_mandatory, true);
    Bind(&sockets->events, *endpoint, &sockets->events_path);
    if (!config_.replay_endpoint.empty()) {
      key = "replay_endpoint";
      endpoint = &config_.replay_endpoint;
      Bind(&sockets->replay, *endpoint, &sockets->replay_path);
    }
    sockets_ = std::move(sockets);
    return Status::Ok();
  } catch (const zmq::error_t& error) {
    const bool may_pass = error.num() == EADDRINUSE || error.num() == EADDRNOTAVAIL;
    *why = std::string("kv_events.") + key + " is '" + *endpoint + "', which cannot be bound (" +
           error.what() +
           "): name tcp://*:PORT with a free port, or ipc:// and a path whose "
           "directory exists";
    return Status(may_pass ? StatusCode::kBusy : StatusCode::kInvalid,
                  "an endpoint of KV events cannot be bound");
  } catch (const NotFree& taken) {
    *why = std::string("kv_events.") + key + " is '" + *endpoint + "': " + taken.why;
    return taken.status;
  } catch (const NoInterfaces&) {
    *why = std::string("kv_events.") + key + " is '" + *endpoint +
           "', and the host's interfaces cannot be listed here (no AF_NETLINK): add AF_NETLINK to "
           "RestrictAddressFamilies= of the unit, or name tcp://*:PORT, or ipc:// and a path";
    return Status(StatusCode::kInvalid, "an endpoint of KV events cannot be looked up");
  }
}

Status KvEventPublisher::Start(std::string* why) {
  // Somebody else's port, or an address that is not there yet: tried again, as after an error.
  const Status opened = OpenSockets(why);
  is_bound_.store(opened.ok());
  if (!opened.ok() && opened.code() != StatusCode::kBusy) return opened;
  WarnOfAddressFilter("endpoint", config_.endpoint);
  WarnOfAddressFilter("replay_endpoint", config_.replay_endpoint);
  thread_ = StartThread("terrace-events", [this] { Run(); });
  return Status::Ok();
}

// ---- the store thread ----

std::string KvEventPublisher::TopicOf(uint32_t domain_index, const std::string& model) const {
  TERRACE_CHECK(domain_index < domain_names_.size(), "events are of a domain");
  std::string topic = config_.topic;
  Replace("{host}", host_name_, &topic);
  Replace("{domain}", domain_names_[domain_index], &topic);
  Replace("{model}", model, &topic);
  return topic;
}

uint32_t KvEventPublisher::StreamOf(uint32_t domain_index, const SpaceGroupSpec& spec) {
  const std::string topic = TopicOf(domain_index, spec.members[0].spec.model);
  // The thread that has ended gives no stream back.
  const uint32_t stream = has_ended_.load(std::memory_order_relaxed)
                              ? kStreamNone
                              : streams_.Open(topic, spec.block_tokens());
  if (stream != kStreamNone) {
    if (is_asleep_.load()) Wake();
    return stream;
  }
  ++untold_groups_;
  uint64_t held_back = 0;
  if (streams_gate_.Open(MonotonicUs(), &held_back)) {
    Log(LogLevel::kWarn, "kv events",
        {{"why", "no stream is left: routers do not hear of this group's blocks"},
         {"topic", topic},
         {"streams_max", KvEventStreams::kStreamsMax},
         {"not_told", held_back}});
  }
  return kStreamNone;
}

void KvEventPublisher::EndStream(uint32_t stream) {
  if (stream == kStreamNone) {
    --untold_groups_;
    return;
  }
  streams_.End(stream, added_count_.load(std::memory_order_relaxed));
  if (is_asleep_.load()) Wake();
}

bool KvEventPublisher::HasRoom(size_t event_count) const {
  if (has_ended_.load(std::memory_order_relaxed)) return true;  // for nobody
  const uint64_t waiting =
      added_count_.load(std::memory_order_relaxed) - taken_count_.load(std::memory_order_acquire);
  return waiting + event_count <= kQueueMax - kRemovalsMax;
}

void KvEventPublisher::Publish(std::span<const KvEvent> events) {
  if (!events.empty() && events.front().stream == kStreamNone) {
    lost_count_.fetch_add(events.size(), std::memory_order_relaxed);
    return;
  }
  uint64_t place = added_count_.load(std::memory_order_relaxed);
  const uint64_t waiting = place - taken_count_.load(std::memory_order_acquire);
  const bool is_lost = has_ended_.load(std::memory_order_relaxed) ||
                       has_lost_.load(std::memory_order_acquire) ||
                       waiting + events.size() > kQueueMax;
  if (is_lost) {
    lost_count_.fetch_add(events.size(), std::memory_order_relaxed);
    has_lost_.store(true);
    if (is_asleep_.load()) Wake();
    return;
  }
  for (const KvEvent& event : events) queue_[place++ % kQueueMax] = event;
  added_count_.store(place);
  if (is_asleep_.load()) Wake();
}

void KvEventPublisher::Wake() {
  is_asleep_.store(false);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

KvEventCounters KvEventPublisher::counters() const {
  return {.is_on = !has_ended_.load() && is_bound_.load(),
          .has_ended = has_ended_.load(),
          .events = event_count_.load(),
          .messages = message_count_.load(),
          .lost = lost_count_.load(),
          .untold_groups = untold_groups_.load(),
          .errors = error_count_.load(),
          .peers_ended = peers_ended_.load(),
          .replays = replay_count_.load(),
          .replays_refused = replays_refused_.load(),
          .replays_abandoned = replays_abandoned_.load(),
          .republications = republication_count_.load()};
}

// ---- the publisher's thread ----

void KvEventPublisher::Run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // a call that a signal ends may leave half a message
  const auto end = [this](const char* why) {
    has_ended_.store(true);
    sockets_.reset();
    Log(LogLevel::kError, "kv events have ended",
        {{"why", why},
         {"remedy", "restart terraced; blocks are served all the same, and routers hear no more"}});
  };
  try {
    while (!is_ending_.load()) {
      try {
        Turn();
      } catch (const zmq::error_t& error) {
        Recover(error.what());
      }
    }
  } catch (const std::exception& error) {
    end(error.what());
  } catch (...) {
    end("an exception of no known type");
  }
}

void KvEventPublisher::Recover(const char* why) {
  error_count_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t now_us = MonotonicUs();
  const auto quiet_us = std::chrono::microseconds(kTroubleEnds).count();
  pause_ = failed_us_ == 0 || now_us > failed_us_ + quiet_us ? kPauseMin
                                                             : std::min(2 * pause_, kPauseMax);
  failed_us_ = now_us;
  uint64_t held_back = 0;
  if (error_gate_.Open(now_us, &held_back)) {
    Log(LogLevel::kWarn, "kv events try again",
        {{"why", why}, {"pause_ms", pause_.count()}, {"not_told", held_back}});
  }
  sockets_.reset();
  replay_.DropPeers();
  if (std::exchange(is_anew_, false)) {  // whatever of it was not sent, it begins once more
    topics_to_clear_.clear();
    replay_.AbandonWhole();
    has_lost_.store(true);
  }
  const auto until = std::chrono::steady_clock::now() + pause_;
  while (!is_ending_.load() && std::chrono::steady_clock::now() < until) {
    SleepUntilWoken(static_cast<int>(pause_.count()));
  }
}

void KvEventPublisher::SleepUntilWoken(int timeout_ms) {
  pollfd woken{.fd = wake_fd_, .events = POLLIN, .revents = 0};
  if (poll(&woken, 1, timeout_ms) <= 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
}

// Sends what there is, then sleeps until there is more or somebody asks for a replay.
void KvEventPublisher::Turn() {
  std::string why;
  if (sockets_ == nullptr) {
    is_bound_.store(OpenSockets(&why).ok());
    if (!is_bound_.load()) {
      while (SendSome()) continue;  // to nobody: queue and streams are not to fill up
      return Recover(why.c_str());
    }
  }
  if (HasLostItsPath()) {
    return Recover(
        "the socket's file of kv_events.endpoint or replay_endpoint was removed, or is "
        "another's by now: nobody who comes finds this one");
  }
  // Looked at first: whatever was queued before the loss is sent before all is told anew.
  const bool has_lost = has_lost_.load(std::memory_order_acquire);
  if (!SendSome() && has_lost) {
    has_lost_.store(false, std::memory_order_release);
    AskForAll();
  }
  const bool may_replay = replay_.has_work() && replay_.Send(sockets_->replay, MonotonicUs());
  Republish();
  std::array<zmq::pollitem_t, 5> items = {
      zmq::pollitem_t{nullptr, wake_fd_, ZMQ_POLLIN, 0},
      zmq::pollitem_t{sockets_->replay.handle(), 0, ZMQ_POLLIN, 0},
      zmq::pollitem_t{sockets_->events.handle(), 0, ZMQ_POLLIN, 0},
      zmq::pollitem_t{sockets_->subscribers.news().handle(), 0, ZMQ_POLLIN, 0},
      zmq::pollitem_t{sockets_->askers.news().handle(), 0, ZMQ_POLLIN, 0}};
  is_asleep_.store(true);
  const uint64_t taken = taken_count_.load();
  const bool has_more = may_replay || has_lost_.load() || streams_.has_changes(taken) ||
                        (!is_held_ && added_count_.load() != taken);
  zmq::poll(items, has_more ? milliseconds(0) : PauseBetweenTurns());
  is_asleep_.store(false);
  if (items[0].revents != 0) SleepUntilWoken(0);
  if (items[1].revents != 0) replay_.Receive(sockets_->replay);
  if (items[2].revents != 0) HearNewcomers();
  const uint64_t now_us = MonotonicUs();
  peers_ended_ += sockets_->subscribers.Look(now_us) + sockets_->askers.Look(now_us);
  const KvEventReplayCounters& replays = replay_.counters();
  replay_count_.store(replays.requests, std::memory_order_relaxed);
  replays_refused_.store(replays.refused + replays.malformed, std::memory_order_relaxed);
  replays_abandoned_.store(replays.abandoned, std::memory_order_relaxed);
}

bool KvEventPublisher::HasLostItsPath() {
  const uint64_t now_us = MonotonicUs();
  if (now_us < paths_looked_us_ + kBetweenLooksAtPathsUs) return false;
  paths_looked_us_ = now_us;
  return !sockets_->events_path.IsStillBound() || !sockets_->replay_path.IsStillBound();
}

// Who waits for room to be answered, or has to be looked at, does not wake the thread.
std::chrono::milliseconds KvEventPublisher::PauseBetweenTurns() const {
  if (replay_.has_work() || is_held_) return kReplayPause;
  const bool has_peers = sockets_->subscribers.has_any() || sockets_->askers.has_any();
  if (!has_peers && !newcomers_.is_waiting()) {
    return sockets_->has_path() ? milliseconds(kBetweenLooksAtPathsUs / kUsPerMs)
                                : milliseconds(-1);
  }
  return milliseconds(KvEventPeers::kBetweenLooksUs / kUsPerMs);
}

bool KvEventPublisher::SendSome() {
  const uint64_t added = added_count_.load(std::memory_order_acquire);
  uint64_t taken = taken_count_.load(std::memory_order_relaxed);
  TERRACE_CHECK(added - taken <= kQueueMax, "an event's place is not used again before it is sent");
  ChangeTopics(taken);
  is_held_ = added != taken && !MayTake(taken, added);
  if (added == taken || is_held_) return false;
  const KvEvent& first = queue_[taken % kQueueMax];
  if (first.kind == KvEvent::Kind::kAllBegins || first.kind == KvEvent::Kind::kAllEnds) {
    const bool begins = first.kind == KvEvent::Kind::kAllBegins;
    taken_count_.store(taken + 1, std::memory_order_release);
    begins ? BeginAnew() : EndAnew();
    return true;
  }
  std::vector<KvEvent> events;
  const size_t events_max = is_anew_ ? kAnewAtOnceMax : kEventsPerMessageMax;
  while (taken < added && events.size() < events_max) {
    const KvEvent& event = queue_[taken % kQueueMax];
    const bool is_block =
        event.kind == KvEvent::Kind::kStored || event.kind == KvEvent::Kind::kRemoved;
    if (!is_block || (!is_anew_ && !events.empty() && event.stream != events[0].stream)) break;
    events.push_back(event);
    ++taken;
  }
  taken_count_.store(taken, std::memory_order_release);
  (sockets_ != nullptr ? event_count_ : lost_count_)
      .fetch_add(events.size(), std::memory_order_relaxed);
  SendByStream(&events);
  return true;
}

// Streams of one topic have no block in common, so only the order within each matters.
void KvEventPublisher::SendByStream(std::vector<KvEvent>* events) {
  if (is_anew_) {
    std::stable_sort(events->begin(), events->end(),
                     [](const KvEvent& a, const KvEvent& b) { return a.stream < b.stream; });
  }
  for (auto from = events->begin(); from != events->end();) {
    auto end = std::find_if(from, events->end(),
                            [&](const KvEvent& event) { return event.stream != from->stream; });
    end = from + static_cast<std::ptrdiff_t>(KvEventsWithin({from, end}, kMessageBytesMax));
    const KvEventStreams::Stream* const stream = streams_.Find(from->stream);
    if (stream != nullptr) {  // else its topic was taken back
      Send(stream->topic,
           EncodeKvEvents({from, end}, {.block_tokens = stream->block_tokens,
                                        .encoding = config_.encoding,
                                        .unix_s = UnixSeconds(),
                                        .begins_anew = topics_to_clear_.erase(stream->topic) > 0}));
    }
    from = end;
  }
}

// What tells of every block anew is sent once all of it is here, or as much as the queue should
// hold: so no router's view is empty for longer than it takes to read.
bool KvEventPublisher::MayTake(uint64_t taken, uint64_t added) {
  if (queue_[taken % kQueueMax].kind != KvEvent::Kind::kAllBegins) return true;
  const uint64_t now_us = MonotonicUs();
  if (!is_held_) held_since_us_ = now_us;
  for (looked_count_ = std::max(looked_count_, taken); looked_count_ < added; ++looked_count_) {
    if (queue_[looked_count_ % kQueueMax].kind == KvEvent::Kind::kAllEnds)
      end_seen_ = looked_count_;
  }
  return end_seen_ > taken || added - taken > kQueueMax / 2 || now_us > held_since_us_ + kHeldUsMax;
}

void KvEventPublisher::BeginAnew() {
  HearNewcomers();
  newcomers_.OnAllBegins();
  is_anew_ = true;
  replay_.BeginWhole();
  for (const auto& [topic, stream_count] : topics_) topics_to_clear_.insert(topic);
}

void KvEventPublisher::EndAnew() {
  for (const std::string& topic : topics_to_clear_) {
    Send(topic, EncodeKvCleared(config_.encoding, UnixSeconds()));
  }
  topics_to_clear_.clear();
  replay_.EndWhole();
  is_anew_ = is_asked_ = false;
}

void KvEventPublisher::ChangeTopics(uint64_t taken) {
  for (KvEventStreams::Change& change : streams_.TakeChanges(taken)) {
    changes_.push_back(std::move(change));
  }
  while (!changes_.empty()) {  // after an error the rest is told later
    const KvEventStreams::Change change = std::move(changes_.front());
    changes_.pop_front();
    change.begins ? BeginTopic(change.topic) : EndTopic(change.topic);
  }
}

void KvEventPublisher::BeginTopic(const std::string& topic) {
  const auto [known, is_new] = topics_.try_emplace(topic, 0);
  if (known->second++ > 0) return;
  if (!is_new) std::erase(gone_topics_, topic);
  Send(topic, EncodeKvCleared(config_.encoding, UnixSeconds()));
}

// What its blocks' removals did not take back: of the tier that hosts share.
void KvEventPublisher::EndTopic(const std::string& topic) {
  if (--topics_.at(topic) > 0) return;
  topics_to_clear_.erase(topic);
  gone_topics_.push_back(topic);
  if (gone_topics_.size() > kGoneTopicsMax) {
    topics_.erase(gone_topics_.front());
    replay_.ForgetTopic(gone_topics_.front());
    gone_topics_.pop_front();
  }
  Send(topic, EncodeKvCleared(config_.encoding, UnixSeconds()));
}

// Every block is to be told of anew.
void KvEventPublisher::AskForAll() {
  is_asked_ = true;
  republished_us_ = MonotonicUs();
  republication_count_.fetch_add(1, std::memory_order_relaxed);
  republish_();
}

// Kept first: what an error keeps from being sent can be asked for.
void KvEventPublisher::Send(const std::string& topic, const std::string& payload) {
  numbers_.Reserve(replay_.next_sequence());
  const uint64_t wire_sequence = htobe64(replay_.next_sequence());
  zmq::message_t message = MessageOf(payload);
  zmq::message_t kept;
  kept.copy(message);
  replay_.Keep(topic, std::move(kept));
  if (sockets_ == nullptr) return;
  message_count_.fetch_add(1, std::memory_order_relaxed);
  sockets_->events.send(zmq::buffer(topic), zmq::send_flags::sndmore);
  sockets_->events.send(zmq::buffer(&wire_sequence, sizeof(uint64_t)), zmq::send_flags::sndmore);
  sockets_->events.send(message, zmq::send_flags::none);
}

void KvEventPublisher::HearNewcomers() {
  if (sockets_ == nullptr) return;
  const auto has_topic = [this](std::string_view text) {
    const auto first = topics_.lower_bound(text);
    return first != topics_.end() && first->first.starts_with(text);
  };
  newcomers_.Receive(sockets_->events, has_topic, MonotonicUs());
}

// Routers that all ask at once are told once.
void KvEventPublisher::Republish() {
  const uint64_t now_us = MonotonicUs();
  const uint64_t pause_us = is_asked_ ? kAnswerUsMax : kBetweenRepublicationsUs;
  if (republished_us_ != 0 && now_us < republished_us_ + pause_us) return;
  const bool is_for_newcomers = newcomers_.IsDue(now_us);
  if (!is_for_newcomers && !replay_.wants_all()) return;
  if (is_for_newcomers) newcomers_.OnAsked(now_us);
  AskForAll();
}

}  // namespace terrace
