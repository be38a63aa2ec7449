// KvEventPublisher: sends KV events to routers over ZeroMQ, in the frames of vLLM: a topic, a u64
// sequence number, a payload. Subscribers that missed some ask the replay socket; for older ones
// than it keeps, and after its own queue overflowed, every block is told of anew.
//
// THREADING: the KvEventSink's calls come from the store thread and never wait. A thread of its own
// encodes and sends.
// LIMITS: kQueueMax events wait; kReplayBytesMax and replay_batches are kept; ZeroMQ keeps
// kMessagesPerSubscriberMax for a subscriber that does not read, and drops the rest.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/config.h"
#include "daemon/kv_event_sink.h"
#include "terrace/status.h"

namespace terrace {

class KvEventPublisher final : public KvEventSink {
 public:
  static constexpr size_t kQueueMax = 1 << 18;
  static constexpr uint64_t kReplayBytesMax = 64 * kMiB;
  static constexpr int kMessagesPerSubscriberMax = 16'384;
  static constexpr uint32_t kStreamsMax = 4096;

  // `republish`: every block shall be told of again, by Store::RepublishKvEvents, soon; called on
  // the publisher's thread.
  KvEventPublisher(const DaemonConfig& config, std::function<void()> republish);
  ~KvEventPublisher() override;

  // Binds the sockets, and begins. kInvalid: `*why` names the endpoint, the cause and the remedy.
  Status Start(std::string* why);

  uint32_t StreamOf(uint32_t domain_index, const SpaceGroupSpec& spec) override;
  void Publish(std::span<const KvEvent> events) override;
  bool HasRoom(size_t event_count) const override;

  KvEventCounters counters() const;

 private:
  struct Stream {
    std::string topic;
    uint32_t block_tokens = 0;
  };
  struct Sockets;  // of the thread
  struct Kept {
    uint64_t sequence = 0;
    uint32_t stream = 0;
    std::string payload;
  };

  std::string TopicOf(uint32_t domain_index, const std::string& model) const;
  const Stream& StreamAt(uint32_t stream) const;
  void Wake();
  void Run();
  void Turn();
  // False if nothing was queued.
  bool SendSome();
  void TakeBack();
  void Send(uint32_t stream, std::string payload);
  void Replay();

  // Constant after construction.
  const KvEventsConfig config_;
  const std::function<void()> republish_;
  const std::string host_name_;
  std::vector<std::string> domain_names_;

  std::unique_ptr<Sockets> sockets_;
  std::thread thread_;

  mutable std::mutex streams_mutex_;
  std::deque<Stream> streams_;  // only grows, and nothing in it moves or changes

  // A ring: the store thread adds, the publisher's takes.
  std::vector<KvEvent> queue_;
  std::atomic<uint64_t> added_count_{0};
  std::atomic<uint64_t> taken_count_{0};
  std::atomic<bool> has_lost_{false};
  std::atomic<bool> is_asleep_{false};
  std::atomic<bool> is_ending_{false};

  std::atomic<uint64_t> event_count_{0};
  std::atomic<uint64_t> lost_count_{0};
  std::atomic<uint64_t> replay_count_{0};
  std::atomic<uint64_t> republication_count_{0};
  std::atomic<uint64_t> next_sequence_{0};

  // Of the publisher's thread.
  std::deque<Kept> kept_;
  uint64_t kept_bytes_ = 0;
  uint64_t republished_us_ = 0;
};

}  // namespace terrace
