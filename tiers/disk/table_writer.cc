#include "tiers/disk/table_writer.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <thread>
#include <tuple>
#include <utility>

#include "terrace/check.h"
#include "tiers/disk/disk_files.h"

namespace terrace {
namespace {

constexpr size_t kRunMax = 64;  // entries written in one call
// Nobody waits for an entry that eagerly: a block is readable without it.
constexpr auto kGather = std::chrono::microseconds(100);

bool LiesBefore(const DiskTransfer& left, const DiskTransfer& right) {
  return std::tie(left.fd, left.offset_bytes) < std::tie(right.fd, right.offset_bytes);
}
uint64_t EndOf(const DiskTransfer& transfer) {
  return transfer.offset_bytes + transfer.length_bytes;
}

// Sorted by place; false, and as it was, if two of them cover the same bytes: then order counts.
bool SortByPlace(std::vector<DiskTransfer>* batch) {
  std::vector<DiskTransfer> sorted = *batch;
  std::ranges::sort(sorted, LiesBefore);
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].fd == sorted[i - 1].fd && sorted[i].offset_bytes < EndOf(sorted[i - 1])) {
      return false;
    }
  }
  *batch = std::move(sorted);
  return true;
}

}  // namespace

bool TableWriter::Add(std::vector<DiskTransfer>* transfers) {
  std::lock_guard lock(mutex_);
  std::move(transfers->begin(), transfers->end(), std::back_inserter(waiting_));
  transfers->clear();
  return !std::exchange(is_writing_, true);
}

void TableWriter::WriteAll(const std::atomic<bool>& is_stopping) {
  std::this_thread::sleep_for(kGather);
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      std::swap(batch_, waiting_);
      is_writing_ = !batch_.empty();
    }
    if (batch_.empty() || is_stopping) return;
    WriteBatch(is_stopping);
    batch_.clear();
    options_.mailbox->Put(completions_);
    completions_.clear();
  }
}

void TableWriter::WriteBatch(const std::atomic<bool>& is_stopping) {
  const bool may_join = SortByPlace(&batch_);
  for (size_t begin = 0; begin < batch_.size();) {
    size_t end = begin + 1;
    while (may_join && end < batch_.size() && end - begin < kRunMax &&
           batch_[end].fd == batch_[begin].fd &&
           batch_[end].offset_bytes == EndOf(batch_[end - 1])) {
      ++end;
    }
    const auto run = std::span(batch_).subspan(begin, end - begin);
    if (run.size() == 1 || !WriteTogether(run)) {
      for (const DiskTransfer& transfer : run) WriteOne(transfer, is_stopping);
    }
    begin = end;
  }
}

// False: not all of it is written; each by itself will tell why.
bool TableWriter::WriteTogether(std::span<const DiskTransfer> run) {
  TERRACE_CHECK(run.size() <= kRunMax, "entries of one call have places for it");
  std::array<iovec, kRunMax> pieces;
  uint64_t length_bytes = 0;
  for (size_t i = 0; i < run.size(); ++i) {
    pieces[i] = {.iov_base = run[i].memory, .iov_len = run[i].length_bytes};
    length_bytes += run[i].length_bytes;
  }
  const ssize_t written = ::pwritev(run[0].fd, pieces.data(), static_cast<int>(run.size()),
                                    static_cast<off_t>(run[0].offset_bytes));
  int64_t result = written < 0 ? -errno : written;
  if (options_.result_filter) result = options_.result_filter(DiskOp::kWriteTable, result);
  if (result != static_cast<int64_t>(length_bytes)) return false;
  for (const DiskTransfer& transfer : run) completions_.push_back({.token = transfer.token});
  return true;
}

void TableWriter::WriteOne(const DiskTransfer& transfer, const std::atomic<bool>& is_stopping) {
  TransferProgress progress(TransferProgress::Kind::kTable, transfer.op, transfer.length_bytes);
  const Status status = TransferNow(transfer, &progress, options_.result_filter, is_stopping);
  completions_.push_back(
      {.token = transfer.token, .retries = progress.retries(), .status = status});
}

}  // namespace terrace
