#include "tiers/arena/huge_page_claims.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <optional>

#include "huge_pages.h"

namespace terrace {
namespace {

using Range = HugePageClaims::Range;

constexpr uint32_t kPagesOfAll = 6;

// A file of huge pages, as long as all there are.
struct File {
  File() { EXPECT_EQ(::ftruncate(fd, kPagesOfAll * kHugePageBytes), 0); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(fd); }
  Range Page(uint64_t page) const { return {fd, page * kHugePageBytes, kHugePageBytes}; }
  std::vector<Range> Pages(uint64_t first, uint64_t count) const {
    std::vector<Range> pages;
    for (uint64_t i = 0; i < count; ++i) pages.push_back(Page(first + i));
    return pages;
  }

  const int fd = ::memfd_create("pages", MFD_CLOEXEC | kHugePageFlags);
};

class HugePageClaimsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!pool_.Take(kPagesOfAll)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
    claims_.emplace();
    if (!claims_->ClaimAll(ours_.Pages(0, kPagesOfAll)).ok()) GTEST_SKIP() << "others have them";
  }
  // What another process could have.
  bool CanOthersHave(uint64_t pages) {
    const File file;
    HugePageClaims others;
    return others.ClaimAll(file.Pages(0, pages)).ok();
  }

  test::HugePages pool_;
  const File ours_;
  std::optional<HugePageClaims> claims_;
};

// PROMISE: T33 huge pages that were promised are there
TEST_F(HugePageClaimsTest, NobodyElseGetsWhatIsClaimed) {
  EXPECT_FALSE(CanOthersHave(1));
  claims_->KeepAtMost(4 * kHugePageBytes);
  EXPECT_FALSE(CanOthersHave(1)) << "not yet";
  claims_->Trim();
  EXPECT_EQ(claims_->held_bytes(), 4 * kHugePageBytes);
  EXPECT_FALSE(CanOthersHave(3));
  EXPECT_TRUE(CanOthersHave(2));
  // All or none: what it had it still has, and what it did not get others can.
  EXPECT_EQ(claims_->ClaimAll(File().Pages(0, 3)).detail(), ENOMEM);
  EXPECT_EQ(claims_->held_bytes(), 4 * kHugePageBytes);
  EXPECT_TRUE(CanOthersHave(2));
}

// It is there for whoever touches it, through whatever mapping, and whatever becomes of the pool.
TEST_F(HugePageClaimsTest, WhatComesIntoUseIsThere) {
  void* const mapped = ::mmap(nullptr, kPagesOfAll * kHugePageBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_NORESERVE, ours_.fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  pool_.GiveBack();
  auto* const bytes = static_cast<std::byte*>(mapped);
  for (uint64_t page = 0; page < kPagesOfAll; ++page) {
    ASSERT_TRUE(claims_->Use(ours_.Page(page)).ok());
    bytes[page * kHugePageBytes] = std::byte{1};  // SIGBUS, if it were not there
  }
  EXPECT_EQ(claims_->held_bytes(), 0u);
  ::munmap(mapped, kPagesOfAll * kHugePageBytes);
}

// Memory that one file has claimed and not used is another's who needs it now.
TEST_F(HugePageClaimsTest, AClaimGoesForWhoComesIntoUse) {
  const File other;
  ASSERT_TRUE(claims_->Use(other.Page(0)).ok());
  ASSERT_TRUE(claims_->Use(other.Page(1)).ok());
  EXPECT_EQ(claims_->held_bytes(), 4 * kHugePageBytes);
  for (uint64_t page = 0; page < 4; ++page) ASSERT_TRUE(claims_->Use(ours_.Page(page)).ok());
  EXPECT_EQ(claims_->held_bytes(), 0u);
  EXPECT_EQ(claims_->Use(ours_.Page(4)).detail(), ENOMEM) << "there are no more";
  EXPECT_FALSE(CanOthersHave(1));
}

TEST_F(HugePageClaimsTest, AFileThatGoesTakesItsClaimsAlong) {
  {
    const File other;
    claims_->KeepAtMost(2 * kHugePageBytes);
    claims_->Trim();
    ASSERT_TRUE(claims_->ClaimAll(other.Pages(0, 3)).ok());
    claims_->Forget(other.fd);
  }
  EXPECT_EQ(claims_->held_bytes(), 2 * kHugePageBytes);
  EXPECT_TRUE(CanOthersHave(4));
}

}  // namespace
}  // namespace terrace
