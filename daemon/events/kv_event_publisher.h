// KvEventPublisher: sends KV events to routers over ZeroMQ, in the frames of vLLM: a topic, a u64
// sequence number, a payload. Subscribers that missed some ask the replay socket; for older ones
// than it keeps, for whoever subscribes anew (what it believes may be of a daemon before this one),
// and after its own queue overflowed, every block is told of anew, behind AllBlocksCleared in one
// message where that has room for all. Numbers begin at the microseconds since 1970 and never go
// down (kv_event_numbers.h), so that those of a restarted daemon are never taken for the next.
//
// THREADING: the KvEventSink's calls come from the store thread and never wait. A thread of its own
// encodes and sends. After an error of ZeroMQ it makes its sockets anew; any other exception ends
// it, and with it the events.
// LIMITS: kQueueMax events wait, kRemovalsMax of them after HasRoom has said no; ZeroMQ keeps
// kMessagesPerSubscriberMax of kMessageBytesMax, 96 MiB, for a subscriber that does not read, and
// drops the rest; a part of what peers send has kPeerMessageBytesMax, or its connection ends;
// kv_event_peers.h, kv_event_newcomers.h, kv_event_replay.h and kv_event_streams.h.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/block/kv_event_sink.h"
#include "daemon/config/config.h"
#include "daemon/events/kv_event_newcomers.h"
#include "daemon/events/kv_event_numbers.h"
#include "daemon/events/kv_event_peers.h"
#include "daemon/events/kv_event_replay.h"
#include "daemon/events/kv_event_streams.h"
#include "daemon/log/log.h"
#include "terrace/status.h"

namespace terrace {

class KvEventPublisher final : public KvEventSink {
 public:
  static constexpr size_t kQueueMax = 1 << 18;
  static constexpr size_t kRemovalsMax = kQueueMax / 4;
  static constexpr int kMessagesPerSubscriberMax = 1024;
  static constexpr size_t kMessageBytesMax = 96 * kKiB;
  static constexpr int64_t kPeerMessageBytesMax = 4 * kKiB;
  static constexpr int kUnreadSubscriptionsMax = 64;  // messages, of one subscriber
  // Topics of no group any more that are taken back with all others; each a short message.
  static constexpr size_t kGoneTopicsMax = 1024;

  // `republish`: every block shall be told of again, by Store::RepublishKvEvents, soon; called on
  // the publisher's thread.
  KvEventPublisher(const DaemonConfig& config, std::function<void()> republish);
  ~KvEventPublisher() override;

  // Binds the sockets, and begins; a port that is taken is tried again from then on. kInvalid:
  // `*why` names the endpoint, the cause and the remedy.
  Status Start(std::string* why);

  uint32_t StreamOf(uint32_t domain_index, const SpaceGroupSpec& spec) override;
  void EndStream(uint32_t stream) override;
  void Publish(std::span<const KvEvent> events) override;
  bool HasRoom(size_t event_count) const override;

  KvEventCounters counters() const;

 private:
  struct Sockets;  // of the thread

  std::string TopicOf(uint32_t domain_index, const std::string& model) const;
  void Wake();
  Status OpenSockets(std::string* why);
  void Run();
  // Looks now and then, and not at each turn, whether the files of ipc:// endpoints are there yet.
  bool HasLostItsPath();
  // After an error: waits, longer each time, and makes the sockets anew.
  void Recover(const char* why);
  void Turn();
  // False if nothing was queued, or is held. Without sockets to nobody.
  bool SendSome();
  bool MayTake(uint64_t taken, uint64_t added);
  void SendByStream(std::vector<KvEvent>* events);
  void BeginAnew();
  void EndAnew();
  void AskForAll();
  // Of streams that came or went since the last call: topics begin empty, whatever a predecessor
  // told, and end empty.
  void ChangeTopics(uint64_t taken);
  void BeginTopic(const std::string& topic);
  void EndTopic(const std::string& topic);
  void Send(const std::string& topic, const std::string& payload);
  void HearNewcomers();
  void Republish();
  void SleepUntilWoken(int timeout_ms);
  std::chrono::milliseconds PauseBetweenTurns() const;

  // Constant after construction.
  const KvEventsConfig config_;
  const std::function<void()> republish_;
  const std::string host_name_;
  std::vector<std::string> domain_names_;
  const int wake_fd_;

  std::thread thread_;

  KvEventStreams streams_;
  LogGate streams_gate_;  // the store thread's

  // A ring: the store thread adds, the publisher's takes.
  std::vector<KvEvent> queue_;
  std::atomic<uint64_t> added_count_{0};
  std::atomic<uint64_t> taken_count_{0};
  std::atomic<bool> has_lost_{false};
  std::atomic<bool> is_asleep_{false};
  std::atomic<bool> is_ending_{false};
  std::atomic<bool> has_ended_{false};  // for an exception
  std::atomic<bool> is_bound_{false};   // at the last try

  std::atomic<uint64_t> event_count_{0};
  std::atomic<uint64_t> message_count_{0};
  std::atomic<uint64_t> lost_count_{0};
  std::atomic<uint64_t> untold_groups_{0};
  std::atomic<uint64_t> error_count_{0};
  std::atomic<uint64_t> peers_ended_{0};
  std::atomic<uint64_t> replay_count_{0};
  std::atomic<uint64_t> replays_refused_{0};
  std::atomic<uint64_t> replays_abandoned_{0};
  std::atomic<uint64_t> republication_count_{0};

  // The publisher's thread only.
  std::unique_ptr<Sockets> sockets_;  // null between an error and the next try
  KvEventNumbers numbers_;
  KvEventReplay replay_;
  KvEventNewcomers newcomers_;
  std::map<std::string, uint32_t, std::less<>> topics_;  // and their streams; 0: it has gone
  std::deque<std::string> gone_topics_;                  // in order
  std::deque<KvEventStreams::Change> changes_;           // of streams, still to be told
  uint64_t republished_us_ = 0;                          // 0: never
  bool is_asked_ = false;                                // for all, and it has not all come
  // What tells all anew: held until its end is here, then under way.
  bool is_held_ = false;
  bool is_anew_ = false;
  uint64_t held_since_us_ = 0;
  uint64_t looked_count_ = 0;  // so many added ones were looked at for the end
  uint64_t end_seen_ = 0;      // number of that one
  std::set<std::string> topics_to_clear_;
  uint64_t paths_looked_us_ = 0;
  uint64_t failed_us_ = 0;  // the last time
  std::chrono::milliseconds pause_{0};
  LogGate error_gate_;
};

}  // namespace terrace
