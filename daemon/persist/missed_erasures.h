// MissedErasures: the files, one a domain, that remember who was absent when something was erased
// (docs/DISK_FORMAT.md, Files). What such a place has is given up when it is back: of which of its
// blocks an erasure was answered, nobody knows any more.
//
// At a start: what the predecessors wrote down is asked for, what has been given up is struck out,
// who is absent now is told, and Begin. From then on the first erasure of a domain writes them
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
inline constexpr size_t kMemoriesMax = 16;  // that nothing was erased without

// Who missed an erasure of a domain.
struct Missed {
  std::set<std::string> drives;  // paths
  std::set<std::string> slabs;   // files, with their directory
  std::set<std::string> redis;   // what lies there under another secret, by RedisSecretName
  // All memory but these, by their arenas' seeds, the latest last; none: nobody keeps any that is
  // not in use.
  std::vector<uint64_t> all_memory_but;

  friend bool operator==(const Missed&, const Missed&) = default;
};

std::string FormatMissed(const Missed& missed);
// kCorrupt: FormatMissed did not write it.
Result<Missed> ParseMissed(std::string_view content);

// The file goes, and no loss of power brings it back. kIo.
Status RemoveSynced(const std::string& path);
// A domain's directory on a drive loses its slabs, and keys of groups that lie there: these are
// overwritten first. kIo: something is left.
Status EmptyDrive(const std::string& directory, uint64_t* slab_count);

class MissedErasures final : public AbsentPlaces {
 public:
  struct Options {
    std::vector<std::string> paths;  // of the files, by domain index
    // That a file which cannot be believed might name.
    std::set<std::string> all_drives;
    std::vector<std::set<std::string>> all_redis;              // by domain index
    std::function<void(uint32_t domain_index)> noted;          // on the writing thread
    std::function<void(const std::string& sentence)> trouble;  // any thread
  };
  explicit MissedErasures(Options options);
  ~MissedErasures() override;  // writes what is due

  // ---- at the start ----
  const Missed& missed(uint32_t domain_index) const { return domains_[domain_index].missed; }
  // A successor may take over memory with this seed.
  bool MayAdopt(uint32_t domain_index, uint64_t seed) const;
  // The domain's memory has this seed; `is_held`: a successor may be given it.
  void UseMemory(uint32_t domain_index, uint64_t seed, bool is_held);
  // Secrets under which the domain may have something on a Redis server.
  const std::set<std::string>& all_redis(uint32_t domain_index) const {
    return options_.all_redis[domain_index];
  }

  // Drives that are served again have been emptied, slab files removed.
  void StrikeDrive(uint32_t domain_index, const std::string& path);
  void StrikeSlab(uint32_t domain_index, const std::string& file);
  // Nothing that was on a Redis server under that secret is believed any more.
  void StrikeRedis(uint32_t domain_index, const std::string& secret_name);
  // Those that no erasure reaches now; memory is told by UseMemory.
  void AddAbsent(uint32_t domain_index, const Missed& absent);
  // What was struck out is written down. Erasures may come.
  void Begin();

  void NoteErasure(uint32_t domain_index) override;
  bool HasNoted(uint32_t domain_index) const override;

 private:
  enum class Phase : uint8_t { kNone, kDue, kNoted };
  struct Domain {
    std::string path;
    Missed before;      // as the file has it
    Missed missed;      // as it should have it
    Missed at_erasure;  // from the first erasure on
    uint64_t seed = 0;
    Phase phase = Phase::kNoted;  // before Begin nothing is erased
  };

  void Run();
  bool IsAnyDue() const;
  void Tell(const Domain& domain, const Status& status, const char* consequence) const;

  const Options options_;
  std::vector<Domain> domains_;
  mutable std::mutex mutex_;  // of the phases, from Begin on
  std::condition_variable wake_;
  bool is_stopping_ = false;
  std::thread thread_;  // if anything is absent
};

}  // namespace terrace
