#include "sim/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sim/swarm.h"
#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace::sim {
namespace {

constexpr DiskFault kNoFault = DiskFault::kBusy;  // never drawn for an accepted request

}  // namespace

// ---- the medium ----

std::vector<std::string> SimMedium::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

void SimMedium::Store(Pages& pages, uint64_t offset_bytes, std::span<const std::byte> from) {
  while (!from.empty()) {
    const uint64_t in_page = offset_bytes % kPageBytes;
    const size_t step_bytes = std::min<size_t>(from.size(), kPageBytes - in_page);
    std::shared_ptr<const Page>& page = pages[offset_bytes / kPageBytes];
    auto changed = page ? std::make_shared<Page>(*page) : std::make_shared<Page>();
    std::copy_n(from.begin(), step_bytes, changed->begin() + static_cast<ptrdiff_t>(in_page));
    page = std::move(changed);
    offset_bytes += step_bytes;
    from = from.subspan(step_bytes);
  }
}

void SimMedium::Load(const Pages& pages, uint64_t offset_bytes, std::span<std::byte> into) {
  while (!into.empty()) {
    const uint64_t in_page = offset_bytes % kPageBytes;
    const size_t step_bytes = std::min<size_t>(into.size(), kPageBytes - in_page);
    const auto found = pages.find(offset_bytes / kPageBytes);
    if (found == pages.end()) {
      std::fill_n(into.begin(), step_bytes, std::byte{0});
    } else {
      std::copy_n(found->second->begin() + static_cast<ptrdiff_t>(in_page), step_bytes,
                  into.begin());
    }
    offset_bytes += step_bytes;
    into = into.subspan(step_bytes);
  }
}

void SimMedium::RememberBefore(File& file, uint64_t offset_bytes, uint64_t length_bytes) {
  for (uint64_t page = offset_bytes / kPageBytes;
       page <= (offset_bytes + length_bytes - 1) / kPageBytes; ++page) {
    const auto found = file.current.find(page);
    if (found != file.current.end()) {
      file.previous[page] = found->second;
    } else {
      file.previous.erase(page);
    }
  }
}

void SimMedium::Apply(File& file, uint64_t offset_bytes, std::span<const std::byte> from) {
  if (from.empty()) return;
  for (uint64_t page = RoundUp(offset_bytes, kPageBytes) / kPageBytes;
       (page + 1) * kPageBytes <= offset_bytes + from.size(); ++page) {
    file.spoiled.erase(page);
  }
  RememberBefore(file, offset_bytes, from.size());
  Store(file.current, offset_bytes, from);
  file.writes.push_back({next_sequence_++, offset_bytes, {from.begin(), from.end()}});
}

void SimMedium::Peek(const std::string& name, uint64_t offset_bytes,
                     std::span<std::byte> into) const {
  Load(files_.at(name).current, offset_bytes, into);
}

void SimMedium::Poke(const std::string& name, uint64_t offset_bytes,
                     std::span<const std::byte> from) {
  File& file = files_[name];
  if (!file.is_durable) file.is_durable = true;
  file.length_bytes = std::max(file.length_bytes, offset_bytes + from.size());
  Store(file.current, offset_bytes, from);
  Store(file.durable, offset_bytes, from);
}

void SimMedium::Spoil(const std::string& name, uint64_t offset_bytes, uint64_t length_bytes) {
  File& file = files_.at(name);
  for (uint64_t at = 0; at < length_bytes; at += kPageBytes) {
    file.spoiled.insert((offset_bytes + at) / kPageBytes);
  }
}

bool SimMedium::IsSpoiled(const File& file, uint64_t offset_bytes, uint64_t length_bytes) {
  const auto first = file.spoiled.lower_bound(offset_bytes / kPageBytes);
  return first != file.spoiled.end() && *first * kPageBytes < offset_bytes + length_bytes;
}

void SimMedium::FlipBit(const std::string& name, uint64_t offset_bytes, uint32_t bit) {
  std::byte byte{};
  Peek(name, offset_bytes, {&byte, 1});
  byte ^= std::byte{1} << bit;
  Poke(name, offset_bytes, {&byte, 1});
}

void SimMedium::Remove(const std::string& name) { files_.erase(name); }

uint64_t SimMedium::used_bytes() const {
  uint64_t sum_bytes = 0;
  for (const auto& [name, file] : files_) sum_bytes += file.length_bytes;
  return sum_bytes;
}

uint64_t SimMedium::unsynced_writes() const {
  uint64_t sum = 0;
  for (const auto& [name, file] : files_) sum += file.writes.size();
  return sum;
}

// ---- the disk ----

SimDisk::SimDisk(SimMedium& medium, const Options& options)
    : medium_(medium), options_(options), random_(options.seed), now_us_(options.start_us) {
  TERRACE_CHECK(options.queue_max > 0 && options.bytes_per_us > 0, "zero never means unlimited");
  TERRACE_CHECK(options.latency_us_min <= options.latency_us_max, "a range of latencies");
}

bool SimDisk::Strikes(DiskFault fault) {
  const auto index = static_cast<size_t>(fault);
  const uint32_t rate_ppm = rates_ppm_[index];
  if (rate_ppm == 0) return false;
  const uint64_t word =
      options_.has_stream_per_fault ? HashOf(options_.seed, index, ++draws_[index]) : random_();
  if (word % 1'000'000 >= rate_ppm) return false;
  ++struck_[static_cast<size_t>(fault)];
  return true;
}

DiskFault SimDisk::DrawFault(DiskOp op) {
  const auto first_of = [this](std::initializer_list<DiskFault> faults) {
    for (const DiskFault fault : faults) {
      if (Strikes(fault)) return fault;
    }
    return kNoFault;
  };
  switch (op) {
    case DiskOp::kRead:
      return first_of(
          {DiskFault::kStuck, DiskFault::kReadFails, DiskFault::kShort, DiskFault::kStaleRead});
    case DiskOp::kWrite:
      return first_of(
          {DiskFault::kStuck, DiskFault::kWriteFails, DiskFault::kShort, DiskFault::kMisdirected});
    case DiskOp::kWriteTable:
      return first_of({DiskFault::kStuck, DiskFault::kWriteFails, DiskFault::kShort});
    case DiskOp::kSync:
      return first_of({DiskFault::kStuck, DiskFault::kSyncFails});
    case DiskOp::kCreate:
      return first_of({DiskFault::kStuck, DiskFault::kCreateNoSpace, DiskFault::kCreateFails,
                       DiskFault::kCreateVanishes});
    case DiskOp::kRemove:
      return first_of({DiskFault::kStuck});
  }
  return kNoFault;
}

// Which of two writes to one place lasts is nobody's to know. (The sector of the superblock is also
// where a failed disk is tried, whatever hangs there.)
void SimDisk::CheckNoOverlap(const DiskRequest& request) const {
  const auto is_write = [](const DiskRequest& one) {
    return (one.op == DiskOp::kWrite || one.op == DiskOp::kWriteTable) && one.offset_bytes >= 4096;
  };
  if (!is_write(request)) return;
  const auto check = [&](const DiskRequest& other, const Pending& pending) {
    if (!is_write(other) || other.file != request.file) return;
    TERRACE_CHECK(request.offset_bytes >= other.offset_bytes + BytesOf(pending).size() ||
                      other.offset_bytes >= request.offset_bytes + request.from.size(),
                  "two writes of one place are in flight");
  };
  for (const auto& [due, pending] : queue_) check(pending.request, pending);
  for (const Pending& pending : stuck_) check(pending.request, pending);
}

Status SimDisk::Submit(const DiskRequest& request) {
  TERRACE_CHECK(listener_ != nullptr, "a request has somebody to report to");
  if (is_dead_) return Status(StatusCode::kBusy, "the machine has stopped");
  if (queue_.size() + stuck_.size() >= options_.queue_max || Strikes(DiskFault::kBusy)) {
    return Status(StatusCode::kBusy, "queue_max requests are in flight");
  }
  Pending pending{.request = request};
  const uint64_t length_bytes = request.into.size() + request.from.size();
  if (request.op == DiskOp::kRead || request.op == DiskOp::kWrite) {
    const auto address = reinterpret_cast<uintptr_t>(
        request.op == DiskOp::kRead ? request.into.data() : request.from.data());
    TERRACE_CHECK(length_bytes > 0 && (address | length_bytes | request.offset_bytes) % 4096 == 0,
                  "payload is whole, aligned sectors");
  } else {
    TERRACE_CHECK(length_bytes <= 4096, "small requests fit one sector");
    TERRACE_CHECK(
        request.op != DiskOp::kWriteTable || request.offset_bytes % 4096 + length_bytes <= 4096,
        "a table write stays within one sector");
    pending.copied.assign(request.from.begin(), request.from.end());
  }
  CheckNoOverlap(request);
  pending.sequence_at_submit = medium_.next_sequence_;
  pending.fault = DrawFault(request.op);
  ++submitted_;
  if (pending.fault == DiskFault::kStuck) {
    stuck_.push_back(std::move(pending));
    return Status::Ok();
  }
  const uint64_t transfer_us = (length_bytes + options_.bytes_per_us - 1) / options_.bytes_per_us;
  link_free_at_us_ = std::max(link_free_at_us_, now_us_) + transfer_us;
  const uint64_t latency_us =
      options_.latency_us_min + random_() % (options_.latency_us_max - options_.latency_us_min + 1);
  queue_.emplace(std::pair(link_free_at_us_ + latency_us, submitted_), std::move(pending));
  return Status::Ok();
}

void SimDisk::ReleaseStuck() {
  for (Pending& pending : stuck_) {
    pending.fault = kNoFault;
    queue_.emplace(std::pair(now_us_, ++submitted_), std::move(pending));
  }
  stuck_.clear();
}

void SimDisk::RunUntil(uint64_t now_us) {
  while (!is_dead_ && !queue_.empty() && queue_.begin()->first.first <= now_us) {
    now_us_ = std::max(now_us_, queue_.begin()->first.first);
    Pending pending = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    const Status status = Finish(pending);
    if (!status.ok()) ++stats_.failures;
    listener_->OnDiskDone(pending.request.tag, status);
  }
  now_us_ = std::max(now_us_, now_us);
}

uint64_t SimDisk::NextCompletionUs() const {
  return is_dead_ || queue_.empty() ? UINT64_MAX : queue_.begin()->first.first;
}

SimMedium::File* SimDisk::Find(DiskFile file) {
  if (file >= names_.size()) return nullptr;
  const auto found = medium_.files_.find(names_[file]);
  return found == medium_.files_.end() ? nullptr : &found->second;
}

std::span<const std::byte> SimDisk::BytesOf(const Pending& pending) const {
  return pending.request.op == DiskOp::kWrite ? pending.request.from
                                              : std::span<const std::byte>(pending.copied);
}

Status SimDisk::Finish(Pending& pending) {
  const DiskRequest& request = pending.request;
  if (request.op == DiskOp::kCreate) return FinishCreate(pending);
  SimMedium::File* file = Find(request.file);
  if (file == nullptr) return Status(StatusCode::kIo, "no such file", EBADF);
  switch (request.op) {
    case DiskOp::kRead:
      return FinishRead(pending);
    case DiskOp::kWrite:
    case DiskOp::kWriteTable:
      return FinishWrite(pending);
    case DiskOp::kSync:
      return FinishSync(pending);
    default:
      break;
  }
  medium_.files_.erase(names_[request.file]);  // kRemove
  names_[request.file].clear();
  return Status::Ok();
}

Status SimDisk::FinishRead(const Pending& pending) {
  SimMedium::File& file = *Find(pending.request.file);
  std::span<std::byte> into = pending.request.into;
  const uint64_t offset_bytes = pending.request.offset_bytes;
  if (pending.fault == DiskFault::kReadFails) return Status(StatusCode::kIo, "injected", EIO);
  if (offset_bytes + into.size() > file.length_bytes) {
    return Status(StatusCode::kIo, "past the end", ENODATA);
  }
  if (pending.fault == DiskFault::kShort) {
    SimMedium::Load(file.current, offset_bytes, into.first(into.size() / 2));
    return Status(StatusCode::kIo, "injected: short");
  }
  if (SimMedium::IsSpoiled(file, offset_bytes, into.size())) {
    return Status(StatusCode::kIo, "spoiled", EIO);
  }
  SimMedium::Load(pending.fault == DiskFault::kStaleRead ? file.previous : file.current,
                  offset_bytes, into);
  stats_.read_bytes += into.size();
  return Status::Ok();
}

void SimDisk::ArriveInPart(SimMedium::Pages& pages, uint64_t offset_bytes,
                           std::span<const std::byte> bytes) {
  uint64_t coins = 0;
  for (uint32_t sector = 0; !bytes.empty(); ++sector) {
    const size_t step_bytes = std::min<size_t>(
        bytes.size(), SimMedium::kSectorBytes - offset_bytes % SimMedium::kSectorBytes);
    if (sector % 64 == 0) coins = random_();
    if ((coins >> (sector % 64)) & 1) {
      SimMedium::Store(pages, offset_bytes, bytes.first(step_bytes));
    }
    offset_bytes += step_bytes;
    bytes = bytes.subspan(step_bytes);
  }
}

Status SimDisk::FinishWrite(const Pending& pending) {
  SimMedium::File& file = *Find(pending.request.file);
  const std::span<const std::byte> from = BytesOf(pending);
  uint64_t offset_bytes = pending.request.offset_bytes;
  TERRACE_CHECK(offset_bytes + from.size() <= file.length_bytes, "files never grow");
  if (pending.fault == DiskFault::kShort) {
    medium_.Apply(file, offset_bytes, from.first(from.size() / 2));
    return Status(StatusCode::kIo, "injected: short");
  }
  if (pending.fault == DiskFault::kWriteFails) {
    const size_t arrived_bytes = random_() % (from.size() / SimMedium::kSectorBytes + 1);
    medium_.Apply(file, offset_bytes, from.first(arrived_bytes * SimMedium::kSectorBytes));
    return Status(StatusCode::kIo, "injected", EIO);
  }
  if (pending.fault == DiskFault::kMisdirected) {
    const uint64_t places = (file.length_bytes - from.size()) / 4096 + 1;
    offset_bytes = random_() % places * 4096;
  }
  if (from.size() < SimMedium::kPageBytes &&
      SimMedium::IsSpoiled(file, offset_bytes, from.size())) {
    return Status(StatusCode::kIo, "spoiled: what is beside it cannot be read", EIO);
  }
  medium_.Apply(file, offset_bytes, from);
  stats_.written_bytes += from.size();
  return Status::Ok();
}

Status SimDisk::FinishSync(const Pending& pending) {
  SimMedium::File& file = *Find(pending.request.file);
  const bool is_failed = pending.fault == DiskFault::kSyncFails;
  std::erase_if(file.writes, [&](const SimMedium::Write& write) {
    if (write.sequence >= pending.sequence_at_submit) return false;
    if (!is_failed) SimMedium::Store(file.durable, write.offset_bytes, write.bytes);
    return true;
  });
  if (is_failed) return Status(StatusCode::kIo, "injected", EIO);
  file.is_durable = true;
  return Status::Ok();
}

Status SimDisk::FinishCreate(const Pending& pending) {
  const DiskRequest& request = pending.request;
  TERRACE_CHECK(request.file < names_.size(), "a number from NewFile()");
  if (pending.fault == DiskFault::kCreateFails) return Status(StatusCode::kIo, "injected", EIO);
  if (pending.fault == DiskFault::kCreateNoSpace ||
      medium_.used_bytes() + request.length_bytes > medium_.capacity_bytes_) {
    return Status(StatusCode::kIo, "no space left on device", ENOSPC);
  }
  if (medium_.files_.contains(request.name)) {
    return Status(StatusCode::kIo, "the file exists", EEXIST);
  }
  if (pending.fault == DiskFault::kCreateVanishes) {
    return Status(StatusCode::kNotFound, "injected: removed while it was made");
  }
  SimMedium::File& file = medium_.files_[request.name];
  file = SimMedium::File{.length_bytes = request.length_bytes};
  names_[request.file] = request.name;
  medium_.Apply(file, 0, pending.copied);
  return Status::Ok();
}

void SimDisk::PowerLoss() {
  is_dead_ = true;
  const auto in_flight_to = [this](const std::string& name, const auto& visit) {
    for (const auto& [due, pending] : queue_) {
      const DiskOp op = pending.request.op;
      if ((op == DiskOp::kWrite || op == DiskOp::kWriteTable) &&
          names_[pending.request.file] == name) {
        visit(pending);
      }
    }
    for (const Pending& pending : stuck_) {
      const DiskOp op = pending.request.op;
      if ((op == DiskOp::kWrite || op == DiskOp::kWriteTable) &&
          names_[pending.request.file] == name) {
        visit(pending);
      }
    }
  };
  const auto is_being_removed = [this](const std::string& name) {
    const auto removes = [&](const Pending& pending) {
      return pending.request.op == DiskOp::kRemove && names_[pending.request.file] == name;
    };
    return std::ranges::any_of(queue_, [&](const auto& one) { return removes(one.second); }) ||
           std::ranges::any_of(stuck_, removes);
  };
  for (auto at = medium_.files_.begin(); at != medium_.files_.end();) {
    SimMedium::File& file = at->second;
    // The directory is written when the kernel likes, unless a sync of the file has seen to it.
    if ((!file.is_durable || is_being_removed(at->first)) && random_() % 2 == 0) {
      at = medium_.files_.erase(at);
      continue;
    }
    for (const SimMedium::Write& write : file.writes) {
      ArriveInPart(file.durable, write.offset_bytes, write.bytes);
    }
    in_flight_to(at->first, [&](const Pending& pending) {
      ArriveInPart(file.durable, pending.request.offset_bytes, BytesOf(pending));
    });
    file.current = file.durable;
    file.previous.clear();
    file.writes.clear();
    file.is_durable = true;
    ++at;
  }
  queue_.clear();
  stuck_.clear();
}

void SimDisk::KillProcess() {
  is_dead_ = true;
  for (auto& [due, pending] : queue_) {
    const DiskOp op = pending.request.op;
    if (op == DiskOp::kWrite || op == DiskOp::kWriteTable) {
      if (Find(pending.request.file) == nullptr) continue;
      const uint64_t fate = random_() % 3;  // wholly, in part, not at all
      if (fate == 0) pending.fault = kNoFault;
      if (fate == 1) pending.fault = DiskFault::kWriteFails;
      if (fate < 2) (void)FinishWrite(pending);
    } else if (op == DiskOp::kCreate && random_() % 2 == 0) {
      (void)FinishCreate(pending);
    } else if (op == DiskOp::kRemove && random_() % 2 == 0) {
      (void)Finish(pending);
    }
  }
  queue_.clear();
  stuck_.clear();
}

FileRoom SimDisk::file_room() const {
  if (options_.files_max == UINT64_MAX) return {};
  const auto made = std::ranges::count_if(names_, [](const auto& name) { return !name.empty(); });
  const auto coming = std::ranges::count_if(
      queue_, [](const auto& entry) { return entry.second.request.op == DiskOp::kCreate; });
  return {.open_count = static_cast<uint64_t>(made + coming), .files_max = options_.files_max};
}

DiskFile SimDisk::NewFile() {
  if (file_room().is_full()) return kDiskFileNone;
  names_.emplace_back();
  return static_cast<DiskFile>(names_.size() - 1);
}

Status SimDisk::ListNow(std::vector<std::string>* names) {
  *names = medium_.Names();
  return Status::Ok();
}

Status SimDisk::OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) {
  const auto found = medium_.files_.find(name);
  if (found == medium_.files_.end()) {
    return Status(StatusCode::kNotFound, "no such file");
  }
  *length_bytes = found->second.length_bytes;
  *file = NewFile();
  if (*file == kDiskFileNone) return Status(StatusCode::kNoSpace, "as many are open as may be");
  names_[*file] = name;
  return Status::Ok();
}

Status SimDisk::ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) {
  const SimMedium::File* found = Find(file);
  if (found == nullptr) return Status(StatusCode::kIo, "no such file", EBADF);
  if (Strikes(DiskFault::kReadFails)) return Status(StatusCode::kIo, "injected", EIO);
  if (offset_bytes + into.size() > found->length_bytes) {
    return Status(StatusCode::kIo, "past the end", ENODATA);
  }
  if (SimMedium::IsSpoiled(*found, offset_bytes, into.size())) {
    return Status(StatusCode::kIo, "spoiled", EIO);
  }
  SimMedium::Load(found->current, offset_bytes, into);
  return Status::Ok();
}

DiskStats SimDisk::stats() const {
  DiskStats stats = stats_;
  stats.requests_in_flight = queue_.size() + stuck_.size();
  stats.filesystem_bytes = medium_.capacity_bytes_;
  stats.filesystem_free_bytes =
      medium_.capacity_bytes_ - std::min(medium_.capacity_bytes_, medium_.used_bytes());
  return stats;
}

}  // namespace terrace::sim
