// FakeDisk: a disk that keeps what it is asked until the test answers. It moves no bytes; what is
// read at start comes from `files`.
#pragma once

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "terrace/check.h"
#include "tiers/disk/disk.h"

namespace terrace {

class FakeDisk final : public Disk {
 public:
  explicit FakeDisk(uint32_t queue_max = 8) : queue_max_(queue_max) {}

  // What has been asked and not answered, in order.
  std::vector<DiskRequest> asked;
  // Bytes of the writes among them, copied at Submit as a disk does with those of a table.
  std::vector<std::vector<std::byte>> bytes;

  // As ListNow, OpenNow and ReadNow find them.
  std::map<std::string, std::vector<std::byte>> files;
  std::set<uint64_t> bad_offsets;  // what a read covers of them, in any file, fails

  uint64_t free_bytes = 0;  // of its file system
  uint64_t removed_count = 0;

  // Answers the oldest.
  void Answer(Status status = Status::Ok()) { AnswerAt(0, status); }
  void AnswerAt(size_t at, Status status = Status::Ok()) {
    TERRACE_CHECK(at < asked.size(), "the test answers what was asked");
    const uint64_t tag = asked[at].tag;
    asked.erase(asked.begin() + static_cast<ptrdiff_t>(at));
    bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
    listener_->OnDiskDone(tag, status);
  }
  // The operations that wait for an answer, in order.
  std::vector<DiskOp> ops() const {
    std::vector<DiskOp> ops;
    for (const DiskRequest& request : asked) ops.push_back(request.op);
    return ops;
  }
  DiskListener* listener() const { return listener_; }

  void SetListener(DiskListener* listener) override { listener_ = listener; }
  Status Submit(const DiskRequest& request) override {
    if (asked.size() >= queue_max_) return Status(StatusCode::kBusy, "the queue is full");
    asked.push_back(request);
    bytes.emplace_back(request.from.begin(), request.from.end());
    return Status::Ok();
  }
  void Flush() override {}
  DiskFile NewFile() override { return next_file_++; }
  Status ListNow(std::vector<std::string>* names) override {
    for (const auto& [name, content] : files) names->push_back(name);
    return Status::Ok();
  }
  Status OpenNow(const std::string& name, DiskFile* file, uint64_t* length_bytes) override {
    const auto found = files.find(name);
    if (found == files.end()) return Status(StatusCode::kNotFound);
    *file = next_file_++;
    *length_bytes = found->second.size();
    opened_[*file] = name;
    return Status::Ok();
  }
  Status ReadNow(DiskFile file, uint64_t offset_bytes, std::span<std::byte> into) override {
    const auto opened = opened_.find(file);
    const uint64_t end_bytes = offset_bytes + into.size();
    const auto bad = bad_offsets.lower_bound(offset_bytes);
    if (opened == opened_.end() || end_bytes > files.at(opened->second).size() ||
        (bad != bad_offsets.end() && *bad < end_bytes)) {
      return Status(StatusCode::kIo, "nothing is there", EIO);
    }
    const std::vector<std::byte>& content = files.at(opened->second);
    std::copy_n(content.begin() + static_cast<ptrdiff_t>(offset_bytes), into.size(), into.begin());
    return Status::Ok();
  }
  uint32_t queue_max() const override { return queue_max_; }
  DiskStats stats() const override {
    return {.filesystem_free_bytes = free_bytes, .files_removed = removed_count};
  }
  std::string description() const override { return "fake"; }
  std::string directory() const override { return "/fake"; }

 private:
  const uint32_t queue_max_;
  DiskListener* listener_ = nullptr;
  DiskFile next_file_ = 0;
  std::map<DiskFile, std::string> opened_;
};

}  // namespace terrace
