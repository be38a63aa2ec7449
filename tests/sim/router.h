// A router under simulation: it believes whatever it is told, and finds fault with what it is told
// twice. What it believes has to be what the store says. Now and then it has no room: it takes
// only what cannot wait, and is told the rest later; or it loses all, and is told everything anew.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/block/kv_event_sink.h"
#include "terrace/block_key.h"

namespace terrace::sim {

// The engine's own hash of a block. One in eight has none.
inline uint64_t EventHashOf(const BlockKey& key) { return key.high % 8 == 0 ? 0 : key.low | 1; }

class Router final : public KvEventSink {
 public:
  struct Name {
    uint32_t domain_index = 0;
    std::string group;
    uint64_t hash = 0;

    auto operator<=>(const Name&) const = default;
  };
  // A bit per KvEventMedium; what is nowhere is not in there.
  using View = std::map<Name, uint8_t>;

  // KvEventSink
  uint32_t StreamOf(uint32_t domain_index, const SpaceGroupSpec& spec) override {
    streams_.emplace_back(domain_index, spec.name);
    return static_cast<uint32_t>(streams_.size() - 1);
  }
  void EndStream(uint32_t) override {}  // its blocks had gone, and what is shared stays
  void Publish(std::span<const KvEvent> events) override {
    if (!has_room_) return;
    for (const KvEvent& event : events) Believe(event);
  }
  bool HasRoom(size_t) const override { return has_room_ && !is_slow_; }

  const View& view() const { return view_; }
  uint64_t event_count() const { return event_count_; }
  // The first thing it was told that cannot be; empty: none.
  const std::string& complaint() const { return complaint_; }

  // Its daemon ended: nothing is there.
  void Forget() {
    streams_.clear();
    view_.clear();
    has_room_ = true;
    is_slow_ = false;
  }
  void LoseRoom() { has_room_ = false; }
  void BeSlow() { is_slow_ = true; }
  bool is_well() const { return has_room_ && !is_slow_; }
  bool has_room() const { return has_room_; }
  // REQUIRES: if it has lost some, every block is told of anew.
  void CatchUp() {
    has_room_ = true;
    is_slow_ = false;
  }

 private:
  void Believe(const KvEvent& event) {
    ++event_count_;
    if (event.kind == KvEvent::Kind::kAllBegins) {
      view_.clear();
      return;
    }
    if (event.kind == KvEvent::Kind::kAllEnds) return;
    const auto& [domain_index, group] = streams_.at(event.stream);
    const Name name{domain_index, group, event.hash};
    const auto bit = static_cast<uint8_t>(1 << static_cast<uint32_t>(event.medium));
    const auto known = view_.find(name);
    const bool is_known = known != view_.end() && (known->second & bit) != 0;
    const bool is_stored = event.kind == KvEvent::Kind::kStored;
    if (is_known == is_stored && complaint_.empty()) {
      complaint_ = std::string(is_stored ? "stored" : "removed") + " was told twice of hash " +
                   std::to_string(event.hash) + " of " + group;
    }
    if (is_stored) {
      view_[name] |= bit;
    } else if (is_known && (known->second &= static_cast<uint8_t>(~bit)) == 0) {
      view_.erase(known);
    }
  }

  std::vector<std::pair<uint32_t, std::string>> streams_;  // domain, group
  View view_;
  std::string complaint_;
  uint64_t event_count_ = 0;
  bool has_room_ = true;
  bool is_slow_ = false;
};

}  // namespace terrace::sim
