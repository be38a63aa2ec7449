// KvEventReplay: the messages kept for subscribers that missed some, and the repeats under way. A
// repeat is sent as fast as its peer reads, so one that asks and does not read costs a place in a
// list, and is given up after a while.
//
// Who asks for older messages than there are is answered from those on that told of every block
// anew, the whole: so nobody's view is empty for a moment, and nobody misses a block. It waits
// until they are there, kUnreadUsMax at most; then all is taken back first.
//
// A whole is kept however large it is, until as many bytes were told behind it: so whoever asks for
// too old ones again and again makes everybody hear twice what there is to tell, and no more.
//
// THREADING: the publisher's thread.
// LIMITS: kBytesMax and batches_max of what is kept; where a whole was told, it and the larger of
// kBytesMax and itself behind it. kPeersMax peers with requests_per_peer_max requests each,
// kUnreadMessagesMax messages on their way to one peer. What is asked above that is not answered,
// and counted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "terrace/units.h"

namespace terrace {

struct KvEventReplayCounters {
  uint64_t requests = 0;   // that are answered
  uint64_t refused = 0;    // above a limit
  uint64_t malformed = 0;  // of another form
  uint64_t abandoned = 0;  // their peers did not read
};

class KvEventReplay {
 public:
  static constexpr uint64_t kBytesMax = 64 * kMiB;
  static constexpr uint64_t kMessageOverheadBytes = 128;  // beside its payload
  static constexpr uint32_t kPeersMax = 64;
  static constexpr int kUnreadMessagesMax = 64;
  static constexpr uint32_t kMessagesPerTurnMax = 64;
  static constexpr uint32_t kRequestsPerTurnMax = 64;
  static constexpr uint64_t kUnreadUsMax = 10'000'000;

  struct Options {
    uint32_t batches_max = 0;
    uint32_t requests_per_peer_max = 0;
    uint64_t first_sequence = 0;  // of the first message that is ever kept
    std::string cleared;          // the payload that takes back all of a topic
  };
  explicit KvEventReplay(Options options)
      : options_(std::move(options)), next_sequence_(options_.first_sequence) {}

  // The next message; its number is next_sequence().
  void Keep(const std::string& topic, zmq::message_t payload);
  uint64_t next_sequence() const { return next_sequence_; }
  // Is taken back for nobody any more, once none of its messages is kept.
  void ForgetTopic(const std::string& topic);

  // Takes requests off the ROUTER socket. What is no request is passed over.
  void Receive(zmq::socket_t& router);
  // Sends some of what was asked for. False if nobody who waits has room for more.
  bool Send(zmq::socket_t& router, uint64_t now_us);
  bool has_work() const { return !peers_.empty(); }
  // The connections are gone, and the requests with them.
  void DropPeers() { peers_.clear(); }
  // Some peer waits, for it asked for messages that are kept no more: every block has to be told of
  // anew.
  bool wants_all() const;
  // What is kept between these two tells of every block anew, whatever was told before.
  void BeginWhole();
  void EndWhole();
  // Its end does not come.
  void AbandonWhole();

  const KvEventReplayCounters& counters() const { return counters_; }

 private:
  struct Topic {
    uint64_t kept_count = 0;
    bool is_forgotten = false;
  };
  using Topics = std::map<std::string, Topic, std::less<>>;
  struct Kept {
    uint64_t sequence = 0;
    Topics::iterator topic;
    zmq::message_t payload;
  };
  struct Peer {
    std::string routing_id;
    std::deque<uint64_t> wanted;  // first numbers, the request under way in front
    uint64_t next = 0;            // of that one
    bool has_begun = false;
    std::optional<std::string> cleared;  // topics up to here were taken back
    uint64_t waits_since_us = 0;         // for room, or for all to be told; 0: it does not
    bool is_waiting_for_all = false;
    bool is_tired = false;  // of that
  };
  enum class Sent : uint8_t { kMessage, kNoRoom, kPeerGone, kLater };

  bool MayDropFront() const;
  void DropFront();
  void Ask(const std::string& routing_id, uint64_t first);
  Sent SendNext(zmq::socket_t& router, Peer* peer);
  // Of a peer whose next message is kept no more.
  bool GoToWhole(Peer* peer);
  Sent TakeBack(zmq::socket_t& router, uint64_t sequence, Peer* peer);
  static Sent SendMessage(zmq::socket_t& router, const Peer& peer, std::string_view topic,
                          uint64_t sequence, zmq::message_t* payload);
  bool is_being_told() const { return whole_since_ != 0 && behind_whole_ == 0; }
  uint64_t first_kept() const { return kept_.empty() ? next_sequence_ : kept_.front().sequence; }

  const Options options_;
  Topics topics_;          // bounded by the publisher's, and by what is kept
  std::deque<Kept> kept_;  // sequences follow each other
  uint64_t kept_bytes_ = 0;
  uint64_t next_sequence_;
  std::vector<Peer> peers_;
  size_t turn_ = 0;  // whose it is
  // The last whole: its first number, the first one behind it, bytes in it and behind. 0: there is
  // none; of one that is being told, the number behind is 0.
  uint64_t whole_since_ = 0;
  uint64_t behind_whole_ = 0;
  uint64_t whole_bytes_ = 0;
  uint64_t bytes_behind_ = 0;
  KvEventReplayCounters counters_;
};

}  // namespace terrace
