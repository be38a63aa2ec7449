// An engine that stores prompts, loads them again and compares every byte; and what lies below a
// directory.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"

namespace terrace::test {

inline constexpr uint32_t kPromptBlocks = 20;

// One engine of one tenant.
class Tenant {
 public:
  explicit Tenant(const std::string& socket_path) {
    ClientOptions options;
    options.socket_path = socket_path;
    options.default_deadline_us = kLongUs;
    client_ = std::move(Client::Create(options)).value();
    EXPECT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    group_ = client_->Open(Model(), 1).value();
  }
  void Store(uint64_t prompt) {
    const auto keys = Keys(kPromptBlocks, prompt);
    auto reserved = client_->Reserve(group_, keys);
    if (!reserved.ok()) return Excuse(reserved.status());
    WriteLease lease = std::move(reserved).value();
    for (uint32_t k = 0; k < keys.size(); ++k) {
      for (uint32_t part = 0; part < 2 && lease.is_reserved(k); ++part) {
        EXPECT_TRUE(lease.WritePart(k, 0, part, Bytes(keys[k], part)).ok());
      }
    }
    EXPECT_TRUE(client_->Commit(lease).ok());
  }
  bool WaitPersisted(uint64_t prompt) {
    return client_->WaitPersisted(group_, Keys(kPromptBlocks, prompt)).ok();
  }
  // Blocks that are there, with the right bytes.
  uint32_t Load(uint64_t prompt) {
    const auto keys = Keys(kPromptBlocks, prompt);
    auto acquired = client_->Acquire(group_, keys);
    if (!acquired.ok()) return Excuse(acquired.status()), 0;
    ReadLease lease = std::move(acquired).value();
    if (lease.block_count() > 0) (void)client_->WaitReady(lease, lease.block_count(), kLongUs);
    std::vector<std::byte> bytes(kPartBytes);
    uint32_t right_count = 0;
    for (uint32_t k = 0; k < lease.ready_count(); ++k) {
      if (!lease.CopyPart(k, 0, 1, bytes).ok()) continue;  // it has been let go meanwhile
      const bool is_right = bytes == Bytes(keys[k], 1);
      right_count += is_right;
      wrong_count_ += !is_right;
    }
    return right_count;
  }
  uint32_t wrong_count() const { return wrong_count_; }

 private:
  // There is no room just now: an engine goes on without the cache.
  void Excuse(const Status& status) {
    EXPECT_TRUE(status.code() == StatusCode::kBusy || status.code() == StatusCode::kNoSpace)
        << client_->last_error();
  }

  std::unique_ptr<Client> client_;
  GroupRef group_;
  uint32_t wrong_count_ = 0;
};

// What slab files take; catalogs do not count.
inline uint64_t SlabBytesBelow(const std::string& directory) {
  uint64_t sum_bytes = 0;
  std::error_code gone;  // files come and go
  for (auto at = std::filesystem::recursive_directory_iterator(directory, gone);
       !gone && at != std::filesystem::recursive_directory_iterator(); at.increment(gone)) {
    if (at->path().extension() != ".terrace") continue;
    std::error_code error;
    const uint64_t bytes = at->file_size(error);
    if (!error) sum_bytes += bytes;
  }
  return sum_bytes;
}

}  // namespace terrace::test
