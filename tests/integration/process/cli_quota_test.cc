// Two tenants on one drive: what one borrows comes back when the other asks for its guarantee, and
// `terrace quota` tells of it.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "integration/process/cli_fixture.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using nlohmann::json;
using test::Bytes;
using test::Keys;
using test::kLongUs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSlabBytes = 4 * kMiB;
constexpr uint64_t kCapacityBytes = 16 * kSlabBytes;
constexpr uint64_t kQuietBytes = 6 * kSlabBytes;  // what it is guaranteed
constexpr uint32_t kPromptBlocks = 20;
constexpr uint32_t kQuietPrompts = 10;  // five slabs and a half

// One engine of one tenant.
class Tenant {
 public:
  explicit Tenant(const std::string& socket_path) {
    ClientOptions options;
    options.socket_path = socket_path;
    options.default_deadline_us = kLongUs;
    client_ = std::move(Client::Create(options)).value();
    EXPECT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    group_ = client_->Open(test::Model(), 1).value();
  }
  void Store(uint64_t prompt) {
    const auto keys = Keys(kPromptBlocks, prompt);
    auto lease = client_->Reserve(group_, keys).value();
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
    auto lease = client_->Acquire(group_, keys).value();
    if (lease.block_count() > 0) (void)client_->WaitReady(lease, lease.block_count(), kLongUs);
    std::vector<std::byte> bytes(test::kPartBytes);
    uint32_t right_count = 0;
    for (uint32_t k = 0; k < lease.ready_count(); ++k) {
      right_count += lease.CopyPart(k, 0, 1, bytes).ok() && bytes == Bytes(keys[k], 1);
    }
    return right_count;
  }

 private:
  std::unique_ptr<Client> client_;
  GroupRef group_;
};

class CliQuota : public CliTest {
 protected:
  void StartWithTwo() {
    const std::string config = daemon().WriteFile(
        "terraced.toml",
        fmt::format("[daemon]\nstate_dir = \"{0}\"\ndram_bytes = \"64MiB\"\n"
                    "segment_bytes = \"2MiB\"\n"
                    "[nvme]\npaths = [\"{0}/nvme\"]\ncapacity_bytes = {1}\nslab_bytes = {2}\n"
                    "[[domain]]\nname = \"quiet\"\nsocket = \"{3}\"\n"
                    "dram_guaranteed_bytes = \"32MiB\"\nnvme_guaranteed_bytes = {4}\n"
                    "[[domain]]\nname = \"noisy\"\nsocket = \"{0}/noisy.sock\"\n"
                    "nvme_guaranteed_bytes = {2}\n",
                    daemon().directory(), kCapacityBytes, kSlabBytes, socket_path(), kQuietBytes));
    daemon().Start({"--config", config});
    ASSERT_TRUE(daemon().WaitReady()) << daemon().Errors();
  }
  std::string noisy_socket() const { return Path("noisy.sock"); }
  // Of a domain's NVMe, as `terrace quota` says.
  uint64_t Nvme(size_t domain, const char* name) const {
    return TerraceJson({"quota"})["domains"][domain]["tiers"][1].value(name, UINT64_MAX);
  }
  // Prompts until the drive holds no more.
  void FillDrive(Tenant& noisy) {
    for (prompt_ = 1; prompt_ < 200 && Nvme(1, "held_bytes") < kCapacityBytes; ++prompt_) {
      noisy.Store(prompt_);
      ASSERT_TRUE(noisy.WaitPersisted(prompt_));
    }
    ASSERT_EQ(Nvme(1, "held_bytes"), kCapacityBytes) << "nobody else needs it";
  }

  std::atomic<uint64_t> prompt_ = 1;  // of the noisy one
};

TEST_F(CliQuota, SmokeWhatIsLentComesBackToWhoIsGuaranteedIt) {
  StartWithTwo();
  Tenant noisy(noisy_socket());
  FillDrive(noisy);
  EXPECT_EQ(Nvme(1, "borrowed_bytes"), kCapacityBytes - kSlabBytes);
  const json before = TerraceJson({"quota"});
  EXPECT_EQ(before["capacity_bytes"]["nvme"], kCapacityBytes);
  EXPECT_EQ(before["domains"][0]["tiers"][1]["guaranteed_bytes"], kQuietBytes);

  // The noisy one goes on writing as fast as it can.
  std::atomic<bool> is_over = false;
  std::thread noise([&] {
    while (!is_over) noisy.Store(prompt_++);
  });
  const auto since = std::chrono::steady_clock::now();
  Tenant quiet(socket_path());
  uint64_t most_bytes = 0;
  for (uint64_t prompt = 1; prompt <= kQuietPrompts; ++prompt) {
    quiet.Store(prompt);
    EXPECT_TRUE(quiet.WaitPersisted(prompt)) << "prompt " << prompt;
    const uint64_t quiet_bytes = Nvme(0, "held_bytes");
    EXPECT_LE(quiet_bytes, kQuietBytes);
    most_bytes = std::max(most_bytes, quiet_bytes + Nvme(1, "held_bytes"));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
  is_over = true;
  noise.join();
  std::printf("quiet: %u blocks, %.0f MiB of NVMe, in %.1f s; noisy gave %.0f of %.0f MiB\n",
              kQuietPrompts * kPromptBlocks, static_cast<double>(Nvme(0, "held_bytes")) / kMiB,
              took.count(), static_cast<double>(kCapacityBytes - Nvme(1, "held_bytes")) / kMiB,
              static_cast<double>(kCapacityBytes) / kMiB);
  EXPECT_GE(Nvme(0, "held_bytes"), kQuietBytes - kSlabBytes);
  EXPECT_LE(Nvme(0, "held_bytes") + Nvme(1, "held_bytes"), kCapacityBytes);
  EXPECT_LE(most_bytes, kCapacityBytes + kQuietBytes) << "two looks, not one";
  EXPECT_GT(TerraceJson({"quota"})["domains"][1]["tiers"][1]["used_bytes"], 0u)
      << "the noisy one keeps what nobody asked for";

  // What it has stored lies on the drive, and nobody has pushed it out.
  daemon().Signal(SIGKILL);
  daemon().Wait();
  StartWithTwo();
  Tenant again(socket_path());
  for (uint64_t prompt = 1; prompt <= kQuietPrompts; ++prompt) {
    EXPECT_EQ(again.Load(prompt), kPromptBlocks) << "prompt " << prompt;
  }
}

TEST_F(CliQuota, SmokeALimitThatIsLoweredIsReachedWithoutARestart) {
  StartWithTwo();
  Tenant noisy(noisy_socket());
  FillDrive(noisy);
  const Outcome refused = Terrace({"config", "set", "domain.noisy.nvme_guaranteed_bytes=60MiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("sum to 84MiB"), HasSubstr("nvme.capacity_bytes")));
  TerraceJson({"config", "set", fmt::format("domain.noisy.nvme_max_bytes={}", 4 * kSlabBytes)});
  for (int i = 0; i < 1200 && Nvme(1, "held_bytes") > 4 * kSlabBytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(Nvme(1, "held_bytes"), 4 * kSlabBytes);
  EXPECT_EQ(Nvme(1, "leaving_bytes"), 0u);
}

TEST_F(CliQuota, SmokeIsShownIn80Columns) {
  StartWithTwo();
  const Outcome shown = Terrace({"quota"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("DOMAIN"), HasSubstr("GUARANTEE"), HasSubstr("BORROWS"),
                               HasSubstr("quiet   dram"), HasSubstr("24.0 MiB"),
                               HasSubstr("terrace config set domain.")));
  size_t begin = 0;
  for (size_t end; (end = shown.out.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 80u) << shown.out.substr(begin, end - begin);
  }
}

}  // namespace
}  // namespace terrace
