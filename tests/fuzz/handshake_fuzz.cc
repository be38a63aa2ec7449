// A daemon that says anything while a client meets it: the answers to Hello, Open and DeviceAttach
// with descriptors of any kind, in any pieces; and the same as the `terrace` command hears it.
// Whatever it is, the client has a session whose memory is what was said, or a refusal in a
// sentence, soon; and no descriptor is left open.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "client/session/handshake.h"
#include "cuda/abi/device_status.h"
#include "cuda/host/host_device.h"
#include "fuzz/descriptors.h"
#include "fuzz/fuzz.h"
#include "small_space.h"
#include "terrace/protocol.h"
#include "terrace/protocol_device.h"
#include "terrace/units.h"

namespace terrace::fuzz::handshake {

using protocol::Verb;

constexpr uint32_t kAnswersMax = 8;
constexpr size_t kFdsOfAnswerMax = 7;
constexpr uint32_t kSegments = 2;

struct Answer {
  Bytes bytes;
  std::vector<FdKind> fds;
};

template <typename T>
void Append(const T& value, Bytes* to) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to->insert(to->end(), bytes.begin(), bytes.end());
}

SpaceGroupSpec OneMember() {
  return {.name = "g", .members = {{.spec = test::SmallSpace({4096})}}};
}

Bytes Body(Verb verb) {
  Bytes body;
  if (verb == Verb::kHello) {
    Append(protocol::HelloReply{.version = protocol::kVersion,
                                .node_count = 1,
                                .segment_bytes = kSegmentBytesMin,
                                .segments_max = kSegments,
                                .segments_per_node = kSegments},
           &body);
  } else if (verb == Verb::kOpen) {
    const SpaceGroupSpec group = OneMember();
    Append(protocol::OpenReply{.group = group.Id(), .group_handle = 1, .member_count = 1}, &body);
    Append(protocol::OpenedMember{.space = group.members[0].spec.Id(), .slot_bytes = 4096}, &body);
  } else if (verb == protocol::kVerbDeviceAttach) {
    Append(protocol::DeviceAttachReply{.slab_bytes = kSegmentBytesMin, .slab_count = 1}, &body);
  } else {
    Append(protocol::SegmentRevoke{.segment = 1}, &body);
  }
  return body;
}

// [which; request id; status; patches; length; descriptors]
Answer TakeAnswer(Choices& choices) {
  constexpr Verb kVerbs[] = {Verb::kHello, Verb::kOpen, protocol::kVerbDeviceAttach,
                             Verb::kSegmentRevoke};
  const Verb verb = kVerbs[choices.Below(std::size(kVerbs))];
  const uint64_t request_id = choices.Byte();
  const uint8_t status = choices.Byte();
  Bytes body = Body(verb);
  for (uint32_t left = choices.Below(4); left > 0; --left) {
    const size_t at = choices.Byte() % body.size();
    const std::span<const std::byte> patch = choices.Take(4);
    std::copy_n(patch.begin(), std::min(patch.size(), body.size() - at),
                body.begin() + static_cast<ptrdiff_t>(at));
  }
  const auto longer = choices.Number<int8_t>();
  body.resize(
      static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(body.size()) + longer)));
  Answer answer;
  const size_t frame_bytes =
      sizeof(protocol::FrameHeader) + sizeof(protocol::ReplyPrefix) + body.size();
  Append(protocol::FrameHeader{.frame_bytes = static_cast<uint32_t>(frame_bytes),
                               .verb = verb,
                               .request_id = request_id},
         &answer.bytes);
  Append(protocol::ReplyPrefix{.boot_id = 77, .status = status}, &answer.bytes);
  answer.bytes.insert(answer.bytes.end(), body.begin(), body.end());
  if (choices.Below(8) == 7) {
    const auto raw = choices.Take(choices.Byte());
    answer.bytes.assign(raw.begin(), raw.end());
  }
  for (uint32_t left = choices.Below(kFdsOfAnswerMax + 1); left > 0; --left) {
    answer.fds.push_back(static_cast<FdKind>(choices.Below(kFdKinds)));
  }
  return answer;
}

void Say(int listener, const std::vector<Answer>& answers) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  for (const Answer& answer : answers) {
    std::vector<int> fds;
    for (const FdKind kind : answer.fds) fds.push_back(MakeFd(kind, kSegments * kSegmentBytesMin));
    const bool is_sent = answer.bytes.empty() || SendWithFds(fd, answer.bytes, fds);
    for (const int passed : fds) close(passed);
    if (!is_sent) break;
  }
  shutdown(fd, SHUT_WR);
  ReadToEnd(fd);
  close(fd);
}

// The first and the last byte of each segment that the daemon is said to have.
void TouchAll(client::Attachment& attachment) {
  std::vector<uint32_t> segments;
  for (uint32_t segment = 0; segment < std::min(attachment.geometry().segments_max, 4u);
       ++segment) {
    const SlotAddress slot{.segment = segment, .page = 0};
    if (!attachment.RetainSegments(std::span(&slot, 1), &segments).ok()) continue;
    const volatile std::byte* const base = attachment.base(segment);
    (void)base[0];
    (void)base[attachment.segment_bytes(segment) - 1];
  }
  for (const uint32_t segment : segments) (void)attachment.ReleaseSegment(segment);
  // Of several slots all or none.
  const std::array<SlotAddress, 2> slots = {
      {{.segment = 0, .page = 0}, {.segment = attachment.geometry().segments_max, .page = 0}}};
  segments.clear();
  Require(!attachment.RetainSegments(slots, &segments).ok() && segments.empty(),
          "a segment that the daemon has not is there");
}

// The device of this host, and one whose slabs are memory files.
DeviceStatus MapSlab(DeviceHandle*, int32_t fd, uint64_t byte_count, SlabAccess, void** address) {
  *address = mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return ToDeviceStatus(*address == MAP_FAILED ? Status(StatusCode::kIo, "no slab") : Status::Ok());
}
DeviceStatus UnmapSlab(DeviceHandle*, void* address, uint64_t byte_count) {
  munmap(address, byte_count);
  return ToDeviceStatus(Status::Ok());
}
const DeviceOps& OpsWithSlabs() {
  static const DeviceOps ops = [] {
    DeviceOps made = HostDeviceOps();
    made.map_slab = MapSlab;
    made.unmap_slab = UnmapSlab;
    return made;
  }();
  return ops;
}

// [odd: without a device; 4: with one that has slabs]
void Meet(const std::string& path, uint8_t kind) {
  static const std::array devices = {
      std::make_shared<const Device>(Device::Open(HostDeviceOps()).value()),
      std::make_shared<const Device>(Device::Open(OpsWithSlabs()).value())};
  const ClientOptions options{.socket_path = path, .device = devices[kind / 4 % devices.size()]};
  const std::atomic<bool> stopping{false};
  const int wake_fd = MakeFd(FdKind::kEvent);
  std::string why;
  const auto group = client::Group::Create(OneMember(), 1, &why).value();
  {
    client::Handshake handshake(options, wake_fd, stopping, [] {});
    client::Refusal refusal;
    bool goes_on = handshake.Run(&refusal);
    Require(goes_on == (handshake.attachment() != nullptr), "a session without memory");
    if (goes_on && kind % 2 == 0) goes_on = handshake.AttachDevice("host", &refusal);
    if (goes_on) goes_on = handshake.Open(*group, 1, &refusal);
    Require(goes_on || (!refusal.status.ok() && !refusal.text.empty()),
            "refused, and nobody says why");
    if (handshake.attachment() != nullptr) TouchAll(*handshake.attachment());
  }
  close(wake_fd);
}

struct Told {
  uint8_t verb = 0;
  std::vector<uint8_t> fds;
  std::vector<std::array<uint8_t, 5>> patches;  // where, and four bytes
};
Bytes Meeting(const std::vector<Told>& answers, uint8_t kind = 0) {
  ChoiceWriter writer;
  writer.Byte(kind);
  uint8_t request_id = 1;
  for (const auto& [verb, fds, patches] : answers) {
    writer.Byte(verb).Byte(request_id++).Byte(0).Byte(static_cast<uint8_t>(patches.size()));
    for (const auto& patch : patches) writer.Append(std::as_bytes(std::span(patch)));
    writer.Byte(0).Byte(0).Byte(static_cast<uint8_t>(fds.size()));
    for (const uint8_t fd : fds) writer.Byte(fd);
  }
  return writer.Take();
}

std::vector<Seed> Seeds() {
  constexpr uint8_t kSealed = 1, kEvent = 2, kSocket = 3;
  return {{"meeting", Meeting({{0, {kSealed, kSocket}}, {2, {kSealed}}, {1, {}}})},
          {"with_notices", Meeting({{0, {kSealed, kSocket, kSealed}}, {2, {kSealed}}, {1, {}}})},
          {"with_a_revoke", Meeting({{0, {kSealed, kSocket}}, {3, {}}, {1, {}}})},
          {"with_slabs", Meeting({{0, {kSealed, kSocket}}, {2, {kSealed}}, {1, {}}}, 4)},
          {"of_no_hash", Meeting({{0, {kSealed, kSocket}, {{8, protocol::kVersion, 9, 1, 0}}}})},
          {"of_more_memory",
           Meeting({{0, {kSealed, kSocket}, {{24, 4, 0, 0, 0}, {28, 4, 0, 0, 0}}}, {1, {}}}, 1)},
          {"of_another_space", Meeting({{0, {kSealed, kSocket}}, {1, {}, {{24, 9, 9, 9, 9}}}}, 1)},
          {"unsealed", Meeting({{0, {0, kSocket}}})},
          {"no_life", Meeting({{0, {kSealed, kEvent}}})}};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  const uint8_t kind = choices.Byte();
  std::vector<Answer> answers;
  while (!choices.is_empty() && answers.size() < kAnswersMax) {
    answers.push_back(TakeAnswer(choices));
  }
  const std::string path = PathInNoFolder("daemon");
  const uint32_t fd_count = OpenFdCount();
  const int listener = ListenAt(path, SOCK_STREAM);
  std::thread daemon([listener, &answers] { Say(listener, answers); });
  Meet(path, kind);
  daemon.join();
  close(listener);
  Require(OpenFdCount() == fd_count, "a descriptor is left open, or another's was closed");
  return true;
}

// PROMISE: T29 what a client is told while it connects
const Registration registration({"handshake", Run, Seeds});

}  // namespace terrace::fuzz::handshake
