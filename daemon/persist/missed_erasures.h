// MissedErasures: the files, one a domain, that remember who was there when something was erased
// (docs/DISK_FORMAT.md, Files). What any other place has is given up when it is there again: of
// which of its blocks an erasure was answered, nobody knows any more. Of drives and of kept memory
// the file names those that were there: nobody needs to have known of the others.
//
// At a start: what the predecessors wrote down is asked for, what has been given up is struck out,
// who is there now is told, and Begin. From then on the first erasure of a domain writes them
// down.
//
// THREADING: NoteErasure and HasNoted: any, neither blocks, a thread writes. All else is of the
// start, and blocks. LIMITS: kMissedBytesMax a file.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/block/absent_places.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr std::string_view kMissedErasuresSuffix = ".missed-erasures";
inline constexpr size_t kMissedBytesMax = 16 << 20;
inline constexpr size_t kDrivesKnownMax = 256;
inline constexpr size_t kMemoriesMax = 16;

// Who missed an erasure of a domain.
struct Missed {
  // All drives but these, by their ids (drive_directory.h), and all kept memory but this, by its
  // arenas' seeds, the latest last. None: nothing has been erased. kNobody stands for one where all
  // are meant.
  static constexpr uint64_t kNobody = 0;
  std::set<uint64_t> all_drives_but;
  std::vector<uint64_t> all_memory_but;
  std::set<std::string> slabs;  // files, by SlabNameOf
  std::set<std::string> redis;  // what lies there under another secret, by RedisSecretName

  friend bool operator==(const Missed&, const Missed&) = default;
};

std::string FormatMissed(const Missed& missed);
// kCorrupt: FormatMissed did not write it.
Result<Missed> ParseMissed(std::string_view content);

// A slab file of a drive, wherever that is mounted.
std::string SlabNameOf(uint64_t drive_id, const std::string& file_name);

class MissedErasures final : public AbsentPlaces {
 public:
  struct Options {
    std::vector<std::string> paths;  // of the files, by domain index
    // By domain index: keys of groups that a daemon without any drive has in its state_dir. Which
    // drives they belong to begin empty once something was erased without them.
    std::vector<std::string> key_directories;
    // By domain index: that a file which cannot be believed might name.
    std::vector<std::set<std::string>> all_redis;
    // Blocks may outlive this daemon, or have outlived another one: where nobody keeps anything,
    // and there is no file, nothing is written. Not certain: where it cannot be, erasures are
    // answered all the same.
    bool is_anything_kept = true;
    bool is_certain = true;
    std::function<void(uint32_t domain_index)> noted;          // on the writing thread
    std::function<void(const std::string& sentence)> trouble;  // any thread
  };
  explicit MissedErasures(Options options);
  ~MissedErasures() override;  // writes what is due

  // ---- at the start ----
  const Missed& missed(uint32_t domain_index) const { return domains_[domain_index].missed; }
  // What a drive has that has this id, or none yet (kNobody), may be served.
  bool MayServe(uint32_t domain_index, uint64_t drive_id) const;
  // It is served from now on, or has been emptied. Not one whose slabs no erasure would reach.
  void UseDrive(uint32_t domain_index, uint64_t drive_id);
  // A successor may take over memory with this seed.
  bool MayAdopt(uint32_t domain_index, uint64_t seed) const;
  // The domain's memory has this seed; `is_held`: a successor may be given it.
  void UseMemory(uint32_t domain_index, uint64_t seed, bool is_held);
  // Secrets under which the domain may have something on a Redis server.
  const std::set<std::string>& all_redis(uint32_t domain_index) const {
    return options_.all_redis[domain_index];
  }

  // A slab file has been removed.
  void StrikeSlab(uint32_t domain_index, const std::string& name);
  // Nothing that was on a Redis server under that secret is believed any more.
  void StrikeRedis(uint32_t domain_index, const std::string& secret_name);
  // Slabs and secrets that no erasure reaches now.
  void AddAbsent(uint32_t domain_index, const Missed& absent);
  // Who begins empty is written down, and, where nobody has written anything yet, that somebody
  // keeps blocks: again each second until it is. Erasures may come.
  void Begin();

  void NoteErasure(uint32_t domain_index) override;
  bool HasNoted(uint32_t domain_index) const override;

 private:
  // What the file lacks: nothing until the first erasure, what the start has found, that erasure;
  // nothing more.
  enum class Phase : uint8_t { kNone, kStartDue, kErasureDue, kNoted };
  struct Domain {
    std::string path;
    std::string key_directory;
    bool has_file = false;
    Missed before;      // as the file has it
    Missed missed;      // as it should have it
    Missed at_erasure;  // from the first erasure on
    uint64_t seed = 0;
    std::set<uint64_t> drives;    // that are there
    Phase phase = Phase::kNoted;  // before Begin nothing is erased
  };

  void Reckon(Domain* domain) const;
  // Not kOk: `*where` is the path.
  Status Write(const Domain& domain, Phase phase, std::string* where) const;
  void Run();
  bool IsAnyDue() const;
  void Tell(const std::string& path, const Status& status, const char* consequence) const;

  const Options options_;
  std::vector<Domain> domains_;
  mutable std::mutex mutex_;  // of the phases, from Begin on
  std::condition_variable wake_;
  bool is_stopping_ = false;
  bool has_news_ = false;  // an erasure that the thread has not seen
  std::thread thread_;     // if anything may be absent
};

}  // namespace terrace
