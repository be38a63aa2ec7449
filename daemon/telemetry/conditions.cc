#include "daemon/telemetry/conditions.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/telemetry/names.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using Troubles = std::vector<Trouble>;

void Add(Condition condition, std::string sentence, Troubles* troubles) {
  troubles->push_back({.condition = condition, .sentence = std::move(sentence), .drive = {}});
}

std::string DriveName(const DriveTrouble& drive) {
  return drive.path.empty() ? "drive " + std::to_string(drive.drive) : "the drive at " + drive.path;
}

std::string NoFilesSentence(const DriveTrouble& drive) {
  return DriveName(drive) + " takes nothing: " + std::to_string(drive.failures_in_row) +
         " files in a row could not be made there, the last one with " + ErrorText(drive.error) +
         "; it is tried again by itself. If somebody has removed the directory that nvme.paths "
         "names, or unmounted it, bring it back and restart terraced, which makes none of these "
         "while it runs";
}

std::string OffSentence(const DriveTrouble& drive) {
  if (drive.makes_no_files) return NoFilesSentence(drive);
  std::string text = DriveName(drive) + " is off: ";
  if (drive.error == 0) {
    text += std::string("a ") + drive.operation + " was not answered";
  } else {
    text += std::to_string(drive.failures_in_row) + " requests in a row failed, the last one, a " +
            drive.operation + ", with " + ErrorText(drive.error);
  }
  text += "; what lies there are misses, and a probe takes it back once it answers";
  if (drive.probe_error != 0) text += " (the last: " + ErrorText(drive.probe_error) + ")";
  return text +
         ". dmesg tells more; a file system that has become read-only stays so until the daemon is "
         "stopped and it is repaired and mounted again";
}

std::string FullSentence(const DriveTrouble& drive) {
  return DriveName(drive) + " is full: the last " + drive.operation + " failed with " +
         ErrorText(drive.error) +
         ", and the tier grows no further; free space, or lower nvme.capacity_bytes";
}

std::string LostSentence(const DriveTrouble& drive) {
  return "what was mounted at " + drive.lost_mount + " is not: " + drive.path +
         " is served from the disk below, and fills it. Stop terraced, delete that directory, "
         "mount the drive and start it again; if this is meant, delete the file nvme-mounts in "
         "daemon.state_dir before the start";
}

std::string NotOpenedSentence(const DriveTrouble& drive) {
  return DriveName(drive) + " could not be opened at the start: " + drive.not_opened +
         ". The others serve; what it has are misses, and is given up if something is erased "
         "before it is back. Mend it and restart terraced, or take it out of nvme.paths";
}

Trouble TroubleOf(const DriveTrouble& drive) {
  if (!drive.not_opened.empty()) {
    return {
        .condition = Condition::kDriveOff, .sentence = NotOpenedSentence(drive), .drive = drive};
  }
  if (!drive.lost_mount.empty()) {
    return {
        .condition = Condition::kDriveNotMounted, .sentence = LostSentence(drive), .drive = drive};
  }
  if (drive.is_off) {
    return {.condition = Condition::kDriveOff, .sentence = OffSentence(drive), .drive = drive};
  }
  return {.condition = Condition::kDriveFull, .sentence = FullSentence(drive), .drive = drive};
}

std::string FilesSentence(const std::string& tier, const TierStats& stats) {
  const std::string files = std::to_string(stats.files_open);
  if (stats.fds_max == 0) {
    return "the " + tier + " tier makes no more slab files: each path of nvme.paths has " + files +
           " of the domain, as many as there may be. Some are of another size than nvme.slab_bytes "
           "is: lower nvme.capacity_bytes until so many have gone, and raise it again";
  }
  return "the " + tier + " tier has no more slab files: the daemon has " + files +
         " open, two descriptors each, and may open " + std::to_string(stats.fds_max) +
         " files in all, of which the others are kept for sessions. What is configured wants " +
         std::to_string(stats.fds_wanted) +
         ": raise the limit (LimitNOFILE= of the unit, ulimit -Hn) and restart terraced, or lower "
         "nvme.capacity_bytes";
}

std::string UngroupedSentence(const DomainFigures& domain, uint64_t bytes,
                              const std::string& tier) {
  return std::to_string(bytes) + " bytes of the " + tier +
         " tier are blocks of groups which no file in " + domain.group_files.directory +
         " tells of, or for which groups_max had no room: whole for all that is known, and out of "
         "use. Bring back the path of nvme.paths, or the directory, that their files lay in, or "
         "raise groups_max, and restart terraced: it finds the blocks again. The log's lines 'nvme "
         "note' name the groups; if nobody needs their blocks, terrace fsck --repair "
         "--free-unknown-groups frees their places while terraced is stopped";
}

void AddGroupFiles(const GroupFilesTrouble& files, Troubles* troubles) {
  if (files.groups_not_kept > 0) {
    Add(Condition::kGroupsNotKept,
        "files of " + std::to_string(files.groups_not_kept) + " groups cannot be written to " +
            files.directory + ", or their keys beside it: " + files.why_not_kept +
            "; none of their blocks go to a drive meanwhile, and the next start does not find "
            "those "
            "that lie there. Mend that (space, permissions, the mount, encryption_keys_file): it "
            "is "
            "tried again each second",
        troubles);
  }
  if (files.key_files_not_wrapped > 0) {
    const std::string under =
        files.keys_needed.empty() ? "another key" : "key " + files.keys_needed;
    Add(Condition::kGroupsNotKept,
        std::to_string(files.key_files_not_wrapped) + " files of groups' keys, in keys/ beside " +
            files.directory + " or in daemon.state_dir, are still wrapped by " + under +
            ", not by the first of encryption_keys_file: " + files.why_not_wrapped +
            ". Leave that key in the file until this has ended: without it those groups' blocks "
            "are not found by the next start. See that the files can be written (permissions, "
            "lsattr, mount); it is tried again each second",
        troubles);
  }
  if (files.keys_not_erased > 0) {
    Add(Condition::kKeysNotErased,
        "the keys of " + std::to_string(files.keys_not_erased) +
            " groups are destroyed in memory and not on the drive, in keys/ beside " +
            files.directory + ": " + files.why_not_erased +
            "; whoever has the drive and the keys file can read those groups' blocks, and no "
            "erasure of the domain is answered. See that their files can be written and removed "
            "(permissions, lsattr, mount); it is tried again each second",
        troubles);
  }
}

std::string LeftAloneSentence(uint64_t bytes, const std::string& tier) {
  return std::to_string(bytes) + " bytes of the " + tier +
         " tier's files were left alone at the start, and count against its capacity: they are "
         "damaged, under another secret, encrypted under keys that are not here, of a number "
         "that a file on another path has, or more files than may be open (the log's lines "
         "'nvme note' name them). With the right secret_file "
         "and encryption_keys_file a "
         "restart finds their blocks again; what nobody needs may be removed while terraced is "
         "stopped";
}

void AddTier(const DomainFigures& domain, const DomainFigures::LowerTierStats& tier,
             Troubles* troubles) {
  const std::string name(kTierNames[static_cast<size_t>(tier.kind)]);
  bool is_told = false;
  for (const DriveTrouble& drive : tier.troubles) {
    is_told |= drive.is_off;
    troubles->push_back(TroubleOf(drive));
  }
  if (!tier.stats.is_healthy && !is_told && tier.kind != TierKind::kHbm) {
    Add(Condition::kDriveOff,
        "the " + name + " tier is off after errors and tries again by itself: dmesg tells more",
        troubles);
  }
  const uint64_t ungrouped_bytes = tier.stats.ungrouped_bytes;
  if (ungrouped_bytes > 0) {
    Add(Condition::kSlabsLeftAlone, UngroupedSentence(domain, ungrouped_bytes, name), troubles);
  }
  if (tier.stats.left_alone_bytes > ungrouped_bytes) {
    Add(Condition::kSlabsLeftAlone,
        LeftAloneSentence(tier.stats.left_alone_bytes - ungrouped_bytes, name), troubles);
  }
  if (const ShareStats& share = tier.stats.share; share.above_bytes > 0) {
    Add(Condition::kTierAboveLimit,
        "the " + name + " tier's files take " + std::to_string(share.held_bytes) + " bytes, " +
            std::to_string(share.above_bytes) +
            " more than it may since nvme.capacity_bytes or nvme_max_bytes was lowered: slab by "
            "slab they are emptied and removed, " +
            std::to_string(share.leaving_bytes) +
            " bytes of them now. It ends by itself, once drives are on and hold no slabs that were "
            "left alone",
        troubles);
  }
  if (tier.stats.too_large_bytes > 0) {
    Add(Condition::kBlocksTooLarge,
        "blocks of " + std::to_string(tier.stats.too_large_bytes) + " bytes are not kept on the " +
            name +
            " tier: none of its slab files has room for one. Set nvme.slab_bytes to at least twice "
            "that, and nvme.capacity_bytes to several of those a path, and restart terraced",
        troubles);
  }
  // A drive that is away takes it along.
  const bool is_of_drive =
      std::ranges::any_of(tier.troubles, [](const DriveTrouble& one) { return one.drive == 0; });
  if (!tier.stats.catalog_trouble.empty() && !is_of_drive) {
    Add(Condition::kCatalogOff,
        "the catalog of the " + name + " tier is off: " + tier.stats.catalog_trouble +
            "; blocks are kept, but a restart reads all header tables, and what is erased is not "
            "in the audit. See catalog/ in the domain's directory on the first of nvme.paths "
            "(space, permissions, lsattr, mount); it is tried again within a minute",
        troubles);
  }
  if (tier.stats.is_at_files_limit) {
    Add(Condition::kFilesAtLimit, FilesSentence(name, tier.stats), troubles);
  }
  if (!IsCapacityLost(tier.stats)) return;
  Add(Condition::kDriveLosesPlaces,
      std::to_string(tier.stats.quarantined_bytes) + " of " +
          std::to_string(tier.stats.capacity_bytes) + " bytes of the " + name +
          " tier are quarantined, more than 1 in " + std::to_string(kLostCapacityDivisor) +
          ": terrace fsck --online --repair tries those places and gives back what the drive "
          "keeps; if they stay, replace the drive",
      troubles);
}

std::string RemedyOfAway(const SharedTierStats& redis) {
  if (redis.is_tls_refused) {
    return redis.tls_trouble.empty()
               ? "See redis.tls_ca_file, redis.tls_certificate_file and redis.tls_key_file, which "
                 "are read again once they change, or the server's certificate"
               : "Files that have changed are not in use: redis." + redis.tls_trouble;
  }
  if (redis.is_of_another_kind) {
    return "See redis.mode, redis.endpoints and redis.master_name, which a restart takes; the "
           "server is tried again by itself";
  }
  return redis.is_refused ? "See redis.credentials_file, which is read again at each login, or the "
                            "server's ACL"
                          : "See the server, the network, and IPAddressAllow= of the unit; it is "
                            "tried again by itself";
}

void AddShared(const SharedTierStats& redis, Troubles* troubles) {
  if (!redis.is_ready) {
    const std::string why = redis.trouble.empty() ? "no server has answered yet" : redis.trouble;
    Add(Condition::kRedisAway,
        "redis is away: " + why + "; what it has are misses. " + RemedyOfAway(redis), troubles);
    return;
  }
  if (!redis.part_trouble.empty()) {
    Add(Condition::kRedisAway,
        "redis is away in part: " + redis.part_trouble +
            "; what it would give are misses, all else is served. " + RemedyOfAway(redis),
        troubles);
  }
  if (!redis.write_trouble.empty()) {
    Add(Condition::kRedisNoWrites,
        "redis takes no writes: " + redis.write_trouble + "; what it has is served. " +
            (redis.is_full ? "Set its maxmemory-policy to allkeys-lru, or give it more memory"
                           : "See its role, its log, min-replicas-to-write and this user's ACL"),
        troubles);
  }
}

void AddFenced(const DomainFigures& domain, Troubles* troubles) {
  const uint64_t fenced_bytes = domain.fenced_bytes + domain.inherited_bytes;
  if (domain.fenced_bytes_max == 0 || fenced_bytes < domain.fenced_bytes_max) return;
  Add(Condition::kFencedMemory,
      std::to_string(fenced_bytes) + " bytes of memory are fenced, the limit is " +
          std::to_string(domain.fenced_bytes_max) +
          " (daemon.fenced_bytes_max): nothing more is stored. Clients that are gone, stopped or "
          "hung may still write there: `terrace status` names them; they must end or go on",
      troubles);
}

void AddRefuted(const DomainFigures& domain, Troubles* troubles) {
  if (domain.refuted_ago_us > kRefutedRecentUs) return;
  std::string who = "a client";
  if (domain.refuted_writer) {
    const RefutedWriter& writer = *domain.refuted_writer;
    who = "session " + SessionText(writer.session) + " of uid " + std::to_string(writer.uid);
    if (writer.pid != 0) {
      who += ", pid " + std::to_string(writer.pid) + " (" + writer.comm + "), client " +
             writer.client_name + ",";
    }
  }
  Add(Condition::kWrongChecksums,
      who + " committed blocks with wrong checksums, the last " +
          std::to_string(domain.refuted_ago_us / kUsPerSecond) +
          " s ago: they were erased. It must not change bytes after it has taken their checksums; "
          "this is told for " +
          std::to_string(kRefutedRecentUs / kUsPerSecond / 60) + " minutes",
      troubles);
}

}  // namespace

std::string ErrorText(int32_t error) {
  return std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")";
}

bool IsCapacityLost(const TierStats& stats) {
  return stats.quarantined_bytes > stats.capacity_bytes / kLostCapacityDivisor;
}

std::vector<Trouble> TroublesOf(const DomainFigures& domain,
                                const std::optional<KvEventCounters>& kv_events) {
  Troubles troubles;
  const char* const kResume = "; `terrace drain --resume` has it serve again";
  if (domain.serving == protocol::ServingMode::kBypassed) {
    Add(Condition::kBypassed,
        std::string("the domain is bypassed: its clients find and store nothing") + kResume,
        &troubles);
  } else if (domain.serving != protocol::ServingMode::kServing) {
    Add(Condition::kDraining,
        std::string("the domain is being drained: it takes nothing new") + kResume, &troubles);
  }
  if (!domain.arena_shortage.empty()) {
    Add(Condition::kArenaShort,
        "DRAM gets less memory than it is to have: " + domain.arena_shortage +
            "; it is tried again each second",
        &troubles);
  }
  for (const DomainFigures::LowerTierStats& tier : domain.lower_tiers) {
    AddTier(domain, tier, &troubles);
  }
  AddGroupFiles(domain.group_files, &troubles);
  if (domain.shared) AddShared(domain.shared->tier, &troubles);
  AddFenced(domain, &troubles);
  AddRefuted(domain, &troubles);
  if (kv_events && !kv_events->is_on && !kv_events->has_ended) {
    Add(Condition::kKvEventsOff,
        "routers are told nothing: kv_events.endpoint or kv_events.replay_endpoint cannot be "
        "bound, and is tried again each 10 s; the log's lines 'kv events try again' say which and "
        "why. Free the port (ss -ltnp), or name another and restart terraced",
        &troubles);
  } else if (kv_events && kv_events->has_ended) {
    Add(Condition::kKvEventsOff,
        "kv events have ended: routers are told nothing more; the log says why, and a restart "
        "begins them again",
        &troubles);
  } else if (kv_events && kv_events->untold_groups > 0) {
    Add(Condition::kKvEventsOff,
        "routers are told nothing of " + std::to_string(kv_events->untold_groups) +
            " SpaceGroups, whose blocks are served: groups were opened faster than routers could "
            "be told that others had gone. It ends as these go; a restart ends it at once",
        &troubles);
  }
  return troubles;
}

}  // namespace terrace
