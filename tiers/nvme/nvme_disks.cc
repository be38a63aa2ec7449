#include "tiers/nvme/nvme_disks.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "terrace/check.h"

namespace terrace {

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
  ++disk.requests_in_flight;
  if (request.kind == NvmeRequestKind::kRead && disk.reads_awaited++ == 0) {
    disk.silent_since_us = request.begun_us;
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
  const bool is_full = status.code() == StatusCode::kIo && status.detail() == ENOSPC;
  if (request.kind != NvmeRequestKind::kProbe && !is_full) {
    disk.health.OnOutcome(status, now_us());
  }
  return request;
}

void NvmeDisks::MeasureRead(const NvmeRequest& request) {
  disks_[request.disk].speed.OnReadDone({.length_bytes = request.length_bytes,
                                         .behind_bytes = request.behind_bytes,
                                         .duration_us = now_us() - request.begun_us});
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

uint64_t NvmeDisks::SilentUs(const DiskState& disk) const {
  return disk.reads_awaited == 0 ? 0 : now_us() - disk.silent_since_us;
}

uint64_t NvmeDisks::PredictReadUs(uint64_t length_bytes) const {
  const auto count = static_cast<uint64_t>(
      std::ranges::count_if(disks_, [](const DiskState& disk) { return disk.health.is_on(); }));
  if (count == 0) return options_.stuck_us;
  const uint64_t share_bytes = std::max(length_bytes / count, std::min(length_bytes, read_bytes_));
  uint64_t sum_us = 0, last_us = 0;
  for (const DiskState& disk : disks_) {
    if (!disk.health.is_on()) continue;
    const uint64_t us =
        std::max(disk.speed.PredictUs(disk.transfer_bytes + share_bytes), SilentUs(disk));
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
    disks_[request.disk].health.SwitchOff(now_us());
  });
}

}  // namespace terrace
