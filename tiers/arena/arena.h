// Arena: the memory of one domain's DRAM tier. One memfd per NUMA node, cut in segments that are
// populated and punched one by one, and one private memfd for the slot table. The memfds outlive
// the process where somebody else holds them (systemd, a keeper): a successor adopts them.
//
// The address space of all segments is mapped once and costs nothing; memory is only ever what was
// populated. Populating either gets every page or fails with an errno and gives all back: nobody
// meets a missing page later as SIGBUS.
//
// Beside the rows the slot table's memfd keeps what a successor must know before it believes them:
// how the arena was made, the seed of the rows' checks, and the sessions that may still touch it.
//
// THREADING: the store thread; blocking work is done by one thread of the arena's own, which calls
// on_populated and on_punched. OWNERSHIP: fds and mappings go with the object; what was begun and
// not reported by then is abandoned. LIMITS: segments_max, one operation a segment at a time,
// kNotedSessionsMax sessions noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/arena_layout.h"
#include "terrace/status.h"

namespace terrace {

enum class ArenaBacking : uint8_t { kShmem, kHugetlb };
inline constexpr uint32_t kNotedSessionsMax = 4096;
enum class ArenaBackingChoice : uint8_t { kAuto, kHugetlb, kShmem };

// Memfds on their way between processes, arena memfds in node order. Whoever is handed one closes
// it.
struct ArenaFds {
  std::vector<int> nodes;
  int slot_table = -1;
};

class Arena {
 public:
  struct Options {
    std::string name;  // of the domain; part of the memfds' names
    uint64_t segment_bytes = kSegmentBytesDefault;
    uint32_t segments_max = 0;  // over all nodes
    ArenaBackingChoice backing = ArenaBackingChoice::kAuto;
    // Huge pages for so many segments, of this arena and of others, must be free at the start for
    // kAuto to take them, and for kHugetlb to begin at all. 0: none, others are to give some back.
    uint32_t segments_free_min = 0;
    std::vector<uint32_t> nodes;  // empty: those of this machine that have memory
    std::string system_root;      // stands before /proc and /sys
    // Whose bytes they are: only an arena of the same identity is adopted.
    uint64_t identity = 0;
    // Called on the arena's thread. Not kOk: kIo with the errno, and the segment is as it was
    // before.
    std::function<void(uint32_t segment, Status status)> on_populated;
    std::function<void(uint32_t segment, Status status)> on_punched;
  };

  // A new arena with no segment populated. On failure `why` names what, the value, the limit and
  // the remedy. May block.
  static Result<std::unique_ptr<Arena>> Create(Options options, std::string* why);
  // Takes over the memfds of an arena that Create made with equal options, populated segments and
  // slot table included. kInvalid if they are not that: `why` says which option differs. Closes
  // `fds` in any case. May block.
  static Result<std::unique_ptr<Arena>> AdoptFds(Options options, const ArenaFds& fds,
                                                 std::string* why);
  ~Arena();

  // Duplicate before giving away. The slot table's never goes to a client.
  const ArenaFds& fds() const { return fds_; }
  // Segment s lies in memfd s / segments_per_node.
  uint32_t segments_per_node() const { return segments_per_node_; }
  ArenaBacking backing() const { return backing_; }
  // What did not work and did not matter enough to fail, in sentences for the log.
  const std::vector<std::string>& notes() const { return notes_; }

  // The rows of SlotAllocator::Options::slot_table. Those of a segment are populated with it.
  std::span<std::byte> slot_table() { return slot_table_; }

  uint64_t table_seed() const { return trailer().table_seed; }
  // Sessions that hold the arena's memfds, for a successor: it must know the end of each.
  void NoteSession(uint64_t session);
  void ForgetSession(uint64_t session);
  std::vector<uint64_t> NotedSessions() const;
  // More than kNotedSessionsMax have been noted at once: nobody can tell who touches this arena.
  bool has_unnoted_sessions() const { return trailer().has_unnoted_sessions; }

  bool IsPopulated(uint32_t segment) const;
  // REQUIRES: populated.
  std::byte* SegmentBase(uint32_t segment);
  // Where this byte of a populated segment lies; SlotAddress{} if it is none of the arena's.
  SlotAddress AddressOf(const std::byte* byte) const;
  // on_populated follows. REQUIRES: not populated, nothing else begun on it.
  void BeginPopulate(uint32_t segment);
  // on_punched follows. REQUIRES: populated, nothing else begun on it, nobody touches it any more.
  void BeginPunch(uint32_t segment);

 private:
  class Worker;
  struct Mapping {
    std::byte* base = nullptr;
    uint64_t length_bytes = 0;
  };
  struct SegmentPlace {
    int fd = -1;
    uint64_t offset_bytes = 0;  // in the memfd
    std::byte* base = nullptr;
  };
  // What the slot table's memfd says about each segment, for a successor.
  // kChanging segments died with their process half populated or half punched.
  enum class SegmentMark : uint8_t { kAbsent, kChanging, kPopulated };
  // The last page of the slot table's memfd, found without knowing its length.
  struct Trailer {
    uint64_t magic = 0;
    uint64_t segment_bytes = 0;
    uint64_t identity = 0;
    uint64_t table_seed = 0;
    uint32_t segments_max = 0;
    uint32_t node_count = 0;
    ArenaBacking backing = ArenaBacking::kShmem;
    bool has_unnoted_sessions = false;
    uint8_t reserved[6] = {};
  };

  explicit Arena(Options options);

  // Creation and adoption, in this order. Each says `why`.
  static Status CheckOptions(Options* options, std::string* why);
  Status CreateFds(std::string* why);
  Status CreateNodeFd(uint32_t node_index, std::string* why);
  Status CreateHugeFds(std::string* why);
  static Status CheckHugePages(uint64_t wanted_bytes);
  Status CheckFds(std::string* why) const;
  Status MapAll(std::string* why);
  Status CheckTrailer(std::string* why);
  Status WriteTrailer(std::string* why);
  Trailer& trailer() const;
  std::span<uint64_t> noted_sessions() const;
  void PunchHalfDone();
  void BindToNode(uint32_t node_index);
  void StartWorker();

  // On the arena's thread.
  Status Populate(uint32_t segment);
  Status Punch(uint32_t segment);
  void RestorePages();

  uint64_t NodeBytes(uint32_t node_index) const;
  uint64_t TableBytes() const;
  SegmentPlace PlaceOf(uint32_t segment) const;
  uint8_t& Mark(uint32_t segment) const;
  void SetMark(uint32_t segment, SegmentMark mark);

  const Options options_;
  uint32_t segments_per_node_ = 0;
  ArenaBacking backing_ = ArenaBacking::kShmem;
  ArenaFds fds_;
  std::vector<Mapping> node_mappings_;
  Mapping table_mapping_;
  std::span<std::byte> slot_table_;
  std::vector<std::string> notes_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace terrace
