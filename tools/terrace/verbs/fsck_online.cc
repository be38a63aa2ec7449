#include "tools/terrace/verbs/fsck_online.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "terrace/protocol_introspection.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/content/operator_requests.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

// An answer may take long: a slow drive, a small rate.
constexpr std::chrono::minutes kAnswerTimeMax(10);

std::optional<FsckProblemKind> KindOf(const std::string& name) {
  for (size_t kind = 0; kind < kFsckProblemKinds; ++kind) {
    const auto value = static_cast<FsckProblemKind>(kind);
    if (name == FsckProblemName(value)) return value;
  }
  return std::nullopt;
}

FsckSlab* SlabOf(const json& slab, FsckReport* report) {
  const std::string path = slab.at("path");
  const auto found = std::ranges::find(report->slabs, path, &FsckSlab::path);
  if (found != report->slabs.end()) return &*found;
  report->slabs.push_back({.path = path,
                           .slot_bytes = slab.at("slot_bytes"),
                           .part_count = slab.at("part_count"),
                           .slots = slab.at("slot_count")});
  return &report->slabs.back();
}

struct Sums {
  uint64_t busy = 0;
  uint64_t quarantined_still = 0;  // tried, or not asked to be
  bool has_catalog = true;
};

void AddProblem(const json& told, uint64_t problems_listed_max, Sums* sums, FsckReport* report) {
  const std::optional<FsckProblemKind> kind = KindOf(told.at("kind"));
  if (!kind) return;  // of a newer daemon
  const bool is_repaired = told.at("is_repaired");
  ++report->counts[static_cast<size_t>(*kind)];
  report->repaired += is_repaired ? 1 : 0;
  if (*kind == FsckProblemKind::kEntryQuarantined && !is_repaired) ++sums->quarantined_still;
  if (report->problems.size() >= problems_listed_max) return;
  report->problems.push_back({.kind = *kind, .what = told.at("what"), .is_repaired = is_repaired});
}

void Add(const json& answer, uint64_t problems_listed_max, Sums* sums, FsckReport* report) {
  FsckSlab* slab = SlabOf(answer.at("slab"), report);
  const uint64_t used = answer.at("slab").at("used_count");
  slab->used += used;
  slab->quarantined += answer.at("slab").at("quarantined_count").get<uint64_t>();
  slab->corrupt += answer.at("slab").at("corrupt_count").get<uint64_t>();
  report->entries_used += used;
  report->catalog_records += answer.at("catalog_record_count").get<uint64_t>();
  report->payloads_verified += answer.at("verified_count").get<uint64_t>();
  report->payload_bytes_verified += answer.at("verified_bytes").get<uint64_t>();
  sums->busy += answer.at("busy_count").get<uint64_t>();
  sums->has_catalog = sums->has_catalog && answer.at("has_catalog").get<bool>();
  for (const json& problem : answer.at("problems")) {
    AddProblem(problem, problems_listed_max, sums, report);
  }
}

void AddNotes(const Sums& sums, FsckMode mode, FsckReport* report) {
  if (sums.busy > 0) {
    report->notes.push_back(FormatCount(sums.busy) +
                            " slots were in use by writers all the while and are not judged");
  }
  if (!sums.has_catalog) {
    report->notes.push_back(
        "the catalog is off or being written anew: its records were not compared");
  }
  const uint64_t unknown = report->counts[static_cast<size_t>(FsckProblemKind::kEntryUnknownGroup)];
  if (unknown > 0) report->notes.push_back(UnknownGroupsNote(unknown));
  if (mode == FsckMode::kRepair && sums.quarantined_still > 0) {
    report->notes.push_back(FormatCount(sums.quarantined_still) +
                            " slots stay quarantined: the drive did not keep what was written "
                            "there; see its own log, and replace it if they grow more");
  }
}

void TellUnread(const std::string& why) {
  Fail(fmt::format(
      "fsck: the daemon's answer {}. Are `terrace` and `terraced` of the same release?", why));
}

}  // namespace

bool FsckOnline(const FsckOnlineOptions& options, std::string* domain, FsckReport* report) {
  const auto link = AdminLink::Open(options.address);
  if (link == nullptr || !IsDomain(*link, options.domain)) return false;
  *domain = link->domain_name();
  std::chrono::steady_clock::time_point asked_at;
  link->WaitWhile([&] {
    return std::chrono::steady_clock::now() - asked_at < kAnswerTimeMax &&
           AdminLink::Lives(options.address);
  });
  protocol::FsckRequest request{.verify_bytes_per_second = options.verify_bytes_per_second};
  if (options.payloads == FsckPayloads::kVerify) request.flags |= protocol::kFsckVerify;
  if (options.mode == FsckMode::kRepair) request.flags |= protocol::kFsckRepair;
  Sums sums;
  std::string why;
  try {
    while (true) {
      asked_at = std::chrono::steady_clock::now();
      const auto body = link->Ask(protocol::kVerbFsck, std::as_bytes(std::span(&request, 1)));
      if (!body.ok()) {
        Fail("fsck: the daemon does not check: " + link->why());
        return false;
      }
      const json answer = ParseJson(
          std::string_view(reinterpret_cast<const char*>(body->data()), body->size()), &why);
      if (answer.is_discarded()) {
        TellUnread(why);
        return false;
      }
      if (request.cursor == 0) report->groups = answer.at("group_count");
      if (answer.at("is_done").get<bool>()) break;
      Add(answer, options.problems_listed_max, &sums, report);
      request.cursor = answer.at("next_cursor");
      if (options.progress && report->payload_bytes_verified > 0) {
        options.progress(report->payload_bytes_verified);
      }
    }
  } catch (const json::exception&) {
    TellUnread("lacks a field that this release reads, or has it of another kind");
    return false;
  }
  report->catalog = sums.has_catalog ? FsckCatalog::kInUse : FsckCatalog::kNone;
  AddNotes(sums, options.mode, report);
  return true;
}

}  // namespace terrace::tools
