#include "tiers/disk/table_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <string>

namespace terrace {
namespace {

constexpr uint64_t kFileBytes = 64 * 1024;

class TableWriterTest : public testing::Test {
 protected:
  ~TableWriterTest() override { ::close(fd_); }
  void SetUp() override { ASSERT_EQ(::ftruncate(fd_, kFileBytes), 0); }

  DiskTransfer Entry(uint32_t token, uint64_t offset_bytes, uint64_t length_bytes, char letter) {
    texts_[token] = std::string(length_bytes, letter);
    return {.token = token,
            .op = DiskOp::kWriteTable,
            .fd = fd_,
            .offset_bytes = offset_bytes,
            .memory = reinterpret_cast<std::byte*>(texts_[token].data()),
            .length_bytes = length_bytes};
  }
  void Write(std::vector<DiskTransfer> entries) {
    EXPECT_TRUE(writer_.Add(&entries)) << "nobody is writing";
    EXPECT_TRUE(entries.empty());
    writer_.WriteAll(is_stopping_);
    for (const auto& call : calls_) call();
    calls_.clear();
  }
  std::string Text(uint64_t offset_bytes, uint64_t length_bytes) const {
    std::string text(length_bytes, '?');
    EXPECT_EQ(::pread(fd_, text.data(), length_bytes, static_cast<off_t>(offset_bytes)),
              static_cast<ssize_t>(length_bytes));
    return text;
  }

  int fd_ = ::memfd_create("table", MFD_CLOEXEC);
  std::map<uint32_t, std::string> texts_;
  std::vector<std::function<void()>> calls_;
  std::map<uint32_t, Status> done_;
  uint32_t attempts_ = 0;
  std::function<int64_t(int64_t)> change_ = [](int64_t result) { return result; };
  std::atomic<bool> is_stopping_ = false;
  TableWriter writer_{{.result_filter =
                           [this](DiskOp, int64_t result) {
                             ++attempts_;
                             return change_(result);
                           },
                       .mailbox = std::make_shared<DiskMailbox>(
                           [this](std::function<void()> call) { calls_.push_back(call); },
                           [this](std::span<const DiskCompletion> completions) {
                             for (const DiskCompletion& one : completions) {
                               EXPECT_TRUE(done_.emplace(one.token, one.status).second);
                             }
                           })}};
};

TEST_F(TableWriterTest, EntriesSideBySideAreOneWrite) {
  Write({Entry(1, 4096 + 272, 272, 'b'), Entry(2, 8192, 272, 'd'), Entry(3, 4096, 272, 'a'),
         Entry(4, 4096 + 544, 272, 'c')});
  EXPECT_EQ(attempts_, 2u);
  EXPECT_EQ(done_.size(), 4u);
  for (const auto& [token, status] : done_) EXPECT_TRUE(status.ok()) << token;
  EXPECT_EQ(Text(4096, 3 * 272),
            std::string(272, 'a') + std::string(272, 'b') + std::string(272, 'c'));
  EXPECT_EQ(Text(8192, 272), std::string(272, 'd'));
}

TEST_F(TableWriterTest, WhatCoversTheSameBytesIsWrittenInOrder) {
  Write({Entry(1, 512, 512, 'a'), Entry(2, 0, 4096, 'b'), Entry(3, 512, 16, 'c'),
         Entry(4, 520, 16, 'd')});
  EXPECT_EQ(Text(504, 40), "bbbbbbbbccccccccddddddddddddddddbbbbbbbb");
  EXPECT_EQ(done_.size(), 4u);
}

TEST_F(TableWriterTest, RunThatIsCutShortIsWrittenOneByOne) {
  for (const int64_t cut : {int64_t{300}, int64_t{-EINTR}, int64_t{-EIO}}) {
    done_.clear();
    attempts_ = 0;
    change_ = [&](int64_t result) { return attempts_ == 1 ? cut : result; };
    Write({Entry(1, 0, 272, 'x'), Entry(2, 272, 272, 'y')});
    EXPECT_EQ(attempts_, 3u);
    EXPECT_TRUE(done_.at(1).ok() && done_.at(2).ok());
    EXPECT_EQ(Text(270, 4), "xxyy");
  }
}

TEST_F(TableWriterTest, EachEntryIsToldItsOwnError) {
  change_ = [&](int64_t result) { return attempts_ <= 2 ? -EIO : result; };
  Write({Entry(1, 0, 272, 'x'), Entry(2, 272, 272, 'y')});
  EXPECT_EQ(done_.at(1).detail(), EIO);
  EXPECT_TRUE(done_.at(2).ok());
}

TEST_F(TableWriterTest, NothingIsBegunOnceItStops) {
  is_stopping_ = true;
  Write({Entry(1, 0, 272, 'x')});
  EXPECT_EQ(attempts_, 0u);
  EXPECT_TRUE(done_.empty());
}

}  // namespace
}  // namespace terrace
