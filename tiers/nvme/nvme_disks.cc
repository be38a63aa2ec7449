#include "tiers/nvme/nvme_disks.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "terrace/check.h"

namespace terrace {

static constexpr uint64_t kSilenceTriedUs = 1'000'000;

NvmeDisks::NvmeDisks(Options options, DiskListener* listener) : options_(std::move(options)) {
  TERRACE_CHECK(!options_.disks.empty(), "a tier has a disk");
  for (Disk* disk : options_.disks) {
    disks_.push_back({.disk = disk, .health = DiskHealth(options_.health), .speed = {}});
    disk->SetListener(listener);
  }
}

NvmeDisks::~NvmeDisks() {
  for (const DiskState& disk : disks_) disk.disk->SetListener(nullptr);
}

Status NvmeDisks::Submit(NvmeRequest request, DiskRequest disk_request) {
  DiskState& disk = disks_[request.disk];
  const uint32_t tag = requests_.next();
  disk_request.tag = tag;
  TERRACE_RETURN_IF_ERROR(disk.disk->Submit(disk_request));
  if (request.is_transfer()) {
    disk.transfer_bytes += request.length_bytes;
    ++transfers_in_flight_;
  }
  request.behind_bytes = disk.transfer_bytes;
  request.begun_us = now_us();
  request.op = disk_request.op;
  if (request.op == DiskOp::kCreate) request.length_bytes = disk_request.length_bytes;
  ++disk.requests_in_flight;
  if (request.kind == NvmeRequestKind::kRead) {
    if (disk.reads_awaited++ == 0) disk.silent_since_us = request.begun_us;
    disk.read_begun_us = request.begun_us;
  }
  const uint32_t taken = requests_.Take(std::move(request));
  TERRACE_CHECK(taken == tag, "an answer finds its own request");
  return Status::Ok();
}

NvmeRequest NvmeDisks::Finish(uint64_t tag, Status status) {
  TERRACE_CHECK(requests_.is_taken(tag), "a request is answered once");
  const NvmeRequest request = requests_.Give(static_cast<uint32_t>(tag));
  DiskState& disk = disks_[request.disk];
  --disk.requests_in_flight;
  if (request.kind == NvmeRequestKind::kRead && !request.is_stuck) {
    --disk.reads_awaited;
    disk.silent_since_us = now_us();
  }
  if (request.is_transfer()) {
    disk.transfer_bytes -= request.length_bytes;
    --transfers_in_flight_;
  }
  if (request.kind == NvmeRequestKind::kProbe) return request;
  disk.health.OnOutcome(request.op, status, now_us());
  if (request.op == DiskOp::kCreate && status.detail() == ENOSPC) {
    disk.health.OnNoRoom(request.length_bytes, disk.disk->stats().filesystem_free_bytes);
  }
  return request;
}

void NvmeDisks::MeasureRead(const NvmeRequest& request) {
  disks_[request.disk].speed.OnReadDone({.length_bytes = request.length_bytes,
                                         .behind_bytes = request.behind_bytes,
                                         .duration_us = now_us() - request.begun_us},
                                        now_us());
  read_bytes_ = request.length_bytes;
}

void NvmeDisks::Flush() {
  for (const DiskState& disk : disks_) disk.disk->Flush();
}

bool NvmeDisks::is_any_on() const {
  return std::ranges::any_of(disks_, [](const DiskState& disk) { return disk.health.is_on(); });
}

bool NvmeDisks::is_queue_full(uint32_t disk) const {
  return disks_[disk].requests_in_flight >= disks_[disk].disk->queue_max();
}

bool NvmeDisks::is_any_in_flight() const {
  return std::ranges::any_of(disks_, [](const DiskState& d) { return d.requests_in_flight > 0; });
}

// One read that hangs must not keep away those that would not.
uint64_t NvmeDisks::SilentUs(uint32_t index) const {
  const DiskState& disk = disks_[index];
  if (disk.reads_awaited == 0) return 0;
  const uint64_t silent_us = now_us() - disk.silent_since_us;
  const uint64_t untried_us = now_us() - disk.read_begun_us;
  return untried_us > std::max(kSilenceTriedUs, silent_us / 2) ? 0 : silent_us;
}

uint64_t NvmeDisks::PredictReadUs(uint64_t length_bytes) const {
  const auto count = static_cast<uint64_t>(
      std::ranges::count_if(disks_, [](const DiskState& disk) { return disk.health.is_on(); }));
  if (count == 0) return options_.stuck_us;
  const uint64_t share_bytes = std::max(length_bytes / count, std::min(length_bytes, read_bytes_));
  uint64_t sum_us = 0, last_us = 0;
  for (const DiskState& disk : disks_) {
    if (!disk.health.is_on()) continue;
    const uint64_t us = disk.speed.PredictUs(disk.transfer_bytes + share_bytes, now_us());
    sum_us += us;
    last_us = std::max(last_us, us);
  }
  return share_bytes < length_bytes ? last_us : sum_us / count;
}

void NvmeDisks::SwitchOffStuck() {
  stuck_count_ = 0;
  requests_.ForEach([&](uint32_t, NvmeRequest& request) {
    if (now_us() - request.begun_us <= options_.stuck_us) return;
    ++stuck_count_;
    // Once: a request that never ends costs its slot and its memory, not the disk for good.
    if (std::exchange(request.is_stuck, true)) return;
    if (request.kind == NvmeRequestKind::kRead) --disks_[request.disk].reads_awaited;
    disks_[request.disk].health.SwitchOffStuck(request.op, now_us());
  });
}

std::optional<FileRoom> NvmeDisks::FilesAtLimit() const {
  std::optional<FileRoom> first;
  for (const DiskState& disk : disks_) {
    if (!disk.health.is_on()) continue;
    const FileRoom room = disk.disk->file_room();
    if (!room.is_full()) return std::nullopt;
    if (!first) first = room;
  }
  return first;
}

bool NvmeDisks::TakeRemovals(uint32_t disk) {
  const uint64_t removed_count = disks_[disk].disk->stats().files_removed;
  return removed_count > std::exchange(disks_[disk].removed_count, removed_count);
}

void NvmeDisks::LookForRoom() {
  for (DiskState& disk : disks_) {
    if (disk.health.is_full()) disk.health.OnRoom(disk.disk->stats().filesystem_free_bytes);
  }
}

std::vector<DriveTrouble> NvmeDisks::Troubles() const {
  std::vector<DriveTrouble> troubles;
  for (uint32_t i = 0; i < disks_.size(); ++i) {
    const DiskHealth& health = disks_[i].health;
    const std::string path = disks_[i].disk->directory();
    if (i < options_.lost_mounts.size() && !options_.lost_mounts[i].empty()) {
      troubles.push_back({.path = path, .drive = i, .lost_mount = options_.lost_mounts[i]});
    }
    const bool is_off = !health.is_on() || health.makes_no_files();
    if (!is_off && !health.is_full()) continue;
    DriveTrouble& trouble = troubles.emplace_back();
    trouble.path = path;
    trouble.drive = i;
    trouble.is_off = is_off;
    trouble.makes_no_files = health.makes_no_files();
    trouble.operation = DiskOpName(is_off ? health.failure().op : health.full_op());
    trouble.error = is_off ? health.failure().error : ENOSPC;
    trouble.failures_in_row = is_off ? health.failure().in_row : 0;
    trouble.probe_error = is_off ? health.probe_error() : 0;
    trouble.off_count = health.off_count();
  }
  return troubles;
}

}  // namespace terrace
