// Segments of the arena registered with a device, whose driver is in the test's hand.
#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>

#include "cuda/host/host_device.h"
#include "cuda/host/host_pins.h"
#include "terrace/protocol_device.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;
using testing::HasSubstr;

constexpr uint64_t kSegment = kSegmentBytesMin;

// The host's device, but for registering.
class Driver {
 public:
  Driver() {
    g_driver = this;
    ops_.register_host = [](DeviceHandle*, void* address, uint64_t byte_count, void** reached) {
      *reached = address;
      return g_driver->Register(address, byte_count);
    };
    ops_.unregister_host = [](DeviceHandle*, void* address) {
      return g_driver->Unregister(address);
    };
    device_ = std::make_shared<Device>(std::move(Device::Open(ops_)).value());
  }
  std::shared_ptr<const Device> device() const { return device_; }
  void set_failing(bool is_failing) {
    const std::lock_guard guard(mutex_);
    is_failing_ = is_failing;
  }
  // Calls to register wait while the gate is closed.
  void SetGate(bool is_open) {
    const std::lock_guard guard(mutex_);
    is_gate_open_ = is_open;
    changed_.notify_all();
  }
  bool WaitForWaiting() {
    std::unique_lock guard(mutex_);
    return changed_.wait_for(guard, std::chrono::seconds(10), [&] { return waiting_count_ > 0; });
  }
  bool WaitForRegistered(size_t count) {
    std::unique_lock guard(mutex_);
    return changed_.wait_for(guard, std::chrono::seconds(10),
                             [&] { return registered_.size() == count; });
  }
  size_t registered_count() {
    const std::lock_guard guard(mutex_);
    return registered_.size();
  }
  // A call came on a thread of the test's.
  bool was_called_here() {
    const std::lock_guard guard(mutex_);
    return was_called_here_;
  }

 private:
  DeviceStatus Register(void* address, uint64_t byte_count) {
    std::unique_lock guard(mutex_);
    was_called_here_ |= std::this_thread::get_id() == test_thread_;
    ++waiting_count_;
    changed_.notify_all();
    changed_.wait(guard, [&] { return is_gate_open_; });
    --waiting_count_;
    if (is_failing_) {
      return {static_cast<int32_t>(StatusCode::kNoSpace), 2, "out of memory, the driver says"};
    }
    registered_[address] = byte_count;
    changed_.notify_all();
    return {};
  }
  DeviceStatus Unregister(void* address) {
    const std::lock_guard guard(mutex_);
    was_called_here_ |= std::this_thread::get_id() == test_thread_;
    // Faults if it was unmapped before.
    EXPECT_EQ(*static_cast<volatile char*>(address), *static_cast<volatile char*>(address));
    EXPECT_EQ(registered_.erase(address), 1u);
    changed_.notify_all();
    return {};
  }

  static inline Driver* g_driver = nullptr;
  DeviceOps ops_ = HostDeviceOps();
  std::shared_ptr<const Device> device_;
  const std::thread::id test_thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<void*, uint64_t> registered_;
  uint32_t waiting_count_ = 0;
  bool is_gate_open_ = true;
  bool is_failing_ = false;
  bool was_called_here_ = false;
};

// Acquire leases segment 0, Reserve segment 1.
class Pins : public ClientFixture {
 protected:
  void SetUp() override {
    GiveTurns(true);
    ConnectWith(TestOptions(daemon_));
  }
  void TearDown() override { client_.reset(); }  // before the driver
  void ConnectWith(const ClientOptions& options) {
    Connect(options);
    auto pins = client_->PinArena(driver_.device());
    ASSERT_TRUE(pins.ok());
    pins_ = *pins;
  }
  void GiveTurns(bool at_once) {
    daemon_.set_handler([at_once](ScriptedDaemon& daemon, const PeerMessage& message) {
      if (message.verb != protocol::kVerbPinTurn) return false;
      const bool asks =
          message.Head<protocol::PinTurnRequest>().action == protocol::PinTurnAction::kAsk;
      BodyBuilder body;
      if (asks) body.Add(protocol::PinTurnReply{});
      daemon.Answer(message, StatusCode::kOk, body.bytes());
      if (asks && at_once) BeginTurn(daemon);
      return true;
    });
  }
  static void BeginTurn(ScriptedDaemon& daemon) {
    daemon.Tell(protocol::kVerbPinTurnBegins, 0, StatusCode::kOk, {});
  }
  // What it has asked for and ended, in order.
  std::string Turns(size_t count) {
    EXPECT_TRUE(daemon_.WaitFor(protocol::kVerbPinTurn, count));
    std::string turns;
    for (const PeerMessage& message : daemon_.Received(protocol::kVerbPinTurn)) {
      const auto action = message.Head<protocol::PinTurnRequest>().action;
      turns += action == protocol::PinTurnAction::kAsk ? 'a' : 'e';
    }
    return turns;
  }
  void RevokeSegment(uint32_t segment) {
    BodyBuilder body;
    body.Add(protocol::SegmentRevoke{.segment = segment});
    daemon_.Tell(Verb::kSegmentRevoke, 0, StatusCode::kOk, body.bytes());
  }
  bool IsReached(std::span<const std::byte> slot) const {
    return pins_->DeviceAddress(slot.data(), slot.size()) != nullptr;
  }
  // All that came before has been read and acted on.
  void RoundTrip() { ASSERT_TRUE(client_->Reset(group_).ok()); }

  Driver driver_;
  std::shared_ptr<HostPins> pins_;
};

TEST_F(Pins, ALeasedSegmentIsRegisteredWhenItsTurnComes) {
  GiveTurns(false);
  const ReadLease lease = Acquire(2);
  ASSERT_EQ(Turns(1), "a");
  RoundTrip();
  EXPECT_EQ(driver_.registered_count(), 0u) << "it is somebody else's turn";
  EXPECT_EQ(pins_->DeviceAddress(lease.slot(1, 0).data(), 16384), nullptr);
  BeginTurn(daemon_);
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  EXPECT_EQ(Turns(2), "ae");
  EXPECT_EQ(pins_->DeviceAddress(lease.slot(1, 0).data(), 16384), lease.slot(1, 0).data());
  EXPECT_EQ(pins_->counts().pinned_bytes, kSegment);
  // The other one: a turn of its own. What is registered is not asked for again.
  const ReadLease again = Acquire(2);
  const WriteLease other = Reserve(2);
  EXPECT_EQ(Turns(3), "aea");
  BeginTurn(daemon_);
  ASSERT_TRUE(driver_.WaitForRegistered(2));
  EXPECT_EQ(Turns(4), "aeae");
  EXPECT_FALSE(driver_.was_called_here());
  EXPECT_EQ(client_->PinArena(driver_.device()).code(), StatusCode::kExists);
}

TEST_F(Pins, WhileTheEngineCapturesNothingIsRegistered) {
  GiveTurns(false);
  ASSERT_TRUE(client_->PausePinning(kLongUs).ok());
  const ReadLease lease = Acquire(2);
  RoundTrip();
  EXPECT_EQ(daemon_.Received(protocol::kVerbPinTurn).size(), 0u);
  client_->ResumePinning();
  ASSERT_EQ(Turns(1), "a");
  ASSERT_TRUE(client_->PausePinning(kLongUs).ok());
  ASSERT_TRUE(client_->PausePinning(kLongUs).ok());
  BeginTurn(daemon_);
  ASSERT_EQ(Turns(2), "ae") << "others may use it meanwhile";
  client_->ResumePinning();
  RoundTrip();
  EXPECT_EQ(daemon_.Received(protocol::kVerbPinTurn).size(), 2u) << "paused twice";
  client_->ResumePinning();
  ASSERT_EQ(Turns(3), "aea");
  driver_.SetGate(false);
  BeginTurn(daemon_);
  ASSERT_TRUE(driver_.WaitForWaiting());
  EXPECT_EQ(client_->PausePinning(1).code(), StatusCode::kBusy);
  client_->ResumePinning();
  driver_.SetGate(true);
  EXPECT_TRUE(client_->PausePinning(kLongUs).ok());
  EXPECT_EQ(driver_.registered_count(), 1u);
  // Taken out neither.
  RevokeSegment(0);
  { const ReadLease last = Acquire(1); }
  RoundTrip();
  client_->ResumePinning();
}

TEST_F(Pins, ARevokedSegmentIsTakenOutBeforeItIsUnmapped) {
  ReadLease lease = Acquire(2);
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  ASSERT_EQ(Turns(2), "ae");
  RevokeSegment(0);
  RoundTrip();
  EXPECT_EQ(driver_.registered_count(), 1u) << "a copy may be under way";
  EXPECT_EQ(daemon_.Received(Verb::kUnmapped).size(), 0u);
  ASSERT_TRUE(client_->PausePinning(kLongUs).ok());
  lease = ReadLease();
  RoundTrip();
  EXPECT_EQ(daemon_.Received(Verb::kUnmapped).size(), 0u);
  client_->ResumePinning();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kUnmapped, 1));
  EXPECT_EQ(driver_.registered_count(), 0u);
  EXPECT_FALSE(driver_.was_called_here());
  EXPECT_EQ(pins_->counts().pinned_bytes, 0u);
  // It comes back, mapped anew.
  const ReadLease next = Acquire(2);
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  EXPECT_TRUE(Eventually([&] { return IsReached(next.slot(0, 0)); }));
}

TEST_F(Pins, ASegmentRevokedWhileItIsBeingRegisteredGoesWhenThatIsDone) {
  driver_.SetGate(false);
  ReadLease lease = Acquire(2);
  ASSERT_TRUE(driver_.WaitForWaiting());
  lease = ReadLease();
  RevokeSegment(0);
  RoundTrip();
  EXPECT_EQ(daemon_.Received(Verb::kUnmapped).size(), 0u);
  driver_.SetGate(true);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kUnmapped, 1));
  EXPECT_EQ(driver_.registered_count(), 0u);
}

// PROMISE: T26 a registration that fails
TEST_F(Pins, AFailureIsRememberedCountedAndReportedOnce) {
  driver_.set_failing(true);
  const ReadLease lease = Acquire(2);
  ASSERT_TRUE(Eventually([&] { return pins_->counts().failed_count == 1; }));
  ASSERT_EQ(Turns(2), "ae");
  EXPECT_THAT(client_->last_error(), HasSubstr("segment 0 of the arena"));
  EXPECT_THAT(client_->last_error(), HasSubstr("out of memory, the driver says (2)"));
  const ReadLease again = Acquire(2);
  const WriteLease other = Reserve(2);
  ASSERT_EQ(Turns(4), "aeae") << "segment 0 is not tried again, segment 1 is";
  EXPECT_EQ(pins_->counts().failed_count, 2u);
  EXPECT_THAT(client_->last_error(), HasSubstr("segment 0 of the arena"));
  EXPECT_EQ(pins_->counts().pinned_bytes, 0u);
}

TEST_F(Pins, NoMoreIsRegisteredThanTheLimit) {
  ClientOptions options = TestOptions(daemon_);
  options.pinned_bytes_max = kSegment;
  ConnectWith(options);
  ReadLease lease = Acquire(2);
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  ASSERT_EQ(Turns(2), "ae");
  const WriteLease other = Reserve(2);
  RoundTrip();
  EXPECT_EQ(daemon_.Received(protocol::kVerbPinTurn).size(), 2u) << "no room: no turn is asked for";
  RevokeSegment(0);
  lease = ReadLease();
  ASSERT_EQ(Turns(4), "aeae");
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  EXPECT_NE(pins_->DeviceAddress(other.slot(0, 0).data(), 1), nullptr);
}

TEST_F(Pins, WithALimitOfNothingNothingIsAskedFor) {
  ClientOptions options = TestOptions(daemon_);
  options.pinned_bytes_max = 0;
  ConnectWith(options);
  const ReadLease lease = Acquire(2);
  RoundTrip();
  EXPECT_EQ(daemon_.Received(protocol::kVerbPinTurn).size(), 0u);
}

TEST_F(Pins, ADaemonThatKnowsNoTurnsIsDoneWithout) {
  client_.reset();
  std::atomic<uint32_t> refused_on{0};  // connection
  daemon_.set_handler([&](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != protocol::kVerbPinTurn && message.verb != protocol::kVerbDeviceReport) {
      return false;
    }
    refused_on = daemon.connection_count();
    daemon.Answer(message, StatusCode::kInvalid, BodyBuilder().AddText("no such verb").bytes());
    daemon.Disconnect();
    return true;
  });
  ConnectWith(TestOptions(daemon_));
  ASSERT_TRUE(
      Eventually([&] { return refused_on > 0 && daemon_.connection_count() > refused_on; }));
  const uint32_t connection = daemon_.connection_count();
  ASSERT_TRUE(Eventually([&] { return client_->is_connected(); }));
  const ReadLease lease = Acquire(2);
  const WriteLease other = Reserve(2);
  ASSERT_TRUE(driver_.WaitForRegistered(2));
  RoundTrip();
  EXPECT_EQ(daemon_.connection_count(), connection);
  EXPECT_LT(refused_on, connection) << "not asked again";
  daemon_.set_handler(nullptr);
}

TEST_F(Pins, TheDaemonIsToldWhatMakesTheCopiesAndWhy) {
  ClientOptions options = TestOptions(daemon_);
  options.pinned_bytes_max = 5 * kSegment;
  client_.reset();
  Connect(options);
  const size_t before = daemon_.Received(protocol::kVerbDeviceReport).size();
  pins_ = client_->PinArena(driver_.device(), "there is no plugin").value();
  ASSERT_TRUE(daemon_.WaitFor(protocol::kVerbDeviceReport, before + 1));
  const auto report =
      daemon_.Received(protocol::kVerbDeviceReport)[before].Head<protocol::DeviceReport>();
  EXPECT_STREQ(report.backend, "host");
  EXPECT_STREQ(report.why, "there is no plugin");
  EXPECT_EQ(report.pinned_bytes_max, 5 * kSegment);
  EXPECT_EQ(report.pinned_bytes, 0u);
  const ReadLease lease = Acquire(2);
  pins_->CountCopied(100, 7);
  ASSERT_TRUE(Eventually([&] {
    const auto last =
        daemon_.Received(protocol::kVerbDeviceReport).back().Head<protocol::DeviceReport>();
    return last.pinned_bytes == kSegment && last.straight_bytes == 100 && last.bounced_bytes == 7;
  }));
  const size_t told = daemon_.Received(protocol::kVerbDeviceReport).size();
  Reconnect();
  EXPECT_TRUE(daemon_.WaitFor(protocol::kVerbDeviceReport, told + 1)) << "the new session, too";
}

TEST_F(Pins, WhoseTurnNeverComesGoesOnWithout) {
  GiveTurns(false);
  ClientOptions options = TestOptions(daemon_);
  options.pin_turn_wait_ms = 1;
  ConnectWith(options);
  const ReadLease lease = Acquire(2);
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  EXPECT_EQ(Turns(2), "ae") << "it does not wait for a turn any more";
}

TEST_F(Pins, WithTheConnectionGoesWhatWasRegistered) {
  ReadLease kept = Acquire(2);
  { const WriteLease lease = Reserve(2); }
  ASSERT_TRUE(driver_.WaitForRegistered(2));
  Reconnect();
  EXPECT_FALSE(kept.is_valid());
  EXPECT_NE(pins_->DeviceAddress(kept.slot(0, 0).data(), 1), nullptr) << "copies may be under way";
  EXPECT_FALSE(daemon_.IsLifeOver(0));
  const ReadLease fresh = Acquire(2);
  ASSERT_TRUE(driver_.WaitForRegistered(3));
  kept = ReadLease();
  ASSERT_TRUE(daemon_.WaitLifeEnds(0));
  EXPECT_EQ(driver_.registered_count(), 1u) << "taken out before the goodbye";
  EXPECT_TRUE(Eventually([&] { return IsReached(fresh.slot(0, 0)); }));
  EXPECT_FALSE(driver_.was_called_here());
}

TEST_F(Pins, ALeaseThatOutlivesItsClientKeepsItsSegmentRegistered) {
  ReadLease lease = Acquire(2);
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  client_.reset();
  EXPECT_NE(pins_->DeviceAddress(lease.slot(0, 0).data(), 1), nullptr);
  lease = ReadLease();
  EXPECT_EQ(driver_.registered_count(), 0u);
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
}

TEST_F(Pins, TheEndOfAClientTakesOutWhatIsNotLeased) {
  { const ReadLease lease = Acquire(2); }
  ASSERT_TRUE(driver_.WaitForRegistered(1));
  client_.reset();
  EXPECT_EQ(driver_.registered_count(), 0u);
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
}

}  // namespace
}  // namespace terrace
