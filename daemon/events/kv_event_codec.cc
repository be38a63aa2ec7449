#include "daemon/events/kv_event_codec.h"

#include <msgpack.hpp>
#include <string_view>

#include "terrace/check.h"

namespace terrace {
namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;

// GPU would be the engine's own cache, in whose topic these may be.
constexpr std::string_view kMedia[kKvEventMediumCount] = {"CPU", "STORAGE", "HBM", "EXTERNAL"};

std::string_view MediumOf(const KvEvent& event) {
  const auto medium = static_cast<uint32_t>(event.medium);
  TERRACE_CHECK(medium < kKvEventMediumCount, "every medium has a name");
  return kMedia[medium];
}

// Seen from this host.
std::string_view LocalityOf(const KvEvent& event) {
  return event.medium == KvEventMedium::kShared ? "REMOTE" : "LOCAL";
}

// Whether `event` belongs into the event that `last` ends.
bool Continues(const KvEvent& last, const KvEvent& event) {
  if (event.kind != last.kind || event.medium != last.medium) return false;
  return event.kind == KvEvent::Kind::kRemoved || event.parent_hash == last.hash;
}

size_t RunLength(std::span<const KvEvent> events) {
  size_t length = 1;
  while (length < events.size() && Continues(events[length - 1], events[length])) ++length;
  return length;
}

// One event: its name, then fields. In the array encoding names are left out.
class EventWriter {
 public:
  EventWriter(Packer& packer, KvEventEncoding encoding, std::string_view type, uint32_t field_count)
      : packer_(packer), is_map_(encoding == KvEventEncoding::kMap) {
    if (is_map_) {
      packer_.pack_map(field_count + 1);
      packer_.pack(std::string_view("type"));
    } else {
      packer_.pack_array(field_count + 1);
    }
    packer_.pack(type);
  }
  Packer& Field(std::string_view name) {
    if (is_map_) packer_.pack(name);
    return packer_;
  }

 private:
  Packer& packer_;
  const bool is_map_;
};

void PackHashes(Packer& packer, std::span<const KvEvent> run) {
  packer.pack_array(static_cast<uint32_t>(run.size()));
  for (const KvEvent& event : run) packer.pack(event.hash);
}

void PackStored(Packer& packer, std::span<const KvEvent> run, const KvEventForm& form) {
  const bool is_map = form.encoding == KvEventEncoding::kMap;
  EventWriter writer(packer, form.encoding, "BlockStored", is_map ? 8 : 6);
  PackHashes(writer.Field("block_hashes"), run);
  Packer& parent = writer.Field("parent_block_hash");
  if (run[0].parent_hash == 0) {
    parent.pack_nil();
  } else {
    parent.pack(run[0].parent_hash);
  }
  writer.Field("token_ids").pack_array(0);
  writer.Field("block_size").pack(form.block_tokens);
  writer.Field("lora_id").pack_nil();
  writer.Field("medium").pack(MediumOf(run[0]));
  if (!is_map) return;
  writer.Field("lora_name").pack_nil();
  writer.Field("locality").pack(LocalityOf(run[0]));
}

void PackRemoved(Packer& packer, std::span<const KvEvent> run, KvEventEncoding encoding) {
  const bool is_map = encoding == KvEventEncoding::kMap;
  EventWriter writer(packer, encoding, "BlockRemoved", is_map ? 3 : 2);
  PackHashes(writer.Field("block_hashes"), run);
  writer.Field("medium").pack(MediumOf(run[0]));
  if (is_map) writer.Field("locality").pack(LocalityOf(run[0]));
}

// The array around `event_count` events, which `pack` writes.
template <typename Pack>
std::string Batch(uint32_t event_count, double unix_s, const Pack& pack) {
  msgpack::sbuffer buffer;
  Packer packer(buffer);
  packer.pack_array(3);
  packer.pack(unix_s);
  packer.pack_array(event_count);
  pack(packer);
  packer.pack(0);
  return std::string(buffer.data(), buffer.size());
}

}  // namespace

std::string EncodeKvEvents(std::span<const KvEvent> events, const KvEventForm& form) {
  uint32_t event_count = form.begins_anew ? 1 : 0;
  for (size_t i = 0; i < events.size(); i += RunLength(events.subspan(i))) ++event_count;
  return Batch(event_count, form.unix_s, [&](Packer& packer) {
    if (form.begins_anew) EventWriter(packer, form.encoding, "AllBlocksCleared", 0);
    for (size_t i = 0; i < events.size();) {
      const std::span<const KvEvent> run = events.subspan(i, RunLength(events.subspan(i)));
      TERRACE_CHECK(run[0].stream == events[0].stream,
                    "a message has one topic and one block size");
      if (run[0].kind == KvEvent::Kind::kStored) {
        PackStored(packer, run, form);
      } else {
        TERRACE_CHECK(run[0].kind == KvEvent::Kind::kRemoved, "only what has a stream is encoded");
        PackRemoved(packer, run, form.encoding);
      }
      i += run.size();
    }
  });
}

size_t KvEventsWithin(std::span<const KvEvent> events, size_t bytes_max) {
  size_t count = 0;
  size_t bytes = kKvBatchBytesMax;
  for (; count < events.size(); ++count) {
    const bool is_following = count > 0 && Continues(events[count - 1], events[count]);
    bytes += is_following ? kKvFollowingBytesMax : kKvEventBytesMax;
    if (bytes > bytes_max && count > 0) break;
  }
  return count;
}

std::string EncodeKvCleared(KvEventEncoding encoding, double unix_s) {
  return Batch(1, unix_s,
               [&](Packer& packer) { EventWriter(packer, encoding, "AllBlocksCleared", 0); });
}

}  // namespace terrace
