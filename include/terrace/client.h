// libterrace: the in-process client of terraced. An engine opens its SpaceGroup, acquires leases on
// resident prefixes (pointers into shared memory, no copy), and stores blocks it computed.
//
// The engine can always recompute, so every call answers by its deadline: kBusy when time is up or
// a queue is full, kGone when the daemon went away. The library never throws, aborts, raises a
// signal or blocks past a deadline, and allocates nothing on the paths of Acquire, Reserve, Commit
// and Release once its pools are warm.
//
// ERRORS, of every call, beside what it names: kInvalid for what the caller passed, with the thing,
// the value, the limit and the remedy in last_error(); kGone while there is no connection, once the
// lease is not valid, and in a child of fork(); kBusy at the deadline, and where
// pending_requests_max requests are pending or send_buffer_bytes_max bytes unsent; kNoSpace without
// memory, here or in the daemon; what the daemon answers is passed on, its text in last_error().
// UNITS: microseconds from the call on, bytes; blocks, keys, members and parts counted from 0.
// OWNERSHIP: the Client is its maker's; leases are their holder's, may outlive it, and keep what
// they point to mapped.
// THREADING: every method may be called from any thread. One background thread per Client reads
// replies, runs callbacks, and reconnects; a thread inside a blocking call reads replies itself.
// PinArena adds one that registers memory.
// CANCELLATION: a thread that pthread_cancel meets within a call is cancelled after it, not in it.
// FORK: a child of fork() gets kGone from every call and must create its own Client; the arena is
// not mapped in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/prefix_hasher.h"
#include "terrace/protocol.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

class Device;    // cuda/host/stream.h
class HostPins;  // cuda/host/host_pins.h

struct ClientOptions {
  std::string socket_path;                    // the domain's socket, e.g. /run/terrace/default.sock
  std::string client_name = "engine";         // shown by `terrace status`; ≤ 31 bytes
  uint32_t default_deadline_us = 50'000;      // for calls that name none
  uint32_t reconnect_backoff_ms_max = 1'000;  // retries grow from 10 ms to this, with jitter
  uint32_t pending_requests_max = 256;        // further requests answer kBusy
  uint64_t send_buffer_bytes_max = 8 << 20;   // unsent bytes kept; beyond: kBusy
  uint32_t reply_spin_us = 50;                // a blocking caller polls this long before it sleeps
  // Map the memory of this device that the daemon keeps blocks in, and have blocks copied there and
  // back when the daemon asks for it: by a stream of the device, looked after by the background
  // thread. The host's own: ordinary memory; null: none. A daemon without such a tier, or with one
  // of another device, says so in last_error(), and everything else works.
  std::shared_ptr<const Device> device;
  // Of the arena, registered with the device of PinArena at a time; 0: nothing is.
  uint64_t pinned_bytes_max = UINT64_MAX;
  // How long a segment waits for this process's turn to register before it is done without one.
  uint32_t pin_turn_wait_ms = 30'000;
};

// What one session opened: a SpaceGroup and the members this process reads and writes.
// Valid for the life of the Client; re-opened by itself after a reconnect.
struct GroupRef {
  uint32_t index = 0xFFFFFFFF;
};

// A drive or a network needs longer for the bytes than the daemon for an answer. Who waits, for how
// long, is ReadLease's matter (WaitReady), and its end ends what is still to come.
inline constexpr uint64_t kLoadDeadlineUsDefault = 10'000'000;

struct RequestOptions {
  uint64_t deadline_us = 0;  // relative to the call; 0: ClientOptions::default_deadline_us
  // Acquire and Prefetch: until when blocks below DRAM may come, relative to the call. The answer
  // itself is due by deadline_us. 0: kLoadDeadlineUsDefault, or deadline_us if that is later.
  uint64_t load_deadline_us = 0;
  protocol::Hints hints;
  uint64_t member_mask = 0;  // whose slots; 0: the group's self_mask
  BlockKey parent;           // key before the first one, if this is not the start of a prompt
  uint32_t first_position = 0;
  // protocol::kKeysFlat, kAcquireFollow, kAcquireByParts, …; of protocol_device.h kAcquireDevice:
  // slots may lie in the memory of ClientOptions::device, their spans are of tier kHbm then. They
  // are addresses of the device's: kernels and client::PagedCache read them; CopyPart does only
  // where the device is the host.
  uint32_t flags = 0;
  // Reserve: the engine's own hash of each block, for routers; empty, or one a key.
  std::span<const uint64_t> event_hashes;
};

class Client;

// Shared state behind both lease kinds; see ReadLease and WriteLease.
struct LeaseState;
namespace client {
class PagedCache;
}

// The right to read blocks. Move-only; the destructor releases without waiting. A lease outlives
// its Client: its pointers stay mapped until it is gone, and the last one's end unmaps them, which
// takes long where the arena is large.
class ReadLease {
 public:
  ReadLease();
  explicit ReadLease(std::shared_ptr<LeaseState> state);  // the library's
  ReadLease(ReadLease&&) noexcept;
  ReadLease& operator=(ReadLease&&) noexcept;
  ~ReadLease();

  // Blocks and tokens of the prefix this lease covers; 0 is a miss, not an error.
  uint32_t block_count() const;
  uint32_t token_count() const;
  // Runs of those blocks by what the daemon answered: the tier they were on, ready or coming, and
  // until when about. As long as this lease.
  std::span<const protocol::BlockSpan> spans() const;

  // Blocks [0, ready_count()) may be read now. Grows as promotions complete; never shrinks while
  // the lease is valid. After the last completion it may stay below block_count(): the rest is a
  // miss.
  uint32_t ready_count() const;

  // The slot of `member` (a member index of the group) for block `block_index`: a pointer into
  // shared memory. Empty if the member has no bytes there (windowed member) or is not in
  // member_mask. REQUIRES: block_index < ready_count().
  std::span<const std::byte> slot(uint32_t block_index, uint32_t member) const;

  // Bytes of each part of `member` as CopyPart gives them, in layer order; empty of a lease that is
  // none. Under a lossy codec (terrace/codec.h) a slot holds the encoded parts, CopyPart decodes.
  std::span<const uint64_t> part_bytes(uint32_t member) const;

  // Whether one part of a block may be read already, of which completions tell part by part: one
  // that is followed (protocol::kAcquireFollow), or comes from a lower tier to a request with
  // protocol::kAcquireByParts. True for every part of a ready block. Parts of the latter come in
  // the order of layers: the first of all coming blocks, then the second; blocks are ready at the
  // end.
  bool is_part_ready(uint32_t block_index, uint32_t member, uint32_t part_index) const;

  // Copies one part out of a slot with the machine's fastest copy. kBusy if it is not ready, kGone
  // if the lease was not valid throughout, kUnsupported if it lies in the memory of a GPU.
  Status CopyPart(uint32_t block_index, uint32_t member, uint32_t part_index,
                  std::span<std::byte> to) const;

  // For a second process of the same domain that Joins this lease; zero of a miss.
  LeaseToken token() const;
  // False once the daemon revoked it or went away. The memory stays mapped; the bytes may be reused
  // after Release only, so what was read before is right if is_valid() still holds after the read.
  bool is_valid() const;

  // Tells the daemon that this process no longer touches the slots. Idempotent. Never waits; the
  // end is sent when the last CopyPart under way has returned.
  void Release(protocol::EndReason reason = protocol::EndReason::kUnknown);

 private:
  friend class Client;
  friend class client::PagedCache;
  std::shared_ptr<LeaseState> state_;
};

// The right to write reserved blocks. Move-only; the destructor aborts what was not committed.
class WriteLease {
 public:
  WriteLease();
  explicit WriteLease(std::shared_ptr<LeaseState> state);  // the library's
  WriteLease(WriteLease&&) noexcept;
  WriteLease& operator=(WriteLease&&) noexcept;
  ~WriteLease();

  // One entry a key of the Reserve, in order: kOk (write it), kExists, kBusy, kNoSpace (with
  // is_passed_by: all that is there is likelier to be asked for; no use in offering it again). As
  // long as this lease.
  std::span<const protocol::ReservedKey> keys() const;
  // Whether that entry is kOk; false if there are fewer keys.
  bool is_reserved(uint32_t key_index) const;

  // Where to write. Empty unless is_reserved(key_index), the member is in member_mask, and the
  // lease is valid. Once asked for, a revoked lease keeps its slots until Abort or destruction:
  // only the caller knows when its writers have stopped. A part that a Commit was given is not to
  // be written any more, nor any part after a Commit with protocol::kCommitRelease: readers have
  // these bytes, and nothing refuses a write through a pointer.
  std::span<std::byte> slot(uint32_t key_index, uint32_t member) const;
  std::span<const uint64_t> part_bytes(uint32_t member) const;  // as ReadLease's

  // Copies one part into its slot and remembers its checksum for Commit, reading `from` once. Of a
  // joined lease the daemon computes it. Until a Commit was given the part it may be written again.
  // From then on, also where that Commit ended with kBusy, its bytes stay: kExists, and nothing is
  // written. kBusy, and nothing is written, while another thread writes the part or pages are being
  // copied into the block. kInvalid if from.size() is not part_bytes(); kGone, and nothing more is
  // written, once the lease is not valid. Where the Space names a lossy codec it encodes:
  // kUnsupported, counted by the daemon, if `from` has a NaN or an infinity; such a block cannot be
  // stored. kInvalid, of a Space of chunks, for a part 0 that is no ChunkHeader. After any error
  // the part is not committed.
  Status WritePart(uint32_t key_index, uint32_t member, uint32_t part_index,
                   std::span<const std::byte> from);
  // For bytes that another agent wrote into slot(): computes and remembers the part's checksum.
  // kInvalid, here and below, if the key is not reserved for the member or has no such part; kBusy
  // and kExists as WritePart's.
  Status ChecksumWrittenPart(uint32_t key_index, uint32_t member, uint32_t part_index);
  // The same without reading them (a copy from a device): the daemon computes the checksum.
  Status MarkWrittenPart(uint32_t key_index, uint32_t member, uint32_t part_index);
  // This windowed member has no bytes for this block. kInvalid for one without a window.
  Status MarkAbsent(uint32_t key_index, uint32_t member);

  // For a second process of the same domain that Joins this lease; zero if nothing is reserved.
  LeaseToken token() const;
  // False once the daemon revoked it or went away, or a Commit that releases it was sent: what is
  // written from then on is lost.
  bool is_valid() const;
  // Gives up everything not yet committed. Idempotent. Never waits.
  void Abort();

 private:
  friend class Client;
  friend class client::PagedCache;
  std::shared_ptr<LeaseState> state_;
};

// One finished asynchronous request. Leases travel inside it.
struct ClientCompletion {
  uint64_t user_data = 0;
  protocol::Verb verb = protocol::Verb::kHello;
  Status status;
  ReadLease read_lease;      // kAcquire
  WriteLease write_lease;    // kReserve
  uint32_t block_count = 0;  // kPrefetch: blocks on their way or there; kCommit: blocks sealed
};
// Called on the Client's background thread; must not block. It may call the Client; what it throws
// is dropped.
using CompletionCallback = std::function<void(ClientCompletion&&)>;

// How far a prefix is there.
struct MatchResult {
  uint32_t block_count = 0;
  uint32_t token_count = 0;
  bool is_bound = false;  // a remote member is unknown: an upper bound
};

class Client {
 public:
  // Starts connecting in the background and returns at once; an absent daemon is not an error.
  // kInvalid for bad options; kNoSpace or kIo where the process has no thread or descriptors left,
  // or the device cannot say which it is. `*why` has the sentence.
  static Result<std::unique_ptr<Client>> Create(const ClientOptions& options,
                                                std::string* why = nullptr);
  // Everything pending ends with kGone first; callbacks have returned when it returns.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // kOk once the handshake is done; kBusy at the deadline (last_error() says what is tried);
  // kInvalid, kUnsupported or kIo with the daemon's or system's own words in last_error() when it
  // was refused.
  // deadline_us 0: looks once.
  Status WaitConnected(uint64_t deadline_us);
  bool is_connected() const;
  uint64_t boot_id() const;        // 0 while not connected
  std::string last_error() const;  // the last sentence for a person: what, value, limit, remedy

  // Whether an operator has the domain bypassed (`terrace drain --bypass`): then lookups miss,
  // Reserve answers kNoSpace for every key and Commit drops what it is given, all at once and
  // without the daemon; what is held stays readable, and is given back as ever. WaitPersisted is
  // kNotFound. Open, Join, Evict, Pin, Reset, Stats and List reach the daemon as ever.
  bool is_bypassed() const;
  uint64_t bypassed_count() const;  // requests that were answered so, since the Client began

  // Whether this process may not store: its user is not among the domain's writer_uids. Its memory
  // is mapped to be read only, so that a write through a lease's pointer is a SIGSEGV; Reserve,
  // JoinWrite, Commit, Evict, Pin, Reset, and Touch with hints of the blocks, are kUnsupported with
  // the daemon's sentence; everything else works. As the last connection had it; false before one.
  bool is_reader() const;

  // Declares a SpaceGroup. self_mask: members of this process. The daemon's refusal (a named Space
  // with another spec) is kInvalid with the field and both values in last_error().
  Result<GroupRef> Open(const SpaceGroupSpec& spec, uint64_t self_mask, uint64_t deadline_us = 0);
  // Keys of this group under the domain's secret; of Spaces of chunks those of terrace/chunk.h.
  // kGone while there is no connection: they need the domain's secret.
  Result<PrefixHasher> Hasher(GroupRef group) const;

  // ---- blocking, up to the deadline ----
  // `keys` are a chain from options.parent on (or flat, with protocol::kKeysFlat), at most
  // keys_per_request_max of the daemon; they are read before the call returns.
  // How much of the prefix is on this host. Pins and moves nothing: it may be gone a moment later.
  Result<MatchResult> Match(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options = {});
  // Pins the prefix that is there; a miss is a lease of 0 blocks.
  // Returns at the first reply: blocks below DRAM may still be coming, see ReadLease::ready_count
  // and WaitReady.
  Result<ReadLease> Acquire(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options = {});
  // kOk once ready_count() ≥ block_count; kNotFound if that many will not come, kGone if the lease
  // is not valid any more, kBusy at the deadline. Deadlines are relative to the call, here as
  // elsewhere.
  Status WaitReady(const ReadLease& lease, uint32_t block_count, uint64_t deadline_us);
  // Brings the prefix to DRAM without pinning it. Returns how many blocks are there or coming.
  Result<uint32_t> Prefetch(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options = {});
  // The right to write the blocks that nobody has or writes: WriteLease::keys() says of each key
  // what became of it, none to be written is no error. Room is waited for until the deadline at
  // most.
  Result<WriteLease> Reserve(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options = {});
  // Take part in another process's lease, for the members of member_mask (0: the group's
  // self_mask). kInvalid if the token is of the other kind, or this Client has joined the lease.
  // After kBusy it may be asked again: it waits until what was given up is answered. `flags`: of
  // protocol::kAcquireByParts and kAcquireDevice, whatever the Acquire asked.
  Result<ReadLease> JoinRead(GroupRef group, const LeaseToken& token, uint64_t member_mask,
                             uint32_t flags = 0);
  Result<WriteLease> JoinWrite(GroupRef group, const LeaseToken& token, uint64_t member_mask);
  // Commits every part written since the last Commit. Returns the number of blocks that became
  // visible; an error if the daemon refused a part and none did. Refused parts are not tried again.
  // After kBusy at the deadline the commit may still happen: its parts are not written again. Parts
  // written without a checksum are hashed by the daemon. With protocol::kCommitRelease in
  // options.flags the lease ends with it, also where that kBusy is the answer; kBusy, and it goes
  // on, while a copy into it is under way. What takes more than half of send_buffer_bytes_max, or
  // of kMessageBytesMax, to say is committed in pieces, all by the one deadline, released by the
  // last.
  Result<uint32_t> Commit(WriteLease& lease, const RequestOptions& options = {});

  // ---- asynchronous: kOk means that exactly one completion follows, by the deadline ----
  // With a callback it is called; without one the completion waits for Poll and event_fd(). Keys
  // are read before the call returns. kBusy also where four times pending_requests_max completions
  // wait.
  Status AcquireAsync(GroupRef group, std::span<const BlockKey> keys, const RequestOptions& options,
                      uint64_t user_data, CompletionCallback callback = nullptr);
  Status PrefetchAsync(GroupRef group, std::span<const BlockKey> keys,
                       const RequestOptions& options, uint64_t user_data,
                       CompletionCallback callback = nullptr);
  Status ReserveAsync(GroupRef group, std::span<const BlockKey> keys, const RequestOptions& options,
                      uint64_t user_data, CompletionCallback callback = nullptr);
  // kInvalid if one message does not hold all of it: Commit does that in pieces.
  Status CommitAsync(WriteLease& lease, const RequestOptions& options, uint64_t user_data,
                     CompletionCallback callback = nullptr);
  // Takes one completion that had no callback. False if there is none.
  bool Poll(ClientCompletion* completion);
  // Waits for one that is on its way, until the deadline: quicker than event_fd(), for the caller
  // itself reads it.
  bool PollUntil(ClientCompletion* completion, uint64_t deadline_us);
  // Readable while Poll has something. The descriptor belongs to the Client.
  int event_fd() const;

  // ---- for copies that a device makes ----
  // From here on the segments in which this process has leases are registered with `device`, one
  // after the other, when the daemon says that it is this process's turn, on a thread of the
  // library's. Copiers are given the result (CopierOptions::pins) and take what is not registered,
  // yet or ever, through pinned memory of their own. `why` it is this backend is shown by `terrace
  // status`, with what is registered and copied. kExists: there is a device already.
  Result<std::shared_ptr<HostPins>> PinArena(std::shared_ptr<const Device> device,
                                             std::string_view why = {});
  // Nothing is registered, nor taken out, until ResumePinning: for as long as the engine captures a
  // graph. Counts. kBusy: at the deadline a segment is still being registered; resume all the same.
  Status PausePinning(uint64_t deadline_us);
  void ResumePinning();

  // ---- the rest of the verbs, blocking ----
  // Makes the blocks recent for eviction, and says of them what the hints say.
  Status Touch(GroupRef group, std::span<const BlockKey> keys, const RequestOptions& options = {});
  // What is known of each key, in order; pins nothing.
  Status Query(GroupRef group, std::span<const BlockKey> keys,
               std::vector<protocol::QueriedBlock>* blocks, const RequestOptions& options = {});
  // kOk once no crash can lose any of the blocks; kBusy at the deadline.
  Status WaitPersisted(GroupRef group, std::span<const BlockKey> keys,
                       const RequestOptions& options = {});
  // Evict and Reset wait until no crash can bring back what was erased; without a deadline of their
  // own up to protocol::kErasureWaitUs longer than other calls. kBusy: erased, but perhaps not
  // durably.
  // group.index 0xFFFFFFFF: every group of the domain, on a shared tier also those that nobody has
  // opened yet; kNoSpace: more keys than can be remembered for these. No keys with kEvictSubtree:
  // everything; of a key that is not here, whatever has lost its parent and may continue it.
  Result<protocol::EvictReply> Evict(GroupRef group, std::span<const BlockKey> keys,
                                     const RequestOptions& options = {});
  // Keeps the blocks until they are unpinned (protocol::kPinClear) or past hints.ttl_s. Returns how
  // many of the keys are there.
  Result<uint32_t> Pin(GroupRef group, std::span<const BlockKey> keys,
                       const RequestOptions& options = {});
  // Forgets the whole group, for everybody on this host, and what any host has stored of it in the
  // shared tier.
  Status Reset(GroupRef group);
  // The daemon's figures, as JSON (docs/OPERATIONS.md).
  Result<std::string> Stats(uint64_t deadline_us = 0);
  // One page of a listing; *cursor 0 starts and, on return, ends it. request.group_handle is 0 for
  // every group, or GroupRef::index + 1.
  Result<std::vector<protocol::ListEntry>> List(const protocol::ListRequest& request,
                                                uint64_t* cursor, uint64_t deadline_us = 0);

 private:
  struct Internals;
  explicit Client(std::unique_ptr<Internals> internals);
  std::unique_ptr<Internals> internals_;
};

}  // namespace terrace
