#include "daemon/rule/named_pins.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {

PinPlace NamedPins::Find(std::string_view name) const {
  const auto found = std::ranges::find(pins_, name, &Pin::name);
  return name.empty() ? protocol::kNamedPinsMax : static_cast<PinPlace>(found - pins_.begin());
}

bool NamedPins::IsOpen(PinPlace place, std::string_view name) const {
  return place < protocol::kNamedPinsMax && pins_[place].name == name && !name.empty();
}

Status NamedPins::Open(const PinTerms& terms, PinPlace* place) {
  TERRACE_CHECK(!terms.name.empty() && terms.cap_bytes > 0, "a pin has a name and a cap");
  *place = Find(terms.name);
  if (*place == protocol::kNamedPinsMax) {
    const auto is_free = [this](const Pin& pin) {
      const auto at = static_cast<PinPlace>(&pin - pins_.data());
      return pin.name.empty() && (ending_mask_ & BitOf(at)) == 0;
    };
    *place = static_cast<PinPlace>(std::ranges::find_if(pins_, is_free) - pins_.begin());
    if (*place == protocol::kNamedPinsMax) {
      return Status(StatusCode::kNoSpace, "as many pins have a name as there may be");
    }
    names_.reserve(protocol::kNamedPinBlocksMax);
  }
  Pin& pin = pins_[*place];
  if (!pin.name.empty() && terms.cap_bytes < pin.byte_count) {
    return Status(StatusCode::kNoSpace,
                  "the pin keeps more than that cap already: name a larger one, or unpin it first");
  }
  pin.name = terms.name;
  pin.cap_bytes = terms.cap_bytes;
  pin.uid = terms.uid;
  pin.changed_us = d_.NowUs();
  if (pin.expiry != kHandleNone) {
    d_.seams.deadlines.Remove(std::exchange(pin.expiry, kHandleNone));
  }
  pin.expires_us = terms.ttl_s == 0 ? kNever : pin.changed_us + terms.ttl_s * kUsPerSecond;
  if (terms.ttl_s != 0) {
    pin.expiry = d_.seams.deadlines.Add({.due_us = pin.expires_us,
                                         .kind = DeadlineKind::kNamedPin,
                                         .domain_index = d_.domain_index,
                                         .id = *place});
  }
  return Status::Ok();
}

Status NamedPins::Add(PinPlace place, BlockId id) {
  Pin& pin = pins_[place];
  TERRACE_CHECK(!pin.name.empty(), "what has ended keeps nothing more: it is being unpinned");
  const auto found = names_.find(id);
  if (found != names_.end() && (found->second & BitOf(place)) != 0) {
    return Status(StatusCode::kExists, "the name keeps it already");
  }
  const uint64_t byte_count = BytesOf(id);
  if (byte_count > pin.cap_bytes || pin.byte_count > pin.cap_bytes - byte_count) {
    return Status(StatusCode::kNoSpace, "the pin's cap is reached");
  }
  // What a pin once kept is noted until it ends, so that is bounded, too.
  if (pin.blocks.size() >= protocol::kNamedPinBlocksMax ||
      (found == names_.end() && names_.size() >= protocol::kNamedPinBlocksMax)) {
    return Status(StatusCode::kNoSpace, "as many blocks are pinned as there may be");
  }
  names_[id] |= BitOf(place);
  pin.blocks.push_back(id);
  pin.byte_count += byte_count;
  ++pin.block_count;
  if (!d_.block(id).is_name_pinned) holds_.SetNamePinned(id, true);
  return Status::Ok();
}

Status NamedPins::End(std::string_view name, protocol::NamedPinEntry* was) {
  const PinPlace place = Find(name);
  if (place == protocol::kNamedPinsMax) {
    return Status(StatusCode::kNotFound, "there is no pin of that name");
  }
  *was = Describe(place);
  EndAt(place);
  return Status::Ok();
}

void NamedPins::EndAt(PinPlace place) {
  Pin& pin = pins_[place];
  if (pin.expiry != kHandleNone) {
    d_.seams.deadlines.Remove(std::exchange(pin.expiry, kHandleNone));
  }
  pin.name.clear();
  ending_mask_ |= BitOf(place);
  Step();
}

void NamedPins::OnDeadline(PinPlace place) {
  pins_[place].expiry = kHandleNone;  // it has gone off
  EndAt(place);
}

void NamedPins::OnLeave(BlockId id) {
  const auto found = names_.find(id);
  TERRACE_CHECK(found != names_.end(), "a block that is pinned by name is known");
  for (PinPlace place = 0; place < protocol::kNamedPinsMax; ++place) {
    if ((found->second & BitOf(place)) == 0) continue;
    TERRACE_CHECK(pins_[place].block_count > 0 && pins_[place].byte_count >= BytesOf(id),
                  "a cap counts what the name keeps: below 0 nothing would fit any more");
    pins_[place].byte_count -= BytesOf(id);
    --pins_[place].block_count;
  }
  names_.erase(found);
}

void NamedPins::Step() {
  uint32_t budget = protocol::kBlocksPerTurnMax / 4;
  for (PinPlace place = 0; place < protocol::kNamedPinsMax && budget > 0; ++place) {
    if ((ending_mask_ & BitOf(place)) == 0) continue;
    Pin& pin = pins_[place];
    for (; budget > 0 && !pin.blocks.empty(); --budget) {
      const BlockId id = pin.blocks.front();
      pin.blocks.pop_front();
      const auto found = names_.find(id);
      if (found == names_.end() || (found->second & BitOf(place)) == 0) continue;
      found->second &= ~BitOf(place);
      if (found->second != 0) continue;
      names_.erase(found);
      holds_.SetNamePinned(id, false);
    }
    if (!pin.blocks.empty()) return;
    pin = Pin();
    ending_mask_ &= ~BitOf(place);
  }
}

void NamedPins::Sum(uint64_t* block_count, uint64_t* byte_count) const {
  *block_count = *byte_count = 0;
  for (const Pin& pin : pins_) {
    if (pin.name.empty()) continue;
    *block_count += pin.block_count;
    *byte_count += pin.byte_count;
  }
}

protocol::NamedPinEntry NamedPins::Describe(PinPlace place) const {
  const Pin& pin = pins_[place];
  const uint64_t now_us = d_.NowUs();
  protocol::NamedPinEntry entry{.cap_bytes = pin.cap_bytes,
                                .byte_count = pin.byte_count,
                                .age_ms = (now_us - pin.changed_us) / kUsPerMs,
                                .block_count = pin.block_count,
                                .uid = pin.uid};
  pin.name.copy(entry.name, sizeof(entry.name) - 1);
  if (pin.expires_us != kNever) {
    const uint64_t left_us = pin.expires_us > now_us ? pin.expires_us - now_us : 0;
    entry.expires_in_s = static_cast<uint32_t>(left_us / kUsPerSecond) + 1;
  }
  return entry;
}

std::vector<protocol::NamedPinEntry> NamedPins::List(std::span<const BlockId> ids,
                                                     bool is_about_ids) const {
  uint64_t wanted = is_about_ids ? 0 : ~uint64_t{0};
  for (const BlockId id : ids) {
    if (const auto found = names_.find(id); found != names_.end()) wanted |= found->second;
  }
  std::vector<protocol::NamedPinEntry> entries;
  for (PinPlace place = 0; place < protocol::kNamedPinsMax; ++place) {
    const bool is_wanted = (wanted & BitOf(place)) != 0 && !pins_[place].name.empty();
    if (is_wanted) entries.push_back(Describe(place));
  }
  std::ranges::sort(entries, {}, [](const auto& entry) { return std::string_view(entry.name); });
  return entries;
}

}  // namespace terrace
