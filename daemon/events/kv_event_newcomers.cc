#include "daemon/events/kv_event_newcomers.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr char kSubscribes = 1;  // the first byte; the beginning of topics follows

}  // namespace

void KvEventNewcomers::Receive(zmq::socket_t& events, const HasTopic& has_topic, uint64_t now_us) {
  zmq::message_t part;
  bool is_first = true;  // of a message
  for (uint32_t i = 0; i < kMessagesPerTurnMax && events.recv(part, zmq::recv_flags::dontwait);
       ++i) {
    const std::string_view text = part.to_string_view();
    const bool subscribes = is_first && !part.more() && !text.empty() && text[0] == kSubscribes;
    is_first = !part.more();
    if (subscribes && !is_waiting() && has_topic(text.substr(1))) since_us_ = now_us;
  }
}

uint64_t KvEventNewcomers::due_us() const {
  const uint64_t pause_end_us = asked_us_ == 0 ? 0 : asked_us_ + pause_us_;
  return std::max(since_us_ + kGatherUs, pause_end_us);
}

void KvEventNewcomers::OnAsked(uint64_t now_us) {
  const bool came_meanwhile = asked_us_ != 0 && since_us_ < asked_us_ + pause_us_;
  pause_us_ = came_meanwhile ? std::min(2 * pause_us_, kPauseUsMax) : kPauseUsMin;
  asked_us_ = now_us;
}

}  // namespace terrace
