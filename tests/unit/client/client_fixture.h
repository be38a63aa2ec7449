// A Client that is connected to a scripted daemon and has opened the test group.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "unit/client/scripted_daemon.h"

namespace terrace {

inline constexpr uint64_t kLongUs = 10'000'000;

// Polls, for what the library does on a thread of its own. False after 10 s.
template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

class ClientFixture : public testing::Test {
 protected:
  explicit ClientFixture(const ScriptedDaemon::Options& options = {}) : daemon_(options) {}
  void SetUp() override { Connect(TestOptions(daemon_)); }

  void Connect(const ClientOptions& options) {
    Result<std::unique_ptr<Client>> client = Client::Create(options);
    ASSERT_TRUE(client.ok());
    client_ = std::move(client).value();
    ASSERT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    Result<GroupRef> group = client_->Open(TestGroup(), 1);
    ASSERT_TRUE(group.ok()) << client_->last_error();
    group_ = *group;
  }

  // The end of the present connection, and the next one.
  void Reconnect() {
    const uint32_t before = daemon_.connection_count();
    daemon_.Disconnect();
    ASSERT_TRUE(Eventually([&] { return daemon_.connection_count() > before; }));
    ASSERT_TRUE(Eventually([&] { return client_->is_connected(); }));
  }

  ReadLease Acquire(uint32_t count, const RequestOptions& options = {}) {
    Result<ReadLease> lease = client_->Acquire(group_, TestKeys(count), options);
    EXPECT_TRUE(lease.ok()) << client_->last_error();
    return lease.ok() ? std::move(lease).value() : ReadLease();
  }
  WriteLease Reserve(uint32_t count) {
    Result<WriteLease> lease = client_->Reserve(group_, TestKeys(count));
    EXPECT_TRUE(lease.ok()) << client_->last_error();
    return lease.ok() ? std::move(lease).value() : WriteLease();
  }
  void Revoke(const LeaseToken& token) {
    BodyBuilder body;
    body.Add(protocol::LeaseRevoked{.token = token});
    daemon_.Tell(protocol::Verb::kLeaseRevoked, 0, StatusCode::kOk, body.bytes());
  }

  ScriptedDaemon daemon_;
  std::unique_ptr<Client> client_;
  GroupRef group_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(8192);
  const std::vector<std::byte> part_ = std::vector<std::byte>(8192, std::byte{0x5a});
};

}  // namespace terrace
