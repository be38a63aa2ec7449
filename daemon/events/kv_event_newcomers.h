// KvEventNewcomers: who has subscribed and was not told of every block yet, and when they are:
// soon, together with those who come with them, as routers do after a restart. Whoever goes on
// coming is told with the others after a pause that grows: so connecting again and again makes
// everybody hear all a few times, then once in kPauseUsMax.
//
// THREADING: the publisher's thread. LIMITS: kMessagesPerTurnMax messages of subscribers in a turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <zmq.hpp>

#include "terrace/units.h"

namespace terrace {

class KvEventNewcomers {
 public:
  static constexpr uint64_t kGatherUs = 300'000;  // ZeroMQ connects again after 100 to 200 ms
  static constexpr uint64_t kPauseUsMin = 5'000'000;
  static constexpr uint64_t kPauseUsMax = 60'000'000;
  static constexpr uint32_t kMessagesPerTurnMax = 4096;

  // Some topic begins with the text.
  using HasTopic = std::function<bool(std::string_view)>;

  // Takes subscriptions off the XPUB socket, which is verbose; passes over whatever else comes.
  void Receive(zmq::socket_t& events, const HasTopic& has_topic, uint64_t now_us);
  // All is told from here on: to those who are there, too.
  void OnAllBegins() { since_us_ = 0; }
  // It is time to ask for all.
  bool IsDue(uint64_t now_us) const { return is_waiting() && now_us >= due_us(); }
  void OnAsked(uint64_t now_us);
  bool is_waiting() const { return since_us_ != 0; }
  // REQUIRES: is_waiting().
  uint64_t due_us() const;

 private:
  uint64_t since_us_ = 0;  // the first of them came; 0: nobody waits
  uint64_t asked_us_ = 0;  // 0: never
  uint64_t pause_us_ = kPauseUsMin;
};

}  // namespace terrace
