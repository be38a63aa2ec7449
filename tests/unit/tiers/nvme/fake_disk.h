// FakeDisk: a disk that keeps what it is asked until the test answers. It moves no bytes.
#pragma once

#include <string>
#include <vector>

#include "terrace/check.h"
#include "tiers/disk/disk.h"

namespace terrace {

class FakeDisk final : public Disk {
 public:
  explicit FakeDisk(uint32_t queue_max = 8) : queue_max_(queue_max) {}

  // What has been asked and not answered, in order.
  std::vector<DiskRequest> asked;
  // Bytes of the table entries and superblocks among them, copied at Submit as a disk does.
  std::vector<std::vector<std::byte>> bytes;

  // Answers the oldest.
  void Answer(Status status = Status::Ok()) { AnswerAt(0, status); }
  void AnswerAt(size_t at, Status status = Status::Ok()) {
    TERRACE_CHECK(at < asked.size(), "the test answers what was asked");
    const uint64_t tag = asked[at].tag;
    asked.erase(asked.begin() + static_cast<ptrdiff_t>(at));
    bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
    listener_->OnDiskDone(tag, status);
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
  Status ListNow(std::vector<std::string>*) override { return Status::Ok(); }
  Status OpenNow(const std::string&, DiskFile*, uint64_t*) override {
    return Status(StatusCode::kNotFound);
  }
  Status ReadNow(DiskFile, uint64_t, std::span<std::byte>) override {
    return Status(StatusCode::kIo, "nothing is there", 5);
  }
  uint32_t queue_max() const override { return queue_max_; }
  DiskStats stats() const override { return {}; }
  std::string description() const override { return "fake"; }

 private:
  const uint32_t queue_max_;
  DiskListener* listener_ = nullptr;
  DiskFile next_file_ = 0;
};

}  // namespace terrace
