// DomainNvme: one domain's NVMe tier as the daemon runs it: disks, tier and catalog, put together
// at the start, in step with the store thread's turns, and closed in order at the end.
//
// THREADING: store thread; Open, Restore and Close block. OWNERSHIP: outlives the Store; the store
// thread's loop outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/domain/recovery.h"
#include "daemon/persist/catalog.h"
#include "daemon/persist/group_files.h"
#include "daemon/persist/group_files_on_paths.h"
#include "daemon/persist/group_key_files.h"
#include "daemon/persist/missed_erasures.h"
#include "daemon/store/store.h"
#include "terrace/checksum.h"
#include "tiers/crypto/cipher_disk.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/disk/file_disk.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {

// Raises the limit of open files, and keeps of it what sessions need from the slab files of all
// domains. Not kOk: `*why` names the limit and the remedy.
Status OpenFileBudget(const DaemonConfig& config, std::shared_ptr<FileBudget>* files,
                      std::string* why);

class DomainNvme {
 public:
  struct Options {
    uint32_t domain_index = 0;
    std::string domain_name;
    DomainSecret secret{};
    NvmeConfig nvme;
    std::vector<std::string> lost_mounts;  // by path; see NvmeTier's
    std::vector<DriveTrouble> not_opened;  // the same
    TierShares* shares = nullptr;          // over all domains; outlive it
    std::shared_ptr<FileBudget> files;     // the same
    std::string state_dir;
    std::shared_ptr<const KeyRing> ring;  // none: nothing is encrypted
    bool is_plain_served = false;         // with a ring: blocks that are not encrypted
    // Runs its argument as a turn of the store thread, later. Any thread.
    std::function<void(std::function<void()>)> post;
    std::function<uint64_t()> now_us;
    std::function<uint64_t()> random;
  };
  explicit DomainNvme(Options options);
  ~DomainNvme();  // as after kill -9, unless Close came first

  // Opens disks and catalog; no block is read. What missed an erasure is removed. Not kOk: `*why`
  // names path, cause and remedy.
  Status Open(const MissedErasures& missed, std::string* why);
  // Tells the store what is there, after which the tier works for it. A tier that cannot be read
  // begins empty or off; it never keeps the daemon from starting.
  // Told to `missed`: the drives, and slab files that are gone, or left alone.
  RecoverySummary Restore(Store& store, MissedErasures* missed);
  // The tier's size over all domains, from now on: warns of drives that are too small for it.
  void NoteCapacity(uint64_t capacity_bytes) const;
  // The same of all domains' files: warns of a limit of open files that is too low for them.
  void NoteFiles(const DaemonConfig& config) const;
  // Requests of a turn go out together.
  void Flush();
  // Whether something is still on its way to the disks.
  bool is_idle() const;
  // Remembers, at most once in kKeepLearnedUs, what the policies have learned.
  void KeepLearned(const Restoration& restoration);
  // The end in good order: the next start need not scan.
  void Close(const Restoration& restoration);
  // Ends what runs beside the store thread. False if something hangs: nothing of this may be
  // destroyed then.
  bool EndThreads();

  // The keys of groups are wrapped anew by the thread of the files. REQUIRES: it encrypts.
  void SetRing(const std::shared_ptr<const KeyRing>& ring, GroupFilesOnPaths& files);
  // The same of what the start has found under another key than the ring's first.
  void WrapWhatIsOwed(GroupFilesOnPaths& files);
  // How the files of the domain's groups are kept on a path.
  DiskGroupFiles::Domain group_files(size_t path);
  NvmeTier& tier() { return *tier_; }
  const std::vector<Disk*>& disks() const { return disk_views_; }
  const Catalog& catalog() const { return *catalog_; }
  Catalog& catalog() { return *catalog_; }
  // Where the files of the domain's groups lie: all of them on the first path.
  std::string groups_directory(size_t path = 0) const;
  const DomainSecret& secret() const { return options_.secret; }
  size_t path_count() const { return options_.nvme.paths.size(); }
  // One a path.
  std::vector<std::string> slab_directories() const;

 private:
  std::string DirectoryOn(size_t path) const;
  Status Identify(size_t path, const MissedErasures& missed, std::string* why);
  void NameAnew(size_t path);
  Status Empty(size_t path, const char* cause, std::string* why) const;
  Status RemoveOutdated(size_t path, const std::set<std::string>& outdated, std::string* why);
  void TellMissed(MissedErasures* missed) const;
  void OpenKeys();
  void OpenCiphers();
  void StartCatalog();
  void RewriteCatalog();
  void StartFromLearned(Restoration& restoration);
  void WriteLearned(const Restoration& restoration);
  void TakeAnswers();

  const Options options_;
  std::vector<std::unique_ptr<Disk>> disks_;
  std::unique_ptr<GroupKeyFiles> keys_;
  std::unique_ptr<CipherPool> cipher_pool_;
  std::vector<std::unique_ptr<CipherDisk>> cipher_disks_;
  std::vector<Disk*> disk_views_;
  std::vector<Result<uint64_t>> ids_found_;  // by path
  std::vector<uint64_t> drive_ids_;          // the same, now; Missed::kNobody: it has none
  std::vector<std::string> slabs_gone_;      // of those that missed an erasure
  std::set<std::string> slabs_outdated_;     // the others, with their directories
  uint64_t learned_kept_us_ = 0;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<NvmeTier> tier_;
};

// Where the keys of a domain's groups lie once more, wherever its drives are.
std::string KeptKeysDirectory(const std::string& state_dir, const std::string& domain_name);

// What the disks would have restored, where there are none: groups alone.
void RestoreGroups(Store& store, uint32_t domain_index, const std::string& directory,
                   const DomainSecret& secret);

}  // namespace terrace
