#include "unit/daemon/session/session_harness.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace terrace::test {

using protocol::Verb;

namespace {

constexpr uint64_t kSegmentBytes = kSegmentBytesMin;

void Append(std::vector<std::byte>* bytes, std::span<const std::byte> more) {
  if (more.empty()) return;
  const size_t had = bytes->size();
  bytes->resize(had + more.size());
  std::memcpy(bytes->data() + had, more.data(), more.size());
}

}  // namespace

uint64_t FakeTransport::Send(SessionId session, std::span<const std::byte> bytes, Attach attach) {
  Line& line = lines[session];
  EXPECT_FALSE(line.closed.has_value()) << "sent after Close";
  Append(&line.sent, bytes);
  ++line.sends;
  if (attach != Attach::kNothing) line.attached = attach;
  return stuck_bytes + line.stuck_bytes;
}

uint64_t FakeTransport::unsent_bytes() const {
  uint64_t bytes = stuck_bytes;
  for (const auto& [session, line] : lines) {
    if (!line.closed.has_value()) bytes += line.stuck_bytes;
  }
  return bytes;
}

uint64_t FakeTransport::unsent_bytes_of(SessionId session) const {
  const auto found = lines.find(session);
  return stuck_bytes + (found == lines.end() ? 0 : found->second.stuck_bytes);
}

std::vector<FakeMessage> FakeTransport::Take(SessionId session) {
  std::vector<std::byte> sent = std::exchange(lines[session].sent, {});
  std::vector<FakeMessage> messages;
  FakeMessage message;
  std::vector<std::byte> whole;
  bool is_paging = false;
  for (size_t at = 0; at < sent.size();) {
    protocol::FrameHeader header;
    std::memcpy(&header, sent.data() + at, sizeof(header));
    EXPECT_GE(header.frame_bytes, sizeof(header));
    EXPECT_LE(at + header.frame_bytes, sent.size()) << "a frame sent in part";
    if (is_paging) {
      EXPECT_EQ(header.request_id, message.header.request_id) << "a message within a message";
    }
    message.header = header;
    Append(&whole,
           std::span(sent).subspan(at + sizeof(header), header.frame_bytes - sizeof(header)));
    at += header.frame_bytes;
    is_paging = (header.flags & protocol::kFrameMore) != 0;
    if (is_paging) continue;
    EXPECT_GE(whole.size(), sizeof(message.prefix));
    std::memcpy(&message.prefix, whole.data(), sizeof(message.prefix));
    EXPECT_EQ(message.prefix.boot_id, kBootId);
    message.body.assign(whole.begin() + sizeof(message.prefix), whole.end());
    messages.push_back(std::move(message));
    whole.clear();
  }
  EXPECT_FALSE(is_paging) << "a message sent in part";
  return messages;
}

class SessionHarness::HeapArena : public ArenaMemory {
 public:
  explicit HeapArena(uint32_t segments) : bytes_(segments * kSegmentBytes) {
    base_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  ~HeapArena() override { munmap(base_, bytes_); }
  std::byte* SegmentBase(uint32_t segment) override { return base_ + segment * kSegmentBytes; }
  void BeginPopulate(uint32_t segment) override { populate.push_back(segment); }
  void BeginPunch(uint32_t segment) override { punch.push_back(segment); }

  std::deque<uint32_t> populate, punch;

 private:
  size_t bytes_;
  std::byte* base_;
};

class SessionHarness::QueuedOffload : public Offload {
 public:
  Status Submit(ChecksumJob job) override {
    jobs.push_back(std::move(job));
    return Status::Ok();
  }
  std::deque<ChecksumJob> jobs;
};

SessionHarness::SessionHarness(const Options& options)
    : offload_(std::make_unique<QueuedOffload>()), tier_(options.tier) {
  StoreOptions store_options{.segments_total = options.domains * options.segments,
                             .segments_spare = options.segments_spare,
                             .lease_ttl_ms = options.lease_ttl_ms,
                             .sessions = {.sessions_max = options.sessions_max},
                             .blocks_max = options.blocks_max,
                             .fenced_bytes_max = 64 * kMiB,
                             .absent_places = options.absent_places};
  SessionTableOptions session_options{.boot_id = kBootId,
                                      .lease_ttl_ms = options.lease_ttl_ms,
                                      .strangers_max = options.strangers_max,
                                      .output_bytes_max = options.output_bytes_max,
                                      .buffers_bytes_max = options.buffers_bytes_max};
  for (uint32_t i = 0; i < options.domains; ++i) {
    arenas_.push_back(std::make_unique<HeapArena>(options.segments));
    const uint64_t table_bytes = SlotTableBytes(kSegmentBytes, options.segments);
    slot_tables_.push_back(std::make_unique<std::byte[]>(table_bytes));
    DomainOptions domain;
    domain.name = "domain" + std::to_string(i);
    domain.secret[0] = static_cast<std::byte>(i + 1);
    domain.segment_bytes = kSegmentBytes;
    domain.segments_max = options.segments;
    domain.arena = arenas_.back().get();
    domain.slot_table = std::span(slot_tables_.back().get(), table_bytes);
    session_options.domains.push_back({.name = domain.name,
                                       .secret = domain.secret,
                                       .segment_bytes = kSegmentBytes,
                                       .segments_max = options.segments,
                                       .segments_per_node = options.segments});
    if (i == 0 && tier_ != nullptr) domain.lower_tiers = {tier_};
    if (i == 0) domain.device = {.tier = options.device, .device = "test"};
    store_options.domains.push_back(std::move(domain));
  }
  sessions = std::make_unique<SessionTable>(
      std::move(session_options), transport,
      [](uint32_t domain_index) { return "{\"domain\":" + std::to_string(domain_index) + "}"; });
  store = std::make_unique<Store>(std::move(store_options), clock, random, *offload_, *sessions);
  sessions->Serve(*store);
  if (tier_ != nullptr) tier_->SetListener(&store->events());
  Settle();
}

SessionHarness::~SessionHarness() = default;

void SessionHarness::Settle() {
  bool is_busy = true;
  while (is_busy) {
    is_busy = false;
    for (uint32_t i = 0; i < arenas_.size(); ++i) {
      HeapArena& arena = *arenas_[i];
      for (; !arena.populate.empty(); is_busy = true) {
        const uint32_t segment = arena.populate.front();
        arena.populate.pop_front();
        store->events().OnSegmentPopulated(i, segment, Status::Ok());
      }
      for (; !arena.punch.empty(); is_busy = true) {
        const uint32_t segment = arena.punch.front();
        arena.punch.pop_front();
        store->events().OnSegmentPunched(i, segment, Status::Ok());
      }
    }
    for (; !offload_->jobs.empty(); is_busy = true) {
      const ChecksumJob job = std::move(offload_->jobs.front());
      offload_->jobs.pop_front();
      std::vector<Checksum> roots;
      for (const auto& part : job.parts) roots.push_back(ChecksumPart(part.bytes, part.seed));
      store->events().OnChecksumsDone(job.id, roots);
    }
    if (tier_ != nullptr) {
      is_busy |= tier_->NextCompletionUs() <= clock.NowUs();
      tier_->RunUntil(clock.NowUs());
    }
    for (; store->events().NextTimerUs() <= clock.NowUs(); is_busy = true)
      store->events().OnTimer();
    sessions->Flush();
    if (!sessions->has_work()) continue;
    const uint64_t work_before = store->work();
    sessions->OnTurn();  // memory may come between two
    ++turn_count_.turns;
    turn_count_.work_max = std::max(turn_count_.work_max, store->work() - work_before);
    is_busy = true;
  }
}

std::byte* SessionHarness::SlotMemory(const SlotAddress& address, uint32_t domain_index) {
  return arenas_[domain_index]->SegmentBase(address.segment) + address.page * kArenaPageBytes;
}

void SessionHarness::AdvanceTime(uint64_t us) {
  clock.Advance(us);
  Settle();
}

SessionId SessionHarness::ConnectAs(uint32_t uid, uint32_t domain_index) {
  const SessionId session = next_session_++;
  sessions->OnAccept(session, {.domain_index = domain_index, .uid = uid});
  return session;
}

SessionId SessionHarness::Connect(uint32_t domain_index) { return ConnectAs(1000, domain_index); }

void SessionHarness::SayHello(SessionId session) {
  protocol::HelloRequest hello;
  std::strcpy(hello.client_name, "test");
  EXPECT_EQ(Call(session, Verb::kHello, BytesOf(hello)).status(), StatusCode::kOk);
}

SessionId SessionHarness::Attach(uint32_t domain_index) {
  const SessionId session = Connect(domain_index);
  SayHello(session);
  return session;
}

SessionId SessionHarness::AttachAs(uint32_t uid) {
  const SessionId session = ConnectAs(uid, 0);
  SayHello(session);
  return session;
}

uint32_t SessionHarness::Open(SessionId session, const std::string& name, uint32_t members,
                              uint64_t self_mask, uint32_t parts) {
  std::vector<std::byte> body;
  Append(&body,
         BytesOf(protocol::OpenRequest{.name_bytes = static_cast<uint32_t>(name.size()),
                                       .member_count = members,
                                       .self_mask = self_mask & ((uint64_t{1} << members) - 1)}));
  Append(&body, std::as_bytes(std::span(name)));
  for (uint32_t i = 0; i < members; ++i) {
    const SpaceSpec spec{.model = "m",
                         .revision = "r",
                         .dtype = "bf16",
                         .layers = 1,
                         .kv_heads = 1,
                         .head_size = 64,
                         .layout = "nhd",
                         .block_tokens = 16,
                         .tp_rank = i,
                         .tp_size = members,
                         .part_bytes = std::vector<uint64_t>(parts, 4096)};
    const std::string text = spec.CanonicalText();
    Append(&body, BytesOf(protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())}));
    Append(&body, std::as_bytes(std::span(text)));
  }
  const FakeMessage reply = Call(session, Verb::kOpen, body);
  EXPECT_EQ(reply.status(), StatusCode::kOk) << reply.text();
  return reply.At<protocol::OpenReply>().group_handle;
}

std::vector<std::byte> SessionHarness::Frames(Verb verb, std::span<const std::byte> body,
                                              uint64_t request_id) {
  constexpr size_t kPageBytes = protocol::kFrameBytesMax - sizeof(protocol::FrameHeader);
  std::vector<std::byte> frames;
  do {
    const auto page = body.first(std::min(body.size(), kPageBytes));
    body = body.subspan(page.size());
    const protocol::FrameHeader header{
        .frame_bytes = static_cast<uint32_t>(sizeof(header) + page.size()),
        .verb = verb,
        .flags = body.empty() ? uint16_t{0} : protocol::kFrameMore,
        .request_id = request_id};
    Append(&frames, BytesOf(header));
    Append(&frames, page);
  } while (!body.empty());
  return frames;
}

std::vector<std::byte> SessionHarness::KeysBody(uint32_t group_handle,
                                                std::span<const BlockKey> keys, uint32_t flags,
                                                const protocol::Hints& hints) {
  std::vector<std::byte> body;
  Append(&body, BytesOf(protocol::KeysRequest{.group_handle = group_handle,
                                              .key_count = static_cast<uint32_t>(keys.size()),
                                              .flags = flags,
                                              .hints = hints}));
  Append(&body, std::as_bytes(keys));
  return body;
}

void SessionHarness::Deliver(SessionId session, std::span<const std::byte> bytes) {
  const uint64_t work_before = store->work();
  sessions->OnBytes(session, bytes);
  turn_count_.work_max = std::max(turn_count_.work_max, store->work() - work_before);
  Settle();
}

FakeMessage SessionHarness::Call(SessionId session, Verb verb, std::span<const std::byte> body) {
  const uint64_t request_id = next_request_++;
  Deliver(session, Frames(verb, body, request_id));
  for (FakeMessage& message : transport.Take(session)) {
    if (message.header.request_id == request_id && message.header.verb == verb) return message;
  }
  ADD_FAILURE() << "no reply to " << VerbName(verb);
  return {.prefix = {.status = 0xFF}};
}

FakeMessage SessionHarness::CallKeys(SessionId session, Verb verb, uint32_t group_handle,
                                     std::span<const BlockKey> keys, uint32_t flags) {
  return Call(session, verb, KeysBody(group_handle, keys, flags));
}

uint32_t SessionHarness::StoreBlocks(SessionId session, uint32_t group_handle,
                                     std::span<const BlockKey> keys, const StoreHints& hints) {
  // Memory grows when it is asked for: what finds no room is asked for again.
  uint32_t sealed = 0;
  for (int round = 0; round < 40 && sealed < keys.size(); ++round) {
    sealed += StoreOnce(session, group_handle, keys, hints);
  }
  return sealed;
}

uint32_t SessionHarness::StoreOnce(SessionId session, uint32_t group_handle,
                                   std::span<const BlockKey> keys, const StoreHints& hints) {
  const FakeMessage reserved =
      Call(session, Verb::kReserve, KeysBody(group_handle, keys, 0, hints.reserve));
  const auto head = reserved.At<protocol::ReserveReply>();
  if (head.token.is_zero()) return 0;
  const size_t members = static_cast<size_t>(std::popcount(head.member_mask));
  std::vector<std::byte> body;
  Append(&body, BytesOf(protocol::CommitRequest{.token = head.token,
                                                .entry_count = head.slot_count,
                                                .flags = protocol::kCommitRelease,
                                                .hints = hints.commit}));
  size_t slot = 0;
  for (uint32_t i = 0; i < head.key_count; ++i) {
    const auto key =
        reserved.At<protocol::ReservedKey>(sizeof(head) + i * sizeof(protocol::ReservedKey));
    for (size_t m = 0; key.status == 0 && m < members; ++m, ++slot) {
      const auto ref = reserved.At<SlotRef>(
          sizeof(head) + head.key_count * sizeof(protocol::ReservedKey) + slot * sizeof(SlotRef));
      Append(&body, BytesOf(protocol::CommitEntry{.key_index = i,
                                                  .member = static_cast<uint16_t>(m),
                                                  .part_count = 1,
                                                  .row = ref.row,
                                                  .segment = ref.address.segment,
                                                  .generation = ref.generation}));
    }
  }
  const FakeMessage committed = Call(session, Verb::kCommit, body);
  EXPECT_EQ(committed.status(), StatusCode::kOk) << committed.text();
  return committed.At<protocol::CommitReply>().sealed_count;
}

std::vector<BlockKey> MakeKeys(size_t count, uint64_t seed) {
  std::vector<BlockKey> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = {.low = seed * 1'000'003 + i + 1, .high = seed};
  return keys;
}

}  // namespace terrace::test
