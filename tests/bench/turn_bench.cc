// The longest turn of the store thread in what could make one long, at the documented limits:
// sessions over a store, without sockets and bytes. Processor time, so that other processes do not
// count.
//
//   turn_bench [BLOCKS [ROUNDS [CASE]]]      defaults: 262144 3, all
//
// Of a case the longest turn is told, and what all its turns took together; of several rounds the
// middle one. Exits with 1 if a longest turn is above a millisecond.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/no_seams.h"
#include "daemon/session/session.h"
#include "daemon/store/store.h"
#include "tiers/arena/slot_table.h"

namespace terrace {
namespace {

using protocol::Verb;

constexpr uint64_t kSmallSegmentBytes = 64 * kMiB;  // 4,096 blocks of each of many members
constexpr uint64_t kBootId = 7;
constexpr double kTurnUsMax = 1000;

void Require(bool is_met, const char* what) {
  if (is_met) return;
  std::fprintf(stderr, "turn_bench: %s\n", what);
  std::exit(2);
}

double ProcessorUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Takes what is sent, and finds whole messages in it afterwards.
class Sink final : public Transport {
 public:
  uint64_t Send(SessionId session, std::span<const std::byte> bytes, Attach) override {
    sent_[session].emplace_back(bytes.begin(), bytes.end());
    return 0;
  }
  uint64_t unsent_bytes() const override { return 0; }
  uint64_t unsent_bytes_of(SessionId) const override { return 0; }
  void ResumeInput(SessionId) override {}
  void Close(SessionId, CloseReason reason) override { Require(false, CloseReasonName(reason)); }
  void Forget(SessionId) override {}
  // The body of the last message with this verb, behind its prefix.
  std::vector<std::byte> Take(SessionId session, Verb verb) {
    std::vector<std::byte> body, last, sent;
    for (const std::vector<std::byte>& piece : std::exchange(sent_[session], {})) {
      sent.insert(sent.end(), piece.begin(), piece.end());
    }
    for (size_t at = 0; at < sent.size();) {
      protocol::FrameHeader header;
      std::memcpy(&header, &sent[at], sizeof(header));
      if (header.verb == verb) {
        const auto begin = sent.begin() + static_cast<ptrdiff_t>(at);
        body.insert(body.end(), begin + sizeof(header), begin + header.frame_bytes);
        if ((header.flags & protocol::kFrameMore) == 0) last = std::exchange(body, {});
      }
      at += header.frame_bytes;
    }
    Require(last.size() >= sizeof(protocol::ReplyPrefix), "no answer");
    protocol::ReplyPrefix prefix;
    std::memcpy(&prefix, last.data(), sizeof(prefix));
    if (prefix.status != 0) std::fprintf(stderr, "%s\n", reinterpret_cast<char*>(&last[16]));
    Require(prefix.status == 0, "refused");
    last.erase(last.begin(), last.begin() + sizeof(prefix));
    return last;
  }

 private:
  std::map<SessionId, std::deque<std::vector<std::byte>>> sent_;
};

// A persistent tier that takes nothing, and never says that what was erased is.
class StuckTier final : public Tier {
 public:
  TierKind kind() const override { return TierKind::kNvme; }
  Result<Extent> Allocate(uint32_t, uint64_t, uint32_t) override {
    return Status(StatusCode::kUnsupported);
  }
  void Free(const Extent&) override {}
  Status Read(TransferId, const Extent&, std::span<std::byte>) override {
    return Status(StatusCode::kBusy);
  }
  Status Write(TransferId, const Extent&, const BlockRecord&, std::span<const std::byte>) override {
    return Status(StatusCode::kBusy);
  }
  uint64_t PredictReadUs(uint64_t) const override { return 0; }
  bool is_persistent() const override { return true; }
  ErasureProgress erasures() const override { return {.begun = 1}; }
  TierStats stats() const override { return {.capacity_bytes = kGiB}; }
};

// Finds memory between two turns, as another thread would beside them.
class PopulatingOffload final : public Offload {
 public:
  Status Submit(ChecksumJob) override { return Status(StatusCode::kBusy); }
  void Populate(std::span<std::byte> memory) override { wanted_.push_back(memory); }
  void PopulateNow() {
    for (const std::span<std::byte> memory : std::exchange(wanted_, {})) {
      madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
    }
  }

 private:
  std::vector<std::span<std::byte>> wanted_;
};

template <typename T>
void Append(std::vector<std::byte>* bytes, std::span<const T> values) {
  const auto added = std::as_bytes(values);
  bytes->insert(bytes->end(), added.begin(), added.end());
}
template <typename T>
void AppendOne(std::vector<std::byte>* bytes, const T& value) {
  Append(bytes, std::span<const T>(&value, 1));
}
template <typename T>
T At(const std::vector<std::byte>& body, size_t offset_bytes = 0) {
  T value;
  Require(offset_bytes + sizeof(T) <= body.size(), "an answer is too short");
  std::memcpy(&value, body.data() + offset_bytes, sizeof(T));
  return value;
}

SpaceGroupSpec Members(const std::string& name, uint32_t member_count, uint32_t part_count) {
  SpaceGroupSpec group = OneMember(kArenaPageBytes);
  group.name = name;
  group.members.resize(member_count, group.members[0]);
  for (uint32_t m = 0; m < member_count; ++m) {
    SpaceSpec& spec = group.members[m].spec;
    spec.model = name;
    spec.layers = part_count;
    spec.tp_rank = m;
    spec.tp_size = member_count;
    spec.part_bytes.assign(part_count, kArenaPageBytes);
  }
  return group;
}

struct DaemonOptions {
  uint32_t segments = 8;  // of each domain
  uint64_t segment_bytes = kSmallSegmentBytes;
  uint32_t domain_count = 1;
  uint32_t segments_total = 0;       // 0: as many as the domains may have
  uint32_t segments_guaranteed = 0;  // of the second domain
  Tier* tier = nullptr;              // of the first domain
};

// The daemon without its shell. Everything that happens is a turn, and timed.
class Daemon {
 public:
  using Options = DaemonOptions;

  explicit Daemon(const Options& options) : arenas_(options.domain_count) {
    StoreOptions store;
    SessionTableOptions table{.boot_id = kBootId};
    table.output_bytes_max = table.buffers_bytes_max = kGiB;
    const uint32_t segments_all = options.segments * options.domain_count;
    store.segments_total = options.segments_total == 0 ? segments_all : options.segments_total;
    store.fenced_bytes_max = 64 * kGiB;
    for (uint32_t d = 0; d < options.domain_count; ++d) {
      slot_tables_.emplace_back(SlotTableBytes(options.segment_bytes, options.segments));
      DomainOptions domain{.name = std::to_string(d),
                           .segment_bytes = options.segment_bytes,
                           .segments_guaranteed = d == 0 ? 0 : options.segments_guaranteed,
                           .segments_max = options.segments,
                           .arena = &arenas_[d],
                           .slot_table = slot_tables_[d]};
      if (d == 0 && options.tier != nullptr) domain.lower_tiers = {options.tier};
      store.domains.push_back(domain);
      table.domains.push_back({.name = domain.name,
                               .segment_bytes = options.segment_bytes,
                               .segments_max = options.segments,
                               .segments_per_node = options.segments});
    }
    sessions_ =
        std::make_unique<SessionTable>(table, sink_, [](uint32_t) { return std::string("{}"); });
    store_ = std::make_unique<Store>(store, clock_, random_, offload_, *sessions_);
    sessions_->Serve(*store_);
    Settle();
  }

  Store& store() { return *store_; }
  double longest_us() const { return longest_us_; }
  double sum_us() const { return sum_us_; }
  void Forget() { longest_us_ = sum_us_ = 0; }

  SessionId Attach(uint32_t domain_index = 0) {
    const SessionId session = ++last_session_;
    sessions_->OnAccept(session, {.domain_index = domain_index, .uid = 1});
    std::vector<std::byte> body;
    AppendOne(&body, protocol::HelloRequest{.client_name = "bench"});
    Call(session, Verb::kHello, body);
    return session;
  }
  uint32_t Open(SessionId session, const SpaceGroupSpec& group) {
    std::vector<std::byte> body;
    const auto member_count = static_cast<uint32_t>(group.members.size());
    AppendOne(&body, protocol::OpenRequest{.name_bytes = static_cast<uint32_t>(group.name.size()),
                                           .member_count = member_count,
                                           .self_mask = ~uint64_t{0} >> (64 - member_count)});
    Append(&body, std::span<const char>(group.name));
    for (const SpaceGroupMember& member : group.members) {
      const std::string text = member.spec.CanonicalText();
      AppendOne(&body, protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())});
      Append(&body, std::span<const char>(text));
    }
    return At<protocol::OpenReply>(Call(session, Verb::kOpen, body)).group_handle;
  }

  struct Reserved {
    protocol::ReserveReply reply;
    std::vector<SlotRef> slots;
  };
  Reserved Reserve(SessionId session, uint32_t group, std::span<const BlockKey> keys,
                   const protocol::KeysRequest& like = {}) {
    const std::vector<std::byte> body = Call(session, Verb::kReserve, KeysBody(group, keys, like));
    Reserved reserved{.reply = At<protocol::ReserveReply>(body)};
    reserved.slots.resize(reserved.reply.slot_count);
    const size_t offset = sizeof(reserved.reply) + keys.size() * sizeof(protocol::ReservedKey);
    Require(reserved.reply.key_count == keys.size() && reserved.reply.slot_count > 0 &&
                offset + reserved.slots.size() * sizeof(SlotRef) <= body.size(),
            "not everything was reserved");
    std::memcpy(reserved.slots.data(), body.data() + offset,
                reserved.slots.size() * sizeof(SlotRef));
    return reserved;
  }
  // Of blocks [first, end) one part of each member, as `part_of(block)` says.
  void Commit(SessionId session, const Reserved& reserved, uint32_t first, uint32_t end,
              uint32_t flags, const std::function<uint32_t(uint32_t)>& part_of) {
    const auto members = static_cast<uint32_t>(reserved.slots.size() / reserved.reply.key_count);
    std::vector<std::byte> body;
    const uint32_t entry_count = (end - first) * members;
    AppendOne(&body,
              protocol::CommitRequest{
                  .token = reserved.reply.token, .entry_count = entry_count, .flags = flags});
    for (uint32_t i = first; i < end; ++i) {
      for (uint32_t m = 0; m < members; ++m) {
        const SlotRef& slot = reserved.slots[size_t{i} * members + m];
        AppendOne(&body, protocol::CommitEntry{.key_index = i,
                                               .member = static_cast<uint16_t>(m),
                                               .flags = protocol::kCommitHasChecksums,
                                               .part_first = static_cast<uint16_t>(part_of(i)),
                                               .part_count = 1,
                                               .row = slot.row,
                                               .segment = slot.address.segment,
                                               .generation = slot.generation});
      }
    }
    for (uint32_t i = 0; i < entry_count; ++i) AppendOne(&body, Checksum{i + 1, 2});
    Call(session, Verb::kCommit, body);
  }
  void CommitAll(SessionId session, const Reserved& reserved, uint32_t part_count,
                 const std::function<uint32_t(uint32_t)>& part_of) {
    constexpr uint32_t kBlocksPerCommit = 8192;
    const auto members = static_cast<uint32_t>(reserved.slots.size() / reserved.reply.key_count);
    const uint32_t step = kBlocksPerCommit / members;
    for (uint32_t part = 0; part < part_count; ++part) {
      for (uint32_t i = 0; i < reserved.reply.key_count; i += step) {
        Commit(session, reserved, i, std::min(i + step, reserved.reply.key_count), 0,
               [&](uint32_t block) { return part_of(block) + part; });
      }
    }
  }
  void Put(SessionId session, uint32_t group, std::span<const BlockKey> keys,
           const protocol::KeysRequest& like = {}) {
    const Reserved reserved = Reserve(session, group, keys, like);
    CommitAll(session, reserved, 1, [](uint32_t) { return 0; });
    Release(session, reserved.reply.token);
  }
  LeaseToken Acquire(SessionId session, uint32_t group, std::span<const BlockKey> keys,
                     uint32_t flags = 0) {
    const std::vector<std::byte> body =
        Call(session, Verb::kAcquire, KeysBody(group, keys, {.flags = flags}));
    const auto reply = At<protocol::AcquireReply>(body);
    Require(reply.block_count == keys.size(), "not everything was acquired");
    return reply.token;
  }
  void Release(SessionId session, const LeaseToken& token) {
    std::vector<std::byte> body;
    AppendOne(&body, protocol::ReleaseRequest{.token = token});
    Call(session, Verb::kRelease, body);
  }
  uint64_t last_request() const { return last_request_; }

  static std::vector<std::byte> KeysBody(uint32_t group, std::span<const BlockKey> keys,
                                         protocol::KeysRequest like) {
    like.group_handle = group;
    like.key_count = static_cast<uint32_t>(keys.size());
    std::vector<std::byte> body;
    AppendOne(&body, like);
    Append(&body, keys);
    return body;
  }
  std::vector<std::byte> Frames(Verb verb, std::span<const std::byte> body) {
    constexpr size_t kPageBytes = protocol::kFrameBytesMax - sizeof(protocol::FrameHeader);
    std::vector<std::byte> frames;
    ++last_request_;
    do {
      const auto page = body.first(std::min(body.size(), kPageBytes));
      body = body.subspan(page.size());
      AppendOne(&frames, protocol::FrameHeader{
                             .frame_bytes =
                                 static_cast<uint32_t>(sizeof(protocol::FrameHeader) + page.size()),
                             .verb = verb,
                             .flags = body.empty() ? uint16_t{0} : protocol::kFrameMore,
                             .request_id = last_request_});
      Append(&frames, page);
    } while (!body.empty());
    return frames;
  }
  void Send(SessionId session, std::span<const std::byte> frames) {
    constexpr size_t kReadBytes = 192 * kKiB;
    while (!frames.empty()) {
      const auto piece = frames.first(std::min(frames.size(), kReadBytes));
      frames = frames.subspan(piece.size());
      Turn([&] { sessions_->OnBytes(session, piece); });
      Settle();
    }
  }
  std::vector<std::byte> Call(SessionId session, Verb verb, std::span<const std::byte> body) {
    Send(session, Frames(verb, body));
    return sink_.Take(session, verb);
  }
  void HangUp(SessionId session) {
    Turn([&] { sessions_->OnHangUp(session); });
    Settle();
  }
  void Advance(uint64_t us) {
    clock_.now_us += us;
    Settle();
  }
  void Settle() {
    bool is_busy = true;
    while (is_busy) {
      is_busy = false;
      offload_.PopulateNow();
      for (uint32_t d = 0; d < arenas_.size(); ++d) {
        for (; !arenas_[d].wanted.empty(); is_busy = true) {
          const uint32_t segment = arenas_[d].wanted.back();
          arenas_[d].wanted.pop_back();
          if (store_ != nullptr) store_->events().OnSegmentPopulated(d, segment, Status::Ok());
        }
      }
      if (sessions_->has_work()) {
        Turn([&] { sessions_->OnTurn(); });
        is_busy = true;
      }
      if (store_->events().NextTimerUs() > clock_.now_us) continue;
      Turn([&] {
        store_->events().OnTimer();
        sessions_->Flush();
      });
      is_busy = true;
    }
  }

 private:
  template <typename Work>
  void Turn(const Work& work) {
    const double began_us = ProcessorUs();
    work();
    const double took_us = ProcessorUs() - began_us;
    longest_us_ = std::max(longest_us_, took_us);
    sum_us_ += took_us;
  }

  StepClock clock_;
  NoRandom random_;
  PopulatingOffload offload_;
  std::vector<QueuedArena> arenas_;
  std::vector<std::vector<std::byte>> slot_tables_;
  Sink sink_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<Store> store_;
  SessionId last_session_ = 0;
  uint64_t last_request_ = 0;
  double longest_us_ = 0;
  double sum_us_ = 0;
};

std::vector<BlockKey> Keys(uint32_t count, uint64_t chain = 1) {
  std::vector<BlockKey> keys(count);
  uint64_t word = chain;
  for (BlockKey& key : keys) {
    word = word * 6364136223846793005 + 1442695040888963407;
    key = {.low = word, .high = chain};
  }
  return keys;
}

// A few to spare: extents do not fill segments to the end.
uint32_t SegmentsFor(uint64_t slot_count, uint32_t part_count,
                     uint64_t segment_bytes = kSmallSegmentBytes) {
  return 4 +
         static_cast<uint32_t>(slot_count * part_count * kArenaPageBytes * 17 / 16 / segment_bytes);
}

struct Took {
  double longest_us = 0;
  double sum_us = 0;
};
Took TookBy(const Daemon& daemon) { return {daemon.longest_us(), daemon.sum_us()}; }

// A writer has `block_count` blocks reserved and one part of each committed, of every second block
// another one if they are to differ; somebody follows.
struct Following {
  Following(uint32_t block_count, uint32_t members, uint32_t part_step)
      : daemon({.segments = SegmentsFor(uint64_t{block_count} * members, 4) + 2 * members}),
        writer(daemon.Attach()),
        reader(daemon.Attach()),
        keys(Keys(block_count)) {
    const SpaceGroupSpec group = Members("follow", members, 4);
    const uint32_t handle = daemon.Open(writer, group);
    daemon.Open(reader, group);
    reserved = daemon.Reserve(writer, handle, keys);
    Require(reserved.slots.size() == uint64_t{block_count} * members, "no room for all");
    daemon.CommitAll(writer, reserved, 1, [=](uint32_t block) { return block % 2 * part_step; });
    daemon.Forget();
    token = daemon.Acquire(reader, handle, keys, protocol::kAcquireFollow);
    acquire = daemon.last_request();
  }
  // Every other part, a layer at a time.
  void CommitRest(uint32_t from_part) {
    daemon.CommitAll(writer, reserved, 4 - from_part, [=](uint32_t) { return from_part; });
  }

  Daemon daemon;
  SessionId writer, reader;
  std::vector<BlockKey> keys;
  Daemon::Reserved reserved;
  LeaseToken token;
  uint64_t acquire = 0;
};

Took FollowAlike(uint32_t block_count) {
  Following following(block_count, 1, 0);
  return TookBy(following.daemon);
}
Took FollowDiffering(uint32_t block_count) {
  Following following(block_count, 1, 2);
  return TookBy(following.daemon);
}
Took FollowMembers(uint32_t block_count) {
  Following following(block_count / 64, 64, 0);
  return TookBy(following.daemon);
}
Took FollowToTheEnd(uint32_t block_count) {
  Following following(block_count, 1, 0);
  following.daemon.Forget();
  following.CommitRest(1);
  return TookBy(following.daemon);
}
Took CancelFollowing(uint32_t block_count) {
  Following following(block_count, 1, 0);
  following.daemon.Forget();
  std::vector<std::byte> body;
  AppendOne(&body, protocol::CancelRequest{.request_id = following.acquire});
  following.daemon.Call(following.reader, Verb::kCancel, body);
  return TookBy(following.daemon);
}
Took HangUpFollowing(uint32_t block_count) {
  Following following(block_count, 1, 0);
  following.daemon.Forget();
  following.daemon.HangUp(following.reader);
  return TookBy(following.daemon);
}
Took ReleaseFollowing(uint32_t block_count) {
  Following following(block_count, 1, 0);
  following.daemon.Forget();
  following.daemon.Release(following.reader, following.token);
  return TookBy(following.daemon);
}
Took WriterDies(uint32_t block_count) {
  Following following(block_count, 1, 0);
  following.daemon.Forget();
  following.daemon.HangUp(following.writer);
  return TookBy(following.daemon);
}

// Many follow as many blocks together; the writer gives them all up.
Took ManyAreLetDown(uint32_t block_count) {
  constexpr uint32_t kFollowers = 64;
  Following following(block_count / kFollowers, 1, 0);
  for (uint32_t i = 1; i < kFollowers; ++i) {
    const SessionId reader = following.daemon.Attach();
    const uint32_t handle = following.daemon.Open(reader, Members("follow", 1, 4));
    following.daemon.Acquire(reader, handle, following.keys, protocol::kAcquireFollow);
  }
  following.daemon.Forget();
  std::vector<std::byte> body;
  AppendOne(&body, protocol::AbortRequest{.token = following.reserved.reply.token});
  following.daemon.Call(following.writer, Verb::kAbort, body);
  return TookBy(following.daemon);
}

// Many pages of a listing asked for at once, of blocks with many members.
Took Lists(uint32_t block_count, uint32_t members) {
  const uint32_t stored_count = std::min(block_count / members, 4096u);
  Daemon daemon({.segments = SegmentsFor(uint64_t{stored_count} * members, 1) + members});
  const SessionId session = daemon.Attach();
  const uint32_t group = daemon.Open(session, Members("list", members, 1));
  daemon.Put(session, group, Keys(stored_count));
  daemon.Forget();
  std::vector<std::byte> frames, body;
  AppendOne(&body, protocol::ListRequest{.group_handle = group, .entry_count_max = 1024});
  for (uint32_t i = 0; i < 64; ++i) {
    const std::vector<std::byte> one = daemon.Frames(Verb::kList, body);
    frames.insert(frames.end(), one.begin(), one.end());
  }
  daemon.Send(session, frames);
  return TookBy(daemon);
}
Took ListsOfOne(uint32_t block_count) { return Lists(block_count, 1); }
Took ListsOf64(uint32_t block_count) { return Lists(block_count, 64); }

// A block with many children expires.
Took Expiry(uint32_t block_count) {
  const uint32_t child_count = std::min(block_count, 100'000u);
  Daemon daemon({.segments = SegmentsFor(child_count, 1)});
  const SessionId session = daemon.Attach();
  const uint32_t group = daemon.Open(session, Members("expiry", 1, 1));
  const std::vector<BlockKey> keys = Keys(child_count + 1);
  protocol::KeysRequest parent;
  parent.hints.ttl_s = 1;
  daemon.Put(session, group, std::span(keys).first(1), parent);
  for (uint32_t i = 1; i < keys.size(); ++i) {
    daemon.Put(session, group, std::span(keys).subspan(i, 1),
               {.first_position = 1, .parent = keys[0]});
  }
  daemon.Forget();
  daemon.Advance(2'000'000);
  return TookBy(daemon);
}

// The same keys in every group of the domain.
struct SameKeys {
  explicit SameKeys(uint32_t group_count)
      : daemon({.segments = SegmentsFor(uint64_t{group_count} * 1024, 1) + 16}),
        session(daemon.Attach()),
        keys(Keys(1024)) {
    for (uint32_t g = 0; g < group_count; ++g) {
      handles.push_back(daemon.Open(session, Members("group-" + std::to_string(g), 1, 1)));
      daemon.Put(session, handles.back(), keys);
    }
    daemon.Forget();
  }
  Daemon daemon;
  SessionId session;
  std::vector<BlockKey> keys;
  std::vector<uint32_t> handles;
};
Took QuerySameKeys(uint32_t block_count) {
  SameKeys same(std::min(block_count / 1024, 256u));
  for (const uint32_t handle : {same.handles.front(), same.handles.back()}) {
    same.daemon.Call(same.session, Verb::kQuery, Daemon::KeysBody(handle, same.keys, {}));
  }
  return TookBy(same.daemon);
}
Took PinSameKeys(uint32_t block_count) {
  SameKeys same(std::min(block_count / 1024, 256u));
  same.daemon.Call(same.session, Verb::kPin, Daemon::KeysBody(0, same.keys, {}));
  return TookBy(same.daemon);
}

// A domain that borrowed all there is has one segment taken back while everything is leased.
Took TakeBack(uint32_t block_count) {
  const uint32_t segments = SegmentsFor(block_count, 1, kSegmentBytesDefault);
  Daemon daemon({.segments = segments,
                 .segment_bytes = kSegmentBytesDefault,
                 .domain_count = 2,
                 .segments_total = segments,
                 .segments_guaranteed = 1});
  const SessionId session = daemon.Attach();
  const uint32_t group = daemon.Open(session, Members("borrower", 1, 1));
  const std::vector<BlockKey> keys = Keys(block_count);
  daemon.Put(session, group, keys);
  daemon.Forget();
  daemon.Acquire(session, group, keys);
  const SessionId other = daemon.Attach(1);
  daemon.Open(other, Members("guaranteed", 1, 1));
  for (int i = 0; i < 20; ++i) daemon.Advance(10'000);
  return TookBy(daemon);
}

// As many Evicts as sessions may have pending wait for the tier, then others ask.
Took PendingErasures(uint32_t /*block_count*/) {
  constexpr uint32_t kSessions = 8;
  constexpr uint32_t kPendingMax = 1024;  // pending_per_session_max
  StuckTier tier;
  Daemon daemon({.tier = &tier});
  const std::vector<BlockKey> key = Keys(1);
  uint32_t group = 0;
  SessionId session = 0;
  for (uint32_t s = 0; s < kSessions; ++s) {
    session = daemon.Attach();
    group = daemon.Open(session, Members("erasures", 1, 1));
    const std::vector<std::byte> body = Daemon::KeysBody(group, key, {});
    for (uint32_t i = 0; i < kPendingMax; ++i)
      daemon.Send(session, daemon.Frames(Verb::kEvict, body));
  }
  daemon.Forget();
  for (uint32_t i = 0; i < 64; ++i) {
    std::vector<std::byte> body;
    AppendOne(&body, protocol::TouchRequest{});
    Append(&body, std::span<const std::byte>(Daemon::KeysBody(group, key, {})));
    daemon.Call(session, Verb::kTouch, body);
  }
  daemon.Advance(4'000'000);  // nobody waits longer
  return TookBy(daemon);
}

// What a domain without blocks has to find memory for.
Took Fill(uint32_t block_count) {
  Daemon daemon({.segments = SegmentsFor(block_count, 1)});
  const SessionId session = daemon.Attach();
  const uint32_t group = daemon.Open(session, Members("new", 1, 1));
  daemon.Forget();
  daemon.Put(session, group, Keys(block_count));
  return TookBy(daemon);
}
Took FillFirst(uint32_t /*block_count*/) { return Fill(256); }

struct Case {
  const char* name;
  Took (*run)(uint32_t block_count);
};
constexpr Case kCases[] = {
    {"follow: parts alike", FollowAlike},
    {"follow: parts that differ", FollowDiffering},
    {"follow: 64 members", FollowMembers},
    {"follow: to the last part", FollowToTheEnd},
    {"follow: cancel", CancelFollowing},
    {"follow: hang-up", HangUpFollowing},
    {"follow: release", ReleaseFollowing},
    {"follow: the writer hangs up", WriterDies},
    {"follow: 64 readers, the writer aborts", ManyAreLetDown},
    {"64 lists, 1 member", ListsOfOne},
    {"64 lists, 64 members", ListsOf64},
    {"expiry with 100,000 children", Expiry},
    {"1,024 keys of 256 groups: query", QuerySameKeys},
    {"1,024 keys of 256 groups: pin", PinSameKeys},
    {"a leased segment taken back", TakeBack},
    {"8,192 pending erasures", PendingErasures},
    {"the first 256 blocks of a domain", FillFirst},
    {"a domain's blocks, from the first on", Fill},
};

bool Report(const Case& c, uint32_t block_count, int rounds) {
  std::vector<Took> took;
  for (int round = 0; round < rounds; ++round) took.push_back(c.run(block_count));
  std::ranges::sort(took, {}, &Took::longest_us);
  const Took& middle = took[took.size() / 2];
  std::printf("%-34s longest turn %9.0f us (%.0f to %.0f), all together %9.1f ms\n", c.name,
              middle.longest_us, took.front().longest_us, took.back().longest_us,
              middle.sum_us / 1000);
  std::fflush(stdout);
  return middle.longest_us <= kTurnUsMax;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const long block_count = argc > 1 ? std::atol(argv[1]) : 262'144;
  const long rounds = argc > 2 ? std::atol(argv[2]) : 3;
  const std::string only = argc > 3 ? argv[3] : "";
  if (block_count < 1024 || block_count > 262'144 || rounds <= 0) {
    std::fprintf(stderr, "usage: turn_bench [BLOCKS (1024 to 262144) [ROUNDS [CASE]]]\n");
    return 2;
  }
  bool are_short = true;
  for (const terrace::Case& c : terrace::kCases) {
    if (!only.empty() && std::string(c.name).find(only) == std::string::npos) continue;
    are_short &= terrace::Report(c, static_cast<uint32_t>(block_count), static_cast<int>(rounds));
  }
  if (!are_short) std::printf("a turn takes longer than a millisecond\n");
  return are_short ? 0 : 1;
}
