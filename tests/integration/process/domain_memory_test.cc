// Memory that goes from one domain to another: nothing of what lay there is seen again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "integration/process/daemon_process.h"
#include "small_space.h"
#include "terrace/client.h"

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint64_t kSlotBytes = 4096;
constexpr uint32_t kKeysPerCall = 512;
constexpr uint32_t kSlots = 3 * 512 * 4;  // of 24 MiB, of 32 that both domains share
constexpr uint64_t kSecret = 0x5EC12E7'0F'0DDBA11;

SpaceGroupSpec Spec() { return {.name = "g", .members = {{.spec = SmallSpace({kSlotBytes})}}}; }

// One tenant, with a domain of its own.
class Tenant {
 public:
  explicit Tenant(const std::string& socket_path) {
    client_ = std::move(Client::Create({.socket_path = socket_path,
                                        .client_name = "tenant",
                                        .default_deadline_us = kLongUs}))
                  .value();
    EXPECT_TRUE(client_->WaitConnected(kLongUs).ok());
    group_ = client_->Open(Spec(), 1).value();
  }

  // Takes all the memory there is for it, call by call. What its slots hold before it writes there
  // is counted: eight bytes in a row that are the other's secret. Then it writes its own.
  uint32_t FillAll(uint64_t others, uint64_t own) {
    uint32_t sealed_count = 0;
    for (uint32_t call = 0; call < kSlots / kKeysPerCall; ++call) {
      std::vector<BlockKey> keys;
      for (uint32_t i = 0; i < kKeysPerCall; ++i) {
        keys.push_back({.low = call * kKeysPerCall + i + 1, .high = own});
      }
      // Segments go from domain to domain while it waits.
      auto lease = client_->Reserve(group_, keys, {.flags = protocol::kKeysFlat});
      if (!lease.ok()) return sealed_count;
      for (uint32_t i = 0; i < kKeysPerCall; ++i) {
        if (!lease->is_reserved(i)) continue;
        const std::span<std::byte> slot = lease->slot(i, 0);
        found_ += Count(slot, others);
        ++searched_;
        for (size_t at = 0; at < slot.size(); at += sizeof(own)) {
          std::memcpy(slot.data() + at, &own, sizeof(own));
        }
        EXPECT_TRUE(lease->ChecksumWrittenPart(i, 0, 0).ok());
      }
      const auto sealed = client_->Commit(*lease);
      sealed_count += sealed.ok() ? *sealed : 0;
    }
    return sealed_count;
  }

  void EvictAll() {
    EXPECT_TRUE(client_->Evict(GroupRef{}, {}, {.flags = protocol::kEvictSubtree}).ok());
  }

  uint64_t searched() const { return searched_; }
  uint64_t found() const { return found_; }

 private:
  static uint64_t Count(std::span<const std::byte> slot, uint64_t secret) {
    uint64_t count = 0;
    for (size_t at = 0; at < slot.size(); at += sizeof(secret)) {
      uint64_t word = 0;
      std::memcpy(&word, slot.data() + at, sizeof(word));
      count += word == secret ? 1 : 0;
    }
    return count;
  }

  std::unique_ptr<Client> client_;
  GroupRef group_;
  uint64_t searched_ = 0;
  uint64_t found_ = 0;
};

// PROMISE: T37 slots that another domain had
TEST(DomainMemory, ASlotShowsNothingOfTheDomainThatHadItBefore) {
  const char* const asked = std::getenv("TERRACE_RECYCLED_SLOTS");
  const uint64_t wanted = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 20'000;
  DaemonProcess daemon;
  std::string config =
      "[daemon]\ndram_bytes = \"32MiB\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 1\n"
      "state_dir = \"" +
      daemon.directory() + "\"\n";
  const std::string sockets[] = {daemon.directory() + "/a.sock", daemon.directory() + "/b.sock"};
  for (const std::string& path : sockets) {
    config += "[[domain]]\nname = \"" + path.substr(path.size() - 6, 1) + "\"\nsocket = \"" + path +
              "\"\ndram_max_bytes = \"32MiB\"\n";
  }
  daemon.Start({"--config", daemon.WriteFile("t.toml", config)});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  Tenant a(sockets[0]), b(sockets[1]);
  uint64_t taken_in_turn = 0;
  for (int round = 0; a.searched() + b.searched() < wanted; ++round) {
    Tenant& tenant = round % 2 == 0 ? a : b;
    const uint32_t sealed = tenant.FillAll(kSecret + (round + 1) % 2, kSecret + round % 2);
    ASSERT_GT(sealed, kSlots / 2) << "round " << round << ": the memory changes hands";
    taken_in_turn += round > 0 ? sealed : 0;
    tenant.EvictAll();
    ASSERT_EQ(a.found() + b.found(), 0u) << "round " << round;
  }
  EXPECT_GT(taken_in_turn, wanted / 2);
}

}  // namespace
}  // namespace terrace::test
