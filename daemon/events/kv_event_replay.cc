#include "daemon/events/kv_event_replay.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kEndOfReplay = UINT64_MAX;
constexpr size_t kRequestParts = 3;  // [who, "", first number]

uint64_t BytesOf(const zmq::message_t& payload) {
  return payload.size() + KvEventReplay::kMessageOverheadBytes;
}

// The parts of a message as far as a request has any; all are taken off the socket.
std::vector<zmq::message_t> ReceiveParts(zmq::socket_t& router, bool* is_too_long) {
  std::vector<zmq::message_t> parts;
  bool has_more = true;
  while (has_more) {
    zmq::message_t part;
    if (!router.recv(part, zmq::recv_flags::dontwait)) break;
    has_more = part.more();
    if (parts.size() < kRequestParts) {
      parts.push_back(std::move(part));
    } else {
      *is_too_long = true;
    }
  }
  return parts;
}

}  // namespace

void KvEventReplay::Keep(const std::string& topic, zmq::message_t payload) {
  const uint64_t bytes = BytesOf(payload);
  kept_bytes_ += bytes;
  (behind_whole_ == 0 ? whole_bytes_ : bytes_behind_) += bytes;
  const auto known = topics_.try_emplace(topic).first;
  known->second.is_forgotten = false;
  ++known->second.kept_count;
  kept_.push_back({.sequence = next_sequence_++, .topic = known, .payload = std::move(payload)});
  while (MayDropFront()) DropFront();
}

void KvEventReplay::DropFront() {
  const Kept& front = kept_.front();
  kept_bytes_ -= BytesOf(front.payload);
  if (--front.topic->second.kept_count == 0 && front.topic->second.is_forgotten) {
    topics_.erase(front.topic);
  }
  kept_.pop_front();
}

void KvEventReplay::ForgetTopic(const std::string& topic) {
  const auto known = topics_.find(topic);
  if (known == topics_.end()) return;
  known->second.is_forgotten = true;
  if (known->second.kept_count == 0) topics_.erase(known);
}

bool KvEventReplay::MayDropFront() const {
  if (kept_.size() <= options_.batches_max && kept_bytes_ <= kBytesMax) return false;
  TERRACE_CHECK(!kept_.empty(), "bytes that are kept are those of messages that are");
  const uint64_t front = kept_.front().sequence;
  const bool is_of_whole = whole_since_ != 0 && front == whole_since_;
  if (!is_of_whole) return true;
  if (is_being_told() || bytes_behind_ <= whole_bytes_) return false;
  return next_sequence_ - behind_whole_ > options_.batches_max || bytes_behind_ > kBytesMax;
}

void KvEventReplay::BeginWhole() {
  whole_since_ = next_sequence_;
  behind_whole_ = whole_bytes_ = bytes_behind_ = 0;
}

void KvEventReplay::EndWhole() { behind_whole_ = next_sequence_; }

void KvEventReplay::AbandonWhole() { whole_since_ = 0; }

void KvEventReplay::Receive(zmq::socket_t& router) {
  for (uint32_t i = 0; i < kRequestsPerTurnMax; ++i) {
    bool is_too_long = false;
    const std::vector<zmq::message_t> parts = ReceiveParts(router, &is_too_long);
    if (parts.empty()) return;
    if (is_too_long || parts.size() != kRequestParts || parts[1].size() != 0 ||
        parts[2].size() != sizeof(uint64_t)) {
      ++counters_.malformed;
      continue;
    }
    uint64_t first = 0;
    std::memcpy(&first, parts[2].data(), sizeof(first));
    Ask(parts[0].to_string(), be64toh(first));
  }
}

void KvEventReplay::Ask(const std::string& routing_id, uint64_t first) {
  auto peer = std::ranges::find(peers_, routing_id, &Peer::routing_id);
  if (peer == peers_.end()) {
    if (peers_.size() == kPeersMax) {
      ++counters_.refused;
      return;
    }
    peers_.push_back({.routing_id = routing_id});
    peer = std::prev(peers_.end());
  }
  if (peer->wanted.size() >= options_.requests_per_peer_max) {
    ++counters_.refused;
    return;
  }
  peer->wanted.push_back(first);
  ++counters_.requests;
}

bool KvEventReplay::Send(zmq::socket_t& router, uint64_t now_us) {
  size_t idle_count = 0;  // peers in a row that took nothing
  for (uint32_t sent = 0; sent < kMessagesPerTurnMax && idle_count < peers_.size();) {
    turn_ = turn_ < peers_.size() ? turn_ : 0;
    Peer& peer = peers_[turn_];
    const Sent outcome = SendNext(router, &peer);
    if (outcome == Sent::kMessage) {
      peer.waits_since_us = 0;
      ++sent;
      idle_count = 0;
    } else if (outcome != Sent::kPeerGone) {
      if (peer.waits_since_us == 0) peer.waits_since_us = now_us;
      ++idle_count;
    }
    const bool is_long = peer.waits_since_us != 0 && now_us > peer.waits_since_us + kUnreadUsMax;
    if (is_long && outcome == Sent::kLater && !is_being_told()) {
      peer.is_tired = true;
      peer.waits_since_us = 0;
    }
    const bool is_given_up = is_long && outcome == Sent::kNoRoom;
    if (is_given_up) ++counters_.abandoned;
    if (outcome == Sent::kPeerGone || is_given_up || peer.wanted.empty()) {
      peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(turn_));
      idle_count = 0;
    } else {
      ++turn_;
    }
  }
  return idle_count < peers_.size();
}

bool KvEventReplay::wants_all() const {
  return std::ranges::any_of(peers_, &Peer::is_waiting_for_all);
}

bool KvEventReplay::GoToWhole(Peer* peer) {
  if (behind_whole_ == 0 || whole_since_ < std::max<uint64_t>(first_kept(), 1)) return false;
  peer->next = whole_since_;
  peer->is_waiting_for_all = false;
  return true;
}

// What was asked for and is kept, and a last message.
KvEventReplay::Sent KvEventReplay::SendNext(zmq::socket_t& router, Peer* peer) {
  if (!peer->has_begun) {
    peer->has_begun = true;
    peer->next = std::max(peer->wanted.front(), options_.first_sequence);
  }
  if (peer->next < first_kept() && !GoToWhole(peer)) {
    peer->is_waiting_for_all = !peer->is_tired;
    if (peer->is_waiting_for_all) return Sent::kLater;
    const uint64_t before = first_kept() - 1;
    const Sent sent = TakeBack(router, before, peer);
    if (sent != Sent::kMessage || peer->cleared) return sent;
    peer->next = first_kept();
    return sent;
  }
  peer->cleared.reset();
  zmq::message_t payload;
  if (peer->next >= next_sequence_) {
    const Sent sent = SendMessage(router, *peer, "", kEndOfReplay, &payload);
    if (sent == Sent::kMessage) {
      peer->wanted.pop_front();
      peer->has_begun = peer->is_tired = false;
    }
    return sent;
  }
  Kept& kept = kept_[peer->next - first_kept()];
  TERRACE_CHECK(kept.sequence == peer->next, "kept numbers have no gap: a number is a place");
  payload.copy(kept.payload);
  const Sent sent = SendMessage(router, *peer, kept.topic->first, kept.sequence, &payload);
  if (sent == Sent::kMessage) ++peer->next;
  return sent;
}

// The next topic, if there is one. None is in peer->cleared again behind the last one.
KvEventReplay::Sent KvEventReplay::TakeBack(zmq::socket_t& router, uint64_t sequence, Peer* peer) {
  const auto topic = peer->cleared ? topics_.upper_bound(*peer->cleared) : topics_.begin();
  if (topic == topics_.end()) {  // forgotten meanwhile
    peer->cleared.reset();
    return Sent::kMessage;
  }
  // Numbers that grow, as far as some were asked for.
  const auto behind = static_cast<uint64_t>(std::distance(topic, topics_.end())) - 1;
  sequence -= std::min(behind, sequence - peer->next);
  zmq::message_t payload(options_.cleared.data(), options_.cleared.size());
  const Sent sent = SendMessage(router, *peer, topic->first, sequence, &payload);
  if (sent != Sent::kMessage) return sent;
  if (std::next(topic) == topics_.end()) {
    peer->cleared.reset();
  } else {
    peer->cleared = topic->first;
  }
  return sent;
}

// Nothing of a message is sent unless there is room for all of it: the socket is ROUTER_MANDATORY,
// and decides at the first part.
KvEventReplay::Sent KvEventReplay::SendMessage(zmq::socket_t& router, const Peer& peer,
                                               std::string_view topic, uint64_t sequence,
                                               zmq::message_t* payload) {
  const int flags = ZMQ_DONTWAIT | ZMQ_SNDMORE;
  if (zmq_send(router.handle(), peer.routing_id.data(), peer.routing_id.size(), flags) < 0) {
    if (errno == EAGAIN) return Sent::kNoRoom;
    if (errno == EHOSTUNREACH) return Sent::kPeerGone;
    throw zmq::error_t();
  }
  const uint64_t wire_sequence = htobe64(sequence);
  router.send(zmq::const_buffer{}, zmq::send_flags::sndmore);
  router.send(zmq::buffer(topic), zmq::send_flags::sndmore);
  router.send(zmq::buffer(&wire_sequence, sizeof(wire_sequence)), zmq::send_flags::sndmore);
  router.send(*payload, zmq::send_flags::none);
  return Sent::kMessage;
}

}  // namespace terrace
